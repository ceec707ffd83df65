//! The fields of a pod that scheduling needs, converted once per change of the pod.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::k8s::api::core::v1::{
    Affinity, Container, NodeSelectorTerm, Pod, PodAffinityTerm, PodSpec, Toleration,
    TopologySpreadConstraint,
};
use api::k8s::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement, Time};
use client::labels::Labels;
use sorting::CollectOrdered as _;

use crate::inline_volumes::{Disk, InlineVolume};
use crate::pod_claims::{ContainerRequests, PodClaim, pod_claims, served_requests};
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

    /// Whether the term selects `pod`; `namespace_labels` returns the labels of a namespace. A term
    /// without a label selector selects no pod.
    pub(crate) fn matches(
        &self,
        pod: &PodInfo,
        namespace_labels: &dyn Fn(&str) -> Option<Labels>,
    ) -> bool {
        let in_namespace = self.namespaces.contains(&pod.namespace)
            || self.namespace_selector.as_ref().is_some_and(|s| {
                // An empty selector selects all namespaces; their labels are not read.
                client::labels::is_empty(s)
                    || client::labels::selects(s, namespace_labels(&pod.namespace).as_ref())
            });
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

/// The fields of a pod that scheduling needs.
#[derive(Debug, Clone, Default)]
pub(crate) struct PodInfo {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) labels: Labels,
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
    /// `preemptionPolicy: Never`.
    pub(crate) never_preempts: bool,
    /// The resources that the pod needs on a node; `pods` is 1.
    pub(crate) requests: Resources,
    /// CPU for scores, in thousandths of a core: see [`Resources::non_zero`].
    pub(crate) non_zero_cpu: i64,
    /// Memory for scores, in bytes: see [`Resources::non_zero`].
    pub(crate) non_zero_memory: i64,
    /// Host ports.
    pub(crate) ports: Vec<HostPort>,
    /// Images of all containers, init containers included.
    pub(crate) images: Vec<String>,
    /// Number of all containers, init containers included.
    pub(crate) containers: usize,
    /// Names of the PersistentVolumeClaims that the pod mounts.
    pub(crate) claims: Vec<String>,
    /// Volumes without a claim that CSI drivers provide in place of in-tree plugins.
    pub(crate) inline_volumes: Vec<InlineVolume>,
    /// Disks of GCE, AWS and iSCSI without a claim.
    pub(crate) disks: Vec<Disk>,
    /// The claims of dynamic resource allocation.
    pub(crate) resource_claims: Vec<PodClaim>,
    /// The requests of all containers, if a device class may serve one of them.
    pub(crate) served_requests: Option<Arc<[ContainerRequests]>>,
    pub(crate) node_selector: Labels,
    /// Required node affinity: one of the terms must match the node.
    pub(crate) required_nodes: Option<Vec<NodeSelectorTerm>>,
    /// Preferred node affinity with weights.
    pub(crate) preferred_nodes: Vec<(i64, NodeSelectorTerm)>,
    pub(crate) tolerations: Vec<Toleration>,
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
            nominated: status.and_then(|s| s.nominated_node_name.clone()).unwrap_or_default(),
            deleting: meta.deletion_timestamp.is_some(),
            terminal: status
                .and_then(|s| s.phase.as_deref())
                .is_some_and(|p| matches!(p, "Succeeded" | "Failed")),
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
                    // A missing IP, and the IPv6 form, mean all addresses, too.
                    let ip = port
                        .host_ip
                        .clone()
                        .filter(|ip| !ip.is_empty() && ip != "::")
                        .unwrap_or_else(|| "0.0.0.0".into());
                    self.ports.push(HostPort {
                        ip,
                        protocol: port.protocol.clone().unwrap_or_else(|| "TCP".into()),
                        port: number,
                    });
                }
            }
        }
        self.containers = spec.containers.len() + spec.init_containers.as_ref().map_or(0, Vec::len);
        let all = spec.containers.iter().chain(spec.init_containers.iter().flatten());
        self.images = all.filter_map(|c| c.image.clone()).collect();
        self.claims = claims(spec, &self.name);
        let volumes = || spec.volumes.iter().flatten();
        self.inline_volumes =
            volumes().filter_map(|volume| InlineVolume::of(volume, &self.namespace)).collect();
        self.disks = volumes().filter_map(Disk::of).collect();
        if let Some(affinity) = &spec.affinity {
            self.read_affinity(affinity, pod);
        }
        self.read_requests(spec);
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

    /// Computes the requests of the pod: the sum over containers and sidecars, but at least the
    /// requests of each init container plus those of the sidecars that start before it (KEP-753).
    /// Pod-level requests of CPU and memory replace that result (KEP-2837). The overhead is added.
    fn read_requests(&mut self, spec: &PodSpec) {
        let mut total = Resources::default();
        for container in &spec.containers {
            let list = container.resources.as_ref().and_then(|r| r.requests.as_ref());
            total.add(&Resources::from_list(list));
            let (cpu, memory) = Resources::non_zero(list);
            self.non_zero_cpu += cpu;
            self.non_zero_memory += memory;
        }
        // `peak` is the greatest amount during the init phase.
        let (mut sidecars, mut peak) = (Resources::default(), Resources::default());
        for container in spec.init_containers.iter().flatten() {
            let list = container.resources.as_ref().and_then(|r| r.requests.as_ref());
            let mut requests = Resources::from_list(list);
            if is_sidecar(container) {
                total.add(&requests);
                sidecars.add(&requests);
                let (cpu, memory) = Resources::non_zero(list);
                self.non_zero_cpu += cpu;
                self.non_zero_memory += memory;
                peak.max(&sidecars);
            } else {
                requests.add(&sidecars);
                peak.max(&requests);
            }
        }
        total.max(&peak);
        if let Some(pod_level) = spec.resources.as_ref().and_then(|r| r.requests.as_ref()) {
            let pod_level = Resources::from_list(Some(pod_level));
            for (value, amount) in
                [(pod_level.milli_cpu, &mut total.milli_cpu), (pod_level.memory, &mut total.memory)]
            {
                if value > 0 {
                    *amount = value;
                }
            }
        }
        let overhead = Resources::from_list(spec.overhead.as_ref());
        total.add(&overhead);
        self.non_zero_cpu = self.non_zero_cpu.max(peak.milli_cpu) + overhead.milli_cpu;
        self.non_zero_memory = self.non_zero_memory.max(peak.memory) + overhead.memory;
        total.pods = 1;
        self.requests = total;
    }
}

/// Whether an init container is a sidecar (KEP-753): it runs as long as the containers of the pod.
fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
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

/// Converts a constraint of a pod with these labels. `matchLabelKeys` become requirements of the
/// selector with the pod's own values.
fn spread_constraint(constraint: &TopologySpreadConstraint, labels: &Labels) -> SpreadConstraint {
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
    fn requests_include_sidecars_before_an_init_container_and_the_overhead() {
        let cpu =
            |name: &str, cpu: &str| json!({"name": name, "resources": {"requests": {"cpu": cpu}}});
        let mut sidecar = cpu("s", "100m");
        sidecar["restartPolicy"] = "Always".into();
        let pod = info(json!({"containers": [cpu("a", "200m"), cpu("b", "300m")],
                "initContainers": [sidecar, cpu("i", "1")]}));
        assert_eq!(pod.requests.milli_cpu, 1100);
        let pod = info(json!({"containers": [cpu("a", "200m")], "overhead": {"cpu": "50m"}}));
        assert_eq!((pod.requests.milli_cpu, pod.requests.pods), (250, 1));
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
