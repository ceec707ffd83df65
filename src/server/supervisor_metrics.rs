//! `--supervisor-metrics` of a server: `/metrics` of the API port also has the metrics of this
//! machine's node, as in k3s, whose components share one registry, and those named `k3s_*`.

use std::sync::Arc;

use api::k8s::api::core::v1::Node;
use apiserver::ApiServer;
use apiserver::connect::Nodes;
use apiserver::connect::kubelet_client::KubeletClient;
use apiserver::interfaces::ExtraMetrics;
use async_trait::async_trait;
use client::{Informer, Informers};

use crate::k3s_metrics::{K3sFamilies, append_families};
use crate::server::config::Config;

/// The page of the kubelet with its own metrics.
const PATH: &str = "/metrics";
/// Maximum size of that page.
const BYTES_MAX: usize = 4 << 20;

/// What is added to the page of the API server.
struct SupervisorMetrics {
    families: K3sFamilies,
    node: Option<OwnNode>,
}

/// This machine's node.
struct OwnNode {
    name: String,
    nodes: Informer<Node>,
    kubelets: KubeletClient,
}

/// Adds the metrics to the page of the API server, if the flag is set.
pub(crate) fn start(
    config: &Config,
    server: &ApiServer,
    connections: &Arc<Nodes>,
    informers: &Informers,
) {
    if !config.cluster.supervisor_metrics {
        return;
    }
    let node = config.agent.then(|| OwnNode {
        name: config.machine.node_name.clone(),
        nodes: informers.of::<Node>(),
        kubelets: KubeletClient::new(Arc::clone(connections)),
    });
    let families = K3sFamilies::new(&config.machine.data_dir, None);
    server.add_metrics(Arc::new(SupervisorMetrics { families, node }));
}

#[async_trait]
impl ExtraMetrics for SupervisorMetrics {
    async fn append(&self, page: &mut String) {
        page.push_str(&self.families.text().await);
        let Some(node) = &self.node else { return };
        match node.page().await {
            Ok(text) => append_families(page, &text),
            // The page of the API server is useful without the node's.
            Err(error) => {
                tracing::debug!(%error, "supervisor metrics: the node does not answer");
            }
        }
    }
}

impl OwnNode {
    async fn page(&self) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
        let node = self.nodes.cache().get("", &self.name).ok_or("there is no Node object yet")?;
        let body = self.kubelets.get(&self.name, &node.value()?, PATH, BYTES_MAX).await?;
        Ok(String::from_utf8(body.to_vec())?)
    }
}
