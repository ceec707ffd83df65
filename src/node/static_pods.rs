//! Static pods: reads their manifests and keeps their mirror pods in the API.

pub(crate) mod manifests;
pub(crate) mod mirror;
