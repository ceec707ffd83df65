//! The fields of a pod that scheduling needs, converted once per change of the pod.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::k8s::api::core::v1::{
    Affinity, NodeSelectorTerm, Pod, PodAffinityTerm, PodSpec, PodStatus, Toleration,
    TopologySpreadConstraint,
};
use api::k8s::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement, Time};
use client::labels::Labels;
use sorting::CollectOrdered as _;

use crate::inline_volumes::{Disk, InlineVolume};
use crate::pod_claims::{ContainerRequests, PodClaim, pod_claims, served_requests};
use crate::pod_requests::{CpuAndMemory, is_sidecar, pod_requests};
use crate::resources::Resources;

/// A host port that a pod requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HostPort {
    /// `0.0.0.0` means all addresses of the node, of both families.
    pub(crate) ip: String,
    pub(crate) protocol: String,
    pub(crate) port: i32,
}

impl HostPort {
    /// Whether two pods with these ports cannot run on the same node.
    pub(crate) fn conflicts(&self, other: &Self) -> bool {
        let any = |p: &Self| p.ip == "0.0.0.0";
        self.port == other.port
            && self.protocol == other.protocol
            && (self.ip == other.ip || any(self) || any(other))
    }
}

/// A term of pod affinity or anti-affinity. It applies to pods in `namespaces` and in the
/// namespaces that `namespace_selector` selects.
#[derive(Debug, Clone)]
pub(crate) struct AffinityTerm {
    /// If the term has neither namespaces nor a namespace selector: the namespace of its pod.
    pub(crate) namespaces: BTreeSet<String>,
    pub(crate) namespace_selector: Option<LabelSelector>,
    /// Selects pods by their labels.
    pub(crate) selector: Option<LabelSelector>,
    pub(crate) topology_key: String,
}

impl AffinityTerm {
    /// Converts a term of `pod`.
    fn new(term: &PodAffinityTerm, pod: &Pod) -> Self {
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        let mut namespaces: BTreeSet<String> =
            term.namespaces.iter().flatten().cloned().collect_set();
        if namespaces.is_empty() && term.namespace_selector.is_none() {
            namespaces.insert(namespace);
        }
        Self {
            namespaces,
            namespace_selector: term.namespace_selector.clone(),
            selector: term.label_selector.clone(),
            topology_key: term.topology_key.clone(),
        }
    }

    /// Whether the term selects `pod`, whose namespace has these labels. A term without a label
    /// selector selects no pod.
    pub(crate) fn matches(&self, pod: &PodInfo, namespace_labels: Option<&Labels>) -> bool {
        let in_namespace = self.namespaces.contains(&pod.namespace)
            || self
                .namespace_selector
                .as_ref()
                .is_some_and(|selector| client::labels::selects(selector, namespace_labels));
        let selects_labels = |s: &LabelSelector| client::labels::selects(s, Some(&pod.labels));
        in_namespace && self.selector.as_ref().is_some_and(selects_labels)
    }
}

/// One topology spread constraint.
#[derive(Debug, Clone)]
pub(crate) struct SpreadConstraint {
    pub(crate) max_skew: i64,
    pub(crate) topology_key: String,
    /// `whenUnsatisfiable: DoNotSchedule`; otherwise the constraint only affects scores.
    pub(crate) hard: bool,
    /// The label selector with the requirements of `matchLabelKeys`.
    pub(crate) selector: Option<LabelSelector>,
    pub(crate) min_domains: i64,
    /// `nodeAffinityPolicy: Honor`, the default: count only nodes that match the pod's node
    /// selector and affinity.
    pub(crate) honor_affinity: bool,
    /// `nodeTaintsPolicy: Honor`: count only nodes whose taints the pod tolerates.
    pub(crate) honor_taints: bool,
}

impl SpreadConstraint {
    /// Whether the constraint selects pods with these labels. Without a selector it selects none.
    pub(crate) fn selects(&self, labels: &Labels) -> bool {
        self.selector.as_ref().is_some_and(|s| client::labels::selects(s, Some(labels)))
    }

    /// Whether the selector has no requirements.
    pub(crate) fn is_selector_empty(&self) -> bool {
        self.selector.as_ref().is_some_and(client::labels::is_empty)
    }
}

/// The controller of a pod, of a kind whose pods are spread by default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PodOwner {
    ReplicationController(String),
    ReplicaSet(String),
    StatefulSet(String),
}

impl PodOwner {
    fn of(pod: &Pod) -> Option<Self> {
        let mut owners = pod.metadata.owner_references.iter().flatten();
        let owner = owners.find(|owner| owner.controller == Some(true))?;
        let name = owner.name.clone();
        match (owner.api_version.as_str(), owner.kind.as_str()) {
            ("v1", "ReplicationController") => Some(Self::ReplicationController(name)),
            ("apps/v1", "ReplicaSet") => Some(Self::ReplicaSet(name)),
            ("apps/v1", "StatefulSet") => Some(Self::StatefulSet(name)),
            _ => None,
        }
    }
}

/// The fields of a pod that scheduling needs.
#[derive(Debug, Clone, Default)]
pub(crate) struct PodInfo {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) labels: Labels,
    pub(crate) controller: Option<PodOwner>,
    pub(crate) priority: i32,
    /// The node that the pod is bound to; empty if it has none.
    pub(crate) node_name: String,
    /// `status.nominatedNodeName`; empty if it has none.
    pub(crate) nominated: String,
    /// `spec.schedulerName`.
    pub(crate) scheduler: String,
    /// Names of the scheduling gates.
    pub(crate) gates: Vec<String>,
    /// The pod has a deletion timestamp.
    pub(crate) deleting: bool,
    /// The phase is `Succeeded` or `Failed`: the pod uses no resources of its node.
    pub(crate) terminal: bool,
    /// `status.startTime` in seconds since the epoch; 0 if it is not set.
    pub(crate) started: i64,
    /// Preemption has begun to evict the pod: its condition `DisruptionTarget` says so.
    pub(crate) preempted: bool,
    /// `preemptionPolicy: Never`.
    pub(crate) never_preempts: bool,
    /// The resources that the pod needs on a node; `pods` is 1.
    pub(crate) requests: Resources,
    /// CPU and memory in scores of the pod's node: see [`crate::pod_requests::PodRequests`].
    pub(crate) non_zero: CpuAndMemory,
    /// CPU and memory in scores of the nodes that fit the pod.
    pub(crate) scored: CpuAndMemory,
    /// Host ports.
    pub(crate) ports: Vec<HostPort>,
    /// Images of all containers, init containers included, and of image volumes.
    pub(crate) images: Vec<String>,
    /// Names of the PersistentVolumeClaims that the pod mounts.
    pub(crate) claims: Vec<String>,
    /// Those of `claims` that are made for generic ephemeral volumes of the pod.
    pub(crate) ephemeral_claims: Vec<String>,
    /// Volumes without a claim that CSI drivers provide in place of in-tree plugins.
    pub(crate) inline_volumes: Vec<InlineVolume>,
    /// Disks of GCE, AWS and iSCSI without a claim.
    pub(crate) disks: Vec<Disk>,
    /// The claims of dynamic resource allocation.
    pub(crate) resource_claims: Vec<PodClaim>,
    /// The requests of all containers, if a device class may serve one of them.
    pub(crate) served_requests: Option<Arc<[ContainerRequests]>>,
    /// Features that the node has to declare.
    pub(crate) required_features: Vec<&'static str>,
    pub(crate) node_selector: Labels,
    /// Required node affinity: one of the terms must match the node.
    pub(crate) required_nodes: Option<Vec<NodeSelectorTerm>>,
    /// Preferred node affinity with weights.
    pub(crate) preferred_nodes: Vec<(i64, NodeSelectorTerm)>,
    pub(crate) tolerations: Vec<Toleration>,
    /// Pod affinity and anti-affinity as text, by which pods are compared; `None` without any.
    pub(crate) affinity_text: Option<Arc<str>>,
    /// Required pod affinity.
    pub(crate) affinity: Vec<AffinityTerm>,
    /// Required pod anti-affinity.
    pub(crate) anti_affinity: Vec<AffinityTerm>,
    /// Preferred pod affinity with weights.
    pub(crate) preferred_affinity: Vec<(i64, AffinityTerm)>,
    /// Preferred pod anti-affinity with weights.
    pub(crate) preferred_anti_affinity: Vec<(i64, AffinityTerm)>,
    /// Topology spread constraints.
    pub(crate) spread: Vec<SpreadConstraint>,
}

impl PodInfo {
    /// Namespace and name.
    pub(crate) fn key(&self) -> (String, String) {
        (self.namespace.clone(), self.name.clone())
    }

    /// Whether the pod has terms of pod affinity or anti-affinity.
    pub(crate) fn has_affinity(&self) -> bool {
        !(self.affinity.is_empty()
            && self.anti_affinity.is_empty()
            && self.preferred_affinity.is_empty()
            && self.preferred_anti_affinity.is_empty())
    }

    /// Names of the PersistentVolumeClaims that the pod names itself.
    pub(crate) fn named_claims(&self) -> impl Iterator<Item = &String> {
        self.claims.iter().filter(|claim| !self.ephemeral_claims.contains(claim))
    }

    /// Whether the pod mounts this PersistentVolumeClaim.
    pub(crate) fn uses_claim(&self, namespace: &str, name: &str) -> bool {
        self.namespace == namespace && self.claims.iter().any(|claim| claim == name)
    }

    /// Converts a pod. Fields that the pod does not have are empty or 0.
    pub(crate) fn new(pod: &Pod) -> Self {
        let meta = &pod.metadata;
        let status = pod.status.as_ref();
        let seconds = |t: &Option<Time>| t.as_ref().map_or(0, |Time(t)| t.as_second());
        let mut info = Self {
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
            uid: meta.uid.clone().unwrap_or_default(),
            labels: meta.labels.clone().unwrap_or_default(),
            controller: PodOwner::of(pod),
            nominated: status.and_then(|s| s.nominated_node_name.clone()).unwrap_or_default(),
            deleting: meta.deletion_timestamp.is_some(),
            terminal: status
                .and_then(|s| s.phase.as_deref())
                .is_some_and(|p| matches!(p, "Succeeded" | "Failed")),
            preempted: status.is_some_and(is_preempted),
            started: status.map_or(0, |s| seconds(&s.start_time)),
            ..Self::default()
        };
        if let Some(spec) = &pod.spec {
            info.read_spec(spec, pod);
        }
        info
    }

    fn read_spec(&mut self, spec: &PodSpec, pod: &Pod) {
        self.priority = spec.priority.unwrap_or(0);
        self.node_name = spec.node_name.clone().unwrap_or_default();
        self.scheduler = spec.scheduler_name.clone().unwrap_or_default();
        self.gates = spec.scheduling_gates.iter().flatten().map(|g| g.name.clone()).collect();
        self.resource_claims = pod_claims(pod);
        self.served_requests = served_requests(pod).map(Into::into);
        self.required_features = required_features(spec);
        self.never_preempts = spec.preemption_policy.as_deref() == Some("Never");
        self.node_selector = spec.node_selector.clone().unwrap_or_default();
        self.tolerations = spec.tolerations.clone().unwrap_or_default();
        self.spread = spec
            .topology_spread_constraints
            .iter()
            .flatten()
            .map(|c| spread_constraint(c, &self.labels))
            .collect();
        // On the network of the host, a container port is a host port.
        let host_network = spec.host_network == Some(true);
        for container in spec
            .containers
            .iter()
            .chain(spec.init_containers.iter().flatten().filter(|c| is_sidecar(c)))
        {
            for port in container.ports.iter().flatten() {
                let number = port.host_port.unwrap_or(0);
                let number = if number == 0 && host_network { port.container_port } else { number };
                if number > 0 {
                    // A missing IP means all addresses. As upstream, `::` is an address of its own
                    // (`HostPortInfo`).
                    let ip = port
                        .host_ip
                        .clone()
                        .filter(|ip| !ip.is_empty())
                        .unwrap_or_else(|| "0.0.0.0".into());
                    self.ports.push(HostPort {
                        ip,
                        protocol: port.protocol.clone().unwrap_or_else(|| "TCP".into()),
                        port: number,
                    });
                }
            }
        }
        let all = spec.containers.iter().chain(spec.init_containers.iter().flatten());
        let volumes = spec.volumes.iter().flatten().filter_map(|v| v.image.as_ref());
        self.images = all
            .map(|c| c.image.clone().unwrap_or_default())
            .chain(volumes.map(|image| image.reference.clone().unwrap_or_default()))
            .collect();
        self.claims = claims(spec, &self.name);
        self.ephemeral_claims = ephemeral_claims(spec, &self.name);
        let volumes = || spec.volumes.iter().flatten();
        self.inline_volumes =
            volumes().filter_map(|volume| InlineVolume::of(volume, &self.namespace)).collect();
        self.disks = volumes().filter_map(Disk::of).collect();
        if let Some(affinity) = &spec.affinity {
            self.read_affinity(affinity, pod);
        }
        let requests = pod_requests(pod);
        self.requests = requests.total;
        self.non_zero = requests.non_zero;
        self.scored = requests.scored;
    }

    fn read_affinity(&mut self, affinity: &Affinity, pod: &Pod) {
        if let Some(nodes) = &affinity.node_affinity {
            self.required_nodes = nodes
                .required_during_scheduling_ignored_during_execution
                .as_ref()
                .map(|s| s.node_selector_terms.clone());
            let preferred =
                nodes.preferred_during_scheduling_ignored_during_execution.iter().flatten();
            self.preferred_nodes =
                preferred.map(|p| (i64::from(p.weight), p.preference.clone())).collect();
        }
        let pods = (&affinity.pod_affinity, &affinity.pod_anti_affinity);
        if pods.0.is_some() || pods.1.is_some() {
            self.affinity_text = serde_json::to_string(&pods).ok().map(Into::into);
        }
        if let Some(pods) = &affinity.pod_affinity {
            self.affinity = pods
                .required_during_scheduling_ignored_during_execution
                .iter()
                .flatten()
                .map(|t| AffinityTerm::new(t, pod))
                .collect();
            let preferred =
                pods.preferred_during_scheduling_ignored_during_execution.iter().flatten();
            self.preferred_affinity = preferred
                .map(|w| (i64::from(w.weight), AffinityTerm::new(&w.pod_affinity_term, pod)))
                .collect();
        }
        if let Some(pods) = &affinity.pod_anti_affinity {
            self.anti_affinity = pods
                .required_during_scheduling_ignored_during_execution
                .iter()
                .flatten()
                .map(|t| AffinityTerm::new(t, pod))
                .collect();
            let preferred =
                pods.preferred_during_scheduling_ignored_during_execution.iter().flatten();
            self.preferred_anti_affinity = preferred
                .map(|w| (i64::from(w.weight), AffinityTerm::new(&w.pod_affinity_term, pod)))
                .collect();
        }
    }
}

/// The features that the node of a pod has to declare (`InferForScheduling` of upstream's
/// `nodedeclaredfeatures`).
fn required_features(spec: &PodSpec) -> Vec<&'static str> {
    let mut containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let restarts_all = containers.any(|container| {
        let mut rules = container.restart_policy_rules.iter().flatten();
        rules.any(|rule| rule.action == "RestartAllContainers")
    });
    let maps_host_network = spec.host_network == Some(true) && spec.host_users == Some(false);
    [
        (restarts_all, "RestartAllContainersOnContainerExits"),
        (maps_host_network, "UserNamespacesHostNetworkSupport"),
    ]
    .into_iter()
    .filter_map(|(is_needed, feature)| is_needed.then_some(feature))
    .collect()
}

/// Preemption has begun to evict the pod (`PodTerminatingByPreemption`).
fn is_preempted(status: &PodStatus) -> bool {
    status.conditions.iter().flatten().any(|c| {
        c.type_ == "DisruptionTarget"
            && c.status == "True"
            && c.reason.as_deref() == Some("PreemptionByScheduler")
    })
}

/// Names of the PersistentVolumeClaims of a pod with the name `pod`. The claim of a generic
/// ephemeral volume is named `<pod>-<volume>`.
fn claims(spec: &PodSpec, pod: &str) -> Vec<String> {
    let claim =
        |v: &api::k8s::api::core::v1::Volume| match (&v.persistent_volume_claim, &v.ephemeral) {
            (Some(claim), _) => Some(claim.claim_name.clone()),
            (None, Some(_)) => Some(format!("{pod}-{}", v.name)),
            (None, None) => None,
        };
    spec.volumes.iter().flatten().filter_map(claim).collect()
}

/// Those of [`claims`] that are of generic ephemeral volumes.
fn ephemeral_claims(spec: &PodSpec, pod: &str) -> Vec<String> {
    let volumes = spec.volumes.iter().flatten();
    let ephemeral =
        volumes.filter(|v| v.persistent_volume_claim.is_none() && v.ephemeral.is_some());
    ephemeral.map(|v| format!("{pod}-{}", v.name)).collect()
}

/// Converts a constraint of a pod with these labels. `matchLabelKeys` become requirements of the
/// selector with the pod's own values.
pub(crate) fn spread_constraint(
    constraint: &TopologySpreadConstraint,
    labels: &Labels,
) -> SpreadConstraint {
    let mut selector = constraint.label_selector.clone();
    for key in constraint.match_label_keys.iter().flatten() {
        if let (Some(selector), Some(value)) = (&mut selector, labels.get(key)) {
            selector.match_expressions.get_or_insert_default().push(LabelSelectorRequirement {
                key: key.clone(),
                operator: "In".into(),
                values: Some(vec![value.clone()]),
            });
        }
    }
    SpreadConstraint {
        max_skew: i64::from(constraint.max_skew),
        topology_key: constraint.topology_key.clone(),
        hard: constraint.when_unsatisfiable == "DoNotSchedule",
        selector,
        min_domains: i64::from(constraint.min_domains.unwrap_or(1)),
        honor_affinity: constraint.node_affinity_policy.as_deref() != Some("Ignore"),
        honor_taints: constraint.node_taints_policy.as_deref() == Some("Honor"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn info(spec: serde_json::Value) -> PodInfo {
        PodInfo::new(
            &serde_json::from_value(
                json!({"metadata": {"name": "p", "namespace": "n"}, "spec": spec}),
            )
            .unwrap(),
        )
    }

    #[test]
    fn host_network_makes_container_ports_host_ports() {
        let pod = info(json!({"hostNetwork": true,
                "containers": [{"name": "a", "ports": [{"containerPort": 80}]}]}));
        let other = HostPort { ip: "10.0.0.1".into(), protocol: "TCP".into(), port: 80 };
        assert!(pod.ports[0].conflicts(&other));
        assert!(!pod.ports[0].conflicts(&HostPort { protocol: "UDP".into(), ..other }));
    }
}
