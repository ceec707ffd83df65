//! The error of a pod specification that cannot be turned into a runtime configuration.

/// A pod that cannot be run as it is written; the text goes into the container's status.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct BadSpec(pub(crate) String);
