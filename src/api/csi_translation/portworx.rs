//! `portworxVolume`.

use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, PersistentVolume, SecretReference, Volume,
};

use super::source::{inline_volume, source};

pub(super) const DRIVER: &str = "pxd.portworx.com";
const SECRET_NAME: &str = "openstorage.io/auth-secret-name";
const SECRET_NAMESPACE: &str = "openstorage.io/auth-secret-namespace";

pub(super) fn persistent(volume: &mut PersistentVolume) {
    let annotation = |key: &str| volume.metadata.annotations.as_ref()?.get(key).cloned();
    let secret = annotation(SECRET_NAME).zip(annotation(SECRET_NAMESPACE));
    let secret =
        secret.map(|(name, space)| SecretReference { name: Some(name), namespace: Some(space) });
    let Some(spec) = volume.spec.as_mut() else { return };
    let Some(from) = spec.portworx_volume.take() else { return };
    spec.csi = Some(CSIPersistentVolumeSource {
        fs_type: from.fs_type,
        controller_publish_secret_ref: secret.clone(),
        node_stage_secret_ref: secret.clone(),
        node_publish_secret_ref: secret.clone(),
        controller_expand_secret_ref: secret.clone(),
        node_expand_secret_ref: secret,
        ..source(DRIVER, &from.volume_id, &[])
    });
}

pub(super) fn inline(volume: &Volume) -> Option<PersistentVolume> {
    let from = volume.portworx_volume.as_ref()?;
    let mode = if from.read_only == Some(true) { "ReadOnlyMany" } else { "ReadWriteOnce" };
    let csi = CSIPersistentVolumeSource {
        fs_type: from.fs_type.clone(),
        ..source(DRIVER, &from.volume_id, &[])
    };
    Some(inline_volume(format!("{DRIVER}-{}", from.volume_id), mode, csi))
}
