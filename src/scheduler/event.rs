//! Changes in the cluster that may make a rejected pod schedulable.

use api::k8s::api::resource::v1::DeviceClass;
use api::k8s::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity};

use crate::devices::claims::ClaimChange;
use crate::devices::store::Devices;
use crate::pod_info::PodInfo;

/// A change in the cluster, named after upstream's `ClusterEvent` resources. A plugin's
/// `queueing_hint` decides whether it concerns a pod that the plugin rejected.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Event<'a> {
    /// A node was added, or its labels, taints, allocatable resources or schedulability changed.
    Node,
    /// A pod was assigned to a node, or an assigned pod changed.
    AssignedPodAdd,
    /// A pod left its node.
    AssignedPodDelete(&'a PodInfo),
    /// A claim was added, changed or deleted.
    PersistentVolumeClaim {
        /// Namespace of the claim.
        namespace: &'a str,
        /// Name of the claim.
        name: &'a str,
    },
    /// A volume was added, changed or deleted.
    PersistentVolume,
    /// A storage class was added, changed or deleted.
    StorageClass,
    /// A CSINode was added.
    CsiNodeAdd,
    /// A CSINode changed.
    CsiNodeUpdate {
        /// The object before the change.
        old: &'a CSINode,
        /// The object after the change.
        new: &'a CSINode,
    },
    /// A CSIDriver changed.
    CsiDriverUpdate {
        /// The object before the change.
        old: &'a CSIDriver,
        /// The object after the change.
        new: &'a CSIDriver,
    },
    /// A CSIStorageCapacity was added or changed.
    CsiStorageCapacity {
        /// The object before the change; `None` if it was added.
        old: Option<&'a CSIStorageCapacity>,
        /// The object after the change.
        new: &'a CSIStorageCapacity,
    },
    /// A volume was detached from a node.
    VolumeAttachmentDelete,
    /// A namespace was added or deleted, or its labels changed.
    Namespace,
    /// A ResourceClaim was added, changed or deleted.
    ResourceClaim {
        /// The claim before and after the change.
        change: &'a ClaimChange,
        /// The claims after the change.
        devices: &'a Devices,
    },
    /// A claim was created from a template of the pod itself.
    GeneratedResourceClaim(&'a Devices),
    /// A DeviceClass was added or changed.
    DeviceClass {
        /// The class before the change; `None` if it was added.
        old: Option<&'a DeviceClass>,
        /// The class after the change.
        new: &'a DeviceClass,
    },
    /// A ResourceSlice was added or changed, or its devices have other taints.
    ResourceSlice,
}
