//! Protects claims from deletion while a pod uses them and volumes while they are bound; reports in
//! the status of claims whether a pod uses them.

use std::sync::Arc;

use api::k8s::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use api::k8s::apimachinery::pkg::apis::meta::v1::Time;
use api::k8s::jiff::Timestamp;
use api::{Object, Typed};
use client::{Action, Change, Client, Error, Informer, ListOptions, gvr_of};
use serde_json::{Value, json};

use crate::framework::context::Context;
use crate::framework::keyed::{Key, Keyed, settled};
use crate::framework::{edit, pods};
use crate::storage::pod_claims;
use crate::storage::pod_claims::{BY_CLAIM, claim_names, ephemeral_name};

const CLAIM_FINALIZER: &str = "kubernetes.io/pvc-protection";
const VOLUME_FINALIZER: &str = "kubernetes.io/pv-protection";
/// Condition of a claim that no pod uses, with the time since then (`PersistentVolumeClaimUnused`).
const UNUSED: &str = "Unused";

struct Claims {
    client: Client,
    claims: Informer<PersistentVolumeClaim>,
    pods: Informer<Pod>,
}

/// Starts the controller of claims.
pub(crate) fn start_claims(context: &Context) {
    let client = context.client("pvc-protection-controller");
    let (claims, pods) =
        (context.informers.of::<PersistentVolumeClaim>(), context.informers.of::<Pod>());
    pod_claims::index_pods(&pods);
    let mut keyed = Keyed::new();
    keyed.watches_self(&claims);
    keyed.watches(&pods, |change| {
        let pod = change.object();
        let keys = |pod: &Object| -> Vec<Key> {
            let namespace = &pod.key.namespace;
            claim_names(pod).into_iter().map(|name| (namespace.to_string(), name)).collect()
        };
        keys(pod)
    });
    let controller = Arc::new(Claims { client, claims, pods });
    keyed.run(&context.tasks, "persistentvolumeclaim-protection-controller", 2, move |key| {
        let controller = Arc::clone(&controller);
        async move { controller.reconcile(&key).await }
    });
}

/// Starts the controller of volumes.
pub(crate) fn start_volumes(context: &Context) {
    let client = context.client("pv-protection-controller");
    let volumes = context.informers.of::<PersistentVolume>();
    let mut keyed = Keyed::new();
    keyed.watches(&volumes, |change| match change {
        Change::Deleted(_) => Vec::new(),
        Change::Added(o) | Change::Updated { new: o, .. } => {
            vec![(String::new(), o.key.name.to_string())]
        }
    });
    keyed.run(&context.tasks, "persistentvolume-protection-controller", 1, move |(_, name)| {
        let (client, volumes) = (client.clone(), volumes.clone());
        async move {
            let Some(object) = volumes.cache().get("", &name) else {
                return Ok::<_, Error>(Action::Done);
            };
            let mut value = edit::value(&object)?;
            let changed = if deleting(&value) {
                let bound = value.pointer("/status/phase").and_then(Value::as_str) == Some("Bound");
                !bound && edit::remove_finalizer(&mut value, VOLUME_FINALIZER)
            } else {
                edit::add_finalizer(&mut value, VOLUME_FINALIZER)
            };
            if changed {
                settled(edit::put(&client, &gvr_of::<PersistentVolume>(), "", &value).await)?;
            }
            Ok(Action::Done)
        }
    });
}

fn deleting(value: &Value) -> bool {
    value.pointer("/metadata/deletionTimestamp").is_some_and(|t| !t.is_null())
}

/// The pod's volumes name the claim; ephemeral ones only when it was made for the pod.
fn names(pod: &Pod, claim: &PersistentVolumeClaim, ephemeral_counts: bool) -> bool {
    let name = claim.metadata.name.as_deref();
    let own = pod.metadata.name.as_deref().unwrap_or_default();
    let volumes = pod.spec.as_ref().and_then(|s| s.volumes.as_deref()).unwrap_or_default();
    volumes.iter().any(|v| {
        let by_name =
            v.persistent_volume_claim.as_ref().is_some_and(|c| Some(&*c.claim_name) == name);
        by_name
            || ephemeral_counts
                && v.ephemeral.is_some()
                && Some(&*ephemeral_name(own, &v.name)) == name
                && pod_claims::is_for(pod, claim)
    })
}

/// The pod keeps the claim from going: it is on a node, and its ephemeral volumes are not shut
/// down.
fn holds(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    let shut_down = pod.metadata.deletion_timestamp.is_some()
        && pod.metadata.deletion_grace_period_seconds == Some(0);
    pods::is_scheduled(pod) && names(pod, claim, !shut_down)
}

/// The pod has ended, or is being deleted with nothing running (`IsPodTerminated`).
fn ended(pod: &Pod) -> bool {
    let lists = pod.status.iter().flat_map(|s| {
        [&s.init_container_statuses, &s.container_statuses, &s.ephemeral_container_statuses]
    });
    // A container with an unknown state counts as running.
    let running = lists
        .flatten()
        .flatten()
        .any(|c| c.state.as_ref().is_none_or(|s| s.terminated.is_none() && s.waiting.is_none()));
    pods::is_terminal(pod) || pod.metadata.deletion_timestamp.is_some() && !running
}

/// The pod uses the claim, for the condition `Unused`.
fn uses(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    !ended(pod) && names(pod, claim, true)
}

/// The condition `Unused` as it should be; `None` when it is so.
fn unused(claim: &Value, used: bool, now: Timestamp) -> Option<Value> {
    let conditions = claim.pointer("/status/conditions").and_then(Value::as_array);
    let have = conditions.into_iter().flatten().find(|c| c["type"] == UNUSED);
    let (status, reason, message) = if used {
        ("False", "PodUsingPVC", "A pod is currently referencing this PVC")
    } else {
        ("True", "NoPodsUsingPVC", "No pods are currently referencing this PVC")
    };
    let same = have.is_some_and(|c| (c["status"] == "True") != used);
    (!same).then(|| {
        json!({
            "type": UNUSED, "status": status, "reason": reason, "message": message,
            "lastTransitionTime": Time(now),
        })
    })
}

/// Replaces the condition `Unused` at its place, or adds it.
fn set_condition(claim: &mut Value, condition: Value) {
    let list = claim.pointer_mut("/status/conditions").and_then(Value::as_array_mut);
    let Some(list) = list else {
        claim["status"]["conditions"] = json!([condition]);
        return;
    };
    match list.iter_mut().find(|c| c["type"] == UNUSED) {
        Some(old) => *old = condition,
        None => list.push(condition),
    }
}

impl Claims {
    async fn reconcile(&self, (namespace, name): &Key) -> Result<Action, Error> {
        let Some(object) = self.claims.cache().get(namespace, name) else {
            return Ok(Action::Done);
        };
        let mut value = edit::value(&object)?;
        let claim = PersistentVolumeClaim::from_value(&value)?;
        let gvr = gvr_of::<PersistentVolumeClaim>();
        let users = self.pods.by_index(BY_CLAIM, &object.key.to_string());
        let bound = claim.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Bound");
        if bound && !deleting(&value) {
            let mut used = users.iter().any(|p| uses(p, &claim));
            if !used && unused(&value, used, Timestamp::now()).is_some() {
                // A pod may not be in the cache yet.
                used = self.live_pods(&claim).await?.iter().any(|p| uses(p, &claim));
            }
            if let Some(condition) = unused(&value, used, Timestamp::now()) {
                set_condition(&mut value, condition);
                // The write wakes the claim again.
                settled(edit::put(&self.client, &gvr, "status", &value).await)?;
                return Ok(Action::Done);
            }
        }
        let changed = if deleting(&value) {
            edit::remove_finalizer(&mut value, CLAIM_FINALIZER)
                && !self.in_use(&users, &claim).await?
        } else {
            edit::add_finalizer(&mut value, CLAIM_FINALIZER)
        };
        if changed {
            settled(edit::put(&self.client, &gvr, "", &value).await)?;
        }
        Ok(Action::Done)
    }

    /// Reads from the server as well: a late cache must not cause the loss of data.
    async fn in_use(&self, users: &[Pod], claim: &PersistentVolumeClaim) -> Result<bool, Error> {
        if users.iter().any(|p| holds(p, claim)) {
            return Ok(true);
        }
        Ok(self.live_pods(claim).await?.iter().any(|p| holds(p, claim)))
    }

    /// The pods of the claim's namespace, from the server.
    async fn live_pods(&self, claim: &PersistentVolumeClaim) -> Result<Vec<Pod>, Error> {
        let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
        self.client.list::<Pod>(namespace, &ListOptions::default()).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim() -> PersistentVolumeClaim {
        serde_json::from_value(json!({"metadata": {"name": "c", "namespace": "n"}})).unwrap()
    }

    fn pod(node: &str, status: &Value) -> Pod {
        serde_json::from_value(
            json!({"metadata": {"name": "p", "namespace": "n"}, "status": status,
            "spec": {"nodeName": node, "containers": [],
                "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}}),
        )
        .unwrap()
    }

    #[test]
    fn finished_pods_on_a_node_hold_their_claims_and_unscheduled_ones_do_not() {
        assert!(holds(&pod("x", &json!({"phase": "Succeeded"})), &claim()));
        assert!(!holds(&pod("", &json!({"phase": "Pending"})), &claim()));
        assert!(ended(&pod("x", &json!({"phase": "Succeeded"}))));
        assert!(!ended(&pod("x", &json!({"phase": "Running"}))));
    }

    /// Cases of upstream's `TestPVCUnusedSinceTime`.
    #[test]
    fn a_deleted_pod_uses_its_claim_while_a_container_of_any_kind_runs() {
        for list in ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"] {
            let of = |state: Value| {
                let container = json!({"name": "c", "image": "i", "imageID": "", "ready": true,
                    "restartCount": 0, "state": state});
                let mut pod = pod("x", &json!({"phase": "Running", list: [container]}));
                pod.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
                uses(&pod, &claim())
            };
            assert!(of(json!({"running": {}})), "{list}");
            assert!(!of(json!({"terminated": {"exitCode": 0}})), "{list}");
        }
        assert!(uses(&pod("", &json!({"phase": "Pending"})), &claim()), "not scheduled");
    }

    #[test]
    fn the_condition_keeps_its_place() {
        let mut claim = json!({"status": {"conditions": [{"type": UNUSED}, {"type": "Resizing"}]}});
        set_condition(&mut claim, json!({"type": UNUSED, "status": "True"}));
        let conditions = json!([{"type": UNUSED, "status": "True"}, {"type": "Resizing"}]);
        assert_eq!(claim["status"]["conditions"], conditions);
    }

    #[test]
    fn the_condition_changes_only_with_the_fact() {
        let now = Timestamp::UNIX_EPOCH;
        let first = unused(&json!({}), false, now).unwrap();
        assert_eq!(
            (&first["status"], &first["reason"]),
            (&json!("True"), &json!("NoPodsUsingPVC"))
        );
        let value = json!({"status": {"conditions": [first]}});
        assert_eq!(unused(&value, false, now), None);
        assert_eq!(unused(&value, true, now).unwrap()["reason"], "PodUsingPVC");
    }
}
