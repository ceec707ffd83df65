//! The condition `EvictionInProgress` of a DeviceTaintRule.

use std::collections::BTreeSet;
use std::time::Duration;

use api::k8s::api::resource::v1::DeviceTaintRule;
use api::k8s::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use api::k8s::jiff::Timestamp;
use client::{Action, Patch};
use serde_json::json;
use sorting::CollectOrdered as _;

use super::rule_view::RuleView;
use super::state::{PodRef, RuleRef, STATUS_PERIOD};
use super::{CONTROLLER, Controller, WorkError, now};

const CONDITION: &str = "EvictionInProgress";

/// What the condition reports.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Progress {
    published_devices: usize,
    allocated_devices: usize,
    pending_pods: usize,
    pending_namespaces: usize,
    evicted_pods: u64,
}

impl Controller {
    pub(super) async fn update_status(&self, rule: &RuleRef) -> Result<Action, WorkError> {
        let cached = self.rules.cache().get("", &rule.name).filter(|o| o.uid == rule.uid);
        let view = cached.as_ref().and_then(|object| RuleView::of(object));
        let (Some(view), Some(object)) = (view, self.rules.get("", &rule.name)) else {
            return Ok(Action::Done);
        };
        let existing = existing(&object);
        let generation = object.metadata.generation.unwrap_or_default();
        let at = now();
        if let Some(wait) = wait_before_next(existing, generation, at) {
            return Ok(Action::After(wait));
        }
        let (reason, status, message) = report(&view.spec.taint.effect, self.progress(&view));
        let is_same = existing.is_some_and(|old| {
            old.status == status
                && old.reason == reason
                && old.message == message
                && old.observed_generation.unwrap_or_default() == generation
        });
        if is_same {
            return Ok(Action::Done);
        }
        let patch = json!({
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceTaintRule",
            "metadata": {"name": &*rule.name, "uid": &*rule.uid},
            "status": {"conditions": [{
                "type": CONDITION, "status": status, "reason": reason, "message": message,
                "observedGeneration": generation, "lastTransitionTime": Time(at),
            }]},
        });
        let patch = Patch::Apply { object: &patch, manager: CONTROLLER, force: true };
        let written = self.client.patch::<DeviceTaintRule>("", &rule.name, "status", &patch).await;
        written.map_err(WorkError::Status)?;
        Ok(Action::Done)
    }

    fn progress(&self, rule: &RuleView) -> Progress {
        let state = self.state.lock();
        let pods = |namespace: &str, name: &str| self.pod(namespace, name);
        let mut progress =
            Progress { evicted_pods: state.evicted_by(&rule.rule.uid), ..Progress::default() };
        let pending: BTreeSet<PodRef> = match &*rule.spec.taint.effect {
            "NoExecute" => state.pods_of_rule(rule, false, &pods),
            "None" => {
                (progress.published_devices, progress.allocated_devices) =
                    state.devices_of_rule(rule);
                state.pods_of_rule(rule, true, &pods)
            }
            _ => BTreeSet::new(),
        };
        progress.pending_pods = pending.len();
        let namespaces: BTreeSet<&str> = pending.iter().map(|pod| &*pod.namespace).collect_set();
        progress.pending_namespaces = namespaces.len();
        progress
    }
}

fn existing(rule: &DeviceTaintRule) -> Option<&Condition> {
    let conditions = rule.status.as_ref()?.conditions.as_deref()?;
    conditions.iter().find(|condition| condition.type_ == CONDITION)
}

/// How long a condition of the same generation stays before the next one; its transition time is
/// that of any change.
fn wait_before_next(
    existing: Option<&Condition>,
    generation: i64,
    now: Timestamp,
) -> Option<Duration> {
    let old = existing.filter(|old| old.observed_generation.unwrap_or_default() == generation)?;
    let since = now.duration_since(old.last_transition_time.0);
    // A time in the future is now.
    let since = Duration::try_from(since).unwrap_or_default();
    STATUS_PERIOD.checked_sub(since).filter(|wait| !wait.is_zero())
}

/// `1 pod` or `2 pods`.
fn counted(number: usize, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// Reason, status and message of the condition.
fn report(effect: &str, progress: Progress) -> (&'static str, &'static str, String) {
    let namespaces = counted(progress.pending_namespaces, "namespace", "different namespaces");
    let (reason, status, mut message) = match effect {
        "NoExecute" if progress.pending_pods > 0 => {
            let need = counted(progress.pending_pods, "pod needs", "pods need");
            let text = format!("{need} to be evicted in {namespaces}.");
            ("PodsPendingEviction", "True", text)
        }
        "NoExecute" if progress.evicted_pods > 0 => ("Completed", "False", String::new()),
        "NoExecute" => ("NotStarted", "False", String::new()),
        "None" => {
            let device = |number, kind: &str| {
                counted(number, &format!("{kind} device"), &format!("{kind} devices"))
            };
            let text = format!(
                "{} selected. {} selected. {} would be evicted in {namespaces} if the effect was \
                 NoExecute. This information will not be updated again. Recreate the \
                 DeviceTaintRule to trigger an update.",
                device(progress.published_devices, "published"),
                device(progress.allocated_devices, "allocated"),
                counted(progress.pending_pods, "pod", "pods"),
            );
            ("NoEffect", "False", text)
        }
        _ => {
            let text = "Eviction only happens for the NoExecute effect.".to_owned();
            ("OtherEffect", "False", text)
        }
    };
    if progress.evicted_pods > 0 {
        if !message.is_empty() {
            message.push(' ');
        }
        let number = usize::try_from(progress.evicted_pods).unwrap_or(usize::MAX);
        let pods = counted(number, "pod", "pods");
        message.push_str(&format!("{pods} evicted since starting the controller."));
    }
    (reason, status, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_condition_says_what_is_pending_and_what_was_done() {
        let idle = Progress::default();
        let of = |effect: &str, progress: Progress| {
            let (reason, status, message) = report(effect, progress);
            format!("{status} {reason} {message}")
        };
        assert_eq!(of("NoExecute", idle), "False NotStarted ");
        let one = Progress { pending_pods: 1, pending_namespaces: 1, ..idle };
        assert_eq!(
            of("NoExecute", one),
            "True PodsPendingEviction 1 pod needs to be evicted in 1 namespace."
        );
        let two = Progress { pending_pods: 2, pending_namespaces: 2, evicted_pods: 1, ..idle };
        assert_eq!(
            of("NoExecute", two),
            "True PodsPendingEviction 2 pods need to be evicted in 2 different namespaces. 1 pod \
             evicted since starting the controller."
        );
        assert_eq!(
            of("NoExecute", Progress { evicted_pods: 2, ..idle }),
            "False Completed 2 pods evicted since starting the controller."
        );
        for effect in ["NoSchedule", "Unknown"] {
            assert_eq!(
                of(effect, one),
                "False OtherEffect Eviction only happens for the NoExecute effect."
            );
        }
        let rest = "if the effect was NoExecute. This information will not be updated again. \
                    Recreate the DeviceTaintRule to trigger an update.";
        let some = Progress { published_devices: 3, allocated_devices: 1, ..one };
        assert_eq!(
            of("None", some),
            format!(
                "False NoEffect 3 published devices selected. 1 allocated device selected. 1 pod \
                 would be evicted in 1 namespace {rest}"
            )
        );
        let many = Progress { allocated_devices: 3, ..two };
        assert_eq!(
            of("None", Progress { evicted_pods: 0, ..many }),
            format!(
                "False NoEffect 0 published devices selected. 3 allocated devices selected. 2 pods \
                 would be evicted in 2 different namespaces {rest}"
            )
        );
    }

    #[test]
    fn a_condition_of_the_same_generation_stays_for_ten_seconds() {
        let at = |seconds: i64| Timestamp::from_second(1_700_000_000 + seconds).unwrap();
        let old = Condition {
            observed_generation: Some(2),
            last_transition_time: Time(at(0)),
            ..condition()
        };
        assert_eq!(wait_before_next(None, 2, at(1)), None);
        assert_eq!(wait_before_next(Some(&old), 3, at(1)), None);
        assert_eq!(wait_before_next(Some(&old), 2, at(1)), Some(Duration::from_secs(9)));
        assert_eq!(wait_before_next(Some(&old), 2, at(10)), None);
        assert_eq!(wait_before_next(Some(&old), 2, at(-5)), Some(STATUS_PERIOD));
    }

    fn condition() -> Condition {
        Condition {
            type_: CONDITION.into(),
            status: "False".into(),
            reason: "NotStarted".into(),
            message: String::new(),
            observed_generation: None,
            last_transition_time: Time(Timestamp::UNIX_EPOCH),
        }
    }
}
