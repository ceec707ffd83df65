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

/// The grace periods of the pods at a shutdown of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShutdownGracePeriod {
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
}
