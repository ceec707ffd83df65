//! Which directory and volume a claim gets, and which directory belongs to a volume.

use std::ffi::OsStr;
use std::path::{Component, Path};

use api::k8s::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use api::k8s::api::storage::v1::StorageClass;
use serde_json::{Value, json};

pub(super) const PROVISIONER: &str = "rancher.io/local-path";
const ASKED: &str = "volume.kubernetes.io/storage-provisioner";
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
/// Node on which the folder lies, as the original notes it.
const OWN_NODE: &str = "local.path.provisioner/selected-node";

type Annotations = Option<std::collections::BTreeMap<String, String>>;

fn annotation<'a>(annotations: &'a Annotations, name: &str) -> Option<&'a str> {
    annotations.as_ref()?.get(name).map(String::as_str)
}

/// The binder requests a volume of this provisioner for the claim.
pub(super) fn is_ours(claim: &PersistentVolumeClaim) -> bool {
    let open =
        claim.spec.as_ref().is_some_and(|s| s.volume_name.as_ref().is_none_or(String::is_empty));
    open && annotation(&claim.metadata.annotations, ASKED) == Some(PROVISIONER)
}

/// A volume of this provisioner whose claim has been deleted and that is to be deleted, too.
pub(super) fn is_released(volume: &PersistentVolume) -> bool {
    let spec = volume.spec.as_ref();
    let policy = spec.and_then(|s| s.persistent_volume_reclaim_policy.as_deref());
    let phase = volume.status.as_ref().and_then(|s| s.phase.as_deref());
    annotation(&volume.metadata.annotations, PROVISIONED_BY) == Some(PROVISIONER)
        && policy == Some("Delete")
        && phase == Some("Released")
        && volume.metadata.deletion_timestamp.is_none()
}

pub(super) fn class_of(claim: &PersistentVolumeClaim) -> &str {
    annotation(&claim.metadata.annotations, "volume.beta.kubernetes.io/storage-class")
        .or_else(|| claim.spec.as_ref()?.storage_class_name.as_deref())
        .unwrap_or_default()
}

/// The node that the scheduler selected for the pod of the claim.
pub(super) fn selected_node(claim: &PersistentVolumeClaim) -> Option<&str> {
    annotation(&claim.metadata.annotations, SELECTED_NODE)
}

/// The claim's pod has no node yet.
pub(super) fn waits(claim: &PersistentVolumeClaim, class: &StorageClass) -> bool {
    class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer")
        && selected_node(claim).is_none()
}

/// The volume that a claim needs.
#[derive(Debug, PartialEq)]
pub(super) struct VolumeRequest {
    pub(super) node: String,
    /// Name of the directory in the storage directory of the node.
    pub(super) directory: String,
    /// The storage directory that the class names; the node must have the same.
    pub(super) storage: Option<String>,
    name: String,
    local: bool,
    reclaim: String,
    class: String,
}

/// Why no volume can be provisioned for a claim; an event shows the text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum UnsupportedClaim {
    #[error("claim.Spec.Selector is not supported")]
    Selector,
    #[error("claim.Spec.DataSource is not supported")]
    DataSource,
    #[error("raw block volumes are not supported")]
    Block,
    #[error("NodePath only supports ReadWriteOnce and ReadWriteOncePod (1.22+) access modes")]
    AccessModes,
    #[error("mount options of the StorageClass are not supported")]
    MountOptions,
    #[error("parameter {name}={value} of the StorageClass is not supported")]
    Parameter { name: String, value: String },
    #[error("configuration error, no node was specified")]
    NoNode,
    #[error("{0:?} is not a recognised volume type")]
    VolumeType(String),
    /// The namespace or name of the claim contains a slash.
    #[error("{0:?} is not the name of a directory")]
    DirectoryName(String),
}

/// The request of a claim, once its node is selected.
///
/// # Errors
///
/// Why no volume can be provisioned, for the user.
pub(super) fn request(
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
) -> Result<VolumeRequest, UnsupportedClaim> {
    let spec = claim.spec.clone().unwrap_or_default();
    if spec.selector.is_some() {
        return Err(UnsupportedClaim::Selector);
    }
    if spec.data_source.is_some() || spec.data_source_ref.is_some() {
        return Err(UnsupportedClaim::DataSource);
    }
    if spec.volume_mode.as_deref() == Some("Block") {
        return Err(UnsupportedClaim::Block);
    }
    let modes = spec.access_modes.unwrap_or_default();
    if modes.iter().any(|m| m != "ReadWriteOnce" && m != "ReadWriteOncePod") {
        return Err(UnsupportedClaim::AccessModes);
    }
    if class.mount_options.as_ref().is_some_and(|m| !m.is_empty()) {
        return Err(UnsupportedClaim::MountOptions);
    }
    let mut storage = None;
    for (name, value) in class.parameters.iter().flatten() {
        if name != "nodePath" {
            return Err(UnsupportedClaim::Parameter { name: name.clone(), value: value.clone() });
        }
        storage = Some(value.clone());
    }
    let node = selected_node(claim).ok_or(UnsupportedClaim::NoNode)?;
    let kind = annotation(&claim.metadata.annotations, "volumeType")
        .or_else(|| annotation(&class.metadata.annotations, "defaultVolumeType"))
        .unwrap_or("hostPath");
    let local = match kind.to_ascii_lowercase().as_str() {
        "local" => true,
        "hostpath" => false,
        _ => return Err(UnsupportedClaim::VolumeType(kind.to_owned())),
    };
    let meta = &claim.metadata;
    let part = |p: &Option<String>| p.clone().unwrap_or_default();
    let name = format!("pvc-{}", part(&meta.uid));
    let directory = format!("{name}_{}_{}", part(&meta.namespace), part(&meta.name));
    if directory.contains('/') {
        return Err(UnsupportedClaim::DirectoryName(directory));
    }
    Ok(VolumeRequest {
        node: node.to_owned(),
        directory,
        storage,
        name,
        local,
        reclaim: class.reclaim_policy.clone().unwrap_or_else(|| "Delete".into()),
        class: class_of(claim).to_owned(),
    })
}

/// A volume to create.
pub(super) struct Volume {
    pub(super) name: String,
    pub(super) object: Value,
}

/// The volume of a claim at `path`, on the node whose label `kubernetes.io/hostname` is `host`.
pub(super) fn volume(
    claim: &PersistentVolumeClaim,
    request: &VolumeRequest,
    path: &str,
    host: &str,
) -> Volume {
    let meta = &claim.metadata;
    let spec = claim.spec.clone().unwrap_or_default();
    let size = spec.resources.as_ref().and_then(|r| r.requests.as_ref()?.get("storage"));
    let mut object = json!({
        "metadata": {
            "name": request.name,
            "annotations": {PROVISIONED_BY: PROVISIONER, OWN_NODE: request.node},
        },
        "spec": {
            "accessModes": spec.access_modes,
            "capacity": {"storage": size},
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": meta.namespace,
                "name": meta.name, "uid": meta.uid, "resourceVersion": meta.resource_version,
            },
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "kubernetes.io/hostname", "operator": "In", "values": [host]},
            ]}]}},
            "persistentVolumeReclaimPolicy": request.reclaim,
            "storageClassName": request.class,
            "volumeMode": "Filesystem",
        },
    });
    if request.local {
        object["spec"]["local"] = json!({"path": path});
    } else {
        object["spec"]["hostPath"] = json!({"path": path, "type": "DirectoryOrCreate"});
    }
    Volume { name: request.name.clone(), object }
}

/// The node that holds the directory of the volume.
pub(super) fn node_of(volume: &PersistentVolume) -> Option<&str> {
    annotation(&volume.metadata.annotations, OWN_NODE)
}

/// The directory that a node made for a volume.
#[derive(Debug, PartialEq)]
pub(super) struct VolumeDirectory {
    /// The storage directory in which it is.
    pub(super) storage: String,
    pub(super) name: String,
}

/// The path that a node answered is one in which it made the directory `name`.
pub(super) fn is_directory(path: &str, name: &str) -> bool {
    let path = Path::new(path);
    path.is_absolute()
        && path.file_name() == Some(OsStr::new(name))
        && !path.components().any(|c| c == Component::ParentDir)
}

/// The directory of a volume, if its path is one that the provisioner made for its claim: nothing
/// else is ever removed. The node refuses a storage directory that is not its own.
pub(super) fn directory(volume: &PersistentVolume) -> Option<VolumeDirectory> {
    let spec = volume.spec.as_ref()?;
    let path = match (&spec.local, &spec.host_path) {
        (Some(local), _) => &local.path,
        (None, Some(host)) => &host.path,
        (None, None) => return None,
    };
    let claim = spec.claim_ref.as_ref()?;
    let uid = claim.uid.as_deref()?;
    let (namespace, claim) = (claim.namespace.as_deref()?, claim.name.as_deref()?);
    let name = format!("pvc-{uid}_{namespace}_{claim}");
    let own = volume.metadata.name.as_deref()?.starts_with("pvc-") && is_directory(path, &name);
    let storage = Path::new(path).parent()?.to_str()?.to_owned();
    own.then_some(VolumeDirectory { storage, name })
}

#[cfg(test)]
mod tests {
    use api::k8s::api::core::v1::PersistentVolumeStatus;

    use super::*;

    fn claim(modes: &[&str]) -> PersistentVolumeClaim {
        serde_json::from_value(json!({"metadata": {"name": "c", "namespace": "n", "uid": "u",
            "annotations": {ASKED: PROVISIONER, SELECTED_NODE: "node1"}},
            "spec": {"accessModes": modes, "storageClassName": "local-path",
                "resources": {"requests": {"storage": "1Gi"}}}}))
        .unwrap()
    }

    fn class() -> StorageClass {
        serde_json::from_value(json!({"metadata": {"name": "local-path",
            "annotations": {"defaultVolumeType": "local"}},
            "provisioner": PROVISIONER, "reclaimPolicy": "Delete",
            "volumeBindingMode": "WaitForFirstConsumer"}))
        .unwrap()
    }

    fn provisioned(path: &str) -> PersistentVolume {
        let claim = claim(&["ReadWriteOnce"]);
        let request = request(&claim, &class()).unwrap();
        serde_json::from_value(volume(&claim, &request, path, "host1").object).unwrap()
    }

    #[test]
    fn a_claim_gets_a_volume_on_its_selected_node() {
        let claim = claim(&["ReadWriteOnce"]);
        let request = request(&claim, &class()).unwrap();
        assert_eq!((request.node.as_str(), request.directory.as_str()), ("node1", "pvc-u_n_c"));
        let Volume { name, object } = volume(&claim, &request, "/var/s/pvc-u_n_c", "host1");
        assert_eq!(name, "pvc-u");
        assert_eq!(object["spec"]["local"]["path"], "/var/s/pvc-u_n_c");
        assert_eq!(object["spec"]["capacity"]["storage"], "1Gi");
        let terms = &object["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"];
        assert_eq!(terms[0]["matchExpressions"][0]["values"][0], "host1");
        assert_eq!(node_of(&serde_json::from_value(object).unwrap()), Some("node1"));
    }

    #[test]
    fn only_the_directory_of_the_claim_is_removed() {
        let storage = "/var/s".to_owned();
        let expected = VolumeDirectory { storage, name: "pvc-u_n_c".to_owned() };
        assert_eq!(directory(&provisioned("/var/s/pvc-u_n_c")), Some(expected));
        for path in ["/", "/etc", "/var/s/pvc-u_n_other", "/var/s/../pvc-u_n_c", "pvc-u_n_c"] {
            assert_eq!(directory(&provisioned(path)), None, "{path}");
        }
    }

    #[test]
    fn only_released_volumes_with_policy_delete_are_reclaimed() {
        let mut volume = provisioned("/var/s/pvc-u_n_c");
        assert!(!is_released(&volume));
        let status = PersistentVolumeStatus {
            phase: Some("Released".into()),
            ..PersistentVolumeStatus::default()
        };
        volume.status = Some(status);
        assert!(is_released(&volume));
        let spec = volume.spec.as_mut().unwrap();
        spec.persistent_volume_reclaim_policy = Some("Retain".into());
        assert!(!is_released(&volume));
    }

    #[test]
    fn unsupported_requests_are_refused_by_name() {
        let fails = |claim: &PersistentVolumeClaim, class: &StorageClass| {
            request(claim, class).unwrap_err().to_string()
        };
        assert!(fails(&claim(&["ReadWriteMany"]), &class()).contains("ReadWriteOnce"));
        let mut other = class();
        other.parameters = Some([("pathPattern".to_owned(), "x".to_owned())].into());
        assert!(fails(&claim(&["ReadWriteOnce"]), &other).contains("pathPattern"));
        other.parameters = Some([("nodePath".to_owned(), "/s".to_owned())].into());
        let storage = request(&claim(&["ReadWriteOnce"]), &other).unwrap().storage;
        assert_eq!(storage.as_deref(), Some("/s"), "the node compares it with its own");
        let mut early = claim(&["ReadWriteOnce"]);
        early.metadata.annotations.as_mut().unwrap().remove(SELECTED_NODE);
        assert!(waits(&early, &class()));
        assert!(fails(&early, &class()).contains("no node was specified"));
    }
}
