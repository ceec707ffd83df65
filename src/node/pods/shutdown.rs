//! Stops the pods of a node before its machine is switched off, as the kubelet's graceful node
//! shutdown does.
//!
//! Pods are stopped in groups, from the lowest priority to the highest, and each group has its own
//! grace period. A group is over once its containers have ended and drivers have unpublished its
//! volumes: a CSI driver is in a later group. The pods stay bound to the node and start again when
//! the machine is back, also without a server.

use std::sync::Arc;
use std::time::Duration;

use api::k8s::api::core::v1 as core;
use base::Shutdown;
use client::events::EventType;
use futures::future::join_all;

use crate::context::Node;
use crate::events;
use crate::machine_shutdown::PriorityGracePeriod;
use crate::pods::table::PodTable;
use crate::priority::{CRITICAL, DEFAULT, NODE_CRITICAL};

/// The priorities of the built-in classes (`scheduling.SystemPriorityClasses`).
const CLASSES: [(&str, i32); 2] =
    [("system-cluster-critical", CRITICAL), ("system-node-critical", NODE_CRITICAL)];

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
    let periods = node.identity.config.shutdown_grace.by_priority();
    if is_shutting_down && !periods.is_empty() {
        stop_all_pods(&node, &table, &periods).await;
    }
    signal.node_stopped();
    shutdown.requested().await;
    Ok(())
}

async fn stop_all_pods(node: &Node, table: &PodTable, periods: &[PriorityGracePeriod]) {
    node.api.events.node_event(
        EventType::Normal,
        events::SHUTDOWN,
        "Shutdown manager detected shutdown event",
    );
    node.caches.status_changed.notify_one();
    let active = table.all().into_iter();
    let active = active.filter(|(pod, _)| !pod.is_deleted() && !pod.is_api_terminal());
    for group in groups(periods, active, |(pod, _)| priority(pod.spec())) {
        let PriorityGracePeriod { priority, seconds } = group.period;
        let pods = group.pods.len();
        tracing::info!(pods, priority, seconds, "machine shutdown: stopping pods");
        let ends = group.pods.into_iter().map(|(pod, handle)| async move {
            let mut halted = handle.halted.subscribe();
            let cap = seconds.min(pod.grace_seconds());
            handle.desired.send_modify(|d| d.halt_seconds = Some(cap));
            let _ = halted.wait_for(|halted| *halted).await;
        });
        let time = Duration::from_secs(u64::try_from(seconds).unwrap_or_default()) + MARGIN;
        if tokio::time::timeout(time, join_all(ends)).await.is_err() {
            tracing::warn!(priority, "machine shutdown: some pods did not stop in time");
        }
    }
}

/// Pods that are stopped at the same time.
#[derive(Debug)]
struct ShutdownGroup<T> {
    period: PriorityGracePeriod,
    pods: Vec<T>,
}

/// Divides pods into those of each period (upstream's `groupByPriority`), without periods that have
/// no pods. `periods` are sorted by priority. Pods of a priority below the first belong to the
/// first.
fn groups<T>(
    periods: &[PriorityGracePeriod],
    pods: impl IntoIterator<Item = T>,
    priority: impl Fn(&T) -> i32,
) -> Vec<ShutdownGroup<T>> {
    let mut groups: Vec<ShutdownGroup<T>> =
        periods.iter().map(|period| ShutdownGroup { period: *period, pods: Vec::new() }).collect();
    for pod in pods {
        let priority = priority(&pod);
        // The first period that begins at this priority, or else the last one that begins below it.
        let index = match periods.partition_point(|period| period.priority < priority) {
            at if periods.get(at).is_some_and(|period| period.priority == priority) => at,
            after => after.saturating_sub(1),
        };
        if let Some(group) = groups.get_mut(index) {
            group.pods.push(pod);
        }
    }
    groups.retain(|group| !group.pods.is_empty());
    groups
}

/// The priority of a pod. Admission sets that of pods of the API; a static pod may have the name of
/// a built-in class only.
fn priority(spec: &core::PodSpec) -> i32 {
    let class = spec.priority_class_name.as_deref();
    let of_class = CLASSES.iter().find(|(name, _)| class == Some(*name)).map(|(_, value)| *value);
    spec.priority.or(of_class).unwrap_or(DEFAULT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine_shutdown::ShutdownGracePeriod;

    #[test]
    fn the_priority_of_a_pod_is_its_own_or_that_of_a_built_in_class() {
        let of = |json: serde_json::Value| {
            let mut spec = serde_json::json!({"containers": []});
            spec.as_object_mut().unwrap().extend(json.as_object().unwrap().clone());
            priority(&serde_json::from_value::<core::PodSpec>(spec).unwrap())
        };
        assert_eq!(of(serde_json::json!({})), 0);
        assert_eq!(of(serde_json::json!({"priority": -5})), -5);
        let class = "system-node-critical";
        assert_eq!(of(serde_json::json!({"priorityClassName": class})), 2_000_001_000);
        assert_eq!(of(serde_json::json!({"priorityClassName": class, "priority": 7})), 7);
        assert_eq!(of(serde_json::json!({"priorityClassName": "own"})), 0);
    }

    fn grouped(periods: &[PriorityGracePeriod], pods: &[i32]) -> Vec<(i32, i64, Vec<i32>)> {
        let groups = groups(periods, pods.iter().copied(), |priority| *priority);
        groups.into_iter().map(|g| (g.period.priority, g.period.seconds, g.pods)).collect()
    }

    /// The cases of upstream's `Test_groupByPriority`.
    #[test]
    fn pods_belong_to_the_period_of_the_highest_priority_that_they_reach() {
        const HIGHEST_OF_USERS: i32 = 1_000_000_000;
        let total = Duration::from_secs(300);
        let migrated = ShutdownGracePeriod::Total { total, critical: Duration::from_secs(120) };
        assert_eq!(
            grouped(&migrated.by_priority(), &[0, HIGHEST_OF_USERS, CRITICAL]),
            [(0, 180, vec![0, HIGHEST_OF_USERS]), (CRITICAL, 120, vec![CRITICAL])]
        );
        let period =
            |priority: i32| PriorityGracePeriod { priority, seconds: i64::from(priority) * 10 };
        assert_eq!(
            grouped(&[1, 2, 3, 4].map(period), &[0, 1, 2, 3, 4, 5]),
            [(1, 10, vec![0, 1]), (2, 20, vec![2]), (3, 30, vec![3]), (4, 40, vec![4, 5])]
        );
    }

    #[test]
    fn periods_without_pods_are_left_out() {
        let period = |priority| PriorityGracePeriod { priority, seconds: 5 };
        assert_eq!(
            grouped(&[0, 10, 20].map(period), &[-1, 25]),
            [(0, 5, vec![-1]), (20, 5, vec![25])]
        );
        assert_eq!(grouped(&[0].map(period), &[]), []);
    }
}
