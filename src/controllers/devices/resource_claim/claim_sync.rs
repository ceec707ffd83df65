//! Removes reservations of pods that are gone or done, deallocates a claim with its last
//! reservation, and deletes a generated claim that its pod does not need any more.

use api::k8s::api::core::v1::Pod;
use api::k8s::api::resource::v1::{ResourceClaim, ResourceClaimConsumerReference};
use client::{DeleteOptions, controller_of};

use super::{Controller, FINALIZER, SyncError};
use crate::devices::pod_claims::ClaimPod;

/// What is known about the pod of a reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reservation {
    Needed,
    Stale,
    /// Only the API server has the answer: the cache may not have the pod yet.
    Unknown,
}

/// The first write of a claim.
#[derive(Debug, PartialEq)]
enum Release {
    /// Nothing changes.
    Nothing,
    /// The status is replaced; the finalizer of a claim without allocation goes afterwards.
    Status(Box<ResourceClaim>),
    /// Only the finalizer is removed.
    Finalizer(Box<ResourceClaim>),
}

impl Controller {
    pub(super) async fn sync_claim(&self, namespace: &str, name: &str) -> Result<(), SyncError> {
        let Some(claim) = self.claims.get(namespace, name) else { return Ok(()) };
        let mut remaining = Vec::new();
        for consumer in reservations(&claim) {
            if self.is_needed(namespace, consumer).await? {
                remaining.push(consumer.clone());
            }
        }
        let is_unused = remaining.is_empty();
        match release(&claim, remaining) {
            Release::Nothing => {}
            // A full update, so that a concurrent change is a conflict.
            Release::Status(claim) => {
                let claim = self.client.update_status(&*claim).await?;
                if let Some(claim) = without_finalizer(claim) {
                    self.client.update(&claim).await?;
                }
            }
            Release::Finalizer(claim) => {
                self.client.update(&*claim).await?;
            }
        }
        if is_unused && self.is_obsolete(namespace, &claim) {
            let options = DeleteOptions::default();
            match self.client.delete::<ResourceClaim>(namespace, name, &options).await {
                Err(source) if !source.is_not_found() => {
                    let (namespace, claim) = (namespace.to_owned(), name.to_owned());
                    return Err(SyncError::Delete { namespace, claim, source });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether a reservation must stay.
    async fn is_needed(
        &self,
        namespace: &str,
        consumer: &ResourceClaimConsumerReference,
    ) -> Result<bool, client::Error> {
        let is_pod = consumer.api_group.as_deref().unwrap_or_default().is_empty()
            && consumer.resource == "pods";
        if !is_pod {
            // Nothing is known about other consumers.
            return Ok(true);
        }
        let is_deleted = self.deleted_pods.lock().has(&consumer.uid);
        let cached = self.pods.cache().get(namespace, &consumer.name);
        let cached = cached.and_then(|object| ClaimPod::of(&object));
        match reservation(&consumer.uid, is_deleted, cached.as_ref()) {
            Reservation::Needed => Ok(true),
            Reservation::Stale => Ok(false),
            Reservation::Unknown => match self.client.get::<Pod>(namespace, &consumer.name).await {
                Ok(pod) => Ok(pod.metadata.uid.as_deref() == Some(&consumer.uid)),
                Err(error) if error.is_not_found() => Ok(false),
                Err(error) => Err(error),
            },
        }
    }

    /// The claim was generated for a pod that is known not to need it. The garbage collector
    /// handles a pod that is not in the cache.
    fn is_obsolete(&self, namespace: &str, claim: &ResourceClaim) -> bool {
        let owner = controller_of(&claim.metadata);
        let Some(owner) = owner.filter(|o| o.api_version == "v1" && o.kind == "Pod") else {
            return false;
        };
        let cached = self.pods.cache().get(namespace, &owner.name);
        let pod = cached.and_then(|object| ClaimPod::of(&object));
        pod.is_some_and(|pod| *pod.uid != owner.uid || pod.is_done())
    }
}

fn reservations(claim: &ResourceClaim) -> &[ResourceClaimConsumerReference] {
    claim.status.as_ref().and_then(|s| s.reserved_for.as_deref()).unwrap_or_default()
}

/// Decides about the reservation of a pod; `is_deleted` if its UID is known to be gone.
fn reservation(uid: &str, is_deleted: bool, cached: Option<&ClaimPod>) -> Reservation {
    match cached {
        _ if is_deleted => Reservation::Stale,
        None => Reservation::Unknown,
        Some(pod) if *pod.uid != *uid || pod.is_done() => Reservation::Stale,
        Some(_) => Reservation::Needed,
    }
}

/// What is written when these reservations remain. A claim is deallocated when its last reservation
/// is removed, or when it is deleted; one that was never reserved stays allocated.
fn release(claim: &ResourceClaim, remaining: Vec<ResourceClaimConsumerReference>) -> Release {
    let is_unused = remaining.is_empty();
    let mut new = claim.clone();
    if remaining.len() < reservations(claim).len() {
        if let Some(status) = &mut new.status {
            status.reserved_for = Some(remaining).filter(|list| !list.is_empty());
            // Without the finalizer, the scheduler did not allocate it.
            if is_unused && has_finalizer(claim) {
                status.allocation = None;
            }
        }
        return Release::Status(Box::new(new));
    }
    if !has_finalizer(claim) || claim.metadata.deletion_timestamp.is_none() || !is_unused {
        return Release::Nothing;
    }
    match &mut new.status {
        Some(status) if status.allocation.is_some() => {
            status.allocation = None;
            Release::Status(Box::new(new))
        }
        _ => match without_finalizer(new) {
            Some(new) => Release::Finalizer(Box::new(new)),
            None => Release::Nothing,
        },
    }
}

fn has_finalizer(claim: &ResourceClaim) -> bool {
    claim.metadata.finalizers.iter().flatten().any(|name| name == FINALIZER)
}

/// The claim without the finalizer; `None` if it is allocated or has none.
fn without_finalizer(mut claim: ResourceClaim) -> Option<ResourceClaim> {
    let is_allocated = claim.status.as_ref().is_some_and(|s| s.allocation.is_some());
    if is_allocated || !has_finalizer(&claim) {
        return None;
    }
    if let Some(finalizers) = &mut claim.metadata.finalizers {
        finalizers.retain(|name| name != FINALIZER);
    }
    Some(claim)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn claim(value: Value) -> ResourceClaim {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_reservation_is_stale_when_the_pod_is_gone_replaced_or_done() {
        let pod = ClaimPod { uid: "u".into(), ..ClaimPod::default() };
        let on_node = ClaimPod { node_name: "n".into(), ..pod.clone() };
        let deleted = ClaimPod { is_deleted: true, ..pod.clone() };
        for (is_deleted, cached, want) in [
            (true, Some(&pod), Reservation::Stale),
            (true, None, Reservation::Stale),
            (false, None, Reservation::Unknown),
            (false, Some(&pod), Reservation::Needed),
            (false, Some(&on_node), Reservation::Needed),
            (false, Some(&ClaimPod { is_deleted: true, ..on_node.clone() }), Reservation::Needed),
            (false, Some(&deleted), Reservation::Stale),
            (false, Some(&ClaimPod { is_terminal: true, ..on_node.clone() }), Reservation::Stale),
            (false, Some(&ClaimPod { uid: "v".into(), ..pod.clone() }), Reservation::Stale),
        ] {
            assert_eq!(reservation("u", is_deleted, cached), want, "{is_deleted} {cached:?}");
        }
    }

    #[test]
    fn the_last_reservation_takes_the_allocation_with_it() {
        let pod = |name: &str| json!({"resource": "pods", "name": name, "uid": name});
        let status = |reserved: &[&str]| {
            let reserved: Vec<Value> = reserved.iter().map(|name| pod(name)).collect();
            json!({"allocation": {}, "reservedFor": reserved})
        };
        let reference = |name: &str| {
            serde_json::from_value::<ResourceClaimConsumerReference>(pod(name)).unwrap()
        };
        let finalizers = json!([FINALIZER]);
        let two =
            claim(json!({"metadata": {"finalizers": finalizers}, "status": status(&["a", "b"])}));
        let one = claim(json!({"metadata": {"finalizers": finalizers}, "status": status(&["a"])}));
        // The allocation stays while there is a consumer.
        let want = Release::Status(Box::new(one.clone()));
        assert_eq!(release(&two, vec![reference("a")]), want);
        let Release::Status(released) = release(&two, Vec::new()) else { panic!("no write") };
        assert_eq!(released.status, Some(Default::default()));
        let rest = without_finalizer(*released).unwrap();
        assert_eq!(rest.metadata.finalizers, Some(Vec::new()));
        // A claim that was not allocated by the scheduler keeps its allocation.
        let foreign = claim(json!({"metadata": {}, "status": status(&["a"])}));
        let Release::Status(released) = release(&foreign, Vec::new()) else { panic!("no write") };
        assert!(released.status.as_ref().unwrap().allocation.is_some());
        assert_eq!(without_finalizer(*released), None);
        // Never reserved.
        let idle = claim(json!({"metadata": {"finalizers": finalizers}, "status": status(&[])}));
        assert_eq!(release(&idle, Vec::new()), Release::Nothing);
    }

    #[test]
    fn a_deleted_claim_is_deallocated_and_loses_its_finalizer() {
        let meta = json!({"finalizers": [FINALIZER], "deletionTimestamp": "2026-01-01T00:00:00Z"});
        let allocated = claim(json!({"metadata": meta, "status": {"allocation": {}}}));
        let Release::Status(released) = release(&allocated, Vec::new()) else { panic!("no write") };
        assert!(without_finalizer(*released).is_some());
        let plain = claim(json!({"metadata": meta}));
        let Release::Finalizer(released) = release(&plain, Vec::new()) else { panic!("no write") };
        assert!(!has_finalizer(&released));
    }
}
