//! NodeAffinity: node selector and node affinity of the pod and of the configuration.

use std::collections::BTreeSet;

use api::k8s::api::core::v1::NodeSelectorTerm;
use sorting::CollectOrdered as _;

use crate::framework::{Plugin, Snapshot, default_normalize_score};
use crate::node_info::NodeInfo;
use crate::node_selector::{allows, term_matches};
use crate::rejection::Rejection;

/// The names of nodes that the required terms of the pod name; `None` if one of the terms allows
/// others.
#[derive(Debug, Clone)]
pub(super) struct NodeAffinity {
    names: Option<BTreeSet<String>>,
}

impl Plugin for NodeAffinity {
    const NAME: &'static str = "NodeAffinity";

    fn pre_filter(snapshot: &Snapshot<'_>) -> Option<Self> {
        let pod = snapshot.pod;
        let terms = pod.required_nodes.as_deref();
        let is_needed = snapshot.args.added_required_nodes.is_some()
            || !pod.node_selector.is_empty()
            || terms.is_some();
        is_needed.then(|| Self { names: terms.and_then(named_nodes) })
    }

    fn verdict(&self) -> Result<(), Rejection> {
        if self.names.as_ref().is_some_and(BTreeSet::is_empty) {
            return Err(Rejection::unresolvable("pod affinity terms conflict"));
        }
        Ok(())
    }

    fn only_nodes(&self) -> Option<&BTreeSet<String>> {
        self.names.as_ref()
    }

    fn filter(&self, snapshot: &Snapshot<'_>, node: &NodeInfo) -> Result<(), Rejection> {
        let matches = |term: &NodeSelectorTerm| term_matches(term, &node.name, &node.labels);
        let added = snapshot.args.added_required_nodes.as_ref();
        if !added.is_none_or(|terms| terms.iter().any(matches)) {
            return Err(Rejection::unresolvable(
                "node(s) didn't match scheduler-enforced node affinity",
            ));
        }
        if allows(snapshot.pod, node) {
            return Ok(());
        }
        Err(Rejection::unresolvable("node(s) didn't match Pod's node affinity/selector"))
    }

    fn pre_score(snapshot: &Snapshot<'_>, _: &[&NodeInfo]) -> Option<Self> {
        let is_needed = !snapshot.pod.preferred_nodes.is_empty()
            || !snapshot.args.added_preferred_nodes.is_empty();
        is_needed.then_some(Self { names: None })
    }

    /// Sum of the weights of the preferred terms that select the node.
    fn score(&self, snapshot: &Snapshot<'_>, node: &NodeInfo) -> i64 {
        let own = snapshot.pod.preferred_nodes.iter();
        own.chain(&snapshot.args.added_preferred_nodes)
            .filter(|(_, term)| term_matches(term, &node.name, &node.labels))
            .map(|(weight, _)| *weight)
            .sum()
    }

    fn normalize_score(&self, scores: &mut [i64]) {
        default_normalize_score(scores, false);
    }
}

/// The names of nodes that the terms name, if each of them names some.
fn named_nodes(terms: &[NodeSelectorTerm]) -> Option<BTreeSet<String>> {
    let names = |term: &NodeSelectorTerm| {
        let fields = term.match_fields.iter().flatten();
        let sets = fields
            .filter(|field| field.key == "metadata.name" && field.operator == "In")
            .map(|field| field.values.iter().flatten().cloned().collect_set());
        sets.reduce(|all, more: BTreeSet<String>| &all & &more)
    };
    if terms.is_empty() {
        return None;
    }
    terms.iter().map(names).try_fold(BTreeSet::new(), |all, names| Some(&all | &names?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Cases of upstream's `TestNodeAffinity` with `metadata.name`.
    #[test]
    fn terms_that_name_nodes_restrict_the_search() {
        let field =
            |names: &[&str]| json!({"key": "metadata.name", "operator": "In", "values": names});
        let names = |terms: serde_json::Value| {
            let terms: Vec<NodeSelectorTerm> = serde_json::from_value(terms).unwrap();
            named_nodes(&terms).map(|names| names.into_iter().collect::<Vec<_>>().join(" "))
        };
        let both = json!([{"matchFields": [field(&["a"])]}, {"matchFields": [field(&["b"])]}]);
        assert_eq!(names(both).as_deref(), Some("a b"));
        let conflict = json!([{"matchFields": [field(&["a"]), field(&["b"])]}]);
        assert_eq!(names(conflict).as_deref(), Some(""));
        let other = json!([{"matchFields": [field(&["a"])]},
            {"matchExpressions": [{"key": "k", "operator": "Exists"}]}]);
        assert_eq!(names(other), None);
        assert_eq!(names(json!([])), None);
    }
}
