//! Cluster DNS: the Kubernetes DNS specification for this cluster, forwarding for the rest.

mod forward;
mod message;
mod serve;
mod source;
mod zone;

pub(crate) use serve::serve;
pub(crate) use source::Cluster;
