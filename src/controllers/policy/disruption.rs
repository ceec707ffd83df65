//! PodDisruptionBudgets: how many pods may be evicted now.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api::Object;
use api::k8s::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use api::k8s::api::core::v1::{Pod, ReplicationController};
use api::k8s::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus};
use api::k8s::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, OwnerReference, Time};
use api::k8s::apimachinery::pkg::util::intstr::IntOrString;
use api::k8s::jiff::Timestamp;
use client::events::EventType;
use client::{Action, Change, Client, Error, EventRecorder, Informer, Patch, controller_of, meta};
use serde_json::json;

use crate::framework::context::Context;
use crate::framework::int_or_percent::scaled;
use crate::framework::keyed::{Key, Keyed, settled};
use crate::framework::pods;

/// Service account.
const CONTROLLER: &str = "disruption-controller";
/// Event source.
const COMPONENT: &str = "controllermanager";
/// Seconds after which an evicted pod that is still there counts again, and a stale
/// `DisruptionTarget` is withdrawn.
const TIMEOUT: i64 = 120;
/// Before the name of a pod in a key that is not a budget's: names of objects have no slash.
const STALE: &str = "pod/";
const TARGET: &str = "DisruptionTarget";

struct Controller {
    client: Client,
    recorder: EventRecorder,
    budgets: Informer<PodDisruptionBudget>,
    pods: Informer<Pod>,
    deployments: Informer<Deployment>,
    sets: Informer<ReplicaSet>,
    stateful_sets: Informer<StatefulSet>,
    replication: Informer<ReplicationController>,
}

/// Starts the controller.
pub(crate) fn start(context: &Context) {
    let client = context.client(CONTROLLER);
    let controller = Arc::new(Controller {
        recorder: context.recorder(&client, COMPONENT),
        client,
        budgets: context.informers.of(),
        pods: context.informers.of(),
        deployments: context.informers.of(),
        sets: context.informers.of(),
        stateful_sets: context.informers.of(),
        replication: context.informers.of(),
    });
    let mut keyed = Keyed::new();
    keyed.watches_self(&controller.budgets);
    let known = controller.budgets.clone();
    keyed.watches(&controller.pods, move |change| pod_changed(change, &known));
    keyed.waits_for_sync(&controller.deployments);
    keyed.waits_for_sync(&controller.sets);
    keyed.waits_for_sync(&controller.stateful_sets);
    keyed.waits_for_sync(&controller.replication);
    keyed.run(&context.tasks, CONTROLLER, 1, move |(namespace, name)| {
        let controller = Arc::clone(&controller);
        async move {
            match name.strip_prefix(STALE) {
                Some(pod) => controller.withdraw(&namespace, pod).await,
                None => controller.reconcile(&namespace, &name).await,
            }
        }
    });
}

fn selects(budget: &PodDisruptionBudget, pod: &ObjectMeta) -> bool {
    let selector = budget.spec.as_ref().and_then(|s| s.selector.as_ref());
    selector.is_some_and(|s| client::labels::selects(s, pod.labels.as_ref()))
}

/// A check without decoding, as most pods have no such condition.
fn may_be_target(object: &Object) -> bool {
    const CONDITION: &[u8] = b"\"DisruptionTarget\"";
    object.raw().windows(CONDITION.len()).any(|bytes| bytes == CONDITION)
}

/// The budgets that select the pod or did so before, and the pod itself while its disruption may be
/// stale.
fn pod_changed(change: &Change, budgets: &Informer<PodDisruptionBudget>) -> Vec<Key> {
    let object = change.object();
    let namespace = object.key.namespace.to_string();
    let mut states: Vec<Arc<ObjectMeta>> = meta(object).into_iter().collect();
    if let Change::Updated { old, .. } = change {
        states.extend(meta(old));
    }
    let mut keys: Vec<Key> = budgets
        .list(&namespace)
        .into_iter()
        .filter(|b| states.iter().any(|pod| selects(b, pod)))
        .filter_map(|b| Some((namespace.clone(), b.metadata.name?)))
        .collect();
    let stale = !matches!(change, Change::Deleted(_))
        && may_be_target(object)
        && client::informer::decode::<Pod>(object).is_some_and(|p| target_since(&p).is_some());
    if stale {
        keys.push((namespace, format!("{STALE}{}", object.key.name)));
    }
    keys
}

/// Since when a pod that lives on is marked as about to be disrupted.
fn target_since(pod: &Pod) -> Option<Timestamp> {
    if !pods::is_active(pod) {
        return None;
    }
    let marked = pods::condition(pod, TARGET)
        .filter(|c| c.status == "True" && c.reason.as_deref() != Some("TerminationByKubelet"))?;
    marked.last_transition_time.as_ref().map(|Time(t)| *t)
}

/// Why the number of expected pods is unknown.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
enum DemandError {
    /// `minAvailable` or `maxUnavailable` is not a percentage.
    #[error("invalid value for IntOrString: {0:?}")]
    InvalidValue(IntOrString),
    /// The owner of a pod is not one with a scale.
    #[error("found no controllers for pod {pod:?}")]
    NoController { pod: String },
}

/// What a budget demands: expected and healthy pods. `scale` is the sum over the pods' owners.
fn demand(
    budget: &PodDisruptionBudget,
    pods: i32,
    scale: impl FnOnce() -> Result<i32, DemandError>,
) -> Result<(i32, i32), DemandError> {
    let spec = budget.spec.as_ref();
    let share = |value: &IntOrString, total| {
        scaled(value, total, true).ok_or_else(|| DemandError::InvalidValue(value.clone()))
    };
    if let Some(value) = spec.and_then(|s| s.max_unavailable.as_ref()) {
        let expected = scale()?;
        return Ok((expected, (expected - share(value, expected)?).max(0)));
    }
    match spec.and_then(|s| s.min_available.as_ref()) {
        Some(IntOrString::Int(number)) => Ok((pods, *number)),
        Some(value) => {
            let expected = scale()?;
            Ok((expected, share(value, expected)?))
        }
        None => Ok((0, 0)),
    }
}

/// Evictions that are still expected to end in a deletion, by pod.
fn disrupted(budget: &PodDisruptionBudget, pods: &[Pod], now: Timestamp) -> BTreeMap<String, Time> {
    let known = budget.status.as_ref().and_then(|s| s.disrupted_pods.as_ref());
    let mut all = known.cloned().unwrap_or_default();
    all.retain(|name, Time(at)| {
        at.as_second() + TIMEOUT >= now.as_second()
            && pods.iter().any(|p| {
                p.metadata.name.as_ref() == Some(name) && p.metadata.deletion_timestamp.is_none()
            })
    });
    all
}

/// The status of a budget.
fn status(
    budget: &PodDisruptionBudget,
    pods: &[Pod],
    (expected, desired): (i32, i32),
    now: Timestamp,
) -> PodDisruptionBudgetStatus {
    let disrupted = disrupted(budget, pods, now);
    let healthy = pods.iter().filter(|p| {
        p.metadata.deletion_timestamp.is_none()
            && !p.metadata.name.as_ref().is_some_and(|n| disrupted.contains_key(n))
            && pods::is_ready(p)
    });
    let healthy = i32::try_from(healthy.count()).unwrap_or(i32::MAX);
    let allowed = if expected > 0 { (healthy - desired).max(0) } else { 0 };
    let (value, reason) =
        if allowed > 0 { ("True", "SufficientPods") } else { ("False", "InsufficientPods") };
    PodDisruptionBudgetStatus {
        current_healthy: Some(healthy),
        desired_healthy: Some(desired),
        expected_pods: Some(expected),
        disruptions_allowed: Some(allowed),
        disrupted_pods: (!disrupted.is_empty()).then_some(disrupted),
        observed_generation: budget.metadata.generation,
        conditions: conditions(budget, value, reason, "", now),
    }
}

/// The conditions with `DisruptionAllowed` set.
fn conditions(
    budget: &PodDisruptionBudget,
    value: &str,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> Option<Vec<Condition>> {
    const KIND: &str = "DisruptionAllowed";
    let before = budget.status.as_ref().and_then(|s| s.conditions.clone());
    let mut all = before.unwrap_or_default();
    let new = Condition {
        type_: KIND.into(),
        status: value.into(),
        reason: reason.into(),
        message: message.into(),
        observed_generation: budget.metadata.generation,
        last_transition_time: Time(now),
    };
    match all.iter_mut().find(|c| c.type_ == KIND) {
        Some(old) if old.status == new.status => {
            let since = old.last_transition_time.clone();
            *old = Condition { last_transition_time: since, ..new };
        }
        Some(old) => *old = new,
        None => all.push(new),
    }
    Some(all)
}

impl Controller {
    async fn reconcile(&self, namespace: &str, name: &str) -> Result<Action, Error> {
        let Some(budget) = self.budgets.get(namespace, name) else { return Ok(Action::Done) };
        let mut pods = self.pods.list(namespace);
        pods.retain(|p| selects(&budget, &p.metadata));
        let now = Timestamp::now();
        let before = budget.status.clone().unwrap_or_default();
        let count = i32::try_from(pods.len()).unwrap_or(i32::MAX);
        let new = match demand(&budget, count, || self.scale(namespace, &pods)) {
            Ok(demand) => status(&budget, &pods, demand, now),
            Err(error) => PodDisruptionBudgetStatus {
                disruptions_allowed: Some(0),
                conditions: conditions(&budget, "False", "SyncFailed", &error.to_string(), now),
                ..before.clone()
            },
        };
        let recheck = new.disrupted_pods.iter().flatten().map(|(_, Time(at))| at.as_second());
        let recheck = recheck.min().map(|at| at + TIMEOUT + 1 - now.as_second());
        if new != before {
            self.tell(&budget, &pods, &new);
            let changed = PodDisruptionBudget { status: Some(new), ..budget };
            // A conflict is a concurrent eviction: its event reconciles the budget again.
            settled(self.client.update_status(&changed).await)?;
        }
        Ok(recheck.map_or(Action::Done, |seconds| {
            Action::After(Duration::from_secs(u64::try_from(seconds).unwrap_or(0).max(1)))
        }))
    }

    fn tell(&self, budget: &PodDisruptionBudget, pods: &[Pod], new: &PodDisruptionBudgetStatus) {
        if pods.is_empty() {
            self.recorder.event(budget, EventType::Normal, "NoPods", "No matching pods found");
        }
        let failed = new.conditions.iter().flatten().find(|c| c.reason == "SyncFailed");
        if let Some(failed) = failed {
            let text =
                format!("Failed to calculate the number of expected pods: {}", failed.message);
            self.recorder.event(
                budget,
                EventType::Warning,
                "CalculateExpectedPodCountFailed",
                text,
            );
        }
        let spec = budget.spec.as_ref();
        let counts_owners =
            spec.is_some_and(|s| !matches!(s.min_available, Some(IntOrString::Int(_))));
        if counts_owners && pods.iter().any(|p| controller_of(&p.metadata).is_none()) {
            let selector = spec.and_then(|s| s.selector.as_ref());
            let selector = serde_json::to_string(&selector).unwrap_or_default();
            let text = format!(
                "Pods selected by this PodDisruptionBudget (selector: {selector}) were found to \
                    be unmanaged. As a result, the status of the PDB cannot be calculated \
                    correctly, which may result in undefined behavior. To account for these pods \
                    please set \".spec.minAvailable\" field of the PDB to an integer value."
            );
            self.recorder.event(budget, EventType::Warning, "UnmanagedPods", text);
        }
    }

    /// The wanted replicas of all owners of these pods; pods without an owner count nothing.
    fn scale(&self, namespace: &str, pods: &[Pod]) -> Result<i32, DemandError> {
        let mut scales: BTreeMap<String, i32> = BTreeMap::new();
        for pod in pods {
            let Some(owner) = controller_of(&pod.metadata) else { continue };
            let (uid, replicas) = self.replicas(namespace, owner).ok_or_else(|| {
                DemandError::NoController { pod: pod.metadata.name.clone().unwrap_or_default() }
            })?;
            scales.insert(uid, replicas);
        }
        Ok(scales.values().fold(0, |sum: i32, n| sum.saturating_add(*n)))
    }

    /// The object that scales a pod's controller, by uid, and its replicas.
    fn replicas(&self, namespace: &str, owner: &OwnerReference) -> Option<(String, i32)> {
        let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
        let found = |meta: &ObjectMeta, replicas: Option<i32>| {
            let same = meta.uid.as_ref() == Some(&owner.uid);
            same.then(|| (owner.uid.clone(), replicas.unwrap_or(1)))
        };
        match (group, owner.kind.as_str()) {
            ("apps", "ReplicaSet") => {
                let set = self.sets.get(namespace, &owner.name)?;
                let parent = controller_of(&set.metadata).filter(|o| o.kind == "Deployment");
                let deployment = parent.and_then(|o| {
                    let parent = self.deployments.get(namespace, &o.name)?;
                    (parent.metadata.uid.as_ref() == Some(&o.uid)).then_some(parent)
                });
                match deployment {
                    Some(d) => Some((d.metadata.uid?, d.spec.replicas.unwrap_or(1))),
                    None => found(&set.metadata, set.spec.replicas),
                }
            }
            ("apps", "StatefulSet") => {
                let set = self.stateful_sets.get(namespace, &owner.name)?;
                found(&set.metadata, set.spec.replicas)
            }
            ("", "ReplicationController") => {
                let set = self.replication.get(namespace, &owner.name)?;
                found(&set.metadata, set.spec.as_ref().and_then(|s| s.replicas))
            }
            _ => None,
        }
    }

    /// Withdraws the mark of a disruption that did not happen.
    async fn withdraw(&self, namespace: &str, name: &str) -> Result<Action, Error> {
        let Some(pod) = self.pods.get(namespace, name) else { return Ok(Action::Done) };
        let Some(since) = target_since(&pod) else { return Ok(Action::Done) };
        let left = since.as_second() + TIMEOUT - Timestamp::now().as_second();
        if let Ok(seconds @ 1..) = u64::try_from(left) {
            return Ok(Action::After(Duration::from_secs(seconds)));
        }
        let condition = json!({"type": TARGET, "status": "False",
            "lastTransitionTime": Time(Timestamp::now()), "reason": null, "message": null});
        let patch =
            json!({"metadata": {"uid": pod.metadata.uid}, "status": {"conditions": [condition]}});
        let patch = Patch::Strategic(&patch);
        settled(self.client.patch::<Pod>(namespace, name, "status", &patch).await)?;
        Ok(Action::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn budget(spec: Value, status: Value) -> PodDisruptionBudget {
        serde_json::from_value(
            json!({"metadata": {"name": "b", "generation": 3}, "spec": spec, "status": status}),
        )
        .unwrap()
    }

    fn pod(name: &str, ready: &str) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": name},
            "status": {"phase": "Running", "conditions": [{"type": "Ready",
            "status": ready}]}}))
        .unwrap()
    }

    #[test]
    fn budgets_demand_numbers_or_shares_of_what_owners_want() {
        for (spec, want) in [
            (json!({"minAvailable": 2}), (3, 2)),
            (json!({"minAvailable": "30%"}), (5, 2)),
            (json!({"maxUnavailable": 1}), (5, 4)),
            (json!({"maxUnavailable": "30%"}), (5, 3)),
            (json!({"maxUnavailable": 9}), (5, 0)),
        ] {
            assert_eq!(demand(&budget(spec.clone(), json!({})), 3, || Ok(5)), Ok(want), "{spec}");
        }
        let no_controller = || DemandError::NoController { pod: "p".into() };
        let unknown =
            demand(&budget(json!({"maxUnavailable": 1}), json!({})), 3, || Err(no_controller()));
        assert_eq!(unknown, Err(no_controller()));
    }

    #[test]
    fn evicted_pods_do_not_count_until_they_should_be_gone() {
        let at = |s| Timestamp::from_second(s).unwrap();
        let b = budget(
            json!({"minAvailable": 1}),
            json!({"disruptedPods": {"a": "1970-01-01T00:00:00Z", "gone": "1970-01-01T00:00:00Z"}}),
        );
        let pods = [pod("a", "True"), pod("b", "True"), pod("c", "False")];
        let early = status(&b, &pods, (3, 1), at(60));
        assert_eq!((early.current_healthy, early.disruptions_allowed), (Some(1), Some(0)));
        assert_eq!(early.disrupted_pods.unwrap().len(), 1);
        assert_eq!(early.conditions.unwrap()[0].reason, "InsufficientPods");
        let late = status(&b, &pods, (3, 1), at(121));
        assert_eq!(
            (late.current_healthy, late.disruptions_allowed, late.disrupted_pods),
            (Some(2), Some(1), None)
        );
        assert_eq!(late.conditions.unwrap()[0].reason, "SufficientPods");
    }

    #[test]
    fn an_unchanged_status_stays_the_same() {
        let b = budget(json!({"minAvailable": 1}), json!({}));
        let now = Timestamp::UNIX_EPOCH;
        let first = status(&b, &[pod("a", "True")], (1, 1), now);
        let again = PodDisruptionBudget { status: Some(first.clone()), ..b };
        assert_eq!(
            status(&again, &[pod("a", "True")], (1, 1), Timestamp::from_second(9).unwrap()),
            first
        );
    }
}
