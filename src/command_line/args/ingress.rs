//! Flags of the ingress and of Gateways.

use clap::Args;

/// Flags of the ingress and of Gateways.
#[derive(Debug, Args, Clone, Default)]
pub struct IngressArgs {
    /// Addresses of load balancers in front of the ingress and of Gateways, such as 192.0.2.0/24:
    /// their X-Forwarded headers are kept [default: none, headers of clients are replaced]
    #[arg(long, value_name = "CIDR", value_delimiter = ',', help_heading = "Networking")]
    pub ingress_trusted_proxies: Vec<String>,
    /// Read the address of a client from the PROXY protocol, versions 1 and 2, where a connection
    /// of --ingress-trusted-proxies begins with it
    #[arg(long, help_heading = "Networking")]
    pub ingress_proxy_protocol: bool,
}
