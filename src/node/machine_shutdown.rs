//! The signal that ends the pods of a node before its machine is switched off.

use std::sync::Arc;
use std::time::Duration;

use sorting::CompactSort as _;
use tokio::sync::watch;

use crate::priority;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Phase {
    /// No node runs, or its pods have ended.
    #[default]
    Idle,
    /// The node runs.
    Running,
    /// The pods are being stopped.
    Stopping,
}

/// Stops the pods of a node before its machine is switched off; cheap to clone, one for each node.
#[derive(Debug, Clone, Default)]
pub struct MachineShutdown(Arc<watch::Sender<Phase>>);

impl MachineShutdown {
    /// Stops the node's pods. Resolves when they have ended or their grace period is over, and at
    /// once if no node runs.
    pub async fn stop_pods(&self) {
        let running = self.0.send_if_modified(|phase| {
            let runs = *phase == Phase::Running;
            if runs {
                *phase = Phase::Stopping;
            }
            runs
        });
        if running {
            // `self` holds the sender, so the channel cannot close.
            let _ = self.0.subscribe().wait_for(|phase| *phase == Phase::Idle).await;
        }
    }

    /// Records that a node runs; resolves once its pods are to be stopped.
    pub(crate) fn node_started(&self) -> impl Future<Output = ()> + use<> {
        self.0.send_replace(Phase::Running);
        let mut phase = self.0.subscribe();
        async move { drop(phase.wait_for(|phase| *phase == Phase::Stopping).await) }
    }

    /// Records that the pods of the node have ended, or that the node stops without stopping them.
    pub(crate) fn node_stopped(&self) {
        self.0.send_replace(Phase::Idle);
    }

    /// Whether pods are being stopped because the machine is switched off.
    pub(crate) fn is_in_progress(&self) -> bool {
        *self.0.borrow() == Phase::Stopping
    }
}

/// The time in which the pods of a range of priorities end at a shutdown of the machine
/// (`ShutdownGracePeriodByPodPriority`). The range begins with `priority` and ends below that of
/// the next entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PriorityGracePeriod {
    /// The lowest priority of the range.
    pub priority: i32,
    /// The time for these pods, in seconds.
    pub seconds: i64,
}

/// The grace periods of the pods at a shutdown of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ShutdownGracePeriod {
    /// One period for all pods.
    Total {
        /// For all pods together (`shutdownGracePeriod`); zero stops no pods.
        total: Duration,
        /// The part of it for critical pods, which are stopped last
        /// (`shutdownGracePeriodCriticalPods`).
        critical: Duration,
    },
    /// One period for each range of priorities (`shutdownGracePeriodByPodPriority`).
    ByPriority(Vec<PriorityGracePeriod>),
}

impl Default for ShutdownGracePeriod {
    /// The defaults of the kubelet: pods are not stopped.
    fn default() -> Self {
        Self::Total { total: Duration::ZERO, critical: Duration::ZERO }
    }
}

impl ShutdownGracePeriod {
    /// The periods in the order in which pods are stopped, from the lowest priority to the highest;
    /// none stops no pods. Upstream's `migrateConfig` makes two of one period.
    pub fn by_priority(&self) -> Vec<PriorityGracePeriod> {
        match self {
            Self::Total { total, .. } if total.is_zero() => Vec::new(),
            Self::Total { total, critical } => {
                let seconds = |time: Duration| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
                let Some(others) = total.checked_sub(*critical) else { return Vec::new() };
                vec![
                    PriorityGracePeriod { priority: priority::DEFAULT, seconds: seconds(others) },
                    PriorityGracePeriod {
                        priority: priority::CRITICAL,
                        seconds: seconds(*critical),
                    },
                ]
            }
            Self::ByPriority(periods) => {
                let mut periods = periods.clone();
                periods.compact_sort_by_key(|period| period.priority);
                periods
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn stop_pods_returns_at_once_without_a_node() {
        let signal = MachineShutdown::default();
        signal.stop_pods().await;
        assert!(!signal.is_in_progress());
    }

    #[tokio::test]
    async fn stop_pods_returns_when_the_pods_have_ended() {
        let signal = MachineShutdown::default();
        signal.0.send_replace(Phase::Running);
        let (own, mut phase) = (signal.clone(), signal.0.subscribe());
        let node = async move {
            let _ = phase.wait_for(|phase| *phase == Phase::Stopping).await;
            assert!(own.is_in_progress());
            own.0.send_replace(Phase::Idle);
        };
        tokio::join!(signal.stop_pods(), node);
        assert!(!signal.is_in_progress());
    }
    /// The cases of upstream's `Test_migrateConfig`.
    #[test]
    fn one_period_is_one_for_critical_and_one_for_other_pods() {
        for (total, critical, want) in [
            (300, 120, &[(0, 180), (2_000_000_000, 120)][..]),
            (100, 0, &[(0, 100), (2_000_000_000, 0)]),
            (0, 0, &[]),
            (1, 100, &[]),
        ] {
            let period = ShutdownGracePeriod::Total {
                total: Duration::from_secs(total),
                critical: Duration::from_secs(critical),
            };
            let periods = period.by_priority();
            let got: Vec<_> = periods.iter().map(|p| (p.priority, p.seconds)).collect();
            assert_eq!(got, want, "total {total}, critical {critical}");
        }
    }

    #[test]
    fn periods_are_sorted_by_priority() {
        let period = |(priority, seconds)| PriorityGracePeriod { priority, seconds };
        let given = [(100_000, 10), (0, 60), (10_000, 180)].map(period).to_vec();
        let sorted = [(0, 60), (10_000, 180), (100_000, 10)].map(period).to_vec();
        assert_eq!(ShutdownGracePeriod::ByPriority(given).by_priority(), sorted);
    }
}
