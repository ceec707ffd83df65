//! Metrics of the calls to CSI drivers, as in the kubelet.

use std::time::Duration;

use base::metrics::Family;

use super::driver_client::code_name;

/// Upper bounds in seconds (`csiOperationsLatencyMetric`).
const BOUNDS: [f64; 13] =
    [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];

/// Durations of calls by driver, method and outcome.
#[derive(Debug)]
pub(crate) struct CsiMetrics {
    operations: Family,
}

impl Default for CsiMetrics {
    fn default() -> Self {
        let operations = Family::histogram(
            "csi_operations_seconds",
            "[ALPHA] Container Storage Interface operation duration with gRPC error code status \
             total",
            &["driver_name", "grpc_status_code", "method_name", "migrated"],
            &BOUNDS,
        );
        Self { operations }
    }
}

impl CsiMetrics {
    /// Records a completed call of the node service, about a volume of an in-tree plugin or not;
    /// `method` is such as `NodePublishVolume`.
    pub(crate) fn record(
        &self,
        (driver, is_migrated): (&str, bool),
        method: &str,
        code: tonic::Code,
        took: Duration,
    ) {
        let method = format!("/csi.v1.Node/{method}");
        let migrated = if is_migrated { "true" } else { "false" };
        self.operations.took(&[driver, &code_name(code), &method, migrated], took);
    }

    /// Renders the metrics in the Prometheus text format.
    pub(crate) fn render(&self) -> String {
        let mut out = String::new();
        self.operations.render(&mut out);
        out
    }
}
