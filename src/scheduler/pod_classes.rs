//! Classes of the pods on nodes: pods of one namespace with the same affinity whose labels no
//! selector tells apart. A selector is evaluated once for a class instead of once for each pod, and
//! a cycle visits only the nodes with pods of a matching class.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use client::labels::Labels;
use sorting::CollectOrdered as _;

use crate::pod_info::PodInfo;

/// Most label keys that classes differ in, unless one evaluation needs more.
const KEYS_MAX: usize = 64;

/// What the pods of a class have in common.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct ClassKey {
    namespace: String,
    /// Only labels whose keys a selector has.
    labels: Labels,
    affinity: Option<Arc<str>>,
}

/// The pods of a class on a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PodCount {
    pub(crate) pods: i64,
    /// Those of `pods` without a deletion timestamp.
    pub(crate) staying: i64,
}

/// A class with pods.
#[derive(Debug, Clone)]
pub(crate) struct PodClass {
    example: Arc<PodInfo>,
    nodes: HashMap<usize, PodCount>,
}

impl PodClass {
    /// A pod of the class: its namespace, its pod affinity and the labels with the keys of
    /// [`PodClasses`] are those of all pods of the class.
    pub(crate) fn example(&self) -> &PodInfo {
        &self.example
    }

    /// The indexes of the nodes that have pods of the class, and their number.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = (usize, PodCount)> + Clone {
        self.nodes.iter().map(|(node, count)| (*node, *count))
    }
}

/// The classes of all pods on nodes. Labels that no selector names, such as one that is unique for
/// each pod, do not make classes.
#[derive(Debug, Clone, Default)]
pub(crate) struct PodClasses {
    /// The keys of the labels in which the classes differ.
    keys: BTreeSet<String>,
    classes: HashMap<ClassKey, PodClass>,
}

impl PodClasses {
    /// No classes yet, for selectors with the keys of `known` or with these keys.
    pub(crate) fn with_keys(known: Option<&Self>, keys: &[&str]) -> Self {
        let mut all: BTreeSet<String> = keys.iter().map(|key| (*key).to_owned()).collect_set();
        let known = known.map(|classes| &classes.keys);
        let known = known.filter(|known| all.len() + known.len() <= KEYS_MAX);
        all.extend(known.into_iter().flatten().cloned());
        Self { keys: all, classes: HashMap::new() }
    }

    /// Whether selectors with these keys can be evaluated for classes.
    pub(crate) fn have_keys(&self, keys: &[&str]) -> bool {
        keys.iter().all(|key| self.keys.contains(*key))
    }

    fn key(&self, pod: &PodInfo) -> ClassKey {
        let label = |key: &String| pod.labels.get(key).map(|value| (key.clone(), value.clone()));
        ClassKey {
            namespace: pod.namespace.clone(),
            labels: self.keys.iter().filter_map(label).collect_map(),
            affinity: pod.affinity_text.clone(),
        }
    }

    /// Adds a pod on the node with this index to its class.
    pub(crate) fn add(&mut self, node: usize, pod: &Arc<PodInfo>) {
        let new = || PodClass { example: Arc::clone(pod), nodes: HashMap::new() };
        let class = self.classes.entry(self.key(pod)).or_insert_with(new);
        let count = class.nodes.entry(node).or_default();
        count.pods += 1;
        count.staying += i64::from(!pod.deleting);
    }

    /// Takes a pod on the node with this index out of its class.
    pub(crate) fn remove(&mut self, node: usize, pod: &PodInfo) {
        let key = self.key(pod);
        let Some(class) = self.classes.get_mut(&key) else { return };
        let Some(count) = class.nodes.get_mut(&node) else { return };
        count.pods -= 1;
        count.staying -= i64::from(!pod.deleting);
        if count.pods == 0 {
            class.nodes.remove(&node);
        }
        if class.nodes.is_empty() {
            self.classes.remove(&key);
        }
    }

    /// All classes with pods.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &PodClass> {
        self.classes.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sorting::CompactSort as _;
    use std::collections::BTreeMap;

    fn pod(namespace: &str, app: &str, name: &str) -> Arc<PodInfo> {
        let labels = [("app".to_owned(), app.to_owned()), ("name".to_owned(), name.to_owned())];
        let labels = labels.into();
        Arc::new(PodInfo { namespace: namespace.into(), labels, ..PodInfo::default() })
    }

    /// `NAMESPACE/APP: {NODE: PODS}` of all classes.
    fn counts(classes: &PodClasses) -> Vec<String> {
        let count = |class: &PodClass| {
            let nodes: BTreeMap<_, _> =
                class.nodes().map(|(node, count)| (node, count.pods)).collect();
            let example = class.example();
            format!("{}/{}: {nodes:?}", example.namespace, example.labels["app"])
        };
        let mut all: Vec<_> = classes.iter().map(count).collect();
        all.compact_sort();
        all
    }

    #[test]
    fn pods_differ_only_in_labels_that_selectors_name() {
        let mut classes = PodClasses::with_keys(None, &["app"]);
        assert!(classes.have_keys(&["app"]) && !classes.have_keys(&["app", "name"]));
        for (node, pod) in [
            (0, pod("n", "a", "1")),
            (0, pod("n", "a", "2")),
            (7, pod("n", "a", "3")),
            (0, pod("n", "b", "4")),
            (0, pod("m", "a", "5")),
        ] {
            classes.add(node, &pod);
        }
        assert_eq!(counts(&classes), ["m/a: {0: 1}", "n/a: {0: 2, 7: 1}", "n/b: {0: 1}"]);
        classes.remove(0, &pod("n", "b", "4"));
        classes.remove(7, &pod("n", "a", "3"));
        classes.remove(7, &pod("n", "a", "3"));
        assert_eq!(counts(&classes), ["m/a: {0: 1}", "n/a: {0: 2}"]);
    }

    #[test]
    fn pods_with_other_affinity_are_of_another_class() {
        let mut classes = PodClasses::default();
        classes.add(0, &pod("n", "a", "1"));
        let other =
            PodInfo { affinity_text: Some("x".into()), ..PodInfo::clone(&pod("n", "a", "1")) };
        classes.add(0, &Arc::new(PodInfo { deleting: true, ..other }));
        let staying: i64 =
            classes.iter().flat_map(PodClass::nodes).map(|(_, count)| count.staying).sum();
        assert_eq!((classes.iter().count(), staying), (2, 1));
    }

    #[test]
    fn keys_of_selectors_are_bounded() {
        let many: Vec<String> = (0..KEYS_MAX).map(|n| n.to_string()).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let classes = PodClasses::with_keys(None, &many);
        let next = PodClasses::with_keys(Some(&classes), &["app"]);
        assert!(next.have_keys(&["app"]) && !next.have_keys(&["0"]));
    }
}
