//! What the scheduler knows about devices, under one lock with short sections.

use std::sync::Arc;

use api::k8s::api::resource::v1::{AllocationResult, DeviceClass, DeviceTaintRule, ResourceClaim};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::allocated::{Allocated, AllocatedState, allocation};
use super::allocator::Allocator;
use super::claims::{ClaimCache, ClaimChange, ClaimError, InFlight, apply, uid};
use super::classes::Classes;
use super::request::ClaimName;
use super::selectors::Selectors;
use super::slice::Slice;
use super::slices::SliceTracker;

#[derive(Debug, Default)]
struct Indexes {
    claims: ClaimCache,
    in_flight: InFlight,
    allocated: Arc<Allocated>,
    slices: SliceTracker,
    classes: Arc<Classes>,
}

impl Indexes {
    fn apply(&mut self, change: &ClaimChange) {
        apply(change, &mut self.allocated);
    }
}

/// Claims, classes and slices, and what is allocated.
#[derive(Debug)]
pub(crate) struct Devices {
    indexes: Mutex<Indexes>,
    selectors: Arc<Selectors>,
    /// Counts changes of claims.
    claims_changed: watch::Sender<u64>,
}

impl Default for Devices {
    fn default() -> Self {
        let (indexes, selectors) = (Mutex::default(), Arc::default());
        Self { indexes, selectors, claims_changed: watch::Sender::new(0) }
    }
}

impl Devices {
    fn count_change(&self) {
        self.claims_changed.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Resolves when a claim has changed since the receiver was last marked as seen.
    pub(crate) fn claim_changes(&self) -> watch::Receiver<u64> {
        self.claims_changed.subscribe()
    }

    /// The informer has a claim. Returns the change, unless a newer version is known.
    pub(crate) fn observe_claim(&self, claim: ResourceClaim) -> Option<ClaimChange> {
        let mut indexes = self.indexes.lock();
        let change = indexes.claims.observe(claim)?;
        indexes.apply(&change);
        drop(indexes);
        self.count_change();
        Some(change)
    }

    /// A claim was deleted. Returns the change, if the claim was known.
    pub(crate) fn remove_claim(&self, name: &ClaimName) -> Option<ClaimChange> {
        let mut indexes = self.indexes.lock();
        let change = indexes.claims.remove(name)?;
        indexes.apply(&change);
        drop(indexes);
        self.count_change();
        Some(change)
    }

    /// The scheduler has written a claim.
    ///
    /// # Errors
    ///
    /// The claim is not known, or a newer version is.
    pub(crate) fn assume_claim(&self, claim: ResourceClaim) -> Result<ClaimChange, ClaimError> {
        let mut indexes = self.indexes.lock();
        let change = indexes.claims.assume(claim)?;
        indexes.apply(&change);
        drop(indexes);
        self.count_change();
        Ok(change)
    }

    /// Drops what was assumed about a claim. Returns the change, if anything was.
    pub(crate) fn restore_claim(&self, name: &ClaimName) -> Option<ClaimChange> {
        let mut indexes = self.indexes.lock();
        let change = indexes.claims.restore(name)?;
        indexes.apply(&change);
        drop(indexes);
        self.count_change();
        Some(change)
    }

    /// The newest known version of a claim.
    ///
    /// # Errors
    ///
    /// The claim is not known.
    pub(crate) fn claim(&self, name: &ClaimName) -> Result<Arc<ResourceClaim>, ClaimError> {
        self.indexes.lock().claims.get(name).cloned()
    }

    /// A claim for which `matches` returns true.
    pub(crate) fn find_claim(
        &self,
        matches: impl Fn(&ResourceClaim) -> bool,
    ) -> Option<Arc<ResourceClaim>> {
        self.indexes.lock().claims.iter().find(|claim| matches(claim)).cloned()
    }

    /// A class was added or changed.
    pub(crate) fn set_class(&self, class: DeviceClass) {
        Arc::make_mut(&mut self.indexes.lock().classes).set(class);
    }

    /// A class was deleted.
    pub(crate) fn remove_class(&self, name: &str) {
        Arc::make_mut(&mut self.indexes.lock().classes).remove(name);
    }

    /// The classes.
    pub(crate) fn classes(&self) -> Arc<Classes> {
        Arc::clone(&self.indexes.lock().classes)
    }

    /// A slice was added or changed.
    pub(crate) fn set_slice(&self, slice: Slice) {
        self.indexes.lock().slices.set_slice(slice);
    }

    /// A slice was deleted.
    pub(crate) fn remove_slice(&self, name: &str) {
        self.indexes.lock().slices.remove_slice(name);
    }

    /// A DeviceTaintRule was added or changed (`Some`) or deleted. Returns whether the taints of a
    /// device changed.
    pub(crate) fn set_rule(&self, name: &str, rule: Option<DeviceTaintRule>) -> bool {
        self.indexes.lock().slices.set_rule(name, rule)
    }

    /// Whether an allocation of the claim is about to be written.
    pub(crate) fn is_in_flight(&self, uid: &str) -> bool {
        self.indexes.lock().in_flight.contains(uid)
    }

    /// Records an allocation that will be written. `in_memory` is set for claims of extended
    /// resources, which the API server does not have yet.
    ///
    /// # Errors
    ///
    /// The claim is not known.
    pub(crate) fn signal_allocation(
        &self,
        claim: &ResourceClaim,
        chosen: &AllocationResult,
        in_memory: bool,
    ) -> Result<(), ClaimError> {
        let mut indexes = self.indexes.lock();
        if !in_memory && !indexes.in_flight.contains(uid(claim)) {
            let known = indexes.claims.get(&ClaimName::of(claim))?;
            if uid(known) == uid(claim) && allocation(known).is_some() {
                return Ok(());
            }
        }
        indexes.in_flight.signal(claim, chosen);
        Ok(())
    }

    /// Removes one sharer of a pending allocation, or with `force` all. Returns whether the
    /// allocation is not pending any more because of this.
    pub(crate) fn remove_in_flight(&self, uid: &str, force: bool) -> bool {
        self.indexes.lock().in_flight.remove(uid, force)
    }

    /// An allocator for the current state.
    pub(crate) fn allocator(&self) -> Allocator {
        let indexes = self.indexes.lock();
        let in_flight = if indexes.in_flight.is_empty() {
            Arc::default()
        } else {
            Arc::new(indexes.in_flight.allocated(&indexes.claims))
        };
        let allocated = AllocatedState { written: Arc::clone(&indexes.allocated), in_flight };
        let (slices, classes) = (indexes.slices.index(), Arc::clone(&indexes.classes));
        Allocator::new(slices, allocated, classes, Arc::clone(&self.selectors))
    }
}
