//! `azureDisk`: managed disks.

use k8s_openapi::api::core::v1::{
    AzureDiskVolumeSource, CSIPersistentVolumeSource, PersistentVolume, Volume,
};

use super::error::TranslationError;
use super::source::{inline_volume, source};

pub(super) const DRIVER: &str = "disk.csi.azure.com";
/// The kind of disks that the driver knows.
const MANAGED: &str = "Managed";

fn csi(from: &AzureDiskVolumeSource) -> Result<CSIPersistentVolumeSource, TranslationError> {
    if let Some(kind) = from.kind.as_deref().filter(|kind| !kind.eq_ignore_ascii_case(MANAGED)) {
        return Err(TranslationError::AzureKind(kind.to_owned()));
    }
    let mut attributes = vec![("kind", MANAGED)];
    let caching = from.caching_mode.as_deref().map(|mode| ("cachingmode", mode));
    let file_system = from.fs_type.as_deref().map(|kind| ("fstype", kind));
    attributes.extend(caching.into_iter().chain(file_system));
    Ok(CSIPersistentVolumeSource {
        read_only: from.read_only,
        fs_type: from.fs_type.clone(),
        ..source(DRIVER, &from.disk_uri, &attributes)
    })
}

pub(super) fn persistent(volume: &mut PersistentVolume) -> Result<(), TranslationError> {
    let Some(spec) = volume.spec.as_mut() else { return Ok(()) };
    let Some(from) = spec.azure_disk.take() else { return Ok(()) };
    spec.csi = Some(csi(&from)?);
    Ok(())
}

pub(super) fn inline(volume: &Volume) -> Result<Option<PersistentVolume>, TranslationError> {
    let Some(from) = &volume.azure_disk else { return Ok(None) };
    let mut csi = csi(from)?;
    if let Some(attributes) = csi.volume_attributes.as_mut() {
        attributes.retain(|key, value| key != "cachingmode" || !value.is_empty());
    }
    Ok(Some(inline_volume(from.disk_uri.clone(), "ReadWriteOnce", csi)))
}
