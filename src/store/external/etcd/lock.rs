//! The exclusive lock on an etcd: a key attached to a lease of this server, which every write
//! compares.
//!
//! Several API servers may share an etcd; several sets of controllers, schedulers and CAs may not,
//! and each server here has its own. So one server at a time writes. The key of a killed server is
//! deleted when its lease expires; a restart from the same data directory takes it over at once,
//! because the lock of that directory excludes every other process.

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

/// Time to live in seconds, after which a server that disappeared loses the key.
const TTL: i64 = 20;
/// Maximum wait for another server's key: that server may be stopping.
const WAIT: Duration = Duration::from_secs(3);
/// Timeout of releasing the key.
const LAST: Duration = Duration::from_secs(2);

/// Value of the key.
#[derive(Debug, Serialize, Deserialize)]
struct LockValue {
    /// Id of the server, independent of its name.
    id: String,
    /// The machine's name.
    name: String,
    process: u32,
}

/// Errors of taking the lock.
#[derive(Debug)]
pub(super) enum LockError {
    /// Another server holds the lock; its name.
    By(String),
    Refused(EtcdError),
}

impl From<EtcdError> for LockError {
    fn from(error: EtcdError) -> Self {
        Self::Refused(error)
    }
}

/// The lock of this server.
#[derive(Debug)]
pub(super) struct ServerLock {
    client: Client,
    holder: Holder,
    lease: AtomicI64,
}

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

    /// The comparison of every write: the key is attached to the lease it was acquired with.
    pub(super) fn condition(&self) -> pb::Compare {
        equal(CompareTarget::Lease, TargetUnion::Lease(self.lease.load(Relaxed)))
    }

    /// Acquires the lock, waiting briefly for a server that is stopping.
    ///
    /// # Errors
    /// The holder of the lock.
    pub(super) async fn acquire_or_wait(&self) -> Result<(), LockError> {
        match self.acquire().await {
            Err(LockError::By(_)) => {}
            txn_response => return txn_response,
        }
        // Acquiring shows whether it was released.
        drop(tokio::time::timeout(WAIT, self.released()).await);
        self.acquire().await
    }

    /// Resolves when the key changes.
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
    /// The holder of the lock.
    pub(super) async fn acquire(&self) -> Result<(), LockError> {
        let lease = self.client.grant(0, TTL).await.map_err(EtcdError::idempotent)?.id;
        let taken = self.acquire_with_lease(lease).await;
        match &taken {
            Ok(()) => self.lease.store(lease, Relaxed),
            // It would expire by itself.
            Err(_) => drop(self.client.revoke(lease).await),
        }
        taken
    }

    async fn acquire_with_lease(&self, lease: i64) -> Result<(), LockError> {
        let absent = equal(CompareTarget::Create, TargetUnion::CreateRevision(0));
        let Some(there) = self.put_if(absent, lease).await? else { return Ok(()) };
        let value_in_etcd: Option<LockValue> = serde_json::from_slice(&there.value).ok();
        if value_in_etcd.as_ref().is_none_or(|value_in_etcd| value_in_etcd.id != self.id()) {
            let holder = match value_in_etcd {
                Some(LockValue { name, process, .. }) => {
                    format!("kube-lite on {name}, process {process}")
                }
                None => format!("the writer of the key {LOCK_KEY}"),
            };
            return Err(LockError::By(holder));
        }
        let same = equal(CompareTarget::Mod, TargetUnion::ModRevision(there.mod_revision));
        if self.put_if(same, lease).await?.is_some() {
            let text = format!("the key {LOCK_KEY} changed while it was taken over");
            return Err(EtcdError::NotApplied(text).into());
        }
        if there.lease != 0 {
            // No key is attached to it any more.
            drop(self.client.revoke(there.lease).await);
        }
        Ok(())
    }

    /// Writes the key if `condition` holds; otherwise returns its current value.
    async fn put_if(
        &self,
        condition: pb::Compare,
        lease: i64,
    ) -> Result<Option<KeyValue>, LockError> {
        let value_in_etcd = LockValue {
            id: self.id(),
            name: self.holder.name.clone(),
            process: std::process::id(),
        };
        let key = Bytes::from_static(LOCK_KEY.as_bytes());
        let value =
            serde_json::to_vec(&value_in_etcd).map_err(|e| EtcdError::NotApplied(e.to_string()))?;
        let put =
            pb::PutRequest { key: key.clone(), value: value.into(), lease, ..Default::default() };
        let step = |request| vec![pb::RequestOp { request: Some(request) }];
        let request = pb::TxnRequest {
            compare: vec![condition],
            success: step(Step::RequestPut(put)),
            failure: step(Step::RequestRange(pb::RangeRequest { key, ..Default::default() })),
        };
        // If it was written twice, it still belongs to this server.
        let answer =
            self.client.txn(Retry::Never, &request).await.map_err(EtcdError::idempotent)?;
        if answer.succeeded {
            return Ok(None);
        }
        let range_response = answer.responses.into_iter().find_map(|step| match step.response {
            Some(StepAnswer::ResponseRange(range_response)) => {
                range_response.kvs.into_iter().next()
            }
            _ => None,
        });
        let gone =
            || EtcdError::NotApplied(format!("the key {LOCK_KEY} went away while it was taken"));
        Ok(Some(range_response.ok_or_else(gone)?))
    }

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
                "{} was away for more than {TTL} s, and {holder} has taken it since: let one server \
                 at a time use it",
                self.client.connections.endpoints
            ))),
            Err(LockError::Refused(error)) => Err(error.into_store_error(0)),
        }
    }

    /// Releases the key.
    pub(super) async fn end(&self) {
        let given = tokio::time::timeout(LAST, self.client.revoke(self.lease.load(Relaxed))).await;
        if !matches!(given, Ok(Ok(_))) {
            tracing::debug!(
                "the key of this server was not given back to etcd, it goes with its lease"
            );
        }
    }
}
