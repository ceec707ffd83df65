//! The signal that ends the pods of a node before its machine is switched off.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Phase {
    /// No node runs, or its pods have ended.
    #[default]
    Idle,
    /// The node runs.
    Running,
    /// The pods are being stopped.
    GoingDown,
}

/// Stops the pods of a node before its machine is switched off; cheap to clone, one for each node.
#[derive(Debug, Clone, Default)]
pub struct Power(Arc<watch::Sender<Phase>>);

impl Power {
    /// Stops the node's pods. Resolves when they have ended or their grace period is over, and at
    /// once if no node runs.
    pub async fn go_down(&self) {
        let asked = self.0.send_if_modified(|phase| {
            let runs = *phase == Phase::Running;
            if runs {
                *phase = Phase::GoingDown;
            }
            runs
        });
        if asked {
            // `self` holds the sender, so the channel cannot close.
            let _ = self.0.subscribe().wait_for(|phase| *phase == Phase::Idle).await;
        }
    }

    /// Records that a node runs; resolves once its pods are to be stopped.
    pub(crate) fn begin(&self) -> impl Future<Output = ()> + use<> {
        self.0.send_replace(Phase::Running);
        let mut phase = self.0.subscribe();
        async move { drop(phase.wait_for(|phase| *phase == Phase::GoingDown).await) }
    }

    /// Records that the pods of the node have ended, or that the node stops without stopping them.
    pub(crate) fn end(&self) {
        self.0.send_replace(Phase::Idle);
    }

    /// Whether pods are being stopped because the machine is switched off.
    pub(crate) fn is_going_down(&self) -> bool {
        *self.0.borrow() == Phase::GoingDown
    }
}

/// The grace periods of the pods at a shutdown of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grace {
    /// For all pods together (`shutdownGracePeriod`); zero stops no pods.
    pub total: Duration,
    /// The part of it for critical pods, which are stopped last
    /// (`shutdownGracePeriodCriticalPods`).
    pub critical: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn without_a_node_nothing_is_waited_for() {
        let power = Power::default();
        power.go_down().await;
        assert!(!power.is_going_down());
    }

    #[tokio::test]
    async fn going_down_ends_when_the_pods_have_ended() {
        let power = Power::default();
        power.0.send_replace(Phase::Running);
        let (own, mut phase) = (power.clone(), power.0.subscribe());
        let node = async move {
            let _ = phase.wait_for(|phase| *phase == Phase::GoingDown).await;
            assert!(own.is_going_down());
            own.0.send_replace(Phase::Idle);
        };
        tokio::join!(power.go_down(), node);
        assert!(!power.is_going_down());
    }
}
