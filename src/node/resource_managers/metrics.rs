//! Metrics of the CPU, memory and topology managers, as in the kubelet.

use base::metrics::{Family, exponential};

/// CPU allocations.
pub(super) static CPU_REQUESTS: Family = Family::counter(
    "kubelet_cpu_manager_pinning_requests_total",
    "[ALPHA] The number of cpu core allocations which required pinning.",
    &[],
);
/// CPU allocations that failed.
pub(super) static CPU_ERRORS: Family = Family::counter(
    "kubelet_cpu_manager_pinning_errors_total",
    "[ALPHA] The number of cpu core allocations which required pinning failed.",
    &[],
);
/// CPUs that no container has exclusively, in thousandths.
pub(super) static SHARED_POOL: Family = Family::gauge(
    "kubelet_cpu_manager_shared_pool_size_millicores",
    "[ALPHA] The size of the shared CPU pool for non-guaranteed QoS pods, in millicores.",
    &[],
);
/// CPUs that containers have exclusively.
pub(super) static EXCLUSIVE_CPUS: Family = Family::gauge(
    "kubelet_cpu_manager_exclusive_cpu_allocation_count",
    "[ALPHA] The total number of CPUs exclusively allocated to containers running on this node",
    &[],
);
/// The same by NUMA node.
pub(super) static CPUS_PER_NODE: Family = Family::gauge(
    "kubelet_cpu_manager_allocation_per_numa",
    "[ALPHA] Number of CPUs allocated per NUMA node",
    &["numa_node"],
);

const ALIGNMENT: &[&str] = &["boundary", "scope"];

/// Allocations whose resources are aligned.
pub(super) static ALIGNED: Family = Family::counter(
    "kubelet_container_aligned_compute_resources_count",
    "[ALPHA] Cumulative number of aligned compute resources allocated to containers by alignment \
     type.",
    ALIGNMENT,
);
/// Allocations that failed for want of aligned resources.
pub(super) static NOT_ALIGNED: Family = Family::counter(
    "kubelet_container_aligned_compute_resources_failure_count",
    "[ALPHA] Cumulative number of failures to allocate aligned compute resources to containers by \
     alignment type.",
    ALIGNMENT,
);

/// Label values of [`ALIGNED`] and [`NOT_ALIGNED`].
pub(super) const CORES_OF_CONTAINER: &[&str] = &["physical_cpu", "container"];
/// See [`CORES_OF_CONTAINER`].
pub(super) const CACHES_OF_CONTAINER: &[&str] = &["uncore_cache", "container"];
/// See [`CORES_OF_CONTAINER`].
pub(super) const NODE_OF_CONTAINER: &[&str] = &["numa_node", "container"];
/// See [`CORES_OF_CONTAINER`].
pub(super) const NODE_OF_POD: &[&str] = &["numa_node", "pod"];

/// Memory allocations.
pub(super) static MEMORY_REQUESTS: Family = Family::counter(
    "kubelet_memory_manager_pinning_requests_total",
    "[ALPHA] The number of memory pages allocations which required pinning.",
    &[],
);
/// Memory allocations that failed.
pub(super) static MEMORY_ERRORS: Family = Family::counter(
    "kubelet_memory_manager_pinning_errors_total",
    "[ALPHA] The number of memory pages allocations which required pinning that failed.",
    &[],
);
/// Admissions of pods.
pub(super) static ADMISSIONS: Family = Family::counter(
    "kubelet_topology_manager_admission_requests_total",
    "[ALPHA] The number of admission requests where resources have to be aligned.",
    &[],
);
/// Rejected pods.
pub(super) static ADMISSION_ERRORS: Family = Family::counter(
    "kubelet_topology_manager_admission_errors_total",
    "[ALPHA] The number of admission request failures where resources could not be aligned.",
    &[],
);
/// Duration of admissions in milliseconds.
pub(super) static ADMISSION_DURATION: Family = Family::histogram(
    "kubelet_topology_manager_admission_duration_ms",
    "[ALPHA] Duration in milliseconds to serve a pod admission request.",
    &[],
    &exponential::<15>(0.05, 2.0),
);

/// Resizes that the policies do not allow.
pub(super) static INFEASIBLE_RESIZES: Family = Family::counter(
    "kubelet_pod_infeasible_resizes_total",
    "[ALPHA] Number of infeasible resizes for pods.",
    &["reason_detail"],
);

/// Renders all families in the text format.
pub(crate) fn render() -> String {
    let mut out = String::new();
    for family in [
        &ALIGNED,
        &NOT_ALIGNED,
        &CPUS_PER_NODE,
        &EXCLUSIVE_CPUS,
        &CPU_ERRORS,
        &CPU_REQUESTS,
        &SHARED_POOL,
        &MEMORY_ERRORS,
        &MEMORY_REQUESTS,
        &INFEASIBLE_RESIZES,
        &ADMISSION_DURATION,
        &ADMISSION_ERRORS,
        &ADMISSIONS,
    ] {
        family.render(&mut out);
    }
    out
}
