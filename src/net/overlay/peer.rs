//! What a Node object says about reaching the node's pods, in flannel's annotations.

use std::collections::BTreeMap;
use std::net::IpAddr;

use api::Object;
use serde::{Deserialize, Serialize};
use sorting::CollectOrdered as _;

use crate::netlink::link::{Mac, mac_text};
use crate::netlink::wireguard::PublicKey;
use settings::Backend;
use settings::addr::{Cidr, Family};

const TYPE: &str = "flannel.alpha.coreos.com/backend-type";
const MANAGER: &str = "flannel.alpha.coreos.com/kube-subnet-manager";

fn data_name(family: Family) -> &'static str {
    match family {
        Family::V4 => "flannel.alpha.coreos.com/backend-data",
        Family::V6 => "flannel.alpha.coreos.com/backend-v6-data",
    }
}

fn address_name(family: Family) -> &'static str {
    match family {
        Family::V4 => "flannel.alpha.coreos.com/public-ip",
        Family::V6 => "flannel.alpha.coreos.com/public-ipv6",
    }
}

fn overwrite_name(family: Family) -> &'static str {
    match family {
        Family::V4 => "flannel.alpha.coreos.com/public-ip-overwrite",
        Family::V6 => "flannel.alpha.coreos.com/public-ipv6-overwrite",
    }
}

/// One family's way to a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Face {
    /// Where other nodes reach it.
    pub(crate) address: Option<IpAddr>,
    /// Hardware address of its end of the VXLAN.
    pub(crate) vtep: Option<Mac>,
    /// Key of its end of WireGuard.
    pub(crate) key: Option<PublicKey>,
}

/// What this node tells others about its ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ends {
    /// Hardware address of its ends of the VXLAN.
    pub(crate) mac: Mac,
    /// Network identifier of the VXLAN.
    pub(crate) vni: u32,
    /// Key of its ends of WireGuard.
    pub(crate) key: Option<PublicKey>,
}

/// A node as others see it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) name: String,
    /// `metadata.creationTimestamp`, whose text sorts by time.
    pub(crate) created: String,
    pub(crate) blocks: Vec<Cidr>,
    pub(crate) v4: Face,
    pub(crate) v6: Face,
    /// The addresses of its status: behind one that the user published, packets may still come from
    /// these.
    pub(crate) known: Vec<IpAddr>,
    /// It takes packets of its pods that come straight over a shared link, and sends them so.
    pub(crate) direct: bool,
    /// It has an end of the VXLAN.
    pub(crate) tunnels: bool,
    /// It takes packets through WireGuard alone.
    pub(crate) encrypts: bool,
    /// The annotations that are ours to write.
    pub(crate) annotations: BTreeMap<String, String>,
    /// Addresses that the user wants to be published instead of ours.
    pub(crate) overwrite: Vec<IpAddr>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct NodeFields {
    metadata: Meta,
    spec: Option<Spec>,
    status: Option<Status>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Meta {
    annotations: Option<BTreeMap<String, String>>,
    creation_timestamp: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Spec {
    #[serde(rename = "podCIDR")]
    pod_cidr: Option<String>,
    #[serde(rename = "podCIDRs")]
    pod_cidrs: Option<Vec<String>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Status {
    addresses: Option<Vec<Address>>,
}

#[derive(Deserialize)]
struct Address {
    #[serde(rename = "type")]
    kind: String,
    address: String,
}

/// flannel's `backend-data` of VXLAN; flannel ignores what it does not know.
#[derive(Debug, Serialize, Deserialize)]
struct Data {
    #[serde(rename = "VNI", default)]
    vni: u32,
    #[serde(rename = "VtepMAC", default)]
    mac: String,
    #[serde(rename = "DirectRouting", default, skip_serializing_if = "std::ops::Not::not")]
    direct: bool,
}

/// flannel's `backend-data` of WireGuard.
#[derive(Debug, Serialize, Deserialize)]
struct Keyed {
    #[serde(rename = "PublicKey")]
    key: String,
}

fn parse_mac(text: &str) -> Option<Mac> {
    let bytes: Option<Vec<u8>> =
        text.split(':').map(|part| u8::from_str_radix(part, 16).ok()).collect();
    // A group address cannot be a machine's.
    bytes?.try_into().ok().filter(|mac: &Mac| mac[0] & 1 == 0 && *mac != [0; 6])
}

/// An address that another machine can have.
fn is_host(ip: IpAddr) -> bool {
    let link_local = match ip {
        IpAddr::V4(ip) => ip.is_broadcast() || ip.is_link_local(),
        IpAddr::V6(ip) => ip.segments()[0] & 0xffc0 == 0xfe80 || ip.to_ipv4_mapped().is_some(),
    };
    !(ip.is_loopback() || ip.is_multicast() || ip.is_unspecified() || link_local)
}

impl Peer {
    /// Reads a Node; fields that make no sense count as absent, and so does the end of a VXLAN with
    /// another network identifier than `vni`.
    pub(crate) fn read(node: &Object, vni: u32) -> Self {
        let seen: NodeFields = serde_json::from_slice(node.raw()).unwrap_or_else(|error| {
            tracing::warn!(node = %node.key.name, %error, "cannot read a Node");
            NodeFields::default()
        });
        let annotations = seen.metadata.annotations.unwrap_or_default();
        let text = |name: &str| annotations.get(name).map(String::as_str);
        let spec = seen.spec.unwrap_or_default();
        let mut blocks = spec.pod_cidrs.unwrap_or_default();
        if blocks.is_empty() {
            blocks.extend(spec.pod_cidr);
        }
        let told = seen.status.and_then(|s| s.addresses).unwrap_or_default();
        let of_kind = |kinds: &[&str]| -> Vec<IpAddr> {
            let ips = told.iter().filter(|a| kinds.contains(&a.kind.as_str()));
            ips.filter_map(|a| a.address.parse().ok()).filter(|ip| is_host(*ip)).collect()
        };
        let internal = of_kind(&["InternalIP"]);
        let address = |family: Family, name: &str| {
            let ip: IpAddr = text(name)?.parse().ok()?;
            (Family::of(ip) == family && is_host(ip)).then_some(ip)
        };
        let data = |family| -> Option<Data> { serde_json::from_str(text(data_name(family))?).ok() };
        let kind = text(TYPE).unwrap_or_default();
        let encrypts = kind == "wireguard";
        let key = |family| -> Option<PublicKey> {
            let keyed: Keyed = serde_json::from_str(text(data_name(family))?).ok()?;
            keyed.key.parse().ok()
        };
        let face = |family: Family| Face {
            address: address(family, address_name(family))
                .or_else(|| internal.iter().copied().find(|ip| Family::of(*ip) == family)),
            vtep: data(family).filter(|d| d.vni == vni).and_then(|d| parse_mac(&d.mac)),
            key: key(family).filter(|_| encrypts),
        };
        let told_direct = Family::ALL.iter().any(|f| data(*f).is_some_and(|d| d.direct));
        let ours = |name: &&String| {
            let families = Family::ALL.iter();
            [TYPE, MANAGER].contains(&name.as_str())
                || families.clone().any(|f| {
                    [data_name(*f), address_name(*f), overwrite_name(*f)].contains(&name.as_str())
                })
        };
        Self {
            name: node.key.name.to_string(),
            created: seen.metadata.creation_timestamp.unwrap_or_default(),
            blocks: blocks.iter().filter_map(|b| b.parse().ok()).collect(),
            v4: face(Family::V4),
            v6: face(Family::V6),
            known: of_kind(&["InternalIP", "ExternalIP"]),
            direct: kind == "host-gw" || (kind == "vxlan" && told_direct),
            tunnels: kind == "vxlan",
            encrypts,
            overwrite: Family::ALL.iter().filter_map(|f| address(*f, overwrite_name(*f))).collect(),
            annotations: annotations
                .iter()
                .filter(|(name, _)| ours(name))
                .map(|(k, v)| (k.clone(), v.clone()))
                .collect(),
        }
    }

    /// The backend that it says to have, as the flag names it; `None` before it has said anything.
    pub(crate) fn backend(&self) -> Option<&'static str> {
        match (self.encrypts, self.tunnels, self.direct) {
            (true, ..) => Some(Backend::WireGuard.name()),
            (_, true, _) => Some(Backend::Vxlan.name()),
            (_, _, true) => Some(Backend::HostGateway.name()),
            _ => None,
        }
    }

    /// Its way for a family.
    pub(crate) fn face(&self, family: Family) -> &Face {
        if family == Family::V4 { &self.v4 } else { &self.v6 }
    }
}

/// What the annotations of this node are to be. `None` removes one; a node without overlay writes
/// none. `external` are the node's external addresses with `--flannel-external-ip`, for which k3s
/// writes annotations, too, and keeps them when the flag is removed.
pub(crate) fn annotations(
    backend: Backend,
    addresses: &[IpAddr],
    external: &[IpAddr],
    ends: &Ends,
) -> BTreeMap<String, Option<String>> {
    let kind = match backend {
        Backend::WireGuard => "wireguard",
        Backend::Auto | Backend::Vxlan => "vxlan",
        Backend::HostGateway | Backend::None => "host-gw",
    };
    let mut out = BTreeMap::from([
        (TYPE.to_owned(), Some(kind.to_owned())),
        (MANAGER.to_owned(), Some("true".to_owned())),
    ]);
    for family in Family::ALL {
        let address = addresses.iter().find(|ip| Family::of(**ip) == family);
        let data = match (kind, ends.key) {
            ("vxlan", _) => {
                let data =
                    Data { vni: ends.vni, mac: mac_text(&ends.mac), direct: backend.direct() };
                serde_json::to_string(&data).unwrap_or_default()
            }
            ("wireguard", Some(key)) => {
                serde_json::to_string(&Keyed { key: key.to_string() }).unwrap_or_default()
            }
            // flannel writes `null` where a backend has nothing to tell.
            _ => "null".to_owned(),
        };
        out.insert(address_name(family).to_owned(), address.map(ToString::to_string));
        out.insert(data_name(family).to_owned(), address.map(|_| data));
        if let Some(address) = external.iter().find(|ip| Family::of(**ip) == family) {
            out.insert(overwrite_name(family).to_owned(), Some(address.to_string()));
        }
    }
    out
}

/// The part of `wanted` that `present` does not have yet.
pub(crate) fn missing(
    wanted: &BTreeMap<String, Option<String>>,
    present: &BTreeMap<String, String>,
) -> BTreeMap<String, Option<String>> {
    let differs = |(name, value): &(&String, &Option<String>)| present.get(*name) != value.as_ref();
    wanted.iter().filter(differs).map(|(k, v)| (k.clone(), v.clone())).collect_map()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read(node: Value) -> Peer {
        Peer::read(&Object::from_value(node).unwrap(), 1)
    }

    #[test]
    fn a_node_of_flannel_is_understood() {
        let peer = read(json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": "b", "creationTimestamp": "2026-01-02T03:04:05Z", "annotations": {
                "flannel.alpha.coreos.com/backend-data": "{\"VNI\":1,\"VtepMAC\":\"0e:7f:c1:a4:63:2b\"}",
                "flannel.alpha.coreos.com/backend-v6-data": "{\"VNI\":1,\"VtepMAC\":\"7e:a2:3b:04:a6:d1\"}",
                "flannel.alpha.coreos.com/backend-type": "vxlan",
                "flannel.alpha.coreos.com/kube-subnet-manager": "true",
                "flannel.alpha.coreos.com/public-ip": "192.0.2.2",
                "flannel.alpha.coreos.com/public-ipv6": "2001:db8::2",
                "other": "x"}},
            "spec": {"podCIDR": "10.42.2.0/24", "podCIDRs": ["10.42.2.0/24", "fd00:42:0:2::/64"]},
            "status": {"addresses": [{"type": "InternalIP", "address": "198.51.100.7"}]}}));
        assert_eq!(peer.blocks.len(), 2);
        assert_eq!(peer.v4.address, Some("192.0.2.2".parse().unwrap()));
        assert_eq!(peer.v4.vtep, Some([0x0e, 0x7f, 0xc1, 0xa4, 0x63, 0x2b]));
        assert_eq!(peer.v6.address, Some("2001:db8::2".parse().unwrap()));
        assert_eq!(peer.v6.vtep, Some([0x7e, 0xa2, 0x3b, 0x04, 0xa6, 0xd1]));
        assert!(peer.tunnels && !peer.direct);
        assert_eq!(peer.annotations.len(), 6);
    }

    #[test]
    fn a_node_of_flannels_wireguard_is_understood_and_ours_looks_the_same() {
        let key = "3p7bfXt9wbTTW2HC7OQ1Nz+DQ8hbeGdNrfx+FG+IK08=";
        let node = |data: &str| {
            read(json!({"apiVersion": "v1", "kind": "Node",
                "metadata": {"name": "b", "annotations": {
                    "flannel.alpha.coreos.com/backend-data": data,
                    "flannel.alpha.coreos.com/backend-v6-data": data,
                    "flannel.alpha.coreos.com/backend-type": "wireguard",
                    "flannel.alpha.coreos.com/kube-subnet-manager": "true",
                    "flannel.alpha.coreos.com/public-ip": "192.0.2.2",
                    "flannel.alpha.coreos.com/public-ipv6": "2001:db8::2"}},
                "spec": {"podCIDRs": ["10.42.2.0/24", "fd00:42:0:2::/64"]}}))
        };
        let data = format!("{{\"PublicKey\":\"{key}\"}}");
        let peer = node(&data);
        assert_eq!((peer.v4.key, peer.v6.key), (key.parse().ok(), key.parse().ok()));
        assert_eq!((peer.encrypts, peer.tunnels, peer.direct), (true, false, false));
        assert_eq!(peer.backend(), Some("wireguard-native"));
        let addresses = ["192.0.2.2".parse().unwrap(), "2001:db8::2".parse().unwrap()];
        let ends = Ends { mac: [2, 0, 0, 0, 0, 1], vni: 1, key: key.parse().ok() };
        let ours = annotations(Backend::WireGuard, &addresses, &[], &ends);
        assert!(missing(&ours, &peer.annotations).is_empty(), "{ours:?}");
        for bad in ["null", "{}", "[", "{\"PublicKey\":\"x\"}", "{\"PublicKey\":3}"] {
            let peer = node(bad);
            assert_eq!((peer.v4.key, peer.encrypts), (None, true), "{bad}");
        }
    }

    #[test]
    fn addresses_of_the_status_stand_in_and_nonsense_is_as_good_as_nothing() {
        let bare = read(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "b"},
            "spec": {"podCIDR": "10.42.2.0/24"},
            "status": {"addresses": [
                {"type": "Hostname", "address": "b"}, {"type": "ExternalIP", "address": "203.0.113.1"},
                {"type": "InternalIP", "address": "192.0.2.2"},
                {"type": "InternalIP", "address": "fe80::1"}]}}));
        assert_eq!(bare.v4.address, Some("192.0.2.2".parse().unwrap()));
        let known: Vec<String> = bare.known.iter().map(ToString::to_string).collect();
        assert_eq!(known, ["203.0.113.1", "192.0.2.2"]);
        assert_eq!((bare.v6.address, bare.tunnels, bare.direct), (None, false, false));
        let odd = |annotations: Value| {
            read(json!({"apiVersion": "v1", "kind": "Node",
                "metadata": {"name": "b", "annotations": annotations}, "spec": {"podCIDRs": ["x"]}}))
        };
        for (name, value) in [
            ("public-ip", "127.0.0.1"),
            ("public-ip", "2001:db8::1"),
            ("public-ip", "224.0.0.1"),
            ("backend-data", "{\"VNI\":2,\"VtepMAC\":\"0e:7f:c1:a4:63:2b\"}"),
            ("backend-data", "{\"VNI\":1,\"VtepMAC\":\"01:7f:c1:a4:63:2b\"}"),
            ("backend-data", "{\"VNI\":1,\"VtepMAC\":\"0e:7f\"}"),
            ("backend-data", "["),
        ] {
            let peer = odd(json!({format!("flannel.alpha.coreos.com/{name}"): value}));
            assert_eq!(peer.v4, Face::default(), "{name}={value}");
            assert!(peer.blocks.is_empty());
        }
    }

    #[test]
    fn own_annotations_are_flannels_and_only_differences_are_written() {
        let mut ends = Ends { mac: [2, 0, 0, 0, 0, 1], vni: 1, key: None };
        let addresses = ["192.0.2.1".parse().unwrap()];
        let wanted = annotations(Backend::Vxlan, &addresses, &[], &ends);
        let at = |name: &str| wanted[&format!("flannel.alpha.coreos.com/{name}")].clone();
        assert_eq!(at("backend-type").unwrap(), "vxlan");
        assert_eq!(at("kube-subnet-manager").unwrap(), "true");
        assert_eq!(at("public-ip").unwrap(), "192.0.2.1");
        assert_eq!(at("backend-data").unwrap(), r#"{"VNI":1,"VtepMAC":"02:00:00:00:00:01"}"#);
        assert_eq!((at("public-ipv6"), at("backend-v6-data")), (None, None));
        let auto = annotations(Backend::Auto, &addresses, &[], &ends);
        assert_eq!(
            auto["flannel.alpha.coreos.com/backend-data"].as_deref().unwrap(),
            r#"{"VNI":1,"VtepMAC":"02:00:00:00:00:01","DirectRouting":true}"#
        );
        ends.vni = 42;
        let external = ["203.0.113.1".parse().unwrap()];
        let outside = annotations(Backend::Vxlan, &external, &external, &ends);
        let at = |name: &str| outside[&format!("flannel.alpha.coreos.com/{name}")].clone();
        assert_eq!(at("backend-data").unwrap(), r#"{"VNI":42,"VtepMAC":"02:00:00:00:00:01"}"#);
        assert_eq!(at("public-ip").unwrap(), "203.0.113.1");
        assert_eq!(at("public-ip-overwrite").unwrap(), "203.0.113.1");
        assert!(!outside.contains_key("flannel.alpha.coreos.com/public-ipv6-overwrite"));
        let mut present: BTreeMap<String, String> =
            wanted.iter().filter_map(|(k, v)| Some((k.clone(), v.clone()?))).collect();
        assert!(missing(&wanted, &present).is_empty());
        let six = "flannel.alpha.coreos.com/public-ipv6".to_owned();
        present.insert(six.clone(), "2001:db8::1".into());
        assert_eq!(missing(&wanted, &present), BTreeMap::from([(six, None)]));
    }
}
