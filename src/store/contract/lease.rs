//! Leases: keys that are deleted when their time to live ends.

use async_trait::async_trait;
use bytes::Bytes;

use super::error::StoreError;
use super::key::Revision;

/// Largest time to live in seconds, etcd's `MaxLeaseTTL`.
pub(crate) const MAX_TTL: i64 = 9_000_000_000;

/// Smallest time to live in seconds; shorter ones are raised to it, as etcd does with its default
/// election timeout.
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
    /// Grants a lease; with `id` 0 the store chooses the id.
    async fn lease_grant(&self, id: i64, ttl: i64) -> Result<Lease, StoreError>;

    /// Revokes a lease and deletes its keys.
    async fn lease_revoke(&self, id: i64) -> Result<Revision, StoreError>;

    /// Resets the remaining time of a lease to the granted one.
    async fn lease_keep_alive(&self, id: i64) -> Result<Lease, StoreError>;

    /// A lease, with the remaining time as the leader counts it, and the keys attached to it in
    /// key order.
    async fn lease(&self, id: i64) -> Result<(Lease, Vec<Bytes>), StoreError>;

    /// Ids of all leases in ascending order.
    async fn leases(&self) -> Result<Vec<i64>, StoreError>;
}
