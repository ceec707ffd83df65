//! What a Node says about attached volumes, read without decoding the rest of it.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::Object;
use serde::Deserialize;
use sorting::CollectOrdered as _;

use super::names::VolumeName;

/// Annotation of nodes whose volumes this controller attaches; its value is ignored.
const MANAGED: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
/// Taint of a node that is shut down for good: its volumes are detached although they are mounted.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// An element of `status.volumesAttached`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ListedVolume {
    /// The unique name of the volume, of any plugin.
    pub(super) name: String,
    /// The device, empty for CSI and for disks.
    #[serde(default)]
    pub(super) device_path: String,
}

/// The fields of a Node that decide about attachments.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct AttachNode {
    /// Identifies the node among others of its name.
    pub(super) uid: Arc<str>,
    /// The revision of the object.
    pub(super) version: i64,
    /// It has the annotation [`MANAGED`].
    pub(super) is_managed: bool,
    /// The condition `Ready` is `True`.
    pub(super) is_ready: bool,
    /// It has the taint [`OUT_OF_SERVICE`] of any value and effect.
    pub(super) is_out_of_service: bool,
    /// `status.volumesInUse`: what the kubelet mounts or is about to mount.
    pub(super) in_use: BTreeSet<String>,
    /// `status.volumesAttached`: what the kubelet may mount.
    pub(super) listed: Vec<ListedVolume>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Shape {
    metadata: Metadata,
    spec: Spec,
    status: Status,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Metadata {
    annotations: Option<std::collections::BTreeMap<String, serde::de::IgnoredAny>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Spec {
    taints: Option<Vec<Taint>>,
}

#[derive(Deserialize)]
struct Taint {
    key: String,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    conditions: Option<Vec<Condition>>,
    volumes_in_use: Option<BTreeSet<String>>,
    volumes_attached: Option<Vec<ListedVolume>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
}

impl AttachNode {
    /// Reads a Node.
    ///
    /// # Errors
    /// A field has another type than in the API.
    pub(super) fn of(node: &Object) -> Result<Self, serde_json::Error> {
        let shape: Shape = serde_json::from_slice(node.raw())?;
        let conditions = shape.status.conditions.unwrap_or_default();
        let taints = shape.spec.taints.unwrap_or_default();
        Ok(Self {
            uid: Arc::clone(&node.uid),
            version: node.resource_version,
            is_managed: shape.metadata.annotations.is_some_and(|a| a.contains_key(MANAGED)),
            is_ready: conditions.iter().any(|c| c.kind == "Ready" && c.status == "True"),
            is_out_of_service: taints.iter().any(|t| t.key == OUT_OF_SERVICE),
            in_use: shape.status.volumes_in_use.unwrap_or_default(),
            listed: shape.status.volumes_attached.unwrap_or_default(),
        })
    }

    /// The volumes in `status.volumesAttached` of which this controller decides.
    pub(super) fn listed_volumes(&self) -> BTreeSet<VolumeName> {
        self.listed.iter().filter_map(|v| VolumeName::parse(&v.name)).collect_set()
    }
}

/// Which volumes a change of a node concerns.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NodeChange {
    /// Those attached to it and those of its pods.
    All,
    /// Those attached to it.
    Attached,
    /// These.
    Volumes(BTreeSet<VolumeName>),
}

impl NodeChange {
    /// Compares two states of one node.
    pub(super) fn between(old: &AttachNode, new: &AttachNode) -> Self {
        if old.uid != new.uid || old.is_managed != new.is_managed {
            return Self::All;
        }
        if (old.is_ready, old.is_out_of_service) != (new.is_ready, new.is_out_of_service) {
            return Self::Attached;
        }
        let in_use = old.in_use.symmetric_difference(&new.in_use);
        let mut volumes: BTreeSet<VolumeName> =
            in_use.filter_map(|name| VolumeName::parse(name)).collect_set();
        let (listed_before, listed) = (old.listed_volumes(), new.listed_volumes());
        volumes.extend(listed_before.symmetric_difference(&listed).cloned());
        Self::Volumes(volumes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn node(value: Value) -> AttachNode {
        AttachNode::of(&Object::from_value(value).unwrap()).unwrap()
    }

    #[test]
    fn annotation_condition_and_taint_count_by_their_keys() {
        let full = node(json!({
            "metadata": {"name": "n", "uid": "u", "resourceVersion": "7",
                "annotations": {MANAGED: "false"}},
            "spec": {"taints": [{"key": OUT_OF_SERVICE, "value": "x", "effect": "NoSchedule"}]},
            "status": {"conditions": [{"type": "Ready", "status": "True"}],
                "volumesInUse": ["kubernetes.io/csi/d^a"],
                "volumesAttached": [{"name": "kubernetes.io/csi/d^a", "devicePath": ""},
                    {"name": "kubernetes.io/testPlugin/lost", "devicePath": "/dev/a"}]}}));
        assert!(full.is_managed && full.is_ready && full.is_out_of_service);
        assert_eq!((&*full.uid, full.version, full.listed.len()), ("u", 7, 2));
        assert_eq!(full.listed_volumes(), BTreeSet::from([VolumeName::new("d", "a")]));
        let unknown = node(json!({"metadata": {"name": "n"},
            "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}));
        assert!(!unknown.is_managed && !unknown.is_ready && !unknown.is_out_of_service);
    }

    #[test]
    fn a_change_concerns_the_volumes_that_it_names() {
        let volumes = |names: &[&str]| -> BTreeSet<String> {
            names.iter().map(|name| format!("kubernetes.io/csi/d^{name}")).collect()
        };
        let old = AttachNode { in_use: volumes(&["a", "b"]), ..AttachNode::default() };
        let new = AttachNode { in_use: volumes(&["b", "c"]), ..AttachNode::default() };
        let want = BTreeSet::from([VolumeName::new("d", "a"), VolumeName::new("d", "c")]);
        assert_eq!(NodeChange::between(&old, &new), NodeChange::Volumes(want));
        let ready = AttachNode { is_ready: true, ..new.clone() };
        assert_eq!(NodeChange::between(&new, &ready), NodeChange::Attached);
        let managed = AttachNode { is_managed: true, ..ready.clone() };
        assert_eq!(NodeChange::between(&ready, &managed), NodeChange::All);
        let heartbeat = AttachNode { version: 9, ..managed.clone() };
        assert_eq!(NodeChange::between(&managed, &heartbeat), NodeChange::Volumes(BTreeSet::new()));
    }
}
