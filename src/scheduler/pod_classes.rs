//! Classes of pods: pods of one namespace with the same labels and the same affinity. Selectors are
//! evaluated once for a class instead of once for each of its pods.

use std::collections::HashMap;
use std::sync::Arc;

use client::labels::Labels;

use crate::pod_info::PodInfo;

/// The number of a class.
pub(crate) type ClassId = usize;

/// What the pods of a class have in common.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct ClassKey {
    namespace: String,
    labels: Labels,
    affinity: Option<Arc<str>>,
}

impl ClassKey {
    fn of(pod: &PodInfo) -> Self {
        Self {
            namespace: pod.namespace.clone(),
            labels: pod.labels.clone(),
            affinity: pod.affinity_text.clone(),
        }
    }
}

/// A class with pods.
#[derive(Debug, Clone)]
struct PodClass {
    /// One of its pods.
    example: Arc<PodInfo>,
    pods: usize,
}

/// The pods of a class on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClassCount {
    pub(crate) class: ClassId,
    pub(crate) pods: i64,
    /// Those of `pods` without a deletion timestamp.
    pub(crate) staying: i64,
}

/// The classes of all pods on nodes. The number of a class without pods is used again.
#[derive(Debug, Clone, Default)]
pub(crate) struct PodClasses {
    /// Each class by its number; `None` where no class has the number.
    classes: Vec<Option<PodClass>>,
    ids: HashMap<ClassKey, ClassId>,
    free: Vec<ClassId>,
}

impl PodClasses {
    /// Adds a pod to its class.
    pub(crate) fn add(&mut self, pod: &Arc<PodInfo>) -> ClassId {
        let key = ClassKey::of(pod);
        if let Some(id) = self.ids.get(&key).copied() {
            if let Some(Some(class)) = self.classes.get_mut(id) {
                class.pods += 1;
            }
            return id;
        }
        let entry = Some(PodClass { example: Arc::clone(pod), pods: 1 });
        let id = match self.free.pop() {
            Some(id) => {
                if let Some(place) = self.classes.get_mut(id) {
                    *place = entry;
                }
                id
            }
            None => {
                self.classes.push(entry);
                self.classes.len() - 1
            }
        };
        self.ids.insert(key, id);
        id
    }

    /// Takes a pod out of its class.
    pub(crate) fn remove(&mut self, pod: &PodInfo) -> Option<ClassId> {
        let key = ClassKey::of(pod);
        let id = self.ids.get(&key).copied()?;
        let place = self.classes.get_mut(id)?;
        if let Some(class) = place {
            class.pods -= 1;
            if class.pods == 0 {
                *place = None;
                self.ids.remove(&key);
                self.free.push(id);
            }
        }
        Some(id)
    }

    /// Evaluates a pod of each class, by the numbers of the classes. The function must depend on
    /// nothing but the namespace, the labels and the pod affinity of the pod. Numbers without a
    /// class have the default value.
    pub(crate) fn evaluate<T: Default>(&self, evaluate: impl Fn(&PodInfo) -> T) -> Vec<T> {
        let value = |class: &Option<PodClass>| {
            class.as_ref().map(|class| evaluate(&class.example)).unwrap_or_default()
        };
        self.classes.iter().map(value).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(namespace: &str, app: &str) -> Arc<PodInfo> {
        let labels = [("app".to_owned(), app.to_owned())].into();
        Arc::new(PodInfo { namespace: namespace.into(), labels, ..PodInfo::default() })
    }

    #[test]
    fn pods_with_the_same_labels_are_of_one_class() {
        let mut classes = PodClasses::default();
        let (a, b) = (classes.add(&pod("n", "a")), classes.add(&pod("n", "b")));
        assert_eq!(classes.add(&pod("n", "a")), a);
        assert_ne!(a, b);
        assert_ne!(classes.add(&pod("m", "a")), a);
        let is_a = classes.evaluate(|pod| pod.labels.get("app").is_some_and(|app| app == "a"));
        assert_eq!(is_a, [true, false, true]);
        classes.remove(&pod("n", "b"));
        assert_eq!(classes.add(&pod("n", "c")), b, "its number is free again");
        assert_eq!(classes.remove(&pod("n", "b")), None);
    }
}
