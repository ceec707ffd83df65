//! HorizontalPodAutoscalers: scale to the number of replicas that the metrics require (upstream's
//! `podautoscaler.HorizontalController`, `autoscaling/v2`).
//!
//! Each is reconciled every 15 s, and at once when its spec changes: metrics are not objects, so no
//! event reports their change.

mod limits;
mod metrics;
mod proposals;
mod replicas;
mod target;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api::k8s::api::autoscaling::v2::{
    HorizontalPodAutoscaler, HorizontalPodAutoscalerCondition, HorizontalPodAutoscalerSpec,
    HorizontalPodAutoscalerStatus, MetricStatus,
};
use api::k8s::api::core::v1::Pod;
use api::k8s::apimachinery::pkg::apis::meta::v1::Time;
use api::k8s::jiff::Timestamp;
use api::selector::LabelSelector;
use client::events::EventType;
use client::{Action, Change, Client, Error, EventRecorder, Informer};
use parking_lot::Mutex;

use crate::framework::context::Context;
use crate::framework::keyed::{Key, Keyed, settled};
use limits::{Decision, History};
use metrics::Source;
use proposals::Recommendation;
use target::Scale;

/// Service account.
const CONTROLLER: &str = "horizontal-pod-autoscaler";
/// Workers (`--concurrent-horizontal-pod-autoscaler-syncs`).
const WORKERS: usize = 5;
/// Between two looks (`--horizontal-pod-autoscaler-sync-period`).
const PERIOD: Duration = Duration::from_secs(15);

/// What is remembered of an autoscaler between two looks.
#[derive(Debug, Default)]
struct AutoscalerState {
    history: History,
    /// Which pods it is about, to find two that are about the same.
    selector: Option<LabelSelector>,
}

struct Controller {
    client: Client,
    recorder: EventRecorder,
    autoscalers: Informer<HorizontalPodAutoscaler>,
    pods: Informer<Pod>,
    known: Mutex<BTreeMap<Key, AutoscalerState>>,
}

/// Starts the controller.
pub(crate) fn start(context: &Context) {
    let client = context.client(CONTROLLER);
    let controller = Arc::new(Controller {
        recorder: context.recorder(&client, CONTROLLER),
        client,
        autoscalers: context.informers.of(),
        pods: context.informers.of(),
        known: Mutex::new(BTreeMap::new()),
    });
    let mut keyed = Keyed::new();
    keyed.watches(&controller.autoscalers, concerns);
    keyed.waits_for_sync(&controller.pods);
    keyed.run(&context.tasks, CONTROLLER, WORKERS, move |key| {
        let controller = Arc::clone(&controller);
        async move { controller.reconcile(key).await }
    });
}

/// A change of the status alone is this controller's own write and no reason to reconcile.
fn concerns(change: &Change) -> Vec<Key> {
    if let Change::Updated { old, new } = change {
        let generation = |object: &api::Object| client::meta(object).and_then(|m| m.generation);
        if generation(old) == generation(new) {
            return Vec::new();
        }
    }
    let key = &change.object().key;
    vec![(key.namespace.to_string(), key.name.to_string())]
}

/// Why a reconcile ends early, for the log. Status and events are written already.
struct Failed(String);

/// The reconcile of one autoscaler.
struct Reconcile<'a> {
    controller: &'a Controller,
    key: Key,
    autoscaler: HorizontalPodAutoscaler,
    spec: HorizontalPodAutoscalerSpec,
    status: HorizontalPodAutoscalerStatus,
    now: Timestamp,
}

impl Controller {
    async fn reconcile(&self, key: Key) -> Result<Action, Error> {
        let Some(autoscaler) = self.autoscalers.get(&key.0, &key.1) else {
            self.known.lock().remove(&key);
            return Ok(Action::Done);
        };
        let spec = autoscaler.spec.clone();
        let before = autoscaler.status.clone().unwrap_or_default();
        let now = Timestamp::now();
        let mut reconcile =
            Reconcile { controller: self, key, spec, status: before.clone(), autoscaler, now };
        if let Err(Failed(why)) = reconcile.run().await {
            tracing::debug!(controller = CONTROLLER, autoscaler = ?reconcile.key, %why,
                "not scaled");
        }
        if reconcile.status != before {
            let mut written = reconcile.autoscaler.clone();
            written.status = Some(reconcile.status.clone());
            let result = self.client.update_status(&written).await;
            if let Err(error) = &result {
                reconcile.warn("FailedUpdateStatus", error.to_string());
            }
            settled(result)?;
        }
        Ok(Action::After(PERIOD))
    }
}

impl Reconcile<'_> {
    fn warn(&self, reason: &str, message: String) {
        self.controller.recorder.event(&self.autoscaler, EventType::Warning, reason, message);
    }

    fn condition(&mut self, kind: &str, holds: bool, reason: &str, message: String) {
        set_condition(&mut self.status, kind, holds, reason, message, self.now);
    }

    fn had(&self, kind: &str) -> bool {
        self.status.conditions.iter().flatten().any(|c| c.type_ == kind && c.status == "True")
    }

    /// What the status says beside conditions. `desired` absent: what it said before.
    fn note(
        &mut self,
        current: i32,
        desired: Option<i32>,
        metrics: Vec<MetricStatus>,
        scaled: bool,
    ) {
        let metrics = (!metrics.is_empty()).then_some(metrics);
        let before = std::mem::take(&mut self.status);
        self.status = HorizontalPodAutoscalerStatus {
            conditions: before.conditions,
            current_metrics: metrics,
            current_replicas: Some(current),
            desired_replicas: desired.unwrap_or(before.desired_replicas),
            last_scale_time: if scaled { Some(Time(self.now)) } else { before.last_scale_time },
            observed_generation: self.autoscaler.metadata.generation,
        };
    }

    async fn scale(&mut self) -> Result<Scale, Failed> {
        let wanted = self.spec.scale_target_ref.clone();
        let version = wanted.api_version.as_deref().unwrap_or_default();
        let client = &self.controller.client;
        let found = match target::find(client, version, &wanted.kind).await {
            Ok(found) => Scale::read(client, &found, &self.key.0, &wanted.name)
                .await
                .map_err(|e| e.to_string()),
            Err(error) => Err(error),
        };
        match found {
            Ok(scale) => {
                let message = "the HPA controller was able to get the target's current scale";
                self.condition("AbleToScale", true, "SucceededGetScale", message.to_owned());
                Ok(scale)
            }
            Err(error) => {
                self.warn("FailedGetScale", error.clone());
                let message = format!(
                    "the HPA controller was unable to get the target's current scale: {error}"
                );
                self.condition("AbleToScale", false, "FailedGetScale", message);
                Err(Failed(error))
            }
        }
    }

    async fn run(&mut self) -> Result<(), Failed> {
        let mut scale = self.scale().await?;
        let current = scale.wanted();
        self.with_state(|known, now| known.history.begin(current, now));
        let least = self.spec.min_replicas.unwrap_or(1);
        let asks_beside_pods = self
            .spec
            .metrics
            .iter()
            .flatten()
            .any(|m| m.type_ == "Object" || m.type_ == "External");
        let was_scaled_to_zero = self.had("ScaledToZero");
        let mut reason = String::new();
        let mut metrics = Vec::new();
        let desired;
        if current == 0 && !(was_scaled_to_zero && (least != 0 || asks_beside_pods)) {
            desired = 0;
            let message = "scaling is disabled since the replica count of the target is zero";
            self.condition("ScalingActive", false, "ScalingDisabled", message.to_owned());
        } else if current > self.spec.max_replicas {
            "Current number of replicas above Spec.MaxReplicas".clone_into(&mut reason);
            desired = self.spec.max_replicas;
        } else if current != 0 && current < least {
            "Current number of replicas below Spec.MinReplicas".clone_into(&mut reason);
            desired = least;
        } else {
            let recommendation = self.recommend(&scale).await;
            let Recommendation { statuses, best, error } = recommendation;
            metrics = statuses;
            let Some((wanted, metric)) = best else {
                let error = error.unwrap_or_default();
                self.note(current, None, metrics, false);
                self.warn("FailedComputeMetricsReplicas", error.clone());
                return Err(Failed(error));
            };
            if wanted > current {
                reason = format!("{metric} above target");
            } else if wanted < current {
                "All metrics below target".clone_into(&mut reason);
            }
            let spec = self.spec.clone();
            let decision = self
                .with_state(|known, now| known.history.decide(&spec, current, wanted, least, now));
            let Decision { mut replicas, able, limited } = decision;
            self.condition("AbleToScale", able.0, able.1, able.2.to_owned());
            self.condition("ScalingLimited", limited.0, limited.1, limited.2.to_owned());
            if current == 0 && least != 0 && replicas < least {
                replicas = least;
                if reason.is_empty() {
                    "Current number of replicas below Spec.MinReplicas".clone_into(&mut reason);
                }
            }
            desired = replicas;
        }
        let rescale = desired != current;
        if rescale {
            self.rescale(&mut scale, (current, desired), &reason, &metrics).await?;
            if current > 0 && desired == 0 && least == 0 && asks_beside_pods {
                self.condition(
                    "ScaledToZero",
                    true,
                    "ScaledToZero",
                    "the HPA controller scaled the workload to zero".to_owned(),
                );
            } else {
                self.condition(
                    "ScaledToZero",
                    false,
                    "NotScaledToZero",
                    "the HPA controller did not scale the workload to zero".to_owned(),
                );
            }
        }
        self.note(current, Some(desired), metrics, rescale);
        Ok(())
    }

    async fn rescale(
        &mut self,
        scale: &mut Scale,
        (current, desired): (i32, i32),
        reason: &str,
        metrics: &[MetricStatus],
    ) -> Result<(), Failed> {
        if let Err(error) = scale.write(&self.controller.client, desired).await {
            self.warn(
                "FailedRescale",
                format!("New size: {desired}; reason: {reason}; error: {error}"),
            );
            let message =
                format!("the HPA controller was unable to update the target scale: {error}");
            self.condition("AbleToScale", false, "FailedUpdateScale", message);
            self.note(current, None, metrics.to_vec(), false);
            return Err(Failed(error.to_string()));
        }
        let message =
            format!("the HPA controller was able to update the target scale to {desired}");
        self.condition("AbleToScale", true, "SucceededRescale", message);
        let told = format!("New size: {desired}; reason: {reason}");
        self.controller.recorder.event(
            &self.autoscaler,
            EventType::Normal,
            "SuccessfulRescale",
            told,
        );
        let spec = self.spec.clone();
        self.with_state(|known, now| known.history.scaled(&spec, current, desired, now));
        Ok(())
    }

    fn with_state<T>(&self, with: impl FnOnce(&mut AutoscalerState, Timestamp) -> T) -> T {
        with(self.controller.known.lock().entry(self.key.clone()).or_default(), self.now)
    }

    /// What all metrics ask for; conditions and events say what went wrong.
    async fn recommend(&mut self, scale: &Scale) -> Recommendation {
        let pods = match self.pods(scale.selector()) {
            Ok(pods) => pods,
            Err(error) => {
                return Recommendation { statuses: Vec::new(), best: None, error: Some(error) };
            }
        };
        let source = Source { client: &self.controller.client, namespace: &self.key.0 };
        let mut recommendation = proposals::all(&self.spec, &source, scale, &pods, self.now).await;
        for (reason, error) in recommendation.failed.drain(..) {
            self.warn(reason, error);
        }
        let (holds, reason, message) = recommendation.active;
        self.condition("ScalingActive", holds, reason, message);
        recommendation.recommendation
    }

    /// The pods of the target, unless another autoscaler has them, too.
    fn pods(&mut self, selector: &str) -> Result<Vec<Pod>, String> {
        let mut refuse = |event: &str, reason: &str, told: &str, message: &str| {
            self.warn(event, told.to_owned());
            self.condition("ScalingActive", false, reason, message.to_owned());
            Err(told.to_owned())
        };
        if selector.is_empty() {
            return refuse(
                "SelectorRequired",
                "InvalidSelector",
                "selector is required",
                "the HPA target's scale is missing a selector",
            );
        }
        let parsed = match LabelSelector::parse(selector) {
            Ok(parsed) => parsed,
            Err(error) => {
                let text = format!(
                    "couldn't convert selector into a corresponding internal selector object: \
                        {error}"
                );
                return refuse("InvalidSelector", "InvalidSelector", &text, &text);
            }
        };
        let namespace = self.key.0.clone();
        let selects = |selector: &LabelSelector, pod: &Pod| match &pod.metadata.labels {
            Some(labels) => selector.matches(labels),
            None => selector.matches(&BTreeMap::<String, String>::new()),
        };
        let mut pods = self.controller.pods.list(&namespace);
        pods.retain(|pod| selects(&parsed, pod));
        let others: Vec<String> = {
            let mut known = self.controller.known.lock();
            known.entry(self.key.clone()).or_default().selector = Some(parsed);
            let other = |(key, known): (&Key, &AutoscalerState)| {
                let same = key.0 == namespace
                    && known
                        .selector
                        .as_ref()
                        .is_some_and(|s| pods.iter().any(|pod| selects(s, pod)));
                same.then(|| format!("{}/{}", key.0, key.1))
            };
            known.iter().filter_map(other).take(2).collect()
        };
        if others.len() > 1 {
            let text = format!(
                "pods by selector {selector} are controlled by more than one HPA (e.g. [{}])",
                others.join(" ")
            );
            self.warn("AmbiguousSelector", text.clone());
            self.condition("ScalingActive", false, "AmbiguousSelector", text.clone());
            return Err(text);
        }
        Ok(pods)
    }
}

fn set_condition(
    status: &mut HorizontalPodAutoscalerStatus,
    kind: &str,
    holds: bool,
    reason: &str,
    message: String,
    now: Timestamp,
) {
    let value = if holds { "True" } else { "False" };
    let all = status.conditions.get_or_insert_default();
    let found = all.iter_mut().find(|c| c.type_ == kind);
    let since = match &found {
        Some(old) if old.status == value => old.last_transition_time.clone(),
        _ => Some(Time(now)),
    };
    let new = HorizontalPodAutoscalerCondition {
        type_: kind.to_owned(),
        status: value.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message),
        last_transition_time: since,
        observed_generation: None,
    };
    match found {
        Some(old) => *old = new,
        None => all.push(new),
    }
}

#[cfg(test)]
mod tests;
