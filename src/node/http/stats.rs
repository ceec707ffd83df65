//! CPU and memory of containers: `stats/summary` and `metrics/resource`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use http::{Response, StatusCode};
use proto::runtime::v1 as cri;
use serde_json::{Value, json};

use super::{Api, Body, answer, text};
use crate::observed::label;

struct Sample {
    namespace: String,
    pod: String,
    uid: String,
    container: String,
    time: String,
    cpu_ns: u64,
    working_set: u64,
    usage: u64,
}

async fn samples(api: &Api) -> Result<Vec<Sample>, Box<Response<Body>>> {
    let stats = api.node.runtime.stats().await;
    let stats = stats.map_err(|e| Box::new(text(StatusCode::INTERNAL_SERVER_ERROR, e.message)))?;
    Ok(stats.into_iter().filter_map(sample).collect())
}

fn sample(stats: cri::ContainerStats) -> Option<Sample> {
    let attributes = stats.attributes?;
    let of = |name: &str| attributes.labels.get(name).cloned().unwrap_or_default();
    let (cpu, memory) = (stats.cpu?, stats.memory?);
    let time = jiff::Timestamp::from_nanosecond(i128::from(cpu.timestamp)).ok()?;
    Some(Sample {
        namespace: of(label::POD_NAMESPACE),
        pod: of(label::POD_NAME),
        uid: of(label::POD_UID),
        container: of(label::CONTAINER_NAME),
        time: time.to_string(),
        cpu_ns: cpu.usage_core_nano_seconds.map_or(0, |v| v.value),
        working_set: memory.working_set_bytes.map_or(0, |v| v.value),
        usage: memory.usage_bytes.map_or(0, |v| v.value),
    })
}

/// Summary API.
pub(super) async fn summary(api: &Api) -> Response<Body> {
    let samples = match samples(api).await {
        Ok(samples) => samples,
        Err(response) => return *response,
    };
    let mut pods: BTreeMap<(String, String, String), Vec<Value>> = BTreeMap::new();
    for s in samples {
        let container = json!({"name": s.container, "cpu": {"time": s.time, "usageCoreNanoSeconds": s.cpu_ns},
            "memory": {"time": s.time, "workingSetBytes": s.working_set, "usageBytes": s.usage}});
        pods.entry((s.namespace, s.pod, s.uid)).or_default().push(container);
    }
    let pods: Vec<Value> = pods
        .into_iter()
        .map(|((namespace, name, uid), containers)| {
            json!({"podRef": {"name": name, "namespace": namespace, "uid": uid}, "containers": containers})
        })
        .collect();
    let body = json!({"node": {"nodeName": api.node.config.node_name}, "pods": pods});
    answer(StatusCode::OK, "application/json", body.to_string())
}

/// The metrics that metrics-server scrapes.
pub(super) async fn metrics(api: &Api) -> Response<Body> {
    let samples = match samples(api).await {
        Ok(samples) => samples,
        Err(response) => return *response,
    };
    let mut out = String::new();
    let of = |s: &Sample| {
        format!("{{container=\"{}\",namespace=\"{}\",pod=\"{}\"}}", s.container, s.namespace, s.pod)
    };
    out.push_str("# TYPE container_cpu_usage_seconds_total counter\n");
    for s in &samples {
        let _ =
            writeln!(out, "container_cpu_usage_seconds_total{} {}", of(s), s.cpu_ns as f64 / 1e9);
    }
    out.push_str("# TYPE container_memory_working_set_bytes gauge\n");
    for s in &samples {
        let _ = writeln!(out, "container_memory_working_set_bytes{} {}", of(s), s.working_set);
    }
    answer(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", out)
}

/// Metrics of the agent itself.
pub(super) fn own(api: &Api) -> String {
    let running = api.table.all().len();
    format!("# TYPE kubelet_running_pods gauge\nkubelet_running_pods {running}\n")
}
