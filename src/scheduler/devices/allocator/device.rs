//! One attempt: the devices that are chosen so far, what they use up, and how one is taken back.

use std::collections::HashMap;

use api::k8s::api::resource::v1::{DeviceClass, DeviceTaint, DeviceToleration};
use api::quantity::Quantity;

use super::checks::{Location, RequestIndex, Selection, failed};
use super::{AllocateError, RequestError};
use crate::devices::capacity::{Amounts, consumed, fits};
use crate::devices::constraints::Constraint;
use crate::devices::counters::ConsumedCounters;
use crate::devices::id::DeviceId;
use crate::devices::request::{Alternative, ClaimRequests, Request};
use crate::devices::slice::{Device, Slice};

/// A device of the result.
#[derive(Debug)]
pub(super) struct ChosenDevice<'a> {
    pub(super) request: &'a Alternative,
    pub(super) slice: &'a Slice,
    pub(super) device: &'a Device,
    /// What the share consumes; `None` if the claim has the device for itself.
    pub(super) share: Option<Amounts>,
}

/// The shares of a device that the attempt has taken.
#[derive(Debug, Default)]
struct TakenShares {
    count: usize,
    consumed: Amounts,
}

/// What must be undone to take back the device that was allocated last.
#[derive(Debug, Default)]
pub(super) struct Undo {
    key: RequestIndex,
    at: Location,
    has_counters: bool,
    constraints: usize,
    is_taken: bool,
    share: Option<Amounts>,
    has_result: bool,
}

/// The state of an attempt.
pub(super) struct Attempt<'a> {
    pub(super) selection: Selection<'a>,
    constraints: Vec<Vec<Constraint<'a>>>,
    /// For each device that is not shared, the claims that take it.
    taken: HashMap<&'a DeviceId, Vec<usize>>,
    shares: HashMap<&'a DeviceId, TakenShares>,
    /// By index of the pool.
    counters: HashMap<usize, ConsumedCounters<'a>>,
    devices: Vec<Vec<ChosenDevice<'a>>>,
}

/// Whether a toleration of the request tolerates the taint.
fn tolerates(toleration: &DeviceToleration, taint: &DeviceTaint) -> bool {
    let unset_or = |wanted: &Option<String>, have: &str| {
        wanted.as_deref().is_none_or(|w| w.is_empty() || w == have)
    };
    if !unset_or(&toleration.effect, &taint.effect) || !unset_or(&toleration.key, &taint.key) {
        return false;
    }
    match toleration.operator.as_deref().unwrap_or_default() {
        "" | "Equal" => {
            toleration.value.as_deref().unwrap_or_default()
                == taint.value.as_deref().unwrap_or_default()
        }
        "Exists" => true,
        _ => false,
    }
}

/// Whether a taint of the device keeps the request off it. Unknown effects have no effect.
fn is_tainted(device: &Device, request: &Alternative) -> bool {
    let hard = |t: &&DeviceTaint| matches!(t.effect.as_str(), "NoSchedule" | "NoExecute");
    device
        .taints
        .iter()
        .filter(hard)
        .any(|taint| !request.tolerations.iter().flatten().any(|t| tolerates(t, taint)))
}

impl<'a> Attempt<'a> {
    pub(super) fn new(selection: Selection<'a>) -> Self {
        let claims = selection.claims.iter();
        let constraints =
            claims.map(|c| c.constraints.iter().filter_map(Constraint::new).collect());
        Self {
            constraints: constraints.collect(),
            devices: selection.claims.iter().map(|_| Vec::new()).collect(),
            selection,
            taken: HashMap::new(),
            shares: HashMap::new(),
            counters: HashMap::new(),
        }
    }

    /// The devices of each claim.
    pub(super) fn into_devices(self) -> Vec<Vec<ChosenDevice<'a>>> {
        self.devices
    }

    /// Number of devices that a claim has so far.
    pub(super) fn count(&self, claim: usize) -> usize {
        self.devices.get(claim).map_or(0, Vec::len)
    }

    fn request(
        &self,
        key: RequestIndex,
    ) -> Option<(&'a ClaimRequests, &'a Request, &'a Alternative)> {
        let claim = self.selection.claims.get(key.claim)?;
        let request = claim.requests.get(key.request)?;
        Some((claim, request, request.alternatives.get(key.alternative)?))
    }

    /// Whether the device can be taken by the claim regardless of selectors. With admin access a
    /// device may be in use, but only once per claim.
    fn is_free(&self, key: RequestIndex, wanted: &Alternative, device: &Device) -> bool {
        let takers = self.taken.get(&device.id).map(Vec::as_slice).unwrap_or_default();
        if wanted.has_admin_access {
            return !takers.contains(&key.claim);
        }
        takers.is_empty() && !self.selection.allocator.allocated.is_dedicated(&device.id)
    }

    /// Whether the device is free, matches, and has the capacity.
    ///
    /// # Errors
    ///
    /// A selector fails, or no device can have the requested capacity.
    pub(super) fn is_candidate(
        &mut self,
        key: RequestIndex,
        at: Location,
        class: &DeviceClass,
    ) -> Result<bool, AllocateError> {
        let Some((_, device)) = self.selection.device(at) else { return Ok(false) };
        let Some((claim, _, wanted)) = self.request(key) else { return Ok(false) };
        Ok(self.is_free(key, wanted, device)
            && self.selection.is_selectable(at, key, wanted, class)?
            && self.has_capacity(claim, wanted, device)?)
    }

    fn has_capacity(
        &self,
        claim: &ClaimRequests,
        wanted: &Alternative,
        device: &Device,
    ) -> Result<bool, AllocateError> {
        let in_use = |name: &str| {
            let taken = self.shares.get(&device.id).and_then(|s| s.consumed.get(name));
            let taken = taken.copied().unwrap_or(Quantity::ZERO);
            self.selection.allocator.allocated.consumed(&device.id, name) + taken
        };
        fits(&wanted.capacity, &device.capacity, &in_use).map_err(|source| {
            let device = device.id.to_string();
            failed(claim, &wanted.name, RequestError::Capacity { device, source })
        })
    }

    /// Takes a device that matches the request; `None` if it cannot be used. With `must`, a
    /// constraint that rejects it is an error.
    ///
    /// # Errors
    ///
    /// As [`Attempt::is_candidate`], or a constraint rejects a device that must be taken.
    pub(super) fn allocate(
        &mut self,
        key: RequestIndex,
        at: Location,
        must: bool,
    ) -> Result<Option<Undo>, AllocateError> {
        let Some((slice, device)) = self.selection.device(at) else { return Ok(None) };
        let Some((claim, request, wanted)) = self.request(key) else { return Ok(None) };
        if !self.is_free(key, wanted, device) {
            return Ok(None);
        }
        let mut undo = Undo { key, at, ..Undo::default() };
        if !self.reserve_counters(at.pool, device, &mut undo) {
            return Ok(None);
        }
        if is_tainted(device, wanted) {
            self.undo(undo);
            return Ok(None);
        }
        if !self.add_to_constraints(request, wanted, device, &mut undo) {
            self.undo(undo);
            let error = RequestError::Constraint(device.id.clone());
            return if must { Err(failed(claim, &wanted.name, error)) } else { Ok(None) };
        }
        // For a single device the capacity was checked before, so that errors come first.
        if must && !self.has_capacity(claim, wanted, device)? {
            self.undo(undo);
            return Ok(None);
        }
        if device.is_shareable {
            let share = consumed(&wanted.capacity, &device.capacity).map_err(|source| {
                let device = device.id.to_string();
                failed(claim, &wanted.name, RequestError::Capacity { device, source })
            })?;
            self.take_share(device, &share);
            undo.share = Some(share);
        } else {
            self.taken.entry(&device.id).or_default().push(key.claim);
            undo.is_taken = true;
        }
        if let Some(devices) = self.devices.get_mut(key.claim) {
            let share = undo.share.clone();
            devices.push(ChosenDevice { request: wanted, slice, device, share });
            undo.has_result = true;
        }
        Ok(Some(undo))
    }

    /// Reserves the counters that the device consumes; those of a shared device are reserved once.
    fn reserve_counters(&mut self, pool: usize, device: &'a Device, undo: &mut Undo) -> bool {
        if device.consumes.is_empty() || device.is_shareable && self.is_shared(&device.id) {
            return true;
        }
        let Some(found) = self.selection.pools.get(pool) else { return false };
        let available = self.selection.allocator.available_counters(found);
        undo.has_counters = self.counters.entry(pool).or_default().add(device, &available);
        undo.has_counters
    }

    fn is_shared(&self, id: &DeviceId) -> bool {
        self.selection.allocator.allocated.is_shared(id)
            || self.shares.get(id).is_some_and(|shares| shares.count > 0)
    }

    fn add_to_constraints(
        &mut self,
        request: &Request,
        wanted: &Alternative,
        device: &'a Device,
        undo: &mut Undo,
    ) -> bool {
        let constraints = self.constraints.get_mut(undo.key.claim).into_iter().flatten();
        for constraint in constraints {
            if !constraint.add(request, wanted, device) {
                return false;
            }
            undo.constraints += 1;
        }
        true
    }

    fn take_share(&mut self, device: &'a Device, share: &Amounts) {
        let shares = self.shares.entry(&device.id).or_default();
        shares.count += 1;
        for (name, amount) in share {
            let sum = shares.consumed.entry(name.clone()).or_default();
            *sum += *amount;
        }
    }

    /// Takes back the device that was allocated last.
    pub(super) fn undo(&mut self, undo: Undo) {
        let Some((_, device)) = self.selection.device(undo.at) else { return };
        let key = undo.key;
        if undo.has_result {
            self.devices.get_mut(key.claim).map(Vec::pop);
        }
        if let (Some(share), Some(shares)) = (&undo.share, self.shares.get_mut(&device.id)) {
            shares.count = shares.count.saturating_sub(1);
            for (name, amount) in share {
                if let Some(sum) = shares.consumed.get_mut(name) {
                    *sum -= *amount;
                }
            }
        }
        if undo.is_taken {
            self.taken.get_mut(&device.id).map(Vec::pop);
        }
        if let Some((_, request, wanted)) = self.request(key) {
            let constraints = self.constraints.get_mut(key.claim).into_iter().flatten();
            for constraint in constraints.take(undo.constraints) {
                constraint.remove(request, wanted);
            }
        }
        if undo.has_counters
            && let Some(counters) = self.counters.get_mut(&undo.at.pool)
        {
            counters.remove(device);
        }
    }
}
