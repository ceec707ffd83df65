//! Whether a DaemonSet's pod belongs on a node, and how the pod is tied to it.

use api::k8s::api::apps::v1::DaemonSet;
use api::k8s::api::core::v1::{
    Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec, Taint, Toleration,
};

/// The field by which a pod is tied to one node.
const NAME_FIELD: &str = "metadata.name";

/// Taints that every daemon pod tolerates, as (key, effect).
const TOLERATED: [(&str, &str); 6] = [
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
];

/// What a node means for a DaemonSet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Verdict {
    /// A pod should be started here.
    pub(super) run: bool,
    /// A pod that is here may stay.
    pub(super) stay: bool,
}

/// Adds the tolerations that let daemon pods survive what ails a node.
pub(super) fn add_tolerations(spec: &mut PodSpec) {
    let network = (spec.host_network == Some(true))
        .then_some(("node.kubernetes.io/network-unavailable", "NoSchedule"));
    let all = spec.tolerations.get_or_insert_default();
    for (key, effect) in TOLERATED.into_iter().chain(network) {
        let new = Toleration {
            key: Some(key.into()),
            operator: Some("Exists".into()),
            effect: Some(effect.into()),
            ..Toleration::default()
        };
        // The same toleration with another duration is replaced: daemon pods stay for good.
        let same = |t: &&mut Toleration| {
            (&t.key, &t.operator, &t.effect) == (&new.key, &new.operator, &new.effect)
                && t.value.as_deref().unwrap_or_default().is_empty()
        };
        match all.iter_mut().find(same) {
            Some(old) => *old = new,
            None => all.push(new),
        }
    }
}

/// Decides for one node (`NodeShouldRunDaemonPod`).
pub(super) fn verdict(set: &DaemonSet, node: &Node) -> Verdict {
    let no = Verdict { run: false, stay: false };
    let mut spec = set.spec.template.spec.clone().unwrap_or_default();
    let name = node.metadata.name.as_deref().unwrap_or_default();
    if spec.node_name.as_deref().is_some_and(|n| !n.is_empty() && n != name) {
        return no;
    }
    if !fits(&spec, node) {
        return no;
    }
    add_tolerations(&mut spec);
    let tolerations = spec.tolerations.as_deref().unwrap_or_default();
    let taints = node.spec.as_ref().and_then(|s| s.taints.as_deref()).unwrap_or_default();
    let bad = |effects: &[&str]| {
        taints.iter().any(|taint| {
            effects.contains(&taint.effect.as_str())
                && !tolerations.iter().any(|t| tolerates(t, taint))
        })
    };
    if bad(&["NoExecute", "NoSchedule"]) {
        return Verdict { run: false, stay: !bad(&["NoExecute"]) };
    }
    Verdict { run: true, stay: true }
}

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let text = |v: &Option<String>| v.as_deref().unwrap_or_default().to_owned();
    let (key, effect, value) =
        (text(&toleration.key), text(&toleration.effect), text(&toleration.value));
    if !effect.is_empty() && effect != taint.effect {
        return false;
    }
    if !key.is_empty() && key != taint.key {
        return false;
    }
    let tainted = taint.value.as_deref().unwrap_or_default();
    let numbers = || Some((tainted.parse::<i64>().ok()?, value.parse::<i64>().ok()?));
    match text(&toleration.operator).as_str() {
        "" | "Equal" => value == tainted,
        "Exists" => true,
        "Lt" => numbers().is_some_and(|(tainted, limit)| tainted < limit),
        "Gt" => numbers().is_some_and(|(tainted, limit)| tainted > limit),
        _ => false,
    }
}

/// `nodeSelector` and required node affinity.
fn fits(spec: &PodSpec, node: &Node) -> bool {
    let labels = node.metadata.labels.as_ref();
    let selected = spec.node_selector.as_ref().is_none_or(|s| client::labels::contains(s, labels));
    let required = spec
        .affinity
        .as_ref()
        .and_then(|a| a.node_affinity.as_ref())
        .and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
    selected && required.is_none_or(|r| r.node_selector_terms.iter().any(|t| term_fits(t, node)))
}

/// All requirements of a term; a term without any fits nothing.
fn term_fits(term: &NodeSelectorTerm, node: &Node) -> bool {
    let labels = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let label = |r: &NodeSelectorRequirement| {
        node.metadata.labels.as_ref().and_then(|l| l.get(&r.key)).map(String::as_str)
    };
    let field = |r: &NodeSelectorRequirement| {
        (r.key == NAME_FIELD).then(|| node.metadata.name.as_deref().unwrap_or_default())
    };
    !(labels.is_empty() && fields.is_empty())
        && labels.iter().all(|r| holds(r, label(r)))
        && fields.iter().all(|r| field(r).is_some_and(|name| holds(r, Some(name))))
}

fn holds(requirement: &NodeSelectorRequirement, found: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let listed = || found.is_some_and(|f| values.iter().any(|v| v == f));
    let numbers = || {
        let limit = values.first()?.parse::<i64>().ok()?;
        Some((found?.parse::<i64>().ok()?, limit))
    };
    match requirement.operator.as_str() {
        "In" => listed(),
        "NotIn" => !listed(),
        "Exists" => found.is_some(),
        "DoesNotExist" => found.is_none(),
        "Gt" => numbers().is_some_and(|(has, limit)| has > limit),
        "Lt" => numbers().is_some_and(|(has, limit)| has < limit),
        _ => false,
    }
}

/// Ties a pod to one node: the scheduler places it there and nowhere else.
pub(super) fn pin(spec: &mut PodSpec, node: &str) {
    let term = NodeSelectorTerm {
        match_fields: Some(vec![NodeSelectorRequirement {
            key: NAME_FIELD.into(),
            operator: "In".into(),
            values: Some(vec![node.to_owned()]),
        }]),
        match_expressions: None,
    };
    spec.affinity
        .get_or_insert_default()
        .node_affinity
        .get_or_insert_default()
        .required_during_scheduling_ignored_during_execution =
        Some(NodeSelector { node_selector_terms: vec![term] });
}

/// The node that a pod runs on or is tied to.
pub(super) fn target(pod: &Pod) -> Option<&str> {
    let spec = pod.spec.as_ref()?;
    if let Some(name) = spec.node_name.as_deref().filter(|n| !n.is_empty()) {
        return Some(name);
    }
    let affinity = spec.affinity.as_ref()?.node_affinity.as_ref()?;
    let required = affinity.required_during_scheduling_ignored_during_execution.as_ref()?;
    let mut fields =
        required.node_selector_terms.iter().flat_map(|t| t.match_fields.iter().flatten());
    let field = fields.find(|f| f.key == NAME_FIELD && f.operator == "In")?;
    match field.values.as_deref() {
        Some([name]) => Some(name),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn set(pod: Value) -> DaemonSet {
        serde_json::from_value(
            json!({"metadata": {"name": "d"}, "spec": {"selector": {}, "template": {"spec": pod}}}),
        )
        .unwrap()
    }

    fn node(taints: Value) -> Node {
        serde_json::from_value(json!({"metadata": {"name": "n",
            "labels": {"zone": "a", "cores": "4"}}, "spec": {"taints": taints}}))
        .unwrap()
    }

    fn check(pod: Value, taints: Value, run: bool, stay: bool) {
        assert_eq!(
            verdict(&set(pod.clone()), &node(taints.clone())),
            Verdict { run, stay },
            "{pod} {taints}"
        );
    }

    #[test]
    fn daemon_pods_ignore_what_ails_a_node_but_not_other_taints() {
        let taint = |key: &str, effect: &str| json!([{"key": key, "effect": effect}]);
        let plain = json!({"containers": []});
        check(plain.clone(), json!([]), true, true);
        check(plain.clone(), taint("node.kubernetes.io/not-ready", "NoExecute"), true, true);
        check(plain.clone(), taint("node.kubernetes.io/unschedulable", "NoSchedule"), true, true);
        check(plain.clone(), taint("node.kubernetes.io/not-ready", "NoSchedule"), false, true);
        check(plain.clone(), taint("x", "PreferNoSchedule"), true, true);
        check(plain.clone(), taint("x", "NoSchedule"), false, true);
        check(plain, taint("x", "NoExecute"), false, false);
        let network = taint("node.kubernetes.io/network-unavailable", "NoSchedule");
        check(json!({"containers": []}), network.clone(), false, true);
        check(json!({"containers": [], "hostNetwork": true}), network, true, true);
        let all = json!({"containers": [], "tolerations": [{"operator": "Exists"}]});
        check(all, taint("x", "NoExecute"), true, true);
    }

    #[test]
    fn selectors_and_affinity_choose_nodes() {
        let affinity = |term: Value| {
            json!({"containers": [],
            "affinity": {"nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}})
        };
        for (pod, fits) in [
            (json!({"containers": [], "nodeSelector": {"zone": "a"}}), true),
            (json!({"containers": [], "nodeSelector": {"zone": "b"}}), false),
            (json!({"containers": [], "nodeName": "other"}), false),
            (
                affinity(json!({"matchExpressions": [{"key": "cores", "operator": "Gt",
                        "values": ["3"]}]})),
                true,
            ),
            (affinity(json!({"matchExpressions": [{"key": "gpu", "operator": "Exists"}]})), false),
            (
                affinity(json!({"matchFields": [{"key": "metadata.name", "operator": "In",
                        "values": ["n"]}]})),
                true,
            ),
            (affinity(json!({})), false),
        ] {
            check(pod, json!([]), fits, fits);
        }
    }

    #[test]
    fn a_pinned_pod_names_its_node() {
        let mut pod: Pod =
            serde_json::from_value(json!({"metadata": {}, "spec": {"containers": []}})).unwrap();
        assert_eq!(target(&pod), None);
        pin(pod.spec.as_mut().unwrap(), "n");
        assert_eq!(target(&pod), Some("n"));
    }
}
