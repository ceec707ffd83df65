//! Node selectors: `nodeSelector` and node affinity terms.

use api::k8s::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm};
use client::labels::Labels;

use crate::node_info::NodeInfo;
use crate::pod_info::PodInfo;

fn matches(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let listed = || value.is_some_and(|value| values.iter().any(|v| v == value));
    let compare = |test: fn(i64, i64) -> bool| {
        let wanted = values.first().and_then(|v| v.parse::<i64>().ok());
        let have = value.and_then(|v| v.parse::<i64>().ok());
        matches!((have, wanted), (Some(have), Some(wanted)) if test(have, wanted))
    };
    match requirement.operator.as_str() {
        "In" => listed(),
        "NotIn" => !listed(),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compare(|a, b| a > b),
        "Lt" => compare(|a, b| a < b),
        _ => false,
    }
}

/// The term selects a node; an empty term selects none.
pub(crate) fn term_matches(term: &NodeSelectorTerm, name: &str, labels: &Labels) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    if expressions.is_empty() && fields.is_empty() {
        return false;
    }
    expressions.iter().all(|r| matches(r, labels.get(&r.key).map(String::as_str)))
        && fields.iter().all(|r| r.key == "metadata.name" && matches(r, Some(name)))
}

/// The pod's `nodeSelector` and required node affinity allow the node.
pub(crate) fn allows(pod: &PodInfo, node: &NodeInfo) -> bool {
    client::labels::contains(&pod.node_selector, Some(&node.labels))
        && pod
            .required_nodes
            .as_ref()
            .is_none_or(|terms| terms.iter().any(|t| term_matches(t, &node.name, &node.labels)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_match_as_documented() {
        for (operator, values, found, want) in [
            ("In", vec!["a", "b"], Some("b"), true),
            ("NotIn", vec!["a"], None, true),
            ("Exists", vec![], None, false),
            ("Gt", vec!["3"], Some("10"), true),
            ("Lt", vec!["3"], Some("x"), false),
        ] {
            let values = values.into_iter().map(str::to_owned).collect();
            let requirement = NodeSelectorRequirement {
                key: "k".into(),
                operator: operator.into(),
                values: Some(values),
            };
            assert_eq!(matches(&requirement, found), want, "{operator}");
        }
        assert!(!term_matches(&NodeSelectorTerm::default(), "n", &Labels::new()));
    }
}
