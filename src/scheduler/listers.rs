//! Read access of plugins to the informers' caches.

use std::sync::Arc;

use api::Object;
use api::k8s::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use api::k8s::api::policy::v1::PodDisruptionBudget;
use api::k8s::api::storage::v1::{
    CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment,
};
use api::k8s::apimachinery::pkg::apis::meta::v1::LabelSelector;
use client::labels::Labels;

use crate::devices::store::Devices;
use crate::pod_info::PodOwner;

/// The objects other than pods and nodes that plugins read. By default every method returns no
/// object, so that a test implements only what its plugin reads.
pub(crate) trait Listers {
    /// The object of a pod, for extenders.
    fn pod_object(&self, _namespace: &str, _name: &str) -> Option<Arc<Object>> {
        None
    }

    /// The object of a node, for extenders.
    fn node_object(&self, _name: &str) -> Option<Arc<Object>> {
        None
    }

    /// The labels of a namespace.
    fn namespace_labels(&self, _name: &str) -> Option<Labels> {
        None
    }

    /// Names of the namespaces whose labels match.
    fn namespaces(&self, _selector: &LabelSelector) -> Vec<String> {
        Vec::new()
    }

    /// The selectors of the Services of a namespace that have one.
    fn service_selectors(&self, _namespace: &str) -> Vec<Labels> {
        Vec::new()
    }

    /// The selector of a controller of pods.
    fn selector(&self, _namespace: &str, _owner: &PodOwner) -> Option<LabelSelector> {
        None
    }

    /// All PodDisruptionBudgets.
    fn pod_disruption_budgets(&self) -> Vec<PodDisruptionBudget> {
        Vec::new()
    }

    /// The PersistentVolumeClaim with this name.
    fn claim(&self, _namespace: &str, _name: &str) -> Option<PersistentVolumeClaim> {
        None
    }

    /// The PersistentVolume with this name.
    fn volume(&self, _name: &str) -> Option<PersistentVolume> {
        None
    }

    /// All PersistentVolumes.
    fn volumes(&self) -> Vec<PersistentVolume> {
        Vec::new()
    }

    /// The StorageClass with this name.
    fn storage_class(&self, _name: &str) -> Option<StorageClass> {
        None
    }

    /// The CSINode of the node with this name: its CSI drivers with their volume limits.
    fn csi_node(&self, _name: &str) -> Option<Arc<CSINode>> {
        None
    }

    /// The CSIDriver with this name.
    fn csi_driver(&self, _name: &str) -> Option<CSIDriver> {
        None
    }

    /// All CSIStorageCapacities: the free space of CSI drivers by topology and class.
    fn csi_storage_capacities(&self) -> Vec<CSIStorageCapacity> {
        Vec::new()
    }

    /// The devices of the cluster with the claims for them; `None` where pods have no claims.
    fn devices(&self) -> Option<&Arc<Devices>> {
        None
    }

    /// The VolumeAttachments to a node.
    fn volume_attachments(&self, _node: &str) -> Vec<VolumeAttachment> {
        Vec::new()
    }
}

/// A cluster without these objects.
#[cfg(test)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct NoObjects;

#[cfg(test)]
impl Listers for NoObjects {}
