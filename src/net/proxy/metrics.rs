//! The metrics of the service proxy under kube-proxy's names (`pkg/proxy/metrics`).

use std::time::Duration;

use base::metrics::{Family as Metric, exponential};

use super::changes::Dirty;
use settings::addr::Family;

static SECONDS: [f64; 15] = exponential(0.001, 2.0);
static PROGRAMMING_SECONDS: [f64; 80] = programming_seconds();

const FAMILY: &[&str] = &["ip_family"];

/// 0.25, 0.5, then whole seconds to 59, steps of 5 s to 115 and of 30 s to 300.
const fn programming_seconds() -> [f64; 80] {
    let mut bounds = [0.25; 80];
    let mut at = 1;
    while at < 80 {
        bounds[at] = match at {
            1 => 0.5,
            2..61 => (at - 1) as f64,
            61..73 => 60.0 + 5.0 * (at - 61) as f64,
            _ => 120.0 + 30.0 * (at - 73) as f64,
        };
        at += 1;
    }
    bounds
}

static SYNC: Metric = Metric::histogram(
    "kubeproxy_sync_proxy_rules_duration_seconds",
    "[ALPHA] SyncProxyRules latency in seconds",
    FAMILY,
    &SECONDS,
);
static FULL_SYNC: Metric = Metric::histogram(
    "kubeproxy_sync_full_proxy_rules_duration_seconds",
    "[ALPHA] SyncProxyRules latency in seconds for full resyncs",
    FAMILY,
    &SECONDS,
);
static PARTIAL_SYNC: Metric = Metric::histogram(
    "kubeproxy_sync_partial_proxy_rules_duration_seconds",
    "[ALPHA] SyncProxyRules latency in seconds for partial resyncs",
    FAMILY,
    &SECONDS,
);
static SYNCED_AT: Metric = Metric::gauge(
    "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
    "[ALPHA] The last time proxy rules were successfully synced",
    FAMILY,
);
static QUEUED_AT: Metric = Metric::gauge(
    "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
    "[ALPHA] The last time a sync of proxy rules was queued",
    FAMILY,
);
pub(super) static PROGRAMMING: Metric = Metric::histogram(
    "kubeproxy_network_programming_duration_seconds",
    "[ALPHA] In Cluster Network Programming Latency in seconds",
    FAMILY,
    &PROGRAMMING_SECONDS,
);
static ENDPOINT_CHANGES_PENDING: Metric = Metric::gauge(
    "kubeproxy_sync_proxy_rules_endpoint_changes_pending",
    "[ALPHA] Pending proxy rules Endpoint changes",
    &[],
);
pub(super) static ENDPOINT_CHANGES: Metric = Metric::counter(
    "kubeproxy_sync_proxy_rules_endpoint_changes_total",
    "[ALPHA] Cumulative proxy rules Endpoint changes",
    &[],
);
static SERVICE_CHANGES_PENDING: Metric = Metric::gauge(
    "kubeproxy_sync_proxy_rules_service_changes_pending",
    "[ALPHA] Pending proxy rules Service changes",
    &[],
);
pub(super) static SERVICE_CHANGES: Metric = Metric::counter(
    "kubeproxy_sync_proxy_rules_service_changes_total",
    "[ALPHA] Cumulative proxy rules Service changes",
    &[],
);
static SYNC_FAILURES: Metric = Metric::counter(
    "kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
    "[ALPHA] Cumulative proxy nftables sync failures",
    FAMILY,
);
pub(super) static HEALTHZ: Metric = Metric::counter(
    "kubeproxy_proxy_healthz_total",
    "[ALPHA] Cumulative proxy healthz HTTP status",
    &["code"],
);
pub(super) static LIVEZ: Metric = Metric::counter(
    "kubeproxy_proxy_livez_total",
    "[ALPHA] Cumulative proxy livez HTTP status",
    &["code"],
);
static NO_LOCAL: Metric = Metric::gauge(
    "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
    "[ALPHA] Number of services with a Local traffic policy and no endpoints",
    &["ip_family", "traffic_policy"],
);
static CONNTRACK: Metric = Metric::histogram(
    "kubeproxy_conntrack_reconciler_sync_duration_seconds",
    "[ALPHA] ReconcileConntrackFlowsLatency latency in seconds",
    FAMILY,
    &SECONDS,
);
static CONNTRACK_DELETED: Metric = Metric::counter(
    "kubeproxy_conntrack_reconciler_deleted_entries_total",
    "[ALPHA] Cumulative conntrack flows deleted by conntrack reconciler",
    FAMILY,
);

static ALL: [&Metric; 16] = [
    &CONNTRACK_DELETED,
    &CONNTRACK,
    &PROGRAMMING,
    &HEALTHZ,
    &LIVEZ,
    &FULL_SYNC,
    &PARTIAL_SYNC,
    &SYNC,
    &ENDPOINT_CHANGES_PENDING,
    &ENDPOINT_CHANGES,
    &QUEUED_AT,
    &SYNCED_AT,
    &SYNC_FAILURES,
    &NO_LOCAL,
    &SERVICE_CHANGES_PENDING,
    &SERVICE_CHANGES,
];

/// The Unix time in seconds, as Prometheus' gauges of times have it.
fn now() -> f64 {
    api::k8s::jiff::Timestamp::now().as_duration().as_secs_f64()
}

/// A sync was requested.
pub(super) fn queued(families: &[Family]) {
    for family in families {
        QUEUED_AT.set(&[family.name()], now());
    }
}

/// The rules of a family were applied, `full` as a whole table; with the numbers of
/// [`super::state::State::no_local`].
pub(super) fn synced(family: Family, took: Duration, full: bool, no_local: [usize; 2]) {
    let name = family.name();
    SYNC.took(&[name], took);
    if full { &FULL_SYNC } else { &PARTIAL_SYNC }.took(&[name], took);
    SYNCED_AT.set(&[name], now());
    for (policy, count) in ["internal", "external"].into_iter().zip(no_local) {
        NO_LOCAL.set(&[name, policy], count as f64);
    }
}

/// The kernel refused the rules of a family.
pub(super) fn sync_failed(family: Family) {
    SYNC_FAILURES.inc(&[family.name()]);
}

/// Connections to endpoints that are gone were searched, and `count` of them deleted.
pub(super) fn connections_reconciled(family: Family, took: Duration, count: usize) {
    CONNTRACK.took(&[family.name()], took);
    CONNTRACK_DELETED.add(&[family.name()], count as f64);
}

/// All families in the text format.
pub(super) fn text(dirty: &Dirty) -> String {
    let (services, endpoints) = dirty.pending();
    SERVICE_CHANGES_PENDING.set(&[], services as f64);
    ENDPOINT_CHANGES_PENDING.set(&[], endpoints as f64);
    let mut out = String::new();
    ALL.iter().for_each(|metric| metric.render(&mut out));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_have_the_names_labels_and_bounds_of_kube_proxy() {
        synced(Family::V4, Duration::from_millis(3), true, [2, 1]);
        synced(Family::V4, Duration::from_millis(3), false, [2, 1]);
        queued(&Family::ALL);
        connections_reconciled(Family::V6, Duration::from_millis(1), 4);
        let text = text(&Dirty::default());
        for line in [
            "# HELP kubeproxy_sync_proxy_rules_duration_seconds [ALPHA] SyncProxyRules latency in \
             seconds",
            "kubeproxy_sync_proxy_rules_duration_seconds_bucket{ip_family=\"IPv4\",\
             le=\"16.384\"} 2",
            "kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"} 1",
            "kubeproxy_sync_proxy_rules_no_local_endpoints_total{ip_family=\"IPv4\",\
             traffic_policy=\"internal\"} 2",
            "kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family=\"IPv6\"} 4",
            "kubeproxy_sync_proxy_rules_endpoint_changes_pending 0",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
        assert_eq!(PROGRAMMING_SECONDS[..4], [0.25, 0.5, 1.0, 2.0]);
        assert_eq!(PROGRAMMING_SECONDS[60..63], [59.0, 60.0, 65.0]);
        assert_eq!(
            PROGRAMMING_SECONDS[72..],
            [115.0, 120.0, 150.0, 180.0, 210.0, 240.0, 270.0, 300.0]
        );
    }
}
