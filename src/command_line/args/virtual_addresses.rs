//! Flags of virtual addresses, each of which one node holds.

use std::net::IpAddr;

use clap::Args;

/// Flags of virtual addresses.
#[derive(Debug, Args, Clone, Default)]
pub struct VirtualAddressArgs {
    /// Virtual addresses of Services of type LoadBalancer, such as 192.0.2.10-192.0.2.20 or
    /// 192.0.2.16/28: each Service gets one per IP family, one node holds it and another takes over
    /// when that node is lost [default: Services have the addresses of nodes]
    #[arg(long, value_name = "RANGE", value_delimiter = ',', help_heading = "Networking")]
    pub lb_pool: Vec<String>,
    /// Virtual address of the API: one server holds it and another takes over when that server is
    /// lost; it is in the serving certificate, and machines can join through it
    #[arg(long, value_name = "IP", help_heading = "Several servers")]
    pub api_vip: Option<IpAddr>,
}
