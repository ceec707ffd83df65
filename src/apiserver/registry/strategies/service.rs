//! Rules of Services.

use api::validation::core as rules;
use api::validation::names::name_is_label;
use api::value::{get, int_at, is_empty, items, items_mut, object_mut, remove, str_at, str_in};
use serde_json::Value;

use super::super::rules::Rules;

pub(super) const SERVICE: Rules = Rules {
    name: name_is_label,
    status: Some(r#"{"loadBalancer":{}}"#),
    create_on_update: true,
    prepare_change: |context, object, old| {
        if context.subresource.is_empty() {
            drop_by_type(object, old);
        }
    },
    validate: rules::service::validate,
    validate_change: rules::service::validate_change,
    validate_subresource: rules::service::validate_subresource,
    warnings: rules::service_warnings::warnings,
    selectable: |object| {
        vec![
            ("spec.clusterIP", str_in(object, &["spec", "clusterIP"]).to_owned()),
            ("spec.type", str_in(object, &["spec", "type"]).to_owned()),
        ]
    },
    ..Rules::BASE
};

/// Drops the fields of the former type that the client did not change.
fn drop_by_type(object: &mut Value, old: &Value) {
    let old = get(old, "spec");
    let Some(new) = object_mut(object, "spec") else { return };
    let (was, is) = (str_at(old, "type").to_owned(), str_at(new, "type").to_owned());
    let same = |new: &Value, key: &str| api::value::semantic_equal(get(new, key), get(old, key));
    if was != "ExternalName" && is == "ExternalName" {
        if same(new, "clusterIP") && same(new, "clusterIPs") {
            remove(new, "clusterIP");
            remove(new, "clusterIPs");
        }
        for key in ["ipFamilies", "ipFamilyPolicy"] {
            if same(new, key) {
                remove(new, key);
            }
        }
    }
    let node_ports = |kind: &str| matches!(kind, "NodePort" | "LoadBalancer");
    if node_ports(&was) && !node_ports(&is) {
        let known: Vec<i64> =
            items(old, "ports").iter().filter_map(|port| int_at(port, "nodePort")).collect();
        if items(new, "ports")
            .iter()
            .filter_map(|port| int_at(port, "nodePort"))
            .all(|port| port == 0 || known.contains(&port))
        {
            for port in items_mut(new, "ports") {
                remove(port, "nodePort");
            }
        }
    }
    let health = |spec: &Value, kind: &str| {
        kind == "LoadBalancer" && str_at(spec, "externalTrafficPolicy") == "Local"
    };
    if health(old, &was) && !health(new, &is) && same(new, "healthCheckNodePort") {
        remove(new, "healthCheckNodePort");
    }
    if was == "LoadBalancer" && is != "LoadBalancer" {
        for key in ["allocateLoadBalancerNodePorts", "loadBalancerClass"] {
            if same(new, key) {
                remove(new, key);
            }
        }
    }
    let reachable = |spec: &Value, kind: &str| {
        node_ports(kind) || (kind == "ClusterIP" && !is_empty(spec, "externalIPs"))
    };
    if reachable(old, &was) && !reachable(new, &is) && same(new, "externalTrafficPolicy") {
        remove(new, "externalTrafficPolicy");
    }
    if is != "LoadBalancer" {
        if let Some(balancer) =
            object.pointer_mut("/status/loadBalancer").and_then(Value::as_object_mut)
        {
            balancer.clear();
        }
    }
}
