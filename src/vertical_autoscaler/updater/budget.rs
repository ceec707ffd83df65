//! How many pods of a controller may be disrupted at once
//! (`pkg/updater/restriction/pods_restriction_factory.go`).

use std::collections::BTreeMap;

use crate::admission::startup_boost::is_boosted;
use crate::policy::pod::{ControllerRef, PodView};
use crate::types::VerticalPodAutoscaler;

/// Live replicas that a controller must have before a pod of it is disrupted, unless the
/// autoscaler says otherwise (`--min-replicas`).
const MIN_REPLICAS: usize = 2;
/// Fraction of the replicas that may be disrupted, if that is more than one pod
/// (`--eviction-tolerance`).
const TOLERANCE: f64 = 0.5;

/// The pods of one controller.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct ReplicaGroup {
    /// Replicas that the controller shall have.
    configured: usize,
    /// Live replicas that are not pending.
    running: usize,
    /// Replicas that may be missing.
    tolerance: usize,
    /// Replicas that this loop evicted.
    evicted: usize,
    /// Replicas that this loop resized.
    resized: usize,
}

impl ReplicaGroup {
    /// `isPodDisruptable`.
    fn is_disruptable(self) -> bool {
        let disrupted = self.evicted + self.resized;
        // Comparisons without subtraction, because more pods may be disrupted than run.
        self.running + self.tolerance > self.configured + disrupted
            || self.configured == self.running && self.tolerance == 0 && disrupted == 0
    }
}

/// The disruptions that one loop may cause to the pods of an autoscaler.
#[derive(Debug, Default)]
pub(super) struct DisruptionBudget {
    groups: BTreeMap<ControllerRef, ReplicaGroup>,
}

impl DisruptionBudget {
    /// The budget of live `pods`. `replicas` is the number of pods that a controller shall have,
    /// or `None` if it is unknown, which protects the pods of the controller.
    pub(super) fn new(
        pods: &[PodView],
        autoscaler: &VerticalPodAutoscaler,
        replicas: impl Fn(&ControllerRef) -> Option<usize>,
    ) -> Self {
        Self::with(pods, autoscaler, replicas, (MIN_REPLICAS, TOLERANCE))
    }

    fn with(
        pods: &[PodView],
        autoscaler: &VerticalPodAutoscaler,
        replicas: impl Fn(&ControllerRef) -> Option<usize>,
        (min_replicas, tolerance): (usize, f64),
    ) -> Self {
        let mut live: BTreeMap<&ControllerRef, Vec<&PodView>> = BTreeMap::new();
        for pod in pods {
            if let Some(controller) = &pod.controller {
                live.entry(controller).or_default().push(pod);
            }
        }
        let policy = autoscaler.spec.update_policy.as_ref();
        let own = policy.and_then(|policy| policy.min_replicas);
        let required = own.map_or(min_replicas, |own| usize::try_from(own).unwrap_or_default());
        let mut groups = BTreeMap::new();
        for (controller, pods) in live {
            let is_below = pods.len() < required;
            if is_below && !pods.iter().any(|pod| is_boosted(pod)) {
                continue;
            }
            // A Job has no number of replicas.
            let configured = match &*controller.kind {
                "Job" => Some(pods.len()),
                _ => replicas(controller),
            };
            let Some(configured) = configured else { continue };
            let group = ReplicaGroup {
                configured,
                running: pods.iter().filter(|pod| !pod.is_pending()).count(),
                tolerance: fraction(configured, tolerance),
                ..ReplicaGroup::default()
            };
            groups.insert(controller.clone(), group);
        }
        Self { groups }
    }

    fn group(&self, pod: &PodView) -> Option<ReplicaGroup> {
        self.groups.get(pod.controller.as_ref()?).copied()
    }

    /// Whether the budget covers the pod: its controller has enough live replicas.
    pub(super) fn covers(&self, pod: &PodView) -> bool {
        self.group(pod).is_some()
    }

    /// Whether a further pod of the controller of `pod` may be disrupted.
    pub(super) fn is_disruptable(&self, pod: &PodView) -> bool {
        self.group(pod).is_some_and(ReplicaGroup::is_disruptable)
    }

    fn change(&mut self, pod: &PodView, change: impl FnOnce(&mut ReplicaGroup)) {
        if let Some(group) = pod.controller.as_ref().and_then(|c| self.groups.get_mut(c)) {
            change(group);
        }
    }

    /// Counts an eviction. A pending pod does not count, because it does not serve.
    pub(super) fn record_eviction(&mut self, pod: &PodView) {
        if !pod.is_pending() {
            self.change(pod, |group| group.evicted += 1);
        }
    }

    /// Counts a resize.
    pub(super) fn record_resize(&mut self, pod: &PodView) {
        self.change(pod, |group| group.resized += 1);
    }
}

/// The fraction of a number, rounded down.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a number of pods times a factor between 0 and 1"
)]
fn fraction(number: usize, factor: f64) -> usize {
    (number as f64 * factor) as usize
}

#[cfg(test)]
pub(super) mod testing {
    //! Budgets and pods of one controller for tests.

    use serde_json::{Value, json};

    use super::*;
    use crate::policy::testing::pod;

    /// A pod of the ReplicationController `rc` with this phase and these conditions.
    pub(crate) fn replica(name: &str, phase: &str, conditions: Value) -> PodView {
        let owner = json!([{"apiVersion": "v1", "kind": "ReplicationController", "name": "rc",
            "controller": true}]);
        pod(json!({"metadata": {"name": name, "namespace": "default", "uid": name,
            "ownerReferences": owner}, "status": {"phase": phase, "conditions": conditions}}))
    }

    /// A budget with another tolerance and minimum of replicas.
    pub(crate) fn budget(
        pods: &[PodView],
        autoscaler: &VerticalPodAutoscaler,
        (replicas, tolerance, min_replicas): (usize, f64, usize),
    ) -> DisruptionBudget {
        DisruptionBudget::with(pods, autoscaler, |_| Some(replicas), (min_replicas, tolerance))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::testing::{budget, replica};
    use super::*;
    use crate::policy::testing::{autoscaler, pod};

    fn replicas(count: usize) -> Vec<PodView> {
        (0..count).map(|i| replica(&format!("test-{i}"), "Running", json!([]))).collect()
    }

    /// Evicts as many pods as the budget admits.
    fn evictions(pods: &[PodView], mut budget: DisruptionBudget) -> usize {
        let evicted = pods.iter().filter(|pod| {
            let is_evicted = budget.is_disruptable(pod);
            if is_evicted {
                budget.record_eviction(pod);
            }
            is_evicted
        });
        evicted.count()
    }

    /// `TestDisruptReplicatedByController`, `TestEvictTooFewReplicas`, `TestEvictionTolerance`,
    /// `TestEvictAtLeastOne` and their twins for resizes: live and configured replicas, tolerance,
    /// minimum of replicas, evictions.
    #[test]
    fn the_tolerance_bounds_the_disruptions() {
        let autoscaler = autoscaler(json!({}));
        for (live, configured, tolerance, min, expected) in [
            (3, 3, 0.5, 2, 1),
            (4, 4, 0.5, 2, 2),
            (3, 4, 0.5, 2, 1),
            (3, 3, 0.1, 2, 1),
            (2, 3, 0.1, 2, 0),
            (1, 1, 0.5, 2, 0),
            (1, 1, 0.5, 1, 1),
            (3, 3, 1.0, 2, 3),
            (3, 4, 0.1, 2, 0),
            (5, 5, 0.5, 10, 0),
            (5, 5, 0.8, 2, 4),
            (5, 5, 0.1, 2, 1),
            (5, 5, 0.5, 2, 2),
        ] {
            let pods = replicas(live);
            let numbers = (configured, tolerance, min);
            assert_eq!(
                evictions(&pods, budget(&pods, &autoscaler, numbers)),
                expected,
                "{live} of {configured}, {tolerance}, {min}"
            );
            let mut resizes = budget(&pods, &autoscaler, numbers);
            let resized = pods.iter().filter(|pod| {
                let is_resized = resizes.is_disruptable(pod);
                if is_resized {
                    resizes.record_resize(pod);
                }
                is_resized
            });
            assert_eq!(resized.count(), expected);
        }
    }

    #[test]
    fn upstreams_defaults_are_two_replicas_and_one_half() {
        let autoscaler = autoscaler(json!({}));
        let of = |count: usize| {
            let pods = replicas(count);
            evictions(&pods, DisruptionBudget::new(&pods, &autoscaler, |_| Some(count)))
        };
        assert_eq!([of(1), of(2), of(3), of(4), of(5)], [0, 1, 1, 2, 2]);
    }

    #[test]
    fn the_minimum_of_the_autoscaler_counts_before_the_default() {
        let own = autoscaler(json!({"updatePolicy": {"minReplicas": 1}}));
        let one = replicas(1);
        assert_eq!(evictions(&one, budget(&one, &own, (1, 0.5, 2))), 1);
        let own = autoscaler(json!({"updatePolicy": {"minReplicas": 4}}));
        let three = replicas(3);
        let found = budget(&three, &own, (3, 0.5, 2));
        assert!(!found.covers(&three[0]));
        assert_eq!(evictions(&three, found), 0);
    }

    #[test]
    fn a_boosted_pod_may_be_disrupted_alone() {
        let mut one = replicas(1);
        let key = "vpaCpuStartupBoost/container1".to_owned();
        one[0].annotations = Some(BTreeMap::from([(key, String::new())]));
        assert_eq!(evictions(&one, budget(&one, &autoscaler(json!({})), (1, 0.5, 2))), 1);
    }

    /// `TestEvictReplicatedByJob`.
    #[test]
    fn the_live_pods_of_a_job_are_its_replicas() {
        let owner =
            json!([{"apiVersion": "batch/v1", "kind": "Job", "name": "job", "controller": true}]);
        let pod = pod(json!({"metadata": {"ownerReferences": owner}}));
        let pods = vec![pod; 5];
        let budget = DisruptionBudget::new(&pods, &autoscaler(json!({})), |_| None);
        assert_eq!(evictions(&pods, budget), 2);
    }

    #[test]
    fn pods_of_a_controller_that_cannot_be_read_and_orphans_are_protected() {
        let pods = [replicas(3), vec![pod(json!({})); 3]].concat();
        let budget = DisruptionBudget::new(&pods, &autoscaler(json!({})), |_| None);
        assert_eq!(evictions(&pods, budget), 0);
    }

    #[test]
    fn evictions_of_pending_pods_do_not_count() {
        let mut pods = replicas(3);
        pods.push(replica("pending", "Pending", json!([])));
        let mut budget = budget(&pods, &autoscaler(json!({})), (4, 0.5, 2));
        budget.record_eviction(&pods[3]);
        assert!(budget.is_disruptable(&pods[0]));
        budget.record_eviction(&pods[0]);
        assert!(!budget.is_disruptable(&pods[1]));
    }
}
