//! The nodes of the cluster with the pods on them, and sums over all nodes.

use std::collections::HashMap;
use std::sync::Arc;

use api::k8s::api::core::v1::Node;
use parking_lot::Mutex;

use crate::event::{label, node_event};
use crate::node_info::NodeInfo;
use crate::pod_classes::PodClasses;
use crate::pod_info::PodInfo;
use crate::topology::Topology;

/// Most topologies that are kept.
const TOPOLOGIES_MAX: usize = 64;

/// Topologies by key. Copies of the nodes share them until either changes.
#[derive(Debug, Default)]
struct TopologyCache(Mutex<HashMap<String, Arc<Topology>>>);

impl Clone for TopologyCache {
    fn clone(&self) -> Self {
        Self(Mutex::new(self.0.lock().clone()))
    }
}

/// The classes of pods; `None` until a plugin asks for them. Copies of the nodes share them until
/// either changes.
#[derive(Debug, Default)]
struct ClassCache(Mutex<Option<Arc<PodClasses>>>);

impl Clone for ClassCache {
    fn clone(&self) -> Self {
        Self(Mutex::new(self.0.lock().clone()))
    }
}

impl ClassCache {
    fn get_mut(&mut self) -> Option<&mut PodClasses> {
        self.0.get_mut().as_mut().map(Arc::make_mut)
    }
}

/// All nodes, in no particular order. A copy for a detached cycle shares each of them until it
/// changes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Nodes {
    infos: Vec<Arc<NodeInfo>>,
    by_name: Arc<HashMap<String, usize>>,
    /// Pods of nodes without an object: seen before their node, or after its deletion.
    absent: HashMap<String, Vec<Arc<PodInfo>>>,
    /// The classes of the pods on nodes, with the indexes of the nodes.
    classes: ClassCache,
    /// The topologies that plugins asked for, by key; empty after a change of nodes.
    topologies: TopologyCache,
    /// How many nodes hold an image, by its name.
    image_nodes: Arc<HashMap<String, usize>>,
    /// Number of pods with terms of pod affinity or anti-affinity.
    affine_pods: usize,
    /// Number of pods with required anti-affinity.
    repelling_pods: usize,
}

#[cfg(test)]
impl FromIterator<NodeInfo> for Nodes {
    fn from_iter<I: IntoIterator<Item = NodeInfo>>(nodes: I) -> Self {
        let mut all = Self::default();
        for mut node in nodes {
            let (name, pods) = (node.name.clone(), std::mem::take(&mut node.pods));
            // The pods add to these again.
            (node.requested, node.non_zero) = Default::default();
            all.insert(node);
            for pod in pods {
                all.add_pod(&name, pod);
            }
        }
        all
    }
}

impl Nodes {
    /// All nodes, in the order of their indexes.
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = &NodeInfo> {
        self.infos.iter().map(AsRef::as_ref)
    }

    /// The node with this index.
    pub(crate) fn get(&self, index: usize) -> Option<&NodeInfo> {
        self.infos.get(index).map(AsRef::as_ref)
    }

    /// The number of nodes.
    pub(crate) fn len(&self) -> usize {
        self.infos.len()
    }

    /// The node with this name.
    pub(crate) fn find(&self, name: &str) -> Option<&NodeInfo> {
        self.get(*self.by_name.get(name)?)
    }

    /// The node with this name, for a change.
    fn find_mut(&mut self, name: &str) -> Option<&mut NodeInfo> {
        self.infos.get_mut(*self.by_name.get(name)?).map(Arc::make_mut)
    }

    /// The domains of a topology key.
    pub(crate) fn topology(&self, key: &str) -> Arc<Topology> {
        let mut known = self.topologies.0.lock();
        if let Some(topology) = known.get(key) {
            return Arc::clone(topology);
        }
        // Keys come from pods: a cluster uses few of them, but nothing bounds them.
        if known.len() >= TOPOLOGIES_MAX {
            known.clear();
        }
        let topology = Arc::new(Topology::new(key, &self.infos));
        known.insert(key.to_owned(), Arc::clone(&topology));
        topology
    }

    /// The classes of the pods on nodes, for selectors that have these label keys.
    pub(crate) fn classes(&self, keys: &[&str]) -> Arc<PodClasses> {
        let mut known = self.classes.0.lock();
        if let Some(classes) = known.as_ref().filter(|classes| classes.have_keys(keys)) {
            return Arc::clone(classes);
        }
        let mut classes = PodClasses::with_keys(known.as_deref(), keys);
        for node in &self.infos {
            for pod in &node.pods {
                classes.add(node.index, pod);
            }
        }
        Arc::clone(known.insert(Arc::new(classes)))
    }

    /// How many nodes hold the image with this name.
    pub(crate) fn holding_image(&self, image: &str) -> usize {
        self.image_nodes.get(image).copied().unwrap_or(0)
    }

    /// Whether a pod has terms of pod affinity or anti-affinity.
    pub(crate) fn have_affine_pods(&self) -> bool {
        self.affine_pods > 0
    }

    /// Whether a pod has required anti-affinity.
    pub(crate) fn have_repelling_pods(&self) -> bool {
        self.repelling_pods > 0
    }

    /// Adds or changes a node. Returns the name of the event if it may make a pod schedulable.
    pub(crate) fn set_node(&mut self, node: &Node) -> Option<&'static str> {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let Some(old) = self.find(name) else {
            let pods = self.absent.remove(name).unwrap_or_default();
            let mut info = NodeInfo::default();
            info.set_node(node);
            self.insert(info);
            for pod in pods {
                self.add_pod(name, pod);
            }
            return Some(label::NODE_ADD);
        };
        let mut info = old.clone();
        info.set_node(node);
        let label = node_event(old, &info);
        self.insert(info);
        label
    }

    /// Puts a node into the list, in the place of one with its name.
    fn insert(&mut self, mut info: NodeInfo) {
        self.count_images(&info, 1);
        let known = self.by_name.get(&info.name).copied();
        match known.and_then(|index| self.infos.get_mut(index)) {
            Some(place) => {
                if place.labels != info.labels {
                    self.topologies = TopologyCache::default();
                }
                info.index = place.index;
                let old = std::mem::replace(place, Arc::new(info));
                self.count_images(&old, -1);
            }
            None => {
                self.topologies = TopologyCache::default();
                info.index = self.infos.len();
                Arc::make_mut(&mut self.by_name).insert(info.name.clone(), info.index);
                self.infos.push(Arc::new(info));
            }
        }
    }

    /// Removes a node; its pods stay until they are removed.
    pub(crate) fn remove_node(&mut self, name: &str) {
        let Some(index) = self.by_name.get(name).copied() else { return };
        let by_name = Arc::make_mut(&mut self.by_name);
        by_name.remove(name);
        let info = self.infos.swap_remove(index);
        if let Some(moved) = self.infos.get_mut(index).map(Arc::make_mut) {
            moved.index = index;
            by_name.insert(moved.name.clone(), index);
        }
        self.topologies = TopologyCache::default();
        self.count_images(&info, -1);
        for pod in &info.pods {
            self.count_affinity(pod, -1);
        }
        // The last node has another index.
        self.classes = ClassCache::default();
        if !info.pods.is_empty() {
            self.absent.insert(name.to_owned(), Arc::unwrap_or_clone(info).pods);
        }
    }

    /// Puts a pod on a node.
    pub(crate) fn add_pod(&mut self, node: &str, pod: Arc<PodInfo>) {
        let Some(info) = self.find_mut(node) else {
            self.absent.entry(node.to_owned()).or_default().push(pod);
            return;
        };
        info.add_pod(Arc::clone(&pod));
        let index = info.index;
        if let Some(classes) = self.classes.get_mut() {
            classes.add(index, &pod);
        }
        self.count_affinity(&pod, 1);
    }

    /// Takes a pod off a node.
    pub(crate) fn remove_pod(
        &mut self,
        node: &str,
        namespace: &str,
        name: &str,
    ) -> Option<Arc<PodInfo>> {
        let Some(info) = self.find_mut(node) else {
            let pods = self.absent.get_mut(node)?;
            let index = pods.iter().position(|p| p.name == name && p.namespace == namespace)?;
            let pod = pods.swap_remove(index);
            if pods.is_empty() {
                self.absent.remove(node);
            }
            return Some(pod);
        };
        let (pod, index) = (info.remove_pod(namespace, name)?, info.index);
        if let Some(classes) = self.classes.get_mut() {
            classes.remove(index, &pod);
        }
        self.count_affinity(&pod, -1);
        Some(pod)
    }

    /// Adds a pod on a node to the sums, or takes it off (`by` is -1).
    fn count_affinity(&mut self, pod: &PodInfo, by: isize) {
        let of = |counts: bool| if counts { by } else { 0 };
        self.affine_pods = self.affine_pods.saturating_add_signed(of(pod.has_affinity()));
        let repels = !pod.anti_affinity.is_empty();
        self.repelling_pods = self.repelling_pods.saturating_add_signed(of(repels));
    }

    /// Adds a node to the sums, or takes it off (`by` is -1).
    fn count_images(&mut self, info: &NodeInfo, by: isize) {
        if info.images.is_empty() {
            return;
        }
        let image_nodes = Arc::make_mut(&mut self.image_nodes);
        for image in info.images.keys() {
            let count = image_nodes.entry(image.clone()).or_default();
            *count = count.saturating_add_signed(by);
            if *count == 0 {
                image_nodes.remove(image);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use sorting::CompactSort as _;

    fn node(name: &str, images: &[&str]) -> Node {
        let images: Vec<_> = images.iter().map(|i| json!({"names": [i], "sizeBytes": 1})).collect();
        let node = json!({"metadata": {"name": name}, "status": {"images": images}});
        serde_json::from_value(node).unwrap()
    }

    fn pod(name: &str) -> Arc<PodInfo> {
        let term = json!([{"topologyKey": "k", "labelSelector": {}}]);
        let affinity =
            json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}});
        let spec = json!({"containers": [], "affinity": affinity});
        let pod = json!({"metadata": {"name": name, "namespace": "n"}, "spec": spec});
        Arc::new(PodInfo::new(&serde_json::from_value(pod).unwrap()))
    }

    #[test]
    fn pods_outlive_their_node_and_may_come_before_it() {
        let mut nodes = Nodes::default();
        nodes.add_pod("a", pod("early"));
        assert!(nodes.len() == 0 && !nodes.have_repelling_pods());
        assert_eq!(nodes.set_node(&node("a", &[])), Some("NodeAdd"));
        assert!(nodes.have_repelling_pods() && nodes.have_affine_pods());
        assert_eq!(nodes.set_node(&node("a", &[])), None, "nothing has changed");
        assert_eq!(nodes.find("a").unwrap().pods.len(), 1);
        nodes.set_node(&node("b", &[]));
        nodes.remove_node("a");
        assert_eq!(nodes.find("b").unwrap().name, "b");
        assert!(nodes.find("a").is_none() && !nodes.have_repelling_pods());
        nodes.set_node(&node("a", &[]));
        assert!(nodes.remove_pod("a", "n", "early").is_some());
        assert!(nodes.remove_pod("a", "n", "early").is_none());
        assert!(!nodes.have_affine_pods());
    }

    /// Namespaces and names of nodes of all classes, with the numbers of their pods.
    fn classes(nodes: &Nodes) -> Vec<(String, String, i64)> {
        let classes = nodes.classes(&["app"]);
        let count = |class: &crate::pod_classes::PodClass| -> Vec<_> {
            let app = class.example().labels.get("app").cloned().unwrap_or_default();
            let name = |node: usize| nodes.get(node).unwrap().name.clone();
            class.nodes().map(|(node, count)| (app.clone(), name(node), count.pods)).collect()
        };
        let mut all: Vec<_> = classes.iter().flat_map(count).collect();
        all.compact_sort();
        all
    }

    #[test]
    fn classes_follow_pods_and_nodes() {
        let labelled = |name: &str, app: &str| {
            let labels = [("app", app), ("unique", name)];
            let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
            Arc::new(PodInfo { labels, ..PodInfo::clone(&pod(name)) })
        };
        let mut nodes = Nodes::default();
        for name in ["a", "b", "c"] {
            nodes.set_node(&node(name, &[]));
        }
        nodes.add_pod("a", labelled("1", "x"));
        let of = |app: &str, node: &str, pods: i64| (app.to_owned(), node.to_owned(), pods);
        assert_eq!(classes(&nodes), [of("x", "a", 1)]);
        for (node, name, app) in [("a", "2", "x"), ("c", "3", "x"), ("c", "4", "y")] {
            nodes.add_pod(node, labelled(name, app));
        }
        let copy = nodes.clone();
        assert_eq!(classes(&nodes), [of("x", "a", 2), of("x", "c", 1), of("y", "c", 1)]);
        nodes.remove_pod("a", "n", "1");
        nodes.remove_pod("c", "n", "4");
        assert_eq!(classes(&nodes), [of("x", "a", 1), of("x", "c", 1)]);
        nodes.remove_node("a");
        assert_eq!(classes(&nodes), [of("x", "c", 1)], "c has the index of a");
        nodes.set_node(&node("a", &[]));
        nodes.add_pod("a", labelled("5", "y"));
        assert_eq!(classes(&nodes), [of("x", "a", 1), of("x", "c", 1), of("y", "a", 1)]);
        assert_eq!(classes(&copy), [of("x", "a", 2), of("x", "c", 1), of("y", "c", 1)]);
    }

    #[test]
    fn images_are_counted_by_node() {
        let mut nodes = Nodes::default();
        nodes.set_node(&node("a", &["x", "y"]));
        nodes.set_node(&node("b", &["x"]));
        assert_eq!((nodes.holding_image("x"), nodes.holding_image("y")), (2, 1));
        nodes.set_node(&node("a", &["z"]));
        assert_eq!((nodes.holding_image("x"), nodes.holding_image("y")), (1, 0));
        nodes.remove_node("b");
        assert_eq!(nodes.holding_image("x"), 0);
    }
}
