//! The replicas that each metric of an autoscaler proposes, and the result of all (upstream's
//! `computeReplicasForMetrics`).

use api::Quantity;
use api::k8s::api::autoscaling::v2::{
    ContainerResourceMetricSource, ContainerResourceMetricStatus, ExternalMetricSource,
    ExternalMetricStatus, HorizontalPodAutoscalerSpec, MetricSpec, MetricStatus, MetricTarget,
    MetricValueStatus, ObjectMetricSource, ObjectMetricStatus, PodsMetricSource, PodsMetricStatus,
    ResourceMetricSource, ResourceMetricStatus,
};
use api::k8s::api::core::v1::Pod;
use api::k8s::apimachinery::pkg::api::resource::Quantity as Text;
use api::k8s::jiff::Timestamp;
use base::clock;

use super::metrics::{MetricsClient, MetricsError, go_selector};
use super::monitor::{self, Cause};
use super::replicas::{self, Proposal, ReplicaError, Samples, TargetUse, Tolerances};
use super::target::Scale;
use crate::framework::tuning::{Autoscaling, Startup};

/// The recommendation of all metrics.
#[derive(Debug)]
pub(super) struct Recommendation {
    /// Status of each metric; a metric that failed has an empty type, as in upstream's
    /// `computeReplicasForMetrics`.
    pub(super) statuses: Vec<MetricStatus>,
    /// The highest proposal and its metric; `None` when too many metrics are unavailable.
    pub(super) best: Option<(i32, String)>,
    /// Text of the first error.
    pub(super) error: Option<String>,
}

/// The proposals of the metrics, and their status.
#[derive(Debug)]
pub(super) struct MetricsOutcome {
    pub(super) recommendation: Recommendation,
    /// The condition `ScalingActive`.
    pub(super) active: (bool, &'static str, String),
    /// Events: reason and text.
    pub(super) failed: Vec<(&'static str, String)>,
}

/// Reason of event and condition for a metric whose type does not exist.
const UNKNOWN_TYPE: &str = "InvalidMetricSourceType";

/// The proposal of one metric: replicas, name of the metric, its status.
type MetricProposal = (i32, String, MetricStatus);

/// A metric without a proposal: the reason of event and condition, the error, and its context.
struct UnavailableMetric {
    reason: &'static str,
    error: String,
    context: String,
}

/// The tolerances of the spec; `default` is `--horizontal-pod-autoscaler-tolerance`.
fn tolerances(spec: &HorizontalPodAutoscalerSpec, default: f64) -> Tolerances {
    let behavior = spec.behavior.as_ref();
    let of = |text: Option<&Text>| {
        text.and_then(|t| Quantity::parse(&t.0).ok()).map_or(default, |q| q.as_f64())
    };
    Tolerances {
        up: of(behavior.and_then(|b| b.scale_up.as_ref()?.tolerance.as_ref())),
        down: of(behavior.and_then(|b| b.scale_down.as_ref()?.tolerance.as_ref())),
    }
}

fn milli(text: Option<&Text>) -> Option<i64> {
    text.and_then(|t| Quantity::parse(&t.0).ok()).map(|q| q.milli_value())
}

fn decimal(value: i64) -> Text {
    Text(Quantity::millis(value).to_string())
}

/// Formats a usage as upstream's `buildQuantity`: memory in binary units if that is exact.
fn usage_quantity(resource: &str, value: i64) -> Text {
    if resource == "memory" && value % 1000 == 0 {
        return Text(Quantity::bytes(value / 1000).to_string());
    }
    decimal(value)
}

/// Computes the proposals of all metrics and their combination. `current` is the number of replicas
/// in the status of the autoscaler, which upstream's metrics compare with.
pub(super) async fn recommend(
    spec: &HorizontalPodAutoscalerSpec,
    source: &MetricsClient<'_>,
    scale: &Scale,
    pods: &[Pod],
    (tuning, now): (&Autoscaling, Timestamp),
    current: i32,
) -> MetricsOutcome {
    let metrics = spec.metrics.as_deref().unwrap_or_default();
    let reader = MetricReader {
        source,
        scale,
        pods,
        tolerances: tolerances(spec, tuning.tolerance),
        startup: tuning.startup,
        now,
    };
    let mut proposals = Vec::with_capacity(metrics.len());
    for metric in metrics {
        let (began, proposal) = (clock::now(), reader.propose(metric).await);
        let result = match &proposal {
            Ok((replicas, ..)) => Ok(replicas.cmp(&current)),
            Err(UnavailableMetric { reason: UNKNOWN_TYPE, .. }) => Err(Cause::Spec),
            Err(_) => Err(Cause::Internal),
        };
        monitor::computed(began, &metric.type_, result);
        proposals.push(proposal);
    }
    combine(proposals, scale.desired_replicas())
}

/// Combines the proposals of all metrics; `desired` is the desired number of replicas so far.
fn combine(
    proposals: Vec<Result<MetricProposal, UnavailableMetric>>,
    desired: i32,
) -> MetricsOutcome {
    let count = proposals.len();
    let (mut statuses, mut failed) = (Vec::with_capacity(count), Vec::new());
    let mut best: Option<(i32, String)> = None;
    let mut first = None;
    for proposal in proposals {
        match proposal {
            Ok((replicas, name, status)) => {
                statuses.push(status);
                if best.as_ref().is_none_or(|(most, _)| replicas > *most) {
                    best = Some((replicas, name));
                }
            }
            Err(UnavailableMetric { reason, error, context }) => {
                statuses.push(MetricStatus::default());
                let message = format!("the HPA was unable to compute the replica count: {error}");
                let full = format!("{context}: {error}");
                failed.push((reason, error));
                first.get_or_insert((reason, message, full));
            }
        }
    }
    let error = first.as_ref().map(|(.., full)| {
        format!("invalid metrics ({} invalid out of {count}), first error is: {full}", failed.len())
    });
    // A metric that is not available might require more replicas, so nothing is scaled down.
    if failed.is_empty() || best.as_ref().is_some_and(|(most, _)| *most >= desired) {
        if let Some((_, name)) = &best {
            let message =
                format!("the HPA was able to successfully calculate a replica count from {name}");
            return MetricsOutcome {
                active: (true, "ValidMetricFound", message),
                failed,
                recommendation: Recommendation { statuses, best, error },
            };
        }
    }
    let (reason, message) = first
        .map_or((UNKNOWN_TYPE, "no metric is named".to_owned()), |(reason, message, _)| {
            (reason, message)
        });
    MetricsOutcome {
        active: (false, reason, message),
        failed,
        recommendation: Recommendation { statuses, best: None, error },
    }
}

/// Why a metric proposes no number of replicas; the texts are upstream's.
#[derive(Debug, Clone, thiserror::Error)]
enum ProposalError {
    #[error("unknown metric source type {0:?}")]
    UnknownType(String),
    #[error(
        "invalid resource metric source: neither an average utilization target nor an average \
         value (usage) target was set"
    )]
    NoResourceTarget,
    /// `kind` is `object` or `external`.
    #[error(
        "invalid {kind} metric source: neither a value target nor an average value target was set"
    )]
    NoValueTarget { kind: &'static str },
    /// `what` is `usage` or `utilization`.
    #[error(
        "failed to get {resource} {what}: unable to get metrics for resource {resource}: {source}"
    )]
    ResourceMetrics { resource: String, what: &'static str, source: MetricsError },
    #[error("failed to get {resource} {what}: {source}")]
    ResourceReplicas { resource: String, what: &'static str, source: ReplicaError },
    #[error("unable to get metric {metric}: {source}")]
    PodsMetrics { metric: String, source: MetricsError },
    /// `object` is kind, namespace and name.
    #[error("unable to get metric {metric} on {object}: {source}")]
    ObjectMetrics { metric: String, object: String, source: MetricsError },
    #[error(transparent)]
    ExternalMetrics(MetricsError),
    #[error(transparent)]
    Replicas(#[from] ReplicaError),
}

struct MetricReader<'a> {
    source: &'a MetricsClient<'a>,
    scale: &'a Scale,
    pods: &'a [Pod],
    tolerances: Tolerances,
    startup: Startup,
    now: Timestamp,
}

impl MetricReader<'_> {
    /// Computes the proposal of one metric.
    async fn propose(&self, metric: &MetricSpec) -> Result<MetricProposal, UnavailableMetric> {
        let status = MetricStatus { type_: metric.type_.clone(), ..MetricStatus::default() };
        match metric {
            MetricSpec { type_, resource: Some(source), .. } if type_ == "Resource" => {
                self.of_resource(source, status).await
            }
            MetricSpec { type_, container_resource: Some(source), .. }
                if type_ == "ContainerResource" =>
            {
                self.of_container_resource(source, status).await
            }
            MetricSpec { type_, pods: Some(source), .. } if type_ == "Pods" => {
                self.of_pods(source, status).await
            }
            MetricSpec { type_, object: Some(source), .. } if type_ == "Object" => {
                self.of_object(source, status).await
            }
            MetricSpec { type_, external: Some(source), .. } if type_ == "External" => {
                self.of_external(source, status).await
            }
            _ => {
                let error = ProposalError::UnknownType(metric.type_.clone()).to_string();
                let (reason, context) = (UNKNOWN_TYPE, error.clone());
                Err(UnavailableMetric { reason, context, error })
            }
        }
    }

    async fn of_resource(
        &self,
        source: &ResourceMetricSource,
        status: MetricStatus,
    ) -> Result<MetricProposal, UnavailableMetric> {
        let found = self.resource(&source.name, None, &source.target).await;
        let (proposal, name) = found.map_err(|error| UnavailableMetric {
            reason: "FailedGetResourceMetric",
            error: error.to_string(),
            context: format!("failed to get {} resource metric value", source.name),
        })?;
        let current = resource_status(&source.name, &proposal);
        let resource = ResourceMetricStatus { current, name: source.name.clone() };
        Ok((proposal.replicas, name, MetricStatus { resource: Some(resource), ..status }))
    }

    async fn of_container_resource(
        &self,
        source: &ContainerResourceMetricSource,
        status: MetricStatus,
    ) -> Result<MetricProposal, UnavailableMetric> {
        let found = self.resource(&source.name, Some(&source.container), &source.target).await;
        let (proposal, name) = found.map_err(|error| UnavailableMetric {
            reason: "FailedGetContainerResourceMetric",
            error: error.to_string(),
            context: format!("failed to get {} container metric value", source.container),
        })?;
        let container_resource = Some(ContainerResourceMetricStatus {
            container: source.container.clone(),
            current: resource_status(&source.name, &proposal),
            name: source.name.clone(),
        });
        Ok((proposal.replicas, name, MetricStatus { container_resource, ..status }))
    }

    async fn of_pods(
        &self,
        source: &PodsMetricSource,
        status: MetricStatus,
    ) -> Result<MetricProposal, UnavailableMetric> {
        let proposal = self.pods_metric(source).await.map_err(|error| UnavailableMetric {
            reason: "FailedGetPodsMetric",
            error: error.to_string(),
            context: "failed to get pods metric value".to_owned(),
        })?;
        let current = MetricValueStatus {
            average_value: Some(decimal(proposal.usage)),
            ..MetricValueStatus::default()
        };
        let pods = PodsMetricStatus { current, metric: source.metric.clone() };
        let name = format!("pods metric {}", source.metric.name);
        Ok((proposal.replicas, name, MetricStatus { pods: Some(pods), ..status }))
    }

    async fn pods_metric(&self, source: &PodsMetricSource) -> Result<Proposal, ProposalError> {
        let target = TargetUse::Value(milli(source.target.average_value.as_ref()).unwrap_or(0));
        let samples = self.source.pods(&source.metric, self.scale.selector()).await;
        let samples = samples.map_err(|error| ProposalError::PodsMetrics {
            metric: source.metric.name.clone(),
            source: error,
        })?;
        Ok(self.replicas_of_pods(samples, false, &target)?)
    }

    fn replicas_of_pods(
        &self,
        samples: Samples,
        is_cpu: bool,
        target: &TargetUse,
    ) -> Result<Proposal, ReplicaError> {
        let (desired, tolerances) = (self.scale.desired_replicas(), self.tolerances);
        let startup = is_cpu.then_some(self.startup);
        replicas::of_pods(samples, self.pods, startup, target, desired, tolerances, self.now)
    }

    async fn of_object(
        &self,
        source: &ObjectMetricSource,
        status: MetricStatus,
    ) -> Result<MetricProposal, UnavailableMetric> {
        let (object, metric) = (&source.described_object, &source.metric);
        let usage = self.source.object(metric, object).await;
        let usage = usage.map_err(|error| ProposalError::ObjectMetrics {
            metric: metric.name.clone(),
            object: format!("{} {}/{}", object.kind, self.source.namespace, object.name),
            source: error,
        });
        let name = if source.target.type_ == "Value" {
            format!("{} metric {}", object.kind, metric.name)
        } else {
            format!("external metric {}({})", metric.name, go_selector(metric))
        };
        let (proposal, current) =
            self.value(usage, &source.target, "object").map_err(|error| UnavailableMetric {
                reason: "FailedGetObjectMetric",
                error: error.to_string(),
                context: "failed to get object metric value".to_owned(),
            })?;
        let (described_object, metric) = (object.clone(), metric.clone());
        let object = Some(ObjectMetricStatus { current, described_object, metric });
        Ok((proposal.replicas, name, MetricStatus { object, ..status }))
    }

    async fn of_external(
        &self,
        source: &ExternalMetricSource,
        status: MetricStatus,
    ) -> Result<MetricProposal, UnavailableMetric> {
        let metric = &source.metric;
        let usage = self.source.external(metric).await.map_err(ProposalError::ExternalMetrics);
        let (proposal, current) =
            self.value(usage, &source.target, "external").map_err(|error| UnavailableMetric {
                reason: "FailedGetExternalMetric",
                error: error.to_string(),
                context: format!(
                    "failed to get {0} external metric value: failed to get {0} external metric",
                    metric.name
                ),
            })?;
        let name = format!("external metric {}({})", metric.name, go_selector(metric));
        let external = Some(ExternalMetricStatus { current, metric: metric.clone() });
        Ok((proposal.replicas, name, MetricStatus { external, ..status }))
    }

    /// Proposes replicas for a value of an object or of an external metric: compared as a whole, or
    /// divided by the pods.
    fn value(
        &self,
        usage: Result<i64, ProposalError>,
        target: &MetricTarget,
        kind: &'static str,
    ) -> Result<(Proposal, MetricValueStatus), ProposalError> {
        let (value, average) = (milli(target.value.as_ref()), milli(target.average_value.as_ref()));
        if let Some(average) = average.filter(|_| target.type_ != "Value") {
            let current = self.scale.current_replicas();
            let proposal = replicas::of_value_per_pod(usage?, average, current, self.tolerances);
            let average_value = Some(decimal(proposal.usage));
            return Ok((proposal, MetricValueStatus { average_value, ..Default::default() }));
        }
        let value = value.ok_or(ProposalError::NoValueTarget { kind })?;
        let desired = self.scale.desired_replicas();
        let proposal = replicas::of_value(usage?, value, desired, self.pods, self.tolerances)?;
        let value = Some(decimal(proposal.usage));
        Ok((proposal, MetricValueStatus { value, ..Default::default() }))
    }

    /// Proposes replicas for CPU or memory of pods or of one of their containers; returns the
    /// metric's name for messages, too.
    async fn resource(
        &self,
        resource: &str,
        container: Option<&str>,
        target: &MetricTarget,
    ) -> Result<(Proposal, String), ProposalError> {
        let average = milli(target.average_value.as_ref());
        let what = if average.is_some() { "usage" } else { "utilization" };
        let failed = |source: ReplicaError| ProposalError::ResourceReplicas {
            resource: resource.to_owned(),
            what,
            source,
        };
        let percent = match (average, target.average_utilization) {
            (None, None) => return Err(ProposalError::NoResourceTarget),
            (_, percent) => percent.unwrap_or(0),
        };
        let samples = self.source.resource(resource, container, self.scale.selector()).await;
        let samples = samples.map_err(|source| ProposalError::ResourceMetrics {
            resource: resource.to_owned(),
            what,
            source,
        })?;
        let (target, name) = match average {
            Some(value) => (TargetUse::Value(value), format!("{resource} resource")),
            None => {
                let requests =
                    replicas::requests(self.pods, container, resource).map_err(failed)?;
                let of = if container.is_some() { "container resource" } else { "resource" };
                (
                    TargetUse::Utilization(percent, requests),
                    format!("{resource} {of} utilization (percentage of request)"),
                )
            }
        };
        let proposal = self.replicas_of_pods(samples, resource == "cpu", &target);
        Ok((proposal.map_err(failed)?, name))
    }
}

fn resource_status(resource: &str, proposal: &Proposal) -> MetricValueStatus {
    MetricValueStatus {
        average_utilization: proposal.utilization,
        average_value: Some(usage_quantity(resource, proposal.usage)),
        value: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proposal(replicas: i32) -> Result<MetricProposal, UnavailableMetric> {
        Ok((replicas, format!("metric {replicas}"), MetricStatus::default()))
    }

    fn unavailable() -> Result<MetricProposal, UnavailableMetric> {
        Err(UnavailableMetric {
            reason: "FailedGetResourceMetric",
            error: "gone".into(),
            context: "failed to get cpu resource metric value".into(),
        })
    }

    #[test]
    fn the_highest_proposal_is_recommended() {
        let outcome = combine(vec![proposal(2), proposal(5), proposal(3)], 4);
        assert_eq!(outcome.recommendation.best, Some((5, "metric 5".into())));
        assert_eq!(
            outcome.active,
            (
                true,
                "ValidMetricFound",
                "the HPA was able to successfully calculate a replica count from metric 5".into()
            )
        );
        assert_eq!(combine(vec![proposal(0)], 4).recommendation.best, Some((0, "metric 0".into())));
    }

    #[test]
    fn an_unavailable_metric_prevents_scaling_down() {
        assert_eq!(
            combine(vec![unavailable(), proposal(5)], 4).recommendation.best,
            Some((5, "metric 5".into()))
        );
        let outcome = combine(vec![proposal(3), unavailable()], 4);
        assert_eq!(outcome.recommendation.best, None);
        assert_eq!(
            outcome.active,
            (
                false,
                "FailedGetResourceMetric",
                "the HPA was unable to compute the replica count: gone".into()
            )
        );
        assert_eq!(
            outcome.recommendation.error.as_deref(),
            Some(
                "invalid metrics (1 invalid out of 2), first error is: failed to get cpu resource \
                    metric value: gone"
            )
        );
        assert_eq!(outcome.failed, [("FailedGetResourceMetric", "gone".to_owned())]);
    }

    #[test]
    fn memory_is_shown_in_binary_units() {
        assert_eq!(usage_quantity("memory", 4_194_304_000).0, "4Mi");
        assert_eq!(usage_quantity("cpu", 1500).0, "1500m");
    }
}
