//! Clients of the three metrics APIs: `metrics.k8s.io`, `custom.metrics.k8s.io` and
//! `external.metrics.k8s.io`, which other servers serve through the aggregation layer.

use std::time::Duration;

use api::Quantity;
use api::codec::time::parse_duration;
use api::k8s::api::autoscaling::v2::{CrossVersionObjectReference, MetricIdentifier};
use api::k8s::jiff::Timestamp;
use api::selector::LabelSelector;
use api::uri::escaped;
use bytes::Bytes;
use client::{Client, Error};
use http::Method;
use serde_json::Value;

use super::replicas::{Sample, Samples};
use super::target::{self, DiscoveryError, ResourcePath};

/// Window, in seconds, of a metric without `windowSeconds`.
const DEFAULT_WINDOW: i64 = 60;
/// Time limit of a request for metrics: two sync periods, so that a server that hangs does not
/// block a worker forever.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// Reads metrics under the autoscaler's account.
pub(super) struct MetricsClient<'a> {
    pub(super) client: &'a Client,
    pub(super) namespace: &'a str,
}

/// Why a metrics API returned no value; the texts are upstream's.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum MetricsError {
    /// The request failed, or the server did not answer in time.
    #[error("unable to fetch metrics from {api} metrics API: {source}")]
    Fetch { api: &'static str, source: Error },
    #[error("no metrics returned from {api} metrics API")]
    Empty { api: &'static str },
    /// No server is registered for `custom.metrics.k8s.io`.
    #[error(
        "unable to fetch metrics from custom metrics API: no custom metrics API \
         (custom.metrics.k8s.io) registered: {0}"
    )]
    NotRegistered(#[source] DiscoveryError),
    /// The resource of the described object is unknown.
    #[error("unable to fetch metrics from custom metrics API: {0}")]
    DescribedObject(#[source] DiscoveryError),
    /// `metric` is namespace, name and selector.
    #[error("unable to get external metric {metric}: {source}")]
    External { metric: String, source: Box<MetricsError> },
    /// The selector of the metric is invalid.
    #[error(transparent)]
    Selector(#[from] SelectorError),
}

/// A selector of a metric that cannot be converted to text.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub(super) struct SelectorError(String);

async fn read(client: &Client, path: &str, api: &'static str) -> Result<Value, MetricsError> {
    let request = client.request(Method::GET, path, "application/json", Bytes::new());
    let response = tokio::time::timeout(ANSWER_MAX, request).await.unwrap_or_else(|_| {
        Err(Error::Transport(format!("no answer within {} s", ANSWER_MAX.as_secs())))
    });
    let value = response.and_then(|body| Ok(serde_json::from_slice(&body)?));
    value.map_err(|source| MetricsError::Fetch { api, source })
}

/// Formats a selector for a query.
fn selector_text(
    selector: Option<&api::k8s::apimachinery::pkg::apis::meta::v1::LabelSelector>,
) -> Result<String, SelectorError> {
    // A missing selector is upstream's "nothing", which its clients send as an empty text, which
    // selects everything.
    let Some(selector) = selector else { return Ok(String::new()) };
    let value = serde_json::to_value(selector).map_err(|e| SelectorError(e.to_string()))?;
    let parsed = LabelSelector::from_value(Some(&value));
    parsed.map(|s| s.to_string()).map_err(|e| SelectorError(e.to_string()))
}

fn items(list: &Value) -> &[Value] {
    list["items"].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn time(value: &Value) -> Timestamp {
    value.as_str().and_then(|t| t.parse().ok()).unwrap_or(Timestamp::UNIX_EPOCH)
}

fn milli(value: &Value) -> i64 {
    Quantity::from_value(value).map_or(0, |q| q.milli_value())
}

/// Converts a list of `PodMetrics` to the usage of a resource; omits a pod without the usage of one
/// of its containers.
fn of_resource(list: &Value, resource: &str, container: Option<&str>) -> Samples {
    let samples = items(list).iter().filter_map(|pod| {
        let containers = pod["containers"].as_array().filter(|all| !all.is_empty())?;
        let usage = |c: &Value| c["usage"].get(resource).map(milli);
        let value = match container {
            Some(name) => usage(containers.iter().find(|c| c["name"] == *name)?)?,
            None => {
                containers.iter().try_fold(0_i64, |sum, c| Some(sum.saturating_add(usage(c)?)))?
            }
        };
        let window = pod["window"].as_str().and_then(|w| parse_duration(w).ok()).unwrap_or(0);
        let sample = Sample { at: time(&pod["timestamp"]), window: window / 1_000_000_000, value };
        Some((pod["metadata"]["name"].as_str()?.to_owned(), sample))
    });
    samples.collect()
}

/// Converts a list of `MetricValue` to the values of the described objects.
fn of_objects(list: &Value) -> Samples {
    let samples = items(list).iter().filter_map(|item| {
        let sample = Sample {
            at: time(&item["timestamp"]),
            window: item["windowSeconds"].as_i64().unwrap_or(DEFAULT_WINDOW),
            value: milli(&item["value"]),
        };
        Some((item["describedObject"]["name"].as_str()?.to_owned(), sample))
    });
    samples.collect()
}

impl MetricsClient<'_> {
    /// Returns how much of a resource the selected pods use: all their containers, or one.
    pub(super) async fn resource(
        &self,
        resource: &str,
        container: Option<&str>,
        selector: &str,
    ) -> Result<Samples, MetricsError> {
        let path = format!(
            "/apis/metrics.k8s.io/v1beta1/namespaces/{}/pods?labelSelector={}",
            self.namespace,
            escaped(selector)
        );
        let list = read(self.client, &path, "resource").await?;
        if items(&list).is_empty() {
            return Err(MetricsError::Empty { api: "resource" });
        }
        Ok(of_resource(&list, resource, container))
    }

    async fn custom(
        &self,
        path: &str,
        metric: &MetricIdentifier,
        pods: &str,
    ) -> Result<Value, MetricsError> {
        let version = target::version(self.client, "custom.metrics.k8s.io")
            .await
            .map_err(MetricsError::NotRegistered)?;
        let mut path = format!(
            "/apis/custom.metrics.k8s.io/{version}/namespaces/{}/{path}/{}?metricLabelSelector={}",
            self.namespace,
            escaped(&metric.name),
            escaped(&selector_text(metric.selector.as_ref())?)
        );
        if !pods.is_empty() {
            path.push_str(&format!("&labelSelector={}", escaped(pods)));
        }
        let list = read(self.client, &path, "custom").await?;
        if items(&list).is_empty() {
            return Err(MetricsError::Empty { api: "custom" });
        }
        Ok(list)
    }

    /// A metric of the selected pods.
    pub(super) async fn pods(
        &self,
        metric: &MetricIdentifier,
        selector: &str,
    ) -> Result<Samples, MetricsError> {
        Ok(of_objects(&self.custom("pods/*", metric, selector).await?))
    }

    /// A metric of one object, in thousandths.
    pub(super) async fn object(
        &self,
        metric: &MetricIdentifier,
        object: &CrossVersionObjectReference,
    ) -> Result<i64, MetricsError> {
        let group =
            object.api_version.as_deref().and_then(|v| v.split_once('/')).map_or("", |(g, _)| g);
        let path = if group.is_empty() && object.kind == "Namespace" {
            "metrics".to_owned()
        } else {
            let found = target::find(
                self.client,
                object.api_version.as_deref().unwrap_or("v1"),
                &object.kind,
            );
            let ResourcePath { resource, .. } =
                found.await.map_err(MetricsError::DescribedObject)?;
            let dot = if group.is_empty() { "" } else { "." };
            format!("{resource}{dot}{group}/{}", object.name)
        };
        let list = self.custom(&path, metric, "").await?;
        Ok(items(&list).first().map_or(0, |item| milli(&item["value"])))
    }

    /// The sum of an external metric, in thousandths.
    pub(super) async fn external(&self, metric: &MetricIdentifier) -> Result<i64, MetricsError> {
        let unable = |error: MetricsError| MetricsError::External {
            metric: format!("{}/{}/{}", self.namespace, metric.name, go_selector(metric)),
            source: Box::new(error),
        };
        let path = format!(
            "/apis/external.metrics.k8s.io/v1beta1/namespaces/{}/{}?labelSelector={}",
            self.namespace,
            escaped(&metric.name),
            escaped(&selector_text(metric.selector.as_ref())?)
        );
        let list = read(self.client, &path, "external").await.map_err(unable)?;
        if items(&list).is_empty() {
            return Err(unable(MetricsError::Empty { api: "external" }));
        }
        Ok(items(&list).iter().fold(0_i64, |sum, item| sum.saturating_add(milli(&item["value"]))))
    }
}

/// Formats a metric's selector as Go does in upstream's messages.
pub(super) fn go_selector(metric: &MetricIdentifier) -> String {
    let Some(selector) = &metric.selector else { return "nil".to_owned() };
    let labels: Vec<String> =
        selector.match_labels.iter().flatten().map(|(k, v)| format!("{k}: {v},")).collect();
    let terms: Vec<String> = selector
        .match_expressions
        .iter()
        .flatten()
        .map(|e| {
            let values = e.values.iter().flatten().cloned().collect::<Vec<_>>().join(" ");
            format!("{{{} {} [{values}]}}", e.key, e.operator)
        })
        .collect();
    format!(
        "&LabelSelector{{MatchLabels:map[string]string{{{}}},\
         MatchExpressions:[]LabelSelectorRequirement{{{}}},}}",
        labels.join(""),
        terms.join(",")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn usage_of_a_pod_is_the_sum_of_its_containers() {
        let list = json!({"items": [
            {"metadata": {"name": "a"}, "timestamp": "2026-01-01T00:00:10Z", "window": "20.5s",
             "containers": [{"name": "x", "usage": {"cpu": "150m"}},
                 {"name": "y", "usage": {"cpu": "50000u", "memory": "1Ki"}}]},
            {"metadata": {"name": "b"}, "timestamp": "2026-01-01T00:00:10Z", "window": "20s",
                "containers": []},
        ]});
        let all = of_resource(&list, "cpu", None);
        assert_eq!(all.len(), 1, "a pod without containers has no usage");
        assert_eq!(
            (all["a"].value, all["a"].window, all["a"].at.as_second()),
            (200, 20, 1_767_225_610)
        );
        assert_eq!(of_resource(&list, "cpu", Some("y"))["a"].value, 50);
        assert!(of_resource(&list, "memory", None).is_empty(), "one container of two has no value");
    }

    #[test]
    fn selectors_are_formatted_for_queries_and_messages() {
        let metric: MetricIdentifier = serde_json::from_value(
            json!({"name": "s0", "selector": {"matchLabels": {"a/b": "c"}}}),
        )
        .unwrap();
        assert_eq!(escaped(&selector_text(metric.selector.as_ref()).unwrap()), "a%2Fb%3Dc");
        assert_eq!(
            go_selector(&metric),
            "&LabelSelector{MatchLabels:map[string]string{a/b: \
                c,},MatchExpressions:[]LabelSelectorRequirement{},}"
        );
        assert_eq!(selector_text(None).unwrap(), "");
    }
}
