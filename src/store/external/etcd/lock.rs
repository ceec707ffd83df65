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

use super::calls::{Asks, Calls, LOCK_KEY};
use super::error::Refusal;
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
struct Said {
    /// Which server, whatever it is called.
    id: String,
    /// The machine's name.
    name: String,
    process: u32,
}

/// Why the key is not ours.
#[derive(Debug)]
pub(super) enum NotHeld {
    /// Another server has it: who.
    By(String),
    Refused(Refusal),
}

impl From<Refusal> for NotHeld {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// The key of this server.
#[derive(Debug)]
pub(super) struct Hold {
    calls: Calls,
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

impl Hold {
    pub(super) fn new(calls: Calls, holder: Holder) -> Self {
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
    pub(super) async fn take_patiently(&self) -> Result<(), NotHeld> {
        match self.take().await {
            Err(NotHeld::By(_)) => {}
            done => return done,
        }
        // Whether it was given back is seen by taking it.
        drop(tokio::time::timeout(WAIT, self.given_back()).await);
        self.take().await
    }

    /// Resolves when something happens to the key.
    async fn given_back(&self) -> Result<(), Refusal> {
        let create = pb::WatchCreateRequest {
            key: Bytes::from_static(LOCK_KEY.as_bytes()),
            ..Default::default()
        };
        let mut answers = self.calls.lines.line().await.watch(create).await?;
        while let Some(answer) = answers.message().await.map_err(Refusal::of)? {
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
    pub(super) async fn take(&self) -> Result<(), NotHeld> {
        let lease = self.calls.grant(0, TTL).await.map_err(Refusal::harmless)?.id;
        let taken = self.take_with(lease).await;
        match &taken {
            Ok(()) => self.lease.store(lease, Relaxed),
            // It would run out by itself.
            Err(_) => drop(self.calls.revoke(lease).await),
        }
        taken
    }

    async fn take_with(&self, lease: i64) -> Result<(), NotHeld> {
        let absent = equal(CompareTarget::Create, TargetUnion::CreateRevision(0));
        let Some(there) = self.put_if(absent, lease).await? else { return Ok(()) };
        let said: Option<Said> = serde_json::from_slice(&there.value).ok();
        if said.as_ref().is_none_or(|said| said.id != self.id()) {
            let who = match said {
                Some(Said { name, process, .. }) => {
                    format!("kube-lite on {name}, process {process}")
                }
                None => format!("whoever wrote the key {LOCK_KEY}"),
            };
            return Err(NotHeld::By(who));
        }
        let same = equal(CompareTarget::Mod, TargetUnion::ModRevision(there.mod_revision));
        if self.put_if(same, lease).await?.is_some() {
            let text = format!("the key {LOCK_KEY} changed while it was taken over");
            return Err(Refusal::Untouched(text).into());
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
    ) -> Result<Option<KeyValue>, NotHeld> {
        let said =
            Said { id: self.id(), name: self.holder.name.clone(), process: std::process::id() };
        let key = Bytes::from_static(LOCK_KEY.as_bytes());
        let value = serde_json::to_vec(&said).map_err(|e| Refusal::Untouched(e.to_string()))?;
        let put =
            pb::PutRequest { key: key.clone(), value: value.into(), lease, ..Default::default() };
        let step = |request| vec![pb::RequestOp { request: Some(request) }];
        let request = pb::TxnRequest {
            compare: vec![condition],
            success: step(Step::RequestPut(put)),
            failure: step(Step::RequestRange(pb::RangeRequest { key, ..Default::default() })),
        };
        // Written twice, it is still this server's.
        let answer = self.calls.txn(Asks::Once, &request).await.map_err(Refusal::harmless)?;
        if answer.succeeded {
            return Ok(None);
        }
        let found = answer.responses.into_iter().find_map(|step| match step.response {
            Some(StepAnswer::ResponseRange(found)) => found.kvs.into_iter().next(),
            _ => None,
        });
        let gone =
            || Refusal::Untouched(format!("the key {LOCK_KEY} went away while it was taken"));
        Ok(Some(found.ok_or_else(gone)?))
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
        if self.calls.renew(lease).await.map_err(|refusal| refusal.told(0))? > 0 {
            return Ok(());
        }
        match self.take().await {
            Ok(()) => Ok(()),
            Err(NotHeld::By(who)) => Err(StoreError::Stopped(format!(
                "{} was away for more than {TTL} s, and {who} has taken it since: let one server at a time use it",
                self.calls.lines.place
            ))),
            Err(NotHeld::Refused(refusal)) => Err(refusal.told(0)),
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
