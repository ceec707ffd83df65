//! Implements the contract over the key space and an engine.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use async_trait::async_trait;
use base::tasks::{Kind, Tasks, blocking};
use bytes::Bytes;

use super::engine::Engine;
use super::lease_expiry::expire_leases;
use super::pinned::PinnedState;
use super::shared::SharedState;
use crate::contract::{
    Alarm, Backend, Cluster, ClusterMembers, Durability, KeyRange, Kv, KvHash, Lease, LeaseStats,
    Leases, MAX_TTL, MIN_TTL, Maintenance, RangeRequest, RangeResponse, RangeSummary, RangeVisitor,
    Revision, SavedSnapshot, Stats, StoreError, StoreSize, StoreStats, Txn, TxnResponse, Watch,
    WatchGroup, WatchGuard, Watcher,
};
use crate::mvcc::{Command, LEASE_OVERHEAD, Outcome, State, check_txn, cost, only_reads};
use crate::snapshot::{Header, save};
use crate::watchers::Feed;

/// Changes of history that are read per lock.
const REPLAY_CHUNK: usize = 1000;

/// A store over an engine.
#[derive(Debug)]
pub(crate) struct LocalStore<E> {
    shared: Arc<SharedState>,
    engine: Arc<E>,
    limits: StoreOptions,
    tasks: Tasks,
}

/// Options of a store.
#[derive(Debug, Default)]
pub(crate) struct StoreOptions {
    /// The members, if there can be several.
    pub(crate) members: Option<Arc<dyn ClusterMembers>>,
    /// Limit in bytes for keys and values.
    pub(crate) quota: Option<u64>,
}

impl<E: Engine> LocalStore<E> {
    /// Starts a store over an engine, with the task that expires leases.
    pub(crate) fn start(
        shared: Arc<SharedState>,
        engine: Arc<E>,
        limits: StoreOptions,
        tasks: &Tasks,
    ) -> Arc<dyn Backend> {
        let expiry = expire_leases(Arc::clone(&shared), Arc::clone(&engine), tasks.clone());
        tasks.spawn(Kind::Critical, "lease expiry", expiry);
        Arc::new(Self { shared, engine, limits, tasks: tasks.clone() })
    }

    /// Refuses a change that adds about `cost` bytes if an alarm forbids it. A change beyond the
    /// quota raises the alarm.
    async fn check_space(&self, cost: usize) -> Result<(), StoreError> {
        let held = {
            let state = self.shared.state.read();
            state.cluster_data().refuse(cost)?;
            state.size().memory
        };
        let beyond = |quota: &u64| cost > 0 && (held.saturating_add(cost)) as u64 >= *quota;
        let Some(quota) = self.limits.quota.filter(beyond) else { return Ok(()) };
        let member = self.limits.members.as_ref().map_or(0, |members| members.id());
        tracing::error!(quota, held, "the store's quota is used up, only deletions are accepted");
        self.set_alarm(member, Alarm::NOSPACE, true).await?;
        Err(StoreError::NoSpace(format!("{held} of {quota} bytes are used")))
    }

    /// Pins the state and returns the result of `look` on it.
    async fn pin<T>(
        &self,
        look: impl FnOnce(&State) -> Result<T, StoreError>,
    ) -> Result<(PinnedState, T), StoreError> {
        let held = self.engine.lock_state().await;
        let mut state = self.shared.state.write();
        let looked = look(&state)?;
        state.pin();
        Ok((PinnedState::new(Arc::clone(&self.shared), held), looked))
    }

    /// Starts a watch; `make` creates its two ends.
    fn begin_watch<T>(
        &self,
        range: KeyRange,
        start: Option<Revision>,
        make: impl FnOnce(KeyRange, i64) -> (Feed, T),
    ) -> Result<T, StoreError> {
        self.check_running()?;
        let (rest, other) = {
            let state = self.shared.state.read();
            let newest = state.revision();
            let start = start.map_or(newest + 1, |r| r.0).max(1);
            // A compacted start is refused here, not in the stream.
            state.events(start, &range, 0)?;
            let (feed, other) = make(range, start);
            if start <= newest {
                (Some(feed), other)
            } else {
                self.shared.hub.lock().join(feed, newest);
                (None, other)
            }
        };
        if let Some(feed) = rest {
            let history = catch_up(Arc::clone(&self.shared), feed);
            self.tasks.spawn(Kind::Request, "watch history", history);
        }
        Ok(other)
    }

    fn check_running(&self) -> Result<(), StoreError> {
        self.engine.stopped().map_or(Ok(()), Err)
    }
}

/// Replays history until the feed is up to date, then adds it to the live watchers while the lock
/// excludes new changes.
async fn catch_up(shared: Arc<SharedState>, mut feed: Feed) -> Result<(), StoreError> {
    loop {
        let chunk = {
            let state = shared.state.read();
            if feed.next() > state.revision() {
                shared.hub.lock().join(feed, state.revision());
                return Ok(());
            }
            state.events(feed.next(), feed.range(), REPLAY_CHUNK)
        };
        match chunk {
            Ok((events, next)) => {
                if !feed.replay(events, next).await {
                    return Ok(());
                }
            }
            Err(error) => {
                feed.end(error);
                return Ok(());
            }
        }
    }
}

#[async_trait]
impl<E: Engine> Kv for LocalStore<E> {
    async fn read_barrier(&self) -> Result<Revision, StoreError> {
        self.check_running()?;
        self.engine.barrier().await?;
        let state = self.shared.state.read();
        let revision = state.revision();
        self.shared.hub.lock().progress(None, revision);
        Ok(Revision(revision))
    }

    async fn read_index(&self) -> Result<Revision, StoreError> {
        self.check_running()?;
        self.engine.barrier().await?;
        Ok(self.revision())
    }

    async fn range(&self, request: RangeRequest) -> Result<RangeResponse, StoreError> {
        self.shared.counts.ranges.fetch_add(1, Relaxed);
        self.shared.state.read().range(&request)
    }

    async fn range_each(
        &self,
        request: RangeRequest,
        pairs: &mut dyn RangeVisitor,
    ) -> Result<RangeSummary, StoreError> {
        self.shared.counts.ranges.fetch_add(1, Relaxed);
        self.shared.state.read().range_each(&request, pairs)
    }

    async fn txn(&self, txn: Txn) -> Result<TxnResponse, StoreError> {
        self.check_running()?;
        check_txn(&txn)?;
        if !only_reads(&txn) {
            self.check_space(cost(&txn)).await?;
        }
        // A transaction that would write nothing, most often a failed comparison, needs no log
        // record.
        let reads = |shared: &SharedState| shared.state.read().read_txn(&txn);
        if self.engine.is_alone() {
            if let Some(response) = reads(&self.shared)? {
                return Ok(response);
            }
        } else if !matches!(reads(&self.shared), Ok(None)) {
            // The local state may be stale: evaluate again after a barrier.
            self.engine.barrier().await?;
            if let Some(response) = reads(&self.shared)? {
                return Ok(response);
            }
        }
        let durability = txn.durability;
        match self.engine.submit(Command::Txn(txn), durability).await? {
            Outcome::Txn(response) => Ok(response),
            Outcome::Done(_) => {
                Err(StoreError::Stopped("unexpected outcome of a transaction".to_owned()))
            }
        }
    }

    fn revision(&self) -> Revision {
        Revision(self.shared.state.read().revision())
    }
}

#[async_trait]
impl<E: Engine> Watch for LocalStore<E> {
    fn notify_progress(&self, range: &KeyRange) {
        // The lock excludes new changes, so they are published after the progress.
        let state = self.shared.state.read();
        self.shared.hub.lock().progress(Some(range), state.revision());
    }

    async fn watch(&self, range: KeyRange, start: Option<Revision>) -> Result<Watcher, StoreError> {
        let batches = self.begin_watch(range, start, Feed::new)?;
        Ok(Watcher { batches })
    }

    async fn watch_in(
        &self,
        group: &WatchGroup,
        id: i64,
        range: KeyRange,
        start: Option<Revision>,
    ) -> Result<WatchGuard, StoreError> {
        self.begin_watch(range, start, |range, start| Feed::grouped(group, id, range, start))
    }
}

#[async_trait]
impl<E: Engine> Leases for LocalStore<E> {
    async fn lease_grant(&self, id: i64, ttl: i64) -> Result<Lease, StoreError> {
        self.check_running()?;
        self.check_space(LEASE_OVERHEAD).await?;
        if ttl > MAX_TTL {
            return Err(StoreError::LeaseTtlTooLarge);
        }
        let ttl = ttl.max(MIN_TTL);
        let mut chosen = id;
        while chosen == 0 || (id == 0 && self.shared.state.read().lease_ttl(chosen).is_some()) {
            chosen = (base::clock::random_u64() >> 1).cast_signed();
        }
        self.engine.submit(Command::LeaseGrant { id: chosen, ttl }, Durability::Synced).await?;
        Ok(Lease { id: chosen, granted_ttl: ttl, remaining_ttl: ttl })
    }

    async fn lease_revoke(&self, id: i64) -> Result<Revision, StoreError> {
        self.check_running()?;
        match self.engine.submit(Command::LeaseRevoke { id }, Durability::Synced).await? {
            Outcome::Done(revision) => Ok(revision),
            Outcome::Txn(response) => Ok(response.revision),
        }
    }

    async fn lease_keep_alive(&self, id: i64) -> Result<Lease, StoreError> {
        self.check_running()?;
        let ttl = match self.engine.renew_remotely(id).await? {
            Some(ttl) => ttl,
            None => self.shared.renew(id).await?,
        };
        Ok(Lease { id, granted_ttl: ttl, remaining_ttl: ttl })
    }

    async fn lease(&self, id: i64) -> Result<(Lease, Vec<Bytes>), StoreError> {
        let remaining = match self.engine.remaining_remotely(id).await? {
            Some(remaining) => Some(remaining),
            None => self.shared.remaining(id),
        };
        let state = self.shared.state.read();
        let (Some((granted_ttl, remaining_ttl)), Some(keys)) = (remaining, state.lease_keys(id))
        else {
            return Err(StoreError::LeaseNotFound);
        };
        Ok((Lease { id, granted_ttl, remaining_ttl }, keys.collect()))
    }

    async fn leases(&self) -> Result<Vec<i64>, StoreError> {
        Ok(self.shared.state.read().leases().map(|(id, _)| id).collect())
    }
}

#[async_trait]
impl<E: Engine> Maintenance for LocalStore<E> {
    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        self.check_running()?;
        self.engine.submit(Command::Compact(revision.0), Durability::Synced).await.map(|_| ())
    }

    async fn save(&self, file: File) -> io::Result<SavedSnapshot> {
        self.check_running().map_err(io::Error::other)?;
        self.engine.barrier().await.map_err(io::Error::other)?;
        let (index, term) = (self.engine.applied_index().max(1), self.engine.term().max(1));
        let header = |state: &State| {
            let (revision, compacted) = (state.revision(), state.compacted());
            Ok(Header { revision, compacted, leases: state.leases().collect(), index, term })
        };
        let (pinned, header) = self.pin(header).await.map_err(io::Error::other)?;
        // Runs to its end even if the caller is gone.
        let work = blocking(move || save(&file, &pinned.shared.state, &header));
        work.await.map_err(io::Error::other)?
    }

    fn compacted(&self) -> Revision {
        Revision(self.shared.state.read().compacted())
    }

    fn size(&self) -> StoreSize {
        StoreSize { disk: self.engine.disk_bytes(), ..self.shared.state.read().size() }
    }

    fn quota(&self) -> Option<u64> {
        self.limits.quota
    }

    fn alarms(&self) -> Vec<(u64, Alarm)> {
        let state = self.shared.state.read();
        state.cluster_data().alarms.iter().map(|(alarm, member)| (*member, *alarm)).collect()
    }

    async fn set_alarm(&self, member: u64, alarm: Alarm, raised: bool) -> Result<bool, StoreError> {
        self.check_running()?;
        let was = self.alarms().contains(&(member, alarm));
        if was != raised || !self.engine.is_alone() {
            let command = Command::Alarm { member, alarm, raised };
            self.engine.submit(command, Durability::Synced).await?;
        }
        Ok(raised || was)
    }

    async fn hash(&self, revision: Revision) -> Result<KvHash, StoreError> {
        let (pinned, hashing) = self.pin(|state| state.hashing(revision)).await?;
        let hash = blocking(move || pinned.hash(hashing));
        hash.await.map_err(|panic| StoreError::Stopped(format!("the checksum failed: {panic}")))
    }

    async fn defragment(&self) -> Result<(), StoreError> {
        self.check_running()?;
        self.engine.defragment().await
    }
}

impl<E: Engine> Cluster for LocalStore<E> {
    fn is_alone(&self) -> bool {
        self.engine.is_alone()
    }

    fn term(&self) -> u64 {
        self.engine.term()
    }

    fn applied_index(&self) -> u64 {
        self.engine.applied_index()
    }

    fn members(&self) -> Option<Arc<dyn ClusterMembers>> {
        self.limits.members.clone()
    }
}

impl<E: Engine> Stats for LocalStore<E> {
    fn stats(&self) -> StoreStats {
        let mut stats = StoreStats::default();
        self.engine.fill_stats(&mut stats);
        let counts = &self.shared.counts;
        stats.keys = self.shared.state.read().counts();
        stats.keys.ranges += counts.ranges.load(Relaxed);
        stats.keys.events = counts.events.load(Relaxed);
        stats.watchers = self.shared.hub.lock().len();
        stats.leases = LeaseStats {
            granted: counts.granted.load(Relaxed),
            revoked: counts.revoked.load(Relaxed),
            renewed: counts.renewed.load(Relaxed),
            expired: counts.expired.load(Relaxed),
        };
        stats
    }
}
