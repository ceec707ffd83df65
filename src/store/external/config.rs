//! Options and errors common to all external datastores.

use std::path::PathBuf;

/// TLS files for connections to a datastore.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DatastoreTls {
    /// CA that must have signed the datastore's certificate.
    pub ca: Option<PathBuf>,
    /// Client certificate.
    pub certificate: Option<PathBuf>,
    /// Key of the client certificate.
    pub key: Option<PathBuf>,
}

/// The server that holds the exclusive lock of a datastore.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Stable across restarts; used by one process at a time.
    pub id: u64,
    /// Name of the machine, for messages.
    pub name: String,
}

/// Errors of external datastores.
#[derive(Debug, thiserror::Error)]
pub enum DatastoreError {
    /// Another server, or k3s, holds the datastore.
    #[error("{0}")]
    Held(String),
    /// Any other error.
    #[error("the datastore {endpoint} cannot be used: {why}")]
    Unusable {
        /// The endpoint without its password.
        endpoint: String,
        /// The error of the datastore or of the connection.
        why: String,
    },
}
