//! Priorities of pods (`pkg/apis/scheduling`).

/// The priority of a pod without one (`DefaultPriorityWhenNoDefaultClassExists`).
pub(crate) const DEFAULT: i32 = 0;
/// The lowest priority of the system's classes (`SystemCriticalPriority`), that of
/// `system-cluster-critical`.
pub(crate) const CRITICAL: i32 = 2_000_000_000;
/// The priority of `system-node-critical`.
pub(crate) const NODE_CRITICAL: i32 = 2_000_001_000;
