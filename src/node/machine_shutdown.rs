//! The machine is switched off: pods end in order and within the time they get, critical ones last, as the kubelet's graceful node
//! shutdown does. They stay the machine's pods and start again when it is back, also without a server.

use std::sync::Arc;
use std::time::Duration;

use api::k8s::api::core::v1 as core;
use base::Shutdown;
use client::events::EventType;
use futures::future::join_all;
use tokio::sync::watch;

use crate::context::Node;
use crate::events;
use crate::pods::manager::Table;
use crate::pods::pod::Pod;
use crate::pods::worker::Handle;

/// Pods from this priority on end last (`scheduling.SystemCriticalPriority`).
const CRITICAL_PRIORITY: i32 = 2_000_000_000;
/// Beyond the time a group has: hooks and signals are sent, ends are seen.
const MARGIN: Duration = Duration::from_secs(3);

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

/// Waits for the machine's end and then ends pods.
pub(crate) async fn run(
    node: Arc<Node>,
    table: Table,
    shutdown: Shutdown,
) -> Result<(), std::convert::Infallible> {
    let power = node.config.power.clone();
    power.0.send_replace(Phase::Running);
    let mut phase = power.0.subscribe();
    let asked = async move { drop(phase.wait_for(|phase| *phase == Phase::GoingDown).await) };
    let asked = tokio::select! {
        () = shutdown.requested() => false,
        () = asked => true,
    };
    if asked && !node.config.shutdown_grace.total.is_zero() {
        end_all(&node, &table).await;
    }
    power.0.send_replace(Phase::Idle);
    shutdown.requested().await;
    Ok(())
}

async fn end_all(node: &Node, table: &Table) {
    node.node_event(
        EventType::Normal,
        events::SHUTDOWN,
        "Shutdown manager detected shutdown event",
    );
    node.report.notify_one();
    for (seconds, pods) in groups(node.config.shutdown_grace, table.all()) {
        tracing::info!(pods = pods.len(), seconds, "the machine is switched off, pods end");
        let ends = pods.into_iter().map(|(pod, handle)| async move {
            let mut halted = handle.halted.subscribe();
            let cap = seconds.min(pod.grace_seconds());
            handle.desired.send_modify(|d| d.halt = Some(cap));
            let _ = halted.wait_for(|halted| *halted).await;
        });
        let time = Duration::from_secs(u64::try_from(seconds).unwrap_or_default()) + MARGIN;
        if tokio::time::timeout(time, join_all(ends)).await.is_err() {
            tracing::warn!("some pods did not end in time");
        }
    }
}

type Group = (i64, Vec<(Arc<Pod>, Arc<Handle>)>);

/// Pods in the order in which they end, with the seconds of each group.
fn groups(grace: Grace, pods: Vec<(Arc<Pod>, Arc<Handle>)>) -> [Group; 2] {
    let (critical, others) = pods
        .into_iter()
        .filter(|(pod, _)| !pod.is_deleted() && !pod.is_api_terminal())
        .partition(|(pod, _)| is_critical(pod.spec()));
    let seconds = |time: Duration| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    let first = grace.total.saturating_sub(grace.critical);
    [(seconds(first), others), (seconds(grace.critical.min(grace.total)), critical)]
}

fn is_critical(spec: &core::PodSpec) -> bool {
    let named = matches!(
        spec.priority_class_name.as_deref(),
        Some("system-node-critical" | "system-cluster-critical")
    );
    named || spec.priority.is_some_and(|p| p >= CRITICAL_PRIORITY)
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

    #[test]
    fn critical_is_by_priority_or_by_class() {
        let spec = |json: serde_json::Value| serde_json::from_value::<core::PodSpec>(json).unwrap();
        let of = |json: serde_json::Value| is_critical(&spec(json));
        assert!(of(serde_json::json!({"containers": [], "priority": 2_000_000_000})));
        assert!(of(
            serde_json::json!({"containers": [], "priorityClassName": "system-node-critical"})
        ));
        assert!(!of(serde_json::json!({"containers": [], "priority": 1_999_999_999})));
    }
}
