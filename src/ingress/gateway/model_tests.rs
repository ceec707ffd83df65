//! Routes attach to listeners of Gateways.

use super::*;
use api::k8s::api::core::v1::{Secret, Service};
use serde_json::{Value, json};

/// Objects without Secrets and ConfigMaps; each namespace has the label `name`.
pub(crate) struct Cluster {
    pub(crate) services: Vec<(&'static str, &'static str)>,
}

impl References for Cluster {
    fn service(&self, namespace: &str, name: &str) -> Option<Service> {
        self.services.contains(&(namespace, name)).then(|| {
            serde_json::from_value(json!({"metadata": {"name": name},
                "spec": {"ports": [{"port": 80, "protocol": "TCP"}]}}))
            .unwrap()
        })
    }

    fn secret(&self, _: &str, _: &str) -> Option<Secret> {
        None
    }

    fn config_map(&self, _: &str, _: &str) -> Option<BTreeMap<String, String>> {
        None
    }

    fn namespace_labels(&self, name: &str) -> Option<BTreeMap<String, String>> {
        Some(BTreeMap::from([("name".to_owned(), name.to_owned())]))
    }
}

pub(crate) fn objects(
    gateway: Value,
    sets: Vec<Value>,
    routes: Vec<(RouteKind, Value)>,
) -> Objects {
    let class = json!({"metadata": {"name": "c"},
        "spec": {"controllerName": super::super::objects::CONTROLLER}});
    let mut objects = Objects {
        classes: vec![serde_json::from_value(class).unwrap()],
        gateways: vec![serde_json::from_value(gateway).unwrap()],
        sets: sets.into_iter().map(|set| serde_json::from_value(set).unwrap()).collect(),
        routes: routes
            .into_iter()
            .map(|(kind, route)| (kind, serde_json::from_value(route).unwrap()))
            .collect(),
        ..Objects::default()
    };
    objects.sort();
    objects
}

pub(crate) fn gateway(listeners: Value) -> Value {
    json!({"metadata": {"name": "g", "namespace": "n", "uid": "u"},
        "spec": {"gatewayClassName": "c", "listeners": listeners}})
}

pub(crate) fn route(name: &str, namespace: &str, spec: Value) -> Value {
    json!({"metadata": {"name": name, "namespace": namespace}, "spec": spec})
}

fn built(objects: &Objects) -> Model {
    let cluster = Cluster { services: vec![("n", "s")] };
    build(objects, &cluster, &mut BackendRegistry::default())
}

// `RouteConditionReason`: what is checked first gives the reason.
#[test]
fn routes_attach_to_listeners() {
    let listeners = json!([
        {"name": "a", "port": 80, "protocol": "HTTP", "hostname": "*.a.example"},
        {"name": "b", "port": 81, "protocol": "HTTP",
            "allowedRoutes": {"namespaces": {"from": "All"}}},
        {"name": "t", "port": 82, "protocol": "TCP"},
        {"name": "s", "port": 83, "protocol": "HTTP", "allowedRoutes": {"namespaces":
            {"from": "Selector", "selector": {"matchLabels": {"name": "m"}}}}},
    ]);
    let rules = json!([{"backendRefs": [{"name": "s", "port": 80}]}]);
    for (namespace, parent, hosts, expected) in [
        ("n", json!({}), json!([]), Ok(vec![0, 1])),
        ("n", json!({}), json!(["x.a.example"]), Ok(vec![0, 1])),
        ("n", json!({"sectionName": "a"}), json!(["b.example"]), Err("NoMatchingListenerHostname")),
        ("n", json!({"sectionName": "x"}), json!([]), Err("NoMatchingParent")),
        ("n", json!({"port": 81}), json!([]), Ok(vec![1])),
        ("n", json!({"port": 81, "sectionName": "a"}), json!([]), Err("NoMatchingParent")),
        ("n", json!({"sectionName": "t"}), json!([]), Err("NotAllowedByListeners")),
        ("m", json!({"namespace": "n"}), json!([]), Ok(vec![1, 3])),
        (
            "o",
            json!({"namespace": "n", "sectionName": "s"}),
            json!([]),
            Err("NotAllowedByListeners"),
        ),
    ] {
        let mut reference = parent.clone();
        reference["name"] = "g".into();
        let spec = json!({"parentRefs": [reference], "hostnames": hosts, "rules": rules});
        let one = (RouteKind::Http, route("r", namespace, spec));
        let objects = objects(gateway(listeners.clone()), Vec::new(), vec![one]);
        let model = built(&objects);
        let found = &model.routes[0].parents[0];
        let got = found.accepted.as_ref().map(|()| found.listeners.clone()).map_err(|p| p.reason);
        assert_eq!(got, expected, "{namespace} {parent} {hosts}");
        let attached: Vec<usize> = model.gateways[0].listeners.iter().map(|l| l.attached).collect();
        let count = expected.as_ref().map_or(0, Vec::len);
        assert_eq!(attached.iter().sum::<usize>(), count);
    }
}

#[test]
fn routes_of_other_gateways_are_left_alone() {
    let spec = json!({"parentRefs": [{"name": "other"}], "rules": []});
    let objects =
        objects(gateway(json!([])), Vec::new(), vec![(RouteKind::Http, route("r", "n", spec))]);
    assert!(built(&objects).routes.is_empty());
}

// `GatewaySpec.listeners`: the first of conflicting listeners serves; HTTPS and TLS share a port.
#[test]
fn conflicting_listeners() {
    let listener = |name: &str, port: u16, protocol: &str, host: &str| {
        let spec = json!({"port": port, "protocol": protocol, "hostname": host});
        let mut listener = spec;
        listener["name"] = name.into();
        listener
    };
    let mut passthrough = listener("g", 443, "TLS", "p.example");
    passthrough["tls"] = json!({"mode": "Passthrough"});
    let listeners = json!([
        listener("a", 80, "HTTP", "a.example"),
        listener("b", 80, "HTTP", "b.example"),
        listener("c", 80, "HTTP", "A.example"),
        listener("d", 80, "TCP", ""),
        listener("e", 80, "UDP", ""),
        listener("f", 443, "HTTPS", "a.example"),
        passthrough,
        listener("h", 443, "TLS", "a.example"),
    ]);
    let model = built(&objects(gateway(listeners), Vec::new(), Vec::new()));
    let conflicts: Vec<_> = model.gateways[0]
        .listeners
        .iter()
        .map(|listener| listener.conflict.as_ref().map(|problem| problem.reason))
        .collect();
    let (host, protocol) = (Some("HostnameConflict"), Some("ProtocolConflict"));
    assert_eq!(conflicts, [None, None, host, protocol, None, None, None, protocol]);
}

#[test]
fn listener_sets_need_the_gateway_to_allow_them() {
    let set = |namespace: &str| {
        json!({"metadata": {"name": "l", "namespace": namespace}, "spec": {
            "parentRef": {"name": "g", "namespace": "n"},
            "listeners": [{"name": "x", "port": 81, "protocol": "HTTP"}]}})
    };
    for (from, allowed) in [(None, 0), (Some("None"), 0), (Some("Same"), 1), (Some("All"), 2)] {
        let mut gateway = gateway(json!([{"name": "a", "port": 80, "protocol": "HTTP"}]));
        if let Some(from) = from {
            gateway["spec"]["allowedListeners"] = json!({"namespaces": {"from": from}});
        }
        let model = built(&objects(gateway, vec![set("n"), set("m")], Vec::new()));
        let count = model.sets.iter().filter(|set| set.is_allowed).count();
        assert_eq!(count, allowed, "{from:?}");
    }
}

#[test]
fn references_that_lead_nowhere() {
    for (reference, reason) in [
        (json!({"name": "s", "port": 80}), None),
        (json!({"name": "x", "port": 80}), Some("BackendNotFound")),
        (json!({"name": "s", "port": 81}), Some("BackendNotFound")),
        (json!({"name": "s", "port": 80, "kind": "Bucket", "group": "g"}), Some("InvalidKind")),
        (json!({"name": "s", "port": 80, "namespace": "m"}), Some("RefNotPermitted")),
    ] {
        let spec = json!({"parentRefs": [{"name": "g"}], "rules": [{"backendRefs": [reference]}]});
        let listeners = json!([{"name": "a", "port": 80, "protocol": "HTTP"}]);
        let one = (RouteKind::Http, route("r", "n", spec));
        let model = built(&objects(gateway(listeners), Vec::new(), vec![one]));
        let compiled = &model.routes[0].compiled[&0];
        assert_eq!(compiled.unresolved.as_ref().map(|p| p.reason), reason, "{reference}");
        // The rule answers with 500.
        assert_eq!(compiled.rules.len(), 1);
    }
}

#[test]
fn a_route_without_a_supported_rule_is_not_accepted() {
    let path = |kind: &str, value: &str| json!({"path": {"type": kind, "value": value}});
    let bad = json!({"matches": [path("RegularExpression", "(")]});
    let good = json!({"matches": [path("Exact", "/")]});
    let listeners = json!([{"name": "a", "port": 80, "protocol": "HTTP"}]);
    for (rules, reason, count) in
        [(json!([bad]), Some("UnsupportedValue"), 0), (json!([bad, good]), None, 1)]
    {
        let spec = json!({"parentRefs": [{"name": "g"}], "rules": rules});
        let one = (RouteKind::Http, route("r", "n", spec));
        let model = built(&objects(gateway(listeners.clone()), Vec::new(), vec![one]));
        let accepted = model.routes[0].parents[0].accepted.as_ref();
        assert_eq!(accepted.err().map(|p| p.reason), reason);
        assert_eq!(model.gateways[0].listeners[0].attached, count);
    }
}
