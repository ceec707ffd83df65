//! The metrics of the controller, with upstream's names, labels and texts.

use api::k8s::api::core::v1::Service;
use base::metrics::{DEFAULT_BOUNDS, Family};
use client::informer::decode;

use super::{Controller, ENDPOINTS_MAX, MANAGED_BY, Plan, topology};
use crate::framework::collectors::ENDPOINT_BOUNDS;
use crate::network::slice_counts;

/// Writes of slices.
static CHANGES: Family = Family::counter(
    "endpoint_slice_controller_changes",
    "[ALPHA] Number of EndpointSlice changes",
    &["operation"],
);

static DESIRED_SLICES: Family = Family::gauge(
    "endpoint_slice_controller_desired_endpoint_slices",
    "[BETA] Number of EndpointSlices that would exist with perfect endpoint allocation",
    &[],
);

static ADDED: Family = Family::histogram(
    "endpoint_slice_controller_endpoints_added_per_sync",
    "[BETA] Number of endpoints added on each Service sync",
    &[],
    &ENDPOINT_BOUNDS,
);

static ENDPOINTS: Family = Family::gauge(
    "endpoint_slice_controller_endpoints_desired",
    "[BETA] Number of endpoints desired",
    &[],
);

static REMOVED: Family = Family::histogram(
    "endpoint_slice_controller_endpoints_removed_per_sync",
    "[BETA] Number of endpoints removed on each Service sync",
    &[],
    &ENDPOINT_BOUNDS,
);

static CHANGED: Family = Family::histogram(
    "endpoint_slice_controller_endpointslices_changed_per_sync",
    "[ALPHA] Number of EndpointSlices changed on each Service sync",
    &["topology", "traffic_distribution"],
    &DEFAULT_BOUNDS,
);

static SLICES: Family = Family::gauge(
    "endpoint_slice_controller_num_endpoint_slices",
    "[BETA] Number of EndpointSlices",
    &[],
);

static DISTRIBUTIONS: Family = Family::gauge(
    "endpoint_slice_controller_services_count_by_traffic_distribution",
    "[BETA] Number of Services using some specific trafficDistribution",
    &["traffic_distribution"],
);

static SYNCS: Family = Family::counter(
    "endpoint_slice_controller_syncs",
    "[ALPHA] Number of EndpointSlice syncs",
    &["result"],
);

/// The families of this controller, in the order in which they are rendered.
pub(crate) static ALL: [&Family; 9] = [
    &CHANGES,
    &DESIRED_SLICES,
    &ADDED,
    &ENDPOINTS,
    &REMOVED,
    &CHANGED,
    &SLICES,
    &DISTRIBUTIONS,
    &SYNCS,
];

/// The `trafficDistribution` of a Service that takes effect (`canUseTrafficDistribution`).
fn distribution(service: &Service) -> Option<&str> {
    let distribution = service.spec.as_ref()?.traffic_distribution.as_deref()?;
    let is_known = matches!(distribution, "PreferClose" | "PreferSameZone" | "PreferSameNode");
    (is_known && !topology::is_auto(service)).then_some(distribution)
}

/// Records the planned endpoints of a Service.
pub(super) fn planned(plan: &Plan) {
    ADDED.observe(&[], plan.added as f64);
    REMOVED.observe(&[], plan.removed as f64);
}

/// Records a write: `create`, `update` or `delete`.
pub(super) fn written(operation: &str) {
    CHANGES.inc(&[operation]);
}

/// The hints that take effect: the labels of changed slices.
fn hints(service: &Service) -> [&str; 2] {
    let topology = if topology::is_auto(service) { "Auto" } else { "Disabled" };
    [topology, distribution(service).unwrap_or_default()]
}

/// Records that all writes of a Service succeeded.
pub(super) fn applied(service: &Service, changed: usize) {
    CHANGED.observe(&hints(service), changed as f64);
}

/// Records the end of a sync.
pub(super) fn synced<T, E>(outcome: &Result<T, E>) {
    SYNCS.inc(&[if outcome.is_ok() { "success" } else { "error" }]);
}

impl Controller {
    /// Counts the slices of this controller, and its Services by their `trafficDistribution`.
    pub(super) fn count(&self) {
        let counts = slice_counts::count(&self.slices, MANAGED_BY.1, ENDPOINTS_MAX);
        ENDPOINTS.set(&[], counts.endpoints as f64);
        SLICES.set(&[], counts.slices as f64);
        DESIRED_SLICES.set(&[], counts.desired as f64);
        let counted = DISTRIBUTIONS.empty();
        for service in self.services.cache().list("") {
            let Some(service) = decode::<Service>(&service) else { continue };
            if let Some(distribution) =
                distribution(&service).filter(|_| super::selector(&service).is_some())
            {
                counted.inc(&[distribution]);
            }
        }
        DISTRIBUTIONS.replace(counted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn service(mode: &str, distribution: Value) -> Service {
        serde_json::from_value(json!({
            "metadata": {"annotations": {"service.kubernetes.io/topology-mode": mode}},
            "spec": {"trafficDistribution": distribution},
        }))
        .unwrap()
    }

    #[test]
    fn changed_slices_are_observed_by_the_hints_that_take_effect() {
        for (mode, named, labels) in [
            ("Auto", json!("PreferSameNode"), ["Auto", ""]),
            ("Disabled", json!("PreferSameNode"), ["Disabled", "PreferSameNode"]),
            ("Disabled", json!("Unknown"), ["Disabled", ""]),
        ] {
            let service = service(mode, named);
            assert_eq!(hints(&service), labels);
            let before = CHANGED.read(&labels);
            applied(&service, 3);
            // Tests of the whole controller may observe the same series at the same time.
            assert!(CHANGED.read(&labels) > before, "{labels:?}");
        }
    }
}
