//! The metrics of both controllers, with upstream's names, labels and texts.

use std::time::Duration;

use base::metrics::Family;

use crate::framework::collectors::DELETION_BOUNDS;

/// Requests that create a claim.
pub(super) static CLAIM_CREATES: Family = Family::counter(
    "dynamic_resource_allocation_resourceclaim_creates_total",
    "[ALPHA] Number of ResourceClaims creation requests, categorized by creation status, admin \
     access, and owning API group and kind (either Pod or scheduling.k8s.io/PodGroup)",
    &["admin_access", "owner_api_group", "owner_api_kind", "status"],
);

/// The claims that exist.
pub(super) static CLAIMS: Family = Family::gauge(
    "dynamic_resource_allocation_resource_claims",
    "[ALPHA] Number of ResourceClaims, categorized by allocation status, admin access, and \
     source. Source can be 'resource_claim_template' (created from a template), \
     'extended_resource' (extended resources), or empty (manually created by a user).",
    &["admin_access", "allocated", "source"],
);

/// Pods that were deleted because of a taint.
static POD_DELETIONS: Family = Family::counter(
    "device_taint_eviction_controller_pod_deletions_total",
    "[ALPHA] Total number of Pods deleted by DeviceTaintEvictionController since its start.",
    &[],
);

/// The time from the effect of a taint to the deletion of a pod.
static POD_DELETION_DURATION: Family = Family::histogram(
    "device_taint_eviction_controller_pod_deletion_duration_seconds",
    "[ALPHA] Latency, in seconds, between the time when a device taint effect has been activated \
     and a Pod's deletion via DeviceTaintEvictionController.",
    &[],
    &DELETION_BOUNDS,
);

/// The families of the controllers, in the order in which they are rendered.
pub(crate) static ALL: [&Family; 4] =
    [&CLAIM_CREATES, &CLAIMS, &POD_DELETIONS, &POD_DELETION_DURATION];

/// Records the deletion of a pod and how long after its eviction time it happened.
pub(super) fn pod_deleted(latency: Duration) {
    POD_DELETIONS.inc(&[]);
    POD_DELETION_DURATION.took(&[], latency);
}
