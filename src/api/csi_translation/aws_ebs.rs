//! `awsElasticBlockStore`.

use k8s_openapi::api::core::v1::{
    AWSElasticBlockStoreVolumeSource, CSIPersistentVolumeSource, PersistentVolume, Volume,
};

use super::error::TranslationError;
use super::source::{inline_volume, source};
use super::topology;

pub(super) const DRIVER: &str = "ebs.csi.aws.com";
const TOPOLOGY: &str = "topology.ebs.csi.aws.com/zone";

fn csi(
    from: &AWSElasticBlockStoreVolumeSource,
) -> Result<CSIPersistentVolumeSource, TranslationError> {
    let partition = from.partition.unwrap_or(0).to_string();
    Ok(CSIPersistentVolumeSource {
        read_only: from.read_only,
        fs_type: from.fs_type.clone(),
        ..source(DRIVER, &volume_id(&from.volume_id)?, &[("partition", &partition)])
    })
}

pub(super) fn persistent(volume: &mut PersistentVolume) -> Result<(), TranslationError> {
    let Some(spec) = volume.spec.as_mut() else { return Ok(()) };
    let Some(from) = spec.aws_elastic_block_store.take() else { return Ok(()) };
    spec.csi = Some(csi(&from)?);
    topology::translate(volume, TOPOLOGY);
    Ok(())
}

pub(super) fn inline(volume: &Volume) -> Result<Option<PersistentVolume>, TranslationError> {
    let Some(from) = &volume.aws_elastic_block_store else { return Ok(None) };
    let csi = csi(from)?;
    let name = format!("{DRIVER}-{}", csi.volume_handle);
    Ok(Some(inline_volume(name, "ReadWriteOnce", csi)))
}

/// The ID of the driver: `vol-…` of `aws://<zone>/vol-…`; another text is the ID itself.
fn volume_id(id: &str) -> Result<String, TranslationError> {
    let Some(rest) = id.strip_prefix("aws://") else { return Ok(id.to_owned()) };
    let path = rest.split_once('/').map_or("", |(_, path)| path);
    // The path ends where a query or a fragment of the URL begins.
    let path = path.split(['?', '#']).next().unwrap_or_default().trim_matches('/');
    if path.starts_with("vol-") && !path.contains('/') {
        return Ok(path.to_owned());
    }
    Err(TranslationError::AwsVolume(id.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cases of upstream's `TestKubernetesVolumeIDToEBSVolumeID`.
    #[test]
    fn volume_ids_of_kubernetes_are_reduced_to_those_of_aws() {
        for (id, want) in [
            ("vol-02399794d890f9375", Some("vol-02399794d890f9375")),
            ("aws:///vol-02399794d890f9375", Some("vol-02399794d890f9375")),
            ("aws://us-west-2a/vol-02399794d890f9375", Some("vol-02399794d890f9375")),
            ("aws://us-west-2a/invalid-volume", None),
            ("aws://us-west-2a/vol-a/b", None),
            ("aws://us-west-2a", None),
        ] {
            assert_eq!(volume_id(id).ok().as_deref(), want, "{id}");
        }
    }
}
