//! Cluster DNS: the Kubernetes DNS specification for this cluster, forwarding for the rest, and
//! what the ConfigMap `coredns-custom` changes.

mod cache;
mod corefile;
mod custom;
mod forward;
mod message;
mod metrics;
mod node_hosts;
mod plugins;
mod resolver;
mod rules;
mod serve;
mod source;
mod zone;

pub use custom::DnsState;
pub(crate) use serve::serve;
