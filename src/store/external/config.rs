//! Options and errors common to all external datastores.

use std::path::PathBuf;

/// Certificates for the way to a datastore.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DatastoreTls {
    /// CA that the datastore's certificate must come from.
    pub ca: Option<PathBuf>,
    /// Certificate to show.
    pub certificate: Option<PathBuf>,
    /// Its key.
    pub key: Option<PathBuf>,
}

/// Who holds a datastore alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The same after every start, of one process at a time.
    pub id: u64,
    /// Who it is for people: the machine's name.
    pub name: String,
}

/// Why an external datastore cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DatastoreError {
    /// Another server, or k3s, has it.
    #[error("{0}")]
    Held(String),
    /// Everything else.
    #[error("the datastore {endpoint} cannot be used: {why}")]
    Unusable {
        /// Where it is, without a password.
        endpoint: String,
        /// What the datastore or the way to it said.
        why: String,
    },
}
