//! Measures the nodes of the cluster for the resource metrics API: the own node in this process,
//! other ones through their kubelet API.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::k8s::api::core::v1::Node;
use apiserver::connect::Nodes;
use apiserver::connect::kubelet_client::KubeletClient;
use async_trait::async_trait;
use base::{Kind, Tasks};
use client::{Change, Informer, Informers};
use resource_metrics::collector::{self, MeasureError, Source};
use resource_metrics::{Sample, Store};
use serde::Deserialize;
use tokio::sync::Notify;

use crate::server::config::Config;

/// What metrics-server reads of a kubelet.
const PATH: &str = "/metrics/resource";
/// Maximum size of the answer of a kubelet: 110 pods with ten containers take 500 KB.
const BYTES_MAX: usize = 8 << 20;

/// The nodes of the cluster.
struct ClusterNodes {
    nodes: Informer<Node>,
    changed: Arc<Notify>,
    /// Name of this machine's node, and how it is measured.
    own: Option<(String, node::ResourceUsage)>,
    kubelets: KubeletClient,
}

/// Measures the nodes until shutdown and keeps the results in `store`.
pub(crate) fn start(
    config: &Config,
    store: Arc<Store>,
    connections: &Arc<Nodes>,
    informers: &Informers,
    tasks: &Tasks,
) {
    let nodes = informers.of::<Node>();
    let changed = Arc::new(Notify::new());
    let wake = Arc::clone(&changed);
    nodes.on_change(move |change| {
        if appears(change) {
            wake.notify_one();
        }
    });
    let machine = &config.machine;
    let source = ClusterNodes {
        nodes,
        changed,
        own: config.agent.then(|| (machine.node_name.clone(), machine.resource_usage.clone())),
        kubelets: KubeletClient::new(Arc::clone(connections)),
    };
    let collect = collector::run(store, Arc::new(source), tasks.shutdown().clone());
    tasks.spawn(Kind::Critical, "resource metrics", collect);
}

/// Whether a node that was not measured may be measured after this change.
fn appears(change: &Change) -> bool {
    match change {
        Change::Added(node) => is_answering(node.raw()),
        Change::Updated { old, new } => !is_answering(old.raw()) && is_answering(new.raw()),
        Change::Deleted(_) => false,
    }
}

#[derive(Deserialize)]
struct ReportedNode {
    #[serde(default)]
    status: ReportedStatus,
}

#[derive(Deserialize, Default)]
struct ReportedStatus {
    #[serde(default)]
    conditions: Vec<Condition>,
}

#[derive(Deserialize)]
struct Condition {
    r#type: String,
    status: String,
}

/// Whether the node reports its status: `Ready` is `Unknown` once its reports stopped.
fn is_answering(node: &[u8]) -> bool {
    let Ok(node) = serde_json::from_slice::<ReportedNode>(node) else { return false };
    let ready = node.status.conditions.iter().find(|c| c.r#type == "Ready");
    ready.is_some_and(|ready| ready.status != "Unknown")
}

#[async_trait]
impl Source for ClusterNodes {
    fn nodes(&self) -> BTreeSet<String> {
        let all = self.nodes.cache().list("");
        let names = all.iter().filter(|node| is_answering(node.raw()));
        let names = names.map(|node| node.key.name.to_string()).collect();
        self.kubelets.retain(&names);
        names
    }

    async fn changed(&self) {
        self.changed.notified().await;
    }

    async fn measure(&self, name: &str) -> Result<Sample, MeasureError> {
        if let Some((_, own)) = self.own.as_ref().filter(|(own, _)| own == name) {
            return own.measure().await.map_err(|error| MeasureError::Node(Box::new(error)));
        }
        self.measure_kubelet(name).await.map_err(MeasureError::Node)
    }
}

impl ClusterNodes {
    async fn measure_kubelet(
        &self,
        name: &str,
    ) -> Result<Sample, Box<dyn std::error::Error + Send + Sync>> {
        let node = self.nodes.cache().get("", name).ok_or("the Node was deleted")?;
        let node = node.value()?;
        let body = self.kubelets.get(name, &node, PATH, BYTES_MAX).await?;
        let now = i64::try_from(base::clock::unix_time().as_nanos()).unwrap_or(i64::MAX);
        Ok(resource_metrics::text::parse(std::str::from_utf8(&body)?, now)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_measured_while_it_reports_its_status() {
        for (conditions, expected) in [
            ("", false),
            (r#"{"type":"Ready","status":"True"}"#, true),
            (r#"{"type":"Ready","status":"False"}"#, true),
            (r#"{"type":"Ready","status":"Unknown"}"#, false),
            (r#"{"type":"MemoryPressure","status":"False"}"#, false),
        ] {
            let node = format!(r#"{{"status":{{"conditions":[{conditions}]}}}}"#);
            assert_eq!(is_answering(node.as_bytes()), expected, "{node}");
        }
        assert!(!is_answering(b"{}"));
    }
}
