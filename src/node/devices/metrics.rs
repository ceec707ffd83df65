//! Metrics of device plugins and of the pod resources API, as in the kubelet.

use base::metrics::{DEFAULT_BOUNDS, Family};

/// Registrations of plugins, refused ones included.
pub(super) static REGISTRATIONS: Family = Family::counter(
    "kubelet_device_plugin_registration_total",
    "[ALPHA] Cumulative number of device plugin registrations. Broken down by resource name.",
    &["resource_name"],
);
/// Duration of the call `Allocate`, in seconds.
pub(super) static ALLOCATION: Family = Family::histogram(
    "kubelet_device_plugin_alloc_duration_seconds",
    "[ALPHA] Duration in seconds to serve a device plugin Allocation request. Broken down by \
     resource name.",
    &["resource_name"],
    &DEFAULT_BOUNDS,
);

const VERSION: &[&str] = &["server_api_version"];

/// Requests to the pod resources API.
pub(super) static REQUESTS: Family = Family::counter(
    "kubelet_pod_resources_endpoint_requests_total",
    "[ALPHA] Cumulative number of requests to the PodResource endpoint. Broken down by server api \
     version.",
    VERSION,
);
/// Requests to `List`.
pub(super) static LISTS: Family = Family::counter(
    "kubelet_pod_resources_endpoint_requests_list",
    "[ALPHA] Number of requests to the PodResource List endpoint. Broken down by server api \
     version.",
    VERSION,
);
/// Requests to `GetAllocatableResources`.
pub(super) static ALLOCATABLE: Family = Family::counter(
    "kubelet_pod_resources_endpoint_requests_get_allocatable",
    "[ALPHA] Number of requests to the PodResource GetAllocatableResources endpoint. Broken down \
     by server api version.",
    VERSION,
);
/// Requests to `Get`.
pub(super) static GETS: Family = Family::counter(
    "kubelet_pod_resources_endpoint_requests_get",
    "[ALPHA] Number of requests to the PodResource Get endpoint. Broken down by server api \
     version.",
    VERSION,
);
/// Requests to `Get` for pods that do not exist.
pub(super) static GET_ERRORS: Family = Family::counter(
    "kubelet_pod_resources_endpoint_errors_get",
    "[ALPHA] Number of requests to the PodResource Get endpoint which returned error. Broken down \
     by server api version.",
    VERSION,
);

/// Renders all families in the text format. Upstream never increments the errors of `List` and of
/// `GetAllocatableResources`, so that it does not export them.
pub(crate) fn render() -> String {
    let mut out = String::new();
    for family in [&ALLOCATION, &REGISTRATIONS, &GET_ERRORS, &GETS, &ALLOCATABLE, &LISTS, &REQUESTS]
    {
        family.render(&mut out);
    }
    out
}
