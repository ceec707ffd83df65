//! Errors of changing the keys of encryption at rest.

use std::path::PathBuf;

use store::StoreError;

use crate::peer_servers::CallError;

/// Why keys were not changed, or not completely.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// `encryption-provider-config` names a file.
    #[error(
        "encryption-provider-config={} decides how Secrets are encrypted: change that file, and \
         rewrite the Secrets with `kubectl get secrets -A -o json | kubectl replace -f -`",
        .0.display()
    )]
    ConfiguredByFile(PathBuf),
    /// This server was asked as the leader but is not.
    #[error("another server leads now, try again")]
    NotLeader,
    /// The members have no leader.
    #[error("the servers have no leader now, try again")]
    NoLeader,
    /// The leader is not in the list of members yet.
    #[error("the leader is not known yet, try again")]
    UnknownLeader,
    /// Another change of keys runs on this server.
    #[error("another change of keys is in progress")]
    InProgress,
    /// This server has no keys to agree on.
    #[error("this server has no keys")]
    NoKeys,
    /// The keys do not allow the change.
    #[error("{0}")]
    Forbidden(String),
    /// Keys cannot be parsed or saved.
    #[error("{0}")]
    Keys(String),
    /// The store does not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Secrets cannot be rewritten.
    #[error("{0}")]
    Rewrite(String),
    /// Servers keep writing with an old key.
    #[error("Secrets encrypted with an old key keep appearing")]
    NoProgress,
    /// The process of this server is still starting.
    #[error("it is still starting")]
    Starting,
    /// The keys of this server are missing.
    #[error("its keys are missing, it takes them from another server")]
    MissingKeys,
    /// Another server does not answer.
    #[error("{server}: {source}")]
    Server { server: String, source: PeerError },
    /// The leader does not make the change.
    #[error("{server} leads: {source}")]
    Leader { server: String, source: CallError },
    /// An error before the first step.
    #[error("{0}; all servers must answer, nothing was changed")]
    Unchanged(#[source] Box<Error>),
    /// An error between two steps.
    #[error("{0}; nothing is lost, run the same command again to resume")]
    Incomplete(#[source] Box<Error>),
}

/// Why another server does not give its keys or adopt others.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PeerError {
    /// The request failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The answer contains no valid keys.
    #[error("{0}")]
    Keys(String),
}
