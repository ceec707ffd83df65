//! The ResourceClaims of the cluster with those that the scheduler has just written (upstream's
//! assume cache), and the allocations that are chosen but not written yet.

use std::collections::HashMap;
use std::sync::Arc;

use api::k8s::api::resource::v1::{AllocationResult, ResourceClaim};

use super::allocated::{Allocated, allocation};
use super::request::ClaimName;

/// A claim that cannot be read or assumed; the texts are upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ClaimError {
    #[error("could not find ResourceClaim \"{0}\"")]
    NotFound(ClaimName),
    #[error("ResourceClaim \"{claim}\" is out of sync (stored: {stored}, assume: {assumed})")]
    OutOfSync { claim: ClaimName, stored: u64, assumed: u64 },
}

/// A change of the newest known version of a claim.
#[derive(Clone, Debug)]
pub(crate) struct ClaimChange {
    /// The claim before the change; `None` if it is new.
    pub(crate) old: Option<Arc<ResourceClaim>>,
    /// The claim after the change; `None` if it was deleted.
    pub(crate) new: Option<Arc<ResourceClaim>>,
}

#[derive(Debug)]
struct CachedClaim {
    newest: Arc<ResourceClaim>,
    /// The version of the informer, unless it is the newest.
    observed: Option<Arc<ResourceClaim>>,
}

/// The claims by name.
#[derive(Debug, Default)]
pub(crate) struct ClaimCache {
    claims: HashMap<ClaimName, CachedClaim>,
}

fn version(claim: &ResourceClaim) -> u64 {
    let text = claim.metadata.resource_version.as_deref().unwrap_or_default();
    text.parse().unwrap_or(0)
}

/// The UID of a claim.
pub(crate) fn uid(claim: &ResourceClaim) -> &str {
    claim.metadata.uid.as_deref().unwrap_or_default()
}

impl ClaimCache {
    /// The newest known version of a claim.
    ///
    /// # Errors
    ///
    /// The claim is not known.
    pub(crate) fn get(&self, name: &ClaimName) -> Result<&Arc<ResourceClaim>, ClaimError> {
        let cached = self.claims.get(name).map(|cached| &cached.newest);
        cached.ok_or_else(|| ClaimError::NotFound(name.clone()))
    }

    /// The newest versions of all claims.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<ResourceClaim>> {
        self.claims.values().map(|cached| &cached.newest)
    }

    /// The informer has a claim; versions that are not newer than the known one change nothing.
    pub(crate) fn observe(&mut self, claim: ResourceClaim) -> Option<ClaimChange> {
        let (name, claim) = (ClaimName::of(&claim), Arc::new(claim));
        let old = self.claims.get(&name).map(|cached| Arc::clone(&cached.newest));
        if old.as_ref().is_some_and(|old| version(&claim) <= version(old)) {
            return None;
        }
        let cached = CachedClaim { newest: Arc::clone(&claim), observed: None };
        self.claims.insert(name, cached);
        Some(ClaimChange { old, new: Some(claim) })
    }

    /// The claim was deleted.
    pub(crate) fn remove(&mut self, name: &ClaimName) -> Option<ClaimChange> {
        let old = self.claims.remove(name)?;
        Some(ClaimChange { old: Some(old.newest), new: None })
    }

    /// The scheduler has written a claim, and the informer does not have that version yet.
    ///
    /// # Errors
    ///
    /// The claim is not known, or a newer version is.
    pub(crate) fn assume(&mut self, claim: ResourceClaim) -> Result<ClaimChange, ClaimError> {
        let name = ClaimName::of(&claim);
        let Some(cached) = self.claims.get_mut(&name) else {
            return Err(ClaimError::NotFound(name));
        };
        let (stored, assumed) = (version(&cached.newest), version(&claim));
        if assumed < stored {
            return Err(ClaimError::OutOfSync { claim: name, stored, assumed });
        }
        let new = Arc::new(claim);
        let old = std::mem::replace(&mut cached.newest, Arc::clone(&new));
        cached.observed.get_or_insert_with(|| Arc::clone(&old));
        Ok(ClaimChange { old: Some(old), new: Some(new) })
    }

    /// Drops an assumed version: the newest one is that of the informer.
    pub(crate) fn restore(&mut self, name: &ClaimName) -> Option<ClaimChange> {
        let cached = self.claims.get_mut(name)?;
        let observed = cached.observed.take()?;
        let old = std::mem::replace(&mut cached.newest, Arc::clone(&observed));
        Some(ClaimChange { old: Some(old), new: Some(observed) })
    }
}

#[derive(Debug)]
struct PendingAllocation {
    claim: ClaimName,
    allocation: Arc<AllocationResult>,
    /// Number of pods that need it.
    sharers: usize,
}

/// Allocations that are chosen but not written yet, by the UID of the claim; bounded by the number
/// of bindings that run.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    allocations: HashMap<String, PendingAllocation>,
}

impl InFlight {
    /// Whether no allocation is pending.
    pub(crate) fn is_empty(&self) -> bool {
        self.allocations.is_empty()
    }

    /// Whether an allocation of the claim is about to be written.
    pub(crate) fn contains(&self, uid: &str) -> bool {
        self.allocations.contains_key(uid)
    }

    /// Records an allocation; an earlier one of the claim is kept and has one more sharer.
    pub(crate) fn signal(&mut self, claim: &ResourceClaim, allocation: &AllocationResult) {
        let pending = self.allocations.entry(uid(claim).to_owned());
        let pending = pending.or_insert_with(|| PendingAllocation {
            claim: ClaimName::of(claim),
            allocation: Arc::new(allocation.clone()),
            sharers: 0,
        });
        pending.sharers += 1;
    }

    /// Removes one sharer, or with `force` all of them. Returns whether the allocation is not
    /// pending any more because of this.
    pub(crate) fn remove(&mut self, uid: &str, force: bool) -> bool {
        let Some(pending) = self.allocations.get_mut(uid) else { return false };
        if force || pending.sharers <= 1 {
            self.allocations.remove(uid);
            return true;
        }
        pending.sharers -= 1;
        false
    }

    /// The devices of the allocations of those claims of which the cache has none.
    pub(crate) fn allocated(&self, claims: &ClaimCache) -> Allocated {
        let is_written = |name: &ClaimName, pending: &str| {
            let known = claims.get(name);
            known.is_ok_and(|claim| uid(claim) == pending && allocation(claim).is_some())
        };
        let mut allocated = Allocated::default();
        for (uid, pending) in &self.allocations {
            if !is_written(&pending.claim, uid) {
                allocated.add(&pending.allocation);
            }
        }
        allocated
    }
}

/// Updates the allocated devices; an allocation never changes, it is only added and removed.
/// Returns whether the devices changed.
pub(crate) fn apply(change: &ClaimChange, allocated: &mut Arc<Allocated>) -> bool {
    let of = |claim: &Option<Arc<ResourceClaim>>| claim.as_deref().and_then(allocation).cloned();
    match (of(&change.old), of(&change.new)) {
        (None, Some(added)) => Arc::make_mut(allocated).add(&added),
        (Some(removed), None) => Arc::make_mut(allocated).remove(&removed),
        (None, None) | (Some(_), Some(_)) => return false,
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn claim(version: u64, allocation: Value) -> ResourceClaim {
        let metadata = json!({"namespace": "n", "name": "c", "uid": "u",
            "resourceVersion": version.to_string()});
        let status = json!({"allocation": allocation});
        serde_json::from_value(json!({"metadata": metadata, "status": status})).unwrap()
    }

    fn allocated(share: Option<&str>) -> Value {
        let mut result = json!({"request": "r", "driver": "d", "pool": "p", "device": "x"});
        if let Some(share) = share {
            result["shareID"] = share.into();
            result["consumedCapacity"] = json!({"memory": "1"});
        }
        json!({"devices": {"results": [result]}})
    }

    fn name() -> ClaimName {
        ClaimName { namespace: "n".into(), name: "c".into() }
    }

    /// Rules of upstream's `util/assumecache`.
    #[test]
    fn only_newer_versions_replace_a_claim_and_restore_returns_to_the_observed_one() {
        let mut cache = ClaimCache::default();
        assert_eq!(
            cache.get(&name()).unwrap_err().to_string(),
            "could not find ResourceClaim \"n/c\""
        );
        assert!(cache.assume(claim(1, Value::Null)).is_err(), "unknown");
        assert!(cache.observe(claim(2, Value::Null)).unwrap().old.is_none());
        assert!(cache.observe(claim(2, Value::Null)).is_none());
        assert_eq!(
            cache.assume(claim(1, Value::Null)).unwrap_err().to_string(),
            "ResourceClaim \"n/c\" is out of sync (stored: 2, assume: 1)"
        );
        let change = cache.assume(claim(3, allocated(None))).unwrap();
        assert!(allocation(&change.new.unwrap()).is_some());
        assert!(cache.observe(claim(3, allocated(None))).is_none(), "known already");
        let change = cache.restore(&name()).unwrap();
        assert!(allocation(&change.new.unwrap()).is_none());
        assert!(cache.restore(&name()).is_none());
        assert!(cache.remove(&name()).unwrap().new.is_none());
        assert!(cache.remove(&name()).is_none());
    }

    /// Rows of upstream's `dra_manager_test.go`.
    #[test]
    fn an_allocation_is_pending_until_its_last_sharer_is_removed() {
        let mut in_flight = InFlight::default();
        assert!(!in_flight.remove("u", false), "empty");
        let first = serde_json::from_value(allocated(None)).unwrap();
        let pending = claim(1, Value::Null);
        in_flight.signal(&pending, &first);
        assert!(in_flight.contains("u"));
        assert!(in_flight.remove("u", false), "last sharer");
        in_flight.signal(&pending, &first);
        in_flight.signal(&pending, &AllocationResult::default());
        let mut cache = ClaimCache::default();
        assert_ne!(in_flight.allocated(&cache), Allocated::default(), "the first is kept");
        cache.observe(pending);
        assert_ne!(in_flight.allocated(&cache), Allocated::default(), "it is not written yet");
        cache.observe(claim(2, allocated(None)));
        assert_eq!(in_flight.allocated(&cache), Allocated::default());
        assert!(!in_flight.remove("u", false), "two sharers");
        assert!(in_flight.remove("u", true));
        assert!(!in_flight.contains("u"));
    }

    #[test]
    fn devices_are_in_use_while_claims_have_them() {
        for share in [None, Some("s")] {
            let with = Arc::new(claim(1, allocated(share)));
            let without = Arc::new(claim(2, Value::Null));
            let mut devices = Arc::<Allocated>::default();
            let change = |old: Option<&Arc<ResourceClaim>>, new: Option<&Arc<ResourceClaim>>| {
                ClaimChange { old: old.cloned(), new: new.cloned() }
            };
            assert!(!apply(&change(None, Some(&without)), &mut devices));
            assert!(apply(&change(None, Some(&with)), &mut devices));
            assert!(!apply(&change(Some(&with), Some(&with)), &mut devices));
            assert_ne!(*devices, Allocated::default());
            assert!(apply(&change(Some(&with), Some(&without)), &mut devices));
            assert_eq!(*devices, Allocated::default());
            assert!(apply(&change(None, Some(&with)), &mut devices));
            assert!(apply(&change(Some(&with), None), &mut devices));
            assert_eq!(*devices, Allocated::default());
        }
    }
}
