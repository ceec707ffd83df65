//! The error of a pod specification that cannot be converted to a runtime configuration.

/// A pod cannot run as specified; the text is shown in the container's status.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct InvalidPodSpec(pub(crate) String);
