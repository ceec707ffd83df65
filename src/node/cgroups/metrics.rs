//! Metrics of the memory that groups protect.

use base::metrics::Family;

use crate::pods::resources::ClassRequests;

/// Protected memory of guaranteed pods.
static MEMORY_MIN: Family = Family::gauge(
    "kubelet_memory_qos_node_memory_min_bytes",
    "[ALPHA] Total cgroup v2 memory.min in bytes for Guaranteed pods. This memory is hard-reserved \
     and never reclaimed by the kernel.",
    &[],
);
/// Protected memory of burstable pods.
static MEMORY_LOW: Family = Family::gauge(
    "kubelet_memory_qos_node_memory_low_bytes",
    "[ALPHA] Total cgroup v2 memory.low in bytes for Burstable pods. This memory is soft-reserved \
     and may be reclaimed under extreme pressure.",
    &[],
);

/// Records what is protected.
#[expect(clippy::cast_precision_loss, reason = "bytes up to 2^53 are exact")]
pub(super) fn record(protected: ClassRequests) {
    MEMORY_MIN.set(&[], protected.guaranteed as f64);
    MEMORY_LOW.set(&[], protected.burstable as f64);
}

/// Renders the metrics in the text format.
pub(crate) fn render() -> String {
    let mut out = String::new();
    MEMORY_MIN.render(&mut out);
    MEMORY_LOW.render(&mut out);
    out
}
