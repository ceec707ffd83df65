//! The annotations by which a Deployment numbers its ReplicaSets and remembers their intended
//! sizes.

use std::collections::BTreeMap;

use api::k8s::api::apps::v1::{Deployment, ReplicaSet};

use super::math::{desired, max_surge};

/// Revision of a ReplicaSet, and of the Deployment that it belongs to.
pub(super) const REVISION: &str = "deployment.kubernetes.io/revision";
/// Revisions that a ReplicaSet had before, with commas.
const REVISION_HISTORY: &str = "deployment.kubernetes.io/revision-history";
/// `spec.replicas` of the Deployment when the ReplicaSet was last scaled.
pub(super) const DESIRED_REPLICAS: &str = "deployment.kubernetes.io/desired-replicas";
/// The same plus the surge.
pub(super) const MAX_REPLICAS: &str = "deployment.kubernetes.io/max-replicas";
/// Longest history in characters (about 100 revisions), as upstream's `maxRevHistoryLengthInChars`.
const HISTORY_MAX: usize = 2000;
/// Not copied from the Deployment to its ReplicaSets.
const OWN: [&str; 6] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    REVISION,
    REVISION_HISTORY,
    DESIRED_REPLICAS,
    MAX_REPLICAS,
    "deprecated.deployment.rollback.to",
];

type Annotations = BTreeMap<String, String>;

/// A non-negative number of an annotation.
pub(super) fn number(set: &ReplicaSet, key: &str) -> Option<i32> {
    set.metadata.annotations.as_ref()?.get(key)?.parse().ok().filter(|n| *n >= 0)
}

/// The revision; 0 when there is none or it is no number.
pub(super) fn revision(set: &ReplicaSet) -> i64 {
    let annotations = set.metadata.annotations.as_ref();
    annotations.and_then(|a| a.get(REVISION)).and_then(|v| v.parse().ok()).unwrap_or(0)
}

/// The two annotations that tell a scaled ReplicaSet's intended size.
pub(super) fn sizes(deployment: &Deployment) -> [(&'static str, String); 2] {
    let want = desired(deployment);
    [
        (DESIRED_REPLICAS, want.to_string()),
        (MAX_REPLICAS, (want + max_surge(deployment)).to_string()),
    ]
}

/// The new ReplicaSet's annotations: those of the Deployment, the revision when it grew, and the
/// revisions before.
pub(super) fn of_new_set(
    deployment: &Deployment,
    current: Option<&Annotations>,
    new_revision: i64,
) -> Annotations {
    let mut all = current.cloned().unwrap_or_default();
    for (key, value) in deployment.metadata.annotations.iter().flatten() {
        if !OWN.contains(&key.as_str()) {
            all.insert(key.clone(), value.clone());
        }
    }
    let before = all.get(REVISION).cloned();
    let old = match before.as_deref() {
        None | Some("") => 0,
        Some(text) => match text.parse::<i64>() {
            Ok(number) => number,
            Err(_) => return all,
        },
    };
    if old >= new_revision {
        return all;
    }
    all.insert(REVISION.into(), new_revision.to_string());
    if let Some(before) = before {
        let history = all.get(REVISION_HISTORY).cloned().unwrap_or_default();
        if let Some(history) = appended(&history, &before) {
            all.insert(REVISION_HISTORY.into(), history);
        }
    }
    all
}

/// The history with one more revision, without the oldest ones that would make it too long.
fn appended(history: &str, revision: &str) -> Option<String> {
    let mut kept = history;
    loop {
        let joined =
            if kept.is_empty() { revision.to_owned() } else { format!("{kept},{revision}") };
        if joined.len() <= HISTORY_MAX {
            return Some(joined);
        }
        if kept.is_empty() {
            return None;
        }
        kept = kept.split_once(',').map_or("", |(_, rest)| rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_rollback_raises_the_revision_and_keeps_the_old_one_in_the_history() {
        let d: Deployment =
            serde_json::from_value(json!({"metadata": {"name": "d", "annotations": {
            "kubernetes.io/change-cause": "x",
            "kubectl.kubernetes.io/last-applied-configuration": "{}", REVISION: "7"}}}))
            .unwrap();
        let before: Annotations =
            [(REVISION.into(), "3".into()), (REVISION_HISTORY.into(), "1".into())].into();
        let after = of_new_set(&d, Some(&before), 8);
        assert_eq!(after[REVISION], "8");
        assert_eq!(after[REVISION_HISTORY], "1,3");
        assert_eq!(after["kubernetes.io/change-cause"], "x");
        assert!(!after.contains_key("kubectl.kubernetes.io/last-applied-configuration"));
        assert_eq!(of_new_set(&d, Some(&after), 5)[REVISION], "8");
    }

    #[test]
    fn the_history_drops_its_oldest_revisions() {
        let long = vec!["123456789"; 200].join(",");
        let after = appended(&long, "42").unwrap();
        assert!(after.len() <= HISTORY_MAX && after.ends_with(",42"));
        assert_eq!(after, format!("{},42", vec!["123456789"; 199].join(",")));
    }
}
