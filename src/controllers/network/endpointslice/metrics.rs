//! The metrics of the controller, with upstream's names, labels and texts.

use api::k8s::api::core::v1::Service;
use base::metrics::{DEFAULT_BOUNDS, Family};

use super::{Plan, topology};

/// Writes of slices.
static CHANGES: Family = Family::counter(
    "endpoint_slice_controller_changes",
    "[ALPHA] Number of EndpointSlice changes",
    &["operation"],
);

static CHANGED: Family = Family::histogram(
    "endpoint_slice_controller_endpointslices_changed_per_sync",
    "[ALPHA] Number of EndpointSlices changed on each Service sync",
    &["topology", "traffic_distribution"],
    &DEFAULT_BOUNDS,
);

static SYNCS: Family = Family::counter(
    "endpoint_slice_controller_syncs",
    "[ALPHA] Number of EndpointSlice syncs",
    &["result"],
);

/// The families of this controller, in the order in which they are rendered.
pub(crate) static ALL: [&Family; 3] = [&CHANGES, &CHANGED, &SYNCS];

/// Records the planned writes of a Service.
pub(super) fn planned(service: &Service, plan: &Plan) {
    let topology = if topology::is_auto(service) { "Auto" } else { "Disabled" };
    let distribution = service.spec.as_ref().and_then(|s| s.traffic_distribution.as_deref());
    let writes = [("create", &plan.create), ("update", &plan.update), ("delete", &plan.delete)];
    let mut changed = 0;
    for (operation, slices) in writes.into_iter().filter(|(_, slices)| !slices.is_empty()) {
        CHANGES.add(&[operation], slices.len() as f64);
        changed += slices.len();
    }
    CHANGED.observe(&[topology, distribution.unwrap_or_default()], changed as f64);
}

/// Records the end of a sync.
pub(super) fn synced<E>(outcome: Result<(), E>) -> Result<(), E> {
    SYNCS.inc(&[if outcome.is_ok() { "success" } else { "error" }]);
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::k8s::api::discovery::v1::EndpointSlice;
    use api::k8s::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    #[test]
    fn writes_are_counted_by_operation() {
        let mode = ("service.kubernetes.io/topology-mode".to_owned(), "Auto".to_owned());
        let metadata = ObjectMeta { annotations: Some([mode].into()), ..ObjectMeta::default() };
        let service = Service { metadata, ..Service::default() };
        let slice = EndpointSlice::default;
        let plan =
            Plan { create: vec![slice(), slice()], update: vec![slice()], ..Plan::default() };
        planned(&service, &plan);
        assert_eq!([CHANGES.read(&["create"]), CHANGES.read(&["update"])], [2.0, 1.0]);
        assert_eq!(CHANGED.read(&["Auto", ""]), 1.0);
        let mut page = String::new();
        CHANGES.render(&mut page);
        assert!(!page.contains("delete"), "{page}");
    }
}
