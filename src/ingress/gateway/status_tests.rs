//! Statuses of Gateways, routes and classes.

use super::super::model::build;
use super::super::model::tests::{Cluster, gateway, objects, route};
use super::*;
use crate::objects::services::BackendRegistry;

const NOW: &str = "2026-01-01T00:00:00Z";

fn service(addresses: Value) -> Service {
    serde_json::from_value(json!({"metadata": {"name": "g-c"},
        "spec": {"clusterIPs": ["10.43.0.9"]},
        "status": {"loadBalancer": {"ingress": addresses}}}))
    .unwrap()
}

fn updates(objects: &Objects, service: Option<Service>) -> Vec<Update> {
    let cluster = Cluster { services: vec![("n", "s")] };
    let model = build(objects, &cluster, &mut BackendRegistry::default());
    let reporter = Reporter { objects, model: &model, now: NOW, bundle: "v1.7.0" };
    reporter.updates(|_| service.clone())
}

fn reasons(status: &Value) -> Vec<(String, String, String)> {
    let text = |c: &Value, field: &str| c[field].as_str().unwrap().to_owned();
    let conditions = status["conditions"].as_array().unwrap();
    conditions.iter().map(|c| (text(c, "type"), text(c, "status"), text(c, "reason"))).collect()
}

fn condition_of(status: &Value, kind: &str) -> (String, String) {
    let all = reasons(status);
    let found = all.into_iter().find(|(name, ..)| name == kind).unwrap();
    (found.1, found.2)
}

fn pair(status: &str, reason: &str) -> (String, String) {
    (status.into(), reason.into())
}

#[test]
fn a_gateway_has_the_addresses_of_its_load_balancer_or_its_cluster_ip() {
    let listeners = json!([{"name": "a", "port": 80, "protocol": "HTTP"}]);
    let with = |wanted: Value| {
        let mut gateway = gateway(listeners.clone());
        gateway["spec"]["addresses"] = wanted;
        objects(gateway, Vec::new(), Vec::new())
    };
    for (wanted, balanced, addresses, programmed) in [
        (json!([]), json!([{"ip": "192.0.2.1"}]), vec!["192.0.2.1"], pair("True", "Programmed")),
        (json!([]), json!([]), vec!["10.43.0.9"], pair("True", "Programmed")),
        (
            json!([{"value": "192.0.2.1"}]),
            json!([{"ip": "192.0.2.1"}, {"ip": "192.0.2.2"}]),
            vec!["192.0.2.1"],
            pair("True", "Programmed"),
        ),
        (
            json!([{"value": "192.0.2.9"}]),
            json!([{"ip": "192.0.2.1"}]),
            vec![],
            pair("False", "AddressNotUsable"),
        ),
        (
            json!([{"value": ""}]),
            json!([{"ip": "192.0.2.1"}]),
            vec!["192.0.2.1"],
            pair("True", "Programmed"),
        ),
    ] {
        let all = updates(&with(wanted.clone()), Some(service(balanced)));
        let status = &all.iter().find(|u| u.resource == "gateways").unwrap().status;
        let found: Vec<&str> = status["addresses"]
            .as_array()
            .unwrap()
            .iter()
            .map(|address| address["value"].as_str().unwrap())
            .collect();
        assert_eq!(found, addresses, "{wanted}");
        assert_eq!(condition_of(status, "Programmed"), programmed, "{wanted}");
    }
    let none = updates(&with(json!([])), None);
    let status = &none.iter().find(|u| u.resource == "gateways").unwrap().status;
    assert_eq!(condition_of(status, "Programmed"), pair("False", "AddressNotAssigned"));
    let other = updates(&with(json!([{"type": "Hostname", "value": "a"}])), None);
    let status = &other.iter().find(|u| u.resource == "gateways").unwrap().status;
    assert_eq!(condition_of(status, "Accepted"), pair("False", "UnsupportedAddress"));
}

#[test]
fn a_written_status_is_not_written_again_and_that_of_others_stays() {
    let listeners = json!([{"name": "a", "port": 80, "protocol": "HTTP"}]);
    let spec = json!({"parentRefs": [{"name": "g"}], "rules": [{}]});
    let mut objects =
        objects(gateway(listeners), Vec::new(), vec![(RouteKind::Http, route("r", "n", spec))]);
    let foreign = json!({"parentRef": {"name": "x"}, "controllerName": "other", "conditions": []});
    objects.routes[0].1.status = json!({"parents": [foreign]});
    objects.gateways[0].status = json!({"conditions": [
        {"type": "Accepted", "status": "Unknown", "reason": "Pending", "message": ""},
        {"type": "example.com/Own", "status": "True", "reason": "Yes", "message": ""}]});
    let load_balanced = || Some(service(json!([{"ip": "192.0.2.1"}])));
    let first = updates(&objects, load_balanced());
    let names: Vec<&str> = first.iter().map(|update| update.resource).collect();
    assert_eq!(names, ["gatewayclasses", "gateways", "httproutes"]);
    let parents = first[2].status["parents"].as_array().unwrap();
    assert_eq!((parents.len(), &parents[0]), (2, &foreign));
    assert_eq!(parents[1]["controllerName"], CONTROLLER);
    assert_eq!(condition_of(&parents[1], "Accepted"), pair("True", "Accepted"));
    assert_eq!(condition_of(&first[1].status, "example.com/Own"), pair("True", "Yes"));
    objects.classes[0].status = first[0].status.clone();
    objects.gateways[0].status = first[1].status.clone();
    objects.routes[0].1.status = first[2].status.clone();
    assert_eq!(updates(&objects, load_balanced()), []);
    // Without its parent, our entry goes.
    objects.routes[0].1.spec.parent_refs.clear();
    let last = updates(&objects, load_balanced());
    let route = last.iter().find(|update| update.resource == "httproutes").unwrap();
    assert_eq!(route.status["parents"], json!([foreign]));
}

#[test]
fn features_are_sorted() {
    assert!(FEATURES.is_sorted());
}

#[test]
fn listeners_report_what_is_wrong() {
    let listeners = json!([
        {"name": "a", "port": 80, "protocol": "HTTP",
            "allowedRoutes": {"kinds": [{"kind": "HTTPRoute"}, {"kind": "Bucket"}]}},
        {"name": "b", "port": 80, "protocol": "TCP"},
        {"name": "c", "port": 81, "protocol": "SCTP"},
        {"name": "d", "port": 443, "protocol": "HTTPS",
            "tls": {"certificateRefs": [{"name": "missing"}]}},
    ]);
    let all = updates(&objects(gateway(listeners), Vec::new(), Vec::new()), None);
    let status = &all.iter().find(|update| update.resource == "gateways").unwrap().status;
    assert_eq!(condition_of(status, "Accepted"), pair("True", "ListenersNotValid"));
    let of = |at: usize, kind: &str| condition_of(&status["listeners"][at], kind);
    assert_eq!(of(0, "ResolvedRefs"), pair("False", "InvalidRouteKinds"));
    assert_eq!(of(0, "Programmed"), pair("True", "Programmed"));
    assert_eq!(status["listeners"][0]["supportedKinds"][0]["kind"], "HTTPRoute");
    assert_eq!(of(1, "Conflicted"), pair("True", "ProtocolConflict"));
    assert_eq!(of(1, "Accepted"), pair("False", "ProtocolConflict"));
    assert_eq!(of(2, "Accepted"), pair("False", "UnsupportedProtocol"));
    assert_eq!(of(3, "ResolvedRefs"), pair("False", "InvalidCertificateRef"));
    assert_eq!(of(3, "Programmed"), pair("False", "Invalid"));
}
