//! Metrics of evictions.

use base::metrics::{DEFAULT_BOUNDS, Family};

/// Pods that were evicted, by signal.
pub(super) static EVICTIONS: Family = Family::counter(
    "kubelet_evictions",
    "[ALPHA] Cumulative number of pod evictions by eviction signal",
    &["eviction_signal"],
);

/// How old the measurements were that led to evictions.
pub(super) static STATS_AGE: Family = Family::histogram(
    "kubelet_eviction_stats_age_seconds",
    "[ALPHA] Time between when stats are collected, and when pod is evicted based on those stats \
     by eviction signal",
    &["eviction_signal"],
    &DEFAULT_BOUNDS,
);

/// Renders the metrics in the text format.
pub(crate) fn render() -> String {
    let mut out = String::new();
    EVICTIONS.render(&mut out);
    STATS_AGE.render(&mut out);
    out
}
