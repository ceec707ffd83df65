//! Pods: the manager, one worker for each pod, and the decisions that they share.

pub(crate) mod admission;
pub(crate) mod capacity;
pub(crate) mod condition_types;
pub(crate) mod cri_config;
pub(crate) mod handle;
pub(crate) mod image_pull;
pub(crate) mod manager;
pub(crate) mod objects;
pub(crate) mod observed;
pub(crate) mod plan;
pub(crate) mod pod;
pub(crate) mod pod_level;
pub(crate) mod probe_metrics;
pub(crate) mod rejection;
pub(crate) mod resize;
pub(crate) mod resource_claims;
pub(crate) mod resources;
pub(crate) mod shutdown;
pub(crate) mod table;
pub(crate) mod worker;
