//! Measures the node and its pods for eviction.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::Quantity;
use proto::runtime::v1 as cri;
use tokio::time::Instant;

use crate::cgroups::GroupUsage;
use crate::config::Config;
use crate::config::thresholds::Signal;
use crate::context::Node;
use crate::eviction::layout::FileSystemLayout;
use crate::eviction::ranking::{ContainerUsage, DiskAmount, LocalVolumeUsage, PodUsage};
use crate::eviction::state::{Observation, Observations};
use crate::kubelet_api::measure_now;
use crate::machine::{self, Disk, ProcessCounts};
use crate::pods::observed::label;
use crate::pods::pod::Pod;
use crate::runtime::{ImageFileSystems, RuntimeError};

/// A directory on each file system that is measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileSystemPaths {
    pub(super) pods: PathBuf,
    pub(super) images: PathBuf,
    pub(super) layers: PathBuf,
}

impl FileSystemPaths {
    /// The paths of the configuration, and those that the runtime reports.
    pub(super) fn new(config: &Config, reported: &ImageFileSystems) -> Self {
        let images = reported.images.as_ref().unwrap_or(&config.runtime.data_dir);
        let layers = reported.layers.as_ref().unwrap_or(images);
        Self { pods: config.root_dir.clone(), images: images.clone(), layers: layers.clone() }
    }

    /// Which of the file systems are the same; one that cannot be read is that of the pods.
    /// Blocks.
    pub(super) fn layout(&self) -> FileSystemLayout {
        let device = |path: &Path| std::fs::metadata(path).map(|m| m.dev()).ok();
        let pods = device(&self.pods).unwrap_or_default();
        let images = device(&self.images).unwrap_or(pods);
        FileSystemLayout::of(pods, images, device(&self.layers).unwrap_or(images))
    }
}

fn amount(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// What is available of the memory of all pods; `None` without a limit.
fn memory_of_pods(usage: &GroupUsage, at: Instant) -> Option<Observation> {
    let limit = usage.memory_limit?;
    let available = Quantity::bytes(amount(limit.saturating_sub(usage.working_set)));
    Some(Observation { available, capacity: amount(limit.max(usage.working_set)), at })
}

/// What is available of a file system: bytes, and inodes if their number is fixed.
fn of_disk(disk: Disk, at: Instant) -> [Option<Observation>; 2] {
    let of = |available, capacity: u64| {
        (capacity > 0).then(|| Observation { available, capacity: amount(capacity), at })
    };
    [
        of(Quantity::bytes(amount(disk.free)), disk.size),
        of(Quantity::units(amount(disk.inodes_free)), disk.inodes),
    ]
}

/// What is available of the processes.
fn of_processes(counts: ProcessCounts, at: Instant) -> Option<Observation> {
    let (max, running) = (amount(counts.max?), amount(counts.running?));
    Some(Observation { available: Quantity::units(max.saturating_sub(running)), capacity: max, at })
}

/// Measures the node. What the kernel does not report is not there. Blocks.
pub(super) fn node(node: &Node, paths: &FileSystemPaths) -> Observations {
    let at = base::clock::now();
    let mut out = Observations::new();
    let mut add = |signal, observation: Option<Observation>| {
        out.extend(observation.map(|observation| (signal, observation)));
    };
    // Huge pages cannot be used as memory; the kernel leaves them out of what is available.
    let pages = machine::huge_pages().into_iter();
    let pages = pages.fold(0_i64, |sum, (size, n)| sum.saturating_add(size.saturating_mul(n)));
    let capacity = node.identity.machine.memory.saturating_sub(pages);
    let memory = machine::memory_available();
    let memory =
        memory.map(|bytes| Observation { available: Quantity::bytes(bytes), capacity, at });
    add(Signal::MemoryAvailable, memory);
    let of_pods = node.runtime.cgroups.all_pods();
    let of_pods = of_pods.and_then(|usage| memory_of_pods(&usage, at));
    add(Signal::AllocatableMemoryAvailable, of_pods);
    for (path, bytes, inodes) in [
        (&paths.pods, Signal::NodeFsAvailable, Signal::NodeFsInodesFree),
        (&paths.images, Signal::ImageFsAvailable, Signal::ImageFsInodesFree),
        (&paths.layers, Signal::ContainerFsAvailable, Signal::ContainerFsInodesFree),
    ] {
        let Some(disk) = machine::disk(path) else { continue };
        for (signal, observation) in [bytes, inodes].into_iter().zip(of_disk(disk, at)) {
            add(signal, observation);
        }
    }
    add(Signal::PidAvailable, of_processes(ProcessCounts::read(), at));
    out
}

/// Measures pods, by uid. A pod that has nothing on the node yet is not there.
///
/// # Errors
/// The runtime does not answer.
pub(super) async fn pods(
    node: &Arc<Node>,
    pods: &[Arc<Pod>],
) -> Result<HashMap<String, PodUsage>, RuntimeError> {
    let stats = node.runtime.cri.stats().await?;
    let (node, pods) = (Arc::clone(node), pods.to_vec());
    let measure = move || {
        let of = |pod: &Arc<Pod>| Some((pod.uid.to_string(), usage(&node, pod, &stats)?));
        pods.iter().filter_map(of).collect()
    };
    Ok(base::tasks::blocking(measure).await.unwrap_or_default())
}

fn usage(node: &Node, pod: &Pod, stats: &[cri::ContainerStats]) -> Option<PodUsage> {
    let config = &node.identity.config;
    let containers = containers(config, pod, stats);
    let group = node.runtime.cgroups.pod_resources(pod);
    if containers.is_empty() && group.is_none() {
        return None;
    }
    let of_containers = || containers.iter().filter_map(|c| c.memory).sum();
    Some(PodUsage {
        memory: group.map_or_else(of_containers, |(_, working_set)| amount(working_set)),
        volumes: volumes(config, pod),
        hosts: files(&crate::volumes::hosts_file(&config.pod_dir(&pod.uid))).unwrap_or_default(),
        processes: u64::try_from(node.runtime.cgroups.pod_processes(pod).len()).unwrap_or_default(),
        containers,
    })
}

/// Bytes and inodes on disk at and below a path.
fn files(path: &Path) -> Option<DiskAmount> {
    let used = measure_now(path)?;
    Some(DiskAmount { bytes: amount(used.bytes), inodes: amount(used.inodes) })
}

fn containers(config: &Config, pod: &Pod, stats: &[cri::ContainerStats]) -> Vec<ContainerUsage> {
    let logs = config.pod_log_dir(pod.namespace(), pod.name(), &pod.uid);
    let of = |stat: &cri::ContainerStats| {
        let labels = &stat.attributes.as_ref()?.labels;
        if labels.get(label::POD_UID).map(String::as_str) != Some(&*pod.uid) {
            return None;
        }
        let name = labels.get(label::CONTAINER_NAME)?.clone();
        let layer = stat.writable_layer.as_ref().and_then(|layer| {
            let inodes = layer.inodes_used.map_or(0, |n| amount(n.value));
            Some(DiskAmount { bytes: amount(layer.used_bytes?.value), inodes })
        });
        let memory = stat.memory.as_ref().and_then(|m| m.working_set_bytes);
        Some(ContainerUsage {
            memory: memory.map(|bytes| amount(bytes.value)),
            layer,
            logs: files(&logs.join(&name)),
            name,
        })
    };
    stats.iter().filter_map(of).collect()
}

/// The volumes that count as local storage (`IsLocalEphemeralVolume`), and those in memory.
fn volumes(config: &Config, pod: &Pod) -> Vec<LocalVolumeUsage> {
    let folder = config.pod_dir(&pod.uid).join("volumes");
    let of = |volume: &api::k8s::api::core::v1::Volume| {
        let (plugin, is_memory) = match (&volume.empty_dir, &volume.config_map) {
            (Some(dir), _) => {
                let is_disk = dir.medium.as_deref().is_none_or(str::is_empty);
                ("kubernetes.io~empty-dir", !is_disk)
            }
            (None, Some(_)) => ("kubernetes.io~configmap", false),
            (None, None) => return None,
        };
        let used = files(&folder.join(plugin).join(&volume.name))?;
        Some(LocalVolumeUsage { name: volume.name.clone(), used, is_memory })
    };
    pod.spec().volumes.iter().flatten().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Upstream's `TestMakeSignalObservations`.
    #[test]
    fn observations_are_of_the_node() {
        let at = base::clock::now();
        let text = |o: Observation| format!("{} of {}", o.available, o.capacity);
        let counts = ProcessCounts { max: Some(255_816), running: Some(1000) };
        assert_eq!(of_processes(counts, at).map(text).as_deref(), Some("254816 of 255816"));
        assert_eq!(of_processes(ProcessCounts { running: None, ..counts }, at), None);
        let disk = Disk { size: 2048, free: 1024, used: 1024, inodes: 1 << 20, inodes_free: 1024 };
        let of_disk = |disk| super::of_disk(disk, at).map(|o| o.map(text));
        assert_eq!(
            of_disk(disk),
            ["1Ki of 2048", "1024 of 1048576"].map(|text| Some(text.to_owned()))
        );
        assert_eq!(of_disk(Disk { inodes: 0, ..disk })[1], None, "their number is not fixed");
        let group = GroupUsage {
            memory_limit: Some(2 << 30),
            working_set: 1 << 30,
            ..GroupUsage::default()
        };
        let of_pods = memory_of_pods(&group, at).map(text);
        assert_eq!(of_pods.as_deref(), Some("1Gi of 2147483648"));
        assert_eq!(memory_of_pods(&GroupUsage { memory_limit: None, ..group }, at), None);
    }

    #[test]
    fn volumes_on_disk_and_in_memory_are_measured() {
        let home = tempfile::tempdir().unwrap();
        let address = std::net::Ipv4Addr::LOCALHOST.into();
        let mut config = Config::new("n", address, home.path().into(), home.path().into());
        config.root_dir = home.path().join("kubelet");
        let pod = crate::pods::pod::tests::pod(serde_json::json!({
            "containers": [{"name": "c"}],
            "volumes": [{"name": "scratch", "emptyDir": {}}, {"name": "host", "hostPath": {"path": "/"}},
                {"name": "tmp", "emptyDir": {"medium": "Memory"}},
                {"name": "settings", "configMap": {"name": "x"}},
                {"name": "key", "secret": {"secretName": "x"}}]}));
        for (place, size) in [
            ("kubernetes.io~empty-dir/scratch", 100_000),
            ("kubernetes.io~empty-dir/tmp", 10),
            ("kubernetes.io~configmap/settings", 10),
            ("kubernetes.io~secret/key", 10),
        ] {
            let folder = config.pod_dir("u").join("volumes").join(place);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("f"), vec![1; size]).unwrap();
        }
        let volumes = volumes(&config, &pod);
        let names: Vec<_> = volumes.iter().map(|v| (v.name.as_str(), v.is_memory)).collect();
        assert_eq!(names, [("scratch", false), ("tmp", true), ("settings", false)]);
        assert!((100_000..200_000).contains(&volumes[0].used.bytes));
        assert_eq!(volumes[0].used.inodes, 2);
    }

    #[test]
    fn the_layers_are_with_the_images_unless_the_runtime_says_otherwise() {
        let config =
            Config::new("n", std::net::Ipv4Addr::LOCALHOST.into(), "/data".into(), "/run".into());
        let paths = FileSystemPaths::new(&config, &ImageFileSystems::default());
        assert_eq!((paths.images.to_str(), &paths.layers), (Some("/data"), &paths.images));
        let home = tempfile::tempdir().unwrap();
        let paths = FileSystemPaths {
            pods: home.path().into(),
            images: home.path().into(),
            layers: "/none".into(),
        };
        assert_eq!(paths.layout(), FileSystemLayout::Single);
    }
}
