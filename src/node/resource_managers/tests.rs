//! The managers with their state files on a machine with two NUMA nodes.

use std::net::IpAddr;

use base::{Shutdown, Tasks};
use proto::runtime::v1 as cri;
use serde_json::json;

use super::config::{CpuPolicyOptions, ReservedMemory, TopologyScope};
use super::infeasible_resize::InfeasibleResize;
use super::topology::config::TopologyOptions;
use super::*;
use crate::config::thresholds::EvictionThresholds;
use crate::devices::DeviceManager;
use crate::pods::pod::tests::pod;

/// Writes a machine of two nodes with four CPUs and 4 GiB each.
fn write_machine(sys: &Path) {
    let write = |path: &str, text: &str| {
        let path = sys.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    for cpu in 0..8 {
        let node = cpu / 4;
        let base = format!("devices/system/cpu/cpu{cpu}/topology");
        write(&format!("{base}/physical_package_id"), &node.to_string());
        write(&format!("{base}/core_id"), &cpu.to_string());
        write(&format!("devices/system/node/node{node}/cpu{cpu}/online"), "1");
        write(&format!("devices/system/node/node{node}/meminfo"), "Node MemTotal: 4194304 kB");
    }
}

fn config(root: &Path, managers: ResourceManagersConfig) -> Config {
    let mut out = Config::new("n", IpAddr::from([127, 0, 0, 1]), root.into(), root.into());
    out.root_dir = root.to_owned();
    out.reserved = [("cpu", "1"), ("memory", "1Gi")]
        .map(|(name, amount)| (name.to_owned(), amount.to_owned()))
        .into();
    out.eviction = EvictionThresholds::none();
    out.resource_managers = managers;
    out
}

fn static_cpus() -> ResourceManagersConfig {
    ResourceManagersConfig {
        cpu: CpuPolicy::Static(CpuPolicyOptions::default()),
        ..ResourceManagersConfig::default()
    }
}

fn guaranteed(uid: &str, cpu: &str, memory: &str) -> Pod {
    let resources = json!({"limits": {"cpu": cpu, "memory": memory}});
    let mut pod = pod(json!({"containers": [{"name": "c", "resources": resources}]}));
    pod.uid = uid.into();
    pod
}

struct Bench {
    folder: tempfile::TempDir,
    devices: Arc<DeviceManager>,
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        write_machine(&folder.path().join("sys"));
        let tasks = Tasks::new(Shutdown::new());
        let devices = Arc::new(DeviceManager::new(folder.path(), &tasks));
        Self { folder, devices }
    }

    fn open(&self, managers: ResourceManagersConfig) -> Result<Arc<ResourceManagers>, String> {
        let root = self.folder.path();
        let opened = ResourceManagers::open(&config(root, managers), &root.join("sys"));
        let opened = opened.map_err(|error| error.to_string())?;
        opened.settled.send_replace(true);
        Ok(Arc::new(opened))
    }

    async fn admit(&self, managers: &Arc<ResourceManagers>, pod: &Pod) -> Result<(), String> {
        let outcome = managers.admit(&self.devices, pod, &Arc::default()).await;
        outcome.map_err(|error| {
            let rejection = error.rejection();
            format!("{}: {}", rejection.reason, rejection.message)
        })
    }

    fn has_file(&self, name: &str) -> bool {
        self.folder.path().join(name).exists()
    }
}

fn cpus(managers: &ResourceManagers, pod: &Pod) -> String {
    managers.container_cpus(pod, &pod.containers[0]).cpus
}

#[tokio::test]
async fn nothing_is_written_and_no_cpus_are_set_by_default() {
    let bench = Bench::new();
    let managers = bench.open(ResourceManagersConfig::default()).unwrap();
    let pod = guaranteed("u", "2", "1Gi");
    bench.admit(&managers, &pod).await.unwrap();
    assert!(!managers.is_active() && !managers.has_cpu_sets());
    let unset = managers.container_cpus(&pod, &pod.containers[0]);
    assert_eq!(unset, ContainerCpus::default());
    assert!(!bench.has_file(CPU_STATE) && !bench.has_file(MEMORY_STATE));
}

#[tokio::test]
async fn reserved_cpus_must_be_online() {
    let bench = Bench::new();
    let reserved_cpus = Some(CpuSet::parse("9").unwrap());
    let managers = ResourceManagersConfig { reserved_cpus, ..ResourceManagersConfig::default() };
    let error = bench.open(managers).unwrap_err();
    assert_eq!(error, "reserved-cpus: 9 is not a subset of online-cpus: 0-7");
}

#[tokio::test]
async fn exclusive_cpus_survive_a_restart_and_return_with_the_end_of_the_pod() {
    let bench = Bench::new();
    let managers = bench.open(static_cpus()).unwrap();
    assert!(bench.has_file(CPU_STATE));
    let (pod, shared) = (guaranteed("u", "2", "1Gi"), guaranteed("v", "500m", "1Gi"));
    bench.admit(&managers, &pod).await.unwrap();
    bench.admit(&managers, &shared).await.unwrap();
    assert_eq!((cpus(&managers, &pod), cpus(&managers, &shared)), ("1-2".into(), "0,3-7".into()));
    assert!(managers.has_exclusive_cpus(&pod) && !managers.has_exclusive_cpus(&shared));
    let mut linux = cri::LinuxContainerResources::default();
    managers.container_cpus(&pod, &pod.containers[0]).add_to(&mut linux);
    assert_eq!((linux.cpu_quota, linux.cpuset_cpus.as_str()), (-1, "1-2"));
    assert_eq!(managers.exclusive_cpus("u", "c"), [1, 2]);
    assert_eq!(managers.allocatable_cpus(), [1, 2, 3, 4, 5, 6, 7]);
    let error = bench.admit(&managers, &guaranteed("w", "6", "1Gi")).await.unwrap_err();
    let want = "UnexpectedAdmissionError: Allocate failed due to not enough cpus available to \
                satisfy request: requested=6, available=5, which is unexpected";
    assert_eq!(error, want);
    drop(managers);
    let managers = bench.open(static_cpus()).unwrap();
    bench.admit(&managers, &pod).await.unwrap();
    assert_eq!(cpus(&managers, &pod), "1-2");
    managers.release("u").await;
    assert_eq!(cpus(&managers, &shared), "0-7");
    let error = bench.open(ResourceManagersConfig::default()).unwrap_err();
    assert!(
        error.starts_with(
            "start cpu manager error: could not restore state from checkpoint: \
        configured policy \"none\" differs from state checkpoint policy \"static\", please drain \
        this node and delete the CPU manager checkpoint file \""
        ),
        "{error}"
    );
}

#[tokio::test]
async fn running_containers_follow_the_shared_cpus() {
    let bench = Bench::new();
    let managers = bench.open(static_cpus()).unwrap();
    let container = |id: &str, uid: &str, state: cri::ContainerState| {
        let labels = [
            (crate::pods::observed::label::POD_UID.to_owned(), uid.to_owned()),
            (crate::pods::observed::label::CONTAINER_NAME.to_owned(), "c".to_owned()),
        ];
        let (id, state) = (id.to_owned(), state.into());
        cri::Container { id, state, labels: labels.into(), ..cri::Container::default() }
    };
    let running = cri::ContainerState::ContainerRunning;
    let all = [
        container("1", "u", running),
        container("2", "v", running),
        container("3", "v", cri::ContainerState::ContainerExited),
        container("4", "unknown", running),
    ];
    let shared = guaranteed("v", "500m", "1Gi");
    managers.container_created(&shared, "c", "2", "0-7".to_owned()).await;
    bench.admit(&managers, &guaranteed("u", "2", "1Gi")).await.unwrap();
    let updates = managers.pending_updates(&all, |uid| uid != "unknown");
    let updates: Vec<(&str, &str)> = updates.iter().map(cpu_sets::CpuSetUpdate::parts).collect();
    assert_eq!(updates, [("1", "1-2"), ("2", "0,3-7")]);
    managers.container_created(&shared, "c", "2", "0,3-7".to_owned()).await;
    let updates = managers.pending_updates(&all[1..2], |_| true);
    assert!(updates.is_empty(), "{updates:?}");
}

#[tokio::test]
async fn pods_that_do_not_fit_one_node_are_rejected_as_the_policy_says() {
    let bench = Bench::new();
    for (policy, scope, cpu, want) in [
        (TopologyPolicy::BestEffort, TopologyScope::Container, "6", None),
        (TopologyPolicy::Restricted, TopologyScope::Pod, "6", None),
        (TopologyPolicy::Restricted, TopologyScope::Container, "3", None),
        (TopologyPolicy::SingleNumaNode, TopologyScope::Container, "6", Some("locality")),
        (TopologyPolicy::SingleNumaNode, TopologyScope::Pod, "6", Some("locality")),
        (TopologyPolicy::SingleNumaNode, TopologyScope::Pod, "4", None),
        (TopologyPolicy::SingleNumaNode, TopologyScope::Container, "500m", None),
    ] {
        let _ = std::fs::remove_file(bench.folder.path().join(CPU_STATE));
        let topology_options = TopologyOptions::default();
        let managers = ResourceManagersConfig {
            topology: policy,
            topology_scope: scope,
            topology_options,
            ..static_cpus()
        };
        let managers = bench.open(managers).unwrap();
        let outcome = bench.admit(&managers, &guaranteed("u", cpu, "1Gi")).await;
        match want {
            None => assert_eq!(outcome, Ok(()), "{policy:?} {cpu}"),
            Some(_) => assert_eq!(
                outcome,
                Err("TopologyAffinityError: Resources cannot be allocated with Topology locality"
                    .to_owned())
            ),
        }
    }
    let closest = TopologyOptions { prefer_closest: true, ..TopologyOptions::default() };
    let managers = ResourceManagersConfig {
        topology: TopologyPolicy::BestEffort,
        topology_options: closest,
        ..ResourceManagersConfig::default()
    };
    let error = bench.open(managers).unwrap_err();
    assert!(error.contains("error getting NUMA distances from cadvisor"), "{error}");
}

#[tokio::test]
async fn memory_and_cpus_come_from_one_node() {
    let bench = Bench::new();
    let managers = |reserved: &str| ResourceManagersConfig {
        memory: MemoryPolicy::Static(ReservedMemory::parse(reserved).unwrap()),
        topology: TopologyPolicy::SingleNumaNode,
        ..static_cpus()
    };
    let error = bench.open(managers("0:memory=2Gi")).unwrap_err();
    assert!(error.starts_with("start memory manager error: the total amount \"2Gi\""), "{error}");
    let opened = bench.open(managers("0:memory=1Gi")).unwrap();
    // Only node 1 has 4 GiB to allocate.
    let pod = guaranteed("u", "2", "4Gi");
    bench.admit(&opened, &pod).await.unwrap();
    let set = opened.container_cpus(&pod, &pod.containers[0]);
    assert_eq!((set.cpus.as_str(), set.memory_nodes.as_str()), ("4-5", "1"));
    let memory = opened.container_memory("u", "c");
    assert_eq!((memory[0].memory_type.as_str(), memory[0].size), ("memory", 4 << 30));
    assert_eq!(opened.allocatable_memory().len(), 2);
    drop(opened);
    let opened = bench.open(managers("0:memory=1Gi")).unwrap();
    let error = bench.admit(&opened, &guaranteed("v", "1", "4Gi")).await.unwrap_err();
    assert!(error.contains("[memorymanager]") || error.contains("locality"), "{error}");
    // The worker of a pod that is rejected releases what it got.
    opened.release("v").await;
    opened.release("u").await;
    bench.admit(&opened, &guaranteed("v", "1", "4Gi")).await.unwrap();
}

#[tokio::test]
async fn guaranteed_pods_with_managed_cpus_are_not_resized() {
    let bench = Bench::new();
    let managers = bench.open(static_cpus()).unwrap();
    let (one, two) = (guaranteed("u", "1", "1Gi"), guaranteed("u", "2", "1Gi"));
    let infeasible = managers.infeasible_resize(&one, &two);
    assert_eq!(infeasible, Some(InfeasibleResize::Cpu));
    let more_memory = guaranteed("u", "1", "2Gi");
    assert_eq!(managers.infeasible_resize(&one, &more_memory), None);
    let inactive = bench.folder.path().join("other");
    assert_eq!(ResourceManagers::inactive(&inactive).infeasible_resize(&one, &two), None);
}
