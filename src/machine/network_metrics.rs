//! Metrics of the pod network on the page of the kubelet API.

use async_trait::async_trait;

/// The packets that network policies dropped.
pub(super) struct NetworkMetrics(pub(super) net::DroppedPackets);

#[async_trait]
impl node::ProcessFamilies for NetworkMetrics {
    async fn render(&self) -> String {
        let dropped = self.0.clone();
        match base::tasks::blocking(move || dropped.render()).await {
            Ok(Ok(text)) => text,
            Ok(Err(error)) => {
                tracing::warn!(%error, "metrics: cannot read the counters of network policies");
                String::new()
            }
            // The panic has been logged.
            Err(_) => String::new(),
        }
    }
}
