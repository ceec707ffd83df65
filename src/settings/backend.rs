//! The overlay backend: how packets travel between pods of different nodes.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::addr::Family;

/// Bytes that VXLAN adds over IPv4: outer IP header, UDP, VXLAN, inner Ethernet header (20 + 8 + 8
/// + 14).
const VXLAN_OVERHEAD_V4: u32 = 50;
/// Bytes that VXLAN adds over IPv6, whose outer IP header has 40 bytes instead of 20.
const VXLAN_OVERHEAD_V6: u32 = 70;
/// Bytes that WireGuard adds over IPv4: outer IP header, UDP, its own header, authentication (20 +
/// 8 + 16 + 16).
const WIREGUARD_OVERHEAD_V4: u32 = 60;
/// Bytes that WireGuard adds over IPv6, whose outer IP header has 40 bytes instead of 20.
const WIREGUARD_OVERHEAD_V6: u32 = 80;

/// The overlay backends, with the names of `--flannel-backend`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Backend {
    /// Routes to nodes on the same link, VXLAN to all others.
    #[default]
    Auto,
    /// VXLAN to all nodes.
    Vxlan,
    /// Routes to all nodes; nodes on other links are not reachable.
    HostGateway,
    /// WireGuard to all nodes: traffic between pods of different nodes is encrypted.
    WireGuard,
    /// Another CNI plugin connects pods, on each node and between nodes.
    None,
}

/// Why a text is not the name of a supported backend.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BadBackend {
    /// A backend that flannel or k3s has, or had, and kube-lite does not.
    #[error(
        "{0} is not supported; use auto, vxlan, host-gw, wireguard-native (which encrypts) or none"
    )]
    Unsupported(String),
    /// An unknown name.
    #[error("must be auto, vxlan, host-gw, wireguard-native or none")]
    Unknown,
}

impl Backend {
    /// Whether nodes on the same link get a direct route.
    pub fn direct(self) -> bool {
        matches!(self, Self::Auto | Self::HostGateway)
    }

    /// Whether VXLAN connects at least some nodes.
    pub fn tunnels(self) -> bool {
        matches!(self, Self::Auto | Self::Vxlan)
    }

    /// Whether all packets between nodes use WireGuard.
    pub fn encrypts(self) -> bool {
        self == Self::WireGuard
    }

    /// The bytes by which the MTU of pods is smaller than the MTU of the link between nodes. Nodes
    /// may reach each other over any of `families`, so the largest overhead counts.
    pub fn overhead(self, families: &[Family]) -> u32 {
        families.iter().map(|family| self.overhead_over(*family)).max().unwrap_or(0)
    }

    /// The bytes that the backend adds to a packet between nodes that use this family.
    pub fn overhead_over(self, family: Family) -> u32 {
        match (self, family) {
            (Self::HostGateway | Self::None, _) => 0,
            (Self::Auto | Self::Vxlan, Family::V4) => VXLAN_OVERHEAD_V4,
            (Self::Auto | Self::Vxlan, Family::V6) => VXLAN_OVERHEAD_V6,
            (Self::WireGuard, Family::V4) => WIREGUARD_OVERHEAD_V4,
            (Self::WireGuard, Family::V6) => WIREGUARD_OVERHEAD_V6,
        }
    }

    /// The value of `--flannel-backend`, which is also the value in the JSON of the settings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Vxlan => "vxlan",
            Self::HostGateway => "host-gw",
            Self::WireGuard => "wireguard-native",
            Self::None => "none",
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Backend {
    type Err = BadBackend;

    fn from_str(text: &str) -> Result<Self, BadBackend> {
        match text {
            "auto" => Ok(Self::Auto),
            "vxlan" => Ok(Self::Vxlan),
            "host-gw" => Ok(Self::HostGateway),
            "wireguard-native" => Ok(Self::WireGuard),
            "none" => Ok(Self::None),
            "wireguard" | "ipsec" | "udp" => Err(BadBackend::Unsupported(text.to_owned())),
            _ => Err(BadBackend::Unknown),
        }
    }
}

impl Serialize for Backend {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Backend {
    /// The empty name, which older servers send, means the default.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match String::deserialize(deserializer)?.as_str() {
            "" => Ok(Self::default()),
            name => name.parse().map_err(serde::de::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_flannel_and_unsupported_ones_are_refused_by_name() {
        for name in ["auto", "vxlan", "host-gw", "wireguard-native", "none"] {
            assert_eq!(name.parse::<Backend>().unwrap().to_string(), name);
        }
        let refused = "wireguard".parse::<Backend>().unwrap_err().to_string();
        assert!(refused.starts_with("wireguard is not supported"), "{refused}");
        assert!(refused.contains("wireguard-native"), "{refused}");
        assert_eq!("vlan".parse::<Backend>(), Err(BadBackend::Unknown));
    }

    #[test]
    fn the_overhead_is_that_of_the_family_with_the_larger_header() {
        let both = [Family::V4, Family::V6];
        assert_eq!(Backend::Vxlan.overhead(&both[..1]), 50);
        assert_eq!(Backend::Auto.overhead(&both), 70);
        assert_eq!(Backend::HostGateway.overhead(&both), 0);
        assert_eq!(Backend::None.overhead(&both), 0);
        assert_eq!(Backend::WireGuard.overhead(&both[..1]), 60);
        assert_eq!(Backend::WireGuard.overhead(&both), 80);
    }
}
