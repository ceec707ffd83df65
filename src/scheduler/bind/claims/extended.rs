//! The claim for extended resources of a pod: created before the pod is bound, deleted if it is
//! not.

use std::time::Duration;

use api::k8s::api::core::v1::Pod;
use api::k8s::api::resource::v1::ResourceClaim;
use client::{DeleteOptions, Patch};
use serde_json::json;

use super::{
    CONFLICT_DELAY, CONFLICT_TRIES, ClaimWriteError, ClaimWriter, FINALIZER, ReservedExtended,
};
use crate::devices::claims::{ClaimError, uid};
use crate::devices::request::ClaimName;
use crate::pod_info::PodInfo;

/// The informer has a new claim within this time
/// (`AssumeExtendedResourceTimeoutDefaultSeconds`).
const INFORMER_TIMEOUT: Duration = Duration::from_secs(120);

impl ClaimWriter {
    /// Creates the claim, writes its allocation and reservation, and names it in the status of the
    /// pod.
    pub(super) async fn bind_extended(
        &self,
        pod: &PodInfo,
        reserved: &mut ReservedExtended,
    ) -> Result<(), ClaimWriteError> {
        let mut claim = (*reserved.extended.claim).clone();
        claim.metadata.name = None;
        claim.metadata.uid = None;
        let created = self.client.create(&pod.namespace, &claim).await;
        let created = created.map_err(|source| ClaimWriteError::Create {
            claim: format!("{}/", pod.namespace),
            source,
        })?;
        reserved.created = Some(created.clone());
        let claim = self.reserve(created, Some(&reserved.allocation), pod).await?;
        reserved.created = Some(claim.clone());
        self.assume_created(&claim).await;
        let status = json!({
            "requestMappings": reserved.extended.mappings,
            "resourceClaimName": claim.metadata.name,
        });
        let patch = json!({
            "metadata": {"uid": pod.uid},
            "status": {"extendedResourceClaimStatus": status},
        });
        self.client
            .patch::<Pod>(&pod.namespace, &pod.name, "status", &Patch::Strategic(&patch))
            .await
            .map_err(|source| ClaimWriteError::PodStatus {
                pod: format!("{}/{}", pod.namespace, pod.name),
                source,
            })?;
        Ok(())
    }

    /// Remembers a claim that was created, as soon as the informer has it.
    async fn assume_created(&self, claim: &ResourceClaim) {
        let mut changes = self.devices.claim_changes();
        let assumed = async {
            loop {
                changes.mark_unchanged();
                match self.devices.assume_claim(claim.clone()) {
                    Ok(change) => return (self.on_change)(&change, &self.devices),
                    Err(ClaimError::NotFound(_)) => {}
                    // The informer has a newer version.
                    Err(ClaimError::OutOfSync { .. }) => return,
                }
                if changes.changed().await.is_err() {
                    return;
                }
            }
        };
        if tokio::time::timeout(INFORMER_TIMEOUT, assumed).await.is_err() {
            tracing::debug!(claim = %ClaimName::of(claim), "claim not stored in assume cache");
        }
    }

    /// Takes back the claim of a pod that is not bound.
    pub(super) async fn unreserve_extended(&self, reserved: &ReservedExtended) {
        let in_memory = &reserved.extended.claim;
        let was_pending = self.devices.remove_in_flight(uid(in_memory), false);
        let Some(claim) = &reserved.created else { return };
        if was_pending {
            self.restore(claim);
        }
        if let Err(error) = self.delete(claim.clone()).await {
            tracing::warn!(claim = %ClaimName::of(claim), %error, "cannot delete claim");
        }
    }

    /// Deletes a claim: without the finalizer, so that nothing waits for its pods.
    pub(super) async fn delete(&self, mut claim: ResourceClaim) -> Result<(), ClaimWriteError> {
        let name = ClaimName::of(&claim);
        for tries_left in (0..CONFLICT_TRIES).rev() {
            if let Some(finalizers) = &mut claim.metadata.finalizers {
                finalizers.retain(|finalizer| finalizer != FINALIZER);
            }
            match self.client.update(&claim).await {
                Ok(_) => break,
                Err(error) if error.is_conflict() && tries_left > 0 => {}
                Err(source) => return Err(ClaimWriteError::Update { claim: name, source }),
            }
            tokio::time::sleep(CONFLICT_DELAY).await;
            claim = self
                .get(&claim)
                .await
                .map_err(|source| ClaimWriteError::Get { claim: name.clone(), source })?;
        }
        let deleted = self
            .client
            .delete::<ResourceClaim>(&name.namespace, &name.name, &DeleteOptions::default())
            .await;
        match deleted {
            Err(error) if !error.is_not_found() => Err(error.into()),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}
