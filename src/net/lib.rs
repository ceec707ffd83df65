//! The pod network of a node: CNI, service proxy in nftables, cluster DNS, masquerade.
//!
//! [`run`] does everything until shutdown; [`cni_main`] is the executable's face towards the
//! container runtime. Speaks to the kernel by netlink alone and knows neither the node agent nor
//! the API server.

mod cni;
mod config;
mod dns;
mod host;
mod ipam;
mod netlink;
mod nft;
mod overlay;
mod policy;
mod proxy;
mod run;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod traffic_tests;
mod virtual_address;

pub use cni::{PluginList, PluginListError, cni_main, is_cni_call};
pub use config::{Config, Error, Guard};
pub use dns::DnsState;
pub use overlay::{WireGuardError, check_support};
pub use policy::DroppedPackets;
pub use policy::model::trimmed as trimmed_pod;
pub use run::run;
pub use virtual_address::{
    Arbiter, Holder, HolderConfig, LeaseError, LeaseRequest, LeaseResponse, LeaseServer,
    LeaseServers, VirtualAddresses,
};
