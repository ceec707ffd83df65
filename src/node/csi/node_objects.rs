//! The content of the CSINode, and of the annotation and labels of the Node, with what CSI drivers
//! say about a node.

use std::collections::BTreeMap;

use api::k8s::api::core::v1::Node;
use api::k8s::api::storage::v1::{CSINode, CSINodeDriver, CSINodeSpec, VolumeNodeResources};
use api::k8s::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use serde_json::{Value, json};
use sorting::CompactSort as _;

/// Annotation of a Node with the names that drivers have for it.
const NODE_IDS: &str = "csi.volume.kubernetes.io/nodeid";
/// Annotation of a CSINode with the volume plugins of upstream whose volumes CSI drivers serve.
const MIGRATED: &str = "storage.alpha.kubernetes.io/migrated-plugins";
/// The value of [`MIGRATED`] of this version of upstream.
const MIGRATED_PLUGINS: &str = "kubernetes.io/aws-ebs,kubernetes.io/azure-disk,\
    kubernetes.io/azure-file,kubernetes.io/cinder,kubernetes.io/gce-pd,\
    kubernetes.io/portworx-volume,kubernetes.io/vsphere-volume";

/// What a driver says about this node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DriverNodeInfo {
    /// How the driver names the node.
    pub(crate) node_id: String,
    /// Maximum number of volumes; zero for no limit.
    pub(crate) volumes_max: i64,
    pub(crate) topology: BTreeMap<String, String>,
}

/// Why one attempt to write an object failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    #[error("failed to parse node's {NODE_IDS:?} annotation value ({value:?}) err={source}")]
    Annotation { value: String, source: serde_json::Error },
    #[error(
        "detected topology value collision: driver reported {key:?}:{reported:?} but existing \
         label is {key:?}:{existing:?}"
    )]
    Topology { key: String, reported: String, existing: String },
    #[error(
        "CSINode {name:?} was owned by different node (oldNodeID={old:?}, newNodeID={new:?}), \
         deleted it"
    )]
    OtherOwner { name: String, old: String, new: String },
    #[error(transparent)]
    Client(#[from] client::Error),
}

/// Returns the uid of the owner of a CSINode if it is not this node.
pub(crate) fn other_owner(object: &CSINode, node: &Node) -> Option<String> {
    let owners = object.metadata.owner_references.iter().flatten();
    let mut nodes = owners.filter(|owner| owner.kind == "Node").peekable();
    let last = nodes.clone().last().map(|owner| owner.uid.clone()).unwrap_or_default();
    let is_owner = |owner: &OwnerReference| {
        node.metadata.name.as_ref() == Some(&owner.name)
            && node.metadata.uid.as_ref() == Some(&owner.uid)
    };
    (!nodes.any(is_owner)).then_some(last)
}

/// The CSINode of a node without drivers.
pub(crate) fn new_csi_node(node: &Node) -> CSINode {
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: node.metadata.name.clone().unwrap_or_default(),
        uid: node.metadata.uid.clone().unwrap_or_default(),
        ..OwnerReference::default()
    };
    let mut metadata = ObjectMeta {
        name: node.metadata.name.clone(),
        owner_references: Some(vec![owner]),
        ..ObjectMeta::default()
    };
    annotate(&mut metadata);
    CSINode { metadata, spec: CSINodeSpec { drivers: Vec::new() }, status: None }
}

/// Sets the annotation of migrated plugins; returns whether it differed.
pub(crate) fn annotate(metadata: &mut ObjectMeta) -> bool {
    let annotations = metadata.annotations.get_or_insert_default();
    let old = annotations.insert(MIGRATED.to_owned(), MIGRATED_PLUGINS.to_owned());
    // The order of the names has no meaning.
    let sorted = |text: &str| {
        let mut names: Vec<String> = text.split(',').map(str::to_owned).collect();
        names.compact_sort();
        names.dedup();
        names
    };
    match old {
        Some(old) if sorted(&old) == sorted(MIGRATED_PLUGINS) => {
            annotations.insert(MIGRATED.to_owned(), old);
            false
        }
        _ => true,
    }
}

/// Adds or updates a driver; returns whether the object changed.
pub(crate) fn add_driver(object: &mut CSINode, name: &str, info: &DriverNodeInfo) -> bool {
    let keys: Vec<String> = info.topology.keys().cloned().collect();
    let count = match info.volumes_max {
        max if max > 0 => Some(i32::try_from(max).unwrap_or(i32::MAX)),
        0 => None,
        max => {
            tracing::error!(
                driver = name,
                max,
                "ignoring the maximum number of volumes of a \
                CSI driver, which must not be negative"
            );
            None
        }
    };
    let driver = CSINodeDriver {
        name: name.to_owned(),
        node_id: info.node_id.clone(),
        topology_keys: (!keys.is_empty()).then_some(keys),
        allocatable: count.map(|count| VolumeNodeResources { count: Some(count) }),
    };
    let drivers = &mut object.spec.drivers;
    let is_same = |known: &CSINodeDriver| {
        let sorted = |driver: &CSINodeDriver| {
            let mut keys = driver.topology_keys.clone().unwrap_or_default();
            keys.compact_sort();
            keys
        };
        let count = |d: &CSINodeDriver| d.allocatable.as_ref().and_then(|a| a.count);
        known.node_id == driver.node_id
            && sorted(known) == sorted(&driver)
            && count(known) == count(&driver)
    };
    if drivers.iter().any(|known| known.name == name && is_same(known)) {
        return false;
    }
    drivers.retain(|known| known.name != name);
    drivers.push(driver);
    true
}

/// Removes a driver; returns whether the object changed.
pub(crate) fn remove_driver(object: &mut CSINode, name: &str) -> bool {
    let before = object.spec.drivers.len();
    object.spec.drivers.retain(|driver| driver.name != name);
    object.spec.drivers.len() != before
}

/// Returns the names that drivers have for a node.
fn node_ids(node: &Node) -> Result<BTreeMap<String, String>, WriteError> {
    let value = node.metadata.annotations.as_ref().and_then(|a| a.get(NODE_IDS));
    match value.filter(|value| !value.is_empty()) {
        None => Ok(BTreeMap::new()),
        Some(value) => serde_json::from_str(value)
            .map_err(|source| WriteError::Annotation { value: value.clone(), source }),
    }
}

/// Returns the merge patch that adds a driver to a Node; `None` if it has everything.
pub(crate) fn patch_to_add(
    node: &Node,
    driver: &str,
    info: &DriverNodeInfo,
) -> Result<Option<Value>, WriteError> {
    let mut metadata = serde_json::Map::new();
    let mut ids = node_ids(node)?;
    if ids.insert(driver.to_owned(), info.node_id.clone()).as_ref() != Some(&info.node_id) {
        let value = json!(ids).to_string();
        metadata.insert("annotations".to_owned(), json!({NODE_IDS: value}));
    }
    let empty = BTreeMap::new();
    let labels = node.metadata.labels.as_ref().unwrap_or(&empty);
    let mut added = BTreeMap::new();
    for (key, reported) in &info.topology {
        match labels.get(key) {
            Some(existing) if existing != reported => {
                return Err(WriteError::Topology {
                    key: key.clone(),
                    reported: reported.clone(),
                    existing: existing.clone(),
                });
            }
            Some(_) => {}
            None => {
                added.insert(key, reported);
            }
        }
    }
    if !added.is_empty() {
        metadata.insert("labels".to_owned(), json!(added));
    }
    Ok((!metadata.is_empty()).then(|| json!({"metadata": metadata})))
}

/// Returns the merge patch that removes a driver from a Node; `None` if it is not there.
pub(crate) fn patch_to_remove(node: &Node, driver: &str) -> Result<Option<Value>, WriteError> {
    let mut ids = node_ids(node)?;
    if ids.remove(driver).is_none() {
        return Ok(None);
    }
    let value = (!ids.is_empty()).then(|| json!(ids).to_string());
    Ok(Some(json!({"metadata": {"annotations": {NODE_IDS: value}}})))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(value: Value) -> Node {
        serde_json::from_value(json!({"metadata": value})).unwrap()
    }

    fn info(node_id: &str, volumes_max: i64, topology: &[(&str, &str)]) -> DriverNodeInfo {
        let topology = topology.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        DriverNodeInfo { node_id: node_id.to_owned(), volumes_max, topology }
    }

    /// Cases of `TestInstallCSIDriver`.
    #[test]
    fn a_driver_is_added_to_the_annotation_and_labels_of_the_node() {
        let added = |node: &Node, info: &DriverNodeInfo| patch_to_add(node, "d", info).unwrap();
        let empty = node(json!({"name": "n"}));
        let zone = info("id", 10, &[("example.com/zone", "a")]);
        assert_eq!(
            added(&empty, &zone),
            Some(json!({"metadata": {
                "annotations": {NODE_IDS: "{\"d\":\"id\"}"},
                "labels": {"example.com/zone": "a"}}}))
        );
        let known = node(json!({"annotations": {NODE_IDS: "{\"d\":\"id\"}"},
            "labels": {"example.com/zone": "a"}}));
        assert_eq!(added(&known, &zone), None);
        let other = node(json!({"annotations": {NODE_IDS: "{\"other\":\"x\"}"}}));
        assert_eq!(
            added(&other, &info("id", 0, &[])),
            Some(
                json!({"metadata": {"annotations": {NODE_IDS: "{\"d\":\"id\",\"other\":\"x\"}"}}})
            )
        );
        let moved = node(json!({"labels": {"example.com/zone": "b"}}));
        assert_eq!(
            patch_to_add(&moved, "d", &zone).unwrap_err().to_string(),
            "detected topology value collision: driver reported \"example.com/zone\":\"a\" but \
             existing label is \"example.com/zone\":\"b\""
        );
        let broken = node(json!({"annotations": {NODE_IDS: "{"}}));
        assert!(patch_to_add(&broken, "d", &zone).is_err());
    }

    /// Cases of `TestUninstallCSIDriver`.
    #[test]
    fn a_driver_is_removed_from_the_annotation() {
        let removed = |value: Value| patch_to_remove(&node(value), "d").unwrap();
        let patch = |value: Value| Some(json!({"metadata": {"annotations": {NODE_IDS: value}}}));
        assert_eq!(removed(json!({})), None);
        assert_eq!(removed(json!({"annotations": {NODE_IDS: "{\"o\":\"x\"}"}})), None);
        assert_eq!(
            removed(json!({"annotations": {NODE_IDS: "{\"d\":\"x\"}"}})),
            patch(json!(null))
        );
        assert_eq!(
            removed(json!({"annotations": {NODE_IDS: "{\"d\":\"x\",\"o\":\"y\"}"}})),
            patch(json!("{\"o\":\"y\"}"))
        );
    }

    #[test]
    fn a_driver_replaces_its_former_state_in_the_csi_node() {
        let mut object = new_csi_node(&node(json!({"name": "n", "uid": "u"})));
        assert!(add_driver(&mut object, "d", &info("id", 10, &[("b", "1"), ("a", "2")])));
        let first = json!({"name": "d", "nodeID": "id", "topologyKeys": ["a", "b"],
            "allocatable": {"count": 10}});
        assert_eq!(serde_json::to_value(&object.spec.drivers).unwrap(), json!([first]));
        assert!(!add_driver(&mut object, "d", &info("id", 10, &[("a", "9"), ("b", "9")])));
        assert!(add_driver(&mut object, "other", &info("x", i64::MAX, &[])));
        for changed in [info("id2", 10, &[]), info("id2", 0, &[]), info("id2", -5, &[])] {
            let before = object.spec.drivers.clone();
            let is_changed = add_driver(&mut object, "d", &changed);
            assert_eq!(is_changed, before != object.spec.drivers, "{changed:?}");
        }
        assert_eq!(
            serde_json::to_value(&object.spec.drivers).unwrap(),
            json!([{"name": "other", "nodeID": "x", "allocatable": {"count": i32::MAX}},
                {"name": "d", "nodeID": "id2"}])
        );
        assert!(remove_driver(&mut object, "d"));
        assert!(!remove_driver(&mut object, "d"));
    }

    #[test]
    fn a_csi_node_belongs_to_the_node_with_its_uid() {
        let own = node(json!({"name": "n", "uid": "u"}));
        let mut object = new_csi_node(&own);
        assert_eq!(
            serde_json::to_value(&object.metadata).unwrap(),
            json!({"name": "n", "annotations": {MIGRATED: MIGRATED_PLUGINS}, "ownerReferences":
                [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}]})
        );
        assert_eq!(other_owner(&object, &own), None);
        let newer = node(json!({"name": "n", "uid": "v"}));
        assert_eq!(other_owner(&object, &newer).as_deref(), Some("u"));
        object.metadata.owner_references = None;
        assert_eq!(other_owner(&object, &own).as_deref(), Some(""));
    }

    #[test]
    fn the_annotation_of_migrated_plugins_is_a_set() {
        let with = |value: &str| ObjectMeta {
            annotations: Some([(MIGRATED.to_owned(), value.to_owned())].into()),
            ..ObjectMeta::default()
        };
        assert!(annotate(&mut ObjectMeta::default()));
        assert!(annotate(&mut with("kubernetes.io/cinder")));
        let mut reversed: Vec<&str> = MIGRATED_PLUGINS.split(',').collect();
        reversed.reverse();
        let mut same = with(&reversed.join(","));
        let before = same.clone();
        assert!(!annotate(&mut same));
        assert_eq!(same, before);
    }
}
