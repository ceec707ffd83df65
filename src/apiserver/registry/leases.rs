//! Store leases of objects with a time to live, shared so that the store deletes such objects in
//! batches.

use std::time::Duration;

use parking_lot::Mutex;
use store::{Backend, StoreError};
use tokio::time::Instant;

/// How long new objects share one lease (`LeaseReuseDurationSeconds` of
/// `k8s.io/apiserver/pkg/storage/etcd3`).
const REUSE_MAX: Duration = Duration::from_secs(60);
/// Fraction of the time to live by which sharing may prolong it (upstream's
/// `leaseReuseDurationPercent`).
const REUSE_SHARE: f64 = 0.05;
/// Most objects of one lease (upstream's `LeaseMaxObjectCount`): expiry deletes them in one
/// transaction.
const OBJECTS_MAX: usize = 1000;

#[derive(Debug, Clone, Copy)]
struct Current {
    id: i64,
    ttl: Duration,
    expires: Instant,
    objects: usize,
}

/// The lease of the next objects.
#[derive(Debug, Default)]
pub(super) struct Leases(Mutex<Option<Current>>);

impl Leases {
    /// A lease under which a key lives at least `ttl`, and at most a minute (or 5 %) longer.
    ///
    /// # Errors
    /// When the store does not grant a lease.
    pub(super) async fn for_ttl(
        &self,
        backend: &dyn Backend,
        ttl: Duration,
    ) -> Result<i64, StoreError> {
        if let Some(id) = self.reuse(ttl) {
            return Ok(id);
        }
        // Two concurrent writers may grant two leases: both are valid, and later objects use the
        // second one.
        let longer = ttl + REUSE_MAX.min(ttl.mul_f64(REUSE_SHARE));
        let seconds = i64::try_from(longer.as_secs()).unwrap_or(i64::MAX);
        let asked = base::clock::now();
        let lease = backend.lease_grant(0, seconds).await?;
        let granted = Duration::from_secs(lease.granted_ttl.max(0).unsigned_abs());
        let current = Current { id: lease.id, ttl, expires: asked + granted, objects: 1 };
        *self.0.lock() = Some(current);
        Ok(lease.id)
    }

    fn reuse(&self, ttl: Duration) -> Option<i64> {
        let mut slot = self.0.lock();
        let current = slot.as_mut()?;
        let lasts = current.ttl == ttl && current.expires >= base::clock::now() + ttl;
        if !lasts || current.objects >= OBJECTS_MAX {
            return None;
        }
        current.objects += 1;
        Some(current.id)
    }

    /// Forgets a lease that the store does not have any more, because its data was replaced, so
    /// that the next write is granted a new one.
    pub(super) fn forget(&self, id: i64) {
        let mut slot = self.0.lock();
        if slot.is_some_and(|current| current.id == id) {
            *slot = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Tasks;

    #[tokio::test(start_paused = true)]
    async fn objects_created_within_a_minute_share_a_lease() {
        let tasks = Tasks::default();
        let backend = store::open_memory_with(&tasks);
        let (leases, ttl) = (Leases::default(), Duration::from_secs(3600));
        let first = leases.for_ttl(backend.as_ref(), ttl).await.unwrap();
        tokio::time::advance(Duration::from_secs(50)).await;
        assert_eq!(leases.for_ttl(backend.as_ref(), ttl).await.unwrap(), first);
        tokio::time::advance(Duration::from_secs(20)).await;
        let second = leases.for_ttl(backend.as_ref(), ttl).await.unwrap();
        assert_ne!(second, first);
        leases.forget(second);
        assert_ne!(leases.for_ttl(backend.as_ref(), ttl).await.unwrap(), second);
    }
}
