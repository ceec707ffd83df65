//! Which volume a claim gets, and what is to be done about a volume.

use api::Quantity;
use api::k8s::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use api::k8s::api::storage::v1::StorageClass;
use api::local_driver::{ContentSource, DRIVER, FsType, SIZE_UNIT, Stored, VolumeMode};
use serde_json::{Value, json};

use crate::storage::provisioning::{
    PROVISIONED_BY, annotation, claim_ref, class_of, is_released, node_affinity,
};

/// Finalizer of volumes, as of csi-provisioner: a volume is deleted after its content.
pub(super) const FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";
/// Annotation of a volume with the name of its node.
const NODE: &str = "local.kube-lite.io/node";
/// Label of nodes by which volumes select theirs.
const HOST_NAME: &str = "kubernetes.io/hostname";
/// Parameters of a class with the file system: the name that csi-provisioner reads, and ours.
const FS_TYPES: [&str; 2] = ["csi.storage.k8s.io/fstype", "fsType"];
const MODE: &str = "mode";
/// Modes that are supported. `auto` is a file, which has all features on every file system.
const MODES: [(&str, VolumeMode); 3] =
    [("auto", VolumeMode::Loop), ("loop", VolumeMode::Loop), ("quota", VolumeMode::Quota)];

/// Why no volume can be provisioned for a claim; an event shows the text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum UnsupportedClaim {
    #[error("claim.Spec.Selector is not supported")]
    Selector,
    #[error(
        "the parameter {0} of the StorageClass is not supported; supported are fsType and mode"
    )]
    Parameter(String),
    #[error("mode {0:?} is not supported; supported are auto, loop and quota")]
    Mode(String),
    #[error("{feature} is not supported with mode quota: {reason}")]
    Quota { feature: &'static str, reason: &'static str },
    #[error("fsType {0:?} is not supported; supported are ext4 and xfs")]
    FsType(String),
    #[error("the claim requests no storage")]
    Size,
    #[error(
        "the source {0} is not supported; supported are claims and VolumeSnapshots of the same \
         namespace"
    )]
    Source(String),
    #[error("the source {0} is not a volume or snapshot of {DRIVER}")]
    ForeignSource(String),
    #[error("the source {0} is not ready; this is tried again")]
    SourceNotReady(String),
    #[error(
        "the source {name} is on node {of:?}, the pod on {selected:?}; copies are made on one \
         node: select it for the pod"
    )]
    OtherNode { name: String, of: String, selected: String },
}

/// The source of a claim as it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ClaimSource {
    /// The name of a claim of the same namespace.
    Claim(String),
    /// The name of a VolumeSnapshot of the same namespace.
    Snapshot(String),
}

/// What a claim and its class say about a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ClaimRequest {
    /// Name of the volume.
    pub(super) name: String,
    /// Size in bytes.
    pub(super) size: u64,
    pub(super) mode: VolumeMode,
    /// `None` for a block volume and for a directory.
    pub(super) fs_type: Option<FsType>,
    pub(super) source: Option<ClaimSource>,
}

/// A size in bytes.
pub(super) fn bytes(text: &str) -> Option<u64> {
    u64::try_from(Quantity::parse(text).ok()?.value()).ok()
}

/// The storage that a claim requests, as text.
pub(super) fn requested(claim: &PersistentVolumeClaim) -> Option<&str> {
    let resources = claim.spec.as_ref()?.resources.as_ref()?;
    resources.requests.as_ref()?.get("storage").map(|quantity| quantity.0.as_str())
}

/// The size of a volume as text: that of the claim if it is exact.
pub(super) fn size_text(requested: &str, size: u64) -> String {
    if bytes(requested) == Some(size) {
        return requested.to_owned();
    }
    format!("{}Mi", size / SIZE_UNIT)
}

fn source(claim: &PersistentVolumeClaim) -> Result<Option<ClaimSource>, UnsupportedClaim> {
    let spec = claim.spec.as_ref();
    let reference = spec.and_then(|spec| spec.data_source_ref.as_ref());
    let parts = match (reference, spec.and_then(|spec| spec.data_source.as_ref())) {
        (Some(of), _) => (of.api_group.as_deref(), &of.kind, &of.name, of.namespace.as_deref()),
        (None, Some(of)) => (of.api_group.as_deref(), &of.kind, &of.name, None),
        (None, None) => return Ok(None),
    };
    let (group, kind, name, namespace) = parts;
    let is_own = namespace.is_none_or(|namespace| {
        namespace.is_empty() || claim.metadata.namespace.as_deref() == Some(namespace)
    });
    match (group.unwrap_or_default(), kind.as_str()) {
        ("", "PersistentVolumeClaim") if is_own => Ok(Some(ClaimSource::Claim(name.clone()))),
        ("snapshot.storage.k8s.io", "VolumeSnapshot") if is_own => {
            Ok(Some(ClaimSource::Snapshot(name.clone())))
        }
        _ => Err(UnsupportedClaim::Source(format!("{kind} {name}"))),
    }
}

/// What a claim requests of its class.
///
/// # Errors
///
/// Why no volume of this driver satisfies it.
pub(super) fn request(
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
) -> Result<ClaimRequest, UnsupportedClaim> {
    let spec = claim.spec.as_ref();
    if spec.is_some_and(|spec| spec.selector.is_some()) {
        return Err(UnsupportedClaim::Selector);
    }
    let (mode, fs_type) = parameters(class)?;
    let size = requested(claim).and_then(bytes).filter(|size| *size > 0);
    let is_block = spec.and_then(|spec| spec.volume_mode.as_deref()) == Some("Block");
    let source = source(claim)?;
    if mode == VolumeMode::Quota {
        check_quota(class, is_block, fs_type, source.as_ref())?;
    }
    let has_file_system = mode == VolumeMode::Loop && !is_block;
    Ok(ClaimRequest {
        name: format!("pvc-{}", claim.metadata.uid.as_deref().unwrap_or_default()),
        size: size.ok_or(UnsupportedClaim::Size)?,
        mode,
        fs_type: has_file_system.then(|| fs_type.unwrap_or_default()),
        source,
    })
}

/// The mode of a class, and the file system if it names one.
fn parameters(class: &StorageClass) -> Result<(VolumeMode, Option<FsType>), UnsupportedClaim> {
    let (mut mode, mut fs_type) = (VolumeMode::default(), None);
    for (name, value) in class.parameters.iter().flatten() {
        if FS_TYPES.contains(&name.as_str()) {
            let parsed = FsType::parse(value);
            fs_type = Some(parsed.ok_or_else(|| UnsupportedClaim::FsType(value.clone()))?);
        } else if name == MODE {
            let known = MODES.iter().find(|(name, _)| name == value);
            mode = known.ok_or_else(|| UnsupportedClaim::Mode(value.clone()))?.1;
        } else {
            return Err(UnsupportedClaim::Parameter(name.clone()));
        }
    }
    Ok((mode, fs_type))
}

/// Refuses what a directory of the node's file system cannot be.
fn check_quota(
    class: &StorageClass,
    is_block: bool,
    fs_type: Option<FsType>,
    source: Option<&ClaimSource>,
) -> Result<(), UnsupportedClaim> {
    let of_node = "the file system is that of the node";
    let (feature, reason) = if is_block {
        ("volumeMode Block", "the volume is a directory")
    } else if fs_type.is_some() {
        ("the parameter fsType", of_node)
    } else if class.mount_options.as_ref().is_some_and(|options| !options.is_empty()) {
        ("the field mountOptions", of_node)
    } else if source.is_some() {
        ("a source", "directories cannot be copied at one moment")
    } else {
        return Ok(());
    };
    Err(UnsupportedClaim::Quota { feature, reason })
}

/// The volume of a claim on a node, whose label is `host`.
pub(super) fn volume(
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    request: &ClaimRequest,
    stored: Stored,
    (node, host): (&str, &str),
) -> Value {
    let spec = claim.spec.clone().unwrap_or_default();
    let size = size_text(requested(claim).unwrap_or_default(), stored.size);
    let mut csi = json!({"driver": DRIVER, "volumeHandle": request.name});
    if let Some(fs_type) = request.fs_type {
        csi["fsType"] = json!(fs_type.name());
    }
    json!({
        "metadata": {
            "name": request.name,
            "annotations": {PROVISIONED_BY: DRIVER, NODE: node},
            "finalizers": [FINALIZER],
        },
        "spec": {
            "accessModes": spec.access_modes,
            "capacity": {"storage": size},
            "claimRef": claim_ref(claim),
            "csi": csi,
            "mountOptions": class.mount_options,
            "nodeAffinity": node_affinity(HOST_NAME, host),
            "persistentVolumeReclaimPolicy": class.reclaim_policy.as_deref().unwrap_or("Delete"),
            "storageClassName": class_of(claim),
            "volumeMode": spec.volume_mode,
        },
    })
}

/// The name of a volume of this driver at its node; `None` for any other volume.
pub(super) fn handle(volume: &PersistentVolume) -> Option<&str> {
    let csi = volume.spec.as_ref()?.csi.as_ref()?;
    (csi.driver == DRIVER).then_some(csi.volume_handle.as_str())
}

/// The node of a volume of this driver.
pub(super) fn node_of(volume: &PersistentVolume) -> Option<&str> {
    handle(volume)?;
    annotation(&volume.metadata.annotations, NODE)
}

/// The source of a volume at the node, if it is on the selected one.
pub(super) fn on_node(
    source: ContentSource,
    (name, of): (&str, &str),
    selected: &str,
) -> Result<ContentSource, UnsupportedClaim> {
    if of == selected {
        return Ok(source);
    }
    let (name, of) = (name.to_owned(), of.to_owned());
    Err(UnsupportedClaim::OtherNode { name, of, selected: selected.to_owned() })
}

/// What is to be done about a volume that no claim uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reclaim {
    Nothing,
    /// Its node deletes the content, then the volume is deleted.
    Delete,
    /// The volume alone is deleted.
    Release,
}

/// Decides about a volume.
pub(super) fn reclaim(volume: &PersistentVolume) -> Reclaim {
    if annotation(&volume.metadata.annotations, PROVISIONED_BY) != Some(DRIVER)
        || handle(volume).is_none()
    {
        return Reclaim::Nothing;
    }
    if is_released(volume, DRIVER) {
        return Reclaim::Delete;
    }
    let finalizers = volume.metadata.finalizers.iter().flatten();
    let is_last = finalizers.clone().count() == 1 && finalizers.clone().any(|f| f == FINALIZER);
    // While a claim is bound, the finalizer of the protection exists, too.
    match volume.metadata.deletion_timestamp.is_some() && is_last {
        true => Reclaim::Release,
        false => Reclaim::Nothing,
    }
}

#[cfg(test)]
mod tests;
