//! The metrics of the controller, with upstream's names, labels and texts.

use std::collections::HashMap;
use std::time::Duration;

use api::k8s::api::discovery::v1::{Endpoint, EndpointSlice};
use base::metrics::Family;

use super::{Controller, ENDPOINTS_MAX, MANAGED_BY, SkippedAddresses};
use crate::framework::collectors::{ENDPOINT_BOUNDS, SYNC_BOUNDS};
use crate::network::slice_counts;

static SKIPPED: Family = Family::histogram(
    "endpoint_slice_mirroring_controller_addresses_skipped_per_sync",
    "[ALPHA] Number of addresses skipped on each Endpoints sync due to being invalid or exceeding \
     MaxEndpointsPerSubset",
    &[],
    &ENDPOINT_BOUNDS,
);

static CHANGES: Family = Family::counter(
    "endpoint_slice_mirroring_controller_changes",
    "[ALPHA] Number of EndpointSlice changes",
    &["operation"],
);

static DESIRED_SLICES: Family = Family::gauge(
    "endpoint_slice_mirroring_controller_desired_endpoint_slices",
    "[ALPHA] Number of EndpointSlices that would exist with perfect endpoint allocation",
    &[],
);

static ADDED: Family = Family::histogram(
    "endpoint_slice_mirroring_controller_endpoints_added_per_sync",
    "[ALPHA] Number of endpoints added on each Endpoints sync",
    &[],
    &ENDPOINT_BOUNDS,
);

static ENDPOINTS: Family = Family::gauge(
    "endpoint_slice_mirroring_controller_endpoints_desired",
    "[ALPHA] Number of endpoints desired",
    &[],
);

static REMOVED: Family = Family::histogram(
    "endpoint_slice_mirroring_controller_endpoints_removed_per_sync",
    "[ALPHA] Number of endpoints removed on each Endpoints sync",
    &[],
    &ENDPOINT_BOUNDS,
);

static SYNC_DURATION: Family = Family::histogram(
    "endpoint_slice_mirroring_controller_endpoints_sync_duration",
    "[ALPHA] Duration of syncEndpoints() in seconds",
    &[],
    &SYNC_BOUNDS,
);

static UPDATED: Family = Family::histogram(
    "endpoint_slice_mirroring_controller_endpoints_updated_per_sync",
    "[ALPHA] Number of endpoints updated on each Endpoints sync",
    &[],
    &ENDPOINT_BOUNDS,
);

static SLICES: Family = Family::gauge(
    "endpoint_slice_mirroring_controller_num_endpoint_slices",
    "[ALPHA] Number of EndpointSlices",
    &[],
);

/// The families of this controller, in the order in which they are rendered.
pub(crate) static ALL: [&Family; 9] = [
    &SKIPPED,
    &CHANGES,
    &DESIRED_SLICES,
    &ADDED,
    &ENDPOINTS,
    &REMOVED,
    &SYNC_DURATION,
    &UPDATED,
    &SLICES,
];

/// Numbers of endpoints that differ between existing and desired slices.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct EndpointChanges {
    pub(super) added: usize,
    pub(super) updated: usize,
    pub(super) removed: usize,
}

/// What identifies an endpoint (`hashEndpoint`).
fn identity(endpoint: &Endpoint) -> impl Eq + std::hash::Hash + '_ {
    let target = endpoint.target_ref.as_ref();
    let name = target.map(|target| (&target.namespace, &target.name));
    (&endpoint.addresses, &endpoint.hostname, name)
}

impl EndpointChanges {
    /// Adds the differences of a slice, which may not exist yet, from the desired one
    /// (`totalChanges`).
    pub(super) fn add(&mut self, existing: Option<&EndpointSlice>, desired: &EndpointSlice) {
        let desired = desired.endpoints.iter().flatten();
        let mut left: HashMap<_, &Endpoint> = desired.map(|e| (identity(e), e)).collect();
        for endpoint in existing.iter().filter_map(|slice| slice.endpoints.as_ref()).flatten() {
            match left.remove(&identity(endpoint)) {
                Some(same) if same == endpoint => {}
                Some(_) => self.updated += 1,
                None => self.removed += 1,
            }
        }
        self.added += left.len();
    }
}

/// Records the planned changes of Endpoints.
pub(super) fn planned(changes: EndpointChanges, skipped: &SkippedAddresses) {
    SKIPPED.observe(&[], (skipped.invalid + skipped.too_many) as f64);
    ADDED.observe(&[], changes.added as f64);
    UPDATED.observe(&[], changes.updated as f64);
    REMOVED.observe(&[], changes.removed as f64);
}

/// Records a write: `create`, `update` or `delete`.
pub(super) fn written(operation: &str) {
    CHANGES.inc(&[operation]);
}

/// Records how long a sync took.
pub(super) fn synced(took: Duration) {
    SYNC_DURATION.took(&[], took);
}

impl Controller {
    /// Counts the slices of this controller.
    pub(super) fn count(&self) {
        let counts = slice_counts::count(&self.slices, MANAGED_BY.1, ENDPOINTS_MAX);
        ENDPOINTS.set(&[], counts.endpoints as f64);
        SLICES.set(&[], counts.slices as f64);
        DESIRED_SLICES.set(&[], counts.desired as f64);
    }
}
