//! The fields of a pod that scheduling needs, read once per change.

use std::collections::BTreeSet;

use api::k8s::api::core::v1::{
    Affinity, Container, NodeSelectorTerm, Pod, PodAffinityTerm, PodSpec, Toleration,
    TopologySpreadConstraint,
};
use api::k8s::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement, Time};
use client::labels::Labels;

use crate::resources::Resources;

/// A host port that a pod requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HostPort {
    /// `0.0.0.0` is every address.
    pub(crate) ip: String,
    pub(crate) protocol: String,
    pub(crate) port: i32,
}

impl HostPort {
    /// The ports cannot be on one node.
    pub(crate) fn conflicts(&self, other: &Self) -> bool {
        let any = |p: &Self| p.ip == "0.0.0.0";
        self.port == other.port
            && self.protocol == other.protocol
            && (self.ip == other.ip || any(self) || any(other))
    }
}

/// A term of pod affinity or anti-affinity. An empty list of namespaces is resolved to the
/// namespace of its pod, a namespace selector is not.
#[derive(Debug, Clone)]
pub(crate) struct AffinityTerm {
    pub(crate) namespaces: BTreeSet<String>,
    pub(crate) namespace_selector: Option<LabelSelector>,
    pub(crate) selector: Option<LabelSelector>,
    pub(crate) topology_key: String,
}

impl AffinityTerm {
    fn new(term: &PodAffinityTerm, pod: &Pod) -> Self {
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        let mut namespaces: BTreeSet<String> = term.namespaces.iter().flatten().cloned().collect();
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

    /// The term selects `pod`; `namespace_labels` returns the labels of a namespace. A term without
    /// a label selector selects no pod.
    pub(crate) fn matches(
        &self,
        pod: &PodInfo,
        namespace_labels: &dyn Fn(&str) -> Option<Labels>,
    ) -> bool {
        let here = self.namespaces.contains(&pod.namespace)
            || self.namespace_selector.as_ref().is_some_and(|s| {
                client::labels::is_empty(s)
                    || client::labels::selects(s, namespace_labels(&pod.namespace).as_ref())
            });
        here && self
            .selector
            .as_ref()
            .is_some_and(|s| client::labels::selects(s, Some(&pod.labels)))
    }
}

/// One topology spread constraint.
#[derive(Debug, Clone)]
pub(crate) struct SpreadConstraint {
    pub(crate) max_skew: i64,
    pub(crate) topology_key: String,
    pub(crate) hard: bool,
    pub(crate) selector: Option<LabelSelector>,
    pub(crate) min_domains: i64,
    pub(crate) honor_affinity: bool,
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
    pub(crate) node_name: String,
    pub(crate) nominated: String,
    pub(crate) scheduler: String,
    pub(crate) gates: Vec<String>,
    pub(crate) deleting: bool,
    pub(crate) terminal: bool,
    pub(crate) started: i64,
    pub(crate) never_preempts: bool,
    pub(crate) requests: Resources,
    pub(crate) non_zero_cpu: i64,
    pub(crate) non_zero_memory: i64,
    pub(crate) ports: Vec<HostPort>,
    pub(crate) images: Vec<String>,
    pub(crate) containers: usize,
    pub(crate) claims: Vec<String>,
    pub(crate) has_resource_claims: bool,
    pub(crate) node_selector: Labels,
    pub(crate) required_nodes: Option<Vec<NodeSelectorTerm>>,
    pub(crate) preferred_nodes: Vec<(i64, NodeSelectorTerm)>,
    pub(crate) tolerations: Vec<Toleration>,
    pub(crate) affinity: Vec<AffinityTerm>,
    pub(crate) anti_affinity: Vec<AffinityTerm>,
    pub(crate) preferred_affinity: Vec<(i64, AffinityTerm)>,
    pub(crate) preferred_anti_affinity: Vec<(i64, AffinityTerm)>,
    pub(crate) spread: Vec<SpreadConstraint>,
}

impl PodInfo {
    pub(crate) fn key(&self) -> (String, String) {
        (self.namespace.clone(), self.name.clone())
    }

    /// The pod uses this claim.
    pub(crate) fn uses_claim(&self, namespace: &str, name: &str) -> bool {
        self.namespace == namespace && self.claims.iter().any(|claim| claim == name)
    }

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
        self.has_resource_claims = spec.resource_claims.as_ref().is_some_and(|c| !c.is_empty());
        self.never_preempts = spec.preemption_policy.as_deref() == Some("Never");
        self.node_selector = spec.node_selector.clone().unwrap_or_default();
        self.tolerations = spec.tolerations.clone().unwrap_or_default();
        self.spread = spec
            .topology_spread_constraints
            .iter()
            .flatten()
            .map(|c| spread_constraint(c, &self.labels))
            .collect();
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

    /// The sum over all containers, but at least what any init container needs beside the sidecars
    /// that start before it (KEP-753), or the pod-level requests (KEP-2837); plus overhead.
    fn read_requests(&mut self, spec: &PodSpec) {
        let mut total = Resources::default();
        for container in &spec.containers {
            let list = container.resources.as_ref().and_then(|r| r.requests.as_ref());
            total.add(&Resources::from_list(list));
            let (cpu, memory) = Resources::non_zero(list);
            self.non_zero_cpu += cpu;
            self.non_zero_memory += memory;
        }
        let (mut sidecars, mut peak) = (Resources::default(), Resources::default());
        for container in spec.init_containers.iter().flatten() {
            let list = container.resources.as_ref().and_then(|r| r.requests.as_ref());
            let mut now = Resources::from_list(list);
            if is_sidecar(container) {
                total.add(&now);
                sidecars.add(&now);
                let (cpu, memory) = Resources::non_zero(list);
                self.non_zero_cpu += cpu;
                self.non_zero_memory += memory;
                peak.max(&sidecars);
            } else {
                now.add(&sidecars);
                peak.max(&now);
            }
        }
        total.max(&peak);
        if let Some(whole) = spec.resources.as_ref().and_then(|r| r.requests.as_ref()) {
            let whole = Resources::from_list(Some(whole));
            for (value, slot) in
                [(whole.milli_cpu, &mut total.milli_cpu), (whole.memory, &mut total.memory)]
            {
                if value > 0 {
                    *slot = value;
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

fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// Claims by name, those of generic ephemeral volumes included.
fn claims(spec: &PodSpec, pod: &str) -> Vec<String> {
    let claim =
        |v: &api::k8s::api::core::v1::Volume| match (&v.persistent_volume_claim, &v.ephemeral) {
            (Some(claim), _) => Some(claim.claim_name.clone()),
            (None, Some(_)) => Some(format!("{pod}-{}", v.name)),
            (None, None) => None,
        };
    spec.volumes.iter().flatten().filter_map(claim).collect()
}

/// `matchLabelKeys` become requirements with the pod's own values.
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
    fn init_container_counts_beside_the_sidecars_before_it() {
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
