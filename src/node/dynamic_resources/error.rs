//! Why the claims of a pod cannot be prepared or released; the texts are upstream's.

use super::checkpoint::CheckpointError;
use super::claim::{NodeOperation, UnusableClaim};
use crate::csi::driver_client::RpcError;
use crate::pods::resource_claims::ClaimNameError;

/// A driver of which no plugin is registered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UnknownDriver {
    #[error("DRA driver name is empty")]
    Unnamed,
    #[error("DRA driver {0} is not registered")]
    NotRegistered(String),
}

/// Why a driver did not prepare or release its devices of a pod.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DriverFailure {
    #[error("{}: {source}", operation.name())]
    Rpc { operation: NodeOperation, source: RpcError },
    #[error("{} returned result for unknown claim UID {uid}", operation.name())]
    UnknownClaim { operation: NodeOperation, uid: String },
    #[error("{} failed for ResourceClaim {claim}: {error}", operation.name())]
    Claim { operation: NodeOperation, claim: String, error: String },
    #[error("{} skipped {count} ResourceClaims", operation.name())]
    Skipped { operation: NodeOperation, count: usize },
}

/// A claim that this node does not know as prepared.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "internal error: unable to get claim info for ResourceClaim {name} in namespace {namespace}"
)]
pub(crate) struct UnknownClaim {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// Why the claims of a pod are not prepared.
#[derive(Debug, thiserror::Error)]
#[error("prepare dynamic resources: {0}")]
pub(crate) struct PrepareFailed(#[from] pub(super) PrepareError);

#[derive(Debug, thiserror::Error)]
pub(crate) enum PrepareError {
    #[error(transparent)]
    Name(#[from] ClaimNameError),
    #[error("fetch ResourceClaim {name}: {source}")]
    Fetch { name: String, source: client::Error },
    #[error("ResourceClaim {claim} was not created for Pod {pod} (Pod is not owner)")]
    NotOwner { claim: String, pod: String },
    #[error("pod {pod} ({uid}) is not allowed to use ResourceClaim {claim} ({claim_uid})")]
    NotReserved { pod: String, uid: String, claim: String, claim_uid: String },
    #[error("ResourceClaim {claim}: {source}")]
    Unusable { claim: String, source: UnusableClaim },
    #[error(transparent)]
    UnknownDriver(#[from] UnknownDriver),
    #[error(
        "old ResourceClaim with same name {name} and different UID {uid} still exists (previous \
         pod force-deleted?!)"
    )]
    OtherUid { name: String, uid: String },
    #[error("ResourceClaim {0} is being unprepared")]
    BeingUnprepared(String),
    #[error("checkpoint ResourceClaim cache: {0}")]
    SaveReferences(#[source] CheckpointError),
    #[error(transparent)]
    Driver(#[from] DriverFailure),
    /// The claim was released meanwhile.
    #[error(transparent)]
    Released(#[from] UnknownClaim),
    #[error("checkpoint ResourceClaim state: {0}")]
    SaveDevices(#[source] CheckpointError),
}

/// Why the claims of a pod are not released.
#[derive(Debug, thiserror::Error)]
#[error("unprepare dynamic resources: {0}")]
pub(crate) struct UnprepareFailed(#[from] pub(super) UnprepareError);

#[derive(Debug, thiserror::Error)]
pub(crate) enum UnprepareError {
    #[error(transparent)]
    UnknownDriver(#[from] UnknownDriver),
    #[error(transparent)]
    Driver(#[from] DriverFailure),
    #[error("checkpoint ResourceClaim state: {0}")]
    Save(#[source] CheckpointError),
}
