//! Ranks pods for eviction and formats the messages: pure functions over measurements, in
//! upstream's order.

use api::Quantity;
use api::k8s::api::core::v1 as core;
use sorting::CompactSort as _;

use crate::eviction::pressure::{ScarceResource, Shortage};
use crate::pods::pod::{ContainerRole, Pod, PodOrigin};
use crate::pods::resources;

/// Pods of this priority or higher are never evicted (`scheduling.SystemCriticalPriority`).
const CRITICAL_PRIORITY: i32 = 2_000_000_000;
/// Grace period of a hard eviction, in seconds (`immediateEvictionGracePeriodSeconds`).
pub(crate) const GRACE: i64 = 1;
/// Reason of an evicted pod.
pub(crate) const REASON: &str = "Evicted";

/// Usage of one container in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ContainerUsage {
    pub(crate) name: String,
    pub(crate) memory: i64,
    /// Writable layer and logs.
    pub(crate) storage: i64,
}

/// Usage of a pod in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PodUsage {
    pub(crate) containers: Vec<ContainerUsage>,
    /// emptyDir volumes on disk, by name.
    pub(crate) volumes: Vec<(String, i64)>,
    /// The pod's /etc/hosts, which containers can write to.
    pub(crate) hosts: i64,
}

impl PodUsage {
    fn of(&self, what: ScarceResource) -> i64 {
        let containers = self.containers.iter().map(|c| match what {
            ScarceResource::Memory => c.memory,
            ScarceResource::Storage => c.storage,
        });
        let volumes: i64 = self.volumes.iter().map(|(_, bytes)| *bytes).sum();
        let files = volumes.saturating_add(self.hosts);
        containers.sum::<i64>().saturating_add(if what == ScarceResource::Storage {
            files
        } else {
            0
        })
    }
}

/// Whether a pod is never evicted: static pods and those of the system's priority classes.
pub(crate) fn is_critical(pod: &Pod) -> bool {
    pod.origin == PodOrigin::Static || pod.spec().priority.is_some_and(|p| p >= CRITICAL_PRIORITY)
}

/// Returns the indexes of the pods in eviction order: pods above their requests first, then by
/// priority, then by usage above the requests. Critical pods are left out.
pub(crate) fn rank(pods: &[(&Pod, PodUsage)], what: ScarceResource) -> Vec<usize> {
    let key = |index: usize| {
        let (pod, used) = &pods[index];
        let above = used.of(what) - resources::pod_request(pod, what.name()).value();
        let priority = pod.spec().priority.unwrap_or(0);
        (above <= 0, priority, std::cmp::Reverse(above))
    };
    let mut out: Vec<usize> = (0..pods.len()).filter(|i| !is_critical(pods[*i].0)).collect();
    out.compact_sort_by_key(|i| key(*i));
    out
}

/// The message of an evicted pod's status.
pub(crate) fn message(pod: &Pod, used: &PodUsage, shortage: Shortage) -> String {
    let name = shortage.of.name();
    let bytes = |amount: i64| Quantity::bytes(amount).to_string();
    let mut out = format!(
        "The node was low on resource: {name}. Threshold quantity: {}, available: {}. ",
        bytes(shortage.threshold),
        bytes(shortage.available)
    );
    for container in &used.containers {
        let usage = match shortage.of {
            ScarceResource::Memory => container.memory,
            ScarceResource::Storage => container.storage,
        };
        let Some(member) =
            pod.container(&container.name).filter(|m| m.role != ContainerRole::Ephemeral)
        else {
            continue;
        };
        let requests = member.container.resources.as_ref().and_then(|r| r.requests.as_ref());
        let request = requests.and_then(|r| r.get(name)).map_or("0", |q| q.0.as_str());
        if Quantity::bytes(usage) > Quantity::parse(request).unwrap_or(Quantity::from_int(0)) {
            out.push_str(&format!(
                "Container {} was using {}, request is {request}, has larger consumption of \
                 {name}. ",
                container.name,
                bytes(usage)
            ));
        }
    }
    out
}

fn limit(list: &core::Container) -> Option<&str> {
    let limits = list.resources.as_ref()?.limits.as_ref()?;
    limits.get("ephemeral-storage").map(|q| q.0.as_str())
}

/// Whether the pod limits its local storage.
pub(crate) fn has_storage_limits(pod: &Pod) -> bool {
    let sized = |v: &core::Volume| v.empty_dir.as_ref().is_some_and(|e| e.size_limit.is_some());
    pod.spec().volumes.iter().flatten().any(sized)
        || pod.containers.iter().any(|m| limit(&m.container).is_some())
}

/// Returns a message for the first limit on local storage that the pod exceeds.
pub(crate) fn storage_excess(pod: &Pod, used: &PodUsage) -> Option<String> {
    if is_critical(pod) {
        return None;
    }
    let over = |bytes: i64, limit: &str| {
        Quantity::parse(limit).is_ok_and(|l| l.value() > 0 && Quantity::bytes(bytes) > l)
    };
    for volume in pod.spec().volumes.iter().flatten() {
        let size = volume.empty_dir.as_ref().and_then(|e| e.size_limit.as_ref());
        let bytes = used.volumes.iter().find(|(name, _)| *name == volume.name).map(|(_, b)| *b);
        if let (Some(size), Some(bytes)) = (size, bytes)
            && over(bytes, &size.0)
        {
            return Some(format!(
                "Usage of EmptyDir volume {:?} exceeds the limit {:?}. ",
                volume.name, size.0
            ));
        }
    }
    let lasting = |m: &&crate::pods::pod::PodContainer| {
        matches!(m.role, ContainerRole::Main | ContainerRole::Sidecar)
    };
    let limits: Vec<Option<&str>> =
        pod.containers.iter().filter(lasting).map(|m| limit(&m.container)).collect();
    if limits.iter().any(Option::is_some) {
        let zero = Quantity::from_int(0);
        let parsed = |text: &&str| Quantity::parse(text).unwrap_or(zero);
        let total = limits.iter().flatten().map(parsed).fold(zero, Quantity::plus);
        if over(used.of(ScarceResource::Storage), &total.to_string()) {
            return Some(format!(
                "Pod ephemeral local storage usage exceeds the total limit of containers {total}. "
            ));
        }
    }
    for member in pod.containers.iter().filter(lasting) {
        let bytes = used.containers.iter().find(|c| c.name == member.name()).map(|c| c.storage);
        if let (Some(limit), Some(bytes)) = (limit(&member.container), bytes)
            && over(bytes, limit)
        {
            return Some(format!(
                "Container {} exceeded its local ephemeral storage limit {limit:?}. ",
                member.name()
            ));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::pod::tests::pod;
    use serde_json::json;

    fn used(memory: i64, storage: i64) -> PodUsage {
        let container = ContainerUsage { name: "a".into(), memory, storage };
        PodUsage { containers: vec![container], ..PodUsage::default() }
    }

    #[test]
    fn pods_above_their_requests_are_evicted_first_then_by_priority() {
        let of = |request: &str, priority: i32| {
            pod(json!({"priority": priority, "containers": [{"name": "a",
                    "resources": {"requests": {"memory": request}}}]}))
        };
        let (modest, important, greedy, greedier, critical) =
            (of("1Gi", 0), of("1Mi", 10), of("1Mi", 0), of("1Mi", 0), of("0", 2_000_000_000));
        let mib = |n: i64| used(n << 20, 0);
        let pods = [
            (&modest, mib(512)),
            (&important, mib(900)),
            (&greedy, mib(3)),
            (&greedier, mib(4)),
            (&critical, mib(999)),
        ];
        assert_eq!(rank(&pods, ScarceResource::Memory), [3, 2, 1, 0]);
        let shortage =
            Shortage { of: ScarceResource::Memory, threshold: 100 << 20, available: 50 << 20 };
        assert_eq!(
            message(&greedy, &mib(3), shortage),
            "The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. \
             Container a was using 3Mi, request is 1Mi, has larger consumption of memory. "
        );
    }

    /// CVE-2020-8557: writes of a container to the pod's /etc/hosts count as usage of the pod.
    #[test]
    fn a_pod_whose_hosts_file_exceeds_its_limit_is_evicted() {
        let p = pod(json!({"containers": [{"name": "a",
                "resources": {"limits": {"ephemeral-storage": "2Mi"}}}]}));
        let with = |hosts: i64| PodUsage { hosts, ..used(0, 1 << 20) };
        assert_eq!(storage_excess(&p, &with(1 << 20)), None);
        assert_eq!(
            storage_excess(&p, &with((1 << 20) + 1)).unwrap(),
            "Pod ephemeral local storage usage exceeds the total limit of containers 2Mi. "
        );
    }

    #[test]
    fn a_pod_that_exceeds_its_limit_on_local_storage_is_evicted() {
        let p = pod(json!({"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Mi"}}],
            "containers": [{"name": "a", "resources": {"limits": {"ephemeral-storage": "2Mi"}}}]}));
        assert!(has_storage_limits(&p));
        let with = |volume: i64, storage: i64| PodUsage {
            volumes: vec![("v".into(), volume)],
            ..used(0, storage)
        };
        assert_eq!(storage_excess(&p, &with(1 << 20, 1 << 20)), None);
        assert_eq!(
            storage_excess(&p, &with((1 << 20) + 1, 0)).unwrap(),
            "Usage of EmptyDir volume \"v\" exceeds the limit \"1Mi\". "
        );
        assert_eq!(
            storage_excess(&p, &with(1 << 20, (1 << 20) + 1)).unwrap(),
            "Pod ephemeral local storage usage exceeds the total limit of containers 2Mi. "
        );
    }
}
