//! Measures the scheduler alone: places pods on a cluster in memory and prints how many it places a
//! second, for each workload.
//! usage: place [NODES [PODS [WORKLOAD]]]

use std::io::Write as _;
use std::time::Instant;

use api::k8s::api::core::v1::Pod;
use scheduler::config::Configuration;
use scheduler::offline::Cluster;
use serde_json::{Value, json};

/// The additional specification of the pods of each workload, as in the workloads of upstream's
/// scheduler_perf with the same names.
fn workloads() -> [(&'static str, Value); 6] {
    let term = |topology: &str| {
        json!({
        "labelSelector": {"matchLabels": {"app": "a"}}, "topologyKey": topology})
    };
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
    let spread = |when: &str| {
        json!({"topologySpreadConstraints": [{
        "maxSkew": 5, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": when,
        "labelSelector": {"matchLabels": {"app": "a"}}}]})
    };
    let (host, zone) = ("kubernetes.io/hostname", "topology.kubernetes.io/zone");
    [
        ("SchedulingBasic", json!({})),
        ("PodAntiAffinity", json!({"affinity": {"podAntiAffinity": {required: [term(host)]}}})),
        ("PodAffinity", json!({"affinity": {"podAffinity": {required: [term(zone)]}}})),
        (
            "PreferredPodAffinity",
            json!({"affinity": {"podAffinity": {preferred: [
                {"weight": 1, "podAffinityTerm": term(host)}]}}}),
        ),
        ("TopologySpreading", spread("DoNotSchedule")),
        ("PreferredTopologySpreading", spread("ScheduleAnyway")),
    ]
}

fn node(number: usize) -> Value {
    let allocatable = json!({"cpu": "4", "memory": "32Gi", "pods": "110"});
    let name = format!("node-{number}");
    let zone = format!("zone-{}", number % 3);
    json!({
        "kind": "Node", "metadata": {"name": name, "labels": {
            "kubernetes.io/hostname": name, "topology.kubernetes.io/zone": zone}},
        "spec": {}, "status": {"allocatable": allocatable, "capacity": allocatable},
    })
}

fn pod(number: usize, more: &Value) -> Result<Pod, serde_json::Error> {
    let requests = json!({"cpu": "100m", "memory": "500Mi"});
    let mut spec = json!({"schedulerName": "default-scheduler", "containers": [
        {"name": "pause", "image": "registry.k8s.io/pause:3.10", "resources": {
            "requests": requests}}]});
    if let (Value::Object(spec), Value::Object(more)) = (&mut spec, more) {
        spec.extend(more.clone());
    }
    serde_json::from_value(json!({
        "metadata": {"name": format!("pod-{number}"), "namespace": "default", "uid": number.to_string(),
            "labels": {"app": "a"}},
        "spec": spec,
    }))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut counts = std::env::args().skip(1).take(2).map(|count| count.parse::<usize>());
    let nodes = counts.next().transpose()?.unwrap_or(5000);
    let pods = counts.next().transpose()?.unwrap_or(5000);
    let only = std::env::args().nth(3);
    for (name, more) in workloads() {
        if only.as_ref().is_some_and(|only| only != name) {
            continue;
        }
        // Anti-affinity allows one pod on a node.
        let count = if name == "PodAntiAffinity" { pods.min(nodes) } else { pods };
        let mut cluster = Cluster::new(&Configuration::default(), (0..nodes).map(node), None)?;
        let all: Vec<Pod> = (0..count).map(|n| pod(n, &more)).collect::<Result<_, _>>()?;
        let begin = Instant::now();
        let placed = all.iter().filter(|pod| cluster.place(pod)).count();
        let seconds = begin.elapsed().as_secs_f64();
        writeln!(
            std::io::stdout(),
            "{name}: {placed} of {count} pods on {nodes} nodes in {seconds:.2} s: {:.0} pods/s",
            placed as f64 / seconds
        )?;
    }
    Ok(())
}
