//! The exclusive lock on an etcd: a key attached to a lease of this server, which every write
//! compares.
//!
//! Several API servers may share an etcd, but several sets of controllers, schedulers and CAs must
//! not, and each kube-lite server has its own. Therefore only the server that holds the lock
//! writes. The key of a killed server is deleted when its lease expires; a restart from the same
//! data directory takes the key over at once, because the lock of that directory excludes every
//! other process.

use std::sync::atomic::AtomicI64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use proto::etcdserverpb as pb;
use proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use proto::etcdserverpb::request_op::Request as Step;
use proto::etcdserverpb::response_op::Response as StepAnswer;
use proto::mvccpb::KeyValue;
use serde::{Deserialize, Serialize};

use super::error::EtcdError;
use crate::contract::StoreError;
use crate::external::config::Holder;
use crate::external::etcd::client::{Client, LOCK_KEY, Retry};

/// Time to live of the lease in seconds: a server that does not renew it for this long loses the
/// key.
const LEASE_TTL: i64 = 20;
/// Maximum wait until another server releases the key: that server may be stopping.
const RELEASE_WAIT_MAX: Duration = Duration::from_secs(3);
/// Timeout of the request that releases the key, so that a stop does not wait for etcd.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

/// Value of the key, as JSON.
#[derive(Debug, Serialize, Deserialize)]
struct LockValue {
    /// Id of the server, independent of its name.
    id: String,
    /// Name of the machine, for messages of other servers.
    name: String,
    /// Process id, for the same messages.
    process: u32,
}

/// Errors of taking the lock.
#[derive(Debug)]
pub(super) enum LockError {
    /// Another server holds the lock; its name.
    By(String),
    /// The requests to etcd failed.
    Refused(EtcdError),
}

impl From<EtcdError> for LockError {
    fn from(error: EtcdError) -> Self {
        Self::Refused(error)
    }
}

/// Acquires, renews and releases the lock for this server.
#[derive(Debug)]
pub(super) struct ServerLock {
    client: Client,
    holder: Holder,
    /// Id of the lease with which the key was acquired last; 0 before.
    lease: AtomicI64,
}

/// The condition of a transaction that a property of the lock's key equals a value.
fn equal(target: CompareTarget, union: TargetUnion) -> pb::Compare {
    pb::Compare {
        result: CompareResult::Equal.into(),
        target: target.into(),
        key: Bytes::from_static(LOCK_KEY.as_bytes()),
        range_end: Bytes::new(),
        target_union: Some(union),
    }
}

impl ServerLock {
    pub(super) fn new(client: Client, holder: Holder) -> Self {
        Self { client, holder, lease: AtomicI64::new(0) }
    }

    /// The condition of every write: this server holds the lock, that is, the key is attached to
    /// the lease of this server.
    pub(super) fn condition(&self) -> pb::Compare {
        equal(CompareTarget::Lease, TargetUnion::Lease(self.lease.load(Relaxed)))
    }

    /// Acquires the lock, waiting briefly for a server that is stopping.
    ///
    /// # Errors
    /// Another server holds the lock, or etcd cannot be used.
    pub(super) async fn acquire_or_wait(&self) -> Result<(), LockError> {
        match self.acquire().await {
            Err(LockError::By(_)) => {}
            acquired_or_failed => return acquired_or_failed,
        }
        // The result is ignored: the second attempt shows whether the key was released.
        drop(tokio::time::timeout(RELEASE_WAIT_MAX, self.released()).await);
        self.acquire().await
    }

    /// Resolves when the key changes or is deleted.
    async fn released(&self) -> Result<(), EtcdError> {
        let create = pb::WatchCreateRequest {
            key: Bytes::from_static(LOCK_KEY.as_bytes()),
            ..Default::default()
        };
        let mut answers = self.client.connections.current().await.watch(create).await?;
        while let Some(answer) = answers.message().await.map_err(EtcdError::of)? {
            if answer.canceled || !answer.events.is_empty() {
                break;
            }
        }
        Ok(())
    }

    /// Acquires the key, or takes it over from an earlier process of this server.
    ///
    /// # Errors
    /// Another server holds the lock, or etcd cannot be used.
    pub(super) async fn acquire(&self) -> Result<(), LockError> {
        let lease = self.client.grant(0, LEASE_TTL).await.map_err(EtcdError::idempotent)?.id;
        let acquired = self.acquire_with_lease(lease).await;
        match &acquired {
            Ok(()) => self.lease.store(lease, Relaxed),
            // A failed revocation is ignored: the lease expires.
            Err(_) => drop(self.client.revoke(lease).await),
        }
        acquired
    }

    /// Creates the key, or replaces the key of an earlier process of this server, attached to
    /// `lease`.
    async fn acquire_with_lease(&self, lease: i64) -> Result<(), LockError> {
        let absent = equal(CompareTarget::Create, TargetUnion::CreateRevision(0));
        let Some(current) = self.put_if(absent, lease).await? else { return Ok(()) };
        // `None` if another program wrote the key.
        let lock_value: Option<LockValue> = serde_json::from_slice(&current.value).ok();
        if lock_value.as_ref().is_none_or(|lock_value| lock_value.id != self.id()) {
            let holder = match lock_value {
                Some(LockValue { name, process, .. }) => {
                    format!("kube-lite on {name}, process {process}")
                }
                None => format!("the writer of the key {LOCK_KEY}"),
            };
            return Err(LockError::By(holder));
        }
        let unchanged = equal(CompareTarget::Mod, TargetUnion::ModRevision(current.mod_revision));
        if self.put_if(unchanged, lease).await?.is_some() {
            let text = format!("the key {LOCK_KEY} changed while it was taken over");
            return Err(EtcdError::NotApplied(text).into());
        }
        if current.lease != 0 {
            // The lease of the earlier process has no keys left; if revoking fails, it expires.
            drop(self.client.revoke(current.lease).await);
        }
        Ok(())
    }

    /// Writes the key, attached to `lease`, if `condition` holds; otherwise returns the current
    /// key.
    async fn put_if(
        &self,
        condition: pb::Compare,
        lease: i64,
    ) -> Result<Option<KeyValue>, LockError> {
        let lock_value = LockValue {
            id: self.id(),
            name: self.holder.name.clone(),
            process: std::process::id(),
        };
        let key = Bytes::from_static(LOCK_KEY.as_bytes());
        let value =
            serde_json::to_vec(&lock_value).map_err(|e| EtcdError::NotApplied(e.to_string()))?;
        let put =
            pb::PutRequest { key: key.clone(), value: value.into(), lease, ..Default::default() };
        let step = |request| vec![pb::RequestOp { request: Some(request) }];
        let request = pb::TxnRequest {
            compare: vec![condition],
            success: step(Step::RequestPut(put)),
            failure: step(Step::RequestRange(pb::RangeRequest { key, ..Default::default() })),
        };
        // An unknown outcome counts as not applied: if the key was written nevertheless, its id is
        // that of this server, which can take it over.
        let answer =
            self.client.txn(Retry::Never, &request).await.map_err(EtcdError::idempotent)?;
        if answer.succeeded {
            return Ok(None);
        }
        let current = answer.responses.into_iter().find_map(|step| match step.response {
            Some(StepAnswer::ResponseRange(range_response)) => {
                range_response.kvs.into_iter().next()
            }
            _ => None,
        });
        let deleted = || {
            EtcdError::NotApplied(format!("the key {LOCK_KEY} was deleted while it was acquired"))
        };
        Ok(Some(current.ok_or_else(deleted)?))
    }

    /// The id of this server as [`LockValue`] has it.
    fn id(&self) -> String {
        format!("{:016x}", self.holder.id)
    }

    /// Renews the lease, and acquires the key again if it expired while etcd was unreachable.
    ///
    /// # Errors
    /// [`StoreError::Stopped`] if another server holds it now.
    pub(super) async fn renew(&self) -> Result<(), StoreError> {
        let lease = self.lease.load(Relaxed);
        if self.client.renew(lease).await.map_err(|error| error.into_store_error(0))? > 0 {
            return Ok(());
        }
        match self.acquire().await {
            Ok(()) => Ok(()),
            Err(LockError::By(holder)) => Err(StoreError::Stopped(format!(
                "{} was unreachable for more than {LEASE_TTL} s, and {holder} holds the lock now: \
                 let one server at a time use it",
                self.client.connections.endpoints
            ))),
            Err(LockError::Refused(error)) => Err(error.into_store_error(0)),
        }
    }

    /// Releases the lock: etcd deletes the key together with its lease.
    pub(super) async fn end(&self) {
        let revoke = self.client.revoke(self.lease.load(Relaxed));
        let revoked = tokio::time::timeout(RELEASE_TIMEOUT, revoke).await;
        if !matches!(revoked, Ok(Ok(_))) {
            tracing::debug!("etcd: cannot release the lock, it expires with its lease");
        }
    }
}
