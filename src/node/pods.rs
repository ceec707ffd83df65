//! Pods: the manager, one worker for each pod, and the decisions that both take.

pub(crate) mod admission;
pub(crate) mod cri_config;
pub(crate) mod image_pull;
pub(crate) mod manager;
pub(crate) mod objects;
pub(crate) mod observed;
pub(crate) mod plan;
pub(crate) mod pod;
pub(crate) mod resize;
pub(crate) mod resources;
pub(crate) mod worker;
