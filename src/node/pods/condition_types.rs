//! The types of pod conditions that the node writes.

/// Condition types that only the node writes and that every pod has. `status/pod/conditions`
/// assigns their values by position.
pub(crate) const NODE_OWNED: [&str; 5] =
    ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"];

/// Condition types of a resize, which only the node writes and a pod has only during a resize.
/// `status/pod/conditions` uses them by position.
pub(crate) const RESIZE: [&str; 2] = ["PodResizePending", "PodResizeInProgress"];

/// The condition type of a pod whose containers are all restarted by a restart rule. Only the node
/// writes it, and only pods with such a rule have it.
pub(crate) const ALL_CONTAINERS_RESTARTING: &str = "AllContainersRestarting";

/// Whether only the node writes conditions of this type.
pub(crate) fn is_node_owned(type_: &str) -> bool {
    NODE_OWNED.contains(&type_) || RESIZE.contains(&type_) || type_ == ALL_CONTAINERS_RESTARTING
}

/// Whether the node writes conditions of this type, alone or with other components
/// (`PodConditionSharedByKubelet`).
pub(crate) fn is_written_by_node(type_: &str) -> bool {
    is_node_owned(type_) || type_ == "DisruptionTarget"
}
