//! How packets get from the pods of one node to those of another.

use std::fmt;
use std::str::FromStr;

use crate::addr::Family;

/// Bytes that VXLAN adds over IPv4: outer IP header, UDP, VXLAN, inner Ethernet header (20 + 8 + 8 + 14).
const OVERHEAD_V4: u32 = 50;
/// The same over IPv6, whose header has 40 bytes.
const OVERHEAD_V6: u32 = 70;

/// The ways between nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Backend {
    /// Straight to nodes on the same link, VXLAN to all others.
    #[default]
    Auto,
    /// VXLAN to all.
    Vxlan,
    /// Straight to all; nodes that are not on the same link are not reached.
    HostGateway,
    /// Somebody else connects the nodes.
    None,
}

/// Why a text names no backend.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BadBackend {
    /// flannel has it, this version does not.
    #[error(
        "{0} is not supported: packets between nodes are not encrypted yet; use auto, vxlan, host-gw or none"
    )]
    Unsupported(String),
    /// Nobody has it.
    #[error("must be auto, vxlan, host-gw or none")]
    Unknown,
}

impl Backend {
    /// Whether a neighbour on the same link gets a route of its own.
    pub(crate) fn direct(self) -> bool {
        matches!(self, Self::Auto | Self::HostGateway)
    }

    /// Whether there is a VXLAN.
    pub(crate) fn tunnels(self) -> bool {
        matches!(self, Self::Auto | Self::Vxlan)
    }

    /// What a packet of a pod grows by on its way to another node when the cluster has these families.
    pub(crate) fn overhead(self, families: &[Family]) -> u32 {
        match (self.tunnels(), families.contains(&Family::V6)) {
            (false, _) => 0,
            (true, false) => OVERHEAD_V4,
            (true, true) => OVERHEAD_V6,
        }
    }
}

/// What a tunnel over a family adds to each packet.
pub(crate) fn overhead_over(family: Family) -> u32 {
    if family == Family::V4 { OVERHEAD_V4 } else { OVERHEAD_V6 }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Vxlan => "vxlan",
            Self::HostGateway => "host-gw",
            Self::None => "none",
        })
    }
}

impl FromStr for Backend {
    type Err = BadBackend;

    fn from_str(text: &str) -> Result<Self, BadBackend> {
        match text {
            "auto" => Ok(Self::Auto),
            "vxlan" => Ok(Self::Vxlan),
            "host-gw" => Ok(Self::HostGateway),
            "none" => Ok(Self::None),
            "wireguard-native" | "wireguard" | "ipsec" | "udp" => {
                Err(BadBackend::Unsupported(text.to_owned()))
            }
            _ => Err(BadBackend::Unknown),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_flannels_and_what_is_missing_is_refused_by_name() {
        for name in ["auto", "vxlan", "host-gw", "none"] {
            assert_eq!(name.parse::<Backend>().unwrap().to_string(), name);
        }
        let refused = "wireguard-native".parse::<Backend>().unwrap_err().to_string();
        assert!(refused.starts_with("wireguard-native is not supported"), "{refused}");
        assert_eq!("vlan".parse::<Backend>(), Err(BadBackend::Unknown));
    }

    #[test]
    fn pods_leave_room_for_the_tunnel_of_the_larger_header() {
        let both = [Family::V4, Family::V6];
        assert_eq!(Backend::Vxlan.overhead(&both[..1]), 50);
        assert_eq!(Backend::Auto.overhead(&both), 70);
        assert_eq!(Backend::HostGateway.overhead(&both), 0);
        assert_eq!(Backend::None.overhead(&both), 0);
    }
}
