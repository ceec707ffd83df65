//! The documents and metrics of one measured node in the form that clients read.

use super::*;
use crate::cgroups::GroupUsage;
use crate::machine::MemoryUsage;

fn some(total: u64) -> Option<Psi> {
    let some = PsiData { avg10: 0.5, avg60: 0.25, avg300: 0.0, total };
    Some(Psi { some, full: PsiData::default() })
}

fn sample() -> ContainerSample {
    ContainerSample {
        id: "i".into(),
        namespace: "d".into(),
        pod: "p".into(),
        uid: "u".into(),
        container: "c".into(),
        started: 1_700_000_000_500_000_000,
        time: 1_700_000_001_000_000_000,
        cpu_ns: 1_500_000_000,
        working_set: 42,
        usage: 50,
        available: Some(58),
        layer: 12,
        layer_inodes: Some(3),
        cores_ns: Some(9),
        rss: Some(33),
        page_faults: Some(5),
        major_page_faults: Some(1),
        swap: None,
        swap_available: None,
        pressure: GroupPressure { cpu: some(77), ..GroupPressure::default() },
    }
}

pub(super) fn measured() -> NodeSample {
    let pod = Arc::new(crate::pods::pod::tests::pod(json!({"containers": []})));
    let usage = GroupUsage {
        cpu_ns: 2_000_000_000,
        usage: 60,
        working_set: 43,
        rss: 40,
        page_faults: 8,
        major_page_faults: 2,
        memory_limit: Some(100),
        swap: Some(1),
        swap_limit: Some(5),
        pressure: GroupPressure { memory: some(5), io: some(6), ..GroupPressure::default() },
    };
    let sandbox = crate::pods::observed::ObservedSandbox {
        id: "s".into(),
        attempt: 0,
        created_at: 1_700_000_000_000_000_000,
        ready: true,
        host_network: false,
        ips: Vec::new(),
    };
    let observed = Arc::new(ObservedPod { sandboxes: vec![sandbox], ..ObservedPod::default() });
    let system = |name, started| SystemContainer { name, started, usage, cores_ns: Some(4) };
    NodeSample {
        containers: vec![sample()],
        pods: vec![PodSample { pod, observed, usage, cores_ns: Some(7) }],
        system: vec![system("kubelet", 0), system("runtime", 0), system("pods", 0)],
        memory: MemoryUsage { usage: 70, rss: 45, page_faults: 90, ..MemoryUsage::default() },
        interfaces: machine::interfaces("eth0: 10 2 3 0 0 0 0 0 20 4 5 0 0 0 0 0"),
        limits: ProcessLimits::parse(
            "4194304\n",
            "30000\n",
            "0.1 0.1 0.1 2/345 9",
            "btime 1700000000",
        ),
        pressure: GroupPressure { cpu: some(3), ..GroupPressure::default() },
        node_cpu: 3_000_000_000,
        node_cores_ns: Some(8),
        node_memory: 44,
        memory_available: 0,
        now: 1_700_000_002_000_000_000,
    }
}

#[test]
fn node_stats_have_every_field_that_clients_dereference() {
    let node = document::node("n", &measured());
    for (path, expected) in [
        ("/nodeName", json!("n")),
        ("/startTime", json!("2023-11-14T22:13:20Z")),
        ("/cpu/usageCoreNanoSeconds", json!(3_000_000_000_u64)),
        ("/cpu/usageNanoCores", json!(8)),
        ("/cpu/psi/some", json!({"total": 3, "avg10": 0.5, "avg60": 0.25, "avg300": 0.0})),
        ("/cpu/psi/full/total", json!(0)),
        ("/memory/rssBytes", json!(45)),
        ("/memory/usageBytes", json!(70)),
        ("/memory/workingSetBytes", json!(44)),
        ("/memory/pageFaults", json!(90)),
        ("/memory/majorPageFaults", json!(0)),
        ("/io", json!({"time": "2023-11-14T22:13:22Z"})),
        ("/swap/swapUsageBytes", json!(0)),
        ("/swap/swapAvailableBytes", json!(0)),
        ("/rlimit/maxpid", json!(30_000)),
        ("/rlimit/curproc", json!(345)),
        ("/network/name", json!("eth0")),
        ("/network/interfaces/0/txErrors", json!(5)),
        ("/systemContainers/0/name", json!("kubelet")),
        ("/systemContainers/1/name", json!("runtime")),
        ("/systemContainers/2/name", json!("pods")),
        ("/systemContainers/2/memory/rssBytes", json!(40)),
        ("/systemContainers/2/memory/availableBytes", json!(57)),
        ("/systemContainers/2/cpu/usageNanoCores", json!(4)),
        ("/systemContainers/2/swap/swapAvailableBytes", json!(4)),
    ] {
        assert_eq!(node.pointer(path), Some(&expected), "{path} in {node}");
    }
    assert_eq!(node.pointer("/memory/psi"), None, "none on a kernel without it");
}

#[test]
fn container_stats_have_rss_faults_and_file_system() {
    let disk = machine::Disk { size: 8, free: 7, used: 1, inodes: 9, inodes_free: 6 };
    let mut sample = sample();
    sample.complete(&GroupUsage {
        rss: 1,
        swap: Some(2),
        swap_limit: Some(6),
        pressure: GroupPressure { io: some(1), ..GroupPressure::default() },
        ..GroupUsage::default()
    });
    let out = document::container(&sample, Some(disk));
    for (path, expected) in [
        ("/cpu/usageNanoCores", 9),
        ("/cpu/psi/some/total", 77),
        ("/memory/rssBytes", 33),
        ("/memory/availableBytes", 58),
        ("/memory/majorPageFaults", 1),
        ("/io/psi/some/total", 1),
        ("/swap/swapUsageBytes", 2),
        ("/swap/swapAvailableBytes", 4),
        ("/rootfs/usedBytes", 12),
        ("/rootfs/availableBytes", 7),
        ("/rootfs/inodesUsed", 3),
    ] {
        assert_eq!(out.pointer(path), Some(&json!(expected)), "{path} in {out}");
    }
}

#[test]
fn pod_stats_have_network_processes_and_storage() {
    let m = measured();
    let details = Details {
        processes: 3,
        interfaces: m.interfaces.clone(),
        storage: Storage {
            volumes: vec![json!({"name": "v", "usedBytes": 1})],
            logs: BTreeMap::from([("c".to_owned(), json!({"usedBytes": 2}))]),
            ephemeral: json!({"usedBytes": 3}),
        },
    };
    let containers = vec![document::container(&m.containers[0], None)];
    let out = pod_stats(&m, &m.pods[0], details, containers);
    for (path, expected) in [
        ("/podRef", json!({"name": "p", "namespace": "d", "uid": "u"})),
        ("/startTime", json!("2023-11-14T22:13:20Z")),
        ("/containers/0/logs/usedBytes", json!(2)),
        ("/cpu/usageNanoCores", json!(7)),
        ("/memory/availableBytes", json!(57)),
        ("/memory/psi/some/total", json!(5)),
        ("/io/psi/some/total", json!(6)),
        ("/network/rxBytes", json!(10)),
        ("/volume/0/name", json!("v")),
        ("/ephemeral-storage/usedBytes", json!(3)),
        ("/process_stats/process_count", json!(3)),
        ("/swap/swapUsageBytes", json!(1)),
    ] {
        assert_eq!(out.pointer(path), Some(&expected), "{path} in {out}");
    }
}

#[test]
fn resource_metrics_have_what_metrics_server_reads() {
    let text = metrics::render(&measured());
    for line in [
        "container_cpu_usage_seconds_total{container=\"c\",namespace=\"d\",pod=\"p\"} 1.5 \
         1700000001000",
        "container_memory_working_set_bytes{container=\"c\",namespace=\"d\",pod=\"p\"} 42 \
         1700000001000",
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
