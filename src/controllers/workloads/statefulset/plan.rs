//! The next steps of a StatefulSet, decided without I/O.

use api::k8s::api::apps::v1::{StatefulSet, StatefulSetStatus};
use api::k8s::api::core::v1::Pod;
use api::k8s::jiff::Timestamp;
use sorting::CompactSort as _;

use super::identity::{missing_labels, ordinal_of, range, revision_of};
use crate::framework::int_or_percent::scaled;
use crate::framework::pods;

/// One write, or a group of writes for one pod.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Step {
    /// Make claims and pod of this ordinal.
    Create(i32),
    /// Make the claims that a pending pod misses.
    Claims(Pod),
    /// Give the pod its labels and its claims their owners.
    Repair(Pod),
    /// Delete a finished pod (made again later) or one that is scaled away.
    Delete(Pod),
    /// Delete a pod of another revision.
    Update(Pod),
}

/// What a sync decides on.
#[derive(Debug)]
pub(super) struct View<'a> {
    pub(super) set: &'a StatefulSet,
    /// Names of the revisions.
    pub(super) current: &'a str,
    pub(super) update: &'a str,
    /// Pods of the wanted ordinals, in order.
    pub(super) replicas: Vec<(i32, Option<Pod>)>,
    /// Other pods, highest ordinal first.
    pub(super) condemned: Vec<Pod>,
    pub(super) now: Timestamp,
}

fn is_terminating(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

fn is_running_and_ready(pod: &Pod) -> bool {
    pods::phase(pod) == "Running" && pods::is_ready(pod)
}

/// Pods are replaced by those of a new revision one after the other.
pub(super) fn is_rolling(set: &StatefulSet) -> bool {
    let strategy = set.spec.update_strategy.as_ref().and_then(|s| s.type_.as_deref());
    strategy.is_none_or(|strategy| strategy == "RollingUpdate")
}

/// The number of pods that an update may make unavailable, at least one
/// (`getStatefulSetMaxUnavailable`).
pub(super) fn max_unavailable(set: &StatefulSet) -> usize {
    let rolling = set.spec.update_strategy.as_ref().and_then(|s| s.rolling_update.as_ref());
    let limit = rolling.and_then(|r| r.max_unavailable.as_ref());
    let wanted = set.spec.replicas.unwrap_or(1);
    let limit = limit.and_then(|v| scaled(v, wanted, false)).unwrap_or(1).max(1);
    usize::try_from(limit).unwrap_or(1)
}

impl<'a> View<'a> {
    pub(super) fn new(
        set: &'a StatefulSet,
        current: &'a str,
        update: &'a str,
        owned: Vec<Pod>,
        now: Timestamp,
    ) -> Self {
        let mut replicas: Vec<(i32, Option<Pod>)> = range(set).map(|o| (o, None)).collect();
        let mut condemned = Vec::new();
        for pod in owned {
            let Some(ordinal) = ordinal_of(&pod) else { continue };
            match replicas.iter_mut().find(|(o, _)| *o == ordinal) {
                Some((_, slot)) => *slot = Some(pod),
                None => condemned.push(pod),
            }
        }
        condemned.compact_sort_by_key(|p| std::cmp::Reverse(ordinal_of(p)));
        Self { set, current, update, replicas, condemned, now }
    }

    fn is_available(&self, pod: &Pod) -> bool {
        pods::is_available(pod, self.set.spec.min_ready_seconds.unwrap_or(0), self.now)
    }

    /// Not there, not available, or going.
    fn is_unavailable(&self, pod: Option<&Pod>) -> bool {
        pod.is_none_or(|p| !self.is_available(p) || is_terminating(p))
    }

    /// How many of the wanted pods are not there, not available, or going.
    pub(super) fn unavailable(&self) -> usize {
        self.replicas.iter().filter(|(_, p)| self.is_unavailable(p.as_ref())).count()
    }

    fn is_parallel(&self) -> bool {
        self.set.spec.pod_management_policy.as_deref() == Some("Parallel")
    }

    /// A pod of this ordinal is made from the update's template (`newVersionedStatefulSetPod`).
    pub(super) fn is_updated(&self, ordinal: i32) -> bool {
        if !is_rolling(self.set) {
            return true;
        }
        let strategy = self.set.spec.update_strategy.as_ref();
        let start = range(self.set).start;
        let kept = match strategy.and_then(|s| s.rolling_update.as_ref()) {
            Some(rolling) => rolling.partition.unwrap_or(0),
            None => self.set.status.as_ref().and_then(|s| s.current_replicas).unwrap_or(0),
        };
        ordinal >= start.saturating_add(kept)
    }

    /// The steps that can be taken now. Ordered sets wait for each pod before they touch the next
    /// one.
    pub(super) fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        if self.set.metadata.deletion_timestamp.is_some() {
            return steps;
        }
        let ordered = !self.is_parallel();
        for (ordinal, pod) in &self.replicas {
            if self.tend(*ordinal, pod.as_ref(), &mut steps) && ordered {
                return steps;
            }
        }
        steps.extend(self.condemned.iter().cloned().map(Step::Repair));
        let first_bad = self.condemned.iter().rev().find(|p| self.is_unavailable(Some(p)));
        for pod in &self.condemned {
            let bad = !is_running_and_ready(pod) || !self.is_available(pod);
            let waits = is_terminating(pod) || (bad && first_bad != Some(pod));
            if ordered && waits {
                return steps;
            }
            if !is_terminating(pod) {
                steps.push(Step::Delete(pod.clone()));
                if ordered {
                    return steps;
                }
            }
        }
        self.roll(&mut steps);
        steps
    }

    /// Steps for one wanted pod; true when an ordered set waits for it.
    fn tend(&self, ordinal: i32, pod: Option<&Pod>, steps: &mut Vec<Step>) -> bool {
        let Some(pod) = pod else {
            steps.push(Step::Create(ordinal));
            return true;
        };
        if pods::is_terminal(pod) {
            if !is_terminating(pod) {
                steps.push(Step::Delete(pod.clone()));
            }
            return true;
        }
        if pods::phase(pod) == "Pending" {
            steps.push(Step::Claims(pod.clone()));
        }
        if is_terminating(pod) || !is_running_and_ready(pod) || !self.is_available(pod) {
            return true;
        }
        if missing_labels(pod).is_some() || self.set.spec.volume_claim_templates.is_some() {
            steps.push(Step::Repair(pod.clone()));
        }
        false
    }

    /// Deletes pods of another revision, from the highest ordinal down to the partition, within
    /// `maxUnavailable`.
    fn roll(&self, steps: &mut Vec<Step>) {
        if !is_rolling(self.set) {
            return;
        }
        let strategy = self.set.spec.update_strategy.as_ref();
        let rolling = strategy.and_then(|s| s.rolling_update.as_ref());
        let partition = rolling.and_then(|r| r.partition).unwrap_or(0);
        let partition = usize::try_from(partition).unwrap_or(0);
        let outdated: Vec<&Pod> = self
            .replicas
            .iter()
            .skip(partition)
            .rev()
            .filter_map(|(_, p)| p.as_ref())
            .filter(|p| {
                revision_of(p) != self.update && !is_terminating(p) && !pods::is_terminal(p)
            })
            .collect();
        let mut room = max_unavailable(self.set).saturating_sub(self.unavailable());
        if self.is_parallel() {
            // What is broken anyway costs no availability.
            let (fine, broken): (Vec<&Pod>, Vec<&Pod>) =
                outdated.into_iter().partition(|p| self.is_available(p));
            steps.extend(broken.into_iter().cloned().map(Step::Update));
            steps.extend(fine.into_iter().take(room).cloned().map(Step::Update));
            return;
        }
        for pod in outdated {
            if room == 0 {
                return;
            }
            steps.push(Step::Update(pod.clone()));
            room -= 1;
        }
    }

    /// The status. `created` are pods of this sync, `updating` the pods of the current revision
    /// that it deleted.
    pub(super) fn status(
        &self,
        created: &[Pod],
        updating: i32,
        collisions: Option<i32>,
    ) -> StatefulSetStatus {
        let before = self.set.status.clone().unwrap_or_default();
        let all: Vec<&Pod> = self
            .replicas
            .iter()
            .filter_map(|(_, p)| p.as_ref())
            .chain(&self.condemned)
            .chain(created)
            .collect();
        let count = |test: &dyn Fn(&Pod) -> bool| {
            i32::try_from(all.iter().filter(|p| test(p)).count()).unwrap_or(i32::MAX)
        };
        let of = |revision: &str| count(&|p| !is_terminating(p) && revision_of(p) == revision);
        let wanted = self.set.spec.replicas.unwrap_or(1);
        let (replicas, ready) = (count(&|_| true), count(&is_running_and_ready));
        let updated = of(self.update);
        // Nothing of before is left: the update is the current revision from now on.
        let complete = updated == wanted && ready == wanted && replicas == wanted;
        let current = if complete { updated } else { (of(self.current) - updating).max(0) };
        let some = |n: i32| (n != 0).then_some(n);
        StatefulSetStatus {
            observed_generation: self.set.metadata.generation,
            replicas,
            ready_replicas: some(ready),
            available_replicas: Some(count(&|p| is_running_and_ready(p) && self.is_available(p))),
            current_replicas: some(current),
            updated_replicas: some(updated),
            current_revision: Some(if complete { self.update } else { self.current }.to_owned()),
            update_revision: Some(self.update.to_owned()),
            collision_count: Some(collisions.unwrap_or(0)),
            conditions: before.conditions,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn set(replicas: i32, policy: &str, rolling: Value) -> StatefulSet {
        serde_json::from_value(json!({"metadata": {"name": "s", "generation": 1},
            "spec": {"replicas": replicas, "selector": {}, "podManagementPolicy": policy,
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": rolling},
            "template": {}}}))
        .unwrap()
    }

    fn pod(ordinal: i32, phase: &str, revision: &str) -> Pod {
        let ready = if phase == "Running" { "True" } else { "False" };
        let name = format!("s-{ordinal}");
        serde_json::from_value(json!({"metadata": {"name": name,
            "labels": {"statefulset.kubernetes.io/pod-name": name,
            "controller-revision-hash": revision}},
            "status": {"phase": phase, "conditions": [{"type": "Ready", "status": ready}]}}))
        .unwrap()
    }

    fn steps(set: &StatefulSet, pods: Vec<Pod>) -> Vec<String> {
        let view = View::new(set, "a", "b", pods, Timestamp::UNIX_EPOCH);
        let name = |p: &Pod| p.metadata.name.clone().unwrap();
        let told = view.steps().into_iter().map(|step| match step {
            Step::Create(ordinal) => format!("create {ordinal}"),
            Step::Claims(pod) => format!("claims {}", name(&pod)),
            Step::Repair(pod) => format!("repair {}", name(&pod)),
            Step::Delete(pod) => format!("delete {}", name(&pod)),
            Step::Update(pod) => format!("update {}", name(&pod)),
        });
        told.collect()
    }

    #[test]
    fn ordered_sets_wait_for_each_pod() {
        let s = set(3, "OrderedReady", json!({"partition": 0}));
        assert_eq!(steps(&s, vec![]), ["create 0"]);
        assert_eq!(steps(&s, vec![pod(0, "Pending", "b")]), ["claims s-0"]);
        assert_eq!(steps(&s, vec![pod(0, "Running", "b")]), ["create 1"]);
        assert_eq!(steps(&s, vec![pod(0, "Failed", "b"), pod(1, "Running", "b")]), ["delete s-0"]);
        let small = set(1, "OrderedReady", json!({"partition": 0}));
        assert_eq!(
            steps(
                &small,
                vec![pod(0, "Running", "b"), pod(1, "Running", "b"), pod(2, "Running", "b")]
            ),
            ["repair s-2", "repair s-1", "delete s-2"]
        );
        assert!(
            !steps(
                &small,
                vec![pod(0, "Running", "b"), pod(1, "Pending", "b"), pod(2, "Pending", "b")]
            )
            .contains(&"delete s-2".into())
        );
    }

    #[test]
    fn parallel_sets_do_everything_at_once() {
        let s = set(3, "Parallel", json!({"partition": 0}));
        assert_eq!(steps(&s, vec![pod(1, "Pending", "b")]), ["create 0", "claims s-1", "create 2"]);
    }

    #[test]
    fn updates_go_down_to_the_partition_one_by_one() {
        let all = |revisions: [&str; 3]| {
            (0..).zip(revisions).map(|(i, r)| pod(i, "Running", r)).collect::<Vec<_>>()
        };
        let s = set(3, "OrderedReady", json!({"partition": 1}));
        assert_eq!(steps(&s, all(["a", "a", "a"])), ["update s-2"]);
        assert_eq!(steps(&s, all(["a", "a", "b"])), ["update s-1"]);
        assert!(steps(&s, all(["a", "b", "b"])).is_empty());
        let two = set(3, "OrderedReady", json!({"maxUnavailable": 2}));
        assert_eq!(steps(&two, all(["a", "a", "a"])), ["update s-2", "update s-1"]);
        let view = View::new(&s, "a", "b", vec![], Timestamp::UNIX_EPOCH);
        assert!(!view.is_updated(0) && view.is_updated(1));
    }

    #[test]
    fn a_finished_update_becomes_current() {
        let s = set(2, "OrderedReady", json!({}));
        let half = View::new(
            &s,
            "a",
            "b",
            vec![pod(0, "Running", "a"), pod(1, "Running", "b")],
            Timestamp::UNIX_EPOCH,
        );
        let status = half.status(&[], 0, None);
        assert_eq!(
            (status.current_revision.as_deref(), status.current_replicas, status.updated_replicas),
            (Some("a"), Some(1), Some(1))
        );
        let done = View::new(
            &s,
            "a",
            "b",
            vec![pod(0, "Running", "b"), pod(1, "Running", "b")],
            Timestamp::UNIX_EPOCH,
        );
        let status = done.status(&[], 0, None);
        assert_eq!(
            (status.current_revision.as_deref(), status.current_replicas),
            (Some("b"), Some(2))
        );
    }
}
