//! Disk usage of a pod: volumes, logs, and ephemeral storage as a whole.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use api::k8s::api::core::v1::Volume;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::disk_usage::{DiskUsage, Used};
use super::document;
use crate::config::Config;
use crate::machine::{self, Disk};
use crate::pods::observed::ObservedPod;
use crate::pods::pod::Pod;
use crate::volume_usage::PodUsage;

/// Disk usage of one pod, as parts of `PodStats`.
#[derive(Debug, Default)]
pub(super) struct Storage {
    pub(super) volumes: Vec<Value>,
    /// `logs` of the containers, by name.
    pub(super) logs: BTreeMap<String, Value>,
    pub(super) ephemeral: Value,
}

/// Measures a pod; `usage` is that of its volumes that are not counted by their files, `layers` are
/// bytes and inodes of the writable layers. Blocks during the walk of the files.
pub(super) fn measure(
    config: &Config,
    disks: &DiskUsage,
    pod: &Pod,
    usage: Option<&PodUsage>,
    layers: &[(u64, Option<u64>)],
    now: (Instant, i64),
) -> Storage {
    let (instant, at) = now;
    let root_disk = machine::disk(&config.root_dir);
    let mut out = Storage::default();
    let mut all = Sum { time: at, ..Sum::default() };
    for (bytes, inodes) in layers {
        all.add(*bytes, inodes.unwrap_or(0), at);
    }
    let base = config.pod_dir(&pod.uid).join("volumes");
    for volume in pod.spec().volumes.iter().flatten() {
        let stats = if let Some(usage) = usage.and_then(|usage| usage.get(&volume.name)) {
            document::volume_usage(usage)
        } else {
            let Some(path) = directory_of(volume, &base) else { continue };
            let Some(used) = disks.of(&path, instant) else { continue };
            if is_local_ephemeral(volume) {
                all.add_used(used);
            }
            of_disk(used, machine::disk(&path))
        };
        out.volumes.push(named(volume, pod, stats));
    }
    let logs = config.pod_log_dir(pod.namespace(), pod.name(), &pod.uid);
    for member in &pod.containers {
        let Some(used) = disks.of(&logs.join(member.name()), instant) else { continue };
        all.add_used(used);
        out.logs.insert(member.name().to_owned(), of_disk(used, root_disk));
    }
    for file in
        files_of(&logs).into_iter().chain([crate::volumes::hosts_file(&config.pod_dir(&pod.uid))])
    {
        if let Some(used) = disks.of(&file, instant) {
            all.add_used(used);
        }
    }
    out.ephemeral = document::file_system(all.time, root_disk, Some(all.bytes), Some(all.inodes));
    out
}

fn of_disk(used: Used, disk: Option<Disk>) -> Value {
    document::file_system(used.at, disk, Some(used.bytes), Some(used.inodes))
}

/// A sum with the time of its newest part.
#[derive(Debug, Default)]
struct Sum {
    bytes: u64,
    inodes: u64,
    time: i64,
}

impl Sum {
    fn add(&mut self, bytes: u64, inodes: u64, at: i64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.inodes = self.inodes.saturating_add(inodes);
        self.time = self.time.max(at);
    }

    fn add_used(&mut self, used: Used) {
        self.add(used.bytes, used.inodes, used.at);
    }
}

/// Returns the files directly in the log directory of a pod; the logs of its containers are in
/// subdirectories.
fn files_of(logs: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(logs).into_iter().flatten().flatten();
    let file = |e: &std::fs::DirEntry| e.file_type().is_ok_and(|t| t.is_file());
    entries.filter(file).map(|e| e.path()).take(1024).collect()
}

/// Returns the directory of a volume whose files are counted; `None` for hostPath and images, which
/// upstream does not measure either, and for volumes that are not part of the pod.
fn directory_of(volume: &Volume, base: &Path) -> Option<PathBuf> {
    let plugin = if volume.empty_dir.is_some() {
        "kubernetes.io~empty-dir"
    } else if volume.config_map.is_some() {
        "kubernetes.io~configmap"
    } else if volume.secret.is_some() {
        "kubernetes.io~secret"
    } else if volume.downward_api.is_some() {
        "kubernetes.io~downward-api"
    } else if volume.projected.is_some() {
        "kubernetes.io~projected"
    } else {
        return None;
    };
    Some(base.join(plugin).join(&volume.name))
}

/// Returns the host directory that a running container has mounted for a volume.
pub(super) fn mounted_at(volume: &str, pod: &Pod, observed: &ObservedPod) -> Option<PathBuf> {
    let mut mounts = pod.containers.iter().flat_map(|member| {
        let own = member.container.volume_mounts.iter().flatten();
        own.filter(|m| m.name == volume).map(|m| (member.name(), m.mount_path.as_str()))
    });
    mounts.find_map(|(name, path)| {
        let container = observed.active_container(name)?;
        container.mounts.iter().find(|(inside, _)| inside == path).map(|(_, host)| host.into())
    })
}

/// Returns the claim name of a volume.
pub(super) fn claim(volume: &Volume, pod: &Pod) -> Option<String> {
    match (&volume.persistent_volume_claim, &volume.ephemeral) {
        (Some(claim), _) => Some(claim.claim_name.clone()),
        (None, Some(_)) => Some(format!("{}-{}", pod.name(), volume.name)),
        (None, None) => None,
    }
}

/// `VolumeStats`.
fn named(volume: &Volume, pod: &Pod, mut stats: Value) -> Value {
    stats["name"] = volume.name.as_str().into();
    if let Some(claim) = claim(volume, pod) {
        stats["pvcRef"] = json!({"name": claim, "namespace": pod.namespace()});
    }
    stats
}

/// Whether a volume counts as ephemeral storage of the pod (`IsLocalEphemeralVolume`).
fn is_local_ephemeral(volume: &Volume) -> bool {
    let on_disk = |medium: Option<&str>| medium.is_none_or(str::is_empty);
    volume.config_map.is_some()
        || volume.empty_dir.as_ref().is_some_and(|e| on_disk(e.medium.as_deref()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume_usage::{Amounts, VolumeUsage};

    #[test]
    fn disk_usage_of_a_pod_is_measured_by_volume_and_in_total() {
        let home = tempfile::tempdir().unwrap();
        let address = std::net::Ipv4Addr::LOCALHOST.into();
        let mut config = Config::new("n", address, home.path().into(), home.path().into());
        config.root_dir = home.path().join("kubelet");
        config.pod_logs_dir = home.path().join("logs");
        let pod = crate::pods::pod::tests::pod(json!({
        "containers": [{"name": "c", "volumeMounts": [{"name": "claimed", "mountPath": "/d"}]}],
        "volumes": [
            {"name": "scratch", "emptyDir": {}},
            {"name": "memory", "emptyDir": {"medium": "Memory"}},
            {"name": "settings", "configMap": {"name": "x"}},
            {"name": "host", "hostPath": {"path": "/"}},
            {"name": "claimed", "persistentVolumeClaim": {"claimName": "data"}},
        ]}));
        let write = |path: PathBuf, size: usize| {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, vec![1; size]).unwrap();
        };
        let volumes = config.pod_dir("u").join("volumes");
        write(volumes.join("kubernetes.io~empty-dir/scratch/f"), 100_000);
        write(volumes.join("kubernetes.io~empty-dir/memory/f"), 400_000);
        write(volumes.join("kubernetes.io~configmap/settings/f"), 10);
        write(config.pod_log_dir("d", "p", "u").join("c/0.log"), 50_000);
        let disks = DiskUsage::default();
        let layers = [(1_000_000, Some(3))];
        let now = (Instant::now(), 5);
        let storage = measure(&config, &disks, &pod, None, &layers, now);
        let names: Vec<_> = storage.volumes.iter().map(|v| v["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["scratch", "memory", "settings"], "the claim is not measured yet");
        let scratch = &storage.volumes[0];
        assert!(scratch["usedBytes"].as_u64().unwrap() >= 100_000);
        assert_eq!(scratch["inodesUsed"], 2);
        assert!(scratch["capacityBytes"].as_u64().unwrap() > 0);
        assert!(storage.logs["c"]["usedBytes"].as_u64().unwrap() >= 50_000);
        let whole = storage.ephemeral["usedBytes"].as_u64().unwrap();
        assert!((1_150_000..1_500_000).contains(&whole), "layer, volume and log: {whole}");
        // Layer 3, scratch 2, ConfigMap 2, log 2.
        assert_eq!(storage.ephemeral["inodesUsed"], 9);
        let bytes = Amounts { available: 1, total: 3, used: 2 };
        let claimed = VolumeUsage { bytes, ..VolumeUsage::default() };
        let usage = [("claimed".to_owned(), claimed)].into();
        let storage = measure(&config, &disks, &pod, Some(&usage), &layers, now);
        let claimed = storage.volumes.last().unwrap();
        assert_eq!(claimed["pvcRef"], json!({"name": "data", "namespace": "d"}));
        assert_eq!([&claimed["capacityBytes"], &claimed["usedBytes"]], [3, 2]);
        assert_eq!(claimed["inodes"], 0);
        assert_eq!(storage.ephemeral["inodesUsed"], 9, "a claim is no ephemeral storage");
    }

    #[test]
    fn a_volume_of_a_claim_names_it() {
        let pod = crate::pods::pod::tests::pod(json!({"containers": [], "volumes": [
            {"name": "v", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "e", "ephemeral": {}}]}));
        let volumes = pod.spec().volumes.clone().unwrap();
        let stats: Vec<_> = volumes.iter().map(|v| named(v, &pod, json!({}))).collect();
        assert_eq!(stats[0]["pvcRef"], json!({"name": "data", "namespace": "d"}));
        assert_eq!(stats[1]["pvcRef"], json!({"name": "p-e", "namespace": "d"}));
    }
}
