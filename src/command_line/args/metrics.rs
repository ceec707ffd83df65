//! Flags of the metrics of a server.

use clap::Args;

/// Metrics flags of a server.
#[derive(Debug, Args, Clone, Default)]
pub struct MetricsArgs {
    /// Serve the metrics and the health of the store with etcd's names over HTTP on port 2381, at
    /// 127.0.0.1 and at the node's addresses
    #[arg(long, help_heading = "Listener")]
    pub etcd_expose_metrics: bool,
    /// Serve the metrics of the node and those named k3s_* also at /metrics of the API port, and
    /// on agents at that port of theirs; access needs `get` on the path /metrics
    #[arg(long, help_heading = "Listener")]
    pub supervisor_metrics: bool,
}
