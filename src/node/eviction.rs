//! Node-pressure eviction: measures memory and disks and chooses the pods to evict.

pub(crate) mod monitor;
pub(crate) mod pressure;
pub(crate) mod ranking;
