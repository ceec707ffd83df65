//! Monitors memory and disks of the node: sets the pressure conditions, removes unused images, and
//! evicts pods if that does not suffice.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::Shutdown;
use client::events::EventType;
use proto::runtime::v1 as cri;

use crate::config::Config;
use crate::config::thresholds::Threshold;
use crate::context::{Node, NodeIdentity};
use crate::events::NodeEventRecorder;
use crate::eviction::pressure::{ScarceResource, Shortage};
use crate::eviction::ranking;
use crate::eviction::ranking::{ContainerUsage, PodUsage};
use crate::housekeeping::image_gc;
use crate::machine;
use crate::pods::observed::label;
use crate::pods::pod::Pod;
use crate::pods::table::PodTable;
use crate::status::pod::PodFailure;

/// How often memory and disks are measured (the kubelet's `evictionMonitoringPeriod`).
const INTERVAL: Duration = Duration::from_secs(10);
/// Depth to which an emptyDir is measured.
const DEPTH_MAX: usize = 64;

/// Runs until shutdown.
pub(crate) async fn run(
    node: Arc<Node>,
    table: PodTable,
    shutdown: Shutdown,
) -> Result<(), std::convert::Infallible> {
    loop {
        let shortages = measure(&node.identity);
        if node.caches.pressure.record(&shortages) {
            node.caches.status_changed.notify_one();
        }
        if !enforce_limits(&node, &table).await
            && let Some(worst) = shortages.first()
        {
            relieve(&node, &table, *worst).await;
        }
        tokio::select! {
            () = shutdown.requested() => return Ok(()),
            () = base::clock::sleep(INTERVAL) => {}
        }
    }
}

/// Returns the current shortages, memory first.
fn measure(identity: &NodeIdentity) -> Vec<Shortage> {
    let config = &identity.config;
    let limits = &config.eviction;
    let mut out = Vec::new();
    if let (Some(least), Some(available)) = (limits.memory, machine::memory_available()) {
        let threshold = least.of(identity.machine.memory);
        if available < threshold {
            out.push(Shortage { of: ScarceResource::Memory, threshold, available });
        }
    }
    for (path, space, inodes) in [
        (&config.root_dir, limits.nodefs, limits.nodefs_inodes),
        (&config.runtime.data_dir, limits.imagefs, limits.imagefs_inodes),
    ] {
        let Some(disk) = machine::disk(path) else { continue };
        if let Some(shortage) = disk_shortage(disk, space, inodes) {
            out.push(shortage);
            break;
        }
    }
    out
}

/// The shortage of a file system, in bytes also if inodes are short.
fn disk_shortage(
    disk: machine::Disk,
    space: Option<Threshold>,
    inodes: Option<Threshold>,
) -> Option<Shortage> {
    let amount = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    let is_short = |least: Option<Threshold>, free: u64, all: u64| {
        all > 0 && least.is_some_and(|least| amount(free) < least.of(amount(all)))
    };
    let short =
        is_short(space, disk.free, disk.size) || is_short(inodes, disk.inodes_free, disk.inodes);
    short.then(|| Shortage {
        of: ScarceResource::Storage,
        threshold: space.map_or(0, |least| least.of(amount(disk.size))),
        available: amount(disk.free),
    })
}

/// Removes unused images; evicts one pod if that does not suffice.
async fn relieve(node: &Arc<Node>, table: &PodTable, shortage: Shortage) {
    tracing::warn!(
        resource = shortage.of.name(),
        available = shortage.available,
        "eviction threshold met"
    );
    node.api.events.node_event(
        EventType::Warning,
        "EvictionThresholdMet",
        format!("Attempting to reclaim {}", shortage.of.name()),
    );
    if shortage.of == ScarceResource::Storage {
        image_gc::free_images(&node.runtime, table).await;
        if !measure(&node.identity).iter().any(|s| s.of == ScarceResource::Storage) {
            return;
        }
    }
    let pods: Vec<Arc<Pod>> = active(table);
    let used = usage(node, &pods).await;
    let of = |pod: &Arc<Pod>| used.get(&*pod.uid).cloned().unwrap_or_default();
    let measured: Vec<(&Pod, PodUsage)> = pods.iter().map(|p| (&**p, of(p))).collect();
    let ranked = ranking::rank(&measured, shortage.of);
    let Some((pod, used)) = ranked.first().and_then(|i| measured.get(*i)) else {
        tracing::warn!(resource = shortage.of.name(), "no pod to evict");
        return;
    };
    evict(&node.api.events, table, pod, ranking::message(pod, used, shortage), true);
}

/// Evicts pods that exceed their own limits on local storage; returns whether there were any.
async fn enforce_limits(node: &Arc<Node>, table: &PodTable) -> bool {
    let limited = |p: &Arc<Pod>| ranking::has_storage_limits(p);
    let pods: Vec<Arc<Pod>> = active(table).into_iter().filter(limited).collect();
    if pods.is_empty() {
        return false;
    }
    let used = usage(node, &pods).await;
    let mut any = false;
    for pod in &pods {
        let Some(used) = used.get(&*pod.uid) else { continue };
        if let Some(message) = ranking::storage_excess(pod, used) {
            any = true;
            evict(&node.api.events, table, pod, message, false);
        }
    }
    any
}

/// Pods that run or are about to start.
fn active(table: &PodTable) -> Vec<Arc<Pod>> {
    let is_final = |phase: Option<&str>| matches!(phase, Some("Succeeded" | "Failed"));
    table
        .all()
        .into_iter()
        .filter(|(pod, handle)| {
            let desired = handle.desired.borrow();
            desired.rejection.is_none()
                && !desired.removed
                && !pod.is_deleted()
                && !pod.is_api_terminal()
                && !is_final(handle.reported.lock().status.phase.as_deref())
        })
        .map(|(pod, _)| pod)
        .collect()
}

fn evict(
    events: &NodeEventRecorder,
    table: &PodTable,
    pod: &Pod,
    message: String,
    disruption: bool,
) {
    let Some(handle) = table.get(&pod.uid) else { return };
    tracing::warn!(pod = %pod.key, message, "pod evicted");
    events.pod_event(pod, EventType::Warning, ranking::REASON, message.clone());
    let verdict = PodFailure {
        reason: ranking::REASON.to_owned(),
        message,
        grace: Some(ranking::GRACE),
        disruption,
    };
    handle.desired.send_modify(|d| d.rejection = Some(verdict));
}

/// Usage of the pods, by uid.
async fn usage(node: &Arc<Node>, pods: &[Arc<Pod>]) -> HashMap<String, PodUsage> {
    let stats = node.runtime.cri.stats().await.unwrap_or_default();
    let (node, pods) = (Arc::clone(node), pods.to_vec());
    let walk = move || {
        let use_of =
            |pod: &Arc<Pod>| (pod.uid.to_string(), pod_use(&node.identity.config, pod, &stats));
        pods.iter().map(use_of).collect()
    };
    base::tasks::blocking(walk).await.unwrap_or_default()
}

fn pod_use(config: &Config, pod: &Pod, stats: &[cri::ContainerStats]) -> PodUsage {
    let logs = config.pod_log_dir(pod.namespace(), pod.name(), &pod.uid);
    let bytes = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    let mut out = PodUsage::default();
    for stat in stats {
        let Some(labels) = stat.attributes.as_ref().map(|a| &a.labels) else { continue };
        if labels.get(label::POD_UID).map(String::as_str) != Some(&*pod.uid) {
            continue;
        }
        let name = labels.get(label::CONTAINER_NAME).cloned().unwrap_or_default();
        let memory = stat.memory.as_ref().and_then(|m| m.working_set_bytes).map_or(0, |v| v.value);
        let layer = stat.writable_layer.as_ref().and_then(|w| w.used_bytes).map_or(0, |v| v.value);
        let storage = bytes(layer.saturating_add(disk_usage(&logs.join(&name), DEPTH_MAX)));
        out.containers.push(ContainerUsage { name, memory: bytes(memory), storage });
    }
    out.hosts = bytes(disk_usage(&crate::volumes::hosts_file(&config.pod_dir(&pod.uid)), 0));
    let folder = config.pod_dir(&pod.uid).join("volumes/kubernetes.io~empty-dir");
    for volume in pod.spec().volumes.iter().flatten() {
        let Some(source) = &volume.empty_dir else { continue };
        if source.medium.as_deref().is_none_or(str::is_empty) {
            out.volumes.push((
                volume.name.clone(),
                bytes(disk_usage(&folder.join(&volume.name), DEPTH_MAX)),
            ));
        }
    }
    out
}

/// Bytes on disk at and below a path; does not follow links or leave the file system.
fn disk_usage(path: &Path, depth: usize) -> u64 {
    let Ok(meta) = std::fs::symlink_metadata(path) else { return 0 };
    let mut sum = meta.blocks().saturating_mul(512);
    if meta.is_dir() && depth > 0 {
        for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
            if entry.metadata().is_ok_and(|m| m.dev() == meta.dev()) {
                sum = sum.saturating_add(disk_usage(&entry.path(), depth - 1));
            }
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_is_short_of_space_or_inodes() {
        let disk = |free, inodes_free| machine::Disk {
            size: 1000,
            free,
            used: 1000 - free,
            inodes: 100,
            inodes_free,
        };
        let (space, inodes) = (Some(Threshold::Percent(5.0)), Some(Threshold::Amount(10)));
        assert_eq!(disk_shortage(disk(50, 10), space, inodes), None);
        let of = ScarceResource::Storage;
        let short = Some(Shortage { of, threshold: 50, available: 49 });
        assert_eq!(disk_shortage(disk(49, 10), space, inodes), short);
        assert!(disk_shortage(disk(50, 9), space, inodes).is_some());
        assert_eq!(disk_shortage(disk(0, 0), None, None), None);
    }

    #[test]
    fn disk_usage_counts_blocks_and_not_links() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("a")).unwrap();
        let empty = disk_usage(folder.path(), DEPTH_MAX);
        std::fs::write(folder.path().join("a/b"), vec![1; 100_000]).unwrap();
        std::os::unix::fs::symlink("/", folder.path().join("root")).unwrap();
        let used = disk_usage(folder.path(), DEPTH_MAX) - empty;
        assert!((100_000..200_000).contains(&used), "{used}");
    }
}
