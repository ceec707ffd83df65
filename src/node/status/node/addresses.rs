//! Annotations with the addresses of the node: those of k3s (`k3s.io/internal-ip` and others), for
//! tools that read them, and the one from which an external cloud controller selects.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use sorting::CollectOrdered as _;

use crate::config::Config;

/// Annotation with the addresses of `--node-ip`, from which a cloud controller selects
/// (`cloudproviderapi.AnnotationAlphaProvidedIPAddr`).
pub(super) const PROVIDED: &str = "alpha.kubernetes.io/provided-node-ip";

/// The annotations; `None` is removed. As in k3s, a node of an external cloud has none of
/// `k3s.io`, and lists are separated by commas. `k3s.io/node-args`, `node-env` and
/// `node-config-hash` are not written: everyone who may read nodes could read the command line.
fn all(config: &Config) -> BTreeMap<&'static str, Option<String>> {
    let list = |texts: Vec<String>| (!texts.is_empty()).then(|| texts.join(","));
    let ips = |ips: &[std::net::IpAddr]| list(ips.iter().map(ToString::to_string).collect());
    let internal = ips(&config.node_ips());
    if config.external_cloud {
        let set = config.addresses_are_set.then_some((PROVIDED, internal));
        return set.into_iter().collect();
    }
    BTreeMap::from([
        ("k3s.io/hostname", Some(config.hostname.clone())),
        ("k3s.io/internal-ip", internal),
        ("k3s.io/external-ip", ips(&config.external_ips)),
        ("k3s.io/internal-dns", list(config.internal_dns.clone())),
        ("k3s.io/external-dns", list(config.external_dns.clone())),
    ])
}

/// The annotations of a new node.
pub(super) fn of_new_node(config: &Config) -> BTreeMap<String, String> {
    let present =
        all(config).into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    present.collect_map()
}

/// The annotations of a merge patch for a node that has `annotations`.
pub(super) fn changed(
    config: &Config,
    annotations: Option<&BTreeMap<String, String>>,
) -> Map<String, Value> {
    let mut out = Map::new();
    for (name, value) in all(config) {
        if annotations.and_then(|annotations| annotations.get(name)) != value.as_ref() {
            out.insert(name.to_owned(), value.map_or(Value::Null, Value::String));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn addresses_of_flags_are_annotations_of_k3s() {
        let ip = |text: &str| text.parse().unwrap();
        let mut config = Config::new("n", ip("192.0.2.1"), "/d".into(), "/r".into());
        config.external_ips = vec![ip("203.0.113.1"), ip("2001:db8::1")];
        config.external_dns = vec!["n.example.com".into()];
        let new = of_new_node(&config);
        assert_eq!(
            json!(new),
            json!({"k3s.io/hostname": "n", "k3s.io/internal-ip": "192.0.2.1",
                "k3s.io/external-ip": "203.0.113.1,2001:db8::1",
                "k3s.io/external-dns": "n.example.com"})
        );
        assert!(changed(&config, Some(&new)).is_empty());
        config.external_ips.clear();
        config.hostname = "m".to_owned();
        let patch = changed(&config, Some(&new));
        assert_eq!(json!(patch), json!({"k3s.io/hostname": "m", "k3s.io/external-ip": null}));
        config.external_cloud = true;
        assert!(changed(&config, Some(&new)).is_empty());
    }
}
