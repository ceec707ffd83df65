//! How the links of the overlay are made, with flannel's defaults.

use serde::{Deserialize, Serialize};

use crate::addr::Family;

/// The longest name of a link in bytes (`IFNAMSIZ` without the terminating zero).
const LINK_NAME_MAX: usize = 15;

/// The settings of the overlay's links that `--flannel-conf` changes. All nodes of a cluster need
/// the same identifier and ports, since nodes do not announce ports to each other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OverlaySettings {
    /// Network identifier of the VXLAN.
    pub vni: u32,
    /// UDP port of the VXLAN.
    pub vxlan_port: u16,
    /// UDP port of WireGuard over IPv4.
    pub wireguard_port_v4: u16,
    /// UDP port of WireGuard over IPv6.
    pub wireguard_port_v6: u16,
    /// Seconds between keepalive packets of WireGuard; if absent, only a node behind a NAT sends
    /// them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wireguard_keepalive: Option<u16>,
    /// MTU in bytes of the link between nodes; if absent, that of the interface.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_mtu: Option<u32>,
}

impl Default for OverlaySettings {
    fn default() -> Self {
        Self {
            vni: 1,
            vxlan_port: 8472,
            wireguard_port_v4: 51820,
            wireguard_port_v6: 51821,
            wireguard_keepalive: None,
            link_mtu: None,
        }
    }
}

impl OverlaySettings {
    /// Whether all fields have flannel's defaults.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// UDP port of WireGuard over this family.
    pub fn wireguard_port(&self, family: Family) -> u16 {
        match family {
            Family::V4 => self.wireguard_port_v4,
            Family::V6 => self.wireguard_port_v6,
        }
    }

    /// The name of the VXLAN's link: flannel's, which ends with the network identifier.
    pub fn vxlan_link(&self, family: Family) -> String {
        format!("{}{}", vxlan_link_prefix(family), self.vni)
    }

    /// The highest network identifier whose link names fit for these families.
    pub fn vni_max(families: &[Family]) -> u32 {
        let digits = |family: &Family| {
            LINK_NAME_MAX.saturating_sub(vxlan_link_prefix(*family).len()).try_into().unwrap_or(0)
        };
        let digits: u32 = families.iter().map(digits).min().unwrap_or(0);
        10_u32.saturating_pow(digits) - 1
    }
}

/// What precedes the network identifier in the name of a VXLAN's link.
pub fn vxlan_link_prefix(family: Family) -> &'static str {
    match family {
        Family::V4 => "flannel.",
        Family::V6 => "flannel-v6.",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_have_flannels_names_and_identifiers_fit_into_them() {
        let overlay = OverlaySettings { vni: 42, ..OverlaySettings::default() };
        assert_eq!(overlay.vxlan_link(Family::V4), "flannel.42");
        assert_eq!(overlay.vxlan_link(Family::V6), "flannel-v6.42");
        for families in [&Family::ALL[..1], &Family::ALL[1..], &Family::ALL] {
            let vni = OverlaySettings::vni_max(families);
            let overlay = OverlaySettings { vni, ..OverlaySettings::default() };
            let longest = families.iter().map(|f| overlay.vxlan_link(*f).len()).max();
            assert_eq!(longest, Some(LINK_NAME_MAX), "{families:?}");
        }
        assert_eq!(OverlaySettings::vni_max(&Family::ALL), 9999);
    }

    #[test]
    fn fields_that_a_server_does_not_send_have_flannels_values() {
        let overlay: OverlaySettings = serde_json::from_str(r#"{"vni":7}"#).unwrap();
        assert_eq!(overlay, OverlaySettings { vni: 7, ..OverlaySettings::default() });
        assert!(!overlay.is_default() && OverlaySettings::default().is_default());
        let ports = Family::ALL.map(|family| overlay.wireguard_port(family));
        assert_eq!((overlay.vxlan_port, ports), (8472, [51820, 51821]));
    }
}
