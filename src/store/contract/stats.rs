//! Statistics of the store, for metrics.

use std::time::Duration;

/// Upper bounds of a [`Histogram`] in seconds, as etcd's of its disk: 1 ms, doubled up to 8.192 s.
pub const BOUNDS: [f64; 14] = [
    0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096,
    8.192,
];

/// How long something took, each time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Histogram {
    /// How often it took at most [`BOUNDS`], but longer than the bound before; longer times are in `count` alone.
    pub within: [u64; BOUNDS.len()],
    /// How often.
    pub count: u64,
    /// Sum of the times.
    pub sum: Duration,
}

/// What was counted since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct StoreStats {
    /// Changes of the leader that were seen here.
    pub leader_changes: u64,
    /// Commands that wait for their entry.
    pub pending: usize,
    /// Commands that nobody took.
    pub failed: u64,
    /// Index of the newest entry known to be committed.
    pub committed: u64,
    /// Syncs of the log.
    pub syncs: Histogram,
    /// Bytes written to the log.
    pub log_bytes: u64,
    /// What the key space counted.
    pub keys: KeyStats,
    /// Watches that run.
    pub watchers: usize,
    /// Leases.
    pub leases: LeaseStats,
}

/// What the key space counted since the start, restarts replay what is not in a checkpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeyStats {
    /// Puts.
    pub puts: u64,
    /// Deletions, each of a range.
    pub deletes: u64,
    /// Transactions of several steps.
    pub txns: u64,
    /// Reads, those in transactions too.
    pub ranges: u64,
    /// Changes told to watches, before anybody is asked whether they want them.
    pub events: u64,
    /// Versions that compaction dropped.
    pub compacted: u64,
}

/// What happened to leases since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LeaseStats {
    /// Granted.
    pub granted: u64,
    /// Ended, by request or because they ran out.
    pub revoked: u64,
    /// Renewed here.
    pub renewed: u64,
    /// Ended by this member because they ran out.
    pub expired: u64,
}

/// Statistics of the store.
pub trait Stats: Send + Sync {
    /// Counters and timings since the start of the process.
    fn stats(&self) -> StoreStats;
}
