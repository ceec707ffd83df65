//! Metrics of pods with a user namespace, as in the kubelet.

use base::metrics::Family;

/// Sandboxes of such pods whose creation was attempted.
pub(crate) static STARTED: Family = Family::counter(
    "kubelet_started_user_namespaced_pods_total",
    "[ALPHA] Cumulative number of pods with user namespaces started. This metric will only be \
     collected on Linux.",
    &[],
);
/// Starts of such pods that failed, at the sandbox or at a container.
pub(crate) static ERRORS: Family = Family::counter(
    "kubelet_started_user_namespaced_pods_errors_total",
    "[ALPHA] Cumulative number of errors when starting pods with user namespaces. This metric \
     will only be collected on Linux.",
    &[],
);

/// Renders the families in the text format.
pub(crate) fn render() -> String {
    let mut out = String::new();
    for family in [&ERRORS, &STARTED] {
        family.render(&mut out);
    }
    out
}
