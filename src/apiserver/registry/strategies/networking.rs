//! Rules of the kinds of networking.k8s.io and discovery.k8s.io.

use api::validation::names::name_is_subdomain;
use api::validation::{endpoints, networking, warnings};
use api::value::{
    ensure_object, get, int_at, items, items_mut, remove, semantic_equal, set, str_at,
};
use serde_json::Value;

use crate::registry::rules::Rules;

pub(super) const INGRESS: Rules = Rules {
    warnings: warnings::ingress,
    status: Some(r#"{"loadBalancer":{}}"#),
    generation: &["spec"],
    validate: networking::ingress,
    validate_change: networking::ingress_change,
    validate_subresource: networking::ingress_status,
    ..Rules::BASE
};

pub(super) const NETWORK_POLICY: Rules = Rules {
    warnings: warnings::network_policy,
    validate: networking::policy,
    validate_change: networking::policy_change,
    generation: &["spec"],
    ..Rules::BASE
};

pub(super) const INGRESS_CLASS: Rules = Rules {
    validate: networking::ingress_class,
    validate_change: networking::ingress_class_change,
    generation: &["spec"],
    ..Rules::BASE
};

pub(super) const IP_ADDRESS: Rules = Rules {
    name: networking::address_name,
    validate: networking::address,
    validate_change: networking::address_change,
    ..Rules::BASE
};

pub(super) const SERVICE_CIDR: Rules = Rules {
    status: Some("{}"),
    status_keeps_meta: true,
    validate: networking::service_cidr,
    validate_change: networking::service_cidr_change,
    ..Rules::BASE
};

pub(super) const ENDPOINT_SLICE: Rules = Rules {
    warnings: warnings::slice,
    prepare: |_, object| drop_topology(object, &Value::Null),
    prepare_change: |_, object, old| {
        let sent = get(object, "endpoints").clone();
        drop_topology(object, old);
        // Dropping the topology counts as a change.
        if sent != *get(object, "endpoints")
            && let Some(meta) = ensure_object(object, "metadata")
        {
            let before = int_at(get(old, "metadata"), "generation").unwrap_or_default();
            set(meta, "generation", before + 1);
        }
    },
    generation: &["ports", "endpoints", "addressType", "metadata.labels"],
    validate: endpoints::slice,
    validate_change: endpoints::slice_change,
    ..Rules::BASE
};

/// Drops `deprecatedTopology` unless the endpoints are unchanged; a node that only the topology of
/// the old object named moves to `nodeName` (`dropTopologyOnV1`).
fn drop_topology(slice: &mut Value, old: &Value) {
    const KEY: &str = "deprecatedTopology";
    const HOST: &str = "kubernetes.io/hostname";
    if old.is_object() && semantic_equal(get(slice, "endpoints"), get(old, "endpoints")) {
        return;
    }
    let node = |endpoint: &Value| str_at(get(endpoint, KEY), HOST).to_owned();
    let old_nodes: Vec<String> = items(old, "endpoints").iter().map(node).collect();
    for endpoint in items_mut(slice, "endpoints") {
        let name = node(endpoint);
        let is_valid = !name.is_empty() && name_is_subdomain(&name, false).is_empty();
        if get(endpoint, "nodeName").is_null() && is_valid && old_nodes.contains(&name) {
            set(endpoint, "nodeName", name);
        }
        remove(endpoint, KEY);
    }
}
