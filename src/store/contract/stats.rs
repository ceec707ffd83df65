//! Statistics of the store, for metrics.

use std::time::Duration;

/// Upper bounds of a [`Histogram`] in seconds, as of etcd's disk metrics: 1 ms, doubled up to 8.192
/// s.
pub const BOUNDS: [f64; 14] = [
    0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096,
    8.192,
];

/// A histogram of durations.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Histogram {
    /// Number of observations per bucket, not cumulative; observations above the last of [`BOUNDS`]
    /// are counted in `count` alone.
    pub within: [u64; BOUNDS.len()],
    /// Number of observations.
    pub count: u64,
    /// Sum of the durations.
    pub sum: Duration,
}

/// Statistics of a store since the start of the process.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct StoreStats {
    /// Leader changes that this member observed.
    pub leader_changes: u64,
    /// Commands that wait for their log entry.
    pub pending: usize,
    /// Commands that no leader accepted.
    pub failed: u64,
    /// Index of the newest committed entry known locally.
    pub committed: u64,
    /// Durations of log syncs.
    pub syncs: Histogram,
    /// Bytes written to the log.
    pub log_bytes: u64,
    /// Statistics of the key space.
    pub keys: KeyStats,
    /// Running watches.
    pub watchers: usize,
    /// Statistics of leases.
    pub leases: LeaseStats,
}

/// Statistics of the key space; after a restart, replayed commands are counted again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeyStats {
    /// Puts.
    pub puts: u64,
    /// Deletions, each of a range.
    pub deletes: u64,
    /// Transactions with several operations.
    pub txns: u64,
    /// Reads, including those in transactions.
    pub ranges: u64,
    /// Changes published to watches, before filtering.
    pub events: u64,
    /// Versions dropped by compaction.
    pub compacted: u64,
}

/// Statistics of leases.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LeaseStats {
    /// Granted.
    pub granted: u64,
    /// Revoked or expired.
    pub revoked: u64,
    /// Renewed by this member.
    pub renewed: u64,
    /// Expired by this member.
    pub expired: u64,
}

/// Statistics of the store.
pub trait Stats: Send + Sync {
    /// Counters and timings since the start of the process.
    fn stats(&self) -> StoreStats;
}
