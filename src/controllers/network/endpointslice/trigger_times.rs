//! Since when a Service waits for a change of its endpoints, which service proxies turn into their
//! metric of the programming latency (upstream's `TriggerTimeTracker`).

use std::collections::BTreeMap;

use api::k8s::api::core::v1::{Pod, Service};
use api::k8s::api::discovery::v1::EndpointSlice;
use api::k8s::jiff::Timestamp;
use parking_lot::Mutex;

use crate::framework::keyed::Key;

/// Annotation with the time (`EndpointsLastChangeTriggerTime`).
const ANNOTATION: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// When the pods of a Service last changed their readiness, by name.
type PodTimes = BTreeMap<String, Timestamp>;

/// What was known of each Service when it was reconciled last.
#[derive(Debug, Default)]
pub(super) struct TriggerTimes(Mutex<BTreeMap<Key, PodTimes>>);

fn pod_times(pods: &[Pod]) -> PodTimes {
    let of = |pod: &Pod| {
        let conditions = pod.status.as_ref()?.conditions.as_ref()?;
        let ready = conditions.iter().find(|condition| condition.type_ == "Ready")?;
        Some((pod.metadata.name.clone()?, ready.last_transition_time.as_ref()?.0))
    };
    pods.iter().filter_map(of).collect()
}

impl TriggerTimes {
    /// The earliest change since the last call; of a Service that was not known, its creation.
    pub(super) fn next(&self, key: &Key, service: &Service, pods: &[Pod]) -> Option<Timestamp> {
        let now = pod_times(pods);
        let mut known = self.0.lock();
        let Some(before) = known.insert(key.clone(), now.clone()) else {
            return service.metadata.creation_timestamp.as_ref().map(|time| time.0);
        };
        let changed = now.iter().filter(|(name, time)| before.get(*name).is_none_or(|b| *time > b));
        changed.map(|(_, time)| *time).min()
    }

    /// Forgets a Service that is gone.
    pub(super) fn forget(&self, key: &Key) {
        self.0.lock().remove(key);
    }
}

/// Sets the annotation of a slice that is written, or removes it if nothing is known.
pub(super) fn annotate(slice: &mut EndpointSlice, time: Option<Timestamp>) {
    match time {
        Some(time) => {
            let annotations = slice.metadata.annotations.get_or_insert_default();
            annotations.insert(ANNOTATION.to_owned(), time.to_string());
        }
        None => {
            if let Some(annotations) = &mut slice.metadata.annotations {
                annotations.remove(ANNOTATION);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(name: &str, since: &str) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": name}, "status": {"conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": since}]}}))
        .unwrap()
    }

    #[test]
    fn the_earliest_change_since_the_last_call_counts() {
        let service: Service = serde_json::from_value(
            json!({"metadata": {"name": "s", "creationTimestamp": "2026-01-01T00:00:00Z"}}),
        )
        .unwrap();
        let times = TriggerTimes::default();
        let key = ("n".to_owned(), "s".to_owned());
        let mut slice = EndpointSlice::default();
        let mut next = |pods: &[Pod]| {
            annotate(&mut slice, times.next(&key, &service, pods));
            slice.metadata.annotations.as_ref().and_then(|a| a.get(ANNOTATION).cloned())
        };
        let (first, second, third) =
            ("2026-01-02T00:00:01Z", "2026-01-02T00:00:02Z", "2026-01-02T00:00:03Z");
        let pods = [pod("a", first)];
        assert_eq!(next(&pods).as_deref(), Some("2026-01-01T00:00:00Z"), "its creation");
        assert_eq!(next(&pods), None, "nothing changed");
        let pods = [pod("a", third), pod("b", second)];
        assert_eq!(next(&pods).as_deref(), Some(second));
        assert_eq!(next(&pods[1..]), None, "a pod that goes has no time");
        times.forget(&key);
        assert_eq!(next(&pods).as_deref(), Some("2026-01-01T00:00:00Z"));
    }
}
