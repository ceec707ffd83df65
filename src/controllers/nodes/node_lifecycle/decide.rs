//! What a node should carry: taints, labels and conditions, from its state and that of its zone.

use std::collections::BTreeMap;

use api::k8s::api::core::v1::{Node, Taint};
use api::k8s::apimachinery::pkg::apis::meta::v1::Time;
use api::k8s::jiff::Timestamp;
use serde_json::{Value, json};
use sorting::CollectOrdered as _;

use crate::framework::nodes;

pub(super) const NOT_READY: &str = "node.kubernetes.io/not-ready";
pub(super) const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
pub(super) const NO_SCHEDULE: &str = "NoSchedule";
pub(super) const NO_EXECUTE: &str = "NoExecute";

/// Condition, its status, the taint that follows (`nodeConditionToTaintKeyStatusMap`).
const TAINTS: [(&str, &str, &str); 6] = [
    ("Ready", "False", NOT_READY),
    ("Ready", "Unknown", UNREACHABLE),
    ("MemoryPressure", "True", "node.kubernetes.io/memory-pressure"),
    ("DiskPressure", "True", "node.kubernetes.io/disk-pressure"),
    ("NetworkUnavailable", "True", "node.kubernetes.io/network-unavailable"),
    ("PIDPressure", "True", "node.kubernetes.io/pid-pressure"),
];

/// Stable label, the old one that must have the same value.
const LABELS: [(&str, &str); 2] = [
    ("kubernetes.io/os", "beta.kubernetes.io/os"),
    ("kubernetes.io/arch", "beta.kubernetes.io/arch"),
];

/// Nodes with this label do not count when a zone is judged.
const EXCLUDED: &str = "node.kubernetes.io/exclude-disruption";
/// `--unhealthy-zone-threshold`.
const UNHEALTHY_ZONE: f64 = 0.55;
/// `--large-cluster-size-threshold`.
const LARGE_ZONE: usize = 50;
/// `--node-eviction-rate`, `--secondary-node-eviction-rate`: nodes per second.
const RATE: (f64, f64) = (0.1, 0.01);

/// How a zone does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Zone {
    /// Most nodes are ready.
    Normal,
    /// At least three nodes and [`UNHEALTHY_ZONE`] of them are not.
    Partial,
    /// None is ready.
    Full,
}

/// What a node adds to the state of its zone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) zone: String,
    pub(super) ready: bool,
}

/// The node as a member of its zone; `None` when it does not count there.
pub(super) fn member(node: &Node) -> Option<Member> {
    let excluded = node.metadata.labels.as_ref().is_some_and(|l| l.contains_key(EXCLUDED));
    (!excluded)
        .then(|| Member { zone: nodes::zone(node), ready: nodes::ready(node) == Some("True") })
}

/// The states of all zones, with their sizes.
pub(super) fn zones<'a>(
    members: impl IntoIterator<Item = &'a Member>,
) -> BTreeMap<String, (Zone, usize)> {
    let mut counts: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for member in members {
        let (ready, not) = counts.entry(member.zone.clone()).or_default();
        *(if member.ready { ready } else { not }) += 1;
    }
    let state = |(ready, not): (usize, usize)| {
        let share = not as f64 / (ready + not) as f64;
        let zone = match () {
            () if ready == 0 => Zone::Full,
            () if not > 2 && share >= UNHEALTHY_ZONE => Zone::Partial,
            () => Zone::Normal,
        };
        (zone, ready + not)
    };
    counts.into_iter().map(|(zone, count)| (zone, state(count))).collect()
}

/// How many nodes a second may be given up in this zone.
pub(super) fn rate(zone: Zone, size: usize) -> f64 {
    match zone {
        Zone::Normal | Zone::Full => RATE.0,
        Zone::Partial if size > LARGE_ZONE => RATE.1,
        Zone::Partial => 0.0,
    }
}

/// Keys of the `NoSchedule` taints that conditions and `spec.unschedulable` ask for.
fn no_schedule(node: &Node) -> Vec<&'static str> {
    let conditions = node.status.iter().filter_map(|s| s.conditions.as_ref()).flatten();
    let taint = |kind: &str, status: &str| {
        TAINTS.iter().find(|(k, s, _)| *k == kind && *s == status).map(|(_, _, key)| *key)
    };
    let mut keys: Vec<&str> = conditions.filter_map(|c| taint(&c.type_, &c.status)).collect();
    if node.spec.as_ref().and_then(|s| s.unschedulable) == Some(true) {
        keys.push(UNSCHEDULABLE);
    }
    keys
}

/// The `NoExecute` taint for the node's readiness.
pub(super) fn no_execute(node: &Node) -> Option<&'static str> {
    match nodes::ready(node) {
        Some("False") => Some(NOT_READY),
        Some("Unknown") => Some(UNREACHABLE),
        Some(_) | None => None,
    }
}

/// The `NoExecute` taint of this controller that the node has.
pub(super) fn executed(node: &Node) -> Option<&'static str> {
    [NOT_READY, UNREACHABLE]
        .into_iter()
        .find(|key| nodes::taints(node).iter().any(|t| t.key == **key && t.effect == NO_EXECUTE))
}

/// The desired taints of the node, with `no_execute` as this controller's taint of that effect;
/// `None` when the node has them already.
pub(super) fn taints(node: &Node, no_execute: Option<&str>, now: Timestamp) -> Option<Vec<Taint>> {
    let scheduled = no_schedule(node);
    let wanted = |key: &str, effect: &str| match effect {
        NO_SCHEDULE => scheduled.contains(&key),
        _ => no_execute == Some(key),
    };
    let ours = |taint: &Taint| match taint.effect.as_str() {
        NO_SCHEDULE => taint.key == UNSCHEDULABLE || TAINTS.iter().any(|(_, _, k)| *k == taint.key),
        NO_EXECUTE => taint.key == NOT_READY || taint.key == UNREACHABLE,
        _ => false,
    };
    let have = nodes::taints(node);
    let mut all: Vec<Taint> =
        have.iter().filter(|t| !ours(t) || wanted(&t.key, &t.effect)).cloned().collect();
    let mut changed = all.len() != have.len();
    let new = scheduled.iter().map(|k| (*k, NO_SCHEDULE));
    for (key, effect) in new.chain(no_execute.map(|k| (k, NO_EXECUTE))) {
        if !all.iter().any(|t| t.key == key && t.effect == effect) {
            changed = true;
            all.push(Taint {
                key: key.to_owned(),
                effect: effect.to_owned(),
                time_added: Some(Time(now)),
                value: None,
            });
        }
    }
    changed.then_some(all)
}

/// Labels to set so that old names agree with the stable ones.
pub(super) fn labels(node: &Node) -> BTreeMap<&'static str, String> {
    let Some(labels) = node.metadata.labels.as_ref() else { return BTreeMap::new() };
    let differs = |(stable, old): &(&'static str, &'static str)| {
        let value = labels.get(*stable)?;
        (labels.get(*old) != Some(value)).then(|| (*old, value.clone()))
    };
    LABELS.iter().filter_map(differs).collect_map()
}

/// Conditions of a node that stopped reporting; empty when `Ready` is `Unknown` already.
pub(super) fn lost(node: &Node, now: Timestamp) -> Vec<Value> {
    if nodes::ready(node) == Some("Unknown") {
        return Vec::new();
    }
    let change = |kind: &&str| match nodes::condition(node, kind) {
        None => Some(json!({
            "type": kind, "status": "Unknown", "reason": "NodeStatusNeverUpdated",
            "message": "Kubelet never posted node status.",
            "lastHeartbeatTime": node.metadata.creation_timestamp, "lastTransitionTime": Time(now),
        })),
        Some(condition) => (condition.status != "Unknown").then(|| {
            json!({
                "type": kind, "status": "Unknown", "reason": "NodeStatusUnknown",
                "message": "Kubelet stopped posting node status.",
                "lastHeartbeatTime": condition.last_heartbeat_time, "lastTransitionTime": Time(now),
            })
        }),
    };
    ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"].iter().filter_map(change).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(ready: &str, spec: Value) -> Node {
        serde_json::from_value(json!({"metadata": {"name": "n"}, "spec": spec,
            "status": {"conditions": [{"type": "Ready", "status": ready}]}}))
        .unwrap()
    }

    fn told(taints: Option<Vec<Taint>>) -> Option<Vec<String>> {
        let told = taints?
            .into_iter()
            .map(|t| format!("{}:{}", t.key.rsplit('/').next().unwrap_or_default(), t.effect));
        Some(told.collect())
    }

    #[test]
    fn the_taint_of_a_new_node_goes_when_it_is_ready_and_foreign_ones_stay() {
        let taints_of = json!({"taints": [{"key": NOT_READY, "effect": "NoSchedule"},
            {"key": "mine", "effect": "NoSchedule"}]});
        let want = told(taints(&node("True", taints_of.clone()), None, Timestamp::UNIX_EPOCH));
        assert_eq!(want, Some(vec!["mine:NoSchedule".to_owned()]));
        assert_eq!(taints(&node("False", taints_of), None, Timestamp::UNIX_EPOCH), None);
    }

    #[test]
    fn a_lost_node_swaps_its_taints() {
        let has = json!({"unschedulable": true, "taints": [{"key": NOT_READY,
            "effect": "NoSchedule"}, {"key": NOT_READY, "effect": "NoExecute"}]});
        let node = node("Unknown", has);
        let want = told(taints(&node, no_execute(&node), Timestamp::UNIX_EPOCH)).unwrap();
        assert_eq!(
            want,
            ["unreachable:NoSchedule", "unschedulable:NoSchedule", "unreachable:NoExecute"]
        );
        assert_eq!(executed(&node), Some(NOT_READY));
    }

    #[test]
    fn a_silent_node_gets_the_texts_of_upstream_once() {
        let node = node("True", json!({}));
        let lost = lost(&node, Timestamp::UNIX_EPOCH);
        assert_eq!(lost.len(), 4);
        assert_eq!(lost[0]["reason"], "NodeStatusUnknown");
        assert_eq!(lost[0]["message"], "Kubelet stopped posting node status.");
        assert_eq!(lost[1]["reason"], "NodeStatusNeverUpdated");
        assert_eq!(lost[1]["lastTransitionTime"], "1970-01-01T00:00:00Z");
    }

    #[test]
    fn a_zone_without_a_ready_node_is_fully_disrupted_and_three_of_five_partially() {
        let of = |states: &[&str]| {
            let all: Vec<Member> =
                states.iter().filter_map(|s| member(&node(s, json!({})))).collect();
            zones(&all).into_values().next().unwrap()
        };
        assert_eq!(of(&["Unknown"]), (Zone::Full, 1));
        assert_eq!(of(&["True", "False"]), (Zone::Normal, 2));
        assert_eq!(of(&["True", "True", "False", "False", "False"]), (Zone::Partial, 5));
        assert_eq!(rate(Zone::Partial, 5), 0.0);
    }

    #[test]
    fn old_labels_follow_the_stable_ones() {
        let node: Node = serde_json::from_value(json!({"metadata": {"labels": {
            "kubernetes.io/os": "linux", "beta.kubernetes.io/os": "linux",
            "kubernetes.io/arch": "arm64"}}}))
        .unwrap();
        assert_eq!(
            labels(&node),
            BTreeMap::from([("beta.kubernetes.io/arch", "arm64".to_owned())])
        );
    }
}
