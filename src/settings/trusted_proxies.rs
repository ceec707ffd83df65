//! The proxies in front of the cluster that may tell the address of a client.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::Cidr;

/// Proxies in front of the ingress and of Gateways (`--ingress-trusted-proxies`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TrustedProxies {
    /// Their addresses.
    pub networks: Vec<Cidr>,
    /// Whether their connections may begin with a header of the PROXY protocol
    /// (`--ingress-proxy-protocol`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub proxy_protocol: bool,
}

impl TrustedProxies {
    /// Whether no proxy is trusted.
    pub fn is_empty(&self) -> bool {
        self.networks.is_empty()
    }

    /// Whether an address is that of a trusted proxy.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.networks.iter().any(|network| network.contains(address))
    }
}
