//! The index of pods by node: each agent lists and watches its own pods without a scan of all
//! others.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use api::Object;
use serde::Deserialize;

use super::state::CachedObject;
use crate::registry::Resource;

/// The field, in addition to the name, that wakes watches and finds lists by its value: upstream's
/// trigger and index of pods (`pkg/registry/core/pod`, `NodeNameTriggerFunc` and
/// `Indexers`).
pub(super) const FIELD: &str = "spec.nodeName";

/// Whether the objects of this resource are indexed: only pods are.
pub(super) fn are_indexed(row: &Resource) -> bool {
    row.spec.gvr.group.is_empty() && *row.spec.gvr.resource == *"pods"
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Spec<'a> {
    #[serde(borrow, rename = "nodeName")]
    node: Cow<'a, str>,
}

#[derive(Deserialize)]
struct Pod<'a> {
    #[serde(borrow, default)]
    spec: Spec<'a>,
}

/// The node of a pod, read from its bytes without parsing the whole object; empty without one.
pub(super) fn node_of(object: &Object) -> Box<str> {
    match serde_json::from_slice::<Pod<'_>>(object.raw()) {
        Ok(pod) => pod.spec.node.into(),
        // Another form than this server writes, such as null.
        Err(_) => {
            let value = object.value().unwrap_or_default();
            let node = value.get("spec").and_then(|spec| spec.get("nodeName"));
            node.and_then(|node| node.as_str()).unwrap_or_default().into()
        }
    }
}

/// Keys of the pods of each node.
#[derive(Debug, Default)]
pub(super) struct Nodes(HashMap<Box<str>, BTreeSet<Box<str>>>);

impl Nodes {
    /// Keys of the pods of a node, in order.
    pub(super) fn of(&self, node: &str) -> Option<&BTreeSet<Box<str>>> {
        self.0.get(node)
    }

    /// Adds a new pod.
    pub(super) fn add(&mut self, key: &str, pod: &CachedObject) {
        if pod.node().is_empty() {
            return;
        }
        if let Some(keys) = self.0.get_mut(pod.node()) {
            keys.insert(key.into());
        } else {
            self.0.insert(pod.node().into(), BTreeSet::from([key.into()]));
        }
    }

    /// Removes a deleted pod.
    pub(super) fn remove(&mut self, key: &str, pod: &CachedObject) {
        if let Some(keys) = self.0.get_mut(pod.node()) {
            keys.remove(key);
            if keys.is_empty() {
                self.0.remove(pod.node());
            }
        }
    }

    /// Moves a changed pod; `before` is its previous state.
    pub(super) fn change(
        &mut self,
        key: &str,
        before: Option<&Arc<CachedObject>>,
        now: &CachedObject,
    ) {
        match before {
            Some(before) if before.node() == now.node() => return,
            Some(before) => self.remove(key, before),
            None => {}
        }
        self.add(key, now);
    }
}

#[cfg(test)]
mod tests {
    use super::super::state::{Filter, State};
    use super::*;
    use crate::registry::Registry;
    use crate::registry::selection::Selection;
    use api::Gvr;
    use api::schema::Schema;
    use serde_json::{Value, json};
    use std::collections::BTreeMap;

    fn pod(name: &str, spec: Value) -> Object {
        Object::from_value(
            json!({"kind": "Pod", "metadata": {"name": name, "namespace": "n"}, "spec": spec}),
        )
        .unwrap()
    }

    #[test]
    fn the_node_is_read_over_the_bytes() {
        let node = |spec| String::from(node_of(&pod("x", spec)));
        assert_eq!(node(json!({"containers": [{"nodeName": "no"}], "nodeName": "a"})), "a");
        assert_eq!(node(json!({"nodeName": "\u{e9}\"b"})), "\u{e9}\"b");
        assert_eq!(node(json!({"containers": []})), "");
        assert_eq!(node(json!({"nodeName": null})), "");
        let bare = Object::from_value(json!({"metadata": {"name": "x"}, "spec": null})).unwrap();
        assert_eq!(&*node_of(&bare), "");
    }

    #[test]
    fn a_list_of_one_node_follows_its_pods() {
        let registry = Registry::builtin(Arc::new(Schema::new()));
        let row = Arc::clone(registry.row(&Gvr::new("", "v1", "pods")).unwrap());
        let mut state = State::of(&row);
        let loaded: BTreeMap<Box<str>, Arc<CachedObject>> = ["p-1", "p-2", "p-3"]
            .map(|name| {
                let pod = pod(name, json!({"nodeName": if name == "p-3" { "b" } else { "a" }}));
                (format!("n/{name}").into(), CachedObject::new(Arc::new(pod)))
            })
            .into();
        state.load(loaded, 1);
        let listed = |state: &State, fields: &str, namespace: &str, start: Option<&str>, limit| {
            let selection = Selection::parse(&row, "", fields).unwrap();
            let filter = Filter { selection, namespace: namespace.into(), ..Filter::default() };
            let page = state.list(&row, &filter, start, limit);
            let names: Vec<String> = page.items.iter().map(|o| o.key.name.to_string()).collect();
            (names.join(" "), page.last)
        };
        let all = |state: &State, fields: &str| listed(state, fields, "", None, 0).0;
        assert_eq!(all(&state, "spec.nodeName=a"), "p-1 p-2");
        assert_eq!(listed(&state, "spec.nodeName=a", "m", None, 0).0, "");
        assert_eq!(
            listed(&state, "spec.nodeName=a", "n", None, 1),
            ("p-1".into(), Some("n/p-1".into()))
        );
        assert_eq!(listed(&state, "spec.nodeName=a", "n", Some("n/p-1\0"), 1).0, "p-2");
        let mut put = |name: &str, object: Option<Object>, at| {
            state.apply(vec![(format!("n/{name}").into(), object, at)], at);
            [
                all(&state, "spec.nodeName=a"),
                all(&state, "spec.nodeName=b"),
                all(&state, "spec.nodeName="),
            ]
        };
        assert_eq!(put("p-4", Some(pod("p-4", json!({}))), 2), ["p-1 p-2", "p-3", "p-4"]);
        assert_eq!(
            put("p-4", Some(pod("p-4", json!({"nodeName": "a"}))), 3),
            ["p-1 p-2 p-4", "p-3", ""]
        );
        assert_eq!(put("p-2", None, 4), ["p-1 p-4", "p-3", ""]);
        assert_eq!(
            put("p-3", Some(pod("p-3", json!({"nodeName": "a"}))), 5),
            ["p-1 p-3 p-4", "", ""]
        );
        // Another term still selects among them.
        assert_eq!(all(&state, "spec.nodeName=a,metadata.name!=p-1"), "p-3 p-4");
        assert_eq!(all(&state, "spec.nodeName!=a"), "");
    }
}
