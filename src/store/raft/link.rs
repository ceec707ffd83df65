//! The seam to other members: bytes there and an answer back, whatever carries them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;

use super::Address;
use super::wire::{Answer, Envelope, Request};
use crate::disk::ClusterId;

/// Largest message in bytes, there and back: every entry fits, for a segment of the log has half as many.
pub const MAX_MESSAGE_BYTES: usize = 16 * 1024 * 1024;

/// Which messages share a connection, so that large ones do not hold up those that say who leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Lane {
    /// Heartbeats, entries, votes, proposals and reads.
    Steps,
    /// Snapshots.
    Bulk,
}

/// A member that is called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Its id.
    pub id: u64,
    /// Its address as the membership has it.
    pub address: String,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The member has not got the request and never will.
    #[error("the member cannot be reached: {0}")]
    NotSent(String),
    /// The member may have got the request.
    #[error("the member did not answer: {0}")]
    Unanswered(String),
}

/// Carries messages. A call may be dropped at any time; calls of one lane need not arrive in order.
#[async_trait]
pub trait Transport: Send + Sync + std::fmt::Debug + 'static {
    /// Sends `request`, at most [`MAX_MESSAGE_BYTES`], to `to`; what [`super::Members::answer`] answered there.
    async fn call(&self, to: &Peer, lane: Lane, request: Bytes) -> Result<Bytes, CallError>;
}

/// This member's side of the seam.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) cluster: ClusterId,
    pub(crate) me: u64,
    transport: Option<Arc<dyn Transport>>,
    /// Newest known address of each member: one may move while it is being called.
    addresses: Mutex<HashMap<u64, Address>>,
}

impl Link {
    /// Without a transport nobody can be reached.
    pub(crate) fn new(cluster: ClusterId, me: u64, transport: Option<Arc<dyn Transport>>) -> Self {
        Self { cluster, me, transport, addresses: Mutex::default() }
    }

    /// Notes where a member is reached now.
    pub(crate) fn locate(&self, member: u64, address: &Address) {
        if !address.is_unknown() {
            self.addresses.lock().insert(member, address.clone());
        }
    }

    /// Asks a member and waits no longer than `limit`.
    pub(crate) async fn call(
        &self,
        to: u64,
        lane: Lane,
        request: &Request,
        limit: Duration,
    ) -> Result<Answer, CallError> {
        let address = self.addresses.lock().get(&to).cloned();
        let (Some(transport), Some(address)) = (&self.transport, address) else {
            let text = format!("there is no way to the member {to:016x}");
            return Err(CallError::NotSent(text));
        };
        let peer = Peer { id: to, address: address.as_str().to_owned() };
        let envelope = Envelope { cluster: self.cluster, from: self.me, to };
        let bytes = envelope.encode(request);
        if bytes.len() > MAX_MESSAGE_BYTES {
            let text = format!("a message of {} bytes is larger than any may be", bytes.len());
            return Err(CallError::NotSent(text));
        }
        let late = |_| CallError::Unanswered(format!("nothing came within {limit:?}"));
        let call = transport.call(&peer, lane, bytes.into());
        let answer = tokio::time::timeout(limit, call).await.map_err(late)??;
        Answer::decode(&answer)
            .map_err(|error| CallError::Unanswered(format!("its answer is {error}")))
    }
}
