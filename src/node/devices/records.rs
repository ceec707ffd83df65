//! The devices that containers have, as the checkpoint keeps them.

use std::collections::{BTreeMap, BTreeSet};

use proto::deviceplugin::ContainerAllocateResponse;
use sorting::CollectOrdered as _;

/// Number of the NUMA node under which devices without topology are recorded.
pub(crate) const WITHOUT_TOPOLOGY: i64 = -1;

/// The devices of one resource that a container has.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Allocation {
    /// Device ids by NUMA node; a device on two nodes is listed under both.
    pub(crate) ids_by_node: BTreeMap<i64, Vec<String>>,
    /// What the plugin wants the container to get.
    pub(crate) response: ContainerAllocateResponse,
}

impl Allocation {
    /// The ids of all devices.
    pub(crate) fn ids(&self) -> BTreeSet<String> {
        self.ids_by_node.values().flatten().cloned().collect_set()
    }

    /// The NUMA nodes of each device; none for a device without topology.
    pub(crate) fn nodes_by_id(&self) -> BTreeMap<&str, Vec<i64>> {
        let mut out: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
        for (node, ids) in &self.ids_by_node {
            for id in ids {
                let nodes = out.entry(id).or_default();
                nodes.extend((*node != WITHOUT_TOPOLOGY).then_some(*node));
            }
        }
        out
    }
}

/// The allocations of one container, by resource.
pub(crate) type ContainerAllocations = BTreeMap<String, Allocation>;

/// All allocations: by uid of the pod, container and resource.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct PodDevices(BTreeMap<String, BTreeMap<String, ContainerAllocations>>);

impl PodDevices {
    /// Records an allocation and replaces an earlier one of the same container and resource.
    pub(crate) fn insert(
        &mut self,
        pod: &str,
        container: &str,
        resource: &str,
        allocation: Allocation,
    ) {
        let containers = self.0.entry(pod.to_owned()).or_default();
        let resources = containers.entry(container.to_owned()).or_default();
        resources.insert(resource.to_owned(), allocation);
    }

    /// Replaces what the plugin wants a container to get; returns whether that is something else.
    pub(crate) fn replace_response(
        &mut self,
        pod: &str,
        container: &str,
        resource: &str,
        response: ContainerAllocateResponse,
    ) -> bool {
        let containers = self.0.get_mut(pod).and_then(|containers| containers.get_mut(container));
        let Some(allocation) = containers.and_then(|all| all.get_mut(resource)) else {
            return false;
        };
        let is_changed = allocation.response != response;
        allocation.response = response;
        is_changed
    }

    /// Removes the allocations of a pod; returns whether it had some.
    pub(crate) fn remove(&mut self, pod: &str) -> bool {
        self.0.remove(pod).is_some()
    }

    /// The uids of the pods with allocations.
    pub(crate) fn pods(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// The allocations of a container.
    pub(crate) fn container(&self, pod: &str, container: &str) -> Option<&ContainerAllocations> {
        self.0.get(pod)?.get(container)
    }

    /// The devices of one resource that a container has; `None` without an allocation.
    pub(crate) fn devices(
        &self,
        pod: &str,
        container: &str,
        resource: &str,
    ) -> Option<BTreeSet<String>> {
        Some(self.container(pod, container)?.get(resource)?.ids())
    }

    /// Whether a pod has devices of a resource.
    pub(crate) fn pod_has(&self, pod: &str, resource: &str) -> bool {
        let containers = self.0.get(pod);
        containers.is_some_and(|all| all.values().any(|c| c.contains_key(resource)))
    }

    /// Whether any container has devices of a resource.
    pub(crate) fn has_resource(&self, resource: &str) -> bool {
        self.all().any(|(_, _, name, _)| name == resource)
    }

    /// The devices of a resource that containers have.
    pub(crate) fn allocated(&self, resource: &str) -> BTreeSet<String> {
        self.owners(resource).map(|(id, _)| id).collect_set()
    }

    /// The devices of a resource that containers have, with the uids of their pods. Ids are unique
    /// within their resource only.
    pub(crate) fn owners(&self, resource: &str) -> impl Iterator<Item = (String, &str)> {
        let of_resource = self.all().filter(move |(_, _, name, _)| *name == resource);
        of_resource.flat_map(|(pod, _, _, allocation)| {
            allocation.ids().into_iter().map(move |id| (id, pod))
        })
    }

    /// All allocations: uid of the pod, container, resource and devices, sorted.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&str, &str, &str, &Allocation)> {
        self.0.iter().flat_map(|(pod, containers)| {
            containers.iter().flat_map(move |(container, resources)| {
                resources.iter().map(move |(resource, allocation)| {
                    (pod.as_str(), container.as_str(), resource.as_str(), allocation)
                })
            })
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// An allocation of devices without topology.
    pub(crate) fn allocation(ids: &[&str]) -> Allocation {
        let ids = ids.iter().map(|id| (*id).to_owned()).collect();
        let ids_by_node = BTreeMap::from([(WITHOUT_TOPOLOGY, ids)]);
        Allocation { ids_by_node, response: ContainerAllocateResponse::default() }
    }

    #[test]
    fn a_device_on_two_nodes_is_one_device_with_both() {
        let ids = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>();
        let ids_by_node = BTreeMap::from([
            (WITHOUT_TOPOLOGY, ids(&["dev3"])),
            (0, ids(&["dev1"])),
            (1, ids(&["dev1", "dev2"])),
        ]);
        let two = Allocation { ids_by_node, ..Allocation::default() };
        let nodes = BTreeMap::from([("dev1", vec![0, 1]), ("dev2", vec![1]), ("dev3", vec![])]);
        assert_eq!(two.nodes_by_id(), nodes);
        assert_eq!(two.ids(), BTreeSet::from(["dev1", "dev2", "dev3"].map(str::to_owned)));
    }

    #[test]
    fn the_owner_of_a_device_is_looked_up_within_its_resource() {
        let mut devices = PodDevices::default();
        devices.insert("pod1", "con1", "resource1", allocation(&["dev1"]));
        devices.insert("pod2", "con1", "resource2", allocation(&["dev1", "dev2"]));
        let owners = |resource| devices.owners(resource).collect::<Vec<_>>();
        assert_eq!(owners("resource1"), [("dev1".to_owned(), "pod1")]);
        let both = [("dev1".to_owned(), "pod2"), ("dev2".to_owned(), "pod2")];
        assert_eq!(owners("resource2"), both);
        assert!(devices.pod_has("pod1", "resource1") && !devices.pod_has("pod1", "resource2"));
        assert!(devices.remove("pod1") && !devices.remove("pod1"));
        assert!(!devices.has_resource("resource1") && devices.has_resource("resource2"));
        let pods: Vec<&str> = devices.pods().collect();
        assert_eq!(pods, ["pod2"]);
    }
}
