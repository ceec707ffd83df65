//! `azureFile`.

use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, PersistentVolume, SecretReference, Volume,
};

use super::error::TranslationError;
use super::source::{inline_volume, source};

pub(super) const DRIVER: &str = "file.csi.azure.com";
const RESOURCE_GROUP: &str = "kubernetes.io/azure-file-resource-group";
/// The namespace of the secret of an inline volume without a pod.
const DEFAULT_NAMESPACE: &str = "default";

/// The storage account that the name of a secret contains, else the name.
fn account(secret: &str) -> &str {
    let found = secret.find("azure-storage-account-").and_then(|at| {
        let rest = secret.get(at..)?.strip_prefix("azure-storage-account-")?;
        rest.rsplit_once("-secret").map(|(account, _)| account)
    });
    found.filter(|account| !account.is_empty()).unwrap_or(secret)
}

/// What a volume handle consists of.
struct Share<'a> {
    group: &'a str,
    secret: &'a str,
    name: &'a str,
    /// The PersistentVolume, or the volume in the pod.
    volume: &'a str,
    namespace: &'a str,
    read_only: Option<bool>,
}

fn csi(share: &Share<'_>) -> CSIPersistentVolumeSource {
    let Share { group, secret, name, volume, namespace, read_only } = share;
    let handle = format!("{group}#{}#{name}#{volume}#{namespace}", account(secret));
    CSIPersistentVolumeSource {
        read_only: *read_only,
        node_stage_secret_ref: Some(SecretReference {
            name: Some((*secret).to_owned()),
            namespace: Some((*namespace).to_owned()),
        }),
        ..source(DRIVER, &handle, &[("sharename", name)])
    }
}

pub(super) fn persistent(volume: &mut PersistentVolume) -> Result<(), TranslationError> {
    let (meta, Some(spec)) = (&volume.metadata, volume.spec.as_mut()) else { return Ok(()) };
    let Some(from) = spec.azure_file.take() else { return Ok(()) };
    let of_claim = || spec.claim_ref.as_ref().and_then(|claim| claim.namespace.as_deref());
    let namespace = from.secret_namespace.as_deref().or_else(of_claim).unwrap_or_default();
    if namespace.is_empty() {
        return Err(TranslationError::AzureSecretNamespace);
    }
    let group = meta.annotations.as_ref().and_then(|all| all.get(RESOURCE_GROUP));
    let share = Share {
        group: group.map_or("", String::as_str),
        secret: &from.secret_name,
        name: &from.share_name,
        volume: meta.name.as_deref().unwrap_or_default(),
        namespace,
        read_only: from.read_only,
    };
    spec.csi = Some(csi(&share));
    Ok(())
}

pub(super) fn inline(volume: &Volume, namespace: &str) -> Option<PersistentVolume> {
    let from = volume.azure_file.as_ref()?;
    let csi = csi(&Share {
        group: "",
        secret: &from.secret_name,
        name: &from.share_name,
        volume: &volume.name,
        namespace: if namespace.is_empty() { DEFAULT_NAMESPACE } else { namespace },
        read_only: from.read_only,
    });
    Some(inline_volume(csi.volume_handle.clone(), "ReadWriteMany", csi))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cases of upstream's `TestGetStorageAccount`.
    #[test]
    fn a_secret_is_named_after_its_account() {
        for (secret, want) in [
            ("azure-storage-account-accountname-secret", "accountname"),
            ("azure-storage-account-accountname-dup-secret", "accountname-dup"),
            ("invalid", "invalid"),
            ("azure-storage-account--secret", "azure-storage-account--secret"),
        ] {
            assert_eq!(account(secret), want);
        }
    }
}
