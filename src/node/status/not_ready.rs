//! The pods of this node that are not ready, published by the node itself: sooner than by a server,
//! and without one.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::k8s::api::core::v1::PodStatus;
use tokio::sync::watch;

/// Uids of pods that are not ready, by `namespace/name`.
pub type NotReadyPodUids = BTreeMap<String, Arc<str>>;

/// Publishes the pods that are not ready; cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct NotReadyPods(watch::Sender<NotReadyPodUids>);

impl NotReadyPods {
    /// Subscribes to the pods that are not ready.
    pub fn subscribe(&self) -> watch::Receiver<NotReadyPodUids> {
        self.0.subscribe()
    }

    /// Updates a pod from its latest status.
    pub(crate) fn update(&self, key: &str, uid: &Arc<str>, status: &PodStatus) {
        let conditions = status.conditions.iter().flatten();
        let ready = conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True");
        if ready {
            return self.remove(key, uid);
        }
        self.0.send_if_modified(|all| {
            all.insert(key.to_owned(), Arc::clone(uid)).is_none_or(|before| before != *uid)
        });
    }

    /// Removes a pod that is ready or deleted, unless another pod has its name by now.
    pub(crate) fn remove(&self, key: &str, uid: &Arc<str>) {
        self.0.send_if_modified(|all| {
            let own = all.get(key).is_some_and(|known| known == uid);
            if own {
                all.remove(key);
            }
            own
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_pod_is_not_ready_from_its_status_to_its_end() {
        let status = |ready: &str| -> PodStatus {
            serde_json::from_value(json!({"conditions": [{"type": "Ready", "status": ready}]}))
                .unwrap()
        };
        let (not_ready, one, two) = (NotReadyPods::default(), Arc::from("1"), Arc::from("2"));
        let mut receiver = not_ready.subscribe();
        not_ready.update("n/a", &one, &status("True"));
        assert!(!receiver.has_changed().unwrap());
        not_ready.update("n/a", &one, &PodStatus::default());
        assert_eq!(*receiver.borrow_and_update(), [("n/a".to_owned(), Arc::clone(&one))].into());
        not_ready.update("n/a", &one, &status("False"));
        assert!(!receiver.has_changed().unwrap());
        // Its successor has the same name and is not affected by the end of the first pod.
        not_ready.update("n/a", &two, &status("False"));
        not_ready.remove("n/a", &one);
        assert_eq!(*receiver.borrow_and_update(), [("n/a".to_owned(), Arc::clone(&two))].into());
        not_ready.update("n/a", &two, &status("True"));
        assert_eq!(*receiver.borrow_and_update(), NotReadyPodUids::new());
    }
}
