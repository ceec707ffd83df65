//! The CSINodes, decoded once per change: a cycle reads those of all nodes that it filters.

use std::collections::HashMap;
use std::sync::Arc;

use api::k8s::api::storage::v1::CSINode;
use client::Change;
use client::informer::decode;
use parking_lot::Mutex;

/// The CSINodes by name.
#[derive(Debug, Default)]
pub(super) struct CsiNodes(Mutex<HashMap<String, Arc<CSINode>>>);

/// A change of a CSINode.
pub(super) struct CsiNodeChange {
    pub(super) old: Option<Arc<CSINode>>,
    pub(super) new: Option<Arc<CSINode>>,
}

impl CsiNodes {
    /// The CSINode of the node with this name.
    pub(super) fn get(&self, name: &str) -> Option<Arc<CSINode>> {
        self.0.lock().get(name).cloned()
    }

    /// Applies a change.
    pub(super) fn apply(&self, change: &Change) -> CsiNodeChange {
        let object = change.object();
        let is_deleted = matches!(change, Change::Deleted(_));
        let new = if is_deleted { None } else { decode::<CSINode>(object).map(Arc::new) };
        let mut known = self.0.lock();
        let old = match &new {
            Some(new) => known.insert(object.key.name.to_string(), Arc::clone(new)),
            None => known.remove(&*object.key.name),
        };
        CsiNodeChange { old, new }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_object_of_a_name_counts() {
        let object = |drivers: serde_json::Value| {
            let value = serde_json::json!({
                "apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": "n"},
                "spec": {"drivers": drivers},
            });
            Arc::new(api::Object::from_value(value).unwrap())
        };
        let none = object(serde_json::json!([]));
        let one = object(serde_json::json!([{"name": "d", "nodeID": "n"}]));
        let nodes = CsiNodes::default();
        nodes.apply(&Change::Added(Arc::clone(&none)));
        assert_eq!(nodes.get("n").unwrap().spec.drivers.len(), 0);
        let change = nodes.apply(&Change::Updated { old: none, new: Arc::clone(&one) });
        assert_eq!(change.old.unwrap().spec.drivers.len(), 0);
        assert_eq!(nodes.get("n").unwrap().spec.drivers.len(), 1);
        nodes.apply(&Change::Deleted(one));
        assert!(nodes.get("n").is_none());
    }
}
