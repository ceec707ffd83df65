//! Implements the contract with requests to etcd.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use async_trait::async_trait;
use base::tasks::{Kind, Tasks};
use bytes::Bytes;
use futures::future::BoxFuture;
use proto::etcdserverpb as pb;
use proto::etcdserverpb::alarm_request::AlarmAction;
use proto::etcdserverpb::request_op::Request as Step;
use proto::etcdserverpb::response_op::Response as StepAnswer;
use sorting::CompactSort as _;
use tokio::sync::{mpsc, oneshot};
use tonic::Request;

use super::connection::Connection;
use super::convert;
use super::error::EtcdError;
use super::health::{HealthMonitor, alarms_of};
use super::snapshot::save;
use crate::contract::{
    Alarm, Cluster, ClusterMembers, KeyRange, KeyStats, Kv, KvHash, Lease, LeaseStats, Leases,
    MAX_REQUEST_BYTES, Maintenance, RangeRequest, RangeResponse, Revision, SavedSnapshot, Stats,
    StoreError, StoreSize, StoreStats, Txn, TxnResponse, Watch, WatchGroup, WatchGuard, Watcher,
};
use crate::external::etcd::client::{
    ANSWER, Client, Retry, into_message, revision_of, with_leader,
};
use crate::mvcc::{check_txn, only_reads};
use crate::timing::Timing;
use crate::watchers::Feed;

/// Keys per page; a larger range is read in pages at one revision.
const PAGE: usize = 2000;
/// Timeout of requests that process all of etcd's data: checksums, defragmentation.
const LONG: std::time::Duration = std::time::Duration::from_secs(300);
/// Maximum wait for the watch to reach the revision of a response.
const WATCH_WAIT: std::time::Duration = std::time::Duration::from_secs(1);
/// Restarts of a read at the newest revision because that revision was compacted between two pages.
const AGAIN_MAX: usize = 3;

/// Receiver of the newest revision.
type RevisionReply = oneshot::Sender<Result<i64, StoreError>>;

/// Counters of requests to etcd.
#[derive(Debug, Default)]
pub(super) struct Counts {
    ranges: AtomicU64,
    txns: AtomicU64,
    granted: AtomicU64,
    revoked: AtomicU64,
    renewed: AtomicU64,
    /// Writes.
    writes: Timing,
}

/// The store over an etcd.
#[derive(Debug)]
pub(super) struct Etcd {
    pub(super) health: Arc<HealthMonitor>,
    pub(super) requests: mpsc::Sender<RevisionReply>,
    pub(super) counts: Counts,
    pub(super) tasks: Tasks,
}

/// Requests the newest revision, once for all callers that wait.
///
/// # Errors
/// None.
pub(super) async fn newest(
    client: Client,
    mut requests: mpsc::Receiver<RevisionReply>,
) -> Result<(), StoreError> {
    let mut waiting = Vec::new();
    loop {
        let received = tokio::select! {
            biased;
            () = client.shutdown.requested() => return Ok(()),
            received = requests.recv_many(&mut waiting, usize::MAX) => received,
        };
        if received == 0 {
            return Ok(());
        }
        let answer = client.newest().await.map_err(|error| error.into_store_error(0));
        // The receiver may be gone.
        waiting.drain(..).for_each(|call: RevisionReply| drop(call.send(answer.clone())));
    }
}

impl Etcd {
    fn client(&self) -> &Client {
        &self.health.client
    }

    fn check(&self) -> Result<(), StoreError> {
        self.health.follower.check()
    }

    /// Converts an error, and adds the revision that etcd does not report.
    async fn to_store_error(&self, error: EtcdError, requested: i64) -> StoreError {
        match error.into_store_error(requested) {
            StoreError::Compacted { requested, oldest: 0 } => {
                let oldest = self.health.follower.oldest(requested).await;
                StoreError::Compacted { requested, oldest }
            }
            StoreError::Future { requested, .. } => match self.client().newest().await {
                Ok(newest) => StoreError::Future { requested, newest },
                Err(error) => error.into_store_error(requested),
            },
            other => other,
        }
    }

    /// Reads in pages, all at the revision of the first.
    async fn read_pages(&self, request: &RangeRequest) -> Result<RangeResponse, EtcdError> {
        let mut received = convert::range(request);
        let most = if request.limit == 0 { usize::MAX } else { request.limit };
        let page = |left: usize| i64::try_from(left.min(PAGE)).unwrap_or(i64::MAX);
        if !request.count_only {
            received.limit = page(most);
        }
        let first = self.client().range(&received).await?;
        let now = revision_of(first.header.as_ref());
        let mut range_response = convert::range_response(first, now);
        while range_response.more && range_response.kvs.len() < most {
            let Some(last) = range_response.kvs.last() else { break };
            // The key after the last one.
            received.key = [last.key.as_ref(), &[0]].concat().into();
            received.revision = request.revision.map_or(now, |revision| revision.0);
            received.limit = page(most.saturating_sub(range_response.kvs.len()));
            let next = convert::range_response(self.client().range(&received).await?, now);
            range_response.more = next.more;
            range_response.kvs.extend(next.kvs);
        }
        Ok(range_response)
    }

    /// Writes on condition that this server holds the lock.
    async fn write(&self, txn: &Txn) -> Result<TxnResponse, StoreError> {
        let begun = base::clock::now();
        let lock = self.health.lock.as_ref();
        let inner = convert::txn(txn);
        let request = match lock {
            Some(lock) => pb::TxnRequest {
                compare: vec![lock.condition()],
                success: vec![pb::RequestOp { request: Some(Step::RequestTxn(inner)) }],
                failure: Vec::new(),
            },
            None => inner,
        };
        let answer = self.client().txn(Retry::Never, &request).await;
        self.counts.writes.observe(begun.elapsed());
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                return Err(self.to_store_error(error, convert::reads_at(txn)).await);
            }
        };
        let revision = revision_of(answer.header.as_ref());
        if lock.is_none() {
            return convert::txn_response(txn, answer, revision);
        }
        if !answer.succeeded {
            let text = "this server lost the lock on etcd, and acquires it again if it is free";
            return Err(StoreError::Unavailable(text.to_owned()));
        }
        let inner = answer.responses.into_iter().find_map(|step| match step.response {
            Some(StepAnswer::ResponseTxn(inner)) => Some(inner),
            _ => None,
        });
        convert::txn_response(txn, inner.unwrap_or_default(), revision)
    }

    /// Waits until the watch has reached the revision of a response, because callers may expect
    /// caches to have it. If the watch does not catch up, the response is still valid.
    async fn wait_for_watch(&self, revision: Revision) {
        drop(tokio::time::timeout(WATCH_WAIT, self.health.follower.wait_for(revision.0)).await);
    }

    async fn begin_watch<T>(
        &self,
        range: KeyRange,
        start: Option<Revision>,
        make: impl FnOnce(KeyRange, i64) -> (Feed, T),
    ) -> Result<T, StoreError> {
        self.check()?;
        let start = match start {
            Some(start) => start.0.max(1),
            None => self.read_index().await?.0 + 1,
        };
        let begun = self.health.follower.begin(range, start, make).await?;
        let (other, history): (T, Option<BoxFuture<'static, ()>>) = begun;
        if let Some(history) = history {
            let work = async move {
                history.await;
                Ok::<(), std::convert::Infallible>(())
            };
            self.tasks.spawn(Kind::Request, "watch history", work);
        }
        Ok(other)
    }
}

#[async_trait]
impl Kv for Etcd {
    async fn read_barrier(&self) -> Result<Revision, StoreError> {
        let revision = self.read_index().await?;
        self.health.follower.progress(None);
        Ok(revision)
    }

    async fn read_index(&self) -> Result<Revision, StoreError> {
        self.check()?;
        let ended = || StoreError::Stopped("the server is stopping".to_owned());
        let (call, answer) = oneshot::channel();
        self.requests.send(call).await.map_err(|_| ended())?;
        let revision = answer.await.unwrap_or_else(|_| Err(ended()))?;
        self.health.follower.wait_for(revision).await?;
        Ok(Revision(revision))
    }

    async fn range(&self, request: RangeRequest) -> Result<RangeResponse, StoreError> {
        self.check()?;
        self.counts.ranges.fetch_add(1, Relaxed);
        let requested = request.revision.map_or(0, |revision| revision.0);
        let mut again = 0;
        loop {
            let error = match self.read_pages(&request).await {
                Ok(range_response) => {
                    if request.revision.is_none() {
                        self.wait_for_watch(range_response.revision).await;
                    }
                    return Ok(range_response);
                }
                Err(error) => error,
            };
            match self.to_store_error(error, requested).await {
                StoreError::Compacted { .. } if request.revision.is_none() && again < AGAIN_MAX => {
                    again += 1;
                }
                error => return Err(error),
            }
        }
    }

    async fn txn(&self, txn: Txn) -> Result<TxnResponse, StoreError> {
        self.check()?;
        let size = check_txn(&txn)?;
        self.counts.txns.fetch_add(1, Relaxed);
        let txn_response = if only_reads(&txn) {
            match self.client().txn(Retry::Allowed, &convert::txn(&txn)).await {
                Ok(answer) => {
                    let revision = revision_of(answer.header.as_ref());
                    convert::txn_response(&txn, answer, revision)
                }
                Err(error) => Err(self.to_store_error(error, convert::reads_at(&txn)).await),
            }
        } else {
            self.write(&txn).await
        };
        match txn_response {
            Ok(txn_response) => {
                self.wait_for_watch(txn_response.revision).await;
                Ok(txn_response)
            }
            Err(StoreError::Invalid(text)) if text == "etcdserver: request is too large" => {
                Err(StoreError::TooLarge { size, limit: MAX_REQUEST_BYTES })
            }
            refused => refused,
        }
    }

    fn revision(&self) -> Revision {
        Revision(self.client().observed.revision.load(Relaxed))
    }
}

#[async_trait]
impl Watch for Etcd {
    fn notify_progress(&self, range: &KeyRange) {
        self.health.follower.progress(Some(range));
    }

    async fn watch(&self, range: KeyRange, start: Option<Revision>) -> Result<Watcher, StoreError> {
        let batches = self.begin_watch(range, start, Feed::new).await?;
        Ok(Watcher { batches })
    }

    async fn watch_in(
        &self,
        group: &WatchGroup,
        id: i64,
        range: KeyRange,
        start: Option<Revision>,
    ) -> Result<WatchGuard, StoreError> {
        let make = |range, start| Feed::grouped(group, id, range, start);
        self.begin_watch(range, start, make).await
    }
}

#[async_trait]
impl Leases for Etcd {
    async fn lease_grant(&self, id: i64, ttl: i64) -> Result<Lease, StoreError> {
        self.check()?;
        let granted =
            self.client().grant(id, ttl).await.map_err(|error| error.into_store_error(0))?;
        self.counts.granted.fetch_add(1, Relaxed);
        Ok(Lease { id: granted.id, granted_ttl: granted.ttl, remaining_ttl: granted.ttl })
    }

    async fn lease_revoke(&self, id: i64) -> Result<Revision, StoreError> {
        self.check()?;
        let revision = self.client().revoke(id).await.map_err(|error| error.into_store_error(0))?;
        self.counts.revoked.fetch_add(1, Relaxed);
        Ok(Revision(revision))
    }

    async fn lease(&self, id: i64) -> Result<(Lease, Vec<Bytes>), StoreError> {
        self.check()?;
        let request = pb::LeaseTimeToLiveRequest { id, keys: true };
        let call = |connection: Connection| async move {
            let mut client = connection.leases();
            into_message(client.lease_time_to_live(with_leader(request)).await)
        };
        let answer = self.client().call(Retry::Allowed, ANSWER, call).await;
        let mut answer = answer.map_err(|error| error.into_store_error(0))?;
        if answer.ttl < 0 {
            return Err(StoreError::LeaseNotFound);
        }
        answer.keys.compact_sort();
        let lease = Lease { id, granted_ttl: answer.granted_ttl, remaining_ttl: answer.ttl };
        Ok((lease, answer.keys))
    }

    async fn leases(&self) -> Result<Vec<i64>, StoreError> {
        self.check()?;
        let call = |connection: Connection| async move {
            let mut client = connection.leases();
            into_message(client.lease_leases(with_leader(pb::LeaseLeasesRequest {})).await)
        };
        let answer = self.client().call(Retry::Allowed, ANSWER, call).await;
        let leases = answer.map_err(|error| error.into_store_error(0))?.leases;
        let mut ids: Vec<i64> = leases.iter().map(|lease| lease.id).collect();
        ids.compact_sort();
        Ok(ids)
    }

    async fn lease_keep_alive(&self, id: i64) -> Result<Lease, StoreError> {
        self.check()?;
        let ttl = self.client().renew(id).await.map_err(|error| error.into_store_error(0))?;
        if ttl <= 0 {
            return Err(StoreError::LeaseNotFound);
        }
        self.counts.renewed.fetch_add(1, Relaxed);
        Ok(Lease { id, granted_ttl: ttl, remaining_ttl: ttl })
    }
}

#[async_trait]
impl Maintenance for Etcd {
    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        self.check()?;
        let request = pb::CompactionRequest { revision: revision.0, physical: false };
        let call = |connection: Connection| async move {
            into_message(connection.kv().compact(with_leader(request)).await)
        };
        match self.client().call(Retry::Never, ANSWER, call).await {
            Ok(_) => {
                self.health.follower.compacted.fetch_max(revision.0, Relaxed);
                Ok(())
            }
            Err(error) => Err(self.to_store_error(error, revision.0).await),
        }
    }

    async fn save(&self, file: File) -> io::Result<SavedSnapshot> {
        self.check().map_err(io::Error::other)?;
        save(self.client(), file).await
    }

    fn compacted(&self) -> Revision {
        Revision(self.health.follower.compacted.load(Relaxed))
    }

    fn size(&self) -> StoreSize {
        let status = self.health.etcd_status.lock();
        // No data is held in this process.
        StoreSize { keys: status.keys, memory: 0, disk: status.bytes }
    }

    fn quota(&self) -> Option<u64> {
        // etcd enforces its own quota.
        None
    }

    fn alarms(&self) -> Vec<(u64, Alarm)> {
        self.health.etcd_status.lock().alarms.clone()
    }

    async fn set_alarm(&self, member: u64, alarm: Alarm, raised: bool) -> Result<bool, StoreError> {
        self.check()?;
        let action = if raised { AlarmAction::Activate } else { AlarmAction::Deactivate };
        let request = pb::AlarmRequest { action: action.into(), member_id: member, alarm: alarm.0 };
        let into_store_error =
            self.client().alarm(request).await.map_err(|error| error.into_store_error(0))?;
        self.health.refresh_status(false).await;
        Ok(alarms_of(&into_store_error)
            .iter()
            .any(|(_, into_store_error)| *into_store_error == alarm))
    }

    async fn hash(&self, revision: Revision) -> Result<KvHash, StoreError> {
        self.check()?;
        let request = pb::HashKvRequest { revision: revision.0 };
        let call = |connection: Connection| async move {
            let mut client = connection.maintenance();
            let keys = into_message(client.hash_kv(Request::new(request)).await)?;
            let all = into_message(client.hash(Request::new(pb::HashRequest {})).await)?;
            Ok((keys, all))
        };
        let (keys, all) = match self.client().call(Retry::Allowed, LONG, call).await {
            Ok(answers) => answers,
            Err(error) => return Err(self.to_store_error(error, revision.0).await),
        };
        let newest = self.client().observe(keys.header.as_ref());
        // An etcd before 3.6 does not report the revision.
        let of = [keys.hash_revision, revision.0, newest].into_iter().find(|of| *of != 0);
        Ok(KvHash {
            keys: keys.hash,
            // At a compaction, etcd's own checksum is requested instead.
            compacting: keys.hash,
            all: all.hash,
            revision: Revision(of.unwrap_or_default()),
            compacted: Revision(keys.compact_revision.max(0)),
            newest: Revision(newest),
        })
    }

    async fn defragment(&self) -> Result<(), StoreError> {
        self.check()?;
        let call = |connection: Connection| async move {
            let mut client = connection.maintenance();
            into_message(client.defragment(Request::new(pb::DefragmentRequest {})).await)
        };
        let txn_response = self.client().call(Retry::Allowed, LONG, call).await;
        txn_response.map(drop).map_err(|error| error.into_store_error(0))?;
        self.health.refresh_status(false).await;
        Ok(())
    }
}

impl Cluster for Etcd {
    fn is_alone(&self) -> bool {
        // Other clients may write to etcd, too.
        false
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn term(&self) -> u64 {
        self.client().observed.term.load(Relaxed)
    }

    fn applied_index(&self) -> u64 {
        self.health.etcd_status.lock().applied
    }

    fn members(&self) -> Option<Arc<dyn ClusterMembers>> {
        None
    }
}

impl Stats for Etcd {
    fn stats(&self) -> StoreStats {
        let status = self.health.etcd_status.lock().clone();
        StoreStats {
            committed: status.committed,
            syncs: self.counts.writes.histogram(),
            keys: KeyStats {
                txns: self.counts.txns.load(Relaxed),
                ranges: self.counts.ranges.load(Relaxed),
                events: self.health.follower.events.load(Relaxed).max(0).cast_unsigned(),
                ..KeyStats::default()
            },
            watchers: self.health.follower.len(),
            leases: LeaseStats {
                granted: self.counts.granted.load(Relaxed),
                revoked: self.counts.revoked.load(Relaxed),
                renewed: self.counts.renewed.load(Relaxed),
                expired: 0,
            },
            ..StoreStats::default()
        }
    }
}
