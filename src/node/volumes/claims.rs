//! PersistentVolumeClaims bound to volumes that are folders of this node: `local` and `hostPath`.

use api::k8s::api::core::v1 as core;
use std::path::PathBuf;

use super::{Place, directory};
use crate::node::Node;
use crate::pod::Pod;

/// Where the volume of a claim is.
pub(super) async fn place(
    node: &Node,
    pod: &Pod,
    name: &str,
    read_only: bool,
    fs_group: Option<i64>,
) -> Result<Place, String> {
    let claim: core::PersistentVolumeClaim =
        node.client.get(pod.namespace(), name).await.map_err(|e| e.to_string())?;
    let bound = claim.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Bound");
    let volume_name =
        claim.spec.as_ref().and_then(|s| s.volume_name.as_deref()).filter(|v| !v.is_empty());
    let (Some(volume_name), true) = (volume_name, bound) else {
        return Err(format!("PVC {}/{name} is not bound yet", pod.namespace()));
    };
    let volume: core::PersistentVolume =
        node.client.get("", volume_name).await.map_err(|e| e.to_string())?;
    let spec = volume.spec.unwrap_or_default();
    if spec.volume_mode.as_deref() == Some("Block") {
        return Err("volumeMode Block is not supported by this node".to_owned());
    }
    let path = if let Some(source) = &spec.host_path {
        directory::host_path(source)?;
        PathBuf::from(&source.path)
    } else if let Some(source) = &spec.local {
        let path = PathBuf::from(&source.path);
        if !path.exists() {
            return Err(format!("path {:?} does not exist", source.path));
        }
        path
    } else {
        return Err(format!(
            "PersistentVolume {volume_name:?} is neither local nor hostPath: its driver is not supported by this node"
        ));
    };
    if let (Some(group), true, false) =
        (fs_group.and_then(|g| u32::try_from(g).ok()), spec.local.is_some(), read_only)
    {
        directory::give_to_group(&path, group).map_err(|e| e.to_string())?;
    }
    Ok(Place { path, read_only })
}
