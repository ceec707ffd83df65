//! The ResourceClaims of a pod, as the scheduler knows them.

use std::sync::Arc;

use api::k8s::api::resource::v1::ResourceClaim;

use crate::devices::claims::ClaimError;
use crate::devices::request::ClaimName;
use crate::devices::store::Devices;
use crate::pod_claims::{PodClaim, PodClaimName};
use crate::pod_info::PodInfo;

/// Why the claims of a pod cannot be used; the texts are upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum PodClaimError {
    #[error("pod \"{pod}\": ResourceClaim not created yet")]
    NotCreated { pod: String },
    #[error("pod \"{pod}\", spec.resourceClaim {entry:?}: none of the supported fields are set")]
    Unsupported { pod: String, entry: String },
    #[error(transparent)]
    Unknown(#[from] ClaimError),
    #[error("resourceclaim {0:?} is being deleted")]
    Deleted(String),
    #[error("ResourceClaim {claim} was not created for Pod {pod} (Pod is not owner)")]
    NotOwner { claim: ClaimName, pod: String },
}

/// Returns the claims of a pod in the order of its spec, the error of the first that cannot be
/// used.
pub(super) fn pod_claims(
    pod: &PodInfo,
    devices: &Devices,
) -> Result<Vec<Arc<ResourceClaim>>, PodClaimError> {
    let claims = pod.resource_claims.iter().map(|entry| pod_claim(pod, entry, devices));
    claims.filter_map(Result::transpose).collect()
}

fn pod_claim(
    pod: &PodInfo,
    entry: &PodClaim,
    devices: &Devices,
) -> Result<Option<Arc<ResourceClaim>>, PodClaimError> {
    let pod_name = || format!("{}/{}", pod.namespace, pod.name);
    let name = match &entry.claim {
        PodClaimName::Known(name) => name.clone(),
        PodClaimName::NotNeeded => return Ok(None),
        PodClaimName::NotCreated => return Err(PodClaimError::NotCreated { pod: pod_name() }),
        PodClaimName::Unsupported => {
            let entry = entry.name.clone();
            return Err(PodClaimError::Unsupported { pod: pod_name(), entry });
        }
    };
    let name = ClaimName { namespace: pod.namespace.clone(), name };
    let claim = devices.claim(&name)?;
    if claim.metadata.deletion_timestamp.is_some() {
        return Err(PodClaimError::Deleted(name.name));
    }
    if entry.is_generated && !client::is_controlled_by(&claim.metadata, &pod.uid) {
        return Err(PodClaimError::NotOwner { claim: name, pod: pod_name() });
    }
    Ok(Some(claim))
}
