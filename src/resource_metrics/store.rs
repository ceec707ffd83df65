//! The last two samples of every node, and the history.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use parking_lot::{Mutex, RwLock};
use sorting::CollectOrdered as _;

use crate::history::{History, HistoryPoint, Series, Subject};
use crate::sample::{Containers, PodKey, Point, Sample};
use crate::usage::{self, PodUsage, Usage};

/// The last points of a node, and those that begin their windows.
#[derive(Debug, Default)]
struct NodeSamples {
    last: Sample,
    begin: Sample,
}

/// Usages of all nodes and pods. Its size is bounded by what the nodes run.
#[derive(Debug, Default)]
pub struct Store {
    nodes: RwLock<HashMap<String, NodeSamples>>,
    history: Mutex<History>,
}

impl Store {
    /// Adds the sample of a node (`Store` of metrics-server's `nodeStorage` and `podStorage`).
    pub fn put(&self, node: &str, sample: Sample) {
        let mut nodes = self.nodes.write();
        let old = nodes.remove(node).unwrap_or_default();
        let begin = begin(&sample, &old);
        let samples = NodeSamples { last: sample, begin };
        self.record(node, &samples);
        nodes.insert(node.to_owned(), samples);
    }

    /// Removes the usages of a node that did not answer; its history stays.
    pub fn remove(&self, node: &str) {
        self.nodes.write().remove(node);
    }

    /// Removes the usages of nodes that are not measured any more, and history that is too old at
    /// `now`, in nanoseconds since the epoch.
    pub fn retain(&self, nodes: &BTreeSet<String>, now: i64) {
        self.nodes.write().retain(|name, _| nodes.contains(name));
        self.history.lock().prune(now);
    }

    /// The usage of a node; `None` before its second sample.
    pub fn node(&self, name: &str) -> Option<Usage> {
        let nodes = self.nodes.read();
        let samples = nodes.get(name)?;
        usage::between(samples.last.node.as_ref()?, samples.begin.node.as_ref()?)
    }

    /// The usage of a pod on a node; `None` unless every container has two points.
    pub fn pod(&self, node: &str, pod: &PodKey) -> Option<PodUsage> {
        let nodes = self.nodes.read();
        let samples = nodes.get(node)?;
        usage::of_pod(samples.last.pods.get(pod)?, samples.begin.pods.get(pod)?)
    }

    /// The last hour of the nodes and pods that `wanted` selects.
    pub fn history(&self, wanted: impl Fn(&Subject) -> bool) -> Vec<Series> {
        self.history.lock().select(wanted)
    }

    /// Adds the usages that follow from new samples to the history.
    fn record(&self, node: &str, samples: &NodeSamples) {
        let NodeSamples { last, begin } = samples;
        let mut history = self.history.lock();
        let of_node = last.node.as_ref().zip(begin.node.as_ref());
        if let Some(usage) = of_node.and_then(|(last, begin)| usage::between(last, begin)) {
            let point = HistoryPoint::new(usage.cpu, usage.memory);
            history.push(Subject::Node(node.to_owned()), usage.at, point);
        }
        for (pod, containers) in &last.pods {
            let Some(usage) = begin.pods.get(pod).and_then(|b| usage::of_pod(containers, b)) else {
                continue;
            };
            let sum = |of: fn(&Usage) -> u64| {
                usage.containers.iter().fold(0_u64, |sum, (_, one)| sum.saturating_add(of(one)))
            };
            let point = HistoryPoint::new(sum(|one| one.cpu), sum(|one| one.memory));
            history.push(Subject::Pod(pod.clone()), usage.at, point);
        }
    }
}

/// The points that begin the windows of a new sample.
fn begin(new: &Sample, old: &NodeSamples) -> Sample {
    let of_node =
        |point: &Point| usage::begin(point, old.last.node.as_ref(), old.begin.node.as_ref());
    let of_pod = |(pod, containers): (&PodKey, &Containers)| {
        let (last, begin) = (old.last.pods.get(pod), old.begin.pods.get(pod));
        let of_container = |(name, point): (&String, &Point)| {
            let at = |containers: Option<&'_ Containers>| containers?.get(name).copied();
            let begins = usage::begin(point, at(last).as_ref(), at(begin).as_ref())?;
            Some((name.clone(), begins))
        };
        let found: Containers = containers.iter().filter_map(of_container).collect();
        (!found.is_empty()).then(|| (pod.clone(), found))
    };
    let pods: BTreeMap<PodKey, Containers> = new.pods.iter().filter_map(of_pod).collect_map();
    Sample { node: new.node.as_ref().and_then(of_node), pods }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;

    fn key() -> PodKey {
        PodKey { namespace: "default".into(), name: "p".into() }
    }

    fn sample(at: i64, cpu_seconds: u64, containers: &[&str]) -> Sample {
        let point = |started| Point {
            started,
            at: at * SECOND,
            cpu_ns: cpu_seconds * 1_000_000_000,
            memory: 8192,
        };
        let containers = containers.iter().map(|name| (key(), (*name).to_owned(), point(SECOND)));
        Sample::new(point(0), containers)
    }

    #[test]
    fn two_samples_make_a_usage_of_node_and_pods() {
        let store = Store::default();
        store.put("n", sample(100, 10, &["a"]));
        assert_eq!((store.node("n"), store.pod("n", &key())), (None, None));
        store.put("n", sample(115, 13, &["a"]));
        let node = store.node("n").unwrap();
        assert_eq!((node.cpu, node.window), (200_000_000, 15 * SECOND));
        let pod = store.pod("n", &key()).unwrap();
        assert_eq!(pod.containers[0].0, "a");
        assert_eq!(store.pod("m", &key()), None, "a pod of the same name on another node");
        // The same sample again keeps the window.
        store.put("n", sample(115, 13, &["a"]));
        assert_eq!(store.node("n"), Some(node));
    }

    #[test]
    fn a_pod_with_a_new_container_has_no_usage_until_its_second_point() {
        let store = Store::default();
        store.put("n", sample(100, 10, &["a"]));
        store.put("n", sample(115, 13, &["a", "b"]));
        assert_eq!(store.pod("n", &key()), None);
        store.put("n", sample(130, 13, &["a", "b"]));
        assert_eq!(store.pod("n", &key()).unwrap().containers.len(), 2);
    }

    #[test]
    fn a_node_that_did_not_answer_has_no_usage_but_its_history() {
        let store = Store::default();
        store.put("n", sample(100, 10, &["a", "b"]));
        store.put("n", sample(115, 13, &["a", "b"]));
        store.remove("n");
        assert_eq!(store.node("n"), None);
        let pods = store.history(|subject| matches!(subject, Subject::Pod(_)));
        let point = pods[0].points[0].unwrap();
        assert_eq!((point.cpu_micro, point.memory_kib), (400_000, 16), "the sum of the containers");
        assert_eq!(store.history(|_| true).len(), 2);
        store.put("n", sample(130, 14, &["a"]));
        store.retain(&BTreeSet::new(), 130 * SECOND);
        assert_eq!(store.node("n"), None);
        assert_eq!(store.history(|_| true).len(), 2);
    }
}
