//! Metrics in the Prometheus text format: `metrics/resource` and the agent's own at `metrics`.

use std::fmt::Write as _;
use std::sync::Arc;

use super::samples::{ContainerSample, NodeSample, PodSample};
use crate::kubelet_api::state::KubeletApi;
use crate::pods::pod::Pod;

pub(super) fn render(m: &NodeSample) -> String {
    let mut out = String::new();
    let container = |s: &ContainerSample| {
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
    for PodSample { pod: p, usage, .. } in &m.pods {
        let _ = writeln!(out, "{name}{} {} {now}", pod(p), seconds(usage.cpu_ns));
    }
    let name = "pod_memory_working_set_bytes";
    family(&mut out, name, "gauge", "Current working set of the pod in bytes");
    for PodSample { pod: p, usage, .. } in &m.pods {
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

/// Metrics of the agent itself and of the pod network.
pub(crate) async fn agent_metrics(api: &KubeletApi) -> String {
    let all = api.table.all();
    let running = |h: &Arc<crate::pods::handle::WorkerHandle>| {
        let observed = Arc::clone(&h.reported.lock().observed);
        observed
            .containers
            .iter()
            .filter(|c| c.state == crate::pods::observed::ObservedState::Running)
            .count()
    };
    let containers: usize = all.iter().map(|(_, h)| running(h)).sum();
    let network = match &api.network {
        Some(families) => families.render().await,
        None => String::new(),
    };
    let mut out = format!(
        "# TYPE kubelet_running_pods gauge\nkubelet_running_pods {}\n\
         # TYPE kubelet_running_containers gauge\n\
         kubelet_running_containers{{container_state=\"running\"}} {containers}\n\
         # TYPE kubelet_node_name gauge\nkubelet_node_name{{node=\"{}\"}} 1\n",
        all.len(),
        api.node.identity.config.node_name,
    );
    out.extend([
        api.node.runtime.operations.render(),
        api.node.api.status.render(),
        api.node.csi.render_metrics(),
        crate::cgroups::metrics::render(),
        crate::devices::metrics::render(),
        crate::plugins::metrics::render(),
        crate::image_credentials::metrics::render(),
        crate::image_access::metrics::render(),
        crate::pods::image_pull::metrics::render(),
        crate::housekeeping::image_gc::render_metrics(),
        crate::eviction::metrics::render(),
        crate::resource_managers::metrics::render(),
        crate::pods::rejection::render_metrics(),
        crate::user_namespaces::metrics::render(),
        api.node.dynamic_resources.render_metrics(),
        crate::volumes::selinux::metrics::render(),
        super::claims::render(api).await,
        network,
    ]);
    out
}
