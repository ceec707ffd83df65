//! The errors of the store.

/// Why the store refused.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The revision is compacted; start again from the newest.
    #[error("required revision {requested} has been compacted, the oldest is {oldest}")]
    Compacted {
        /// Asked for.
        requested: i64,
        /// Oldest that can be read.
        oldest: i64,
    },
    /// The revision does not exist yet.
    #[error("required revision {requested} is a future revision, the newest is {newest}")]
    Future {
        /// Asked for.
        requested: i64,
        /// Newest.
        newest: i64,
    },
    /// The watcher fell too far behind; start again.
    #[error("the watcher fell behind and was ended")]
    Overrun,
    /// No such lease.
    #[error("requested lease not found")]
    LeaseNotFound,
    /// Lease id in use.
    #[error("lease already exists")]
    LeaseExists,
    /// More seconds than a lease may have.
    #[error("too large lease TTL")]
    LeaseTtlTooLarge,
    /// No state of the store could answer the request.
    #[error("the request is not valid: {0}")]
    Invalid(String),
    /// Several puts of one key in one transaction.
    #[error("duplicate key given in txn request")]
    DuplicateKey,
    /// There is no key of which an update could keep something.
    #[error("key not found")]
    KeyNotFound,
    /// Larger than the store takes.
    #[error("request is too large: {size} bytes, the limit is {limit}")]
    TooLarge {
        /// Size in bytes.
        size: usize,
        /// Limit in bytes.
        limit: usize,
    },
    /// A member that would become a voter lacks too much; try again.
    #[error("the member {0:016x} has not caught up yet")]
    NotCaughtUp(u64),
    /// No quorum or no leader; try again.
    #[error("the store has no leader now: {0}")]
    Unavailable(String),
    /// The answer to a write is lost: it may have happened, or not. Never try again without looking.
    #[error("it is not known whether the write happened: {0}")]
    Unknown(String),
    /// No space on the device, or the quota is used up: reads go on, writes are refused until there is space.
    #[error("no space left for the store: {0}")]
    NoSpace(String),
    /// The alarm is raised that members differ: nothing is changed any more.
    #[error("the alarm CORRUPT is raised")]
    Corrupt,
    /// The store has stopped because of a fault of its disk or data; the process must end.
    #[error("the store has stopped: {0}")]
    Stopped(String),
}
