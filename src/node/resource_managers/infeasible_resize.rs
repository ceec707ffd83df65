//! Why a resize is impossible, for the condition of the pod.

use super::metrics;

/// Why a resize is infeasible as long as the policy is in effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InfeasibleResize {
    /// The CPUs of the container are its own.
    Cpu,
    /// The memory of the container is on nodes of its own.
    Memory,
    /// The container uses swap.
    Swap,
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
            Self::Swap => "In-place resize of containers with swap is not supported.",
        }
    }

    /// Counts the resize.
    pub(crate) fn count(self) {
        let detail = match self {
            Self::Cpu => "guaranteed_pod_cpu_manager_static_policy",
            Self::Memory => "guaranteed_pod_memory_manager_static_policy",
            Self::Swap => "swap_limitation",
        };
        metrics::INFEASIBLE_RESIZES.inc(&[detail]);
    }
}
