//! The number of replicas for a measured usage, without I/O: upstream's
//! `podautoscaler.ReplicaCalculator` and `metrics.utilization`.

use std::collections::{BTreeMap, BTreeSet};

use api::Quantity;
use api::k8s::api::core::v1::Pod;
use api::k8s::jiff::Timestamp;

use crate::framework::pods;
use crate::framework::tuning::Startup;

/// Why a metric proposes no number of replicas; the texts are those of upstream's
/// `ReplicaCalculator`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ReplicaError {
    #[error("no pods returned by selector while calculating replica count")]
    NoPods,
    #[error(
        "unable to calculate ready pods: no pods returned by selector while calculating replica \
         count"
    )]
    NoReadyPods,
    #[error("did not receive metrics for targeted pods (pods might be unready)")]
    NoSamples,
    /// No sample belongs to a pod with a request.
    #[error("no metrics returned matched known pods")]
    NoMatchingMetrics,
    #[error("missing request for {resource} in container {container} of Pod {pod}")]
    MissingRequest { resource: String, container: String, pod: String },
    #[error("missing pod-level request for {resource} in Pod {pod}")]
    MissingPodRequest { resource: String, pod: String },
    #[error("container {container} not found in Pod {pod}")]
    NoContainer { container: String, pod: String },
}

/// How far the usage may be from its target before replicas change, as shares of one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tolerances {
    pub(super) down: f64,
    pub(super) up: f64,
}

impl Tolerances {
    fn contain(self, ratio: f64) -> bool {
        (1.0 - self.down..=1.0 + self.up).contains(&ratio)
    }
}

/// The measured usage of one pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sample {
    /// Time of the measurement.
    pub(super) at: Timestamp,
    /// Length of the measurement, in seconds.
    pub(super) window: i64,
    /// In thousandths.
    pub(super) value: i64,
}

/// Samples by the pod's name.
pub(super) type Samples = BTreeMap<String, Sample>;

/// The target of the average usage of pods.
#[derive(Debug, Clone)]
pub(super) enum TargetUse {
    /// Percent of the pods' requests (by name, in thousandths).
    Utilization(i32, BTreeMap<String, i64>),
    /// Thousandths.
    Value(i64),
}

/// The replicas that a metric proposes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Proposal {
    pub(super) replicas: i32,
    /// Percent of the requests, if the target is a utilization.
    pub(super) utilization: Option<i32>,
    /// Average or sum in thousandths, as the metric's status shows it.
    pub(super) usage: i64,
}

#[allow(clippy::cast_precision_loss, reason = "ratios of amounts, as upstream counts")]
pub(super) fn float(value: i64) -> f64 {
    value as f64
}

#[allow(clippy::cast_possible_truncation, reason = "casts of floats saturate")]
fn ceil(value: f64) -> i32 {
    value.ceil() as i32
}

#[allow(clippy::cast_possible_truncation, reason = "casts of floats saturate")]
fn ceil_wide(value: f64) -> i64 {
    value.ceil() as i64
}

fn count(length: usize) -> i64 {
    i64::try_from(length).unwrap_or(i64::MAX)
}

/// Pods by what is known about their usage.
#[derive(Debug, Default, PartialEq, Eq)]
struct Groups {
    ready: i64,
    unready: BTreeSet<String>,
    missing: BTreeSet<String>,
    ignored: BTreeSet<String>,
}

fn group(pods: &[Pod], samples: &Samples, startup: Option<Startup>, now: Timestamp) -> Groups {
    let mut groups = Groups::default();
    for pod in pods {
        let name = pod.metadata.name.clone().unwrap_or_default();
        if pod.metadata.deletion_timestamp.is_some() || pods::phase(pod) == "Failed" {
            groups.ignored.insert(name);
        } else if pods::phase(pod) == "Pending" {
            groups.unready.insert(name);
        } else if let Some(sample) = samples.get(&name) {
            if startup.is_some_and(|startup| is_unready(pod, sample, startup, now)) {
                groups.unready.insert(name);
            } else {
                groups.ready += 1;
            }
        } else {
            groups.missing.insert(name);
        }
    }
    groups
}

/// Whether a pod's CPU does not count yet: it is starting, or has never been ready.
fn is_unready(pod: &Pod, sample: &Sample, startup: Startup, now: Timestamp) -> bool {
    let started = pod.status.as_ref().and_then(|s| s.start_time.as_ref());
    let (Some(condition), Some(started)) = (pods::condition(pod, "Ready"), started) else {
        return true;
    };
    let started = started.0.as_second();
    let turned = condition.last_transition_time.as_ref().map_or(0, |t| t.0.as_second());
    if started + startup.cpu_initialization > now.as_second() {
        condition.status == "False" || sample.at.as_second() < turned + sample.window
    } else {
        condition.status == "False" && started + startup.initial_readiness > turned
    }
}

/// Returns the ratio to the target, the percentage of the requests, and the average.
fn ratio(samples: &Samples, aim: &TargetUse) -> Result<(f64, Option<i32>, i64), ReplicaError> {
    match aim {
        TargetUse::Utilization(percent, requests) => {
            let both: Vec<(i64, i64)> = samples
                .iter()
                .filter_map(|(name, sample)| Some((sample.value, *requests.get(name)?)))
                .collect();
            let used: i128 = both.iter().map(|(used, _)| i128::from(*used)).sum();
            let asked: i128 = both.iter().map(|(_, asked)| i128::from(*asked)).sum();
            if asked == 0 {
                return Err(ReplicaError::NoMatchingMetrics);
            }
            let now = i32::try_from(used * 100 / asked).unwrap_or(i32::MAX);
            let average = used / i128::from(count(both.len()).max(1));
            let ratio = f64::from(now) / f64::from(*percent);
            Ok((ratio, Some(now), i64::try_from(average).unwrap_or(i64::MAX)))
        }
        TargetUse::Value(aim) => {
            let used: i128 = samples.values().map(|s| i128::from(s.value)).sum();
            let average = used / i128::from(count(samples.len()).max(1));
            let average = i64::try_from(average).unwrap_or(i64::MAX);
            Ok((float(average) / float(*aim), None, average))
        }
    }
}

/// The replicas for a metric of the pods. With `startup` the metric is the pods' CPU, which counts
/// only once they have started.
///
/// # Errors
///
/// No pods, no samples of them, or samples that match no pod.
pub(super) fn of_pods(
    mut samples: Samples,
    pods: &[Pod],
    startup: Option<Startup>,
    aim: &TargetUse,
    current: i32,
    tolerances: Tolerances,
    now: Timestamp,
) -> Result<Proposal, ReplicaError> {
    if pods.is_empty() {
        return Err(ReplicaError::NoPods);
    }
    let groups = group(pods, &samples, startup, now);
    samples.retain(|name, _| !groups.ignored.contains(name) && !groups.unready.contains(name));
    if samples.is_empty() {
        return Err(ReplicaError::NoSamples);
    }
    let (first, utilization, usage) = ratio(&samples, aim)?;
    let proposal = |replicas| Ok(Proposal { replicas, utilization, usage });
    let up_with_unready = !groups.unready.is_empty() && first > 1.0;
    if !up_with_unready && groups.missing.is_empty() {
        if tolerances.contain(first) {
            return proposal(current);
        }
        return proposal(ceil(first * float(groups.ready)));
    }
    // Unknown usage is assumed to be what changes the number of replicas least.
    let assumed = |value| Sample { at: now, window: 0, value };
    for name in &groups.missing {
        let value = match aim {
            _ if first > 1.0 => 0,
            TargetUse::Utilization(percent, requests) => {
                let request = requests.get(name).copied().unwrap_or(0);
                request.saturating_mul(i64::from((*percent).max(100))) / 100
            }
            TargetUse::Value(value) => *value,
        };
        if first != 1.0 {
            samples.insert(name.clone(), assumed(value));
        }
    }
    if up_with_unready {
        samples.extend(groups.unready.iter().map(|name| (name.clone(), assumed(0))));
    }
    let (second, ..) = ratio(&samples, aim)?;
    let turned = (first < 1.0 && second > 1.0) || (first > 1.0 && second < 1.0);
    if tolerances.contain(second) || turned {
        return proposal(current);
    }
    let replicas = ceil(second * float(count(samples.len())));
    let against = (second < 1.0 && replicas > current) || (second > 1.0 && replicas < current);
    proposal(if against { current } else { replicas })
}

/// The replicas for a value that is compared as a whole, given the current replicas and the number
/// of ready pods.
pub(super) fn of_value(
    usage: i64,
    aim: i64,
    current: i32,
    pods: &[Pod],
    tolerances: Tolerances,
) -> Result<Proposal, ReplicaError> {
    let ratio = float(usage) / float(aim);
    let replicas = if current == 0 {
        ceil(ratio)
    } else if tolerances.contain(ratio) {
        current
    } else if pods.is_empty() {
        return Err(ReplicaError::NoReadyPods);
    } else {
        let ready = pods.iter().filter(|p| pods::phase(p) == "Running" && pods::is_ready(p));
        ceil(ratio * float(count(ready.count())))
    };
    Ok(Proposal { replicas, utilization: None, usage })
}

/// The replicas for a value that is divided by the pods; `current` is the current number of
/// replicas.
pub(super) fn of_value_per_pod(
    usage: i64,
    aim: i64,
    current: i32,
    tolerances: Tolerances,
) -> Proposal {
    let ratio = float(usage) / (float(aim) * f64::from(current));
    let replicas =
        if tolerances.contain(ratio) { current } else { ceil(float(usage) / float(aim)) };
    // Zero replicas have no share; the cast of infinity saturates.
    let part = if usage == 0 { 0 } else { ceil_wide(float(usage) / f64::from(current)) };
    Proposal { replicas, utilization: None, usage: part }
}

/// The request of each pod for a resource, in thousandths: of one container, of the pod when it has
/// pod-level requests, or of all its containers.
///
/// # Errors
///
/// A pod without the request or the container.
pub(super) fn requests(
    pods: &[Pod],
    container: Option<&str>,
    resource: &str,
) -> Result<BTreeMap<String, i64>, ReplicaError> {
    pods.iter()
        .map(|pod| {
            let name = pod.metadata.name.clone().unwrap_or_default();
            Ok((name, request(pod, container, resource)?))
        })
        .collect()
}

fn request(pod: &Pod, container: Option<&str>, resource: &str) -> Result<i64, ReplicaError> {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let Some(spec) = pod.spec.as_ref() else { return Ok(0) };
    let milli = |text: &str| Quantity::parse(text).map_or(0, |q| q.milli_value());
    let own = spec.resources.as_ref().and_then(|r| r.requests.as_ref());
    let own = own.filter(|all| {
        container.is_none()
            && all.keys().any(|k| k == "cpu" || k == "memory" || k.starts_with("hugepages-"))
    });
    if let Some(value) = own.and_then(|all| all.get(resource)) {
        return Ok(milli(&value.0));
    }
    let sidecars = spec.init_containers.iter().flatten();
    let sidecars = sidecars.filter(|c| c.restart_policy.as_deref() == Some("Always"));
    let mut sum = 0_i64;
    let mut found = false;
    for each in spec.containers.iter().chain(sidecars) {
        if container.is_some_and(|wanted| wanted != each.name) {
            continue;
        }
        let requests = each.resources.as_ref().and_then(|r| r.requests.as_ref());
        match requests.and_then(|all| all.get(resource)) {
            Some(value) => sum = sum.saturating_add(milli(&value.0)),
            // The containers of a pod with pod-level requests need no requests.
            None if own.is_some() => continue,
            None => {
                return Err(ReplicaError::MissingRequest {
                    resource: resource.to_owned(),
                    container: each.name.clone(),
                    pod: name.to_owned(),
                });
            }
        }
        found = true;
    }
    match container {
        Some(container) if !found => {
            Err(ReplicaError::NoContainer { container: container.to_owned(), pod: name.to_owned() })
        }
        None if own.is_some() && !found => Err(ReplicaError::MissingPodRequest {
            resource: resource.to_owned(),
            pod: name.to_owned(),
        }),
        _ => Ok(sum),
    }
}

#[cfg(test)]
#[path = "replicas/tests.rs"]
mod tests;
