//! How many replicas each ReplicaSet of a Deployment may have.

use api::k8s::api::apps::v1::{Deployment, ReplicaSet};
use api::k8s::apimachinery::pkg::util::intstr::IntOrString;
use sorting::CompactSort as _;

use super::annotations;
use crate::framework::int_or_percent::scaled;

/// `spec.replicas` of a Deployment.
pub(super) fn desired(deployment: &Deployment) -> i32 {
    deployment.spec.replicas.unwrap_or(1)
}

/// `spec.replicas` of a ReplicaSet.
pub(super) fn size(set: &ReplicaSet) -> i32 {
    set.spec.replicas.unwrap_or(1)
}

/// `status.availableReplicas` of a ReplicaSet.
pub(super) fn available(set: &ReplicaSet) -> i32 {
    set.status.as_ref().and_then(|s| s.available_replicas).unwrap_or(0)
}

/// The strategy is anything but `Recreate` (an absent strategy is defaulted to a rolling update).
pub(super) fn is_rolling(deployment: &Deployment) -> bool {
    let strategy = deployment.spec.strategy.as_ref();
    strategy.and_then(|s| s.type_.as_deref()).is_none_or(|t| t == "RollingUpdate")
}

/// `maxSurge` (rounded up) and `maxUnavailable` (rounded down) in pods; both zero becomes one
/// unavailable, since a rollout could not start otherwise (`ResolveFenceposts`).
fn fenceposts(deployment: &Deployment) -> (i32, i32) {
    let rolling = deployment.spec.strategy.as_ref().and_then(|s| s.rolling_update.as_ref());
    let number = |value: Option<&IntOrString>, round_up| {
        value.and_then(|v| scaled(v, desired(deployment), round_up)).unwrap_or(0)
    };
    let surge = number(rolling.and_then(|r| r.max_surge.as_ref()), true);
    let unavailable = number(rolling.and_then(|r| r.max_unavailable.as_ref()), false);
    if surge == 0 && unavailable == 0 { (0, 1) } else { (surge, unavailable) }
}

/// Pods above the desired number during a rollout.
pub(super) fn max_surge(deployment: &Deployment) -> i32 {
    if is_rolling(deployment) { fenceposts(deployment).0 } else { 0 }
}

/// Pods that may be missing during a rollout.
pub(super) fn max_unavailable(deployment: &Deployment) -> i32 {
    if !is_rolling(deployment) || desired(deployment) == 0 {
        return 0;
    }
    fenceposts(deployment).1.min(desired(deployment))
}

/// Size of the new ReplicaSet that the surge allows (`NewRSNewReplicas`). `total` counts all
/// ReplicaSets.
pub(super) fn new_size(deployment: &Deployment, total: i32, new: i32) -> i32 {
    let want = desired(deployment);
    if !is_rolling(deployment) {
        return want;
    }
    let surge = deployment
        .spec
        .strategy
        .as_ref()
        .and_then(|s| s.rolling_update.as_ref())
        .and_then(|r| r.max_surge.as_ref())
        .and_then(|v| scaled(v, want, true))
        .unwrap_or(0);
    let room = want.saturating_add(surge).saturating_sub(total);
    if room <= 0 { new } else { new + room.min(want - new) }
}

/// Sizes of old ReplicaSets after one step of a rolling update, as (index into `old`, new size):
/// replicas that are not available go first, then as many as availability allows. `old` is ordered
/// by age.
pub(super) fn shrink_old(
    deployment: &Deployment,
    new: &ReplicaSet,
    old: &[ReplicaSet],
) -> Vec<(usize, i32)> {
    let min_available = desired(deployment) - max_unavailable(deployment);
    let all: i32 = old.iter().map(size).sum::<i32>() + size(new);
    let limit = all - min_available - (size(new) - available(new));
    let mut sizes: Vec<i32> = old.iter().map(size).collect();
    if limit <= 0 {
        return Vec::new();
    }
    let mut cleaned = 0;
    for (set, size) in old.iter().zip(&mut sizes) {
        let unhealthy = *size - available(set);
        if cleaned < limit && *size > 0 && unhealthy > 0 {
            let count = unhealthy.min(limit - cleaned);
            *size -= count;
            cleaned += count;
        }
    }
    let ready: i32 = old.iter().map(available).sum::<i32>() + available(new);
    let mut spare = ready - min_available;
    for size in &mut sizes {
        if spare <= 0 {
            break;
        }
        let count = (*size).min(spare);
        *size -= count;
        spare -= count;
    }
    sizes.into_iter().enumerate().filter(|(i, s)| old.get(*i).map(size) != Some(*s)).collect()
}

/// Sizes of all active ReplicaSets when a Deployment is scaled in the middle of a rollout: the
/// difference is shared by size, and what rounding leaves goes to the largest. Returns (name, new
/// size).
pub(super) fn proportional(deployment: &Deployment, sets: &[&ReplicaSet]) -> Vec<(String, i32)> {
    let want = desired(deployment);
    let allowed = if want > 0 { want + max_surge(deployment) } else { 0 };
    let to_add = allowed - sets.iter().map(|s| size(s)).sum::<i32>();
    let mut sets: Vec<&ReplicaSet> = sets.to_vec();
    sets.compact_sort_by(|a, b| {
        let age = super::by_age(a, b);
        size(b).cmp(&size(a)).then(if to_add > 0 { age.reverse() } else { age })
    });
    let mut added = 0;
    let mut plan: Vec<(String, i32)> = Vec::with_capacity(sets.len());
    for set in &sets {
        let share = if to_add == 0 || size(set) == 0 || to_add == added {
            0
        } else if to_add > 0 {
            fraction(deployment, set).min(to_add - added)
        } else {
            fraction(deployment, set).max(to_add - added)
        };
        added += share;
        plan.push((set.metadata.name.clone().unwrap_or_default(), size(set) + share));
    }
    if let Some((_, first)) = plan.first_mut() {
        *first = (*first + to_add - added).max(0);
    }
    plan
}

/// How many replicas a ReplicaSet's share of the new size differs from what it has
/// (`getReplicaSetFraction`).
fn fraction(deployment: &Deployment, set: &ReplicaSet) -> i32 {
    let (want, has) = (desired(deployment), size(set));
    if want == 0 {
        return -has;
    }
    let max = i64::from(want) + i64::from(max_surge(deployment));
    let before = annotations::number(set, annotations::MAX_REPLICAS)
        .filter(|n| *n != 0)
        .or_else(|| deployment.status.as_ref().and_then(|s| s.replicas))
        .unwrap_or(0);
    if before == 0 {
        return 0;
    }
    // Rounded half away from zero; all terms are positive here.
    let (product, before) = (i64::from(has) * max, i64::from(before));
    let rounded = (2 * product + before).div_euclid(2 * before);
    i32::try_from(rounded - i64::from(has)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn deployment(replicas: i32, surge: Value, unavailable: Value) -> Deployment {
        serde_json::from_value(
            json!({"metadata": {"name": "d"}, "spec": {"replicas": replicas, "selector": {},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge,
                "maxUnavailable": unavailable}},
            "template": {}}}),
        )
        .unwrap()
    }

    fn set(name: &str, replicas: i32, available: i32, max: i32) -> ReplicaSet {
        serde_json::from_value(json!({"metadata": {"name": name,
            "annotations": {"deployment.kubernetes.io/max-replicas": max.to_string()}},
            "spec": {"replicas": replicas, "selector": {}},
            "status": {"replicas": replicas, "availableReplicas": available}}))
        .unwrap()
    }

    #[test]
    fn fenceposts_round_and_never_block() {
        for (replicas, surge, unavailable, want) in [
            (2, json!("0%"), json!("1%"), (0, 1)),
            (2, json!("1%"), json!("25%"), (1, 0)),
            (10, json!("25%"), json!("25%"), (3, 2)),
            (1, json!(1), json!(0), (1, 0)),
        ] {
            let d = deployment(replicas, surge, unavailable);
            assert_eq!((max_surge(&d), max_unavailable(&d)), want, "{replicas}");
        }
        assert_eq!(max_unavailable(&deployment(2, json!(0), json!(5))), 2);
    }

    #[test]
    fn the_new_set_grows_into_the_surge_only() {
        let d = deployment(10, json!(3), json!(2));
        assert_eq!(new_size(&d, 10, 0), 3);
        assert_eq!(new_size(&d, 13, 3), 3);
        assert_eq!(new_size(&d, 11, 9), 10);
    }

    /// The two cases that upstream's documentation of `reconcileOldReplicaSets` works through.
    #[test]
    fn old_sets_shrink_only_as_far_as_availability_allows() {
        let d = deployment(10, json!(3), json!(2));
        assert!(shrink_old(&d, &set("new", 5, 0, 13), &[set("old", 8, 7, 13)]).is_empty());
        // Rolled back: the set with 8 is the new one again, one of it is unavailable; 4 of the
        // crashing ones go.
        assert_eq!(shrink_old(&d, &set("good", 8, 7, 13), &[set("bad", 5, 0, 13)]), [(0, 1)]);
        // Rolled over: the third set has nothing yet; 5 of the first two go, crashing ones first.
        assert_eq!(
            shrink_old(&d, &set("third", 0, 0, 13), &[set("a", 8, 8, 13), set("b", 5, 0, 13)]),
            [(1, 0)]
        );
    }

    #[test]
    fn scaling_within_a_rollout_is_proportional() {
        // Upstream's documentation: 10 replicas, surge 3, unavailable 2; old 8, new 5; scaled to
        // 15: old 11, new 7.
        let d = deployment(15, json!(3), json!(2));
        let (old, new) = (set("old", 8, 8, 13), set("new", 5, 0, 13));
        let mut plan = proportional(&d, &[&old, &new]);
        plan.sort();
        assert_eq!(plan, [("new".to_owned(), 7), ("old".to_owned(), 11)]);
        let zero = deployment(0, json!(3), json!(2));
        assert!(proportional(&zero, &[&old, &new]).iter().all(|(_, n)| *n == 0));
    }
}
