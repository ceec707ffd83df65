//! Which pods of a DaemonSet start and which go, decided without I/O.

use std::collections::BTreeMap;

use api::k8s::api::apps::v1::{DaemonSet, DaemonSetStatus};
use api::k8s::api::core::v1::{Node, Pod};
use api::k8s::apimachinery::pkg::util::intstr::IntOrString;
use api::k8s::jiff::Timestamp;
use sorting::{CollectOrdered as _, CompactSort as _};

use super::nodes::{Verdict, verdict};
use crate::framework::int_or_percent::scaled;
use crate::framework::pods;

/// Label of pods with the hash of the template they were made from.
pub(super) const HASH_LABEL: &str = "controller-revision-hash";
/// Annotation and label of templates before revisions existed.
pub(super) const GENERATION_ANNOTATION: &str = "deprecated.daemonset.template.generation";
pub(super) const GENERATION_LABEL: &str = "pod-template-generation";

/// What to write, in this order.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Nodes that get a pod.
    pub(super) create: Vec<String>,
    pub(super) delete: Vec<Pod>,
    /// Nodes whose failed pod is deleted or, in its back-off, waits.
    pub(super) failed: Vec<(String, Pod)>,
    /// Finished pods, which are deleted as well.
    pub(super) succeeded: Vec<Pod>,
}

/// What a sync decides on.
pub(super) struct View<'a> {
    pub(super) set: &'a DaemonSet,
    pub(super) hash: &'a str,
    pub(super) nodes: Vec<(Node, Verdict)>,
    /// Pods by the node they run on or are tied to; those finished and being deleted are left out.
    pub(super) pods: BTreeMap<String, Vec<Pod>>,
    pub(super) now: Timestamp,
}

/// Scheduled pods first, then older ones, then by name.
fn by_age(pods: &mut [&Pod]) {
    pods.compact_sort_by(|a, b| {
        pods::is_scheduled(b)
            .cmp(&pods::is_scheduled(a))
            .then_with(|| a.metadata.creation_timestamp.cmp(&b.metadata.creation_timestamp))
            .then_with(|| a.metadata.name.cmp(&b.metadata.name))
    });
}

impl<'a> View<'a> {
    pub(super) fn new(
        set: &'a DaemonSet,
        hash: &'a str,
        nodes: Vec<Node>,
        owned: &[Pod],
        now: Timestamp,
    ) -> Self {
        let nodes = nodes
            .into_iter()
            .map(|node| {
                let verdict = verdict(set, &node);
                (node, verdict)
            })
            .collect();
        let mut pods: BTreeMap<String, Vec<Pod>> = BTreeMap::new();
        for pod in owned {
            if pods::is_terminal(pod) && pod.metadata.deletion_timestamp.is_some() {
                continue;
            }
            if let Some(node) = super::nodes::target(pod) {
                pods.entry(node.to_owned()).or_default().push(pod.clone());
            }
        }
        Self { set, hash, nodes, pods, now }
    }

    fn on(&self, node: &Node) -> &[Pod] {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        self.pods.get(name).map(Vec::as_slice).unwrap_or_default()
    }

    fn available(&self, pod: &Pod) -> bool {
        pods::is_available(pod, self.set.spec.min_ready_seconds.unwrap_or(0), self.now)
    }

    fn is_updated(&self, pod: &Pod) -> bool {
        let label = |key: &str| pod.metadata.labels.as_ref().and_then(|l| l.get(key));
        let generation =
            self.set.metadata.annotations.as_ref().and_then(|a| a.get(GENERATION_ANNOTATION));
        (!self.hash.is_empty() && label(HASH_LABEL).is_some_and(|h| h == self.hash))
            || generation.is_some_and(|g| label(GENERATION_LABEL) == Some(g))
    }

    /// One pod on each node that should have one, none elsewhere; two only during a surge.
    pub(super) fn manage(&self) -> Plan {
        let mut plan = Plan::default();
        for (node, verdict) in &self.nodes {
            let here = self.on(node);
            let name = node.metadata.name.clone().unwrap_or_default();
            if verdict.run && here.is_empty() {
                plan.create.push(name);
            } else if verdict.stay {
                self.tend(&name, here, verdict.run, &mut plan);
            } else {
                let alive = here.iter().filter(|p| p.metadata.deletion_timestamp.is_none());
                plan.delete.extend(alive.cloned());
            }
        }
        // Pods bound to a deleted node are never scheduled, and no other controller deletes them.
        let known =
            |name: &str| self.nodes.iter().any(|(n, _)| n.metadata.name.as_deref() == Some(name));
        for pods in self.pods.iter().filter(|(name, _)| !known(name)).map(|(_, pods)| pods) {
            plan.delete.extend(pods.iter().filter(|p| !pods::is_scheduled(p)).cloned());
        }
        plan
    }

    fn tend(&self, node: &str, here: &[Pod], run: bool, plan: &mut Plan) {
        let mut running: Vec<&Pod> = Vec::new();
        for pod in here.iter().filter(|p| p.metadata.deletion_timestamp.is_none()) {
            match pods::phase(pod) {
                "Failed" => plan.failed.push((node.to_owned(), pod.clone())),
                "Succeeded" => plan.succeeded.push(pod.clone()),
                _ => running.push(pod),
            }
        }
        by_age(&mut running);
        if self.surge(1) == 0 {
            plan.delete.extend(running.into_iter().skip(1).cloned());
            return;
        }
        if running.is_empty() && run {
            plan.create.push(node.to_owned());
        }
        if running.len() <= 1 {
            return;
        }
        let (mut new, mut old): (Option<&Pod>, Option<&Pod>) = (None, None);
        for pod in running {
            let hash = pod.metadata.labels.as_ref().and_then(|l| l.get(HASH_LABEL));
            let slot = if hash.is_some_and(|h| h == self.hash) { &mut new } else { &mut old };
            match slot {
                None => *slot = Some(pod),
                Some(_) => plan.delete.push(pod.clone()),
            }
        }
        if let (Some(new), Some(old)) = (new, old)
            && (!pods::is_ready(old) || self.available(new))
        {
            plan.delete.push(old.clone());
        }
    }

    fn strategy(
        &self,
        pick: impl Fn(&api::k8s::api::apps::v1::RollingUpdateDaemonSet) -> Option<&IntOrString>,
        total: i32,
    ) -> i32 {
        let strategy = self.set.spec.update_strategy.as_ref();
        if strategy.and_then(|s| s.type_.as_deref()).is_some_and(|t| t != "RollingUpdate") {
            return 0;
        }
        let rolling = strategy.and_then(|s| s.rolling_update.as_ref());
        rolling.and_then(pick).and_then(|v| scaled(v, total, true)).unwrap_or(0)
    }

    fn surge(&self, total: i32) -> i32 {
        self.strategy(|r| r.max_surge.as_ref(), total)
    }

    fn desired(&self) -> i32 {
        count(self.nodes.iter().filter(|(_, v)| v.run).count())
    }

    /// The updated and the outdated pod of a node; `None` when there is more than one of either.
    fn pair<'p>(&self, pods: &'p [Pod]) -> Option<(Option<&'p Pod>, Option<&'p Pod>)> {
        let (mut new, mut old) = (None, None);
        for pod in pods.iter().filter(|p| p.metadata.deletion_timestamp.is_none()) {
            let slot = if self.is_updated(pod) { &mut new } else { &mut old };
            if slot.replace(pod).is_some() {
                return None;
            }
        }
        Some((new, old))
    }

    /// The next step of a rolling update: outdated pods to delete and, when surging, nodes that get
    /// a second pod.
    pub(super) fn roll(&self) -> Plan {
        let desired = self.desired();
        let surge = self.surge(desired);
        let mut unavailable = self.strategy(|r| r.max_unavailable.as_ref(), desired);
        if desired > 0 && surge == 0 && unavailable == 0 {
            unavailable = 1;
        }
        // Nodes that should have a pod and have none count, too.
        let mut by_node: BTreeMap<&str, &[Pod]> =
            self.pods.iter().map(|(name, pods)| (name.as_str(), pods.as_slice())).collect_map();
        for (node, _) in self.nodes.iter().filter(|(_, v)| v.run) {
            by_node.entry(node.metadata.name.as_deref().unwrap_or_default()).or_default();
        }
        if surge == 0 {
            self.replace(&by_node, unavailable)
        } else {
            self.surge_step(&by_node, surge, desired)
        }
    }

    fn replace(&self, by_node: &BTreeMap<&str, &[Pod]>, max_unavailable: i32) -> Plan {
        let mut unavailable = 0;
        let (mut certain, mut candidates) = (Vec::new(), Vec::new());
        for pods in by_node.values() {
            match self.pair(pods) {
                Some((Some(new), None)) => unavailable += i32::from(!self.available(new)),
                Some((None, Some(old))) if !self.available(old) => {
                    certain.push(old.clone());
                    unavailable += 1;
                }
                Some((None, Some(old))) => candidates.push(old.clone()),
                // None or several: the next `manage` corrects it.
                _ => unavailable += 1,
            }
        }
        let room = usize::try_from(max_unavailable - unavailable).unwrap_or(0);
        certain.extend(candidates.into_iter().take(room));
        Plan { delete: certain, ..Plan::default() }
    }

    fn surge_step(&self, by_node: &BTreeMap<&str, &[Pod]>, max_surge: i32, desired: i32) -> Plan {
        let mut plan = Plan::default();
        let (mut surging, mut available) = (0, 0);
        let (mut candidates, mut misplaced) = (Vec::new(), Vec::new());
        for (node, pods) in by_node {
            let Some((new, old)) = self.pair(pods) else {
                surging += 1;
                continue;
            };
            available += i32::from(old.or(new).is_some_and(|p| self.available(p)));
            let Some(old) = old else { continue };
            if let Some(new) = new {
                if self.available(new) {
                    plan.delete.push(old.clone());
                } else {
                    surging += 1;
                }
                continue;
            }
            let run =
                self.nodes.iter().any(|(n, v)| n.metadata.name.as_deref() == Some(node) && v.run);
            match (self.available(old), run) {
                (false, false) => plan.delete.push(old.clone()),
                (false, true) => plan.create.push((*node).to_owned()),
                (true, false) => misplaced.push(old.clone()),
                (true, true) => candidates.push((*node).to_owned()),
            }
        }
        // With surge the DaemonSet stays fully available: a pod on a node that it no longer runs on
        // is deleted when another is available.
        let spare = usize::try_from(available - desired).unwrap_or(0);
        plan.delete.extend(misplaced.into_iter().take(spare));
        let room = usize::try_from(max_surge - surging).unwrap_or(0);
        plan.create.extend(candidates.into_iter().take(room));
        plan
    }

    /// The status; the generation counts as observed only when this sync acted on it.
    pub(super) fn status(&self, acted: bool, collisions: Option<i32>) -> DaemonSetStatus {
        let before = self.set.status.clone().unwrap_or_default();
        let (mut current, mut misscheduled, mut ready, mut available, mut updated) =
            (0, 0, 0, 0, 0);
        for (node, verdict) in &self.nodes {
            let mut here: Vec<&Pod> = self.on(node).iter().collect();
            by_age(&mut here);
            let Some(first) = here.first() else { continue };
            if !verdict.run {
                misscheduled += 1;
                continue;
            }
            current += 1;
            ready += i32::from(pods::is_ready(first));
            available += i32::from(self.available(first));
            updated += i32::from(self.is_updated(first));
        }
        let desired = self.desired();
        let some = |n: i32| (n != 0).then_some(n);
        DaemonSetStatus {
            current_number_scheduled: current,
            desired_number_scheduled: desired,
            number_misscheduled: misscheduled,
            number_ready: ready,
            number_available: some(available),
            number_unavailable: some(desired - available),
            updated_number_scheduled: some(updated),
            observed_generation: if acted {
                self.set.metadata.generation
            } else {
                before.observed_generation
            },
            collision_count: collisions,
            conditions: before.conditions,
        }
    }
}

fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn set(strategy: Value) -> DaemonSet {
        serde_json::from_value(
            json!({"metadata": {"name": "d", "generation": 2}, "spec": {"selector": {},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": strategy},
            "template": {"spec": {"containers": []}}}}),
        )
        .unwrap()
    }

    fn nodes(count: usize) -> Vec<Node> {
        let node =
            |i| serde_json::from_value(json!({"metadata": {"name": format!("n{i}")}})).unwrap();
        (0..count).map(node).collect()
    }

    fn pod(node: &str, hash: &str, phase: &str, ready: bool) -> Pod {
        let ready = if ready { "True" } else { "False" };
        serde_json::from_value(json!({
            "metadata": {"name": format!("{node}-{hash}"),
                "labels": {"controller-revision-hash": hash}},
            "spec": {"nodeName": node, "containers": []},
            "status": {"phase": phase, "conditions": [{"type": "Ready", "status": ready}]}}))
        .unwrap()
    }

    fn names(pods: &[Pod]) -> Vec<&str> {
        pods.iter().filter_map(|p| p.metadata.name.as_deref()).collect()
    }

    #[test]
    fn every_node_gets_one_pod_and_failed_ones_are_replaced() {
        let set = set(json!({"maxUnavailable": 1}));
        let pods = [
            pod("n1", "new", "Failed", false),
            pod("n2", "new", "Running", true),
            pod("n2", "newer", "Running", true),
            pod("gone", "new", "Running", true),
        ];
        let view = View::new(&set, "new", nodes(3), &pods, Timestamp::UNIX_EPOCH);
        let plan = view.manage();
        assert_eq!(plan.create, ["n0"]);
        assert_eq!(plan.failed.len(), 1);
        assert_eq!(names(&plan.delete), ["n2-newer"]);
        let status = view.status(true, None);
        assert_eq!(
            (status.desired_number_scheduled, status.current_number_scheduled, status.number_ready),
            (3, 2, 1)
        );
        assert_eq!(
            (status.number_unavailable, status.updated_number_scheduled),
            (Some(2), Some(2))
        );
        assert_eq!(status.observed_generation, Some(2));
    }

    #[test]
    fn a_rolling_update_replaces_unavailable_pods_first_and_respects_the_limit() {
        let set = set(json!({"maxUnavailable": 2}));
        let pods = [
            pod("n0", "old", "Running", true),
            pod("n1", "old", "Running", false),
            pod("n2", "old", "Running", true),
            pod("n3", "new", "Running", true),
        ];
        let plan = View::new(&set, "new", nodes(4), &pods, Timestamp::UNIX_EPOCH).roll();
        assert_eq!(names(&plan.delete), ["n1-old", "n0-old"]);
        // A new pod that is not ready uses the limit up.
        let pods = [pod("n0", "old", "Running", true), pod("n1", "new", "Running", false)];
        let one = self::set(json!({"maxUnavailable": 1}));
        assert!(
            View::new(&one, "new", nodes(2), &pods, Timestamp::UNIX_EPOCH).roll().delete.is_empty()
        );
    }

    #[test]
    fn a_surge_adds_a_pod_before_the_old_one_goes() {
        let set = set(json!({"maxSurge": 1, "maxUnavailable": 0}));
        let old = [pod("n0", "old", "Running", true), pod("n1", "old", "Running", true)];
        let plan = View::new(&set, "new", nodes(2), &old, Timestamp::UNIX_EPOCH).roll();
        assert_eq!((plan.create, plan.delete.len()), (vec!["n0".to_owned()], 0));
        let mut more = old.to_vec();
        more.push(pod("n0", "new", "Running", false));
        let waiting = View::new(&set, "new", nodes(2), &more, Timestamp::UNIX_EPOCH).roll();
        assert!(waiting.create.is_empty() && waiting.delete.is_empty());
        more.pop();
        more.push(pod("n0", "new", "Running", true));
        let view = View::new(&set, "new", nodes(2), &more, Timestamp::UNIX_EPOCH);
        assert_eq!(names(&view.manage().delete), ["n0-old"]);
    }
}
