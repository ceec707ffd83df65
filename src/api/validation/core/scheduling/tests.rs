//! The rules of `pkg/apis/core/validation` about where a pod may run.

use super::*;
use crate::validation::tests::{same, with};
use serde_json::json;

/// `ValidateNodeSelectorRequirement` and `ValidateNodeFieldSelectorRequirement` of
/// `pkg/apis/core/validation`.
#[test]
fn node_selectors_have_terms_with_fitting_values() {
    let check = |term: Value, expected: &[&str]| {
        let selector = json!({ "nodeSelectorTerms": [term] });
        same(&node_selector(&selector, false, &Path::new("s")), expected);
    };
    let label = |operator: &str, values: Value| {
        let one = json!({"key": "k", "operator": operator, "values": values});
        json!({ "matchExpressions": [one] })
    };
    let name = |key: &str, operator: &str, values: Value| {
        let one = json!({"key": key, "operator": operator, "values": values});
        json!({ "matchFields": [one] })
    };
    const LABEL: &str = "s.nodeSelectorTerms[0].matchExpressions[0]";
    const NAME: &str = "s.nodeSelectorTerms[0].matchFields[0]";
    same(
        &node_selector(&json!({}), false, &Path::new("s")),
        &["s.nodeSelectorTerms: Required value: must have at least one node selector term"],
    );
    check(json!({}), &[]);
    check(label("In", json!(["a"])), &[]);
    check(label("Gt", json!(["10"])), &[]);
    check(name("metadata.name", "In", json!(["node"])), &[]);
    check(
        label("In", json!([])),
        &[&format!(
            "{LABEL}.values: Required value: \
             must be specified when `operator` is 'In' or 'NotIn'"
        )],
    );
    check(
        label("Exists", json!(["a"])),
        &[&format!(
            "{LABEL}.values: Forbidden: \
             may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
        )],
    );
    check(
        label("Lt", json!(["1", "2"])),
        &[&format!(
            "{LABEL}.values: Required value: \
             must be specified single value when `operator` is 'Lt' or 'Gt'"
        )],
    );
    check(
        name("metadata.name", "In", json!(["a", "b"])),
        &[&format!(
            "{NAME}.values: Required value: must be only one value when `operator` is 'In' \
             or 'NotIn' for node field selector"
        )],
    );
    check(
        name("metadata.namespace", "Exists", json!([])),
        &[
            &format!("{NAME}.operator: Invalid value: \"Exists\": not a valid selector operator"),
            &format!(
                "{NAME}.key: Invalid value: \"metadata.namespace\": \
                 not a valid field selector key"
            ),
        ],
    );
}

/// `ValidatePreferredSchedulingTerms`, `validatePodAffinityTerm` and
/// `ValidateMatchLabelKeysAndMismatchLabelKeys` of `pkg/apis/core/validation`.
#[test]
fn affinity_terms_have_weights_and_topology_keys() {
    let check = |changes: Value, expected: &[&str]| {
        same(&affinity(&json!({ "affinity": changes }), &Path::new("a")), expected);
    };
    let term = |changes: Value| {
        let base = json!({"topologyKey": "zone", "labelSelector": {}});
        json!({"podAntiAffinity": { REQUIRED: [with(&base, &changes)] }})
    };
    const AT: &str = "a.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0]";
    let weighted = |weight: i64| {
        let term = json!({"weight": weight, "preference": {}});
        json!({"nodeAffinity": { PREFERRED: [term] }})
    };
    check(weighted(100), &[]);
    for weight in [0, 101] {
        let text = format!(
            "a.nodeAffinity.{PREFERRED}[0].weight: Invalid value: {weight}: \
             must be in the range 1-100"
        );
        check(weighted(weight), &[&text]);
    }
    check(term(json!({"matchLabelKeys": ["a"], "mismatchLabelKeys": ["b"]})), &[]);
    check(
        term(json!({"topologyKey": ""})),
        &[
            &format!("{AT}.topologyKey: Required value: can not be empty"),
            &format!("{AT}.topologyKey: Invalid value: \"\": name part must be non-empty"),
            &format!("{AT}.topologyKey: Invalid value: \"\": name part ..."),
        ],
    );
    check(
        term(json!({"namespaces": ["a.b"]})),
        &[&format!("{AT}.namespace: Invalid value: \"a.b\": must not contain dots")],
    );
    check(
        term(json!({"labelSelector": null, "matchLabelKeys": ["a"]})),
        &[&format!(
            "{AT}.matchLabelKeys: Forbidden: \
             must not be specified when labelSelector is not set"
        )],
    );
    check(
        term(json!({"matchLabelKeys": ["a"], "mismatchLabelKeys": ["a"]})),
        &[&format!(
            "{AT}.matchLabelKeys[0]: Invalid value: \"a\": \
             exists in both matchLabelKeys and mismatchLabelKeys"
        )],
    );
}

/// `validateTopologySpreadConstraints` of `pkg/apis/core/validation`.
#[test]
fn spread_constraints_differ_and_have_a_positive_skew() {
    let base = json!({"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {}});
    let check = |list: &[Value], expected: &[&str]| {
        let list: Vec<Value> = list.iter().map(|changes| with(&base, changes)).collect();
        same(&spread(&json!({ "topologySpreadConstraints": list }), &Path::new("t")), expected);
    };
    check(&[json!({}), json!({"topologyKey": "host"})], &[]);
    check(&[json!({"minDomains": 2, "nodeTaintsPolicy": "Honor"})], &[]);
    check(&[json!({"maxSkew": 0})], &["t[0].maxSkew: Invalid value: 0: must be greater than zero"]);
    check(&[json!({"topologyKey": ""})], &["t[0].topologyKey: Required value: can not be empty"]);
    check(
        &[json!({"whenUnsatisfiable": "N/A"})],
        &["t[0].whenUnsatisfiable: Unsupported value: \"N/A\": \
           supported values: \"DoNotSchedule\", \"ScheduleAnyway\""],
    );
    check(
        &[json!({}), json!({"maxSkew": 2})],
        &["t[0].{topologyKey, whenUnsatisfiable}: Duplicate value: \"{zone, DoNotSchedule}\""],
    );
    check(
        &[json!({"whenUnsatisfiable": "ScheduleAnyway", "minDomains": -1})],
        &[
            "t[0].minDomains: Invalid value: -1: must be greater than zero",
            "t[0].minDomains: Invalid value: -1: can only use minDomains if \
             whenUnsatisfiable=DoNotSchedule, not ScheduleAnyway",
        ],
    );
    check(
        &[json!({"nodeAffinityPolicy": "X"})],
        &["t[0].nodeAffinityPolicy: Unsupported value: \"X\": \
           supported values: \"Honor\", \"Ignore\""],
    );
}

/// `ValidateTolerations` of `pkg/apis/core/validation`.
#[test]
fn tolerations_without_a_key_match_every_taint() {
    let check = |toleration: Value, expected: &[&str]| {
        same(&tolerations(&[toleration], &Path::new("t")), expected);
    };
    check(json!({"operator": "Exists"}), &[]);
    check(json!({"key": "k", "value": "v", "effect": "NoSchedule"}), &[]);
    check(
        json!({"operator": "Equal"}),
        &["t[0].operator: Invalid value: \"Equal\": operator must be Exists when `key` is \
           empty, which means \"match all values and all keys\""],
    );
    check(
        json!({"key": "k", "operator": "Exists", "value": "v"}),
        &["t[0].operator: Invalid value: \"v\": \
           value must be empty when `operator` is 'Exists'"],
    );
    check(
        json!({"key": "k", "operator": "Exists", "tolerationSeconds": 5, "effect": "NoSchedule"}),
        &["t[0].effect: Invalid value: \"NoSchedule\": \
           effect must be 'NoExecute' when `tolerationSeconds` is set"],
    );
    check(
        json!({"key": "k", "operator": "In"}),
        &["t[0].operator: Unsupported value: \"In\": supported values: \"Equal\", \"Exists\""],
    );
    check(
        json!({"key": "k", "operator": "Gt", "value": "5"}),
        &["t[0].operator: Unsupported value: \"Gt\": \
           supported values: \"Equal\", \"Exists\", \"Lt\", \"Gt\""],
    );
    check(
        json!({"key": "k", "effect": "Never"}),
        &["t[0].effect: Unsupported value: \"Never\": \
           supported values: \"NoSchedule\", \"PreferNoSchedule\", \"NoExecute\""],
    );
}

/// `validateNodeAffinityMutation` and `validateNodeSelectorMutation` of
/// `pkg/apis/core/validation`.
#[test]
fn gated_pods_narrow_their_nodes_only() {
    let check = |new: Value, old: Value, expected: &[&str]| {
        same(&narrowing(&new, &old, &Path::new("spec")), expected);
    };
    let labels = |map: Value| json!({ "nodeSelector": map });
    check(labels(json!({"a": "b", "c": "d"})), labels(json!({"a": "b"})), &[]);
    check(
        labels(json!({"c": "d"})),
        labels(json!({"a": "b"})),
        &["spec.nodeSelector: Invalid value: {\"c\":\"d\"}: \
           only additions to spec.nodeSelector are allowed (no mutations or deletions)"],
    );
    let terms = |keys: &[&[&str]]| {
        let term = |keys: &&[&str]| {
            let one = |key: &&str| json!({"key": key, "operator": "Exists"});
            json!({"matchExpressions": keys.iter().map(one).collect::<Vec<_>>()})
        };
        let terms: Vec<Value> = keys.iter().map(term).collect();
        json!({"affinity": {"nodeAffinity": { REQUIRED: {"nodeSelectorTerms": terms} }}})
    };
    const AT: &str = "spec.affinity.nodeAffinity.\
        requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
    check(terms(&[&["a", "b"]]), terms(&[&["a"]]), &[]);
    check(terms(&[&["a"]]), json!({}), &[]);
    check(terms(&[&["b"]]), terms(&[&["a"]]), &[&format!("{AT}[0]: Invalid value: ...")]);
    check(terms(&[&["a"], &["b"]]), terms(&[&["a"]]), &[&format!("{AT}: Invalid value: ...")]);
}
