//! The metrics of the controller itself, with upstream's names, labels and texts.

use std::cmp::Ordering;

use base::clock;
use base::metrics::Family;
use client::informer::decode;
use tokio::time::Instant;

use super::{Controller, HorizontalPodAutoscaler};
use crate::framework::collectors::SYNC_BOUNDS;

const LABELS: &[&str] = &["action", "error"];
const METRIC_LABELS: &[&str] = &["action", "error", "metric_type"];

static DESIRED_REPLICAS: Family = Family::gauge(
    "horizontal_pod_autoscaler_controller_desired_replicas",
    "[ALPHA] Current desired replica count for HPA objects.",
    &["hpa_name", "namespace"],
);

static COMPUTATION_DURATION: Family = Family::histogram(
    "horizontal_pod_autoscaler_controller_metric_computation_duration_seconds",
    "[BETA] The time(seconds) that the HPA controller takes to calculate one metric. The label \
     'action' should be either 'scale_down', 'scale_up', or 'none'. The label 'error' should be \
     either 'spec', 'internal', or 'none'. The label 'metric_type' corresponds to \
     HPA.spec.metrics[*].type",
    METRIC_LABELS,
    &SYNC_BOUNDS,
);

static COMPUTATIONS: Family = Family::counter(
    "horizontal_pod_autoscaler_controller_metric_computation_total",
    "[BETA] Number of metric computations. The label 'action' should be either 'scale_down', \
     'scale_up', or 'none'. Also, the label 'error' should be either 'spec', 'internal', or \
     'none'. The label 'metric_type' corresponds to HPA.spec.metrics[*].type",
    METRIC_LABELS,
);

static AUTOSCALERS: Family = Family::gauge(
    "horizontal_pod_autoscaler_controller_num_horizontal_pod_autoscalers",
    "[ALPHA] Current number of controlled HPA objects.",
    &[],
);

static RECONCILIATION_DURATION: Family = Family::histogram(
    "horizontal_pod_autoscaler_controller_reconciliation_duration_seconds",
    "[BETA] The time(seconds) that the HPA controller takes to reconcile once. The label 'action' \
     should be either 'scale_down', 'scale_up', or 'none'. Also, the label 'error' should be \
     either 'spec', 'internal', or 'none'. Note that if both spec and internal errors happen \
     during a reconciliation, the first one to occur is reported in `error` label.",
    LABELS,
    &SYNC_BOUNDS,
);

static RECONCILIATIONS: Family = Family::counter(
    "horizontal_pod_autoscaler_controller_reconciliations_total",
    "[BETA] Number of reconciliations of HPA controller. The label 'action' should be either \
     'scale_down', 'scale_up', or 'none'. Also, the label 'error' should be either 'spec', \
     'internal', or 'none'. Note that if both spec and internal errors happen during a \
     reconciliation, the first one to occur is reported in `error` label.",
    LABELS,
);

/// The families of this controller, in the order in which they are rendered.
pub(crate) static ALL: [&Family; 6] = [
    &DESIRED_REPLICAS,
    &COMPUTATION_DURATION,
    &COMPUTATIONS,
    &AUTOSCALERS,
    &RECONCILIATION_DURATION,
    &RECONCILIATIONS,
];

/// What caused an error, the label `error`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// The specification of the autoscaler.
    Spec,
    /// A computation, or another component.
    Internal,
}

impl Cause {
    fn label(cause: Option<Self>) -> &'static str {
        match cause {
            None => "none",
            Some(Self::Spec) => "spec",
            Some(Self::Internal) => "internal",
        }
    }
}

/// The label `action`: how a number of replicas differs from the current one.
fn action(difference: Ordering) -> &'static str {
    match difference {
        Ordering::Greater => "scale_up",
        Ordering::Less => "scale_down",
        Ordering::Equal => "none",
    }
}

/// Records a reconcile that has ended; `scaled` is what it did to the target.
pub(super) fn reconciled(began: Instant, scaled: Ordering, error: Option<Cause>) {
    let labels = [action(scaled), Cause::label(error)];
    RECONCILIATIONS.inc(&labels);
    RECONCILIATION_DURATION.took(&labels, clock::now().saturating_duration_since(began));
}

/// Records the computation of one metric, which proposed a number of replicas that differs so from
/// the current one, or failed.
pub(super) fn computed(began: Instant, kind: &str, result: Result<Ordering, Cause>) {
    let labels = match result {
        Ok(difference) => [action(difference), Cause::label(None), kind],
        Err(cause) => [action(Ordering::Equal), Cause::label(Some(cause)), kind],
    };
    COMPUTATIONS.inc(&labels);
    COMPUTATION_DURATION.took(&labels, clock::now().saturating_duration_since(began));
}

impl Controller {
    /// Counts the autoscalers, and the replicas that each wanted at last.
    pub(super) fn count(&self) {
        let all = self.autoscalers.cache().list("");
        AUTOSCALERS.set(&[], all.len() as f64);
        let counted = DESIRED_REPLICAS.empty();
        for object in &all {
            let status = decode::<HorizontalPodAutoscaler>(object).and_then(|a| a.status);
            if let Some(status) = status {
                let labels = [&*object.key.name, &*object.key.namespace];
                counted.set(&labels, f64::from(status.desired_replicas));
            }
        }
        DESIRED_REPLICAS.replace(counted);
    }
}
