//! `cinder`.

use k8s_openapi::api::core::v1::{CSIPersistentVolumeSource, PersistentVolume, Volume};

use super::source::{inline_volume, source};
use super::topology;

pub(super) const DRIVER: &str = "cinder.csi.openstack.org";
const TOPOLOGY: &str = "topology.cinder.csi.openstack.org/zone";

pub(super) fn persistent(volume: &mut PersistentVolume) {
    let Some(spec) = volume.spec.as_mut() else { return };
    let Some(from) = spec.cinder.take() else { return };
    spec.csi = Some(CSIPersistentVolumeSource {
        read_only: from.read_only,
        fs_type: from.fs_type,
        ..source(DRIVER, &from.volume_id, &[])
    });
    topology::translate(volume, TOPOLOGY);
}

pub(super) fn inline(volume: &Volume) -> Option<PersistentVolume> {
    let from = volume.cinder.as_ref()?;
    let csi = CSIPersistentVolumeSource {
        read_only: from.read_only,
        fs_type: from.fs_type.clone(),
        ..source(DRIVER, &from.volume_id, &[])
    };
    Some(inline_volume(format!("{DRIVER}-{}", from.volume_id), "ReadWriteOnce", csi))
}
