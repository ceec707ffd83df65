//! Which devices a container gets, by the rules of the kubelet's `devicesToAllocate`. Pure: the
//! plugin's preference is requested between two steps.

use std::collections::BTreeSet;

use sorting::CollectOrdered as _;

use super::affinity::{Candidates, split};
use super::error::AllocationError;
use super::state::{ClaimKey, DeviceState};

/// A request of one container for devices of one resource.
#[derive(Debug, Clone)]
pub(crate) struct DeviceRequest {
    /// Uid of the pod.
    pub(crate) pod: String,
    pub(crate) container: String,
    pub(crate) resource: String,
    /// Number of devices.
    pub(crate) count: usize,
    /// Devices of init containers of the pod that have run when this container starts.
    pub(crate) reusable: BTreeSet<String>,
    /// NUMA nodes from which devices are preferred; `None` for no preference.
    pub(crate) affinity: Option<BTreeSet<i64>>,
}

impl DeviceRequest {
    pub(crate) fn key(&self) -> ClaimKey {
        (self.pod.clone(), self.container.clone(), self.resource.clone())
    }
}

/// The first step of a choice.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// The container needs no devices, or has them already.
    Nothing,
    /// These devices, which are claimed now.
    Devices(BTreeSet<String>),
    /// The plugin may state which devices it prefers.
    Ask(Preference),
}

/// A choice that the plugin may influence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Preference {
    /// Chosen already: the plugin must include them.
    pub(crate) must_include: BTreeSet<String>,
    /// The plugin chooses among these and the former.
    pub(crate) among: BTreeSet<String>,
    /// Devices in the order in which they are taken without a preference.
    rest: Vec<BTreeSet<String>>,
}

impl Preference {
    /// The devices from which the plugin chooses: `available_deviceIDs` of the call.
    pub(crate) fn available(&self) -> BTreeSet<String> {
        self.among.union(&self.must_include).cloned().collect_set()
    }
}

impl DeviceState {
    /// Begins a choice. Chosen devices are claimed until [`DeviceState::record`] or
    /// [`DeviceState::drop_claim`].
    ///
    /// # Errors
    ///
    /// There are no such devices, or too few; nothing is claimed then.
    pub(crate) fn choose(&mut self, request: &DeviceRequest) -> Result<Choice, AllocationError> {
        let DeviceRequest { pod, container, resource, count, .. } = request;
        if *count == 0 {
            return Ok(Choice::Nothing);
        }
        let recorded = self.records.devices(pod, container, resource);
        if let Some(recorded) = recorded.as_ref().filter(|recorded| recorded.len() != *count) {
            return Err(AllocationError::RequestChanged {
                pod: pod.clone(),
                container: container.clone(),
                resource: resource.clone(),
                recorded: recorded.len(),
                requested: *count,
            });
        }
        if !self.is_registered(resource) {
            return Err(AllocationError::Unregistered(resource.clone()));
        }
        let healthy = self.healthy(resource);
        if healthy.is_empty() {
            return Err(AllocationError::NoHealthyDevices(resource.clone()));
        }
        if let Some(recorded) = recorded {
            if !recorded.is_subset(&healthy) {
                return Err(AllocationError::NoLongerHealthy(resource.clone()));
            }
            return Ok(Choice::Nothing);
        }
        let mut taken: BTreeSet<String> =
            request.reusable.iter().take(*count).cloned().collect_set();
        if taken.len() < *count {
            let needed = count - taken.len();
            let available = self.available(request, &healthy);
            if available.len() < needed {
                return Err(AllocationError::Unavailable {
                    resource: resource.clone(),
                    requested: needed,
                    available: available.len(),
                });
            }
            let preference = self.preference(request, taken, available);
            if preference.must_include.len() < *count {
                self.claims.insert(request.key(), preference.must_include.clone());
                return Ok(Choice::Ask(preference));
            }
            taken = preference.must_include;
        }
        self.claims.insert(request.key(), taken.clone());
        Ok(Choice::Devices(taken))
    }

    /// The devices that no container has. A device that a container of this pod may reuse counts
    /// as one that it has.
    fn available(&self, request: &DeviceRequest, healthy: &BTreeSet<String>) -> BTreeSet<String> {
        let allocated = self.allocated(&request.resource);
        healthy.difference(&allocated).cloned().collect_set()
    }

    /// Takes the aligned devices if all of them are needed, and returns what is left to choose.
    fn preference(
        &self,
        request: &DeviceRequest,
        taken: BTreeSet<String>,
        available: BTreeSet<String>,
    ) -> Preference {
        let affinity = request.affinity.as_ref().filter(|_| self.has_topology(&request.resource));
        let nodes = |id: &str| self.nodes(&request.resource, id);
        let Candidates { aligned, unaligned, without_affinity } = match affinity {
            Some(affinity) => split(&available, affinity, nodes),
            None => Candidates { without_affinity: available.clone(), ..Candidates::default() },
        };
        let needed = request.count.saturating_sub(taken.len());
        if needed < aligned.len() {
            let rest = vec![aligned.clone()];
            return Preference { must_include: taken, among: aligned, rest };
        }
        let must_include = taken.into_iter().chain(aligned).collect();
        Preference { must_include, among: available, rest: vec![unaligned, without_affinity] }
    }

    /// Completes a choice with the devices that the plugin prefers, which may be none, too few, or
    /// others than those offered. Devices that another container has got meanwhile are left out.
    ///
    /// # Errors
    ///
    /// Too few devices are left; the claim is dropped then.
    pub(crate) fn complete(
        &mut self,
        request: &DeviceRequest,
        preference: Preference,
        preferred: &BTreeSet<String>,
    ) -> Result<BTreeSet<String>, AllocationError> {
        let Preference { must_include, among, rest } = preference;
        let healthy = self.healthy(&request.resource);
        let available = self.available(request, &healthy);
        let in_order = preferred.intersection(&among).chain(rest.iter().flatten());
        let mut taken = must_include;
        for id in in_order.filter(|id| available.contains(*id)) {
            if taken.len() >= request.count {
                break;
            }
            taken.insert(id.clone());
        }
        let Some(missing) = request.count.checked_sub(taken.len()).filter(|missing| *missing > 0)
        else {
            self.claims.insert(request.key(), taken.clone());
            return Ok(taken);
        };
        self.drop_claim(request);
        Err(AllocationError::Unavailable {
            resource: request.resource.clone(),
            requested: missing,
            available: 0,
        })
    }

    /// Gives up the devices of a choice that was not recorded.
    pub(crate) fn drop_claim(&mut self, request: &DeviceRequest) {
        self.claims.remove(&request.key());
    }
}

#[cfg(test)]
mod tests;
