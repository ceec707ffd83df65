//! Looks after an etcd: whether it is there, still this server's, and how it is.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use base::{Backoff, Shutdown};
use bytes::Bytes;
use parking_lot::Mutex;
use proto::etcdserverpb as pb;
use proto::etcdserverpb::alarm_request::AlarmAction;

use super::calls::Client;
use super::error::EtcdError;
use super::follow::Follower;
use super::lock::ServerLock;
use crate::contract::{Alarm, StoreError};

/// How often etcd is asked.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// How long etcd may be away before the store stops: as long as a database.
const RECOVERY: Duration = Duration::from_secs(30);
/// First and longest wait before a look that failed is repeated.
const WAIT: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// Looks between two counts of the keys, which takes etcd a walk through all of them.
const COUNT_EVERY: u32 = 12;

/// What etcd last said of itself.
#[derive(Debug, Clone, Default)]
pub(super) struct EtcdStatus {
    pub(super) bytes: u64,
    pub(super) keys: usize,
    pub(super) applied: u64,
    pub(super) committed: u64,
    pub(super) alarms: Vec<(u64, Alarm)>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct HealthMonitor {
    pub(super) calls: Client,
    pub(super) follower: Arc<Follower>,
    /// None: others may write, too.
    pub(super) lock: Option<ServerLock>,
    pub(super) etcd_status: Mutex<EtcdStatus>,
    /// What etcd says of itself could not be had, which was told.
    pub(super) status_unavailable: AtomicBool,
}

impl HealthMonitor {
    /// Looks after etcd until shutdown.
    ///
    /// # Errors
    /// etcd was away for too long, or is another server's.
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
                    self.follower.stop(&StoreError::Stopped("the server ends".to_owned()));
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
                    // What ends this wait early ends the loop.
                    backoff.wait(&shutdown).await;
                    continue;
                }
                Err(error) => {
                    let text = format!(
                        "{} was away for {} s: {error}",
                        self.calls.connections.place,
                        observed.elapsed().as_secs()
                    );
                    StoreError::Stopped(text)
                }
            };
            self.follower.stop(&reason);
            return Err(reason);
        }
    }

    /// Whether etcd is there, this server's, and not put back to what it was.
    async fn check_health(&self) -> Result<(), StoreError> {
        if let Some(lock) = &self.lock {
            lock.renew().await?;
        }
        let followed = self.follower.revision();
        let newest = self.calls.newest().await.map_err(|refusal| refusal.into_store_error(0))?;
        if newest < followed {
            return Err(StoreError::Stopped(format!(
                "{} is at revision {newest} and was at {followed}: it was restored or exchanged while this server ran, which has to start again",
                self.calls.connections.place
            )));
        }
        Ok(())
    }

    /// Asks how etcd is; what is not told stays as it was.
    pub(super) async fn refresh_status(&self, count: bool) {
        if let Err(reason) = self.ask(count).await {
            if !self.status_unavailable.swap(true, Relaxed) {
                tracing::warn!(etcd = %self.calls.connections.place, error = %reason, "etcd does not tell its size and its alarms");
            }
            return;
        }
        self.status_unavailable.store(false, Relaxed);
    }

    async fn ask(&self, count: bool) -> Result<(), EtcdError> {
        let status = self.calls.status().await?;
        let request = pb::AlarmRequest { action: AlarmAction::Get.into(), ..Default::default() };
        let alarms = self.calls.alarm(request).await?;
        let keys = match count {
            true => {
                let everything = Bytes::from_static(&[0]);
                let request = pb::RangeRequest {
                    key: everything.clone(),
                    range_end: everything,
                    count_only: true,
                    ..Default::default()
                };
                Some(self.calls.range(&request).await?.count)
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

/// Alarms in the contract's terms.
pub(super) fn alarms_of(alarms: &[pb::AlarmMember]) -> Vec<(u64, Alarm)> {
    alarms.iter().map(|one| (one.member_id, Alarm(one.alarm))).collect()
}
