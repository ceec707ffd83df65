//! When a volume may be detached from a node that no longer needs it.

use std::time::Duration;

/// How long a volume that is mounted stays attached to a node that is not ready
/// (`ReconcilerMaxWaitForUnmountDuration`).
pub(super) const MAX_WAIT_FOR_UNMOUNT: Duration = Duration::from_secs(360);

/// What is known about the node of an attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NodeCondition {
    /// The volume is in `status.volumesInUse`.
    pub(super) is_mounted: bool,
    /// The node exists and is ready.
    pub(super) is_healthy: bool,
    /// The node exists and has the taint `node.kubernetes.io/out-of-service`.
    pub(super) is_out_of_service: bool,
}

/// Why a volume is detached without a check that it is not mounted; the texts are labels of
/// `attachdetach_controller_forced_detaches`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ForcedReason {
    /// [`MAX_WAIT_FOR_UNMOUNT`] is over.
    Timeout,
    /// The node is out of service.
    OutOfService,
}

impl ForcedReason {
    /// The label.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::OutOfService => "out-of-service",
        }
    }
}

/// What to do with an attachment that no pod needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DetachVerdict {
    /// It is mounted. After `recheck` the time may be over.
    Wait {
        /// `None` if time alone changes nothing.
        recheck: Option<Duration>,
    },
    /// Detach it; without a reason to force it, only after a live check that it is not in use.
    Detach {
        /// The reason to leave out that check.
        forced: Option<ForcedReason>,
    },
}

/// Decides about a volume that was not needed for `elapsed`. `forces_on_timeout` is false with
/// `--disable-force-detach-on-timeout`.
pub(super) fn detach_verdict(
    node: NodeCondition,
    elapsed: Duration,
    forces_on_timeout: bool,
) -> DetachVerdict {
    let timed_out = forces_on_timeout && elapsed >= MAX_WAIT_FOR_UNMOUNT;
    let is_forced = timed_out && !node.is_healthy || node.is_out_of_service;
    if node.is_mounted && !is_forced {
        let rest = MAX_WAIT_FOR_UNMOUNT.checked_sub(elapsed).filter(|rest| !rest.is_zero());
        return DetachVerdict::Wait { recheck: rest.filter(|_| forces_on_timeout) };
    }
    // As in upstream, the time also ends the check of a volume that is not mounted and whose
    // detachment keeps failing.
    let forced = if timed_out {
        Some(ForcedReason::Timeout)
    } else {
        node.is_out_of_service.then_some(ForcedReason::OutOfService)
    };
    DetachVerdict::Detach { forced }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTED: NodeCondition =
        NodeCondition { is_mounted: true, is_healthy: true, is_out_of_service: false };
    const LATE: Duration = MAX_WAIT_FOR_UNMOUNT;

    fn forced(reason: ForcedReason) -> DetachVerdict {
        DetachVerdict::Detach { forced: Some(reason) }
    }

    #[test]
    fn an_unmounted_volume_is_detached_after_a_check() {
        let node = NodeCondition { is_mounted: false, ..MOUNTED };
        let checked = DetachVerdict::Detach { forced: None };
        assert_eq!(detach_verdict(node, Duration::ZERO, true), checked);
        assert_eq!(
            detach_verdict(NodeCondition { is_healthy: false, ..node }, Duration::ZERO, true),
            checked
        );
        // It has failed for 6 minutes.
        assert_eq!(detach_verdict(node, LATE, true), forced(ForcedReason::Timeout));
        assert_eq!(detach_verdict(node, LATE, false), checked);
    }

    #[test]
    fn a_mounted_volume_waits_for_six_minutes_and_an_unhealthy_node() {
        let half = LATE / 2;
        assert_eq!(
            detach_verdict(MOUNTED, half, true),
            DetachVerdict::Wait { recheck: Some(half) }
        );
        assert_eq!(detach_verdict(MOUNTED, LATE, true), DetachVerdict::Wait { recheck: None });
        let sick = NodeCondition { is_healthy: false, ..MOUNTED };
        assert_eq!(detach_verdict(sick, half, true), DetachVerdict::Wait { recheck: Some(half) });
        assert_eq!(detach_verdict(sick, LATE, true), forced(ForcedReason::Timeout));
    }

    #[test]
    fn an_out_of_service_node_loses_mounted_volumes_at_once() {
        let node = NodeCondition { is_out_of_service: true, is_healthy: false, ..MOUNTED };
        let reason = forced(ForcedReason::OutOfService);
        assert_eq!(detach_verdict(node, Duration::ZERO, true), reason);
        assert_eq!(detach_verdict(node, LATE, true), forced(ForcedReason::Timeout));
        assert_eq!(detach_verdict(node, LATE, false), reason);
    }

    #[test]
    fn without_forced_detaches_on_timeout_only_the_taint_releases_a_mounted_volume() {
        let sick = NodeCondition { is_healthy: false, ..MOUNTED };
        for elapsed in [Duration::ZERO, LATE] {
            assert_eq!(detach_verdict(sick, elapsed, false), DetachVerdict::Wait { recheck: None });
        }
    }
}
