//! Controllers of dynamic resource allocation: ResourceClaims of pods, and tainted devices.

pub(crate) mod metrics;
mod pod_claims;
pub(crate) mod resource_claim;
pub(crate) mod taint_eviction;
mod uid_cache;
