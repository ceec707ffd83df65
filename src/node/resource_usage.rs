//! The handle through which a server in the same process measures its own node.

use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use resource_metrics::Sample;

/// Why the node cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum ResourceUsageError {
    /// No node runs yet.
    #[error("the node has not started")]
    NotStarted,
    /// The container runtime does not answer.
    #[error("the container runtime: {0}")]
    Runtime(String),
    /// The files of the kernel were not read.
    #[error("reading cgroups was interrupted: {0}")]
    Interrupted(#[from] tokio::task::JoinError),
}

/// Measures a node.
#[async_trait]
pub(crate) trait MeasureNode: Send + Sync {
    /// The counters of the node and of its running containers.
    async fn measure(&self) -> Result<Sample, ResourceUsageError>;
}

/// Measures the node that runs in this process, once it has started; cheap to clone.
#[derive(Clone, Default)]
pub struct ResourceUsage(Arc<OnceLock<Box<dyn MeasureNode>>>);

impl std::fmt::Debug for ResourceUsage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ResourceUsage(started: {})", self.0.get().is_some())
    }
}

impl ResourceUsage {
    /// The counters of the node and of its running containers.
    ///
    /// # Errors
    /// The node has not started, or its runtime does not answer.
    pub async fn measure(&self) -> Result<Sample, ResourceUsageError> {
        self.0.get().ok_or(ResourceUsageError::NotStarted)?.measure().await
    }

    /// Records how the node is measured; later calls have no effect.
    pub(crate) fn node_started(&self, node: Box<dyn MeasureNode>) {
        let _ = self.0.set(node);
    }
}
