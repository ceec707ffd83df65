//! Creates the claims of a pod, records their names, and reserves allocated claims for a pod that
//! was bound without the scheduler.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::Object;
use api::k8s::api::core::v1::{ObjectReference, Pod};
use api::k8s::api::resource::v1::{ResourceClaim, ResourceClaimConsumerReference};
use client::events::EventType;
use client::informer::decode;
use client::{Patch, controller_of};
use serde_json::{Value, json};
use sorting::CollectOrdered as _;

use super::created::CreatedClaim;
use super::listeners::{BY_OWNER, must_be_reserved};
use super::new_claim::{claim_for, has_admin_access};
use super::{Controller, POD_CLAIM_ANNOTATION, PodClaimError, SyncError};
use crate::devices::metrics;
use crate::devices::pod_claims::{ClaimName, ClaimPod, NameError, PodClaim, PodClaimStatus};

/// The field manager of `status.resourceClaimStatuses`.
const FIELD_MANAGER: &str = "ResourceClaimController";

impl Controller {
    pub(super) async fn sync_pod(&self, namespace: &str, name: &str) -> Result<(), SyncError> {
        let object = self.pods.cache().get(namespace, name);
        let Some((object, pod)) = object.and_then(|o| ClaimPod::of(&o).map(|pod| (o, pod))) else {
            return Ok(());
        };
        // A claim that is created for a pod that is done would be deleted at once. Upstream creates
        // it once more.
        if pod.is_deleted || pod.is_terminal {
            return Ok(());
        }
        let id = || (Arc::clone(&pod.namespace), Arc::clone(&pod.name));
        if let Some(group) = &pod.pod_group {
            let (namespace, pod) = id();
            return Err(SyncError::PodGroup { namespace, pod, group: group.clone() });
        }
        let mut new = BTreeMap::new();
        for claim in &pod.claims {
            match self.claim_of(&pod, claim).await {
                Ok(Some(name)) => {
                    new.insert(claim.name.clone(), name);
                }
                Ok(None) => {}
                Err(source) => {
                    let text = format!("PodResourceClaim {}: {source}", claim.name);
                    let reason = "FailedResourceClaimCreation";
                    self.recorder.event_for(reference(&object), EventType::Warning, reason, text);
                    let (namespace, pod) = id();
                    let claim = claim.name.clone();
                    return Err(SyncError::PodClaim { namespace, pod, claim, source });
                }
            }
        }
        if !new.is_empty() {
            let patch = statuses_patch(&pod, new);
            let patch = Patch::Apply { object: &patch, manager: FIELD_MANAGER, force: true };
            let written = self.client.patch::<Pod>(namespace, name, "status", &patch).await;
            written.map_err(|source| {
                let (namespace, pod) = id();
                SyncError::PodStatus { namespace, pod, source }
            })?;
        }
        if pod.node_name.is_empty() {
            // The scheduler reserves the claims.
            return Ok(());
        }
        self.reserve_claims(&pod).await
    }

    /// The name of the claim that was created or found for a pod claim and is not recorded yet.
    async fn claim_of(
        &self,
        pod: &ClaimPod,
        claim: &PodClaim,
    ) -> Result<Option<String>, PodClaimError> {
        match pod.claim_name(claim) {
            Err(NameError::NotCreated { .. }) => {}
            Err(error) => return Err(PodClaimError::Name(error)),
            Ok(None) => return Ok(None),
            Ok(Some(name)) => {
                let exists = self.exists(pod, name).await;
                if exists.map_err(PodClaimError::Existence)? {
                    return Ok(None);
                }
            }
        }
        // Without a template, the user creates the claim.
        let Some(template) = &claim.resource_claim_template_name else { return Ok(None) };
        if let Some(orphan) = self.find_orphan(pod, claim) {
            return Ok(Some(orphan));
        }
        let template = self
            .templates
            .get(&pod.namespace, template)
            .ok_or_else(|| PodClaimError::NoTemplate(template.clone()))?;
        self.create(&pod.namespace, &claim_for(pod, claim, template)).await.map(Some)
    }

    /// Whether the claim exists and, if it was generated, belongs to the pod. The API server is
    /// asked about a claim that is not in the cache.
    async fn exists(&self, pod: &ClaimPod, claim: ClaimName<'_>) -> Result<bool, client::Error> {
        let is_for = |controller: Option<&str>| {
            !claim.is_generated || pod.owns(&pod.namespace, claim.name, controller).is_ok()
        };
        let of = |found: &ResourceClaim| is_for(controller_of(&found.metadata).map(|o| &*o.uid));
        if let Some(found) = self.claims.get(&pod.namespace, claim.name) {
            return Ok(of(&found));
        }
        let is_created = |c: &CreatedClaim| c.namespace == *pod.namespace && c.name == claim.name;
        if let Some(found) = self.created.lock().find(is_created) {
            return Ok(is_for(Some(&found.owner)));
        }
        match self.client.get::<ResourceClaim>(&pod.namespace, claim.name).await {
            Ok(found) => Ok(of(&found)),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The claim that was created for a pod claim, but could not be recorded.
    fn find_orphan(&self, pod: &ClaimPod, claim: &PodClaim) -> Option<String> {
        let owner = format!("{}/{}", pod.namespace, pod.uid);
        for object in self.claims.cache().by_index(BY_OWNER, &owner) {
            let meta = client::meta(&object)?;
            let annotation = meta.annotations.as_ref().and_then(|a| a.get(POD_CLAIM_ANNOTATION));
            if annotation == Some(&claim.name) {
                return meta.name.clone();
            }
        }
        let is_orphan = |created: &CreatedClaim| {
            created.namespace == *pod.namespace
                && created.owner == *pod.uid
                && created.pod_claim.as_ref() == Some(&claim.name)
        };
        self.created.lock().find(is_orphan).map(|created| created.name)
    }

    async fn create(
        &self,
        namespace: &str,
        claim: &ResourceClaim,
    ) -> Result<String, PodClaimError> {
        let created = self.client.create(namespace, claim).await;
        let status = if created.is_ok() { "success" } else { "failure" };
        metrics::CLAIM_CREATES.inc(&create_labels(claim, status));
        let claim = CreatedClaim::of(&created.map_err(PodClaimError::Create)?);
        let name = claim.name.clone();
        // The event may be faster than the answer.
        if self.claims.cache().get(namespace, &name).is_none() {
            self.created.lock().add(claim);
        }
        Ok(name)
    }

    /// Reserves allocated claims for a pod that has a node: the scheduler did not do it.
    async fn reserve_claims(&self, pod: &ClaimPod) -> Result<(), SyncError> {
        for entry in &pod.claims {
            let Some(name) = pod.claim_name(entry)? else { continue };
            let object = self.claims.cache().get(&pod.namespace, name.name);
            let Some(mut claim) = object.and_then(|o| decode::<ResourceClaim>(&o)) else {
                return Ok(());
            };
            if name.is_generated {
                let controller = controller_of(&claim.metadata).map(|o| &*o.uid);
                pod.owns(&pod.namespace, name.name, controller)?;
            }
            if !must_be_reserved(&claim, &pod.uid) {
                continue;
            }
            let status = claim.status.get_or_insert_default();
            status.reserved_for.get_or_insert_default().push(ResourceClaimConsumerReference {
                api_group: None,
                resource: "pods".to_owned(),
                name: pod.name.to_string(),
                uid: pod.uid.to_string(),
            });
            self.client.update_status(&claim).await.map_err(|source| {
                let (namespace, claim) = (Arc::clone(&pod.namespace), name.name.to_owned());
                SyncError::Reserve { namespace, claim, source }
            })?;
        }
        Ok(())
    }
}

/// The pod of an event.
fn reference(pod: &Object) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(pod.key.namespace.to_string()),
        name: Some(pod.key.name.to_string()),
        uid: Some(pod.uid.to_string()),
        resource_version: Some(pod.resource_version.to_string()),
        field_path: None,
    }
}

/// Label values of [`metrics::CLAIM_CREATES`].
fn create_labels<'a>(claim: &'a ResourceClaim, status: &'static str) -> [&'a str; 4] {
    let admin = if has_admin_access(claim.spec.as_ref()) { "true" } else { "false" };
    let (group, kind) = match controller_of(&claim.metadata) {
        Some(owner) => {
            (owner.api_version.split_once('/').map_or("", |(group, _)| group), &*owner.kind)
        }
        None => ("", ""),
    };
    [admin, group, kind, status]
}

/// All known names of claims of the pod, so that one write does not remove those of another.
fn statuses_patch(pod: &ClaimPod, new: BTreeMap<String, String>) -> Value {
    let known = |status: &PodClaimStatus| {
        status.resource_claim_name.clone().map(|claim| (status.name.clone(), claim))
    };
    let mut names: BTreeMap<String, String> = pod.statuses.iter().filter_map(known).collect_map();
    names.extend(new);
    let entry = |(name, claim): (String, String)| json!({"name": name, "resourceClaimName": claim});
    let statuses: Vec<Value> = names.into_iter().map(entry).collect();
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": &*pod.name, "namespace": &*pod.namespace},
        "status": {"resourceClaimStatuses": statuses},
    })
}
