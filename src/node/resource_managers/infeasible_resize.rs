//! Why a static policy does not allow a resize, for the condition of the pod.

use super::metrics;

/// Why a resize is infeasible as long as the policy is in effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InfeasibleResize {
    Cpu,
    Memory,
}

impl InfeasibleResize {
    /// Message of the condition, as upstream.
    pub(crate) fn message(self) -> &'static str {
        match self {
            Self::Cpu => {
                "Resize is infeasible for Guaranteed Pods alongside CPU Manager policy \"static\""
            }
            Self::Memory => {
                "Resize is infeasible for Guaranteed Pods alongside Memory Manager policy \
                 \"Static\""
            }
        }
    }

    /// Counts the resize.
    pub(crate) fn count(self) {
        let detail = match self {
            Self::Cpu => "guaranteed_pod_cpu_manager_static_policy",
            Self::Memory => "guaranteed_pod_memory_manager_static_policy",
        };
        metrics::INFEASIBLE_RESIZES.inc(&[detail]);
    }
}
