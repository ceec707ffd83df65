//! Flags of the network between nodes and of the addresses at which servers are reached.

use std::path::PathBuf;

use clap::Args;

/// Flags of a node.
#[derive(Debug, Args, Clone, Default)]
pub struct FlannelArgs {
    /// flannel's network configuration as JSON, which sets the backend and its options (VNI, Port,
    /// MTU, DirectRouting, ListenPort); nodes without the flag take the server's
    #[arg(long, value_name = "FILE", help_heading = "Node")]
    pub flannel_conf: Option<PathBuf>,
    /// List of CNI plugins to install instead of kube-lite's own; the plugin flannel in it becomes
    /// kube-lite's
    #[arg(long, value_name = "FILE", help_heading = "Node")]
    pub flannel_cni_conf: Option<PathBuf>,
}

/// Flags of a server that concern all nodes.
#[derive(Debug, Args, Clone, Default)]
pub struct FlannelClusterArgs {
    /// Send traffic between nodes to the addresses of --node-external-ip, on nodes that have them
    #[arg(long, help_heading = "Networking")]
    pub flannel_external_ip: bool,
}

/// Where servers are reached.
#[derive(Debug, Args, Clone, Default)]
pub struct AdvertiseArgs {
    /// Port at which pods and nodes reach the API, the same for all servers, such as that of a NAT
    /// in front of them [default: --https-listen-port]
    #[arg(long, value_name = "PORT", help_heading = "Listener")]
    pub advertise_port: Option<u16>,
}
