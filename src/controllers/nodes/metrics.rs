//! The metrics of taint eviction and of pod CIDRs, with upstream's names, labels and texts.

use std::time::Duration;

use base::metrics::{Family, exponential};

use crate::framework::collectors::DELETION_BOUNDS;

const TRIES_BOUNDS: [f64; 5] = exponential(1.0, 5.0);

const CIDR_LABELS: &[&str] = &["clusterCIDR"];

static POD_DELETION_DURATION: Family = Family::histogram(
    "taint_eviction_controller_pod_deletion_duration_seconds",
    "[ALPHA] Latency, in seconds, between the time when a taint effect has been activated for the \
     Pod and its deletion via TaintEvictionController.",
    &[],
    &DELETION_BOUNDS,
);

static POD_DELETIONS: Family = Family::counter(
    "taint_eviction_controller_pod_deletions_total",
    "[ALPHA] Total number of Pods deleted by TaintEvictionController since its start.",
    &[],
);

// The text is upstream's, although it is that of another metric.
static TRIES: Family = Family::histogram(
    "node_ipam_controller_cidrset_allocation_tries_per_request",
    "[ALPHA] Number of endpoints added on each Service sync",
    CIDR_LABELS,
    &TRIES_BOUNDS,
);

static ALLOCATIONS: Family = Family::counter(
    "node_ipam_controller_cidrset_cidrs_allocations_total",
    "[ALPHA] Counter measuring total number of CIDR allocations.",
    CIDR_LABELS,
);

static RELEASES: Family = Family::counter(
    "node_ipam_controller_cidrset_cidrs_releases_total",
    "[ALPHA] Counter measuring total number of CIDR releases.",
    CIDR_LABELS,
);

static USAGE: Family = Family::gauge(
    "node_ipam_controller_cidrset_usage_cidrs",
    "[ALPHA] Gauge measuring percentage of allocated CIDRs.",
    CIDR_LABELS,
);

static MAX_CIDRS: Family = Family::gauge(
    "node_ipam_controller_cirdset_max_cidrs",
    "[ALPHA] Maximum number of CIDRs that can be allocated.",
    CIDR_LABELS,
);

/// Upstream's node-ipam-controller is the only one of kube-controller-manager in this family.
static RUNNING: Family = Family::gauge(
    "running_managed_controllers",
    "[BETA] Indicates where instances of a controller are currently running",
    &["manager", "name"],
);

/// The families, in the order in which they are rendered.
pub(crate) static ALL: [&Family; 8] = [
    &POD_DELETION_DURATION,
    &POD_DELETIONS,
    &TRIES,
    &ALLOCATIONS,
    &RELEASES,
    &USAGE,
    &MAX_CIDRS,
    &RUNNING,
];

/// Records the deletion of a pod and how long after its eviction time it happened.
pub(super) fn pod_deleted(latency: Duration) {
    POD_DELETIONS.inc(&[]);
    POD_DELETION_DURATION.took(&[], latency);
}

/// Records that pod CIDRs are assigned to nodes.
pub(super) fn ipam_started() {
    RUNNING.set(&["kube-controller-manager", "nodeipam"], 1.0);
}

/// The pod CIDRs of nodes in a cluster CIDR.
#[derive(Debug)]
pub(super) struct CidrUse {
    /// The cluster CIDR.
    label: String,
    /// How many pod CIDRs it holds.
    max: u64,
    allocated: u64,
}

impl CidrUse {
    /// None is allocated.
    pub(super) fn new(cluster: String, max: u64) -> Self {
        MAX_CIDRS.set(&[&cluster], max as f64);
        let new = Self { label: cluster, max, allocated: 0 };
        new.set_usage();
        new
    }

    fn set_usage(&self) {
        USAGE.set(&[&self.label], self.allocated as f64 / self.max.max(1) as f64);
    }

    /// Records pod CIDRs that are in use from now on.
    pub(super) fn allocate(&mut self, number: u64) {
        if number == 0 {
            return;
        }
        self.allocated = self.allocated.saturating_add(number).min(self.max);
        ALLOCATIONS.add(&[&self.label], number as f64);
        self.set_usage();
    }

    /// Records pod CIDRs that are not in use any more.
    pub(super) fn release(&mut self, number: u64) {
        if number == 0 {
            return;
        }
        self.allocated = self.allocated.saturating_sub(number);
        RELEASES.add(&[&self.label], number as f64);
        self.set_usage();
    }

    /// Records that a search passed so many pod CIDRs that were in use.
    pub(super) fn passed(&self, tries: u64) {
        TRIES.observe(&[&self.label], tries as f64);
    }
}
