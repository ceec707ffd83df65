//! What folder and volume a claim gets, and which folder goes with a volume.

use std::path::{Path, PathBuf};

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

/// The binder asked us to make a volume for this claim.
pub(super) fn is_ours(claim: &PersistentVolumeClaim) -> bool {
    let open =
        claim.spec.as_ref().is_some_and(|s| s.volume_name.as_ref().is_none_or(String::is_empty));
    open && annotation(&claim.metadata.annotations, ASKED) == Some(PROVISIONER)
}

/// A volume of ours whose claim is gone and that is to be deleted.
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

/// The claim's pod has no node yet.
pub(super) fn waits(claim: &PersistentVolumeClaim, class: &StorageClass) -> bool {
    class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer")
        && annotation(&claim.metadata.annotations, SELECTED_NODE).is_none()
}

/// What a claim asks for, understood.
#[derive(Debug, PartialEq)]
pub(super) struct Asked {
    pub(super) node: String,
    pub(super) path: PathBuf,
    name: String,
    local: bool,
    reclaim: String,
    class: String,
}

/// Understands a claim.
///
/// # Errors
/// Why it cannot be had, for the user.
pub(super) fn ask(
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    root: &Path,
) -> Result<Asked, String> {
    let spec = claim.spec.clone().unwrap_or_default();
    if spec.selector.is_some() {
        return Err("claim.Spec.Selector is not supported".into());
    }
    if spec.data_source.is_some() || spec.data_source_ref.is_some() {
        return Err("claim.Spec.DataSource is not supported".into());
    }
    if spec.volume_mode.as_deref() == Some("Block") {
        return Err("raw block volumes are not supported".into());
    }
    let modes = spec.access_modes.unwrap_or_default();
    if modes.iter().any(|m| m != "ReadWriteOnce" && m != "ReadWriteOncePod") {
        return Err(
            "NodePath only supports ReadWriteOnce and ReadWriteOncePod (1.22+) access modes".into(),
        );
    }
    if class.mount_options.as_ref().is_some_and(|m| !m.is_empty()) {
        return Err("mount options of the StorageClass are not supported".into());
    }
    for (name, value) in class.parameters.iter().flatten() {
        if name != "nodePath" || Path::new(value) != root {
            return Err(format!("parameter {name}={value} of the StorageClass is not supported"));
        }
    }
    let node = annotation(&claim.metadata.annotations, SELECTED_NODE)
        .ok_or("configuration error, no node was specified")?;
    let kind = annotation(&claim.metadata.annotations, "volumeType")
        .or_else(|| annotation(&class.metadata.annotations, "defaultVolumeType"))
        .unwrap_or("hostPath");
    let local = match kind.to_ascii_lowercase().as_str() {
        "local" => true,
        "hostpath" => false,
        _ => return Err(format!("{kind:?} is not a recognised volume type")),
    };
    let meta = &claim.metadata;
    let part = |p: &Option<String>| p.clone().unwrap_or_default();
    let name = format!("pvc-{}", part(&meta.uid));
    let folder = format!("{name}_{}_{}", part(&meta.namespace), part(&meta.name));
    if folder.contains('/') {
        return Err(format!("{folder:?} is no name of a folder"));
    }
    Ok(Asked {
        node: node.to_owned(),
        path: root.join(folder),
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

/// The volume of a claim, on the node whose label `kubernetes.io/hostname` is `host`.
pub(super) fn volume(claim: &PersistentVolumeClaim, asked: &Asked, host: &str) -> Volume {
    let meta = &claim.metadata;
    let spec = claim.spec.clone().unwrap_or_default();
    let size = spec.resources.as_ref().and_then(|r| r.requests.as_ref()?.get("storage"));
    let path = asked.path.display().to_string();
    let mut object = json!({
        "metadata": {
            "name": asked.name,
            "annotations": {PROVISIONED_BY: PROVISIONER, OWN_NODE: asked.node},
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
            "persistentVolumeReclaimPolicy": asked.reclaim,
            "storageClassName": asked.class,
            "volumeMode": "Filesystem",
        },
    });
    if asked.local {
        object["spec"]["local"] = json!({"path": path});
    } else {
        object["spec"]["hostPath"] = json!({"path": path, "type": "DirectoryOrCreate"});
    }
    Volume { name: asked.name.clone(), object }
}

/// The node on which a volume of ours lies.
pub(super) fn node_of(volume: &PersistentVolume) -> Option<&str> {
    annotation(&volume.metadata.annotations, OWN_NODE)
}

/// The folder of a volume, if it is one that [`ask`] could have chosen for it: nothing else is ever removed.
pub(super) fn folder(volume: &PersistentVolume, root: &Path) -> Option<PathBuf> {
    let spec = volume.spec.as_ref()?;
    let path = match (&spec.local, &spec.host_path) {
        (Some(local), _) => &local.path,
        (None, Some(host)) => &host.path,
        (None, None) => return None,
    };
    let claim = spec.claim_ref.as_ref()?;
    let expected = root.join(format!(
        "pvc-{}_{}_{}",
        claim.uid.as_deref()?,
        claim.namespace.as_deref()?,
        claim.name.as_deref()?
    ));
    let own =
        expected.parent() == Some(root) && volume.metadata.name.as_deref()?.starts_with("pvc-");
    (own && Path::new(path) == expected).then_some(expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(modes: &[&str]) -> PersistentVolumeClaim {
        serde_json::from_value(json!({"metadata": {"name": "c", "namespace": "n", "uid": "u",
            "annotations": {ASKED: PROVISIONER, SELECTED_NODE: "node1"}},
            "spec": {"accessModes": modes, "storageClassName": "local-path", "resources": {"requests": {"storage": "1Gi"}}}}))
        .unwrap()
    }

    fn class() -> StorageClass {
        serde_json::from_value(json!({"metadata": {"name": "local-path", "annotations": {"defaultVolumeType": "local"}},
            "provisioner": PROVISIONER, "reclaimPolicy": "Delete", "volumeBindingMode": "WaitForFirstConsumer"}))
        .unwrap()
    }

    #[test]
    fn a_claim_becomes_a_folder_of_its_node_and_only_that_folder_is_removed() {
        let (claim, root) = (claim(&["ReadWriteOnce"]), Path::new("/var/s"));
        let asked = ask(&claim, &class(), root).unwrap();
        assert_eq!(asked.path, Path::new("/var/s/pvc-u_n_c"));
        let Volume { name, object } = volume(&claim, &asked, "host1");
        assert_eq!(name, "pvc-u");
        assert_eq!(object["spec"]["local"]["path"], "/var/s/pvc-u_n_c");
        assert_eq!(object["spec"]["capacity"]["storage"], "1Gi");
        let mut made: PersistentVolume = serde_json::from_value(object).unwrap();
        assert_eq!((node_of(&made), folder(&made, root)), (Some("node1"), Some(asked.path)));
        if let Some(local) = made.spec.as_mut().and_then(|s| s.local.as_mut()) {
            local.path = "/var/s/../../etc".into();
        }
        assert_eq!(folder(&made, root), None);
    }

    #[test]
    fn what_cannot_be_had_is_refused_by_name() {
        let root = Path::new("/s");
        assert!(
            ask(&claim(&["ReadWriteMany"]), &class(), root).unwrap_err().contains("ReadWriteOnce")
        );
        let mut other = class();
        other.parameters = Some([("pathPattern".to_owned(), "x".to_owned())].into());
        assert!(ask(&claim(&["ReadWriteOnce"]), &other, root).unwrap_err().contains("pathPattern"));
        let mut early = claim(&["ReadWriteOnce"]);
        early.metadata.annotations.as_mut().unwrap().remove(SELECTED_NODE);
        assert!(waits(&early, &class()));
        assert!(ask(&early, &class(), root).unwrap_err().contains("no node was specified"));
    }
}
