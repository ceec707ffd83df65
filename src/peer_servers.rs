//! Requests between the servers of a cluster, over the connections of peers, on which both ends
//! have presented certificates of the cluster.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cluster::peers::PeerClient;
use serde::Serialize;
use serde::de::DeserializeOwned;
use store::{Member, Members};

use crate::control_socket::Reply;

/// Why another server does not give an answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// The request cannot be encoded.
    #[error(transparent)]
    Encode(serde_json::Error),
    /// The timeout has passed.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// The connection failed.
    #[error(transparent)]
    Connection(#[from] cluster::peers::CallError),
    /// The answer is not one of this version.
    #[error("its answer cannot be parsed, does it run another version? {0}")]
    Malformed(serde_json::Error),
    /// The server rejected the request.
    #[error("{0}")]
    Rejected(String),
}

/// The servers of the cluster, as this server reaches them.
#[derive(Clone)]
pub(crate) struct PeerServers {
    /// Members of the store.
    pub(crate) members: Arc<Members>,
    calls: Arc<PeerClient>,
}

impl PeerServers {
    /// The servers that are `members` of the store.
    pub(crate) fn new(members: &Arc<Members>, calls: &Arc<PeerClient>) -> Self {
        Self { members: Arc::clone(members), calls: Arc::clone(calls) }
    }

    /// The members other than this server.
    pub(crate) fn others(&self) -> Vec<Member> {
        let all = self.members.list().into_iter();
        all.filter(|member| member.id != self.members.id()).collect()
    }

    /// Name and address of a server for messages.
    pub(crate) fn name(&self, member: &Member) -> String {
        match self.members.profiles().get(&member.id) {
            Some(profile) => format!("server {} ({})", profile.name, member.address),
            None => format!("server {:016x} ({})", member.id, member.address),
        }
    }

    /// Sends a request to a server; its answer.
    ///
    /// # Errors
    /// The server does not answer, or rejects the request.
    pub(crate) async fn call<T: DeserializeOwned>(
        &self,
        member: &Member,
        request: &(impl Serialize + Sync),
        timeout: Option<Duration>,
    ) -> Result<T, CallError> {
        let message = serde_json::to_vec(request).map_err(CallError::Encode)?;
        let call = self.calls.call_control(&member.address, Bytes::from(message));
        let answer = match timeout {
            Some(timeout) => tokio::time::timeout(timeout, call)
                .await
                .map_err(|_| CallError::Timeout(timeout))?,
            None => call.await,
        };
        match serde_json::from_slice(&answer?).map_err(CallError::Malformed)? {
            Reply::Ok(value) => Ok(value),
            Reply::Err(why) => Err(CallError::Rejected(why)),
        }
    }
}
