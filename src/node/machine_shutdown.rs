//! The signal that ends the pods of a node before its machine is switched off.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Phase {
    /// No node runs here, or its pods have ended.
    #[default]
    Idle,
    /// The node runs.
    Running,
    /// Its pods end.
    GoingDown,
}

/// The way to end the pods of a node before its machine is switched off; cheap to clone, one for each node.
#[derive(Debug, Clone, Default)]
pub struct Power(Arc<watch::Sender<Phase>>);

impl Power {
    /// Ends the node's pods; resolves when they have ended or their time is over, at once where no node runs.
    pub async fn go_down(&self) {
        let asked = self.0.send_if_modified(|phase| {
            let runs = *phase == Phase::Running;
            if runs {
                *phase = Phase::GoingDown;
            }
            runs
        });
        if asked {
            // The sender is held by `self`: it cannot be closed.
            let _ = self.0.subscribe().wait_for(|phase| *phase == Phase::Idle).await;
        }
    }

    /// Notes that a node runs; resolves once its pods are to end.
    pub(crate) fn begin(&self) -> impl Future<Output = ()> + use<> {
        self.0.send_replace(Phase::Running);
        let mut phase = self.0.subscribe();
        async move { drop(phase.wait_for(|phase| *phase == Phase::GoingDown).await) }
    }

    /// Notes that the pods of the node have ended, or that it stops without ending them.
    pub(crate) fn end(&self) {
        self.0.send_replace(Phase::Idle);
    }

    /// Whether pods end because the machine is switched off.
    pub(crate) fn is_going_down(&self) -> bool {
        *self.0.borrow() == Phase::GoingDown
    }
}

/// The time pods get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grace {
    /// All together (`shutdownGracePeriod`); zero leaves pods to what switches the machine off.
    pub total: Duration,
    /// Of that for critical ones, which end last (`shutdownGracePeriodCriticalPods`).
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
