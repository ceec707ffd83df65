//! The devices that claims have.

use std::collections::HashMap;
use std::sync::Arc;

use api::k8s::api::resource::v1::{AllocationResult, DeviceRequestAllocationResult, ResourceClaim};
use api::quantity::Quantity;

use super::capacity::Amounts;
use super::id::DeviceId;

/// The shares of a device that several claims use.
#[derive(Clone, Debug, Default, PartialEq)]
struct Shares {
    count: usize,
    consumed: Amounts,
}

/// Allocated devices, with the number of results that contain each one.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Allocated {
    dedicated: HashMap<DeviceId, usize>,
    shared: HashMap<DeviceId, Shares>,
}

/// The allocation of a claim, if it has one.
pub(crate) fn allocation(claim: &ResourceClaim) -> Option<&AllocationResult> {
    claim.status.as_ref().and_then(|status| status.allocation.as_ref())
}

/// The devices of an allocation.
pub(crate) fn results(allocation: &AllocationResult) -> &[DeviceRequestAllocationResult] {
    allocation.devices.as_ref().and_then(|d| d.results.as_deref()).unwrap_or_default()
}

fn amounts(result: &DeviceRequestAllocationResult) -> impl Iterator<Item = (&String, Quantity)> {
    let consumed = result.consumed_capacity.iter().flatten();
    consumed.map(|(name, text)| (name, Quantity::parse(&text.0).unwrap_or_default()))
}

impl Allocated {
    /// Adds the devices of an allocation, except those with admin access, which does not keep
    /// others from a device.
    pub(crate) fn add(&mut self, allocation: &AllocationResult) {
        for result in results(allocation).iter().filter(|r| r.admin_access != Some(true)) {
            let id = DeviceId::new(&result.driver, &result.pool, &result.device);
            if result.share_id.is_none() {
                *self.dedicated.entry(id).or_default() += 1;
                continue;
            }
            let shares = self.shared.entry(id).or_default();
            shares.count += 1;
            for (name, amount) in amounts(result) {
                let sum = shares.consumed.entry(name.clone()).or_default();
                *sum += amount;
            }
        }
    }

    /// Removes the devices of an allocation that was added.
    pub(crate) fn remove(&mut self, allocation: &AllocationResult) {
        for result in results(allocation).iter().filter(|r| r.admin_access != Some(true)) {
            let id = DeviceId::new(&result.driver, &result.pool, &result.device);
            if result.share_id.is_none() {
                if let Some(count) = self.dedicated.get_mut(&id) {
                    *count = count.saturating_sub(1);
                    if *count == 0 {
                        self.dedicated.remove(&id);
                    }
                }
                continue;
            }
            let Some(shares) = self.shared.get_mut(&id) else { continue };
            shares.count = shares.count.saturating_sub(1);
            for (name, amount) in amounts(result) {
                if let Some(sum) = shares.consumed.get_mut(name) {
                    *sum -= amount;
                }
            }
            if shares.count == 0 {
                self.shared.remove(&id);
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn add_consumed(&mut self, id: DeviceId, consumed: Amounts) {
        let shares = self.shared.entry(id).or_default();
        shares.count += 1;
        shares.consumed.extend(consumed);
    }
}

/// What is in use during a cycle: the devices of all claims, and those of allocations that are not
/// written yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct AllocatedState {
    pub(crate) written: Arc<Allocated>,
    pub(crate) in_flight: Arc<Allocated>,
}

impl AllocatedState {
    fn layers(&self) -> [&Allocated; 2] {
        [&self.written, &self.in_flight]
    }

    /// A claim has the device for itself.
    pub(crate) fn is_dedicated(&self, id: &DeviceId) -> bool {
        self.layers().iter().any(|layer| layer.dedicated.contains_key(id))
    }

    /// Claims have shares of the device.
    pub(crate) fn is_shared(&self, id: &DeviceId) -> bool {
        self.layers().iter().any(|layer| layer.shared.contains_key(id))
    }

    /// The sum of what the shares of a device consume of a capacity.
    pub(crate) fn consumed(&self, id: &DeviceId, capacity: &str) -> Quantity {
        let shares = self.layers().into_iter().filter_map(|layer| layer.shared.get(id));
        let amounts = shares.filter_map(|shares| shares.consumed.get(capacity));
        amounts.fold(Quantity::ZERO, |sum, amount| sum + *amount)
    }
}
