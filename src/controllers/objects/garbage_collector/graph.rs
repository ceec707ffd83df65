//! The graph of owners and dependents, from the watches. Pure.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use api::Gvr;
use api::k8s::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use super::{FOREGROUND, ORPHAN};

/// An owner of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Owner {
    uid: String,
    /// Hash of API version, kind and name: a reference that changes any of them has to be verified
    /// again.
    coordinates: u64,
    blocks: bool,
}

impl Owner {
    fn of(reference: &OwnerReference) -> Self {
        let OwnerReference { api_version, kind, name, uid, .. } = reference;
        let hasher = BuildHasherDefault::<DefaultHasher>::default();
        Self {
            uid: uid.clone(),
            coordinates: hasher.hash_one((api_version, kind, name)),
            blocks: reference.block_owner_deletion == Some(true),
        }
    }
}

/// An object that owns, is owned, or is being deleted with dependents to see to.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) gvr: Gvr,
    pub(super) namespace: String,
    pub(super) name: String,
    /// Has a deletion timestamp.
    pub(super) deleting: bool,
    /// Is being deleted in the foreground.
    pub(super) foreground: bool,
    /// Is being deleted and leaves its dependents alone.
    pub(super) orphans: bool,
    owners: Vec<Owner>,
}

impl Node {
    /// The object with this uid is the one that a reference to `name` of `resource` in `namespace`
    /// means.
    pub(super) fn is_at(&self, resource: &Gvr, namespace: &str, name: &str) -> bool {
        (&self.gvr.group, &self.gvr.resource) == (&resource.group, &resource.resource)
            && (self.namespace.as_str(), self.name.as_str()) == (namespace, name)
    }

    /// A namespaced object of another namespace, which a dependent in `namespace` cannot name as
    /// its owner.
    pub(super) fn is_outside(&self, namespace: &str) -> bool {
        !self.namespace.is_empty() && self.namespace != namespace
    }
}

/// Objects by uid, and dependents by the uid of their owner.
#[derive(Debug, Default)]
pub(super) struct Graph {
    nodes: HashMap<String, Node>,
    dependents: HashMap<String, HashSet<String>>,
}

impl Graph {
    /// The object came or changed; which objects to look at.
    pub(super) fn put(&mut self, gvr: &Gvr, meta: &ObjectMeta) -> Vec<String> {
        let Some(uid) = meta.uid.clone() else { return Vec::new() };
        let has = |finalizer: &str| meta.finalizers.iter().flatten().any(|f| f == finalizer);
        let deleting = meta.deletion_timestamp.is_some();
        let owners = meta.owner_references.iter().flatten();
        let node = Node {
            gvr: gvr.clone(),
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
            deleting,
            foreground: deleting && has(FOREGROUND),
            orphans: deleting && has(ORPHAN),
            owners: owners.map(Owner::of).collect(),
        };
        let mut touched = Vec::new();
        if let Some(old) = self.nodes.get(&uid).cloned() {
            if old.owners == node.owners
                && old.deleting == node.deleting
                && old.foreground == node.foreground
                && old.orphans == node.orphans
            {
                return Vec::new();
            }
            self.unlink(&uid, &old);
            // An owner that waited for this dependent may go now.
            touched.extend(
                old.owners.iter().filter(|o| !node.owners.contains(o)).map(|o| o.uid.clone()),
            );
        } else if !node.namespace.is_empty() {
            // Dependents in another namespace that the watches reported first.
            touched.extend(self.dependents_outside(&uid, &node.namespace));
        }
        for owner in &node.owners {
            self.dependents.entry(owner.uid.clone()).or_default().insert(uid.clone());
        }
        if node.foreground {
            touched.extend(self.dependents.get(&uid).into_iter().flatten().cloned());
        }
        if !node.owners.is_empty() || node.foreground || node.orphans {
            touched.push(uid.clone());
        }
        self.nodes.insert(uid, node);
        touched
    }

    /// The object is gone; its dependents, and owners that waited for it, are to be looked at.
    pub(super) fn remove(&mut self, uid: &str) -> Vec<String> {
        let mut touched: Vec<String> =
            self.dependents.get(uid).into_iter().flatten().cloned().collect();
        if let Some(node) = self.nodes.remove(uid) {
            self.unlink(uid, &node);
            touched.extend(
                node.owners
                    .into_iter()
                    .map(|o| o.uid)
                    .filter(|o| self.nodes.get(o).is_some_and(|n| n.foreground)),
            );
        }
        touched
    }

    fn unlink(&mut self, uid: &str, node: &Node) {
        for owner in &node.owners {
            if let Some(set) = self.dependents.get_mut(&owner.uid) {
                set.remove(uid);
                if set.is_empty() {
                    self.dependents.remove(&owner.uid);
                }
            }
        }
    }

    pub(super) fn get(&self, uid: &str) -> Option<Node> {
        self.nodes.get(uid).cloned()
    }

    pub(super) fn has_dependents(&self, uid: &str) -> bool {
        self.dependents.contains_key(uid)
    }

    fn dependents_outside(&self, uid: &str, namespace: &str) -> Vec<String> {
        let outside = |d: &&String| self.nodes.get(*d).is_some_and(|n| n.namespace != namespace);
        self.dependents.get(uid).into_iter().flatten().filter(outside).cloned().collect()
    }

    /// A dependent is itself being deleted in the foreground, perhaps waiting for this one: the
    /// owners may form a circle.
    pub(super) fn has_foreground_dependent(&self, uid: &str) -> bool {
        let foreground = |d: &String| self.nodes.get(d).is_some_and(|n| n.foreground);
        self.dependents.get(uid).into_iter().flatten().any(foreground)
    }

    pub(super) fn dependents(&self, uid: &str) -> Vec<Node> {
        self.dependents.get(uid).into_iter().flatten().filter_map(|d| self.get(d)).collect()
    }

    /// Uids of dependents that keep the owner from going.
    pub(super) fn blocking_dependents(&self, uid: &str) -> Vec<String> {
        let blocks = |d: &&String| {
            self.nodes.get(*d).is_some_and(|n| n.owners.iter().any(|o| o.uid == uid && o.blocks))
        };
        self.dependents.get(uid).into_iter().flatten().filter(blocks).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn meta(value: serde_json::Value) -> ObjectMeta {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn dependents_are_looked_at_when_their_owner_goes() {
        let (mut graph, gvr) = (Graph::default(), Gvr::new("", "v1", "pods"));
        assert!(graph.put(&gvr, &meta(json!({"uid": "o", "name": "o"}))).is_empty());
        let dependent = json!({"uid": "d", "name": "d",
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "o", "uid": "o",
            "blockOwnerDeletion": true}]});
        assert_eq!(graph.put(&gvr, &meta(dependent.clone())), ["d"]);
        assert!(graph.put(&gvr, &meta(dependent)).is_empty());
        assert_eq!(graph.remove("o"), ["d"]);
    }

    #[test]
    fn a_reference_that_changes_its_kind_or_name_is_verified_again() {
        let (mut graph, gvr) = (Graph::default(), Gvr::new("", "v1", "configmaps"));
        let dependent = |kind: &str, name: &str| {
            meta(json!({"uid": "d", "ownerReferences": [{"apiVersion": "v1", "kind": kind,
                    "name": name, "uid": "o"}]}))
        };
        assert_eq!(graph.put(&gvr, &dependent("ConfigMap", "o")), ["d"]);
        assert!(graph.put(&gvr, &dependent("ConfigMap", "o")).is_empty());
        assert!(graph.put(&gvr, &dependent("Secret", "o")).contains(&"d".to_owned()));
        assert!(graph.put(&gvr, &dependent("Secret", "p")).contains(&"d".to_owned()));
    }

    #[test]
    fn an_owner_in_another_namespace_requeues_dependents_that_came_first() {
        let (mut graph, gvr) = (Graph::default(), Gvr::new("", "v1", "configmaps"));
        let at = |uid: &str, namespace: &str| {
            meta(json!({"uid": uid, "name": uid, "namespace": namespace,
            "ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "o",
                "uid": "o"}]}))
        };
        graph.put(&gvr, &at("inside", "a"));
        graph.put(&gvr, &at("outside", "b"));
        graph.put(&gvr, &at("cluster", ""));
        let owner = meta(json!({"uid": "o", "name": "o", "namespace": "a"}));
        let mut touched = graph.put(&gvr, &owner);
        touched.sort();
        assert_eq!(touched, ["cluster", "outside"]);
    }

    #[test]
    fn an_owner_is_the_object_of_that_kind_namespace_and_name() {
        let (mut graph, gvr) = (Graph::default(), Gvr::new("", "v1", "configmaps"));
        graph.put(&gvr, &meta(json!({"uid": "o", "name": "o", "namespace": "a"})));
        let owner = graph.get("o").unwrap();
        assert!(owner.is_at(&gvr, "a", "o"));
        assert!(!owner.is_at(&Gvr::new("", "v1", "secrets"), "a", "o"), "another kind");
        assert!(!owner.is_at(&gvr, "b", "o"), "another namespace");
        assert!(!owner.is_at(&gvr, "a", "p"), "another name");
        assert!(owner.is_outside("b") && owner.is_outside("") && !owner.is_outside("a"));
    }

    #[test]
    fn a_foreground_owner_waits_for_blocking_dependents_and_is_woken_by_the_last() {
        let (mut graph, gvr) = (Graph::default(), Gvr::new("", "v1", "pods"));
        let dependent = json!({"uid": "d", "ownerReferences": [{"apiVersion": "v1", "kind": "Pod",
            "name": "o", "uid": "o", "blockOwnerDeletion": true}]});
        graph.put(&gvr, &meta(dependent));
        let owner = json!({"uid": "o", "deletionTimestamp": "2026-01-01T00:00:00Z",
            "finalizers": ["foregroundDeletion"]});
        assert_eq!(graph.put(&gvr, &meta(owner)), ["d", "o"]);
        assert_eq!(graph.blocking_dependents("o"), ["d"]);
        assert_eq!(graph.remove("d"), ["o"]);
        assert!(graph.blocking_dependents("o").is_empty());
    }

    #[test]
    fn in_a_circle_the_last_sees_that_the_first_is_going() {
        let (mut graph, gvr) = (Graph::default(), Gvr::new("", "v1", "pods"));
        let owned = |uid: &str, owner: &str, blocks: bool| {
            meta(json!({"uid": uid, "ownerReferences": [{"apiVersion": "v1", "kind": "Pod",
                    "name": owner, "uid": owner, "blockOwnerDeletion": blocks}]}))
        };
        let mut first = owned("a", "c", true);
        graph.put(&gvr, &first);
        graph.put(&gvr, &owned("b", "a", true));
        graph.put(&gvr, &owned("c", "b", true));
        assert!(!graph.has_foreground_dependent("c"));
        let going = meta(json!({"deletionTimestamp": "2026-01-01T00:00:00Z",
                "finalizers": ["foregroundDeletion"]}));
        first.deletion_timestamp = going.deletion_timestamp;
        first.finalizers = going.finalizers;
        graph.put(&gvr, &first);
        assert!(graph.has_foreground_dependent("c") && !graph.has_foreground_dependent("b"));
        // Once it blocks no more, its owner is looked at again.
        assert_eq!(graph.put(&gvr, &owned("c", "b", false)), ["b", "c"]);
        assert!(graph.blocking_dependents("b").is_empty());
    }
}
