//! CPU, memory and disks of node, pods and containers: `stats/summary` and `metrics/resource`.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::Arc;

use http::{Response, StatusCode};
use proto::runtime::v1 as cri;
use serde_json::{Value, json};

use super::{Api, Body, answer, text};
use crate::cgroups::GroupUsage;
use crate::machine::{self, Interface, MemoryUsage};
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
    layer_inodes: Option<u64>,
    cores_ns: Option<u64>,
    rss: Option<u64>,
    page_faults: Option<u64>,
    major_page_faults: Option<u64>,
    swap: Option<u64>,
}

/// What bounds the processes of the node, and what it has of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct ProcessLimits {
    max: Option<u64>,
    running: Option<u64>,
    /// Start of the machine in nanoseconds since the epoch.
    booted: i64,
}

impl ProcessLimits {
    fn parse(pid_max: &str, threads_max: &str, loadavg: &str, stat: &str) -> Self {
        let number = |text: &str| text.trim().parse::<u64>().ok();
        let of_load = loadavg.split_whitespace().nth(3).and_then(|f| f.split_once('/'));
        let booted =
            stat.lines().find_map(|l| l.strip_prefix("btime ")?.trim().parse::<i64>().ok());
        Self {
            max: number(pid_max).into_iter().chain(number(threads_max)).min(),
            running: of_load.and_then(|(_, total)| number(total)),
            booted: booted.unwrap_or_default().saturating_mul(1_000_000_000),
        }
    }
}

/// All that is measured at one moment.
struct Measured {
    containers: Vec<Sample>,
    pods: Vec<(Arc<Pod>, GroupUsage)>,
    /// Of all pods together.
    all_pods: Option<GroupUsage>,
    memory: MemoryUsage,
    interfaces: Vec<Interface>,
    limits: ProcessLimits,
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
        let used = |pod: Arc<Pod>| node.cgroups.pod_group(&pod).map(|usage| (pod, usage));
        let pods: Vec<_> = pods.into_iter().filter_map(used).collect();
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let limits = ProcessLimits::parse(
            &read("/proc/sys/kernel/pid_max"),
            &read("/proc/sys/kernel/threads-max"),
            &read("/proc/loadavg"),
            &read("/proc/stat"),
        );
        let memory = machine::memory_usage(&read("/proc/meminfo"), &read("/proc/vmstat"));
        let interfaces = machine::interfaces(&read("/proc/net/dev"));
        let node_cpu = node.cgroups.machine_cpu().unwrap_or_default();
        (pods, node.cgroups.all_pods(), node_cpu, memory, interfaces, limits)
    });
    let (pods, all_pods, node_cpu, memory, interfaces, limits) =
        of_cgroups.await.unwrap_or_default();
    let available = machine::memory_available().and_then(|a| u64::try_from(a).ok());
    let total = u64::try_from(api.node.machine.memory).unwrap_or_default();
    let memory_available = available.unwrap_or_default();
    Ok(Measured {
        containers: stats.into_iter().filter_map(|s| sample(s, &started)).collect(),
        pods,
        all_pods,
        memory,
        interfaces,
        limits,
        node_cpu,
        node_memory: total.saturating_sub(memory_available),
        memory_available,
        now: i64::try_from(base::clock::unix_time().as_nanos()).unwrap_or_default(),
    })
}

fn sample(stats: cri::ContainerStats, started: &HashMap<String, i64>) -> Option<Sample> {
    let attributes = stats.attributes?;
    let of = |name: &str| attributes.labels.get(name).cloned().unwrap_or_default();
    let (cpu, memory, layer) = (stats.cpu?, stats.memory?, stats.writable_layer);
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
        layer: layer.as_ref().and_then(|w| w.used_bytes).map_or(0, |v| v.value),
        layer_inodes: layer.and_then(|w| w.inodes_used).map(|v| v.value),
        cores_ns: cpu.usage_nano_cores.map(|v| v.value),
        rss: memory.rss_bytes.map(|v| v.value),
        page_faults: memory.page_faults.map(|v| v.value),
        major_page_faults: memory.major_page_faults.map(|v| v.value),
        swap: stats.swap.and_then(|s| s.swap_usage_bytes).map(|v| v.value),
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

/// Adds a field that has a value.
fn put(object: &mut Value, name: &str, value: Option<u64>) {
    if let Some(value) = value {
        object[name] = value.into();
    }
}

fn group_memory(at: i64, usage: &GroupUsage) -> Value {
    json!({"time": time(at), "usageBytes": usage.usage, "workingSetBytes": usage.working_set,
        "rssBytes": usage.rss, "pageFaults": usage.page_faults,
        "majorPageFaults": usage.major_page_faults})
}

fn swap(at: i64, used: u64) -> Value {
    json!({"time": time(at), "swapUsageBytes": used})
}

/// `NetworkStats`: all interfaces, and the first one in its own fields.
fn network(at: i64, all: &[Interface]) -> Option<Value> {
    let one = |i: &Interface| {
        json!({"name": i.name, "rxBytes": i.rx_bytes, "rxErrors": i.rx_errors,
            "txBytes": i.tx_bytes, "txErrors": i.tx_errors})
    };
    let mut out = one(all.iter().find(|i| i.name == "eth0").or_else(|| all.first())?);
    out["time"] = time(at).into();
    out["interfaces"] = all.iter().map(one).collect();
    Some(out)
}

fn container(s: &Sample, image_disk: &Value) -> Value {
    let mut cpu = cpu(s.time, s.cpu_ns);
    put(&mut cpu, "usageNanoCores", s.cores_ns);
    let mut memory = json!({"time": time(s.time), "workingSetBytes": s.working_set,
        "usageBytes": s.usage});
    put(&mut memory, "rssBytes", s.rss);
    put(&mut memory, "pageFaults", s.page_faults);
    put(&mut memory, "majorPageFaults", s.major_page_faults);
    let mut rootfs = json!({"time": time(s.time), "usedBytes": s.layer});
    for name in ["availableBytes", "capacityBytes", "inodes", "inodesFree"] {
        put(&mut rootfs, name, image_disk.get(name).and_then(Value::as_u64));
    }
    put(&mut rootfs, "inodesUsed", s.layer_inodes);
    let mut out = json!({"name": s.container, "startTime": time(s.started), "cpu": cpu,
        "memory": memory, "rootfs": rootfs});
    if let Some(used) = s.swap {
        out["swap"] = swap(s.time, used);
    }
    out
}

/// `NodeStats` without its file systems.
fn node_stats(name: &str, m: &Measured) -> Value {
    let mut out = json!({"nodeName": name, "startTime": time(m.limits.booted),
        "cpu": cpu(m.now, m.node_cpu),
        "memory": {"time": time(m.now), "availableBytes": m.memory_available,
            "usageBytes": m.memory.usage, "workingSetBytes": m.node_memory,
            "rssBytes": m.memory.rss, "pageFaults": m.memory.page_faults,
            "majorPageFaults": m.memory.major_page_faults},
        "swap": {"time": time(m.now), "swapAvailableBytes": m.memory.swap_free,
            "swapUsageBytes": m.memory.swap_total.saturating_sub(m.memory.swap_free)}});
    let mut rlimit = json!({"time": time(m.now)});
    put(&mut rlimit, "maxpid", m.limits.max);
    put(&mut rlimit, "curproc", m.limits.running);
    out["rlimit"] = rlimit;
    if let Some(network) = network(m.now, &m.interfaces) {
        out["network"] = network;
    }
    if let Some(usage) = &m.all_pods {
        out["systemContainers"] = json!([{"name": "pods", "startTime": time(m.limits.booted),
            "cpu": cpu(m.now, usage.cpu_ns), "memory": group_memory(m.now, usage)}]);
    }
    out
}

/// Summary API (`k8s.io/kubelet/pkg/apis/stats/v1alpha1`).
pub(super) async fn summary(api: &Api) -> Response<Body> {
    let measured = match measure(api).await {
        Ok(measured) => measured,
        Err(response) => return *response,
    };
    let (node, now) = (&api.node, measured.now);
    let image_disk = disk(&node.config.runtime.data_dir, now);
    let mut containers: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for s in &measured.containers {
        containers.entry(&s.uid).or_default().push(container(s, &image_disk));
    }
    let pods: Vec<Value> = measured
        .pods
        .iter()
        .map(|(pod, usage)| {
            let start = pod.api_status().and_then(|s| s.start_time.as_ref());
            let mut out = json!({
                "podRef": {"name": pod.name(), "namespace": pod.namespace(), "uid": &*pod.uid},
                "startTime": start.map(|t| t.0.to_string()),
                "containers": containers.remove(&*pod.uid).unwrap_or_default(),
                "cpu": cpu(now, usage.cpu_ns), "memory": group_memory(now, usage)});
            if let Some(used) = usage.swap {
                out["swap"] = swap(now, used);
            }
            if let Some(count) = usage.processes {
                out["process_stats"] = json!({"process_count": count});
            }
            out
        })
        .collect();
    let mut of_node = node_stats(&node.config.node_name, &measured);
    of_node["fs"] = disk(&node.config.root_dir, now);
    of_node["runtime"] = json!({"imageFs": image_disk, "containerFs": image_disk});
    let body = json!({"node": of_node, "pods": pods});
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
    for (p, usage) in &m.pods {
        let _ = writeln!(out, "{name}{} {} {now}", pod(p), seconds(usage.cpu_ns));
    }
    let name = "pod_memory_working_set_bytes";
    family(&mut out, name, "gauge", "Current working set of the pod in bytes");
    for (p, usage) in &m.pods {
        let _ = writeln!(out, "{name}{} {} {now}", pod(p), usage.working_set);
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
         # TYPE kubelet_node_name gauge\nkubelet_node_name{{node=\"{}\"}} 1\n{}{}",
        all.len(),
        api.node.config.node_name,
        api.node.operations.render(),
        api.node.status.render()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Sample {
        Sample {
            namespace: "d".into(),
            pod: "p".into(),
            uid: "u".into(),
            container: "c".into(),
            started: 1_700_000_000_500_000_000,
            time: 1_700_000_001_000_000_000,
            cpu_ns: 1_500_000_000,
            working_set: 42,
            usage: 50,
            layer: 12,
            layer_inodes: Some(3),
            cores_ns: Some(9),
            rss: Some(33),
            page_faults: Some(5),
            major_page_faults: Some(1),
            swap: None,
        }
    }

    fn measured() -> Measured {
        let pod = Arc::new(crate::pod::tests::pod(json!({"containers": []})));
        let usage = GroupUsage {
            cpu_ns: 2_000_000_000,
            usage: 60,
            working_set: 43,
            rss: 40,
            page_faults: 8,
            major_page_faults: 2,
            swap: Some(0),
            processes: Some(3),
        };
        Measured {
            containers: vec![sample()],
            pods: vec![(pod, usage)],
            all_pods: Some(usage),
            memory: MemoryUsage { usage: 70, rss: 45, page_faults: 90, ..MemoryUsage::default() },
            interfaces: machine::interfaces("eth0: 10 2 3 0 0 0 0 0 20 4 5 0 0 0 0 0"),
            limits: ProcessLimits::parse(
                "4194304\n",
                "30000\n",
                "0.1 0.1 0.1 2/345 9",
                "btime 1700000000",
            ),
            node_cpu: 3_000_000_000,
            node_memory: 44,
            memory_available: 0,
            now: 1_700_000_002_000_000_000,
        }
    }

    #[test]
    fn node_stats_have_every_field_that_clients_dereference() {
        let node = node_stats("n", &measured());
        for (path, expected) in [
            ("/nodeName", json!("n")),
            ("/startTime", json!("2023-11-14T22:13:20Z")),
            ("/cpu/usageCoreNanoSeconds", json!(3_000_000_000_u64)),
            ("/memory/rssBytes", json!(45)),
            ("/memory/usageBytes", json!(70)),
            ("/memory/workingSetBytes", json!(44)),
            ("/memory/pageFaults", json!(90)),
            ("/memory/majorPageFaults", json!(0)),
            ("/swap/swapUsageBytes", json!(0)),
            ("/rlimit/maxpid", json!(30_000)),
            ("/rlimit/curproc", json!(345)),
            ("/network/name", json!("eth0")),
            ("/network/interfaces/0/txErrors", json!(5)),
            ("/systemContainers/0/name", json!("pods")),
            ("/systemContainers/0/memory/rssBytes", json!(40)),
        ] {
            assert_eq!(node.pointer(path), Some(&expected), "{path} in {node}");
        }
    }

    #[test]
    fn container_stats_have_rss_faults_and_file_system() {
        let disk = json!({"availableBytes": 7, "capacityBytes": 8, "inodes": 9, "inodesFree": 6});
        let out = container(&sample(), &disk);
        for (path, expected) in [
            ("/cpu/usageNanoCores", 9),
            ("/memory/rssBytes", 33),
            ("/memory/majorPageFaults", 1),
            ("/rootfs/usedBytes", 12),
            ("/rootfs/availableBytes", 7),
            ("/rootfs/inodesUsed", 3),
        ] {
            assert_eq!(out.pointer(path), Some(&json!(expected)), "{path} in {out}");
        }
    }

    #[test]
    fn what_metrics_server_reads_is_there() {
        let text = render(&measured());
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
