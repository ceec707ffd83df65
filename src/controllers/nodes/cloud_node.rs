//! The built-in part of a cloud controller: nodes register with their addresses and provider id, so
//! that all that is left is to remove the taint of nodes that wait for a cloud controller.

use std::sync::Arc;

use api::k8s::api::core::v1::{Node, Taint};
use client::{Action, Client, Error, Informer, Patch};
use serde_json::json;

use crate::framework::context::Context;
use crate::framework::keyed::{Keyed, settled};

/// Service account and name of the controller.
const CONTROLLER: &str = "cloud-node-controller";
/// Taint of nodes that no cloud controller has initialized (`cloudproviderapi`).
const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";

/// The taints that remain on a node, if it has the one of nodes that are not initialized.
fn remaining(node: &Node) -> Option<Vec<Taint>> {
    let taints = node.spec.as_ref()?.taints.as_ref()?;
    let is_other = |taint: &&Taint| taint.key != UNINITIALIZED;
    let rest: Vec<Taint> = taints.iter().filter(is_other).cloned().collect();
    (rest.len() < taints.len()).then_some(rest)
}

/// Starts the controller.
pub(crate) fn start(context: &Context) {
    let client = context.client(CONTROLLER);
    let nodes: Informer<Node> = context.informers.of();
    let mut keyed = Keyed::new();
    keyed.watches_self(&nodes);
    let state = Arc::new((client, nodes));
    keyed.run(&context.tasks, CONTROLLER, 1, move |(_, name)| {
        let state = Arc::clone(&state);
        async move { initialize(&state.0, &state.1, &name).await }
    });
}

async fn initialize(client: &Client, nodes: &Informer<Node>, name: &str) -> Result<Action, Error> {
    let Some(node) = nodes.get("", name) else { return Ok(Action::Done) };
    if let Some(taints) = remaining(&node) {
        let version = &node.metadata.resource_version;
        let patch = json!({"metadata": {"resourceVersion": version}, "spec": {"taints": taints}});
        // A conflict comes with a change of the node, which wakes this key again.
        settled(client.patch::<Node>("", name, "", &Patch::Merge(&patch)).await)?;
    }
    Ok(Action::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_taint_of_uninitialized_nodes_is_removed() {
        let node = |keys: &[&str]| -> Node {
            let taints: Vec<_> =
                keys.iter().map(|key| json!({"key": key, "effect": "NoSchedule"})).collect();
            serde_json::from_value(json!({"metadata": {}, "spec": {"taints": taints}})).unwrap()
        };
        assert_eq!(remaining(&node(&[])), None);
        assert_eq!(remaining(&node(&["a"])), None);
        let rest = remaining(&node(&["a", UNINITIALIZED])).unwrap();
        assert_eq!(rest.iter().map(|t| &*t.key).collect::<Vec<_>>(), ["a"]);
    }
}
