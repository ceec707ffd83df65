//! HorizontalPodAutoscalers: scale to the number of replicas that the metrics require (upstream's
//! `podautoscaler.HorizontalController`, `autoscaling/v2`).
//!
//! The controller reconciles each HorizontalPodAutoscaler at an interval
//! (`--horizontal-pod-autoscaler-sync-period`), and at once when its spec changes: metrics are not
//! objects, so no event reports their change.

mod conditions;
mod limits;
mod metrics;
pub(crate) mod monitor;
mod proposals;
mod replicas;
mod target;

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use api::k8s::api::autoscaling::v2::{
    HorizontalPodAutoscaler, HorizontalPodAutoscalerSpec, HorizontalPodAutoscalerStatus,
    MetricStatus,
};
use api::k8s::api::core::v1::Pod;
use api::k8s::apimachinery::pkg::apis::meta::v1::Time;
use api::k8s::jiff::Timestamp;
use api::selector::LabelSelector;
use base::clock;
use client::events::EventType;
use client::{Action, Change, Client, Error, EventRecorder, Informer};
use parking_lot::Mutex;

use crate::framework::context::Context;
use crate::framework::keyed::{Key, Keyed, settled};
use crate::framework::tuning::Autoscaling;
use conditions::set_condition;
use limits::{Decision, History};
use metrics::MetricsClient;
use monitor::Cause;
use proposals::Recommendation;
use target::{DiscoveryError, Scale};

/// Name of the controller and of its service account.
const CONTROLLER: &str = "horizontal-pod-autoscaler";
/// Number of workers (`--concurrent-horizontal-pod-autoscaler-syncs`).
const WORKERS: usize = 5;

/// The state of an autoscaler between two reconciles.
#[derive(Debug, Default)]
struct AutoscalerState {
    /// Recent recommendations and scalings, which limit the next one.
    history: History,
    /// Selector of its target's pods, to detect another autoscaler that selects the same pods.
    selector: Option<LabelSelector>,
}

/// Dependencies and state of the controller.
struct Controller {
    client: Client,
    recorder: EventRecorder,
    autoscalers: Informer<HorizontalPodAutoscaler>,
    pods: Informer<Pod>,
    states: Mutex<BTreeMap<Key, AutoscalerState>>,
    tuning: Autoscaling,
}

/// Starts the controller.
pub(crate) fn start(context: &Context) {
    let client = context.client(CONTROLLER);
    let controller = Arc::new(Controller {
        recorder: context.recorder(&client, CONTROLLER),
        client,
        autoscalers: context.informers.of(),
        pods: context.informers.of(),
        states: Mutex::new(BTreeMap::new()),
        tuning: context.config.tuning.autoscaling,
    });
    let mut keyed = Keyed::new();
    keyed.watches(&controller.autoscalers, keys_to_reconcile);
    keyed.waits_for_sync(&controller.pods);
    crate::framework::collectors::collect(&controller, Controller::count);
    keyed.run(&context.tasks, CONTROLLER, WORKERS, move |key| {
        let controller = Arc::clone(&controller);
        async move { controller.reconcile(key).await }
    });
}

/// Returns the key to reconcile after a change. An update that leaves the generation as it was is
/// this controller's own write of the status, and requires no reconcile.
fn keys_to_reconcile(change: &Change) -> Vec<Key> {
    if let Change::Updated { old, new } = change {
        let generation = |object: &api::Object| client::meta(object).and_then(|m| m.generation);
        if generation(old) == generation(new) {
            return Vec::new();
        }
    }
    let key = &change.object().key;
    vec![(key.namespace.to_string(), key.name.to_string())]
}

/// Why a reconcile ends early, for the log. A condition and an event already report it.
struct ReconcileError {
    why: String,
    cause: Cause,
}

impl ReconcileError {
    fn internal(why: String) -> Self {
        Self { why, cause: Cause::Internal }
    }
}

/// Reason of the event when the target is scaled up to `spec.minReplicas`.
const BELOW_MIN: &str = "Current number of replicas below Spec.MinReplicas";

/// The number of replicas to scale to.
#[derive(Debug, Default)]
struct DesiredReplicas {
    replicas: i32,
    /// Reason in the event of a rescale.
    reason: String,
    /// The metrics for the status; empty if the limits alone determine the number.
    metrics: Vec<MetricStatus>,
}

impl DesiredReplicas {
    fn new(replicas: i32, reason: &str) -> Self {
        Self { replicas, reason: reason.to_owned(), metrics: Vec::new() }
    }
}

/// Why the pods of a target cannot be determined.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum SelectorError {
    #[error("selector is required")]
    Missing,
    /// The text of the parser's error.
    #[error("couldn't convert selector into a corresponding internal selector object: {0}")]
    Invalid(String),
    #[error(
        "pods by selector {selector} are controlled by more than one HPA (e.g. [{}])",
        .autoscalers.join(" ")
    )]
    Ambiguous { selector: String, autoscalers: Vec<String> },
}

/// The reconcile of one autoscaler.
struct Reconcile<'a> {
    controller: &'a Controller,
    key: Key,
    autoscaler: HorizontalPodAutoscaler,
    spec: HorizontalPodAutoscalerSpec,
    status: HorizontalPodAutoscalerStatus,
    now: Timestamp,
    /// What the reconcile did to the replicas of the target.
    scaled: Ordering,
    /// A metric is not available, although others determine the number of replicas.
    has_metric_error: bool,
}

impl Controller {
    async fn reconcile(&self, key: Key) -> Result<Action, Error> {
        let Some(autoscaler) = self.autoscalers.get(&key.0, &key.1) else {
            self.states.lock().remove(&key);
            return Ok(Action::Done);
        };
        let spec = autoscaler.spec.clone();
        let before = autoscaler.status.clone().unwrap_or_default();
        let now = Timestamp::now();
        let began = clock::now();
        let mut reconcile = Reconcile {
            controller: self,
            key,
            spec,
            status: before.clone(),
            autoscaler,
            now,
            scaled: Ordering::Equal,
            has_metric_error: false,
        };
        let mut cause = match reconcile.run().await {
            Ok(()) => reconcile.has_metric_error.then_some(Cause::Internal),
            Err(ReconcileError { why, cause }) => {
                tracing::debug!(controller = CONTROLLER, autoscaler = ?reconcile.key, %why,
                    "horizontal-pod-autoscaler: cannot scale target");
                Some(cause)
            }
        };
        if reconcile.status != before {
            let mut written = reconcile.autoscaler.clone();
            written.status = Some(reconcile.status.clone());
            let result = self.client.update_status(&written).await;
            if let Err(error) = &result {
                reconcile.warn("FailedUpdateStatus", error.to_string());
                cause.get_or_insert(Cause::Internal);
            }
            monitor::reconciled(began, reconcile.scaled, cause);
            settled(result)?;
        } else {
            monitor::reconciled(began, reconcile.scaled, cause);
        }
        Ok(Action::After(self.tuning.sync_period))
    }
}

impl Reconcile<'_> {
    /// Records a Warning event for the autoscaler.
    fn warn(&self, reason: &str, message: String) {
        self.controller.recorder.event(&self.autoscaler, EventType::Warning, reason, message);
    }

    /// Sets a condition in the status that is written after the reconcile.
    fn condition(&mut self, kind: &str, holds: bool, reason: &str, message: String) {
        set_condition(&mut self.status, kind, holds, reason, message, self.now);
    }

    fn is_condition_true(&self, kind: &str) -> bool {
        self.status.conditions.iter().flatten().any(|c| c.type_ == kind && c.status == "True")
    }

    /// Sets all fields of the status except the conditions. Without `desired`, `desiredReplicas` is
    /// not changed.
    fn set_status(
        &mut self,
        current: i32,
        desired: Option<i32>,
        metrics: Vec<MetricStatus>,
        is_rescaled: bool,
    ) {
        let metrics = (!metrics.is_empty()).then_some(metrics);
        let before = std::mem::take(&mut self.status);
        self.status = HorizontalPodAutoscalerStatus {
            conditions: before.conditions,
            current_metrics: metrics,
            current_replicas: Some(current),
            desired_replicas: desired.unwrap_or(before.desired_replicas),
            last_scale_time: if is_rescaled {
                Some(Time(self.now))
            } else {
                before.last_scale_time
            },
            observed_generation: self.autoscaler.metadata.generation,
        };
    }

    /// Reads the scale subresource of the target, and sets `AbleToScale` to the result.
    async fn read_scale(&mut self) -> Result<Scale, ReconcileError> {
        let target = self.spec.scale_target_ref.clone();
        let version = target.api_version.as_deref().unwrap_or_default();
        let client = &self.controller.client;
        let scale = async {
            let resource = target::find(client, version, &target.kind).await?;
            Ok::<_, DiscoveryError>(
                Scale::read(client, &resource, &self.key.0, &target.name).await?,
            )
        };
        match scale.await {
            Ok(scale) => {
                let message = "the HPA controller was able to get the target's current scale";
                self.condition("AbleToScale", true, "SucceededGetScale", message.to_owned());
                Ok(scale)
            }
            Err(error) => {
                self.warn("FailedGetScale", error.to_string());
                let message = format!(
                    "the HPA controller was unable to get the target's current scale: {error}"
                );
                self.condition("AbleToScale", false, "FailedGetScale", message);
                let cause = match error {
                    DiscoveryError::InvalidGroupVersion(_) => Cause::Spec,
                    _ => Cause::Internal,
                };
                Err(ReconcileError { why: error.to_string(), cause })
            }
        }
    }

    /// Computes the number of replicas, scales the target to it, and sets the status.
    async fn run(&mut self) -> Result<(), ReconcileError> {
        let mut scale = self.read_scale().await?;
        let current = scale.desired_replicas();
        self.with_state(|state, now| state.history.begin(current, now));
        let min = self.spec.min_replicas.unwrap_or(1);
        // These metrics do not need pods, so they can scale a target up from zero.
        let has_metrics_without_pods = self
            .spec
            .metrics
            .iter()
            .flatten()
            .any(|m| m.type_ == "Object" || m.type_ == "External");
        let was_scaled_to_zero = self.is_condition_true("ScaledToZero");
        // A user disables scaling with zero replicas. The controller scales such a target up only
        // if it scaled it to zero itself, and `minReplicas` or a metric without pods allows it.
        let target =
            if current == 0 && !(was_scaled_to_zero && (min != 0 || has_metrics_without_pods)) {
                let message = "scaling is disabled since the replica count of the target is zero";
                self.condition("ScalingActive", false, "ScalingDisabled", message.to_owned());
                DesiredReplicas::default()
            } else if current > self.spec.max_replicas {
                let reason = "Current number of replicas above Spec.MaxReplicas";
                DesiredReplicas::new(self.spec.max_replicas, reason)
            } else if current != 0 && current < min {
                DesiredReplicas::new(min, BELOW_MIN)
            } else {
                self.replicas_of_metrics(&scale, min).await?
            };
        let DesiredReplicas { replicas: desired, reason, metrics } = target;
        let is_rescale = desired != current;
        if is_rescale {
            self.rescale(&mut scale, (current, desired), &reason, &metrics).await?;
            self.scaled = desired.cmp(&current);
            let to_zero = current > 0 && desired == 0 && min == 0 && has_metrics_without_pods;
            let (reason, message) = if to_zero {
                ("ScaledToZero", "the HPA controller scaled the workload to zero")
            } else {
                ("NotScaledToZero", "the HPA controller did not scale the workload to zero")
            };
            self.condition("ScaledToZero", to_zero, reason, message.to_owned());
        }
        self.set_status(current, Some(desired), metrics, is_rescale);
        Ok(())
    }

    /// Computes the number of replicas from the metrics, within the limits of the specification.
    async fn replicas_of_metrics(
        &mut self,
        scale: &Scale,
        min: i32,
    ) -> Result<DesiredReplicas, ReconcileError> {
        let current = scale.desired_replicas();
        let Recommendation { statuses, best, error } = self.recommend(scale).await;
        let Some((recommended, metric)) = best else {
            let error = error.unwrap_or_default();
            self.set_status(current, None, statuses, false);
            self.warn("FailedComputeMetricsReplicas", error.clone());
            return Err(ReconcileError::internal(error));
        };
        self.has_metric_error = error.is_some();
        let mut reason = match recommended.cmp(&current) {
            Ordering::Greater => format!("{metric} above target"),
            Ordering::Less => "All metrics below target".to_owned(),
            Ordering::Equal => String::new(),
        };
        let spec = self.spec.clone();
        let decision = self
            .with_state(|state, now| state.history.decide(&spec, current, recommended, min, now));
        let Decision { mut replicas, able, limited } = decision;
        self.condition("AbleToScale", able.0, able.1, able.2.to_owned());
        self.condition("ScalingLimited", limited.0, limited.1, limited.2.to_owned());
        // `run` raises to `minReplicas` only targets that have replicas.
        if current == 0 && min != 0 && replicas < min {
            replicas = min;
            if reason.is_empty() {
                BELOW_MIN.clone_into(&mut reason);
            }
        }
        Ok(DesiredReplicas { replicas, reason, metrics: statuses })
    }

    /// Writes the desired number of replicas to the scale subresource, and reports the result.
    async fn rescale(
        &mut self,
        scale: &mut Scale,
        (current, desired): (i32, i32),
        reason: &str,
        metrics: &[MetricStatus],
    ) -> Result<(), ReconcileError> {
        if let Err(error) = scale.write(&self.controller.client, desired).await {
            self.warn(
                "FailedRescale",
                format!("New size: {desired}; reason: {reason}; error: {error}"),
            );
            let message =
                format!("the HPA controller was unable to update the target scale: {error}");
            self.condition("AbleToScale", false, "FailedUpdateScale", message);
            self.set_status(current, None, metrics.to_vec(), false);
            return Err(ReconcileError::internal(error.to_string()));
        }
        let message =
            format!("the HPA controller was able to update the target scale to {desired}");
        self.condition("AbleToScale", true, "SucceededRescale", message);
        let text = format!("New size: {desired}; reason: {reason}");
        self.controller.recorder.event(
            &self.autoscaler,
            EventType::Normal,
            "SuccessfulRescale",
            text,
        );
        let spec = self.spec.clone();
        self.with_state(|state, now| state.history.scaled(&spec, current, desired, now));
        Ok(())
    }

    /// Calls `action` with the state of the autoscaler and the time of the reconcile.
    fn with_state<T>(&self, action: impl FnOnce(&mut AutoscalerState, Timestamp) -> T) -> T {
        let mut states = self.controller.states.lock();
        let state = states.entry(self.key.clone()).or_default();
        state.history.stabilization = self.controller.tuning.downscale_stabilization;
        action(state, self.now)
    }

    /// Returns the recommendation of all metrics; reports errors in conditions and events.
    async fn recommend(&mut self, scale: &Scale) -> Recommendation {
        let pods = match self.pods(scale.selector()) {
            Ok(pods) => pods,
            Err(error) => {
                self.report_selector_error(&error);
                let error = Some(error.to_string());
                return Recommendation { statuses: Vec::new(), best: None, error };
            }
        };
        let source = MetricsClient { client: &self.controller.client, namespace: &self.key.0 };
        let mut outcome = proposals::recommend(
            &self.spec,
            &source,
            scale,
            &pods,
            (&self.controller.tuning, self.now),
            self.status.current_replicas.unwrap_or(0),
        )
        .await;
        for (reason, error) in outcome.failed.drain(..) {
            self.warn(reason, error);
        }
        let (holds, reason, message) = outcome.active;
        self.condition("ScalingActive", holds, reason, message);
        outcome.recommendation
    }

    /// Returns the pods that the selector of the target's scale selects.
    ///
    /// # Errors
    ///
    /// A selector that is missing or invalid, or that selects pods of another autoscaler.
    fn pods(&mut self, selector: &str) -> Result<Vec<Pod>, SelectorError> {
        if selector.is_empty() {
            return Err(SelectorError::Missing);
        }
        let parsed = LabelSelector::parse(selector)
            .map_err(|error| SelectorError::Invalid(error.to_string()))?;
        let namespace = self.key.0.clone();
        let selects = |selector: &LabelSelector, pod: &Pod| match &pod.metadata.labels {
            Some(labels) => selector.matches(labels),
            None => selector.matches(&BTreeMap::<String, String>::new()),
        };
        let mut pods = self.controller.pods.list(&namespace);
        pods.retain(|pod| selects(&parsed, pod));
        let autoscalers: Vec<String> = {
            let mut states = self.controller.states.lock();
            states.entry(self.key.clone()).or_default().selector = Some(parsed);
            let shares_pods = |(key, state): (&Key, &AutoscalerState)| {
                let shares = key.0 == namespace
                    && state
                        .selector
                        .as_ref()
                        .is_some_and(|s| pods.iter().any(|pod| selects(s, pod)));
                shares.then(|| format!("{}/{}", key.0, key.1))
            };
            // This autoscaler and one more suffice for the error.
            states.iter().filter_map(shares_pods).take(2).collect()
        };
        if autoscalers.len() > 1 {
            let selector = selector.to_owned();
            return Err(SelectorError::Ambiguous { selector, autoscalers });
        }
        Ok(pods)
    }

    /// Records an event and sets `ScalingActive` to false.
    fn report_selector_error(&mut self, error: &SelectorError) {
        let text = error.to_string();
        let (event, reason, message) = match error {
            SelectorError::Missing => (
                "SelectorRequired",
                "InvalidSelector",
                "the HPA target's scale is missing a selector".to_owned(),
            ),
            SelectorError::Invalid(_) => ("InvalidSelector", "InvalidSelector", text.clone()),
            SelectorError::Ambiguous { .. } => {
                ("AmbiguousSelector", "AmbiguousSelector", text.clone())
            }
        };
        self.warn(event, text);
        self.condition("ScalingActive", false, reason, message);
    }
}

#[cfg(test)]
mod tests;
