//! Metrics of dynamic resource allocation, as in the kubelet.

use base::metrics::Family;

/// Upper bounds in seconds: `ExponentialBucketsRange(0.1, 40, 15)` with Go's rounding.
const BOUNDS: [f64; 15] = [
    0.1,
    0.153_412_740_463_439_1,
    0.235_354_689_365_025_24,
    0.361_064_078_764_099_46,
    0.553_918_298_061_075_2,
    0.849_781_240_983_936,
    1.303_672_689_737_678,
    1.999_999_999_999_999_3,
    3.068_254_809_268_780_5,
    4.707_093_787_300_502_5,
    7.221_281_575_281_985,
    11.078_365_961_221_499,
    16.995_624_819_678_714,
    26.073_453_794_753_54,
    39.999_999_999_999_97,
];

/// Durations of the preparation and release of all claims of a pod.
pub(super) static OPERATIONS: Family = Family::histogram(
    "dra_operations_duration_seconds",
    "[ALPHA] Latency histogram in seconds for the duration of handling all ResourceClaims \
     referenced by a pod when the pod starts or stops. Identified by the name of the operation \
     (PrepareResources or UnprepareResources) and separated by the success of the operation. The \
     number of failed operations is provided through the histogram's overall count.",
    &["is_error", "operation_name"],
    &BOUNDS,
);
/// Durations of calls to drivers.
pub(super) static CALLS: Family = Family::histogram(
    "dra_grpc_operations_duration_seconds",
    "[ALPHA] Duration in seconds of the DRA gRPC operations",
    &["driver_name", "grpc_status_code", "method_name"],
    &BOUNDS,
);
/// Calls that were not made because the allocation says that the driver needs none.
pub(super) static PREPARE_SKIPS: Family = Family::counter(
    "dra_node_prepare_skips_total",
    "[ALPHA] Cumulative number of times NodePrepareResources gRPC calls were skipped due to \
     SkipNodeOperations.",
    &["driver_name"],
);
pub(super) static UNPREPARE_SKIPS: Family = Family::counter(
    "dra_node_unprepare_skips_total",
    "[ALPHA] Cumulative number of times NodeUnprepareResources gRPC calls were skipped due to \
     SkipNodeOperations.",
    &["driver_name"],
);
const CLAIMS_IN_USE: &str = "dra_resource_claims_in_use";
const CLAIMS_IN_USE_HELP: &str = "[ALPHA] The number of ResourceClaims that are currently in use \
    on the node, by driver name (driver_name label value) and across all drivers (special value \
    <any> for driver_name). Note that the sum of all by-driver counts is not the total number of \
    in-use ResourceClaims because the same ResourceClaim might use devices from different drivers. \
    Instead, use the count for the <any> driver_name.";
/// The label of the count of all claims.
pub(super) const ANY_DRIVER: &str = "<any>";

/// Renders all families in the Prometheus text format; `in_use` has the claims in use by driver.
pub(super) fn render<'a>(in_use: impl Iterator<Item = (&'a str, u32)>) -> String {
    let mut out = String::new();
    for family in [&OPERATIONS, &CALLS, &PREPARE_SKIPS, &UNPREPARE_SKIPS] {
        family.render(&mut out);
    }
    // The counts are computed for each scrape, so that drivers without claims disappear.
    let claims = Family::gauge(CLAIMS_IN_USE, CLAIMS_IN_USE_HELP, &["driver_name"]);
    for (driver, count) in in_use {
        claims.set(&[driver], f64::from(count));
    }
    claims.render(&mut out);
    out
}
