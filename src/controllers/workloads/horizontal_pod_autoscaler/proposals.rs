//! The replicas that each metric of an autoscaler proposes, and the result of all (upstream's
//! `computeReplicasForMetrics`).

use api::Quantity;
use api::k8s::api::autoscaling::v2::{
    ContainerResourceMetricStatus, ExternalMetricStatus, HorizontalPodAutoscalerSpec, MetricSpec,
    MetricStatus, MetricTarget, MetricValueStatus, ObjectMetricStatus, PodsMetricStatus,
    ResourceMetricStatus,
};
use api::k8s::api::core::v1::Pod;
use api::k8s::apimachinery::pkg::api::resource::Quantity as Text;
use api::k8s::jiff::Timestamp;

use super::metrics::{Source, shown};
use super::replicas::{self, Proposal, TargetUse, Tolerances};
use super::target::Scale;

/// How far from the aim is near enough (`--horizontal-pod-autoscaler-tolerance`).
const TOLERANCE: f64 = 0.1;

/// What the metrics ask for.
#[derive(Debug)]
pub(super) struct Recommendation {
    /// What is shown of each, the ones that failed with their type empty as upstream has them.
    pub(super) statuses: Vec<MetricStatus>,
    /// The highest proposal and its metric; `None` when too many metrics are unavailable.
    pub(super) best: Option<(i32, String)>,
    /// What went wrong first.
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

/// The proposal of one metric: replicas, name of the metric, its status.
type MetricProposal = (i32, String, MetricStatus);

/// A metric that cannot be used: the reason of event and condition, what happened, and what that
/// was for.
struct UnavailableMetric {
    reason: &'static str,
    error: String,
    context: String,
}

fn tolerances(spec: &HorizontalPodAutoscalerSpec) -> Tolerances {
    let behavior = spec.behavior.as_ref();
    let of = |text: Option<&Text>| {
        text.and_then(|t| Quantity::parse(&t.0).ok()).map_or(TOLERANCE, |q| q.as_f64())
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

/// As `buildQuantity`: memory in binary units where that is exact.
fn shown_usage(resource: &str, value: i64) -> Text {
    if resource == "memory" && value % 1000 == 0 {
        return Text(Quantity::bytes(value / 1000).to_string());
    }
    decimal(value)
}

/// The proposals of all metrics.
pub(super) async fn all(
    spec: &HorizontalPodAutoscalerSpec,
    source: &Source<'_>,
    scale: &Scale,
    pods: &[Pod],
    now: Timestamp,
) -> MetricsOutcome {
    let metrics = spec.metrics.as_deref().unwrap_or_default();
    let look = MetricReader { source, scale, pods, tolerances: tolerances(spec), now };
    let mut answers = Vec::with_capacity(metrics.len());
    for metric in metrics {
        answers.push(look.one(metric).await);
    }
    together(answers, scale.wanted())
}

fn together(
    answers: Vec<Result<MetricProposal, UnavailableMetric>>,
    wanted: i32,
) -> MetricsOutcome {
    let count = answers.len();
    let (mut statuses, mut failed) = (Vec::with_capacity(count), Vec::new());
    let mut best: Option<(i32, String)> = None;
    let mut first = None;
    for answer in answers {
        match answer {
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
    // What is unknown could ask for more: nothing is scaled down then.
    if failed.is_empty() || best.as_ref().is_some_and(|(most, _)| *most >= wanted) {
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
    let (reason, message) = first.map_or(
        ("InvalidMetricSourceType", "no metric is named".to_owned()),
        |(reason, message, _)| (reason, message),
    );
    MetricsOutcome {
        active: (false, reason, message),
        failed,
        recommendation: Recommendation { statuses, best: None, error },
    }
}

struct MetricReader<'a> {
    source: &'a Source<'a>,
    scale: &'a Scale,
    pods: &'a [Pod],
    tolerances: Tolerances,
    now: Timestamp,
}

impl MetricReader<'_> {
    async fn one(&self, metric: &MetricSpec) -> Result<MetricProposal, UnavailableMetric> {
        let status = MetricStatus { type_: metric.type_.clone(), ..MetricStatus::default() };
        if let Some(about) = metric.resource.as_ref().filter(|_| metric.type_ == "Resource") {
            let found = self.resource(&about.name, None, &about.target).await;
            let (proposal, name) = found.map_err(|error| UnavailableMetric {
                reason: "FailedGetResourceMetric",
                error,
                context: format!("failed to get {} resource metric value", about.name),
            })?;
            let current = used(&about.name, &proposal);
            let shown = ResourceMetricStatus { current, name: about.name.clone() };
            return Ok((proposal.replicas, name, MetricStatus { resource: Some(shown), ..status }));
        }
        if let Some(about) =
            metric.container_resource.as_ref().filter(|_| metric.type_ == "ContainerResource")
        {
            let found = self.resource(&about.name, Some(&about.container), &about.target).await;
            let (proposal, name) = found.map_err(|error| UnavailableMetric {
                reason: "FailedGetContainerResourceMetric",
                error,
                context: format!("failed to get {} container metric value", about.container),
            })?;
            let shown = ContainerResourceMetricStatus {
                container: about.container.clone(),
                current: used(&about.name, &proposal),
                name: about.name.clone(),
            };
            return Ok((
                proposal.replicas,
                name,
                MetricStatus { container_resource: Some(shown), ..status },
            ));
        }
        if let Some(about) = metric.pods.as_ref().filter(|_| metric.type_ == "Pods") {
            let unusable = |error: String| UnavailableMetric {
                reason: "FailedGetPodsMetric",
                error,
                context: "failed to get pods metric value".to_owned(),
            };
            let aim = TargetUse::Value(milli(about.target.average_value.as_ref()).unwrap_or(0));
            let samples = self.source.pods(&about.metric, self.scale.selector()).await;
            let samples = samples.map_err(|e| {
                unusable(format!("unable to get metric {}: {e}", about.metric.name))
            })?;
            let found = replicas::of_pods(
                samples,
                self.pods,
                false,
                &aim,
                self.scale.wanted(),
                self.tolerances,
                self.now,
            );
            let proposal = found.map_err(unusable)?;
            let current = MetricValueStatus {
                average_value: Some(decimal(proposal.usage)),
                ..MetricValueStatus::default()
            };
            let shown = PodsMetricStatus { current, metric: about.metric.clone() };
            let name = format!("pods metric {}", about.metric.name);
            return Ok((proposal.replicas, name, MetricStatus { pods: Some(shown), ..status }));
        }
        if let Some(about) = metric.object.as_ref().filter(|_| metric.type_ == "Object") {
            let object = &about.described_object;
            let usage = self.source.object(&about.metric, object).await.map_err(|e| {
                format!(
                    "unable to get metric {} on {} {}/{}: {e}",
                    about.metric.name, object.kind, self.source.namespace, object.name
                )
            });
            let name = if about.target.type_ == "Value" {
                format!("{} metric {}", object.kind, about.metric.name)
            } else {
                format!("external metric {}({})", about.metric.name, shown(&about.metric))
            };
            let (proposal, current) =
                self.value(usage, &about.target, "object").map_err(|error| UnavailableMetric {
                    reason: "FailedGetObjectMetric",
                    error,
                    context: "failed to get object metric value".to_owned(),
                })?;
            let shown = ObjectMetricStatus {
                current,
                described_object: object.clone(),
                metric: about.metric.clone(),
            };
            return Ok((proposal.replicas, name, MetricStatus { object: Some(shown), ..status }));
        }
        if let Some(about) = metric.external.as_ref().filter(|_| metric.type_ == "External") {
            let usage = self.source.external(&about.metric).await;
            let (proposal, current) =
                self.value(usage, &about.target, "external").map_err(|error| {
                    UnavailableMetric {
                        reason: "FailedGetExternalMetric",
                        error,
                        context: format!(
                            "failed to get {0} external metric value: failed to get {0} \
                    external metric",
                            about.metric.name
                        ),
                    }
                })?;
            let name = format!("external metric {}({})", about.metric.name, shown(&about.metric));
            let shown = ExternalMetricStatus { current, metric: about.metric.clone() };
            return Ok((proposal.replicas, name, MetricStatus { external: Some(shown), ..status }));
        }
        let error = format!("unknown metric source type {:?}", metric.type_);
        Err(UnavailableMetric { reason: "InvalidMetricSourceType", context: error.clone(), error })
    }

    /// A value of an object or from outside: for all pods together, or a part for each.
    fn value(
        &self,
        usage: Result<i64, String>,
        target: &MetricTarget,
        kind: &str,
    ) -> Result<(Proposal, MetricValueStatus), String> {
        let (whole, part) = (milli(target.value.as_ref()), milli(target.average_value.as_ref()));
        if let Some(aim) = part.filter(|_| target.type_ != "Value") {
            let proposal =
                replicas::of_value_per_pod(usage?, aim, self.scale.there(), self.tolerances);
            return Ok((
                proposal,
                MetricValueStatus {
                    average_value: Some(decimal(proposal.usage)),
                    ..MetricValueStatus::default()
                },
            ));
        }
        let Some(aim) = whole else {
            return Err(format!(
                "invalid {kind} metric source: neither a value target nor an average value target \
                    was set"
            ));
        };
        let proposal =
            replicas::of_value(usage?, aim, self.scale.wanted(), self.pods, self.tolerances)?;
        Ok((
            proposal,
            MetricValueStatus {
                value: Some(decimal(proposal.usage)),
                ..MetricValueStatus::default()
            },
        ))
    }

    /// CPU or memory of pods or of one of their containers; what the metric is called besides.
    async fn resource(
        &self,
        resource: &str,
        container: Option<&str>,
        target: &MetricTarget,
    ) -> Result<(Proposal, String), String> {
        let average = milli(target.average_value.as_ref());
        let what = if average.is_some() { "usage" } else { "utilization" };
        let unable = |error: String| format!("failed to get {resource} {what}: {error}");
        let percent = match (average, target.average_utilization) {
            (None, None) => {
                return Err(
                    "invalid resource metric source: neither an average utilization target \
                    nor an average value (usage) target was set"
                        .to_owned(),
                );
            }
            (_, percent) => percent.unwrap_or(0),
        };
        let samples = self.source.resource(resource, container, self.scale.selector()).await;
        let samples = samples
            .map_err(|e| unable(format!("unable to get metrics for resource {resource}: {e}")))?;
        let (aim, name) = match average {
            Some(value) => (TargetUse::Value(value), format!("{resource} resource")),
            None => {
                let requests =
                    replicas::requests(self.pods, container, resource).map_err(unable)?;
                let of = if container.is_some() { "container resource" } else { "resource" };
                (
                    TargetUse::Utilization(percent, requests),
                    format!("{resource} {of} utilization (percentage of request)"),
                )
            }
        };
        let found = replicas::of_pods(
            samples,
            self.pods,
            resource == "cpu",
            &aim,
            self.scale.wanted(),
            self.tolerances,
            self.now,
        );
        Ok((found.map_err(unable)?, name))
    }
}

fn used(resource: &str, proposal: &Proposal) -> MetricValueStatus {
    MetricValueStatus {
        average_utilization: proposal.utilization,
        average_value: Some(shown_usage(resource, proposal.usage)),
        value: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(replicas: i32) -> Result<MetricProposal, UnavailableMetric> {
        Ok((replicas, format!("metric {replicas}"), MetricStatus::default()))
    }

    fn bad() -> Result<MetricProposal, UnavailableMetric> {
        Err(UnavailableMetric {
            reason: "FailedGetResourceMetric",
            error: "gone".into(),
            context: "failed to get cpu resource metric value".into(),
        })
    }

    #[test]
    fn the_metric_that_asks_for_most_decides() {
        let told = together(vec![one(2), one(5), one(3)], 4);
        assert_eq!(told.recommendation.best, Some((5, "metric 5".into())));
        assert_eq!(
            told.active,
            (
                true,
                "ValidMetricFound",
                "the HPA was able to successfully calculate a replica count from metric 5".into()
            )
        );
        assert_eq!(together(vec![one(0)], 4).recommendation.best, Some((0, "metric 0".into())));
    }

    #[test]
    fn what_is_unknown_lets_nothing_be_scaled_down() {
        assert_eq!(
            together(vec![bad(), one(5)], 4).recommendation.best,
            Some((5, "metric 5".into()))
        );
        let told = together(vec![one(3), bad()], 4);
        assert_eq!(told.recommendation.best, None);
        assert_eq!(
            told.active,
            (
                false,
                "FailedGetResourceMetric",
                "the HPA was unable to compute the replica count: gone".into()
            )
        );
        assert_eq!(
            told.recommendation.error.as_deref(),
            Some(
                "invalid metrics (1 invalid out of 2), first error is: failed to get cpu resource \
                    metric value: gone"
            )
        );
        assert_eq!(told.failed, [("FailedGetResourceMetric", "gone".to_owned())]);
    }

    #[test]
    fn memory_is_shown_in_binary_units() {
        assert_eq!(shown_usage("memory", 4_194_304_000).0, "4Mi");
        assert_eq!(shown_usage("cpu", 1500).0, "1500m");
    }
}
