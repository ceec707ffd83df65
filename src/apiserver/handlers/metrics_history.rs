//! `/v1-kube-lite/metrics-history`: CPU and memory of nodes and pods during the last hour. It is a
//! path of this server, not part of Kubernetes; RBAC allows it by `nonResourceURLs`.

use http::HeaderMap;
use http::Response;
use jiff::Timestamp;
use resource_metrics::Store;
use resource_metrics::history::{HistoryPoint, Series, Subject};
use serde_json::{Value, json};

use crate::request::Query;
use crate::request::body::Body;
use crate::response::encode;

/// The path.
pub(super) const PATH: &str = "/v1-kube-lite/metrics-history";

/// The series that the query selects: `node=NAME`, `namespace=NAME`, `pod=NAME`; all without them.
pub(super) fn serve(store: &Store, headers: &HeaderMap, query: &Query) -> Response<Body> {
    let given = |name: &str| query.get(name).filter(|value| !value.is_empty());
    let selected =
        Selected { node: given("node"), namespace: given("namespace"), pod: given("pod") };
    let items: Vec<Value> =
        store.history(|subject| selected.has(subject)).iter().map(series).collect();
    encode::plain_json(headers, query, &json!({"resolutionSeconds": 15, "items": items}))
}

/// The parameters of a request.
struct Selected<'a> {
    node: Option<&'a str>,
    namespace: Option<&'a str>,
    pod: Option<&'a str>,
}

impl Selected<'_> {
    /// Nodes are selected by `node` only, pods by the other parameters only.
    fn has(&self, subject: &Subject) -> bool {
        let of_pods = self.namespace.is_some() || self.pod.is_some();
        match subject {
            Subject::Node(name) => self.node.map_or(!of_pods, |wanted| wanted == name),
            Subject::Pod(pod) => {
                (of_pods || self.node.is_none())
                    && self.namespace.is_none_or(|wanted| wanted == pod.namespace)
                    && self.pod.is_none_or(|wanted| wanted == pod.name)
            }
        }
    }
}

/// One series: a point each 15 s up to `end`; `null` is a moment without a measurement.
fn series(series: &Series) -> Value {
    let end = Timestamp::from_second(series.last).unwrap_or(Timestamp::UNIX_EPOCH);
    let of = |value: fn(&HistoryPoint) -> u32| -> Vec<Option<u32>> {
        series.points.iter().map(|point| point.as_ref().map(value)).collect()
    };
    let mut out = json!({
        "end": end.to_string(),
        "cpuMicrocores": of(|point| point.cpu_micro),
        "memoryKiB": of(|point| point.memory_kib),
    });
    match &series.subject {
        Subject::Node(name) => out["node"] = name.as_str().into(),
        Subject::Pod(pod) => {
            out["namespace"] = pod.namespace.as_str().into();
            out["pod"] = pod.name.as_str().into();
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use resource_metrics::PodKey;

    use super::*;

    #[test]
    fn parameters_select_nodes_or_pods() {
        let node = Subject::Node("n".into());
        let pod = Subject::Pod(PodKey { namespace: "d".into(), name: "p".into() });
        let other = Subject::Pod(PodKey { namespace: "e".into(), name: "p".into() });
        for (node_given, namespace, pod_given, expected) in [
            (None, None, None, [true, true, true]),
            (Some("n"), None, None, [true, false, false]),
            (Some("m"), None, None, [false, false, false]),
            (None, Some("d"), None, [false, true, false]),
            (None, None, Some("p"), [false, true, true]),
            (Some("n"), Some("e"), Some("p"), [true, false, true]),
        ] {
            let selected = Selected { node: node_given, namespace, pod: pod_given };
            let found = [&node, &pod, &other].map(|subject| selected.has(subject));
            assert_eq!(found, expected, "{node_given:?} {namespace:?} {pod_given:?}");
        }
    }

    #[test]
    fn gaps_are_null() {
        let value = series(&Series {
            subject: Subject::Node("n".into()),
            last: 1_700_000_010,
            points: vec![Some(HistoryPoint::new(5_000_000, 8192)), None],
        });
        assert_eq!(
            value,
            json!({"node": "n", "end": "2023-11-14T22:13:30Z",
                "cpuMicrocores": [5000, null], "memoryKiB": [8, null]})
        );
    }
}
