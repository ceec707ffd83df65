//! How full the volumes of claims and of drivers are, and `kubelet_volume_stats_*`.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use base::metrics::Family;

use super::storage;
use crate::csi::source::may_be_attached;
use crate::kubelet_api::state::KubeletApi;
use crate::pods::observed::ObservedPod;
use crate::pods::pod::Pod;
use crate::volume_usage::{COLLECTION_DURATION, PodUsage, VolumeUsage};

/// The labels of all families.
const LABELS: &[&str] = &["namespace", "persistentvolumeclaim"];

/// A family: name, HELP, and the value of a volume.
type Row = (&'static str, &'static str, fn(&VolumeUsage) -> u64);

/// The families in the order of upstream's `volume_stats.go`.
const FAMILIES: [Row; 6] = [
    ("kubelet_volume_stats_capacity_bytes", "[ALPHA] Capacity in bytes of the volume", |usage| {
        usage.bytes.total
    }),
    (
        "kubelet_volume_stats_available_bytes",
        "[ALPHA] Number of available bytes in the volume",
        |usage| usage.bytes.available,
    ),
    ("kubelet_volume_stats_used_bytes", "[ALPHA] Number of used bytes in the volume", |usage| {
        usage.bytes.used
    }),
    ("kubelet_volume_stats_inodes", "[ALPHA] Maximum number of inodes in the volume", |usage| {
        usage.inodes.total
    }),
    ("kubelet_volume_stats_inodes_free", "[ALPHA] Number of free inodes in the volume", |usage| {
        usage.inodes.available
    }),
    ("kubelet_volume_stats_inodes_used", "[ALPHA] Number of used inodes in the volume", |usage| {
        usage.inodes.used
    }),
];

/// Returns how full the volumes of claims and of drivers are, by the uids of their pods. Drivers
/// and servers that do not answer delay this by a second at most.
pub(super) async fn usage(api: &KubeletApi) -> HashMap<String, PodUsage> {
    let (node, file_systems) = (&api.node, &api.stats.file_systems);
    let mut pods = api.table.all();
    pods.retain(|(pod, _)| pod.spec().volumes.iter().flatten().any(may_be_attached));
    let uids = pods.iter().map(|(pod, _)| pod.uid.to_string()).collect();
    let of_drivers = node.csi.usage(&node.tasks, uids).await;
    let mut of_node = Vec::new();
    for (pod, handle) in &pods {
        let observed = Arc::clone(&handle.reported.lock().observed);
        let of_drivers = of_drivers.get(&*pod.uid);
        let is_of_driver = |name: &str| of_drivers.is_some_and(|own| own.contains_key(name));
        for (name, path) in paths_on_node(api, pod, &observed) {
            if !is_of_driver(&name) {
                of_node.push((pod.uid.to_string(), name, path));
            }
        }
    }
    let paths = of_node.iter().map(|(_, _, path)| path.clone()).collect();
    file_systems.update(&node.tasks, paths).await;
    let mut out: HashMap<String, PodUsage> = HashMap::new();
    for (uid, volumes) in of_drivers {
        let known = volumes.into_iter().filter_map(|(name, usage)| Some((name, usage?)));
        out.entry(uid).or_default().extend(known);
    }
    for (uid, name, path) in of_node {
        if let Some(usage) = file_systems.get(&path) {
            out.entry(uid).or_default().insert(name, usage);
        }
    }
    out
}

/// Returns the directories and block devices of this node that are the volumes of a pod's claims,
/// and its inline iSCSI volumes.
fn paths_on_node(api: &KubeletApi, pod: &Pod, observed: &ObservedPod) -> Vec<(String, PathBuf)> {
    let claims = pod.spec().volumes.iter().flatten();
    let claims =
        claims.filter(|volume| storage::claim(volume, pod).is_some() || volume.iscsi.is_some());
    let with_path = claims.filter_map(|volume| {
        let device = || api.node.caches.block_devices.get(&pod.uid, &volume.name);
        let path = storage::mounted_at(&volume.name, pod, observed).or_else(device)?;
        Some((volume.name.clone(), path))
    });
    with_path.collect()
}

/// Renders the families in the Prometheus text format.
pub(super) async fn render(api: &KubeletApi) -> String {
    let usage = usage(api).await;
    let mut claims = BTreeMap::new();
    for (pod, _) in api.table.all() {
        let Some(own) = usage.get(&*pod.uid) else { continue };
        for volume in pod.spec().volumes.iter().flatten() {
            if let (Some(claim), Some(usage)) =
                (storage::claim(volume, &pod), own.get(&volume.name))
            {
                claims.entry((pod.namespace().to_owned(), claim)).or_insert(*usage);
            }
        }
    }
    let mut out = of_claims(&claims);
    COLLECTION_DURATION.render(&mut out);
    out
}

fn of_claims(claims: &BTreeMap<(String, String), VolumeUsage>) -> String {
    let mut out = String::new();
    for (name, help, value) in FAMILIES {
        let family = Family::gauge(name, help, LABELS);
        for ((namespace, claim), usage) in claims {
            // Numbers of bytes below 2^53 are exact.
            #[expect(clippy::cast_precision_loss, reason = "a metric is a floating-point number")]
            family.set(&[namespace, claim], value(usage) as f64);
        }
        family.render(&mut out);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume_usage::Amounts;

    #[test]
    fn each_claim_has_a_series() {
        let usage = VolumeUsage {
            bytes: Amounts { available: 1, total: 3, used: 2 },
            ..VolumeUsage::default()
        };
        let text = of_claims(&[(("d".to_owned(), "data".to_owned()), usage)].into());
        for line in [
            "# HELP kubelet_volume_stats_capacity_bytes [ALPHA] Capacity in bytes of the volume",
            "# TYPE kubelet_volume_stats_capacity_bytes gauge",
            "kubelet_volume_stats_capacity_bytes{namespace=\"d\",persistentvolumeclaim=\"data\"} 3",
            "kubelet_volume_stats_used_bytes{namespace=\"d\",persistentvolumeclaim=\"data\"} 2",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert_eq!(of_claims(&BTreeMap::new()), "");
    }
}
