//! Translation of volumes of removed in-tree plugins to the CSI drivers that replace them
//! (`k8s.io/csi-translation-lib`): pure functions from an object to an object.
//!
//! The reverse direction, parameters of classes and the repair of handles belong to the sidecars of
//! the drivers, which have upstream's library themselves.

mod aws_ebs;
mod azure_disk;
mod azure_file;
mod cinder;
mod error;
mod gce_pd;
mod portworx;
mod source;
mod topology;
mod vsphere;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeSpec, PodSpec, Volume};
use serde_json::{Value, json};

pub use self::error::{RegionError, TranslationError};
use crate::Typed as _;

/// Annotation of a CSINode with the names of the plugins whose volumes the node mounts by CSI.
pub const MIGRATED_PLUGINS: &str = "storage.alpha.kubernetes.io/migrated-plugins";
/// Annotation of claims and volumes with the driver that replaces their provisioner.
pub const MIGRATED_TO: &str = "pv.kubernetes.io/migrated-to";

/// An in-tree plugin that a CSI driver replaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plugin {
    /// `awsElasticBlockStore`.
    AwsEbs,
    /// `azureDisk`.
    AzureDisk,
    /// `azureFile`.
    AzureFile,
    /// `cinder`.
    Cinder,
    /// `gcePersistentDisk`.
    GcePd,
    /// `portworxVolume`.
    Portworx,
    /// `vsphereVolume`.
    Vsphere,
}

impl Plugin {
    /// Every plugin, in the order of the names.
    pub const ALL: [Self; 7] = [
        Self::AwsEbs,
        Self::AzureDisk,
        Self::AzureFile,
        Self::Cinder,
        Self::GcePd,
        Self::Portworx,
        Self::Vsphere,
    ];

    /// The name of the plugin, which classes have as their provisioner.
    pub fn name(self) -> &'static str {
        match self {
            Self::AwsEbs => "kubernetes.io/aws-ebs",
            Self::AzureDisk => "kubernetes.io/azure-disk",
            Self::AzureFile => "kubernetes.io/azure-file",
            Self::Cinder => "kubernetes.io/cinder",
            Self::GcePd => "kubernetes.io/gce-pd",
            Self::Portworx => "kubernetes.io/portworx-volume",
            Self::Vsphere => "kubernetes.io/vsphere-volume",
        }
    }

    /// The name of the CSI driver.
    pub fn driver(self) -> &'static str {
        match self {
            Self::AwsEbs => aws_ebs::DRIVER,
            Self::AzureDisk => azure_disk::DRIVER,
            Self::AzureFile => azure_file::DRIVER,
            Self::Cinder => cinder::DRIVER,
            Self::GcePd => gce_pd::DRIVER,
            Self::Portworx => portworx::DRIVER,
            Self::Vsphere => vsphere::DRIVER,
        }
    }

    /// The plugin of this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|plugin| plugin.name() == name)
    }

    /// The plugin of a PersistentVolume.
    pub fn of_volume(spec: &PersistentVolumeSpec) -> Option<Self> {
        Self::ALL.into_iter().find(|plugin| match plugin {
            Self::AwsEbs => spec.aws_elastic_block_store.is_some(),
            Self::AzureDisk => spec.azure_disk.is_some(),
            Self::AzureFile => spec.azure_file.is_some(),
            Self::Cinder => spec.cinder.is_some(),
            Self::GcePd => spec.gce_persistent_disk.is_some(),
            Self::Portworx => spec.portworx_volume.is_some(),
            Self::Vsphere => spec.vsphere_volume.is_some(),
        })
    }

    /// The plugin of a volume in a pod.
    pub fn of_inline(volume: &Volume) -> Option<Self> {
        Self::ALL.into_iter().find(|plugin| match plugin {
            Self::AwsEbs => volume.aws_elastic_block_store.is_some(),
            Self::AzureDisk => volume.azure_disk.is_some(),
            Self::AzureFile => volume.azure_file.is_some(),
            Self::Cinder => volume.cinder.is_some(),
            Self::GcePd => volume.gce_persistent_disk.is_some(),
            Self::Portworx => volume.portworx_volume.is_some(),
            Self::Vsphere => volume.vsphere_volume.is_some(),
        })
    }

    /// Whether the scheduler follows the migration of the plugin: it counts volumes and translates
    /// topologies of these plugins alone (`isCSIMigrationOn`).
    pub fn is_scheduled(self) -> bool {
        !matches!(self, Self::AzureFile | Self::Vsphere)
    }

    /// Whether a node with this annotation [`MIGRATED_PLUGINS`] mounts volumes of the plugin by
    /// CSI.
    pub fn is_in(self, migrated: Option<&str>) -> bool {
        migrated.is_some_and(|names| names.split(',').any(|name| name == self.name()))
    }
}

/// The name by which volumes of a provisioner are requested: that of the driver for an in-tree
/// plugin, else the provisioner's own.
pub fn driver_of(provisioner: &str) -> &str {
    match Plugin::of_name(provisioner) {
        Some(plugin) => plugin.driver(),
        None => provisioner,
    }
}

/// Translates a PersistentVolume; `None` if it is of no in-tree plugin.
///
/// # Errors
/// The source has a form that the driver does not know.
pub fn persistent(volume: &PersistentVolume) -> Result<Option<PersistentVolume>, TranslationError> {
    let Some(plugin) = volume.spec.as_ref().and_then(Plugin::of_volume) else { return Ok(None) };
    let mut translated = volume.clone();
    match plugin {
        Plugin::AwsEbs => aws_ebs::persistent(&mut translated)?,
        Plugin::AzureDisk => azure_disk::persistent(&mut translated)?,
        Plugin::AzureFile => azure_file::persistent(&mut translated)?,
        Plugin::Cinder => cinder::persistent(&mut translated),
        Plugin::GcePd => gce_pd::persistent(&mut translated)?,
        Plugin::Portworx => portworx::persistent(&mut translated),
        Plugin::Vsphere => vsphere::persistent(&mut translated),
    }
    Ok(Some(translated))
}

/// Translates a volume of a pod in `namespace` to a PersistentVolume that does not exist as an
/// object; `None` if it is of no in-tree plugin.
///
/// # Errors
/// The source has a form that the driver does not know.
pub fn inline(
    volume: &Volume,
    namespace: &str,
) -> Result<Option<PersistentVolume>, TranslationError> {
    let Some(plugin) = Plugin::of_inline(volume) else { return Ok(None) };
    match plugin {
        Plugin::AwsEbs => aws_ebs::inline(volume),
        Plugin::AzureDisk => azure_disk::inline(volume),
        Plugin::AzureFile => Ok(azure_file::inline(volume, namespace)),
        Plugin::Cinder => Ok(cinder::inline(volume)),
        Plugin::GcePd => Ok(gce_pd::inline(volume)),
        Plugin::Portworx => Ok(portworx::inline(volume)),
        Plugin::Vsphere => Ok(vsphere::inline(volume)),
    }
}

fn driver_in(translated: Option<PersistentVolume>) -> String {
    let source = translated.and_then(|volume| volume.spec?.csi);
    source.map(|source| source.driver).unwrap_or_default()
}

/// The driver of a PersistentVolume of an in-tree plugin as JSON; empty for any other one.
///
/// # Errors
/// As [`persistent`].
pub fn persistent_driver(volume: &Value) -> Result<String, TranslationError> {
    let volume = PersistentVolume::from_value(volume).unwrap_or_default();
    Ok(driver_in(persistent(&volume)?))
}

/// The driver of a volume in a pod that is of an in-tree plugin, as JSON; empty for any other one.
///
/// # Errors
/// As [`inline`].
pub fn inline_driver(volume: &Value, namespace: &str) -> Result<String, TranslationError> {
    // The code that decodes volumes is that of pods.
    let pod = PodSpec::from_value(&json!({"containers": [], "volumes": [volume]}));
    let volumes = pod.unwrap_or_default().volumes.unwrap_or_default();
    let translated = volumes.first().map(|volume| inline(volume, namespace)).transpose()?;
    Ok(driver_in(translated.flatten()))
}

#[cfg(test)]
mod tests;
