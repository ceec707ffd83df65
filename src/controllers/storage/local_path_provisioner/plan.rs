//! Which directory and volume a claim gets, and which directory belongs to a volume.

use std::path::{Component, Path};

use api::k8s::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use api::k8s::api::storage::v1::StorageClass;
use api::local_path::{LocalPathConfig, NoStoragePath, StorageDirectory};
use serde_json::{Value, json};

use super::path_pattern::{self, PathPatternError};
use crate::storage::provisioning::{
    self, PROVISIONED_BY, annotation, claim_ref, class_of, node_affinity, selected_node,
};

pub(super) const PROVISIONER: &str = "rancher.io/local-path";
/// Node on which the directory is, as rancher's provisioner records it.
const OWN_NODE: &str = "local.path.provisioner/selected-node";
/// Path of the volume below its storage directory, if a `pathPattern` gave it.
const FOLDER: &str = "kube-lite.io/local-path-folder";
/// Label of nodes by which volumes select theirs, unless the class has the parameter
/// `nodeAffinityKey`.
const HOST_NAME: &str = "kubernetes.io/hostname";

/// The binder requests a volume of this provisioner for the claim.
pub(super) fn is_ours(claim: &PersistentVolumeClaim) -> bool {
    provisioning::is_requested(claim, PROVISIONER)
}

/// A volume of this provisioner whose claim has been deleted and that is to be deleted, too.
pub(super) fn is_released(volume: &PersistentVolume) -> bool {
    volume.metadata.deletion_timestamp.is_none() && provisioning::is_released(volume, PROVISIONER)
}

/// The volume that a claim needs.
#[derive(Debug, PartialEq)]
pub(super) struct VolumeRequest {
    /// The node that makes the directory; any node if empty, which a shared file system allows.
    pub(super) node: String,
    pub(super) directory: DirectoryRequest,
    /// Whether every node reaches the directory.
    pub(super) is_shared: bool,
    /// Label of the node that the volume selects.
    pub(super) affinity_key: String,
    name: String,
    local: bool,
    reclaim: String,
    class: String,
}

/// The directory that a node is to make or remove.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct DirectoryRequest {
    /// Name of the volume at the node, and of its directory without a `folder`.
    pub(super) name: String,
    /// The storage directory; `None` for the node's own.
    pub(super) storage: Option<StorageDirectory>,
    /// Path below the storage directory, if a `pathPattern` gives it.
    pub(super) folder: Option<String>,
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
    #[error(
        "parameter {name}={value} of the StorageClass is not supported; supported are nodePath, \
         pathPattern, allowUnsafePathPattern and nodeAffinityKey"
    )]
    Parameter { name: String, value: String },
    #[error("{0}")]
    Storage(#[from] NoStoragePath),
    #[error("{0}")]
    Pattern(#[from] PathPatternError),
    #[error("configuration error, no node was specified")]
    NoNode,
    #[error("{0:?} is not a recognised volume type")]
    VolumeType(String),
    #[error(
        "volumes of sharedFileSystemPath cannot be of the type local; set the annotation \
         volumeType=hostPath of the claim, or defaultVolumeType=hostPath of the StorageClass"
    )]
    SharedLocal,
    /// The namespace or name of the claim contains a slash.
    #[error("{0:?} is not the name of a directory")]
    DirectoryName(String),
}

/// What the parameters of a class say.
#[derive(Debug, Default)]
struct Parameters<'a> {
    node_path: Option<&'a str>,
    pattern: Option<&'a str>,
    is_unsafe: bool,
    affinity_key: Option<&'a str>,
}

fn parameters(class: &StorageClass) -> Result<Parameters<'_>, UnsupportedClaim> {
    const UNSAFE: &str = "allowUnsafePathPattern";
    let is_true = |value: &str| matches!(value, "1" | "t" | "T" | "true" | "TRUE" | "True");
    // The annotation is the older form.
    let is_unsafe = annotation(&class.metadata.annotations, UNSAFE).is_some_and(is_true);
    let mut out = Parameters { is_unsafe, ..Parameters::default() };
    for (name, value) in class.parameters.iter().flatten() {
        match name.as_str() {
            "nodePath" => out.node_path = Some(value),
            "pathPattern" => out.pattern = Some(value),
            UNSAFE => out.is_unsafe = is_true(value),
            "nodeAffinityKey" => {
                out.affinity_key = Some(value.as_str()).filter(|key| !key.is_empty());
            }
            _ => {
                let (name, value) = (name.clone(), value.clone());
                return Err(UnsupportedClaim::Parameter { name, value });
            }
        }
    }
    Ok(out)
}

/// Rejects claims that no volume of this provisioner satisfies.
fn check(
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    is_shared: bool,
) -> Result<(), UnsupportedClaim> {
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
    if !is_shared && modes.iter().any(|m| m != "ReadWriteOnce" && m != "ReadWriteOncePod") {
        return Err(UnsupportedClaim::AccessModes);
    }
    if class.mount_options.as_ref().is_some_and(|m| !m.is_empty()) {
        return Err(UnsupportedClaim::MountOptions);
    }
    Ok(())
}

/// The request of a claim, once its node is selected. Without a `config`, the node uses its own
/// directory.
///
/// # Errors
///
/// Why no volume can be provisioned, for the user.
pub(super) fn request(
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    config: Option<&LocalPathConfig>,
) -> Result<VolumeRequest, UnsupportedClaim> {
    let paths = config.map(|config| config.of_class(class_of(claim))).transpose()?;
    let is_shared = paths.map_or(Ok(false), |paths| paths.is_shared())?;
    check(claim, class, is_shared)?;
    let Parameters { node_path, pattern, is_unsafe, affinity_key } = parameters(class)?;
    let node = match selected_node(claim) {
        None if !is_shared => return Err(UnsupportedClaim::NoNode),
        node => node.unwrap_or_default(),
    };
    let kind = annotation(&claim.metadata.annotations, "volumeType")
        .or_else(|| annotation(&class.metadata.annotations, "defaultVolumeType"))
        .unwrap_or("hostPath");
    let local = match kind.to_ascii_lowercase().as_str() {
        "local" => true,
        "hostpath" => false,
        _ => return Err(UnsupportedClaim::VolumeType(kind.to_owned())),
    };
    // A `local` volume needs the affinity to a node.
    if local && is_shared {
        return Err(UnsupportedClaim::SharedLocal);
    }
    let meta = &claim.metadata;
    let part = |p: &Option<String>| p.clone().unwrap_or_default();
    let name = format!("pvc-{}", part(&meta.uid));
    let directory = format!("{name}_{}_{}", part(&meta.namespace), part(&meta.name));
    if directory.contains('/') {
        return Err(UnsupportedClaim::DirectoryName(directory));
    }
    let storage = match paths {
        Some(paths) => Some(paths.choose(node, node_path, &name)?),
        None => node_path.map(|path| StorageDirectory { path: path.into(), is_default: false }),
    };
    let folder = pattern.map(|p| path_pattern::folder(p, &name, meta, is_unsafe)).transpose()?;
    Ok(VolumeRequest {
        node: node.to_owned(),
        directory: DirectoryRequest { name: directory, storage, folder },
        is_shared,
        affinity_key: affinity_key.unwrap_or(HOST_NAME).to_owned(),
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

/// The volume of a claim at `path` of the node `request.node`, whose label `affinity_key` is
/// `label`.
pub(super) fn volume(
    claim: &PersistentVolumeClaim,
    request: &VolumeRequest,
    path: &str,
    label: &str,
) -> Volume {
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
            "claimRef": claim_ref(claim),
            "persistentVolumeReclaimPolicy": request.reclaim,
            "storageClassName": request.class,
            "volumeMode": "Filesystem",
        },
    });
    if !request.is_shared {
        object["spec"]["nodeAffinity"] = node_affinity(&request.affinity_key, label);
    }
    if let Some(folder) = &request.directory.folder {
        object["metadata"]["annotations"][FOLDER] = json!(folder);
    }
    if request.local {
        object["spec"]["local"] = json!({"path": path});
    } else {
        object["spec"]["hostPath"] = json!({"path": path, "type": "DirectoryOrCreate"});
    }
    Volume { name: request.name.clone(), object }
}

/// How the node of a volume is found.
#[derive(Debug, PartialEq)]
pub(super) enum VolumeNode<'a> {
    /// By its name.
    Named(&'a str),
    /// By its label, for volumes of older provisioners.
    Labelled { key: &'a str, value: &'a str },
    /// Any node reaches the volume; the named one made it, if there is one.
    Shared(Option<&'a str>),
}

/// The node that holds the directory of the volume.
pub(super) fn node_of(volume: &PersistentVolume) -> Option<VolumeNode<'_>> {
    let named = annotation(&volume.metadata.annotations, OWN_NODE).filter(|name| !name.is_empty());
    let affinity = volume.spec.as_ref()?.node_affinity.as_ref().and_then(|a| a.required.as_ref());
    let Some(required) = affinity else { return Some(VolumeNode::Shared(named)) };
    if let Some(name) = named {
        return Some(VolumeNode::Named(name));
    }
    let terms = required.node_selector_terms.iter();
    let mut expressions = terms.flat_map(|term| term.match_expressions.iter().flatten());
    let expression = expressions.find(|expression| expression.operator == "In")?;
    match expression.values.as_deref() {
        Some([value]) => Some(VolumeNode::Labelled { key: &expression.key, value }),
        _ => None,
    }
}

/// Whether a node made the directory of `request` at this path: below an absolute path without
/// `..`.
pub(super) fn is_directory(path: &str, request: &DirectoryRequest) -> bool {
    let end = request.folder.as_deref().unwrap_or(&request.name);
    let path = Path::new(path);
    path.is_absolute()
        && path.ends_with(end)
        && path != Path::new("/").join(end)
        && !path.components().any(|c| c == Component::ParentDir)
}

/// The directory of a volume, if its path is one that the provisioner made for its claim: nothing
/// else is ever removed. The node refuses a storage directory that is not its own, and a folder
/// that it did not make.
pub(super) fn directory(volume: &PersistentVolume) -> Option<DirectoryRequest> {
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
    let folder = annotation(&volume.metadata.annotations, FOLDER).map(str::to_owned);
    let end = folder.clone().unwrap_or_else(|| name.clone());
    let storage = path.strip_suffix(&end)?.strip_suffix('/')?.to_owned();
    let storage = Some(StorageDirectory { path: storage, is_default: false });
    let request = DirectoryRequest { name, storage, folder };
    let own = volume.metadata.name.as_deref()?.starts_with("pvc-") && is_directory(path, &request);
    own.then_some(request)
}

#[cfg(test)]
mod tests {
    use api::k8s::api::core::v1::PersistentVolumeStatus;

    use super::*;
    use crate::storage::provisioning::{REQUESTED_OF, SELECTED_NODE, waits};

    fn claim(modes: &[&str]) -> PersistentVolumeClaim {
        serde_json::from_value(json!({"metadata": {"name": "c", "namespace": "n", "uid": "u",
            "annotations": {REQUESTED_OF: PROVISIONER, SELECTED_NODE: "node1"}},
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
        let request = request(&claim, &class(), None).unwrap();
        serde_json::from_value(volume(&claim, &request, path, "host1").object).unwrap()
    }

    #[test]
    fn a_claim_gets_a_volume_on_its_selected_node() {
        let claim = claim(&["ReadWriteOnce"]);
        let request = request(&claim, &class(), None).unwrap();
        let name = request.directory.name.as_str();
        assert_eq!((request.node.as_str(), name), ("node1", "pvc-u_n_c"));
        let Volume { name, object } = volume(&claim, &request, "/var/s/pvc-u_n_c", "host1");
        assert_eq!(name, "pvc-u");
        assert_eq!(object["spec"]["local"]["path"], "/var/s/pvc-u_n_c");
        assert_eq!(object["spec"]["capacity"]["storage"], "1Gi");
        let terms = &object["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"];
        assert_eq!(terms[0]["matchExpressions"][0]["values"][0], "host1");
        let mut volume: PersistentVolume = serde_json::from_value(object).unwrap();
        assert_eq!(node_of(&volume), Some(VolumeNode::Named("node1")));
        volume.metadata.annotations = None;
        let labelled = VolumeNode::Labelled { key: "kubernetes.io/hostname", value: "host1" };
        assert_eq!(node_of(&volume), Some(labelled));
    }

    #[test]
    fn only_the_directory_of_the_claim_is_removed() {
        let storage = Some(StorageDirectory { path: "/var/s".to_owned(), is_default: false });
        let expected = DirectoryRequest { storage, name: "pvc-u_n_c".to_owned(), folder: None };
        assert_eq!(directory(&provisioned("/var/s/pvc-u_n_c")), Some(expected));
        for path in [
            "/",
            "/etc",
            "/var/s/pvc-u_n_other",
            "/var/s/../pvc-u_n_c",
            "/var/xpvc-u_n_c",
            "/pvc-u_n_c",
            "pvc-u_n_c",
        ] {
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
            request(claim, class, None).unwrap_err().to_string()
        };
        assert!(fails(&claim(&["ReadWriteMany"]), &class()).contains("ReadWriteOnce"));
        let mut other = class();
        other.parameters = Some([("permPattern".to_owned(), "x".to_owned())].into());
        assert!(fails(&claim(&["ReadWriteOnce"]), &other).contains("permPattern=x"));
        other.parameters = Some([("nodePath".to_owned(), "/s".to_owned())].into());
        let storage = request(&claim(&["ReadWriteOnce"]), &other, None).unwrap().directory.storage;
        assert_eq!(storage.unwrap().path, "/s", "the node compares it with its own");
        let mut early = claim(&["ReadWriteOnce"]);
        early.metadata.annotations.as_mut().unwrap().remove(SELECTED_NODE);
        assert!(waits(&early, &class()));
        assert!(fails(&early, &class()).contains("no node was specified"));
    }

    #[test]
    fn the_config_names_the_storage_directory() {
        let claim = claim(&["ReadWriteOnce"]);
        let config = |text: &str| LocalPathConfig::parse(text).unwrap();
        let one = config(r#"{"nodePathMap":[{"node":"node1","paths":["/d"]}]}"#);
        let storage = request(&claim, &class(), Some(&one)).unwrap().directory.storage;
        assert_eq!(storage, Some(StorageDirectory { path: "/d".into(), is_default: false }));
        let other = config(r#"{"nodePathMap":[{"node":"node2","paths":["/d"]}]}"#);
        let error = request(&claim, &class(), Some(&other)).unwrap_err();
        assert_eq!(error, UnsupportedClaim::Storage(NoStoragePath::Node("node1".into())));
    }

    #[test]
    fn a_shared_file_system_needs_no_node_and_allows_all_access_modes() {
        let mut claim = claim(&["ReadWriteMany"]);
        claim.metadata.annotations.as_mut().unwrap().remove(SELECTED_NODE);
        let config = LocalPathConfig::parse(r#"{"sharedFileSystemPath":"/nfs"}"#).unwrap();
        let refused = request(&claim, &class(), Some(&config)).unwrap_err();
        assert_eq!(refused, UnsupportedClaim::SharedLocal);
        let mut class = class();
        class.metadata.annotations = None;
        let request = request(&claim, &class, Some(&config)).unwrap();
        assert!(request.is_shared && request.node.is_empty());
        let object = volume(&claim, &request, "/nfs/pvc-u_n_c", "").object;
        assert_eq!(object["spec"]["nodeAffinity"], Value::Null);
        let volume = serde_json::from_value(object).unwrap();
        assert_eq!(node_of(&volume), Some(VolumeNode::Shared(None)));
    }

    #[test]
    fn a_path_pattern_gives_the_folder_of_the_volume() {
        let claim = claim(&["ReadWriteOnce"]);
        let mut class = class();
        let pattern = "{{ .PVC.Namespace }}/{{ .PVC.Name }}/{{ .PVName }}";
        class.parameters = Some([("pathPattern".to_owned(), pattern.to_owned())].into());
        let request = request(&claim, &class, None).unwrap();
        let folder = request.directory.folder.clone();
        assert_eq!(folder.as_deref(), Some("n/c/pvc-u"));
        assert!(is_directory("/s/n/c/pvc-u", &request.directory));
        assert!(!is_directory("/n/c/pvc-u", &request.directory), "not below a directory");
        let object = volume(&claim, &request, "/s/n/c/pvc-u", "h").object;
        let found = directory(&serde_json::from_value(object).unwrap()).unwrap();
        let storage = Some(StorageDirectory { path: "/s".into(), is_default: false });
        assert_eq!(found, DirectoryRequest { name: "pvc-u_n_c".into(), storage, folder });
    }
}
