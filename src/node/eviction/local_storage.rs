//! The limits of pods on local storage: sizes of emptyDir volumes, and ephemeral storage of pods
//! and containers.

use api::Quantity;
use api::k8s::api::core::v1 as core;

use crate::eviction::ranking::PodUsage;
use crate::pods::pod::{ContainerRole, Pod, PodContainer};
use crate::pods::resources;

const RESOURCE: &str = "ephemeral-storage";

/// A limit that a pod exceeds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StorageExcess {
    /// The label of the metric of evictions.
    pub(super) signal: &'static str,
    pub(super) message: String,
}

fn limit(container: &core::Container) -> Option<Quantity> {
    let limits = container.resources.as_ref()?.limits.as_ref()?;
    limits.get(RESOURCE).and_then(|text| Quantity::parse(&text.0).ok())
}

/// Containers that run as long as the pod.
fn lasting(member: &&PodContainer) -> bool {
    matches!(member.role, ContainerRole::Main | ContainerRole::Sidecar)
}

/// Whether the pod limits its local storage.
pub(super) fn has_limits(pod: &Pod) -> bool {
    let sized = |v: &core::Volume| v.empty_dir.as_ref().is_some_and(|e| e.size_limit.is_some());
    pod.spec().volumes.iter().flatten().any(sized) || resources::has_limit(pod, RESOURCE)
}

/// Returns the first limit that the pod exceeds (`localStorageEviction`). `layers_count` is whether
/// the layers of containers are on the file system of pods.
pub(super) fn excess(pod: &Pod, used: &PodUsage, layers_count: bool) -> Option<StorageExcess> {
    volume_excess(pod, used)
        .or_else(|| pod_excess(pod, used))
        .or_else(|| container_excess(pod, used, layers_count))
}

/// A volume in memory counts, too: its files are limited by the kernel, so that it is at most
/// full.
fn volume_excess(pod: &Pod, used: &PodUsage) -> Option<StorageExcess> {
    pod.spec().volumes.iter().flatten().find_map(|volume| {
        let text = &volume.empty_dir.as_ref()?.size_limit.as_ref()?.0;
        let size = Quantity::parse(text).ok().filter(|size| size.sign() > 0)?;
        let of_volume = used.volumes.iter().find(|usage| usage.name == volume.name)?;
        let message =
            format!("Usage of EmptyDir volume {:?} exceeds the limit \"{size}\". ", volume.name);
        (Quantity::bytes(of_volume.used.bytes) > size)
            .then_some(StorageExcess { signal: "emptydirfs.limit", message })
    })
}

fn pod_excess(pod: &Pod, used: &PodUsage) -> Option<StorageExcess> {
    let limit = resources::pod_limit(pod, RESOURCE)?;
    let message = format!(
        "Pod ephemeral local storage usage exceeds the total limit of containers {limit}. "
    );
    (Quantity::bytes(used.ephemeral_storage()) > limit)
        .then_some(StorageExcess { signal: "ephemeralpodfs.limit", message })
}

fn container_excess(pod: &Pod, used: &PodUsage, layers_count: bool) -> Option<StorageExcess> {
    used.containers.iter().find_map(|container| {
        let member = pod.container(&container.name).filter(lasting)?;
        let limit = limit(&member.container).filter(|limit| !limit.is_zero())?;
        let layer = container.layer.filter(|_| layers_count).unwrap_or_default();
        let bytes = container.logs.unwrap_or_default().plus(layer).bytes;
        let message = format!(
            "Container {} exceeded its local ephemeral storage limit \"{limit}\". ",
            container.name
        );
        (Quantity::bytes(bytes) > limit)
            .then_some(StorageExcess { signal: "ephemeralcontainerfs.limit", message })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eviction::ranking::{ContainerUsage, DiskAmount, LocalVolumeUsage};
    use crate::pods::pod::tests::pod;
    use serde_json::json;

    const MIB: i64 = 1 << 20;

    fn amount(bytes: i64) -> DiskAmount {
        DiskAmount { bytes, inodes: 1 }
    }

    fn used(layer: i64, logs: i64, volume: i64) -> PodUsage {
        let (layer, logs) = (Some(amount(layer)), Some(amount(logs)));
        let container = ContainerUsage { name: "a".into(), layer, logs, memory: None };
        let volume = LocalVolumeUsage { name: "v".into(), used: amount(volume), is_memory: false };
        PodUsage { containers: vec![container], volumes: vec![volume], ..PodUsage::default() }
    }

    fn message(pod: &Pod, used: &PodUsage) -> Option<String> {
        excess(pod, used, true).map(|excess| format!("{}: {}", excess.signal, excess.message))
    }

    #[test]
    fn a_pod_that_exceeds_a_limit_is_evicted() {
        let p = pod(json!({"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Mi"}}],
            "containers": [{"name": "a", "resources": {"limits": {"ephemeral-storage": "2Mi"}}},
                {"name": "b", "resources": {"limits": {"ephemeral-storage": "1Mi"}}}]}));
        assert!(has_limits(&p));
        assert_eq!(message(&p, &used(MIB, MIB, MIB)), None);
        assert_eq!(
            message(&p, &used(MIB, 0, MIB + 1)).unwrap(),
            "emptydirfs.limit: Usage of EmptyDir volume \"v\" exceeds the limit \"1Mi\". "
        );
        assert_eq!(
            message(&p, &used(MIB, MIB + 1, MIB)).unwrap(),
            "ephemeralpodfs.limit: Pod ephemeral local storage usage exceeds the total limit of \
             containers 3Mi. "
        );
        assert_eq!(
            message(&p, &used(MIB, MIB + 1, 0)).unwrap(),
            "ephemeralcontainerfs.limit: Container a exceeded its local ephemeral storage limit \
             \"2Mi\". "
        );
        assert_eq!(excess(&p, &used(MIB, MIB + 1, 0), false), None, "layers are elsewhere");
    }

    /// CVE-2020-8557: writes of a container to the pod's /etc/hosts count as usage of the pod.
    #[test]
    fn a_pod_whose_hosts_file_exceeds_its_limit_is_evicted() {
        let p = pod(json!({"containers": [{"name": "a",
                "resources": {"limits": {"ephemeral-storage": "2Mi"}}}]}));
        let with = |hosts: i64| PodUsage { hosts: amount(hosts), ..used(MIB, 0, 0) };
        assert_eq!(message(&p, &with(MIB)), None);
        assert!(message(&p, &with(MIB + 1)).unwrap().starts_with("ephemeralpodfs.limit: Pod eph"));
    }

    /// Upstream's `TestLocalStorageEviction` of a sidecar, and `TestEmptyDirLimit`.
    #[test]
    fn sidecars_and_volumes_in_memory_are_limited() {
        let sidecar = pod(json!({"containers": [{"name": "b"}], "initContainers": [
            {"name": "a", "restartPolicy": "Always",
                "resources": {"limits": {"ephemeral-storage": "10Mi"}}}]}));
        assert!(message(&sidecar, &used(50 * MIB, 50 * MIB, 0)).is_some());
        let in_memory = pod(json!({"containers": [{"name": "a"}],
            "volumes": [{"name": "v", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}]}));
        let with = |mebibytes: i64| {
            let mut out = used(0, 0, mebibytes * MIB);
            out.volumes[0].is_memory = true;
            message(&in_memory, &out)
        };
        assert!(with(2048).unwrap().starts_with("emptydirfs.limit"));
        assert_eq!(with(500), None);
    }

    #[test]
    fn a_pod_without_limits_is_not_measured() {
        let volumes = json!([{"name": "v", "emptyDir": {}}]);
        assert!(!has_limits(&pod(json!({"volumes": volumes, "containers": [{"name": "a"}]}))));
    }
}
