//! Controllers of nodes: their lifecycle, taints and pod CIDRs.

pub(crate) mod cloud_node;
pub(crate) mod metrics;
pub(crate) mod node_ipam;
pub(crate) mod node_lifecycle;
pub(crate) mod taint_eviction;
pub(crate) mod ttl;
