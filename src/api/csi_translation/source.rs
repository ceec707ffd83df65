//! What translations consist of.

use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, PersistentVolume, PersistentVolumeSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use sorting::CollectOrdered as _;

/// The PersistentVolume of an inline volume: a file system with one access mode.
pub(super) fn inline_volume(
    name: String,
    mode: &str,
    source: CSIPersistentVolumeSource,
) -> PersistentVolume {
    PersistentVolume {
        metadata: ObjectMeta { name: Some(name), ..ObjectMeta::default() },
        spec: Some(PersistentVolumeSpec {
            access_modes: Some(vec![mode.to_owned()]),
            csi: Some(source),
            volume_mode: Some("Filesystem".to_owned()),
            ..PersistentVolumeSpec::default()
        }),
        status: None,
    }
}

/// A source of a driver with these attributes.
pub(super) fn source(
    driver: &str,
    handle: &str,
    attributes: &[(&str, &str)],
) -> CSIPersistentVolumeSource {
    let attribute = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    let attributes = attributes.iter().map(attribute).collect_map();
    CSIPersistentVolumeSource {
        driver: driver.to_owned(),
        volume_handle: handle.to_owned(),
        volume_attributes: Some(attributes),
        ..CSIPersistentVolumeSource::default()
    }
}
