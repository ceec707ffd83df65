//! The fields of a node that scheduling needs, with the pods on it.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::k8s::api::core::v1::{Node, Taint};
use client::labels::Labels;

use crate::pod_info::PodInfo;
use crate::pod_requests::CpuAndMemory;
use crate::resources::Resources;

/// A node with the pods that are bound to it or assumed to be.
#[derive(Debug, Clone, Default)]
pub(crate) struct NodeInfo {
    pub(crate) name: String,
    /// Its index among all nodes.
    pub(crate) index: usize,
    pub(crate) labels: Labels,
    pub(crate) taints: Vec<Taint>,
    pub(crate) unschedulable: bool,
    pub(crate) allocatable: Resources,
    /// `status.declaredFeatures`.
    pub(crate) declared_features: Vec<String>,
    /// Size in bytes by image name.
    pub(crate) images: BTreeMap<String, i64>,
    pub(crate) pods: Vec<Arc<PodInfo>>,
    pub(crate) requested: Resources,
    /// CPU and memory in use, for scores.
    pub(crate) non_zero: CpuAndMemory,
}

impl NodeInfo {
    /// Updates the fields from the Node object; the pods stay.
    pub(crate) fn set_node(&mut self, node: &Node) {
        self.name = node.metadata.name.clone().unwrap_or_default();
        self.labels = node.metadata.labels.clone().unwrap_or_default();
        let spec = node.spec.as_ref();
        self.taints = spec.and_then(|s| s.taints.clone()).unwrap_or_default();
        self.unschedulable = spec.and_then(|s| s.unschedulable).unwrap_or(false);
        let status = node.status.as_ref();
        self.allocatable = Resources::from_list(status.and_then(|s| s.allocatable.as_ref()));
        self.declared_features =
            status.and_then(|s| s.declared_features.clone()).unwrap_or_default();
        self.images.clear();
        for image in status.and_then(|s| s.images.as_deref()).unwrap_or_default() {
            for name in image.names.iter().flatten() {
                self.images.insert(name.clone(), image.size_bytes.unwrap_or(0));
            }
        }
    }

    /// Puts a pod on the node.
    pub(crate) fn add_pod(&mut self, pod: Arc<PodInfo>) {
        self.requested.add(&pod.requests);
        self.non_zero.milli_cpu += pod.non_zero.milli_cpu;
        self.non_zero.memory += pod.non_zero.memory;
        self.pods.push(pod);
    }

    /// Takes the pod with this name off the node.
    pub(crate) fn remove_pod(&mut self, namespace: &str, name: &str) -> Option<Arc<PodInfo>> {
        let index = self.pods.iter().position(|p| p.name == name && p.namespace == namespace)?;
        let pod = self.pods.swap_remove(index);
        self.requested.subtract(&pod.requests);
        self.non_zero.milli_cpu -= pod.non_zero.milli_cpu;
        self.non_zero.memory -= pod.non_zero.memory;
        Some(pod)
    }
}
