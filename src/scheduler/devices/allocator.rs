//! The allocator: chooses devices for all requests of a pod's claims on one node.
//!
//! It follows upstream's "incubating" allocator step by step: which of several solutions is found,
//! which error a claim gets, and even the number of steps are the same, because upstream's tables
//! of tests hold them.

mod checks;
mod device;
mod result;
mod search;
mod totals;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use api::k8s::api::resource::v1::AllocationResult;
use parking_lot::Mutex;

use super::allocated::AllocatedState;
use super::capacity::NamedCapacityError;
use super::classes::Classes;
use super::counters::{CounterSets, available};
use super::id::{DeviceId, PoolId};
use super::pools::{Pool, PoolState, gather};
use super::request::{ClaimName, ClaimRequests};
use super::selectors::{SelectorError, Selectors};
use super::slices::SliceIndex;
use crate::node_info::NodeInfo;

/// Most devices of one claim (`AllocationResultsMaxSize`).
pub(crate) const DEVICES_MAX: usize = 32;

/// Why a request cannot be served at all; the texts are upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RequestError {
    #[error("cannot handle request with derived attributes, the feature is disabled")]
    DerivedAttributes,
    #[error("missing device class name (unsupported request type?)")]
    NoClass,
    #[error("could not retrieve device class {0}: deviceclass.resource.k8s.io \"{0}\" not found")]
    UnknownClass(String),
    #[error("unsupported count mode {0}")]
    UnknownMode(String),
    #[error("asks for all devices, but resource pool {0} is currently being updated")]
    IncompletePool(PoolId),
    #[error("asks for all devices, but resource pool {0} is currently invalid")]
    InvalidPool(PoolId),
    #[error(
        "adding {devices} devices exceeds the claim limit of {DEVICES_MAX}, with {before} already \
         accounted for"
    )]
    TooManyDevices { devices: i64, before: usize },
    #[error("cannot add device {0} because a claim constraint would not be satisfied")]
    Constraint(DeviceId),
    #[error("checking capacity for device {device}: {source}")]
    Capacity { device: String, source: NamedCapacityError },
}

/// The object with a selector: its text begins messages.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SelectorOwner {
    #[error("class {0}")]
    Class(String),
    #[error("claim {0}")]
    Claim(ClaimName),
}

/// Why there is no allocation, besides that no combination of devices fits; the texts are
/// upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AllocateError {
    /// The search took too long.
    #[error("filter operation aborted: context deadline exceeded")]
    Timeout,
    /// No solution was found, and the devices of some pools could not be considered.
    #[error("invalid resource pools were encountered")]
    InvalidPools,
    #[error("claim {claim}, request {request}: {source}")]
    Request { claim: ClaimName, request: String, source: RequestError },
    #[error(
        "claim {claim}, request {request}, selector #{index}: CEL expression empty (unsupported \
         selector type?)"
    )]
    UnknownSelector { claim: ClaimName, request: String, index: usize },
    #[error("claim {claim}, constraint #{index}: empty constraint (unsupported constraint type?)")]
    UnknownConstraint { claim: ClaimName, index: usize },
    #[error("{owner}: selector #{index}{}: {source}", on_device(.device, .source))]
    Selector { owner: SelectorOwner, index: usize, device: DeviceId, source: SelectorError },
    #[error(
        "create NodeSelector for claim {claim}: unsupported ResourceSlice.NodeSelector with \
         {terms} terms"
    )]
    NodeSelector { claim: String, terms: usize },
}

/// Names the device of a runtime error; a compile error concerns all devices.
fn on_device(device: &DeviceId, source: &SelectorError) -> String {
    match source {
        SelectorError::Compile(_) => String::new(),
        SelectorError::Runtime(_) => format!(" on device {device}"),
    }
}

/// Allocates devices for the claims of one pod; shared by all nodes of a cycle.
#[derive(Debug)]
pub(crate) struct Allocator {
    slices: Arc<SliceIndex>,
    allocated: AllocatedState,
    classes: Arc<Classes>,
    selectors: Arc<Selectors>,
    /// What is available of the counters of each pool; computed when it is first needed.
    counters: Mutex<HashMap<PoolId, Arc<CounterSets>>>,
    steps: AtomicU64,
}

impl Allocator {
    /// An allocator for devices in this state.
    pub(crate) fn new(
        slices: Arc<SliceIndex>,
        allocated: AllocatedState,
        classes: Arc<Classes>,
        selectors: Arc<Selectors>,
    ) -> Self {
        let (counters, steps) = (Mutex::default(), AtomicU64::new(0));
        Self { slices, allocated, classes, selectors, counters, steps }
    }

    /// Allocates devices for all claims on a node: one result per claim, or none if no combination
    /// of devices fits. `is_expired` is asked at every step.
    ///
    /// # Errors
    ///
    /// A claim cannot be served on any node, the search took too long, or pools are invalid.
    pub(crate) fn allocate(
        &self,
        node: &NodeInfo,
        claims: &[Arc<ClaimRequests>],
        is_expired: &dyn Fn() -> bool,
    ) -> Result<Vec<AllocationResult>, AllocateError> {
        let pools = gather(&self.slices, node);
        let mut selection = checks::Selection::new(self, node, claims, &pools);
        let data = selection.check_claims()?;
        let found = search::run(selection, &data, is_expired)?;
        let Some(found) = found else {
            let is_invalid = |pool: &Pool<'_>| matches!(pool.state, PoolState::Invalid(_));
            return if pools.iter().any(is_invalid) {
                Err(AllocateError::InvalidPools)
            } else {
                Ok(Vec::new())
            };
        };
        let results = claims.iter().zip(&found);
        results.map(|(claim, found)| result::build(claim, found, &node.name)).collect()
    }

    /// Number of steps of all searches so far.
    #[cfg(test)]
    pub(crate) fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    fn count_step(&self) {
        self.steps.fetch_add(1, Ordering::Relaxed);
    }

    fn available_counters(&self, pool: &Pool<'_>) -> Arc<CounterSets> {
        let mut counters = self.counters.lock();
        let computed = counters
            .entry(pool.id.clone())
            .or_insert_with(|| Arc::new(available(pool, &self.allocated)));
        Arc::clone(computed)
    }
}

#[cfg(test)]
mod tests;
