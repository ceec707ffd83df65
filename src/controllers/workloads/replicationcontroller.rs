//! ReplicationControllers, the predecessor of ReplicaSets. [`replicas`] reconciles both; this
//! module has the fields in which they differ.

use api::k8s::api::core::v1::{
    ReplicationController, ReplicationControllerCondition, ReplicationControllerStatus,
};
use api::k8s::apimachinery::pkg::apis::meta::v1::{LabelSelector, Time};
use api::k8s::jiff::Timestamp;

use crate::framework::context::Context;
use crate::workloads::replicas;
use crate::workloads::replicas::{ReplicaCounts, ReplicaFailure, ReplicaOwner, ReplicaSpec};

/// Starts the controller.
pub(crate) fn start(context: &Context) {
    replicas::start::<ReplicationController>(context);
}

impl ReplicaOwner for ReplicationController {
    const CONTROLLER: &'static str = "replication-controller";

    fn replica_spec(&self) -> Option<ReplicaSpec> {
        let spec = self.spec.as_ref()?;
        let labels = spec.selector.clone().filter(|s| !s.is_empty())?;
        Some(ReplicaSpec {
            replicas: spec.replicas.unwrap_or(1),
            selector: LabelSelector { match_labels: Some(labels), match_expressions: None },
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
        let mut conditions = old.conditions.clone().unwrap_or_default();
        match failure {
            None => conditions.retain(|c| c.type_ != "ReplicaFailure"),
            // As upstream, the first failure stays until a reconcile succeeds.
            Some(_) if conditions.iter().any(|c| c.type_ == "ReplicaFailure") => {}
            Some(failure) => conditions.push(ReplicationControllerCondition {
                type_: "ReplicaFailure".into(),
                status: "True".into(),
                reason: Some(failure.reason.into()),
                message: Some(failure.message.clone()),
                last_transition_time: Some(Time(now)),
            }),
        }
        let or_zero = |v: Option<i32>| v.unwrap_or(0);
        let is_unchanged = old.replicas == counts.replicas
            && or_zero(old.fully_labeled_replicas) == counts.fully_labeled
            && or_zero(old.ready_replicas) == counts.ready
            && or_zero(old.available_replicas) == counts.available
            && old.observed_generation == self.metadata.generation
            && old.conditions.unwrap_or_default() == conditions;
        let status = ReplicationControllerStatus {
            replicas: counts.replicas,
            fully_labeled_replicas: Some(counts.fully_labeled),
            ready_replicas: Some(counts.ready),
            available_replicas: Some(counts.available),
            observed_generation: self.metadata.generation,
            conditions: (!conditions.is_empty()).then_some(conditions),
        };
        (!is_unchanged).then(|| Self { status: Some(status), ..self.clone() })
    }
}
