//! The rejection of a pod by the admission of the node.

use base::metrics::Family;

/// Reason of a pod that fails for a cause outside of its specification
/// (`lifecycle.UnexpectedAdmissionError`).
pub(crate) const UNEXPECTED_ADMISSION_ERROR: &str = "UnexpectedAdmissionError";

/// What precedes the reason in the message of the status, and not in that of the event
/// (`rejectPod`).
pub(crate) const STATUS_PREFIX: &str = "Pod was rejected: ";

/// The reasons that are labels of the metric; others are counted together
/// (`admissionRejectionReasons` of the kubelet).
const COUNTED: [&str; 21] = [
    "AppArmor",
    "PodOSSelectorNodeLabelDoesNotMatch",
    "PodOSNotSupported",
    "InvalidNodeInfo",
    "InitContainerRestartPolicyForbidden",
    "SupplementalGroupsPolicyNotSupported",
    UNEXPECTED_ADMISSION_ERROR,
    "UnknownReason",
    "UnexpectedPredicateFailureType",
    "OutOfcpu",
    "OutOfmemory",
    "OutOfephemeral-storage",
    "OutOfpods",
    "PodLevelResourcesNotSupported",
    "PodFeatureUnsupported",
    "node(s) had taints that the pod didn't tolerate",
    "Evicted",
    "SysctlForbidden",
    "TopologyAffinityError",
    "NodeShutdown",
    "VolumeAttachmentLimitExceeded",
];

static REJECTIONS: Family = Family::counter(
    "kubelet_admission_rejections_total",
    "[ALPHA] Cumulative number pod admission rejections by the Kubelet.",
    &["reason"],
);

/// The label of the metric for a reason.
fn label(reason: &str) -> &str {
    match reason {
        _ if COUNTED.contains(&reason) => reason,
        _ if reason.starts_with("OutOf") => "OutOfExtendedResources",
        _ => "Other",
    }
}

/// Counts a rejection.
pub(crate) fn count(reason: &str) {
    REJECTIONS.inc(&[label(reason)]);
}

/// Renders the number of rejections in the Prometheus text format.
pub(crate) fn render_metrics() -> String {
    let mut out = String::new();
    REJECTIONS.render(&mut out);
    out
}

/// Why the node does not run a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rejection {
    /// Reason of the pod's status, such as `OutOfcpu`.
    pub(crate) reason: String,
    /// Message of the event, and of the pod's status after [`STATUS_PREFIX`].
    pub(crate) message: String,
}

impl Rejection {
    pub(crate) fn new(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self { reason: reason.into(), message: message.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_without_a_bound_are_counted_together() {
        assert_eq!(label("OutOfcpu"), "OutOfcpu");
        assert_eq!(label("OutOfexample.com/foo"), "OutOfExtendedResources");
        assert_eq!(label("TopologyAffinityError"), "TopologyAffinityError");
        assert_eq!(label("SMTAlignmentError"), "Other");
        count("SMTAlignmentError");
        assert!(render_metrics().contains("kubelet_admission_rejections_total{reason=\"Other\"}"));
    }
}
