//! Changes in the cluster that may make a rejected pod schedulable.

use std::collections::BTreeMap;

use api::k8s::api::core::v1::Node;
use api::k8s::api::resource::v1::DeviceClass;
use api::k8s::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity};

use crate::devices::claims::ClaimChange;
use crate::devices::store::Devices;
use crate::node_info::NodeInfo;
use crate::pod_info::PodInfo;

/// Names of events, as kube-scheduler has them in metrics: the kind of an object, and what happened
/// to it.
pub(crate) mod label {
    pub(crate) const UNSCHEDULED_POD_ADD: &str = "UnscheduledPodAdd";
    pub(crate) const UNSCHEDULED_POD_UPDATE: &str = "UnscheduledPodUpdate";
    pub(crate) const UNSCHEDULED_POD_DELETE: &str = "UnscheduledPodDelete";
    pub(crate) const ASSIGNED_POD_ADD: &str = "AssignedPodAdd";
    pub(crate) const ASSIGNED_POD_UPDATE: &str = "AssignedPodUpdate";
    pub(crate) const ASSIGNED_POD_DELETE: &str = "AssignedPodDelete";
    pub(crate) const NODE_ADD: &str = "NodeAdd";
    pub(crate) const NODE_DELETE: &str = "NodeDelete";
    pub(crate) const SCHEDULE_ATTEMPT_FAILURE: &str = "ScheduleAttemptFailure";
    pub(crate) const BACKOFF_COMPLETE: &str = "BackoffComplete";
    pub(crate) const UNSCHEDULABLE_TIMEOUT: &str = "UnschedulableTimeout";
}

/// The names of the events of a kind: an object is added, changed, deleted.
pub(crate) type EventLabels = [&'static str; 3];

/// The [`EventLabels`] of a kind.
macro_rules! labels {
    ($kind:literal) => {
        [concat!($kind, "Add"), concat!($kind, "Update"), concat!($kind, "Delete")]
    };
}
pub(crate) use labels;

/// The name of the event of a changed node; none if no pod can become schedulable by the change.
pub(crate) fn node_event(old: &NodeInfo, new: &NodeInfo) -> Option<&'static str> {
    if old.unschedulable != new.unschedulable {
        Some("NodeUpdateNodeTaint")
    } else if old.allocatable != new.allocatable {
        Some("NodeUpdateNodeAllocatable")
    } else if old.labels != new.labels {
        Some("NodeUpdateNodeLabel")
    } else if old.taints != new.taints {
        Some("NodeUpdateNodeTaint")
    } else if old.declared_features != new.declared_features {
        Some("NodeUpdateNodeDeclaredFeature")
    } else {
        None
    }
}

/// The name of the event of a changed node that may matter to an extender and to no plugin: a
/// condition with another status, or other annotations (`NodeSchedulingPropertiesChange`).
pub(crate) fn node_event_for_extenders(old: &Node, new: &Node) -> Option<&'static str> {
    fn conditions(node: &Node) -> BTreeMap<&str, &str> {
        let status = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
        status.map(|c| (c.type_.as_str(), c.status.as_str())).collect()
    }
    if conditions(old) != conditions(new) {
        Some("NodeUpdateNodeCondition")
    } else if old.metadata.annotations != new.metadata.annotations {
        Some("NodeUpdateNodeAnnotation")
    } else {
        None
    }
}

/// The name of the event of a changed pod for the pod itself.
pub(crate) fn target_pod_event(old: &PodInfo, new: &PodInfo) -> &'static str {
    let mut most = old.requests.clone();
    most.max(&new.requests);
    if old.labels != new.labels {
        "TargetPodUpdatePodLabel"
    } else if most != new.requests {
        "TargetPodUpdatePodScaleDown"
    } else if old.requests != new.requests {
        "TargetPodUpdatePodScaleUp"
    } else if !old.gates.is_empty() && new.gates.is_empty() {
        "TargetPodUpdatePodSchedulingGatesEliminated"
    } else if old.tolerations.len() != new.tolerations.len() {
        "TargetPodUpdatePodToleration"
    } else if old.resource_claims != new.resource_claims {
        "TargetPodUpdatePodGeneratedResourceClaim"
    } else {
        "TargetPodUpdate"
    }
}

/// A change in the cluster, named after upstream's `ClusterEvent` resources. A plugin's
/// `queueing_hint` decides whether it concerns a pod that the plugin rejected.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Event<'a> {
    /// A node was added, or its labels, taints, allocatable resources or schedulability changed.
    Node,
    /// The annotations or the conditions of a node changed, which only extenders may look at.
    NodeForExtenders,
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
