//! CPU, memory and disks of node, pods and containers: `stats/summary` and `metrics/resource`.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::Arc;

use http::{Response, StatusCode};
use proto::runtime::v1 as cri;
use serde_json::{Value, json};

use super::{Api, Body, answer, text};
use crate::machine;
use crate::observed::label;
use crate::pod::Pod;

struct Sample {
    namespace: String,
    pod: String,
    uid: String,
    container: String,
    /// Start in nanoseconds since the epoch.
    started: i64,
    time: i64,
    cpu_ns: u64,
    working_set: u64,
    usage: u64,
    layer: u64,
}

/// All that is measured at one moment.
struct Measured {
    containers: Vec<Sample>,
    pods: Vec<(Arc<Pod>, u64, u64)>,
    node_cpu: u64,
    node_memory: u64,
    memory_available: u64,
    /// Nanoseconds since the epoch.
    now: i64,
}

fn time(nanoseconds: i64) -> String {
    jiff::Timestamp::from_nanosecond(i128::from(nanoseconds))
        .map(|t| t.to_string())
        .unwrap_or_default()
}

async fn measure(api: &Api) -> Result<Measured, Box<Response<Body>>> {
    let stats = api.node.runtime.stats().await;
    let stats = stats.map_err(|e| Box::new(text(StatusCode::INTERNAL_SERVER_ERROR, e.message)))?;
    let table = api.table.all();
    let mut started = HashMap::new();
    for (_, handle) in &table {
        let observed = Arc::clone(&handle.shown.lock().observed);
        started.extend(observed.containers.iter().map(|c| (c.id.clone(), c.started_at)));
    }
    let node = Arc::clone(&api.node);
    let pods: Vec<Arc<Pod>> = table.into_iter().map(|(pod, _)| pod).collect();
    let of_cgroups = base::tasks::blocking(move || {
        let used = |pod: Arc<Pod>| node.cgroups.pod_use(&pod).map(|(cpu, mem)| (pod, cpu, mem));
        let pods: Vec<_> = pods.into_iter().filter_map(used).collect();
        (pods, node.cgroups.machine_cpu().unwrap_or_default())
    });
    let (pods, node_cpu) = of_cgroups.await.unwrap_or_default();
    let available = machine::memory_available().and_then(|a| u64::try_from(a).ok());
    let total = u64::try_from(api.node.machine.memory).unwrap_or_default();
    let memory_available = available.unwrap_or_default();
    Ok(Measured {
        containers: stats.into_iter().filter_map(|s| sample(s, &started)).collect(),
        pods,
        node_cpu,
        node_memory: total.saturating_sub(memory_available),
        memory_available,
        now: i64::try_from(base::clock::unix_time().as_nanos()).unwrap_or_default(),
    })
}

fn sample(stats: cri::ContainerStats, started: &HashMap<String, i64>) -> Option<Sample> {
    let attributes = stats.attributes?;
    let of = |name: &str| attributes.labels.get(name).cloned().unwrap_or_default();
    let (cpu, memory) = (stats.cpu?, stats.memory?);
    Some(Sample {
        namespace: of(label::POD_NAMESPACE),
        pod: of(label::POD_NAME),
        uid: of(label::POD_UID),
        container: of(label::CONTAINER_NAME),
        started: started.get(&attributes.id).copied().unwrap_or_default(),
        time: cpu.timestamp,
        cpu_ns: cpu.usage_core_nano_seconds.map_or(0, |v| v.value),
        working_set: memory.working_set_bytes.map_or(0, |v| v.value),
        usage: memory.usage_bytes.map_or(0, |v| v.value),
        layer: stats.writable_layer.and_then(|w| w.used_bytes).map_or(0, |v| v.value),
    })
}

fn cpu(at: i64, nanoseconds: u64) -> Value {
    json!({"time": time(at), "usageCoreNanoSeconds": nanoseconds})
}

fn disk(path: &std::path::Path, at: i64) -> Value {
    let Some(disk) = machine::disk(path) else { return Value::Null };
    let mut out = json!({"time": time(at), "availableBytes": disk.free, "capacityBytes": disk.size,
        "usedBytes": disk.size.saturating_sub(disk.free)});
    if disk.inodes > 0 {
        out["inodes"] = disk.inodes.into();
        out["inodesFree"] = disk.inodes_free.into();
        out["inodesUsed"] = disk.inodes.saturating_sub(disk.inodes_free).into();
    }
    out
}

/// Summary API.
pub(super) async fn summary(api: &Api) -> Response<Body> {
    let measured = match measure(api).await {
        Ok(measured) => measured,
        Err(response) => return *response,
    };
    let (node, now) = (&api.node, measured.now);
    let mut containers: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for s in &measured.containers {
        let container = json!({"name": s.container, "startTime": time(s.started), "cpu": cpu(s.time, s.cpu_ns),
            "memory": {"time": time(s.time), "workingSetBytes": s.working_set, "usageBytes": s.usage},
            "rootfs": {"time": time(s.time), "usedBytes": s.layer}});
        containers.entry(&s.uid).or_default().push(container);
    }
    let pods: Vec<Value> = measured
        .pods
        .iter()
        .map(|(pod, cpu_ns, working_set)| {
            let start = pod.api_status().and_then(|s| s.start_time.as_ref());
            json!({"podRef": {"name": pod.name(), "namespace": pod.namespace(), "uid": &*pod.uid},
                "startTime": start.map(|t| t.0.to_string()),
                "containers": containers.remove(&*pod.uid).unwrap_or_default(),
                "cpu": cpu(now, *cpu_ns), "memory": {"time": time(now), "workingSetBytes": working_set}})
        })
        .collect();
    let body = json!({
        "node": {"nodeName": node.config.node_name, "cpu": cpu(now, measured.node_cpu),
            "memory": {"time": time(now), "availableBytes": measured.memory_available,
                "usageBytes": measured.node_memory, "workingSetBytes": measured.node_memory},
            "fs": disk(&node.config.root_dir, now),
            "runtime": {"imageFs": disk(&node.config.runtime.data_dir, now)}},
        "pods": pods,
    });
    answer(StatusCode::OK, "application/json", body.to_string())
}

/// The metrics that metrics-server scrapes.
pub(super) async fn metrics(api: &Api) -> Response<Body> {
    let measured = match measure(api).await {
        Ok(measured) => measured,
        Err(response) => return *response,
    };
    answer(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", render(&measured))
}

fn render(m: &Measured) -> String {
    let mut out = String::new();
    let container = |s: &Sample| {
        format!("{{container=\"{}\",namespace=\"{}\",pod=\"{}\"}}", s.container, s.namespace, s.pod)
    };
    let pod = |p: &Pod| format!("{{namespace=\"{}\",pod=\"{}\"}}", p.namespace(), p.name());
    let seconds = |nanoseconds: u64| nanoseconds as f64 / 1e9;
    let (now, milli) = (m.now / 1_000_000, |t: i64| t / 1_000_000);
    let family = |out: &mut String, name: &str, kind: &str, help: &str| {
        let _ = write!(out, "# HELP {name} [STABLE] {help}\n# TYPE {name} {kind}\n");
    };
    let name = "container_cpu_usage_seconds_total";
    family(
        &mut out,
        name,
        "counter",
        "Cumulative cpu time consumed by the container in core-seconds",
    );
    for s in &m.containers {
        let _ = writeln!(out, "{name}{} {} {}", container(s), seconds(s.cpu_ns), milli(s.time));
    }
    let name = "container_memory_working_set_bytes";
    family(&mut out, name, "gauge", "Current working set of the container in bytes");
    for s in &m.containers {
        let _ = writeln!(out, "{name}{} {} {}", container(s), s.working_set, milli(s.time));
    }
    let name = "container_start_time_seconds";
    family(&mut out, name, "gauge", "Start time of the container since unix epoch in seconds");
    for s in m.containers.iter().filter(|s| s.started > 0) {
        let _ = writeln!(out, "{name}{} {}", container(s), s.started as f64 / 1e9);
    }
    let name = "node_cpu_usage_seconds_total";
    family(&mut out, name, "counter", "Cumulative cpu time consumed by the node in core-seconds");
    let _ = writeln!(out, "{name} {} {now}", seconds(m.node_cpu));
    let name = "node_memory_working_set_bytes";
    family(&mut out, name, "gauge", "Current working set of the node in bytes");
    let _ = writeln!(out, "{name} {} {now}", m.node_memory);
    let name = "pod_cpu_usage_seconds_total";
    family(&mut out, name, "counter", "Cumulative cpu time consumed by the pod in core-seconds");
    for (p, cpu, _) in &m.pods {
        let _ = writeln!(out, "{name}{} {} {now}", pod(p), seconds(*cpu));
    }
    let name = "pod_memory_working_set_bytes";
    family(&mut out, name, "gauge", "Current working set of the pod in bytes");
    for (p, _, working_set) in &m.pods {
        let _ = writeln!(out, "{name}{} {working_set} {now}", pod(p));
    }
    let name = "resource_scrape_error";
    family(
        &mut out,
        name,
        "gauge",
        "1 if there was an error while getting container metrics, 0 otherwise",
    );
    let _ = writeln!(out, "{name} 0");
    out
}

/// Metrics of the agent itself.
pub(super) fn own(api: &Api) -> String {
    let all = api.table.all();
    let running = |h: &Arc<crate::worker::Handle>| {
        let observed = Arc::clone(&h.shown.lock().observed);
        observed.containers.iter().filter(|c| c.state == crate::observed::State::Running).count()
    };
    let containers: usize = all.iter().map(|(_, h)| running(h)).sum();
    format!(
        "# TYPE kubelet_running_pods gauge\nkubelet_running_pods {}\n\
         # TYPE kubelet_running_containers gauge\nkubelet_running_containers{{container_state=\"running\"}} {containers}\n\
         # TYPE kubelet_node_name gauge\nkubelet_node_name{{node=\"{}\"}} 1\n{}",
        all.len(),
        api.node.config.node_name,
        api.node.operations.render()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_metrics_server_reads_is_there() {
        let sample = Sample {
            namespace: "d".into(),
            pod: "p".into(),
            uid: "u".into(),
            container: "c".into(),
            started: 1_700_000_000_500_000_000,
            time: 1_700_000_001_000_000_000,
            cpu_ns: 1_500_000_000,
            working_set: 42,
            usage: 50,
            layer: 0,
        };
        let pod = Arc::new(crate::pod::tests::pod(json!({"containers": []})));
        let text = render(&Measured {
            containers: vec![sample],
            pods: vec![(pod, 2_000_000_000, 43)],
            node_cpu: 3_000_000_000,
            node_memory: 44,
            memory_available: 0,
            now: 1_700_000_002_000_000_000,
        });
        for line in [
            "container_cpu_usage_seconds_total{container=\"c\",namespace=\"d\",pod=\"p\"} 1.5 1700000001000",
            "container_memory_working_set_bytes{container=\"c\",namespace=\"d\",pod=\"p\"} 42 1700000001000",
            "container_start_time_seconds{container=\"c\",namespace=\"d\",pod=\"p\"} 1700000000.5",
            "node_cpu_usage_seconds_total 3 1700000002000",
            "node_memory_working_set_bytes 44 1700000002000",
            "pod_cpu_usage_seconds_total{namespace=\"d\",pod=\"p\"} 2 1700000002000",
            "pod_memory_working_set_bytes{namespace=\"d\",pod=\"p\"} 43 1700000002000",
            "resource_scrape_error 0",
        ] {
            assert!(text.lines().any(|l| l == line), "no {line} in {text}");
        }
    }
}
