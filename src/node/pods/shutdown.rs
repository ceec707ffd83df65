//! Stops the pods of a node before its machine is switched off, as the kubelet's graceful node
//! shutdown does.
//!
//! Critical pods are stopped last, and each group has its share of the grace period. The pods stay
//! bound to the node and start again when the machine is back, also without a server.

use std::sync::Arc;
use std::time::Duration;

use api::k8s::api::core::v1 as core;
use base::Shutdown;
use client::events::EventType;
use futures::future::join_all;

use crate::context::Node;
use crate::events;
use crate::machine_shutdown::ShutdownGracePeriod;
use crate::pods::handle::WorkerHandle;
use crate::pods::pod::Pod;
use crate::pods::table::PodTable;

/// Pods of this priority or higher are stopped last (`scheduling.SystemCriticalPriority`).
const CRITICAL_PRIORITY: i32 = 2_000_000_000;

/// Time on top of a group's grace period to send hooks and signals and to observe the ends.
const MARGIN: Duration = Duration::from_secs(3);

/// Waits for the shutdown of the machine and then stops the pods.
pub(crate) async fn run(
    node: Arc<Node>,
    table: PodTable,
    shutdown: Shutdown,
) -> Result<(), std::convert::Infallible> {
    let signal = node.identity.config.machine_shutdown.clone();
    let is_shutting_down = signal.node_started();
    let is_shutting_down = tokio::select! {
        () = shutdown.requested() => false,
        () = is_shutting_down => true,
    };
    if is_shutting_down && !node.identity.config.shutdown_grace.total.is_zero() {
        stop_all_pods(&node, &table).await;
    }
    signal.node_stopped();
    shutdown.requested().await;
    Ok(())
}

async fn stop_all_pods(node: &Node, table: &PodTable) {
    node.api.events.node_event(
        EventType::Normal,
        events::SHUTDOWN,
        "Shutdown manager detected shutdown event",
    );
    node.caches.status_changed.notify_one();
    for (seconds, pods) in groups(node.identity.config.shutdown_grace, table.all()) {
        tracing::info!(pods = pods.len(), seconds, "machine shutdown: stopping pods");
        let ends = pods.into_iter().map(|(pod, handle)| async move {
            let mut halted = handle.halted.subscribe();
            let cap = seconds.min(pod.grace_seconds());
            handle.desired.send_modify(|d| d.halt_seconds = Some(cap));
            let _ = halted.wait_for(|halted| *halted).await;
        });
        let time = Duration::from_secs(u64::try_from(seconds).unwrap_or_default()) + MARGIN;
        if tokio::time::timeout(time, join_all(ends)).await.is_err() {
            tracing::warn!("machine shutdown: some pods did not stop in time");
        }
    }
}

type Group = (i64, Vec<(Arc<Pod>, Arc<WorkerHandle>)>);

/// Returns the pods in the order in which they are stopped, with the grace period of each group in
/// seconds.
fn groups(grace: ShutdownGracePeriod, pods: Vec<(Arc<Pod>, Arc<WorkerHandle>)>) -> [Group; 2] {
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

    #[test]
    fn a_pod_is_critical_by_priority_or_class() {
        let spec = |json: serde_json::Value| serde_json::from_value::<core::PodSpec>(json).unwrap();
        let of = |json: serde_json::Value| is_critical(&spec(json));
        assert!(of(serde_json::json!({"containers": [], "priority": 2_000_000_000})));
        assert!(of(
            serde_json::json!({"containers": [], "priorityClassName": "system-node-critical"})
        ));
        assert!(!of(serde_json::json!({"containers": [], "priority": 1_999_999_999})));
    }
}
