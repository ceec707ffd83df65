//! Monitors an etcd: whether it is reachable and still locked by this server, and its status.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use base::{Backoff, Shutdown};
use bytes::Bytes;
use parking_lot::Mutex;
use proto::etcdserverpb as pb;
use proto::etcdserverpb::alarm_request::AlarmAction;

use super::error::EtcdError;
use super::lock::ServerLock;
use crate::contract::{Alarm, StoreError};
use crate::external::etcd::client::Client;
use crate::external::etcd::follower::Follower;

/// Interval of health checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Time for which etcd may be unreachable before the store stops; the same as for databases.
const RECOVERY: Duration = Duration::from_secs(30);
/// First and longest wait before a failed check is repeated.
const WAIT: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// Checks between two counts of the keys; a count walks through all keys of etcd.
const COUNT_EVERY: u32 = 12;

/// The last status of etcd.
#[derive(Debug, Clone, Default)]
pub(super) struct EtcdStatus {
    pub(super) bytes: u64,
    pub(super) keys: usize,
    pub(super) applied: u64,
    pub(super) committed: u64,
    pub(super) alarms: Vec<(u64, Alarm)>,
}

/// Monitors an etcd.
#[derive(Debug)]
pub(super) struct HealthMonitor {
    pub(super) client: Client,
    pub(super) follower: Arc<Follower>,
    /// `None` if other servers may write, too.
    pub(super) lock: Option<ServerLock>,
    pub(super) etcd_status: Mutex<EtcdStatus>,
    /// The status was unavailable at the last request, which was logged.
    pub(super) status_unavailable: AtomicBool,
}

impl HealthMonitor {
    /// Monitors etcd until shutdown.
    ///
    /// # Errors
    /// etcd was unreachable for too long, or another server holds it.
    pub(super) async fn run(self: Arc<Self>, shutdown: Shutdown) -> Result<(), StoreError> {
        let mut observed = base::clock::now();
        let mut backoff = Backoff::new(WAIT.0, WAIT.1);
        let mut looks = 0_u32;
        loop {
            let pause = match backoff.failures() {
                0 => CHECK_INTERVAL,
                _ => Duration::ZERO,
            };
            let looked = tokio::select! {
                biased;
                () = shutdown.requested() => {
                    self.follower.stop(&StoreError::Stopped("the server is stopping".to_owned()));
                    if let Some(lock) = &self.lock {
                        lock.end().await;
                    }
                    return Ok(());
                }
                looked = async {
                    base::clock::sleep(pause).await;
                    self.check_health().await
                } => looked,
            };
            let reason = match looked {
                Ok(()) => {
                    observed = base::clock::now();
                    backoff.reset();
                    self.refresh_status(looks.is_multiple_of(COUNT_EVERY)).await;
                    looks = looks.wrapping_add(1);
                    continue;
                }
                Err(error @ StoreError::Stopped(_)) => error,
                Err(_) if observed.elapsed() < RECOVERY => {
                    // A shutdown during the wait ends the loop.
                    backoff.wait(&shutdown).await;
                    continue;
                }
                Err(error) => {
                    let text = format!(
                        "{} was away for {} s: {error}",
                        self.client.connections.endpoints,
                        observed.elapsed().as_secs()
                    );
                    StoreError::Stopped(text)
                }
            };
            self.follower.stop(&reason);
            return Err(reason);
        }
    }

    /// Checks that etcd is reachable, locked by this server, and was not restored to an older
    /// state.
    async fn check_health(&self) -> Result<(), StoreError> {
        if let Some(lock) = &self.lock {
            lock.renew().await?;
        }
        let followed = self.follower.revision();
        let newest = self.client.newest().await.map_err(|error| error.into_store_error(0))?;
        if newest < followed {
            return Err(StoreError::Stopped(format!(
                "{} is at revision {newest} and was at {followed}: it was restored or replaced \
                 while this server was running: restart the server",
                self.client.connections.endpoints
            )));
        }
        Ok(())
    }

    /// Updates the status; unavailable values stay unchanged.
    pub(super) async fn refresh_status(&self, count: bool) {
        if let Err(reason) = self.call(count).await {
            if !self.status_unavailable.swap(true, Relaxed) {
                tracing::warn!(etcd = %self.client.connections.endpoints, error = %reason, "cannot read \
                    the size and the alarms of etcd");
            }
            return;
        }
        self.status_unavailable.store(false, Relaxed);
    }

    async fn call(&self, count: bool) -> Result<(), EtcdError> {
        let status = self.client.status().await?;
        let request = pb::AlarmRequest { action: AlarmAction::Get.into(), ..Default::default() };
        let alarms = self.client.alarm(request).await?;
        let keys = match count {
            true => {
                let everything = Bytes::from_static(&[0]);
                let request = pb::RangeRequest {
                    key: everything.clone(),
                    range_end: everything,
                    count_only: true,
                    ..Default::default()
                };
                Some(self.client.range(&request).await?.count)
            }
            false => None,
        };
        let mut known = self.etcd_status.lock();
        known.bytes = status.db_size.max(0).cast_unsigned();
        known.committed = status.raft_index;
        known.applied = status.raft_applied_index.max(known.applied);
        known.alarms = alarms_of(&alarms);
        if let Some(keys) = keys {
            known.keys = usize::try_from(keys).unwrap_or_default();
        }
        Ok(())
    }
}

/// Converts alarms to the contract's.
pub(super) fn alarms_of(alarms: &[pb::AlarmMember]) -> Vec<(u64, Alarm)> {
    alarms.iter().map(|one| (one.member_id, Alarm(one.alarm))).collect()
}
