//! Read access of plugins to the informers' caches.

use api::k8s::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use api::k8s::api::policy::v1::PodDisruptionBudget;
use api::k8s::api::storage::v1::{CSIDriver, CSINode, StorageClass, VolumeAttachment};
use client::labels::Labels;

/// Objects other than pods and nodes. Every method answers "there is none" by default, so that a
/// test implements only what its plugin reads.
pub(crate) trait Listers {
    /// Labels of a namespace.
    fn namespace_labels(&self, _name: &str) -> Option<Labels> {
        None
    }

    /// All disruption budgets.
    fn pod_disruption_budgets(&self) -> Vec<PodDisruptionBudget> {
        Vec::new()
    }

    /// A claim.
    fn claim(&self, _namespace: &str, _name: &str) -> Option<PersistentVolumeClaim> {
        None
    }

    /// A volume.
    fn volume(&self, _name: &str) -> Option<PersistentVolume> {
        None
    }

    /// All volumes.
    fn volumes(&self) -> Vec<PersistentVolume> {
        Vec::new()
    }

    /// A storage class.
    fn storage_class(&self, _name: &str) -> Option<StorageClass> {
        None
    }

    /// The CSI drivers that are installed on a node.
    fn csi_node(&self, _name: &str) -> Option<CSINode> {
        None
    }

    /// A CSI driver.
    fn csi_driver(&self, _name: &str) -> Option<CSIDriver> {
        None
    }

    /// The attachments of volumes to a node.
    fn volume_attachments(&self, _node: &str) -> Vec<VolumeAttachment> {
        Vec::new()
    }
}

/// No objects.
#[cfg(test)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct NoObjects;

#[cfg(test)]
impl Listers for NoObjects {}
