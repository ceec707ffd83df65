//! ReplicaSets keep the number of pods in `spec.replicas`. [`replicas`] reconciles them and
//! ReplicationControllers; this module has the fields in which they differ.

use api::k8s::api::apps::v1::{ReplicaSet, ReplicaSetCondition, ReplicaSetStatus};
use api::k8s::apimachinery::pkg::apis::meta::v1::Time;
use api::k8s::jiff::Timestamp;

use crate::framework::context::Context;
use crate::workloads::replicas;
use crate::workloads::replicas::{ReplicaCounts, ReplicaFailure, ReplicaOwner, ReplicaSpec};

/// Starts the controller.
pub(crate) fn start(context: &Context) {
    replicas::start::<ReplicaSet>(context);
}

impl ReplicaOwner for ReplicaSet {
    const CONTROLLER: &'static str = "replicaset-controller";

    fn replica_spec(&self) -> Option<ReplicaSpec> {
        let spec = &self.spec;
        if client::labels::is_empty(&spec.selector) {
            return None;
        }
        Some(ReplicaSpec {
            replicas: spec.replicas.unwrap_or(1),
            selector: spec.selector.clone(),
            template: spec.template.clone()?,
            min_ready_seconds: spec.min_ready_seconds.unwrap_or(0),
        })
    }

    fn with_status(
        &self,
        counts: &ReplicaCounts,
        failure: Option<&ReplicaFailure>,
        now: Timestamp,
    ) -> Option<Self> {
        let old = self.status.clone().unwrap_or_default();
        let new = ReplicaSetStatus {
            replicas: counts.replicas,
            fully_labeled_replicas: Some(counts.fully_labeled),
            ready_replicas: Some(counts.ready),
            available_replicas: Some(counts.available),
            terminating_replicas: Some(counts.terminating),
            observed_generation: self.metadata.generation,
            conditions: conditions(old.conditions.clone(), failure, now),
        };
        let or_zero = |v: Option<i32>| v.unwrap_or(0);
        let is_unchanged = old.replicas == new.replicas
            && or_zero(old.fully_labeled_replicas) == counts.fully_labeled
            && or_zero(old.ready_replicas) == counts.ready
            && or_zero(old.available_replicas) == counts.available
            && or_zero(old.terminating_replicas) == counts.terminating
            && old.observed_generation == new.observed_generation
            && old.conditions.as_deref().unwrap_or_default()
                == new.conditions.as_deref().unwrap_or_default();
        (!is_unchanged).then(|| Self { status: Some(new), ..self.clone() })
    }
}

/// Adds the condition `ReplicaFailure` after a failure, or removes it after a success. As upstream,
/// the first failure stays until a success. Other conditions do not change.
fn conditions(
    old: Option<Vec<ReplicaSetCondition>>,
    failure: Option<&ReplicaFailure>,
    now: Timestamp,
) -> Option<Vec<ReplicaSetCondition>> {
    let mut all = old.unwrap_or_default();
    match failure {
        None => all.retain(|c| c.type_.as_deref() != Some("ReplicaFailure")),
        Some(_) if all.iter().any(|c| c.type_.as_deref() == Some("ReplicaFailure")) => {}
        Some(failure) => all.push(ReplicaSetCondition {
            type_: Some("ReplicaFailure".into()),
            status: Some("True".into()),
            reason: Some(failure.reason.into()),
            message: Some(failure.message.clone()),
            last_transition_time: Some(Time(now)),
        }),
    }
    (!all.is_empty()).then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn replica_set(status: serde_json::Value) -> ReplicaSet {
        serde_json::from_value(json!({"metadata": {"name": "a", "generation": 2},
            "spec": {"selector": {"matchLabels": {"a": "b"}}}, "status": status}))
        .unwrap()
    }

    #[test]
    fn an_unchanged_status_is_not_written() {
        let counts = ReplicaCounts { replicas: 2, ready: 1, ..ReplicaCounts::default() };
        let now = Timestamp::UNIX_EPOCH;
        let changed = replica_set(json!({"replicas": 0})).with_status(&counts, None, now).unwrap();
        assert_eq!(changed.status.as_ref().unwrap().observed_generation, Some(2));
        assert!(changed.with_status(&counts, None, now).is_none());
    }

    #[test]
    fn replica_failure_is_set_once_and_removed_after_a_success() {
        let now = Timestamp::UNIX_EPOCH;
        let failure = ReplicaFailure { reason: "FailedCreate", message: "exceeded quota".into() };
        let failed = replica_set(json!({"replicas": 0, "observedGeneration": 2}))
            .with_status(&ReplicaCounts::default(), Some(&failure), now)
            .unwrap();
        let conditions = failed.status.as_ref().unwrap().conditions.as_ref().unwrap();
        assert_eq!(
            (conditions[0].type_.as_deref(), conditions[0].reason.as_deref()),
            (Some("ReplicaFailure"), Some("FailedCreate"))
        );
        assert!(failed.with_status(&ReplicaCounts::default(), Some(&failure), now).is_none());
        let recovered = failed.with_status(&ReplicaCounts::default(), None, now).unwrap();
        assert_eq!(recovered.status.unwrap().conditions, None);
    }
}
