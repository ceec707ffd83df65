//! What the proxy needs of this node's own Node object.

use std::borrow::Cow;
use std::net::IpAddr;

use api::Object;
use serde::Deserialize;

/// The zone of this node and the addresses in its status, which include external ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct OwnNode {
    /// `topology.kubernetes.io/zone`.
    pub(crate) zone: Option<String>,
    /// `InternalIP` and `ExternalIP`.
    pub(crate) addresses: Vec<IpAddr>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Fields<'a> {
    #[serde(borrow)]
    status: Status<'a>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Status<'a> {
    #[serde(borrow)]
    addresses: Vec<Address<'a>>,
}

#[derive(Deserialize)]
struct Address<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    address: Cow<'a, str>,
}

impl OwnNode {
    /// Reads a Node object; fields that cannot be read are empty.
    pub(crate) fn of(node: &Object) -> Self {
        let fields: Fields<'_> = serde_json::from_slice(node.raw()).unwrap_or_default();
        let addresses = fields.status.addresses.iter();
        let addresses = addresses.filter(|a| matches!(&*a.kind, "InternalIP" | "ExternalIP"));
        Self {
            zone: node.label("topology.kubernetes.io/zone").map(str::to_owned),
            addresses: addresses.filter_map(|a| a.address.parse().ok()).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn zone_and_addresses_of_both_kinds_are_read() {
        let node = json!({"metadata": {"name": "n", "uid": "u",
                "labels": {"topology.kubernetes.io/zone": "z"}},
            "status": {"capacity": {"cpu": "1"}, "addresses": [
                {"type": "InternalIP", "address": "192.0.2.1"},
                {"type": "Hostname", "address": "192.0.2.9"},
                {"type": "ExternalIP", "address": "2001:db8::1"}]}});
        let own = OwnNode::of(&Object::from_value(node).unwrap());
        assert_eq!(own.zone.as_deref(), Some("z"));
        let want: Vec<IpAddr> = ["192.0.2.1", "2001:db8::1"].map(|a| a.parse().unwrap()).into();
        assert_eq!(own.addresses, want);
        let bare = Object::from_value(json!({"metadata": {"name": "n", "uid": "u"}})).unwrap();
        assert_eq!(OwnNode::of(&bare), OwnNode::default());
    }
}
