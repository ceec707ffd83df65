//! Labels and taints of the Node object that are set by flags. At each start, those that are no
//! longer in the flags are removed; those of others are kept.

use std::collections::BTreeMap;

use api::k8s::api::core::v1 as core;
use api::k8s::api::core::v1::Taint;
use serde_json::{Map, Value, json};

/// The labels of the last flags, as a JSON object.
pub(super) const LABELS: &str = "kube-lite.io/flag-labels";
/// The taints of the flags, for the node lifecycle controller: nodes may not change their own
/// taints.
pub(super) const TAINTS: &str = "kube-lite.io/flag-taints";
/// The value of [`TAINTS`] that the controller has applied.
pub(super) const APPLIED: &str = "kube-lite.io/applied-flag-taints";

/// Labels and taints of the flags.
pub(super) struct NodeFlags<'a> {
    pub(super) labels: &'a BTreeMap<String, String>,
    pub(super) taints: &'a [Taint],
}

impl NodeFlags<'_> {
    /// Annotations of a new node.
    pub(super) fn annotations(&self) -> BTreeMap<String, String> {
        let mut out = BTreeMap::new();
        if !self.labels.is_empty() {
            out.insert(LABELS.to_owned(), json!(self.labels).to_string());
        }
        if !self.taints.is_empty() {
            let text = self.taints_text(None);
            out.insert(TAINTS.to_owned(), text.clone());
            out.insert(APPLIED.to_owned(), text);
        }
        out
    }

    /// Formats the value of [`TAINTS`]; `again` makes it different, so that it is applied once
    /// more.
    fn taints_text(&self, again: Option<u64>) -> String {
        let taints: Vec<Value> = self
            .taints
            .iter()
            .map(|t| json!({"key": t.key, "value": t.value, "effect": t.effect}))
            .collect();
        match again {
            None => json!({"taints": taints}).to_string(),
            Some(again) => json!({"taints": taints, "again": again}).to_string(),
        }
    }

    /// Returns the merge patch that updates an existing node; `None` if it is up to date. `own` are
    /// the labels of every node, `start` is the time of this start.
    pub(super) fn patch(
        &self,
        node: &core::Node,
        own: &BTreeMap<String, String>,
        start: u64,
    ) -> Option<Value> {
        let empty = BTreeMap::new();
        let have = node.metadata.labels.as_ref().unwrap_or(&empty);
        let notes = node.metadata.annotations.as_ref().unwrap_or(&empty);
        let mut labels = Map::new();
        for (key, value) in self.labels.iter().chain(own) {
            if have.get(key) != Some(value) {
                labels.insert(key.clone(), json!(value));
            }
        }
        let previous: BTreeMap<String, String> =
            notes.get(LABELS).and_then(|t| serde_json::from_str(t).ok()).unwrap_or_default();
        for (key, value) in previous {
            let ours = self.labels.contains_key(&key) || own.contains_key(&key);
            if !ours && have.get(&key) == Some(&value) {
                labels.insert(key, Value::Null);
            }
        }
        let mut annotations = Map::new();
        let note = (!self.labels.is_empty()).then(|| json!(self.labels).to_string());
        if notes.get(LABELS) != note.as_ref() {
            annotations.insert(LABELS.to_owned(), json!(note));
        }
        if let Some(text) = self.taints_note(node, notes, start) {
            annotations.insert(TAINTS.to_owned(), json!(text));
        }
        let mut metadata = Map::new();
        for (name, map) in [("labels", labels), ("annotations", annotations)] {
            if !map.is_empty() {
                metadata.insert(name.to_owned(), Value::Object(map));
            }
        }
        (!metadata.is_empty()).then(|| json!({"metadata": metadata}))
    }

    fn taints_note(
        &self,
        node: &core::Node,
        notes: &BTreeMap<String, String>,
        start: u64,
    ) -> Option<String> {
        let written = notes.get(TAINTS);
        let of = |text: &String| {
            let note: Value = serde_json::from_str(text).ok()?;
            note.get("taints").cloned()
        };
        let plain = self.taints_text(None);
        if written.and_then(of) != of(&plain) {
            return (written.is_some() || !self.taints.is_empty()).then_some(plain);
        }
        let have = node.spec.as_ref().and_then(|s| s.taints.as_deref()).unwrap_or_default();
        let same = |a: &Taint, b: &Taint| {
            let value = |t: &Taint| t.value.clone().unwrap_or_default();
            a.key == b.key && a.effect == b.effect && value(a) == value(b)
        };
        let missing = self.taints.iter().any(|t| !have.iter().any(|h| same(t, h)));
        missing.then(|| self.taints_text(Some(start)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    fn taint(key: &str, value: Option<&str>) -> Taint {
        Taint {
            key: key.into(),
            value: value.map(str::to_owned),
            effect: "NoSchedule".into(),
            time_added: None,
        }
    }

    fn node(labels: Value, annotations: &BTreeMap<String, String>, taints: &[Taint]) -> core::Node {
        serde_json::from_value(json!({
            "metadata": {"labels": labels, "annotations": annotations}, "spec": {"taints": taints},
        }))
        .unwrap()
    }

    #[test]
    fn labels_removed_from_the_flags_are_removed_unless_changed() {
        let own = map(&[("kubernetes.io/os", "linux")]);
        let before = map(&[("a", "1"), ("b", "2"), ("c", "3")]);
        let notes = NodeFlags { labels: &before, taints: &[] }.annotations();
        let labels =
            json!({"a": "1", "b": "9", "c": "8", "user": "x", "kubernetes.io/os": "linux"});
        let now = map(&[("c", "3"), ("d", "4")]);
        let flags = NodeFlags { labels: &now, taints: &[] };
        assert_eq!(
            flags.patch(&node(labels, &notes, &[]), &own, 7),
            Some(json!({"metadata": {
                "labels": {"a": null, "c": "3", "d": "4"},
                "annotations": {"kube-lite.io/flag-labels": "{\"c\":\"3\",\"d\":\"4\"}"},
            }}))
        );
    }

    #[test]
    fn no_patch_is_needed_when_the_node_matches_the_flags() {
        let own = map(&[("kubernetes.io/os", "linux")]);
        let (labels, taints) = (map(&[("a", "1")]), [taint("t", Some("v"))]);
        let flags = NodeFlags { labels: &labels, taints: &taints };
        let notes = flags.annotations();
        let labels = json!({"a": "1", "kubernetes.io/os": "linux", "user": "x"});
        assert_eq!(flags.patch(&node(labels, &notes, &taints), &own, 7), None);
        let (none, own) = (BTreeMap::new(), BTreeMap::new());
        let flags = NodeFlags { labels: &none, taints: &[] };
        assert_eq!(flags.patch(&node(json!({}), &none, &[]), &own, 7), None);
    }

    #[test]
    fn taints_are_written_when_the_flags_change_or_one_is_missing() {
        let (none, own) = (BTreeMap::new(), BTreeMap::new());
        let (old, new) = ([taint("t", Some("v"))], [taint("t", None)]);
        let notes = NodeFlags { labels: &none, taints: &old }.annotations();
        let written = |taints: &[Taint], have: &[Taint]| {
            let patch =
                NodeFlags { labels: &none, taints }.patch(&node(json!({}), &notes, have), &own, 7);
            let note = patch?.pointer("/metadata/annotations/kube-lite.io~1flag-taints")?.clone();
            note.as_str().map(str::to_owned)
        };
        assert_eq!(written(&old, &old), None);
        assert_eq!(written(&[], &old).as_deref(), Some(r#"{"taints":[]}"#));
        assert_eq!(
            written(&new, &old).as_deref(),
            Some(r#"{"taints":[{"effect":"NoSchedule","key":"t","value":null}]}"#)
        );
        assert_eq!(
            written(&old, &[]).as_deref(),
            Some(r#"{"again":7,"taints":[{"effect":"NoSchedule","key":"t","value":"v"}]}"#)
        );
    }
}
