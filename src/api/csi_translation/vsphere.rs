//! `vsphereVolume`.

use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, PersistentVolume, Volume, VsphereVirtualDiskVolumeSource,
};

use super::source::{inline_volume, source};
use super::topology;

pub(super) const DRIVER: &str = "csi.vsphere.vmware.com";
const ZONE: &str = "topology.csi.vmware.com/zone";
const REGION: &str = "topology.csi.vmware.com/region";

fn csi(from: &VsphereVirtualDiskVolumeSource) -> CSIPersistentVolumeSource {
    let policy = from.storage_policy_name.as_deref().filter(|name| !name.is_empty());
    let attributes: Vec<(&str, &str)> =
        policy.map(|name| ("storagepolicyname", name)).into_iter().collect();
    CSIPersistentVolumeSource {
        fs_type: from.fs_type.clone(),
        ..source(DRIVER, &from.volume_path, &attributes)
    }
}

pub(super) fn persistent(volume: &mut PersistentVolume) {
    let Some(spec) = volume.spec.as_mut() else { return };
    let Some(from) = spec.vsphere_volume.take() else { return };
    spec.csi = Some(csi(&from));
    topology::translate_both(volume, ZONE, REGION);
}

/// Upstream ends with a panic for an inline volume with a policy; this one has the policy.
pub(super) fn inline(volume: &Volume) -> Option<PersistentVolume> {
    let from = volume.vsphere_volume.as_ref()?;
    let name = format!("{DRIVER}-{}", from.volume_path);
    Some(inline_volume(name, "ReadWriteOnce", csi(from)))
}
