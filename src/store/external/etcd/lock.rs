//! Whose etcd this is: a key on a lease of the server's, which every write asks for.
//!
//! Several API servers may use one etcd; several sets of controllers, schedulers and CAs may not, and each server here has its
//! own. So one server at a time writes. Who was killed lets the key go when its lease runs out, and takes it over at once when
//! it starts again from the same data directory, which keeps every other process of it out by a lock.

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

use super::calls::{Client, LOCK_KEY, Retry};
use super::error::EtcdError;
use crate::contract::StoreError;
use crate::external::config::Holder;

/// Seconds after which a server that is gone without a word is known to be.
const TTL: i64 = 20;
/// How long another server's key is waited for: it may end just now.
const WAIT: Duration = Duration::from_secs(3);
/// How long the key is given back for.
const LAST: Duration = Duration::from_secs(2);

/// What the key says.
#[derive(Debug, Serialize, Deserialize)]
struct LockValue {
    /// Which server, whatever it is called.
    id: String,
    /// The machine's name.
    name: String,
    process: u32,
}

/// Why the key is not ours.
#[derive(Debug)]
pub(super) enum LockError {
    /// Another server has it: who.
    By(String),
    Refused(EtcdError),
}

impl From<EtcdError> for LockError {
    fn from(refusal: EtcdError) -> Self {
        Self::Refused(refusal)
    }
}

/// The key of this server.
#[derive(Debug)]
pub(super) struct ServerLock {
    calls: Client,
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
    pub(super) fn new(calls: Client, holder: Holder) -> Self {
        Self { calls, holder, lease: AtomicI64::new(0) }
    }

    /// What every write asks for: that the key hangs on the lease that it was taken with.
    pub(super) fn condition(&self) -> pb::Compare {
        equal(CompareTarget::Lease, TargetUnion::Lease(self.lease.load(Relaxed)))
    }

    /// Takes the key, waiting a moment for a server that ends.
    ///
    /// # Errors
    /// Who has it.
    pub(super) async fn acquire_or_wait(&self) -> Result<(), LockError> {
        match self.acquire().await {
            Err(LockError::By(_)) => {}
            txn_response => return txn_response,
        }
        // Whether it was given back is seen by taking it.
        drop(tokio::time::timeout(WAIT, self.released()).await);
        self.acquire().await
    }

    /// Resolves when something happens to the key.
    async fn released(&self) -> Result<(), EtcdError> {
        let create = pb::WatchCreateRequest {
            key: Bytes::from_static(LOCK_KEY.as_bytes()),
            ..Default::default()
        };
        let mut answers = self.calls.connections.connection().await.watch(create).await?;
        while let Some(answer) = answers.message().await.map_err(EtcdError::of)? {
            if answer.canceled || !answer.events.is_empty() {
                break;
            }
        }
        Ok(())
    }

    /// Takes the key, or takes it over from a former life of this server.
    ///
    /// # Errors
    /// Who has it.
    pub(super) async fn acquire(&self) -> Result<(), LockError> {
        let lease = self.calls.grant(0, TTL).await.map_err(EtcdError::idempotent)?.id;
        let taken = self.acquire_with_lease(lease).await;
        match &taken {
            Ok(()) => self.lease.store(lease, Relaxed),
            // It would run out by itself.
            Err(_) => drop(self.calls.revoke(lease).await),
        }
        taken
    }

    async fn acquire_with_lease(&self, lease: i64) -> Result<(), LockError> {
        let absent = equal(CompareTarget::Create, TargetUnion::CreateRevision(0));
        let Some(there) = self.put_if(absent, lease).await? else { return Ok(()) };
        let value_in_etcd: Option<LockValue> = serde_json::from_slice(&there.value).ok();
        if value_in_etcd.as_ref().is_none_or(|value_in_etcd| value_in_etcd.id != self.id()) {
            let who = match value_in_etcd {
                Some(LockValue { name, process, .. }) => {
                    format!("kube-lite on {name}, process {process}")
                }
                None => format!("whoever wrote the key {LOCK_KEY}"),
            };
            return Err(LockError::By(who));
        }
        let same = equal(CompareTarget::Mod, TargetUnion::ModRevision(there.mod_revision));
        if self.put_if(same, lease).await?.is_some() {
            let text = format!("the key {LOCK_KEY} changed while it was taken over");
            return Err(EtcdError::NotApplied(text).into());
        }
        if there.lease != 0 {
            // Nothing hangs on it any more.
            drop(self.calls.revoke(there.lease).await);
        }
        Ok(())
    }

    /// Writes the key if `condition` holds; what is there if it does not.
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
        // Written twice, it is still this server's.
        let answer = self.calls.txn(Retry::Never, &request).await.map_err(EtcdError::idempotent)?;
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

    /// Starts the lease's time again, and takes the key again when it ran out while etcd was away.
    ///
    /// # Errors
    /// [`StoreError::Stopped`] when another server has it now.
    pub(super) async fn renew(&self) -> Result<(), StoreError> {
        let lease = self.lease.load(Relaxed);
        if self.calls.renew(lease).await.map_err(|refusal| refusal.into_store_error(0))? > 0 {
            return Ok(());
        }
        match self.acquire().await {
            Ok(()) => Ok(()),
            Err(LockError::By(who)) => Err(StoreError::Stopped(format!(
                "{} was away for more than {TTL} s, and {who} has taken it since: let one server at a time use it",
                self.calls.connections.place
            ))),
            Err(LockError::Refused(refusal)) => Err(refusal.into_store_error(0)),
        }
    }

    /// Gives the key back.
    pub(super) async fn end(&self) {
        let given = tokio::time::timeout(LAST, self.calls.revoke(self.lease.load(Relaxed))).await;
        if !matches!(given, Ok(Ok(_))) {
            tracing::debug!(
                "the key of this server was not given back to etcd, it goes with its lease"
            );
        }
    }
}
