//! What one node reports at one moment: counters of the node and of its containers.

use std::collections::BTreeMap;

/// The counters of a node or of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Point {
    /// Start of the container, in nanoseconds since the epoch; zero for a node.
    pub started: i64,
    /// Time of the measurement, in nanoseconds since the epoch.
    pub at: i64,
    /// CPU time since the start, in nanoseconds.
    pub cpu_ns: u64,
    /// Working set, in bytes.
    pub memory: u64,
}

/// Namespace and name of a pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodKey {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// The containers of a pod by name.
pub type Containers = BTreeMap<String, Point>;

/// The counters of one node and of the running containers of its pods.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sample {
    /// The node; `None` if its counters are incomplete.
    pub node: Option<Point>,
    /// Pods with the complete counters of all their containers.
    pub pods: BTreeMap<PodKey, Containers>,
}

impl Sample {
    /// Builds a sample as metrics-server's `decodeBatch` does: it drops counters of zero, of the
    /// node as well as of a pod with such a container, because they are incomplete.
    pub fn new(node: Point, containers: impl IntoIterator<Item = (PodKey, String, Point)>) -> Self {
        let is_complete = |point: &Point| point.at != 0 && point.cpu_ns != 0 && point.memory != 0;
        let mut pods: BTreeMap<PodKey, Containers> = BTreeMap::new();
        for (pod, container, point) in containers {
            pods.entry(pod).or_default().insert(container, point);
        }
        pods.retain(|_, containers| containers.values().all(is_complete));
        Self { node: Some(node).filter(is_complete), pods }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incomplete_counters_are_dropped() {
        let key = |name: &str| PodKey { namespace: "n".into(), name: name.into() };
        let point = |cpu_ns, memory| Point { started: 1, at: 2, cpu_ns, memory };
        let sample = Sample::new(
            point(0, 5),
            [
                (key("whole"), "a".into(), point(1, 1)),
                (key("no-cpu"), "a".into(), point(0, 1)),
                (key("half"), "a".into(), point(1, 1)),
                (key("half"), "b".into(), point(1, 0)),
            ],
        );
        assert_eq!(sample.node, None);
        assert_eq!(sample.pods.keys().map(|k| k.name.as_str()).collect::<Vec<_>>(), ["whole"]);
    }
}
