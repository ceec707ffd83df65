//! The table of the pods of this node, by uid.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::RwLock;
use sorting::CompactSort as _;

use crate::pods::handle::WorkerHandle;
use crate::pods::pod::Pod;

/// The pods of this node and the handles to their workers.
#[derive(Debug, Clone, Default)]
pub(crate) struct PodTable(pub(super) Arc<RwLock<HashMap<Arc<str>, Arc<WorkerHandle>>>>);

impl PodTable {
    /// Returns a pod by namespace and name; a pod that still exists in the API takes precedence.
    pub(crate) fn find(
        &self,
        namespace: &str,
        name: &str,
    ) -> Option<(Arc<Pod>, Arc<WorkerHandle>)> {
        let table = self.0.read();
        let mut found: Vec<_> = table
            .values()
            .map(|h| (h.desired.borrow().clone(), Arc::clone(h)))
            .filter(|(d, _)| *d.pod.key.namespace == *namespace && *d.pod.key.name == *name)
            .collect();
        found.compact_sort_by_key(|(d, _)| d.removed);
        found.into_iter().next().map(|(d, h)| (d.pod, h))
    }

    /// Returns a pod by uid.
    pub(crate) fn get(&self, uid: &str) -> Option<Arc<WorkerHandle>> {
        self.0.read().get(uid).cloned()
    }

    /// Returns all pods.
    pub(crate) fn all(&self) -> Vec<(Arc<Pod>, Arc<WorkerHandle>)> {
        self.0
            .read()
            .values()
            .map(|h| (Arc::clone(&h.desired.borrow().pod), Arc::clone(h)))
            .collect()
    }

    /// Returns the pods that use resources of the node, sorted by namespace and name.
    pub(crate) fn active(&self) -> Vec<Arc<Pod>> {
        let active = self.all().into_iter().filter(|(_, handle)| handle.uses_resources());
        let mut pods: Vec<Arc<Pod>> = active.map(|(pod, _)| pod).collect();
        pods.compact_sort_by(|a, b| a.key.cmp(&b.key));
        pods
    }

    /// Adds pods, for tests of what reads the table.
    #[cfg(test)]
    pub(crate) fn insert_all<const N: usize>(&self, pods: [(Arc<str>, Arc<WorkerHandle>); N]) {
        self.0.write().extend(pods);
    }
}
