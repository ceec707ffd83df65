//! The claims of a pod in one scheduling cycle.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use api::k8s::api::resource::v1::{AllocationResult, ResourceClaim};
use api::k8s::jiff::Timestamp;
use base::clock;
use parking_lot::Mutex;

use super::extended::{self, IN_MEMORY_NAME};
use super::pod_claims::pod_claims;
use super::score::points;
use crate::devices::allocated::{allocation, results};
use crate::devices::allocator::{AllocateError, Allocator};
use crate::devices::binding::{
    ClaimRelease, ClaimToBind, ClaimsToBind, ExtendedClaim, is_ready, is_timed_out,
};
use crate::devices::claims::uid;
use crate::devices::classes::Classes;
use crate::devices::request::{ClaimName, ClaimRequests, Request};
use crate::devices::slice::selects;
use crate::devices::store::Devices;
use crate::node_info::NodeInfo;
use crate::pod_claims::{ContainerRequests, may_be_served};
use crate::pod_info::PodInfo;
use crate::rejection::Rejection;

/// The allocation for one node takes no longer than this (`filterTimeout` of
/// `DynamicResourcesArgs`).
const FILTER_TIMEOUT: Duration = Duration::from_secs(10);

/// A claim of the pod.
struct CycleClaim {
    claim: Arc<ResourceClaim>,
    requests: Arc<ClaimRequests>,
}

/// The extended resources of the pod that a class may serve.
struct Extended {
    /// The claim of an earlier cycle, or the one in memory.
    claim: Arc<ResourceClaim>,
    /// Requested amounts of all extended resources.
    resources: BTreeMap<String, i64>,
    containers: Arc<[ContainerRequests]>,
}

impl Extended {
    fn is_in_memory(&self) -> bool {
        self.claim.metadata.name.as_deref() == Some(IN_MEMORY_NAME)
    }

    /// The claim is complete: an earlier cycle has made it.
    fn is_from_earlier_cycle(&self) -> bool {
        self.claim.spec.as_ref().and_then(|s| s.devices.as_ref()?.requests.as_ref()).is_some()
    }
}

/// What the allocator has found for a node: one allocation for each claim without one, and last the
/// one for the extended resources.
struct NodeAllocation {
    allocations: Vec<AllocationResult>,
    extended: Option<ExtendedClaim>,
}

/// The state of the plugin for one pod and cycle.
pub(super) struct ClaimCycle {
    devices: Arc<Devices>,
    classes: Arc<Classes>,
    /// Whether the pod fits no node because of its claims.
    pub(super) verdict: Result<(), Rejection>,
    claims: Vec<CycleClaim>,
    extended: Option<Extended>,
    allocator: Option<Allocator>,
    nodes: Mutex<HashMap<String, NodeAllocation>>,
    /// Indexes of claims whose devices cannot be used on some node.
    unavailable: Mutex<BTreeSet<usize>>,
}

fn name(claim: &ResourceClaim) -> String {
    ClaimName::of(claim).to_string()
}

impl ClaimCycle {
    /// Collects the claims of a pod; `None` if it has none.
    pub(super) fn new(pod: &PodInfo, devices: &Arc<Devices>) -> Option<Self> {
        let mut cycle = Self {
            devices: Arc::clone(devices),
            classes: devices.classes(),
            verdict: Ok(()),
            claims: Vec::new(),
            extended: None,
            allocator: None,
            nodes: Mutex::default(),
            unavailable: Mutex::default(),
        };
        match pod_claims(pod, devices) {
            Ok(claims) => cycle.claims = claims.into_iter().map(CycleClaim::new).collect(),
            Err(error) => {
                cycle.verdict = Err(Rejection::unresolvable(error.to_string()));
                return Some(cycle);
            }
        }
        cycle.extended = cycle.find_extended(pod);
        if cycle.claims.is_empty() && cycle.extended.is_none() {
            return None;
        }
        cycle.verdict = cycle.check();
        let is_unallocated = |claim: &CycleClaim| allocation(&claim.claim).is_none();
        let needs_allocator = cycle.extended.is_some() || cycle.claims.iter().any(is_unallocated);
        if needs_allocator && cycle.verdict.is_ok() {
            cycle.allocator = Some(devices.allocator());
        }
        Some(cycle)
    }

    fn find_extended(&self, pod: &PodInfo) -> Option<Extended> {
        let resources = extended::served_resources(pod, &self.classes)?;
        let containers = Arc::clone(pod.served_requests.as_ref()?);
        let earlier = self.devices.find_claim(|claim| extended::is_claim_of(claim, pod));
        let claim = earlier.unwrap_or_else(|| Arc::new(extended::new_claim(pod)));
        Some(Extended { claim, resources, containers })
    }

    /// Checks the claims without allocation.
    fn check(&self) -> Result<(), Rejection> {
        let reject = |text: String| Err(Rejection::unresolvable(text));
        let extended = self.extended.iter().map(|e| &e.claim);
        let claims = self.claims.iter().map(|claim| &claim.claim);
        for claim in claims.chain(extended).filter(|claim| allocation(claim).is_none()) {
            if self.devices.is_in_flight(uid(claim)) {
                let claim = name(claim);
                return reject(format!(
                    "resource claim {claim} is in the process of being allocated"
                ));
            }
        }
        for claim in self.claims.iter().filter(|claim| allocation(&claim.claim).is_none()) {
            for request in &claim.requests.requests {
                if request.alternatives.is_empty() {
                    let (claim, request) = (name(&claim.claim), &request.name);
                    return reject(format!(
                        "resource claim {claim}, request {request}: unknown request type"
                    ));
                }
                self.check_classes(request)?;
            }
        }
        Ok(())
    }

    fn check_classes(&self, request: &Request) -> Result<(), Rejection> {
        for alternative in &request.alternatives {
            let (name, class) = (&alternative.full_name, &alternative.class);
            if class.is_empty() {
                let text = format!("request {name}: unsupported request type");
                return Err(Rejection::error(text));
            }
            if self.classes.get(class).is_none() {
                let text = format!("request {name}: device class {class} does not exist");
                return Err(Rejection::unresolvable(text));
            }
        }
        Ok(())
    }

    /// Whether the claims can be used, or allocated, on a node.
    pub(super) fn filter(&self, node: &NodeInfo) -> Result<(), Rejection> {
        let extended = match &self.extended {
            Some(extended) => self.filter_extended(extended, node)?,
            None => None,
        };
        if extended.is_none() && self.claims.is_empty() {
            return Ok(());
        }
        let now = Timestamp::now();
        let unavailable = |claim: &CycleClaim| !is_usable(&claim.claim, node, now);
        let claims = self.claims.iter().enumerate();
        let unavailable: Vec<usize> =
            claims.filter(|(_, claim)| unavailable(claim)).map(|(index, _)| index).collect();
        let allocations = match &self.allocator {
            Some(allocator) => self.allocate(allocator, node, extended.as_ref())?,
            None => Vec::new(),
        };
        if !unavailable.is_empty() {
            self.unavailable.lock().extend(unavailable);
            return Err(Rejection::unresolvable("resourceclaim not available on the node"));
        }
        if self.allocator.is_some() {
            let found = NodeAllocation { allocations, extended };
            self.nodes.lock().insert(node.name.clone(), found);
        }
        Ok(())
    }

    /// The claim for the extended resources that classes serve on the node; `None` if the node has
    /// them all.
    fn filter_extended(
        &self,
        extended: &Extended,
        node: &NodeInfo,
    ) -> Result<Option<ExtendedClaim>, Rejection> {
        if extended.is_from_earlier_cycle() {
            return Err(Rejection::unresolvable("cannot schedule extended resource claim"));
        }
        let mut served = Vec::new();
        for resource in extended.resources.keys().filter(|name| may_be_served(name)) {
            let is_mapped = self.classes.serving(resource).is_some();
            if is_mapped && node.allocatable.get(resource) == 0 {
                served.push(resource.as_str());
            } else if !node.allocatable.others.contains_key(resource) {
                return Err(Rejection::unresolvable("cannot fit resource"));
            }
        }
        // Upstream also makes a claim without requests for a pod that has other claims, and then
        // cannot bind the pod.
        if served.is_empty() {
            return Ok(None);
        }
        let (requests, mappings) = extended::requests(&extended.containers, &served, &self.classes);
        let claim = Arc::new(extended::with_requests(&extended.claim, requests));
        Ok(Some(ExtendedClaim { claim, mappings }))
    }

    fn allocate(
        &self,
        allocator: &Allocator,
        node: &NodeInfo,
        extended: Option<&ExtendedClaim>,
    ) -> Result<Vec<AllocationResult>, Rejection> {
        let unallocated = self.claims.iter().filter(|c| allocation(&c.claim).is_none());
        let mut claims: Vec<_> = unallocated.map(|c| Arc::clone(&c.requests)).collect();
        claims.extend(extended.map(|e| Arc::new(ClaimRequests::new(&e.claim))));
        let deadline = clock::now() + FILTER_TIMEOUT;
        match allocator.allocate(node, &claims, &|| clock::now() > deadline) {
            Ok(found) if found.len() == claims.len() => Ok(found),
            Ok(_) => Err(Rejection::unresolvable("cannot allocate all claims")),
            Err(AllocateError::Timeout) => Err(Rejection::error(format!(
                "node {}: timed out trying to allocate devices",
                node.name
            ))),
            Err(error @ AllocateError::InvalidPools) => {
                Err(Rejection::unresolvable(error.to_string()))
            }
            Err(error) => Err(Rejection::error(error.to_string())),
        }
    }

    /// The claim to release because the pod fits no node: a random one of those whose devices
    /// cannot be used, as there is no better heuristic.
    pub(super) fn release(&self, pod: &PodInfo) -> Option<ClaimRelease> {
        let unavailable = self.unavailable.lock();
        let only_this_pod = |claim: &&Arc<ResourceClaim>| {
            let reserved = claim.status.as_ref().and_then(|s| s.reserved_for.as_deref());
            match reserved.unwrap_or_default() {
                [] => true,
                [one] => one.uid == pod.uid,
                _ => false,
            }
        };
        let claims = unavailable.iter().filter_map(|index| self.claims.get(*index));
        let claims: Vec<_> = claims.map(|c| &c.claim).filter(only_this_pod).collect();
        let random = clock::random_u64().checked_rem(claims.len() as u64);
        let chosen = random.and_then(|at| claims.get(usize::try_from(at).ok()?));
        if let Some(claim) = chosen {
            return Some(ClaimRelease::Deallocate(Arc::clone(claim)));
        }
        let earlier = self.extended.as_ref().filter(|extended| !extended.is_in_memory());
        earlier.map(|extended| ClaimRelease::Delete(Arc::clone(&extended.claim)))
    }

    /// The points of all claims on a node.
    pub(super) fn score(&self, node: &NodeInfo) -> i64 {
        let nodes = self.nodes.lock();
        let Some(found) = nodes.get(&node.name) else { return 0 };
        let mut new = found.allocations.iter();
        let claims = self.claims.iter().map(|claim| {
            let allocation = allocation(&claim.claim).or_else(|| new.next());
            allocation.map_or(0, |allocation| points(&claim.requests.requests, allocation))
        });
        claims.sum()
    }

    /// Keeps others from the devices that were found for a node.
    pub(super) fn reserve(&self, node: &NodeInfo) -> Result<ClaimsToBind, Rejection> {
        let found = self.nodes.lock().remove(&node.name);
        let (allocations, extended) = match found {
            Some(found) => (found.allocations, found.extended),
            None => (Vec::new(), None),
        };
        let mut new = allocations.into_iter();
        let mut claims = Vec::with_capacity(self.claims.len());
        for CycleClaim { claim, .. } in &self.claims {
            let is_allocated = allocation(claim).is_some();
            let allocation = if is_allocated { None } else { new.next() };
            if !is_allocated && allocation.is_none() {
                return Err(Rejection::error("claim allocation not found for node"));
            }
            claims.push(ClaimToBind { claim: Arc::clone(claim), allocation });
        }
        let bind = ClaimsToBind { claims, extended: extended.zip(new.next()) };
        self.signal(&bind).map(|()| bind)
    }

    fn signal(&self, bind: &ClaimsToBind) -> Result<(), Rejection> {
        let user =
            bind.claims.iter().filter_map(|c| Some((&c.claim, c.allocation.as_ref()?, false)));
        let extended = bind.extended.iter().map(|(e, allocation)| (&e.claim, allocation, true));
        let mut signalled = Vec::new();
        for (claim, allocation, in_memory) in user.chain(extended) {
            if let Err(error) = self.devices.signal_allocation(claim, allocation, in_memory) {
                for uid in signalled {
                    self.devices.remove_in_flight(uid, false);
                }
                let ClaimName { namespace, name } = ClaimName::of(claim);
                let uid = uid(claim);
                return Err(Rejection::error(format!(
                    "internal error, couldn't signal allocation for claim {name}: look up assumed \
                     claim {namespace}/{name}, UID={uid}: {error}"
                )));
            }
            signalled.push(uid(claim));
        }
        Ok(())
    }
}

impl CycleClaim {
    fn new(claim: Arc<ResourceClaim>) -> Self {
        let requests = Arc::new(ClaimRequests::new(&claim));
        Self { claim, requests }
    }
}

/// Whether the devices of a claim can be used on a node. A claim without devices can.
fn is_usable(claim: &ResourceClaim, node: &NodeInfo, now: Timestamp) -> bool {
    let Some(allocation) = allocation(claim) else { return true };
    if allocation.node_selector.as_ref().is_some_and(|selector| !selects(selector, node)) {
        return false;
    }
    let mut devices = results(allocation).iter();
    let skips = devices.any(|r| r.skip_node_operations.as_ref().is_some_and(|s| !s.is_empty()));
    if skips && !node.declared_features.iter().any(|f| f == "DRAOptionalNodeOperations") {
        return false;
    }
    match is_ready(claim) {
        Ok(true) => true,
        Ok(false) => !is_timed_out(claim, now),
        Err(_) => false,
    }
}
