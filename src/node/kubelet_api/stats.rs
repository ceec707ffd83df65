//! CPU, memory and disks of node, pods and containers: `stats/summary` and `metrics/resource`.

pub(super) mod cache;
mod cadvisor;
mod claims;
mod cpu_rates;
mod disk_usage;
mod document;
mod file_systems;
mod metrics;
mod process;
mod resources;
mod samples;
mod storage;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use http::{Response, StatusCode};
use proto::runtime::v1 as cri;
use serde_json::{Value, json};

use self::cpu_rates::CpuRates;
use self::process::Process;
use self::samples::{ContainerSample, NodeSample, PodSample, ProcessLimits, SystemContainer};
use self::storage::Storage;
use super::response::{Body, response, text_response};
use super::state::KubeletApi;
use crate::cgroups::{GroupPressure, Psi, PsiData};
use crate::context::Node;
use crate::machine::{self, Interface};
use crate::pods::observed::{ObservedPod, ObservedState, label};
use crate::pods::pod::Pod;

pub(crate) use self::disk_usage::measure_now;
pub(super) use self::metrics::agent_metrics;
pub(crate) use self::resources::NodeResources;

async fn measure(api: &KubeletApi) -> Result<NodeSample, Box<Response<Body>>> {
    let stats = api.node.runtime.cri.stats().await;
    let stats =
        stats.map_err(|e| Box::new(text_response(StatusCode::INTERNAL_SERVER_ERROR, e.message)))?;
    let observed = |handle: &Arc<crate::pods::handle::WorkerHandle>| {
        Arc::clone(&handle.reported.lock().observed)
    };
    let pods: Vec<_> = api.table.all().iter().map(|(p, h)| (Arc::clone(p), observed(h))).collect();
    let mut made = HashMap::new();
    for (_, observed) in &pods {
        made.extend(observed.containers.iter().map(|c| (c.id.clone(), (c.created_at, c.state))));
    }
    let running = |id: &str| made.get(id).is_none_or(|(_, state)| *state != ObservedState::Exited);
    let mut containers: Vec<ContainerSample> =
        stats.into_iter().filter_map(sample).filter(|s| running(&s.id)).collect();
    for container in &mut containers {
        container.started = made.get(&container.id).map(|(at, _)| *at).unwrap_or_default();
    }
    let node = Arc::clone(&api.node);
    let measured = base::tasks::blocking(move || groups(&node, pods, containers)).await;
    let mut measured = measured.unwrap_or_default();
    add_rates(&mut measured, &api.stats.rates);
    Ok(measured)
}

/// Reads cgroups and `/proc`.
fn groups(
    node: &Node,
    pods: Vec<(Arc<Pod>, Arc<ObservedPod>)>,
    mut containers: Vec<ContainerSample>,
) -> NodeSample {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let limits = ProcessLimits::parse(
        &read("/proc/sys/kernel/pid_max"),
        &read("/proc/sys/kernel/threads-max"),
        &read("/proc/loadavg"),
        &read("/proc/stat"),
    );
    let mut samples = Vec::with_capacity(pods.len());
    for (pod, observed) in pods {
        let Some(usage) = node.runtime.cgroups.pod_group(&pod) else { continue };
        for container in containers.iter_mut().filter(|c| *c.uid == *pod.uid) {
            if let Some(group) = node.runtime.cgroups.container_group(&pod, &container.id) {
                container.complete(&group);
            }
        }
        samples.push(PodSample { pod, observed, usage, cores_ns: None });
    }
    let available = machine::memory_available().and_then(|a| u64::try_from(a).ok());
    let total = u64::try_from(node.identity.machine.memory).unwrap_or_default();
    let memory_available = available.unwrap_or_default();
    NodeSample {
        containers,
        pods: samples,
        system: system_containers(node, limits.booted),
        memory: machine::memory_usage(&read("/proc/meminfo"), &read("/proc/vmstat")),
        interfaces: machine::interfaces(&read("/proc/net/dev")),
        limits,
        pressure: node.runtime.cgroups.machine_pressure(),
        node_cpu: node.runtime.cgroups.machine_cpu().unwrap_or_default(),
        node_cores_ns: None,
        node_memory: total.saturating_sub(memory_available),
        memory_available,
        now: i64::try_from(base::clock::unix_time().as_nanos()).unwrap_or_default(),
    }
}

/// The system containers: the agent, the runtime, and all pods together.
fn system_containers(node: &Node, booted: i64) -> Vec<SystemContainer> {
    let of = |name, process: Process| SystemContainer {
        name,
        started: process.started,
        usage: process.usage,
        cores_ns: None,
    };
    let socket = node.identity.config.runtime.socket();
    let process = |pid| Process::read(pid, booted, &node.runtime.cgroups);
    let own = process(std::process::id()).map(|p| of("kubelet", p));
    let runtime = process::listener(&socket).and_then(process).map(|p| of("runtime", p));
    let pods = node.runtime.cgroups.all_pods().map(|usage| SystemContainer {
        name: "pods",
        started: booted,
        usage,
        cores_ns: None,
    });
    [own, runtime, pods].into_iter().flatten().collect()
}

/// Adds the CPU rates since the previous samples.
fn add_rates(m: &mut NodeSample, rates: &CpuRates) {
    let now = m.now;
    m.node_cores_ns = rates.rate("node", now, m.node_cpu);
    for system in &mut m.system {
        system.cores_ns = rates.rate(system.name, now, system.usage.cpu_ns);
    }
    for pod in &mut m.pods {
        pod.cores_ns = rates.rate(&format!("pod/{}", pod.pod.uid), now, pod.usage.cpu_ns);
    }
    for container in &mut m.containers {
        let key = format!("container/{}", container.id);
        let rate = rates.rate(&key, container.time, container.cpu_ns);
        container.cores_ns = container.cores_ns.or(rate);
    }
    rates.prune(now);
}

fn psi(stats: Option<cri::PsiStats>) -> Option<Psi> {
    let data = |data: Option<cri::PsiData>| {
        let data = data.unwrap_or_default();
        PsiData { avg10: data.avg10, avg60: data.avg60, avg300: data.avg300, total: data.total }
    };
    stats.map(|stats| Psi { some: data(stats.some), full: data(stats.full) })
}

fn sample(stats: cri::ContainerStats) -> Option<ContainerSample> {
    let attributes = stats.attributes?;
    let of = |name: &str| attributes.labels.get(name).cloned().unwrap_or_default();
    let (cpu, memory, layer) = (stats.cpu?, stats.memory?, stats.writable_layer);
    let value = |v: Option<cri::UInt64Value>| v.map(|v| v.value);
    Some(ContainerSample {
        namespace: of(label::POD_NAMESPACE),
        pod: of(label::POD_NAME),
        uid: of(label::POD_UID),
        container: of(label::CONTAINER_NAME),
        started: 0,
        time: cpu.timestamp,
        cpu_ns: value(cpu.usage_core_nano_seconds).unwrap_or(0),
        working_set: value(memory.working_set_bytes).unwrap_or(0),
        usage: value(memory.usage_bytes).unwrap_or(0),
        available: value(memory.available_bytes),
        layer: layer.as_ref().and_then(|w| value(w.used_bytes)).unwrap_or(0),
        layer_inodes: layer.and_then(|w| value(w.inodes_used)),
        cores_ns: value(cpu.usage_nano_cores),
        rss: value(memory.rss_bytes),
        page_faults: value(memory.page_faults),
        major_page_faults: value(memory.major_page_faults),
        swap: stats.swap.and_then(|s| value(s.swap_usage_bytes)),
        swap_available: stats.swap.and_then(|s| value(s.swap_available_bytes)),
        pressure: GroupPressure {
            cpu: psi(cpu.psi),
            memory: psi(memory.psi),
            io: stats.io.and_then(|io| psi(io.psi)),
        },
        id: attributes.id,
    })
}

/// Details of a pod that only the summary shows.
#[derive(Debug, Default)]
struct Details {
    processes: usize,
    interfaces: Vec<Interface>,
    storage: Storage,
}

/// Details of the measured pods, in their order.
async fn details(api: &KubeletApi, m: &NodeSample) -> Vec<Details> {
    let usage = claims::usage(api).await;
    // The semaphore is never closed.
    let Ok(_walking) = api.stats.walking.acquire().await else { return Vec::new() };
    let (node, disks) = (Arc::clone(&api.node), Arc::clone(&api.stats.disks));
    let now = (base::clock::now(), m.now);
    let layers = |pod: &Pod| {
        let own = m.containers.iter().filter(|c| *c.uid == *pod.uid);
        own.map(|c| (c.layer, c.layer_inodes)).collect::<Vec<_>>()
    };
    let pods: Vec<_> = m.pods.iter().map(|p| (Arc::clone(&p.pod), layers(&p.pod))).collect();
    let measured = base::tasks::blocking(move || {
        let of = |(pod, layers): (Arc<Pod>, Vec<_>)| {
            let processes = node.runtime.cgroups.pod_processes(&pod);
            // All processes share the network namespace; the first ones may be exiting.
            let network = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/net/dev")).ok();
            let network = processes.iter().take(8).find_map(network).unwrap_or_default();
            Details {
                processes: processes.len(),
                interfaces: machine::interfaces(&network),
                storage: storage::measure(
                    &node.identity.config,
                    &disks,
                    &pod,
                    usage.get(&*pod.uid),
                    &layers,
                    now,
                ),
            }
        };
        let all = pods.into_iter().map(of).collect();
        disks.prune(now.0);
        all
    });
    measured.await.unwrap_or_default()
}

/// `PodStats`.
fn pod_stats(m: &NodeSample, p: &PodSample, details: Details, mut containers: Vec<Value>) -> Value {
    let (pod, now) = (&p.pod, m.now);
    for container in &mut containers {
        let name = container["name"].as_str().unwrap_or_default();
        if let Some(logs) = details.storage.logs.get(name).cloned() {
            container["logs"] = logs;
        }
    }
    let created = p.observed.sandboxes.first().map(|s| s.created_at).unwrap_or_default();
    let mut out = json!({
        "podRef": {"name": pod.name(), "namespace": pod.namespace(), "uid": &*pod.uid},
        "startTime": document::time(created),
        "containers": containers,
        "process_stats": {"process_count": details.processes},
        "ephemeral-storage": details.storage.ephemeral,
    });
    document::add_group(&mut out, now, &p.usage, p.cores_ns);
    if let Some(network) = document::network(now, &details.interfaces) {
        out["network"] = network;
    }
    if !details.storage.volumes.is_empty() {
        out["volume"] = details.storage.volumes.into();
    }
    out
}

/// Summary API (`k8s.io/kubelet/pkg/apis/stats/v1alpha1`).
pub(super) async fn summary(api: &KubeletApi) -> Response<Body> {
    let measured = match measure(api).await {
        Ok(measured) => measured,
        Err(response) => return *response,
    };
    let (node, now) = (&api.node, measured.now);
    let image_disk = machine::disk(&node.identity.config.runtime.data_dir);
    let mut containers: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for s in &measured.containers {
        containers.entry(&s.uid).or_default().push(document::container(s, image_disk));
    }
    let mut details = details(api, &measured).await.into_iter();
    let pods: Vec<Value> = measured
        .pods
        .iter()
        .map(|p| {
            let own = containers.remove(&*p.pod.uid).unwrap_or_default();
            pod_stats(&measured, p, details.next().unwrap_or_default(), own)
        })
        .collect();
    let mut of_node = document::node(&node.identity.config.node_name, &measured);
    let root_disk = machine::disk(&node.identity.config.root_dir);
    of_node["fs"] = document::whole_file_system(now, root_disk);
    let mut image_fs = document::whole_file_system(now, image_disk);
    if let Ok(images) = node.runtime.cri.image_file_systems().await {
        image_fs["usedBytes"] = images.bytes.into();
    }
    of_node["runtime"] = json!({"imageFs": image_fs, "containerFs": image_fs});
    let body = json!({"node": of_node, "pods": pods});
    response(StatusCode::OK, "application/json", body.to_string())
}

/// Serves cAdvisor's metrics of cgroups.
pub(super) async fn cadvisor_metrics(api: &KubeletApi) -> Response<Body> {
    let (node, pods) = (Arc::clone(&api.node), cadvisor::observed(&api.table));
    match base::tasks::blocking(move || cadvisor::page(&node, &pods)).await {
        Ok(text) => response(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text),
        Err(error) => text_response(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

/// Serves the metrics that metrics-server scrapes.
pub(super) async fn resource_metrics(api: &KubeletApi) -> Response<Body> {
    let measured = match resources::measure(&api.node, &api.table).await {
        Ok(measured) => measured,
        Err(error) => {
            return text_response(StatusCode::INTERNAL_SERVER_ERROR, error.to_string());
        }
    };
    let text = metrics::render(&measured);
    response(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text)
}
