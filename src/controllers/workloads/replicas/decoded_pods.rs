//! The decoded pods of owners whose replicas change. A rollout of a thousand replicas has hundreds
//! of syncs, and between two of them few pods change.

use std::collections::HashMap;
use std::sync::Arc;

use api::Object;
use api::k8s::api::core::v1::Pod;
use parking_lot::Mutex;

use super::pod_parts;

/// The pods of an owner by uid, each with the resource version that is decoded.
type OwnPods = HashMap<Arc<str>, (i64, Arc<Pod>)>;

/// By the key of the owner, `namespace/name`. An owner that has nothing to do is forgotten, so that
/// only those use memory whose replicas change.
#[derive(Default)]
pub(super) struct DecodedPods(Mutex<HashMap<String, OwnPods>>);

impl DecodedPods {
    /// Decodes those of the owner's pods that have changed since the last call, and remembers all
    /// of these pods.
    pub(super) fn update(&self, owner: &str, pods: &[Arc<Object>]) -> Vec<Arc<Pod>> {
        let known = self.0.lock().remove(owner).unwrap_or_default();
        let decoded: Vec<(&Arc<Object>, Arc<Pod>)> =
            pods.iter().filter_map(|object| Some((object, decoded(&known, object)?))).collect();
        let next = decoded.iter().map(|(object, pod)| {
            (Arc::clone(&object.uid), (object.resource_version, Arc::clone(pod)))
        });
        let next = next.collect();
        self.0.lock().insert(owner.to_owned(), next);
        decoded.into_iter().map(|(_, pod)| pod).collect()
    }

    /// The pods of another owner, decoded.
    pub(super) fn get(&self, owner: &str, pods: &[Arc<Object>]) -> Vec<Arc<Pod>> {
        let all = self.0.lock();
        let none = OwnPods::new();
        let known = all.get(owner).unwrap_or(&none);
        pods.iter().filter_map(|object| decoded(known, object)).collect()
    }

    /// Forgets the pods of an owner.
    pub(super) fn forget(&self, owner: &str) {
        self.0.lock().remove(owner);
    }
}

/// The decoded pod of this version; `None` if it is malformed.
fn decoded(known: &OwnPods, object: &Object) -> Option<Arc<Pod>> {
    match known.get(&object.uid) {
        Some((version, pod)) if *version == object.resource_version => Some(Arc::clone(pod)),
        _ => pod_parts::decode(object).map(Arc::new),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(uid: &str, version: &str, phase: &str) -> Arc<Object> {
        let value = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": uid, "namespace": "n", "uid": uid, "resourceVersion": version},
            "status": {"phase": phase},
        });
        Arc::new(Object::from_value(value).unwrap())
    }

    #[test]
    fn a_pod_is_decoded_again_when_it_has_changed() {
        let decoded = DecodedPods::default();
        let first = decoded.update("o", &[pod("a", "1", "Pending"), pod("b", "2", "Pending")]);
        let second = decoded.update("o", &[pod("a", "1", "Pending"), pod("b", "3", "Running")]);
        assert!(Arc::ptr_eq(&first[0], &second[0]));
        assert!(!Arc::ptr_eq(&first[1], &second[1]));
        let phase = |pod: &Pod| pod.status.as_ref().and_then(|s| s.phase.clone());
        assert_eq!(phase(&second[1]).as_deref(), Some("Running"));
        let seen = decoded.get("o", &[pod("a", "1", "Pending"), pod("c", "4", "Running")]);
        assert!(Arc::ptr_eq(&seen[0], &first[0]));
        assert_eq!(phase(&seen[1]).as_deref(), Some("Running"));
    }

    #[test]
    fn pods_that_are_gone_and_owners_that_are_idle_are_forgotten() {
        let decoded = DecodedPods::default();
        let first = decoded.update("o", &[pod("a", "1", "Running")]);
        decoded.update("o", &[]);
        let again = decoded.update("o", &[pod("a", "1", "Running")]);
        assert!(!Arc::ptr_eq(&first[0], &again[0]));
        decoded.forget("o");
        assert!(decoded.0.lock().is_empty());
        assert_eq!(Arc::strong_count(&again[0]), 1);
    }
}
