//! The rejection of a pod by the admission of the node.

/// Why the node does not run a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rejection {
    /// Reason of the pod's status, such as `OutOfcpu`.
    pub(crate) reason: String,
    /// Message of the pod's status.
    pub(crate) message: String,
}

impl Rejection {
    pub(crate) fn new(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self { reason: reason.into(), message: message.into() }
    }
}
