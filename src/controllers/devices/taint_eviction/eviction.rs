//! When and why a claim is evicted: the pure rules.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::k8s::api::resource::v1::{DeviceTaint, DeviceToleration};
use api::k8s::jiff::{SignedDuration, Timestamp};

/// The effect by which a taint evicts.
pub(super) const NO_EXECUTE: &str = "NoExecute";

/// A taint that evicts. Rules come first, by name; taints of slices follow by device and position.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Reason {
    /// A DeviceTaintRule.
    Rule { name: Arc<str>, uid: Arc<str> },
    /// A taint in a ResourceSlice.
    Slice { driver: Arc<str>, pool: Arc<str>, device: Arc<str>, index: usize },
}

impl Reason {
    /// The UID of the rule.
    pub(super) fn is_rule(&self, wanted: &str) -> bool {
        matches!(self, Self::Rule { uid, .. } if **uid == *wanted)
    }
}

/// The eviction of a claim or a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Eviction {
    pub(super) at: Timestamp,
    pub(super) reasons: BTreeSet<Reason>,
}

impl Eviction {
    /// The earlier time, for the reasons of both.
    pub(super) fn merge(&mut self, other: &Self) {
        self.at = self.at.min(other.at);
        self.reasons.extend(other.reasons.iter().cloned());
    }
}

/// How a device tolerates a taint.
#[derive(Debug, PartialEq, Eq)]
enum Tolerated {
    No,
    /// For this number of seconds after the taint was added.
    For(i64),
    Forever,
}

/// Whether a toleration matches a taint (`resourceclaim.ToleratesTaint`).
fn tolerates(toleration: &DeviceToleration, taint: &DeviceTaint) -> bool {
    let text = |field: &'_ Option<String>| field.clone().unwrap_or_default();
    let (effect, key) = (text(&toleration.effect), text(&toleration.key));
    if !(effect.is_empty() || effect == taint.effect) || !(key.is_empty() || key == taint.key) {
        return false;
    }
    match toleration.operator.as_deref() {
        None | Some("" | "Equal") => text(&toleration.value) == text(&taint.value),
        Some("Exists") => true,
        Some(_) => false,
    }
}

/// How tolerations apply to a taint that evicts. One without an effect has no influence on
/// evictions, as upstream.
fn tolerated(tolerations: &[DeviceToleration], taint: &DeviceTaint) -> Tolerated {
    let of_effect = |t: &&DeviceToleration| t.effect.as_deref() == Some(NO_EXECUTE);
    let matching = tolerations.iter().filter(of_effect).filter(|t| tolerates(t, taint));
    matching.fold(Tolerated::No, |so_far, toleration| {
        match (so_far, toleration.toleration_seconds.map(|seconds| seconds.max(0))) {
            (Tolerated::Forever, _) | (_, None) => Tolerated::Forever,
            (Tolerated::No, Some(seconds)) => Tolerated::For(seconds),
            (Tolerated::For(least), Some(seconds)) => Tolerated::For(least.min(seconds)),
        }
    })
}

/// The eviction of a claim by the taints of its devices, each with the tolerations of the device;
/// `None` if all are tolerated. A taint without a time, which the API server does not store, causes
/// no eviction.
pub(super) fn eviction<'a>(
    taints: impl Iterator<Item = (Reason, &'a DeviceTaint, &'a [DeviceToleration])>,
) -> Option<Eviction> {
    let mut found: Option<Eviction> = None;
    for (reason, taint, tolerations) in taints {
        let seconds = match tolerated(tolerations, taint) {
            Tolerated::Forever => continue,
            Tolerated::For(seconds) => seconds,
            Tolerated::No => 0,
        };
        let Some(added) = &taint.time_added else { continue };
        let at = added.0.checked_add(SignedDuration::from_secs(seconds));
        let one = Eviction { at: at.unwrap_or(Timestamp::MAX), reasons: BTreeSet::from([reason]) };
        match &mut found {
            Some(found) => found.merge(&one),
            None => found = Some(one),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn taint(value: Value) -> DeviceTaint {
        serde_json::from_value(value).unwrap()
    }

    fn tolerations(value: Value) -> Vec<DeviceToleration> {
        serde_json::from_value(value).unwrap()
    }

    /// From `TestTolerationToleratesTaint`.
    #[test]
    fn a_toleration_matches_effect_key_and_value() {
        let of = |toleration: Value, other: Value| {
            let one = tolerations(json!([toleration])).remove(0);
            tolerates(&one, &taint(other))
        };
        let foo = json!({"key": "foo", "value": "bar", "effect": "NoSchedule"});
        for (toleration, want) in [
            (json!({"key": "foo", "operator": "Exists", "effect": "NoSchedule"}), true),
            (json!({"operator": "Exists", "effect": "NoSchedule"}), true),
            (json!({"operator": "Exists"}), true),
            (json!({"key": "foo", "operator": "Equal", "value": "bar"}), true),
            (json!({"key": "foo", "value": "bar"}), true),
            (json!({"key": "foo", "operator": "Equal", "value": "other"}), false),
            (json!({"key": "other", "operator": "Exists"}), false),
            (json!({"key": "foo", "operator": "Exists", "effect": "NoExecute"}), false),
            (json!({"key": "foo", "operator": "Lt", "value": "bar"}), false),
        ] {
            assert_eq!(of(toleration.clone(), foo.clone()), want, "{toleration}");
        }
    }

    #[test]
    fn the_shortest_toleration_of_the_effect_counts() {
        let bad = taint(json!({"key": "a", "effect": "NoExecute"}));
        let of = |list: Value| tolerated(&tolerations(list), &bad);
        let one = |key: &str, seconds: Value| {
            json!({"key": key, "operator": "Exists",
            "effect": "NoExecute", "tolerationSeconds": seconds})
        };
        assert_eq!(of(json!([])), Tolerated::No);
        assert_eq!(of(json!([{"operator": "Exists"}])), Tolerated::No);
        assert_eq!(of(json!([one("a", Value::Null)])), Tolerated::Forever);
        assert_eq!(of(json!([one("a", json!(60)), one("a", Value::Null)])), Tolerated::Forever);
        let many = json!([one("b", json!(20)), one("a", json!(60)), one("a", json!(30))]);
        assert_eq!(of(many), Tolerated::For(30));
        assert_eq!(of(json!([one("a", json!(-5))])), Tolerated::For(0));
    }

    #[test]
    fn a_taint_without_time_evicts_nothing() {
        let bad = taint(json!({"key": "a", "effect": "NoExecute"}));
        let reason = Reason::Rule { name: "r".into(), uid: "u".into() };
        assert_eq!(eviction([(reason, &bad, &[][..])].into_iter()), None);
    }

    #[test]
    fn rules_come_before_taints_of_slices() {
        let rule = |name: &str| Reason::Rule { name: name.into(), uid: "u".into() };
        let slice = |device: &str, index| {
            let (driver, pool) = ("d".into(), "p".into());
            Reason::Slice { driver, pool, device: device.into(), index }
        };
        let sorted = [rule("a"), rule("b"), slice("a", 1), slice("b", 0), slice("b", 1)];
        assert!(sorted.is_sorted());
    }
}
