//! Leases in etcd's terms: keys that are attached to a lease are deleted when its time to live
//! ends. They are unrelated to the Lease objects of Kubernetes.

use async_trait::async_trait;
use bytes::Bytes;

use super::error::StoreError;
use super::key::Revision;

/// Largest time to live in seconds, etcd's `MaxLeaseTTL`.
pub(crate) const MAX_TTL: i64 = 9_000_000_000;

/// Smallest time to live in seconds; shorter ones are raised to it. etcd's own minimum is one and a
/// half election timeouts, rounded up, which is 2 s by default.
pub(crate) const MIN_TTL: i64 = 2;

/// A granted lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// Id, never 0.
    pub id: i64,
    /// Granted time to live in seconds.
    pub granted_ttl: i64,
    /// Remaining time to live in seconds.
    pub remaining_ttl: i64,
}

/// Leases and their time to live.
#[async_trait]
pub trait Leases: Send + Sync {
    /// Grants a lease with a time to live of `ttl` seconds; with `id` 0 the store chooses the id.
    async fn lease_grant(&self, id: i64, ttl: i64) -> Result<Lease, StoreError>;

    /// Revokes a lease and deletes the keys attached to it; returns the revision of the deletion.
    async fn lease_revoke(&self, id: i64) -> Result<Revision, StoreError>;

    /// Renews a lease: its remaining time to live is the granted one again.
    async fn lease_keep_alive(&self, id: i64) -> Result<Lease, StoreError>;

    /// A lease and the keys attached to it in key order. The leader counts the remaining time.
    async fn lease(&self, id: i64) -> Result<(Lease, Vec<Bytes>), StoreError>;

    /// Ids of all leases in ascending order.
    async fn leases(&self) -> Result<Vec<i64>, StoreError>;
}
