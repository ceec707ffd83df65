//! What has to be done about a release, by its last record and the failure policy of its chart
//! (klipper-helm's script, which k3s's jobs run).

use crate::release::Status;

/// The next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Install,
    Upgrade,
    /// Remove what a failed release left, then install.
    Reinstall,
    /// Leave the failed release alone.
    Abort,
}

/// The step for a release whose last revision has this state; `None` if there is none. An
/// operation that was interrupted counts as failed.
pub(super) fn step(last: Option<Status>, failure_policy: &str) -> Step {
    match last {
        None => Step::Install,
        Some(Status::Deployed | Status::Superseded) => Step::Upgrade,
        Some(Status::Uninstalled | Status::Uninstalling) => Step::Reinstall,
        Some(_) => match failure_policy {
            "abort" => Step::Abort,
            "retry" => Step::Upgrade,
            _ => Step::Reinstall,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_failure_policy_decides_about_failed_releases() {
        for (last, policy, want) in [
            (None, "abort", Step::Install),
            (Some(Status::Deployed), "reinstall", Step::Upgrade),
            (Some(Status::Failed), "reinstall", Step::Reinstall),
            (Some(Status::Failed), "abort", Step::Abort),
            (Some(Status::Failed), "retry", Step::Upgrade),
            (Some(Status::PendingUpgrade), "reinstall", Step::Reinstall),
            (Some(Status::Uninstalling), "abort", Step::Reinstall),
        ] {
            assert_eq!(step(last, policy), want, "{last:?} {policy}");
        }
    }
}
