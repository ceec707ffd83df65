//! What is checked before the search: whether each request can be served at all, and which devices
//! a request for all devices means.

use std::collections::HashMap;
use std::sync::Arc;

use api::k8s::api::resource::v1::{DeviceClass, DeviceSelector};
use api::quantity::Quantity;

use super::{AllocateError, Allocator, DEVICES_MAX, RequestError, SelectorOwner};
use crate::devices::capacity::fits;
use crate::devices::pools::{Pool, PoolState};
use crate::devices::request::{Alternative, ClaimRequests, ConstraintRule, Mode, Request};
use crate::devices::slice::{Device, Nodes, Slice};
use crate::node_info::NodeInfo;

/// A device by its position in the list of pools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Location {
    pub(super) pool: usize,
    pub(super) slice: usize,
    pub(super) device: usize,
}

/// A request or subrequest by its position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct RequestIndex {
    pub(super) claim: usize,
    pub(super) request: usize,
    pub(super) alternative: usize,
}

/// What a request or subrequest needs.
#[derive(Debug)]
pub(super) struct RequestData {
    pub(super) class: Arc<DeviceClass>,
    /// Number of devices.
    pub(super) count: i64,
    /// The devices of a request for all devices.
    pub(super) all: Vec<Location>,
}

/// The needs of all claims: by claim, request and alternative.
pub(super) type Data = Vec<Vec<Vec<RequestData>>>;

/// Which devices match which requests on a node. That does not depend on what is allocated, so each
/// answer is computed once.
pub(super) struct Selection<'a> {
    pub(super) allocator: &'a Allocator,
    pub(super) node: &'a NodeInfo,
    pub(super) claims: &'a [Arc<ClaimRequests>],
    pub(super) pools: &'a [Pool<'a>],
    matches: HashMap<(Location, RequestIndex), bool>,
}

impl<'a> Selection<'a> {
    pub(super) fn new(
        allocator: &'a Allocator,
        node: &'a NodeInfo,
        claims: &'a [Arc<ClaimRequests>],
        pools: &'a [Pool<'a>],
    ) -> Self {
        Self { allocator, node, claims, pools, matches: HashMap::new() }
    }

    /// The device at a position, with its slice.
    pub(super) fn device(&self, at: Location) -> Option<(&'a Slice, &'a Device)> {
        let slice = *self.pools.get(at.pool)?.slices.get(at.slice)?;
        Some((slice, slice.devices.get(at.device)?))
    }

    /// Checks all requests and constraints.
    ///
    /// # Errors
    ///
    /// The first request or constraint that cannot be served.
    pub(super) fn check_claims(&mut self) -> Result<Data, AllocateError> {
        let claims = self.claims.iter().enumerate();
        claims.map(|(index, claim)| self.check_claim(index, claim)).collect()
    }

    fn check_claim(
        &mut self,
        index: usize,
        claim: &'a ClaimRequests,
    ) -> Result<Vec<Vec<RequestData>>, AllocateError> {
        let mut before = 0_usize;
        let mut checked = Vec::with_capacity(claim.requests.len());
        for (at, request) in claim.requests.iter().enumerate() {
            let data = self.check_request(index, at, claim, request)?;
            // Of a prioritized list, the search takes one subrequest.
            let least = data.iter().map(|data| data.count).min().unwrap_or(0);
            let devices = usize::try_from(least).ok().filter(|n| *n <= DEVICES_MAX - before);
            let Some(devices) = devices else {
                let error = RequestError::TooManyDevices { devices: least, before };
                return Err(failed(claim, &request.name, error));
            };
            before += devices;
            checked.push(data);
        }
        let mut rules = claim.constraints.iter();
        match rules.position(|c| matches!(c.rule, ConstraintRule::Unknown)) {
            Some(index) => {
                Err(AllocateError::UnknownConstraint { claim: claim.claim.clone(), index })
            }
            None => Ok(checked),
        }
    }

    fn check_request(
        &mut self,
        claim_index: usize,
        at: usize,
        claim: &'a ClaimRequests,
        request: &'a Request,
    ) -> Result<Vec<RequestData>, AllocateError> {
        if request.alternatives.is_empty() {
            return Err(failed(claim, &request.name, RequestError::NoClass));
        }
        let alternatives = request.alternatives.iter().enumerate();
        let check = |(alternative, wanted)| {
            let key = RequestIndex { claim: claim_index, request: at, alternative };
            self.check_alternative(key, claim, wanted)
        };
        alternatives.map(check).collect()
    }

    fn check_alternative(
        &mut self,
        key: RequestIndex,
        claim: &ClaimRequests,
        wanted: &Alternative,
    ) -> Result<RequestData, AllocateError> {
        let fail = |error| Err(failed(claim, &wanted.name, error));
        if wanted.has_derived_attributes {
            return fail(RequestError::DerivedAttributes);
        }
        if let Some(index) = wanted.selectors.iter().position(Option::is_none) {
            let (claim, request) = (claim.claim.clone(), wanted.name.clone());
            return Err(AllocateError::UnknownSelector { claim, request, index });
        }
        if wanted.class.is_empty() {
            return fail(RequestError::NoClass);
        }
        let Some(class) = self.allocator.classes.get(&wanted.class) else {
            return fail(RequestError::UnknownClass(wanted.class.clone()));
        };
        let mut data = RequestData { class: Arc::clone(class), count: 0, all: Vec::new() };
        match &wanted.mode {
            Mode::Exact(count) => data.count = *count,
            Mode::Unknown(mode) => return fail(RequestError::UnknownMode(mode.clone())),
            Mode::All => {
                data.all = self.all_devices(key, claim, wanted, class)?;
                data.count = i64::try_from(data.all.len()).unwrap_or(i64::MAX);
            }
        }
        Ok(data)
    }

    /// The devices that a request for all devices means: those that match and could serve it if
    /// they were not in use.
    fn all_devices(
        &mut self,
        key: RequestIndex,
        claim: &ClaimRequests,
        wanted: &Alternative,
        class: &DeviceClass,
    ) -> Result<Vec<Location>, AllocateError> {
        let fail = |error| failed(claim, &wanted.name, error);
        let mut all = Vec::new();
        for (pool, found) in self.pools.iter().enumerate() {
            match &found.state {
                PoolState::Usable => {}
                PoolState::Incomplete => {
                    return Err(fail(RequestError::IncompletePool(found.id.clone())));
                }
                PoolState::Invalid(_) => {
                    return Err(fail(RequestError::InvalidPool(found.id.clone())));
                }
            }
            for (slice, devices) in found.slices.iter().map(|s| &s.devices).enumerate() {
                for (device, found) in devices.iter().enumerate() {
                    let at = Location { pool, slice, device };
                    if !self.is_selectable(at, key, wanted, class)? {
                        continue;
                    }
                    let unused = |_: &str| Quantity::ZERO;
                    let fits = fits(&wanted.capacity, &found.capacity, &unused);
                    let fits = fits.map_err(|source| {
                        let device = found.id.device.to_string();
                        fail(RequestError::Capacity { device, source })
                    })?;
                    if fits {
                        all.push(at);
                    }
                }
            }
        }
        Ok(all)
    }

    /// Whether the selectors of the class and of the request match a device, and the device can be
    /// used on the node.
    ///
    /// # Errors
    ///
    /// A selector does not compile, or fails for this device.
    pub(super) fn is_selectable(
        &mut self,
        at: Location,
        key: RequestIndex,
        wanted: &Alternative,
        class: &DeviceClass,
    ) -> Result<bool, AllocateError> {
        if let Some(known) = self.matches.get(&(at, key)) {
            return Ok(*known);
        }
        let Some((slice, device)) = self.device(at) else { return Ok(false) };
        let matches = self.selectors_match(key, wanted, class, device)?
            && (!matches!(slice.nodes, Nodes::PerDevice) || device.nodes.contain(self.node));
        self.matches.insert((at, key), matches);
        Ok(matches)
    }

    fn selectors_match(
        &self,
        key: RequestIndex,
        wanted: &Alternative,
        class: &DeviceClass,
        device: &Device,
    ) -> Result<bool, AllocateError> {
        let evaluate = |index: usize, expression: &str, owner: &dyn Fn() -> SelectorOwner| {
            self.allocator.selectors.matches(expression, device).map_err(|source| {
                AllocateError::Selector { owner: owner(), index, device: device.id.clone(), source }
            })
        };
        let name = || SelectorOwner::Class(class.metadata.name.clone().unwrap_or_default());
        for (index, selector) in class_selectors(class).iter().enumerate() {
            // A selector of another release matches nothing.
            let Some(cel) = &selector.cel else { return Ok(false) };
            if !evaluate(index, &cel.expression, &name)? {
                return Ok(false);
            }
        }
        let claim = || {
            let claim = self.claims.get(key.claim).map(|claim| claim.claim.clone());
            SelectorOwner::Claim(claim.unwrap_or_default())
        };
        for (index, expression) in wanted.selectors.iter().flatten().enumerate() {
            if !evaluate(index, expression, &claim)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

pub(super) fn class_selectors(class: &DeviceClass) -> &[DeviceSelector] {
    class.spec.as_ref().and_then(|s| s.selectors.as_deref()).unwrap_or_default()
}

/// The error of a request.
pub(super) fn failed(claim: &ClaimRequests, request: &str, source: RequestError) -> AllocateError {
    AllocateError::Request { claim: claim.claim.clone(), request: request.to_owned(), source }
}
