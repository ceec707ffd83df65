//! Writes of ResourceClaims: allocations and reservations before a pod is bound, and what takes
//! them back.

mod extended;
mod readiness;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use api::k8s::api::resource::v1::{
    AllocationResult, ResourceClaim, ResourceClaimConsumerReference, ResourceClaimStatus,
};
use api::k8s::apimachinery::pkg::apis::meta::v1::Time;
use api::k8s::jiff::Timestamp;
use client::{Client, Error, EventRecorder, Patch};
use serde_json::json;

use crate::devices::allocated::allocation;
use crate::devices::binding::{
    BindingError, ClaimRelease, ClaimsToBind, ExtendedClaim, is_reserved_for,
};
use crate::devices::claims::{ClaimChange, ClaimError, uid};
use crate::devices::request::ClaimName;
use crate::devices::store::Devices;
use crate::framework::PreBind;
use crate::pod_info::PodInfo;

/// Keeps an allocated claim from being deleted while a pod uses it.
const FINALIZER: &str = "resource.kubernetes.io/delete-protection";
/// A write that conflicts with another one is tried this often, after this delay (client-go's
/// `retry.DefaultRetry`).
const CONFLICT_TRIES: usize = 5;
const CONFLICT_DELAY: Duration = Duration::from_millis(10);

/// Why the claims of a pod could not be written; the texts are upstream's.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClaimWriteError {
    #[error("get updated claim {claim} after conflict: {source}")]
    Refresh { claim: ClaimName, source: Error },
    #[error("claim {0} got deleted in the meantime")]
    Deleted(ClaimName),
    #[error("claim {0} got allocated elsewhere in the meantime")]
    AllocatedElsewhere(ClaimName),
    #[error("claim {0} got deallocated elsewhere in the meantime")]
    DeallocatedElsewhere(ClaimName),
    #[error("add finalizer to claim {claim}: {source}")]
    Finalizer { claim: ClaimName, source: Error },
    #[error("add allocation and reservation to claim {claim}: {source}")]
    Allocation { claim: ClaimName, source: Error },
    #[error("add reservation to claim {claim}: {source}")]
    Reservation { claim: ClaimName, source: Error },
    #[error("create claim for extended resources {claim}: {source}")]
    Create { claim: String, source: Error },
    #[error("update pod {pod} ExtendedResourceClaimStatus: {source}")]
    PodStatus { pod: String, source: Error },
    #[error("get resourceclaim {claim}: {source}")]
    Get { claim: ClaimName, source: Error },
    #[error("update resourceclaim {claim}: {source}")]
    Update { claim: ClaimName, source: Error },
    #[error(transparent)]
    Unknown(#[from] ClaimError),
    #[error(transparent)]
    Binding(#[from] BindingError),
    #[error(transparent)]
    Client(#[from] Error),
}

impl ClaimWriteError {
    /// Whether the write conflicts with another one, so that it may succeed with the new version.
    fn is_conflict(&self) -> bool {
        match self {
            Self::Finalizer { source, .. }
            | Self::Allocation { source, .. }
            | Self::Reservation { source, .. }
            | Self::Update { source, .. } => source.is_conflict(),
            _ => false,
        }
    }
}

/// A claim of a pod during its binding.
#[derive(Debug)]
struct ReservedClaim {
    /// The newest version that was written or read.
    claim: ResourceClaim,
    /// The allocation of this cycle, if the claim had none.
    allocation: Option<AllocationResult>,
}

/// The claim for extended resources of a pod during its binding.
#[derive(Debug)]
struct ReservedExtended {
    extended: ExtendedClaim,
    allocation: AllocationResult,
    /// The claim, once the API server has it.
    created: Option<ResourceClaim>,
}

/// The claims of a pod during its binding.
#[derive(Debug, Default)]
pub(crate) struct ReservedClaims {
    claims: Vec<ReservedClaim>,
    extended: Option<ReservedExtended>,
}

impl ReservedClaims {
    /// The claims among the writes for a pod.
    pub(crate) fn new(writes: &[PreBind]) -> Self {
        let bind = writes.iter().find_map(|write| match write {
            PreBind::BindClaims(bind) => Some(bind),
            PreBind::BindVolume { .. } | PreBind::ProvisionVolume { .. } => None,
        });
        bind.map(|bind| Self::of(bind)).unwrap_or_default()
    }

    fn of(bind: &ClaimsToBind) -> Self {
        let claims = bind.claims.iter().map(|bind| ReservedClaim {
            claim: (*bind.claim).clone(),
            allocation: bind.allocation.clone(),
        });
        let extended = bind.extended.clone().map(|(extended, allocation)| ReservedExtended {
            extended,
            allocation,
            created: None,
        });
        Self { claims: claims.collect(), extended }
    }

    fn is_empty(&self) -> bool {
        self.claims.is_empty() && self.extended.is_none()
    }

    /// The newest versions of all claims that the API server has.
    fn written_mut(&mut self) -> impl Iterator<Item = &mut ResourceClaim> {
        let created = self.extended.iter_mut().filter_map(|extended| extended.created.as_mut());
        self.claims.iter_mut().map(|claim| &mut claim.claim).chain(created)
    }
}

/// Tells the queue that a claim changed.
type OnChange = Arc<dyn Fn(&ClaimChange, &Devices) + Send + Sync>;

/// Writes ResourceClaims; cheap to clone.
#[derive(Clone)]
pub(crate) struct ClaimWriter {
    pub(crate) client: Client,
    pub(crate) recorder: EventRecorder,
    pub(crate) devices: Arc<Devices>,
    /// Called for claims that were written, before the informer has them.
    pub(crate) on_change: OnChange,
}

impl fmt::Debug for ClaimWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClaimWriter").field("client", &self.client).finish_non_exhaustive()
    }
}

/// The entry of `reservedFor` for a pod.
fn consumer(pod: &PodInfo) -> ResourceClaimConsumerReference {
    ResourceClaimConsumerReference {
        api_group: None,
        resource: "pods".into(),
        name: pod.name.clone(),
        uid: pod.uid.clone(),
    }
}

/// Adds the allocation, if the claim gets one, and the reservation to the status of a claim.
pub(crate) fn prepare_status(
    claim: &mut ResourceClaim,
    allocation: Option<&AllocationResult>,
    pod: &PodInfo,
    now: Timestamp,
) -> Result<(), ClaimWriteError> {
    let name = ClaimName::of(claim);
    let status: &mut ResourceClaimStatus = claim.status.get_or_insert_default();
    if let Some(allocation) = allocation {
        status.allocation = Some(allocation.clone());
    }
    status.reserved_for.get_or_insert_default().push(consumer(pod));
    let Some(allocation) = &mut status.allocation else {
        return Err(ClaimWriteError::DeallocatedElsewhere(name));
    };
    allocation.allocation_timestamp.get_or_insert(Time(now));
    Ok(())
}

impl ClaimWriter {
    /// Writes the allocations and reservations of all claims of a pod, and waits until the devices
    /// are ready.
    ///
    /// # Errors
    ///
    /// The first claim that could not be written, or whose devices do not become ready.
    pub(crate) async fn bind(
        &self,
        pod: &PodInfo,
        node: &str,
        reserved: &mut ReservedClaims,
    ) -> Result<(), ClaimWriteError> {
        if reserved.is_empty() {
            return Ok(());
        }
        for ReservedClaim { claim, allocation } in &mut reserved.claims {
            if !is_reserved_for(claim, &pod.uid) {
                *claim = self.reserve(claim.clone(), allocation.as_ref(), pod).await?;
                self.assume(claim);
            }
        }
        if let Some(extended) = &mut reserved.extended {
            self.bind_extended(pod, extended).await?;
        }
        self.wait_until_ready(pod, node, reserved).await?;
        for claim in &reserved.claims {
            if claim.allocation.is_some() {
                self.devices.remove_in_flight(uid(&claim.claim), true);
            }
        }
        if let Some(extended) = &reserved.extended {
            self.devices.remove_in_flight(uid(&extended.extended.claim), true);
        }
        Ok(())
    }

    /// Writes the allocation and reservation of one claim; after a conflict, with its new version.
    async fn reserve(
        &self,
        mut claim: ResourceClaim,
        allocation: Option<&AllocationResult>,
        pod: &PodInfo,
    ) -> Result<ResourceClaim, ClaimWriteError> {
        for tries_left in (0..CONFLICT_TRIES).rev() {
            match self.try_reserve(claim.clone(), allocation, pod).await {
                Err(error) if error.is_conflict() && tries_left > 0 => {}
                other => return other,
            }
            tokio::time::sleep(CONFLICT_DELAY).await;
            claim = self.get(&claim).await.map_err(|source| ClaimWriteError::Refresh {
                claim: ClaimName::of(&claim),
                source,
            })?;
        }
        Ok(claim)
    }

    async fn get(&self, claim: &ResourceClaim) -> Result<ResourceClaim, Error> {
        let ClaimName { namespace, name } = ClaimName::of(claim);
        self.client.get(&namespace, &name).await
    }

    async fn try_reserve(
        &self,
        mut claim: ResourceClaim,
        chosen: Option<&AllocationResult>,
        pod: &PodInfo,
    ) -> Result<ResourceClaim, ClaimWriteError> {
        let name = ClaimName::of(&claim);
        if claim.metadata.deletion_timestamp.is_some() {
            return Err(ClaimWriteError::Deleted(name));
        }
        if chosen.is_some() {
            if allocation(&claim).is_some() {
                return Err(ClaimWriteError::AllocatedElsewhere(name));
            }
            let finalizers = claim.metadata.finalizers.get_or_insert_default();
            if !finalizers.iter().any(|finalizer| finalizer == FINALIZER) {
                finalizers.push(FINALIZER.to_owned());
                let updated = self.client.update(&claim).await;
                claim = updated
                    .map_err(|source| ClaimWriteError::Finalizer { claim: name.clone(), source })?;
            }
        }
        prepare_status(&mut claim, chosen, pod, Timestamp::now())?;
        self.client.update_status(&claim).await.map_err(|source| match chosen {
            Some(_) => ClaimWriteError::Allocation { claim: name, source },
            None => ClaimWriteError::Reservation { claim: name, source },
        })
    }

    /// Remembers a claim that was written until the informer has it.
    fn assume(&self, claim: &ResourceClaim) {
        match self.devices.assume_claim(claim.clone()) {
            Ok(change) => (self.on_change)(&change, &self.devices),
            Err(error) => tracing::debug!(%error, "claim not stored in assume cache"),
        }
    }

    fn restore(&self, claim: &ResourceClaim) {
        if let Some(change) = self.devices.restore_claim(&ClaimName::of(claim)) {
            (self.on_change)(&change, &self.devices);
        }
    }

    /// Takes back the allocations and reservations of a pod that is not bound. Errors are logged:
    /// the next cycle of the pod does this again.
    pub(crate) async fn unreserve(&self, pod: &PodInfo, reserved: &ReservedClaims) {
        for ReservedClaim { claim, .. } in &reserved.claims {
            if self.devices.remove_in_flight(uid(claim), false) {
                self.restore(claim);
            }
            if allocation(claim).is_none() || !is_reserved_for(claim, &pod.uid) {
                continue;
            }
            // A strategic merge patch removes one entry without knowing the newest version.
            let patch = json!({
                "metadata": {"uid": uid(claim)},
                "status": {"reservedFor": [{"$patch": "delete", "uid": pod.uid}]},
            });
            let ClaimName { namespace, name } = ClaimName::of(claim);
            let patched = self
                .client
                .patch::<ResourceClaim>(&namespace, &name, "status", &Patch::Strategic(&patch))
                .await;
            if let Err(error) = patched {
                tracing::warn!(claim = %ClaimName::of(claim), %error, "cannot unreserve claim");
            }
        }
        if let Some(extended) = &reserved.extended {
            self.unreserve_extended(extended).await;
        }
    }

    /// Takes away the allocation of a claim, or deletes one, so that the pod may fit a node.
    ///
    /// # Errors
    ///
    /// The claim could not be written.
    pub(crate) async fn release(&self, release: &ClaimRelease) -> Result<(), ClaimWriteError> {
        match release {
            ClaimRelease::Deallocate(claim) => {
                let mut claim = (**claim).clone();
                claim.status = Some(ResourceClaimStatus::default());
                self.client.update_status(&claim).await?;
                Ok(())
            }
            ClaimRelease::Delete(claim) => self.delete((**claim).clone()).await,
        }
    }
}

#[cfg(test)]
mod tests;
