//! Flags of the cloud controller part: addresses and names of a node.

use std::net::IpAddr;

use clap::Args;

/// Flags of a server.
#[derive(Debug, Args, Clone, Default)]
pub struct CloudControllerArgs {
    /// Leave the initialization of nodes and Services of type LoadBalancer to an external cloud
    /// controller: nodes register with the taint node.cloudprovider.kubernetes.io/uninitialized
    /// and without provider id
    #[arg(long, help_heading = "Components")]
    pub disable_cloud_controller: bool,
}

/// Flags of a node.
#[derive(Debug, Args, Clone, Default)]
pub struct NodeAddressArgs {
    /// External addresses of this node, reported as ExternalIP
    #[arg(long, value_name = "IP", value_delimiter = ',', help_heading = "Node")]
    pub node_external_ip: Vec<IpAddr>,
    /// DNS names of this node inside the cluster, reported as InternalDNS
    #[arg(long, value_name = "NAME", value_delimiter = ',', help_heading = "Node")]
    pub node_internal_dns: Vec<String>,
    /// DNS names of this node outside the cluster, reported as ExternalDNS
    #[arg(long, value_name = "NAME", value_delimiter = ',', help_heading = "Node")]
    pub node_external_dns: Vec<String>,
    /// Append a random id to the node name, which the data directory keeps
    #[arg(long, help_heading = "Node")]
    pub with_node_id: bool,
}
