//! The errors of the store.

/// Errors of the store.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The revision is compacted; the caller must start again from the newest.
    #[error("required revision {requested} has been compacted, the oldest is {oldest}")]
    Compacted {
        /// The requested revision.
        requested: i64,
        /// Oldest readable revision.
        oldest: i64,
    },
    /// The revision does not exist yet.
    #[error("required revision {requested} is a future revision, the newest is {newest}")]
    Future {
        /// The requested revision.
        requested: i64,
        /// Newest revision.
        newest: i64,
    },
    /// The watcher fell too far behind; the caller must start a new watch.
    #[error("the watcher lags too far behind")]
    Overrun,
    /// No such lease.
    #[error("requested lease not found")]
    LeaseNotFound,
    /// The lease id is in use.
    #[error("lease already exists")]
    LeaseExists,
    /// The time to live is too large.
    #[error("too large lease TTL")]
    LeaseTtlTooLarge,
    /// The request is invalid, whatever the state.
    #[error("invalid request: {0}")]
    Invalid(String),
    /// One transaction puts a key more than once.
    #[error("duplicate key given in txn request")]
    DuplicateKey,
    /// An update that keeps a value or a lease found no key.
    #[error("key not found")]
    KeyNotFound,
    /// The request is too large.
    #[error("request is too large: {size} bytes, the limit is {limit}")]
    TooLarge {
        /// Size in bytes.
        size: usize,
        /// Limit in bytes.
        limit: usize,
    },
    /// A member that is to become a voter lags too far behind; the caller may retry.
    #[error("the member {0:016x} has not caught up yet")]
    NotCaughtUp(u64),
    /// There is no quorum or no leader; the caller may retry.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// The response to a write was lost: the write may have happened. The caller must read before
    /// it retries.
    #[error("the outcome of the write is unknown: {0}")]
    Unknown(String),
    /// The device is full or the quota is used up: reads continue, writes are refused until there
    /// is space.
    #[error("no space left for the store: {0}")]
    NoSpace(String),
    /// The alarm CORRUPT is raised: all changes are refused.
    #[error("the alarm CORRUPT is raised")]
    Corrupt,
    /// The store has stopped because of an error of its disk or data; the process must exit.
    #[error("the store has stopped: {0}")]
    Stopped(String),
}
