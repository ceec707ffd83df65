//! Targets of connections and their error messages; literals are from upstream's sources and
//! recorded responses.

use serde_json::json;

use super::target::*;
use super::*;

fn pod() -> Value {
    json!({"metadata": {"name": "p", "namespace": "n"}, "spec": {"containers": [{"name": "c", "ports": [{"containerPort": 8080}]}]},
           "status": {"podIP": "10.42.0.5", "podIPs": [{"ip": "10.42.0.5"}]}})
}

#[test]
fn options_are_translated_for_the_kubelet() {
    let query =
        Query::parse("command=sh&command=-c&command=a%20b&stdin=true&stdout=true&tty=false");
    let path = kubelet_path("exec", &pod(), &query).unwrap();
    assert_eq!(path, "/exec/n/p/c?input=1&output=1&command=sh&command=-c&command=a%20b");
    let query = Query::parse("follow=true&tailLines=5&sinceTime=2026-01-01T00:00:00Z");
    assert_eq!(
        kubelet_path("log", &pod(), &query).unwrap(),
        "/containerLogs/n/p/c?follow=true&sinceTime=2026-01-01T00%3A00%3A00Z&tailLines=5&stream=All"
    );
    let query = Query::parse("ports=80&ports=443");
    assert_eq!(
        kubelet_path("portforward", &pod(), &query).unwrap(),
        "/portForward/n/p?port=80%2C443"
    );
}

#[test]
fn a_pod_with_several_containers_requires_a_container_name() {
    let mut pod = pod();
    pod["spec"]["containers"] = json!([{"name": "a"}, {"name": "b"}]);
    let refused = kubelet_path("log", &pod, &Query::parse("")).unwrap_err();
    assert_eq!(
        refused.message,
        "a container name must be specified for pod p, choose one of: [a b]"
    );
    assert_eq!(refused.code, 400);
}

#[test]
fn kubelets_are_dialed_at_their_reported_address_and_port() {
    let node = json!({"status": {"addresses": [{"type": "Hostname", "address": "n"}, {"type": "InternalIP", "address": "fd00::1"}],
                                 "daemonEndpoints": {"kubeletEndpoint": {"Port": 10260}}}});
    assert_eq!(kubelet(&node).unwrap().authority(), "[fd00::1]:10260");
    let refused = kubelet(&json!({"status": {}})).unwrap_err();
    assert_eq!(refused.message, "no preferred addresses found; known addresses: []");
}

/// C2.1: CVE-2020-8562, CVE-2022-3294: a pod's status must not lead to this machine, its link or a
/// metadata service.
#[test]
fn pods_are_proxied_to_their_first_port_and_never_to_this_machine() {
    let plain = pod_proxy("p", &pod()).unwrap();
    assert_eq!((plain.authority().as_str(), plain.trust), ("10.42.0.5:8080", Trust::Plain));
    let tls = pod_proxy("https:p:", &pod()).unwrap();
    assert_eq!((tls.port, tls.trust), (8080, Trust::Unverified));
    let forbidden = [
        "127.0.0.1",
        "127.8.9.1",
        "169.254.169.254",
        "::1",
        "224.0.0.1",
        "0.0.0.0",
        "",
        "::",
        "fe80::1",
        "ff02::1",
        "255.255.255.255",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "::ffff:0.0.0.0",
        "localhost",
        "10.42.0.5:80",
        "0x7f000001",
    ];
    for address in forbidden {
        let node = json!({"status": {"addresses": [{"type": "InternalIP", "address": address}]}});
        if address.parse::<std::net::IpAddr>().is_ok() {
            let refused = node_proxy("n", &node).unwrap_err();
            assert_eq!(refused.message, "address not allowed", "{address}");
        }
        let mut pod = pod();
        pod["status"] = json!({"podIPs": [{"ip": address}]});
        assert_eq!(pod_proxy("p", &pod).unwrap_err().message, "address not allowed", "{address}");
    }
    assert_eq!(
        pod_proxy("ftp:p:1", &pod()).unwrap_err().message,
        "invalid pod request \"ftp:p:1\""
    );
}

#[test]
fn services_are_proxied_to_ready_endpoints_of_the_port() {
    let service = json!({"spec": {"ports": [{"name": "web", "port": 80}]}});
    let named = named("service", "s:80").unwrap();
    assert_eq!(service_port(&named, &service).unwrap(), "web");
    let other = target::named("service", "s:81").unwrap();
    assert_eq!(
        service_port(&other, &service).unwrap_err().message,
        "no service port 81 found for service \"s\""
    );
    let target_ref = json!({"kind": "Pod", "namespace": "n", "name": "p"});
    let slices = [
        json!({"addressType": "IPv6", "ports": [{"name": "web", "port": 8080}], "endpoints": [{"addresses": ["fd00::5"], "targetRef": target_ref}]}),
        json!({"addressType": "IPv4", "ports": [{"name": "web", "port": 8080}], "endpoints": [
            {"addresses": ["10.42.0.4"], "conditions": {"ready": false}, "targetRef": target_ref},
            {"addresses": ["10.42.0.5"], "conditions": {"ready": true}, "targetRef": target_ref},
            {"addresses": ["169.254.169.254"]}]}),
    ];
    assert_eq!(
        endpoints(&slices, "web", "IPv4", "n"),
        [("10.42.0.5", 8080, "p"), ("fd00::5", 8080, "p")]
    );
    assert_eq!(no_endpoints("s").message, "no endpoints available for service \"s\"");
}

#[test]
fn error_responses_of_kubelets_keep_their_message() {
    let text = "container \"c\" in pod \"p\" is waiting to start: ContainerCreating".to_owned();
    let status = error_status(400, "p", text.clone());
    assert_eq!((status.code, status.reason.as_str(), status.message), (400, "BadRequest", text));
    let status = error_status(404, "p", String::new());
    assert_eq!(status.message, "the server could not find the requested resource ( pods/log p)");
}

/// C2.1: the name of a node is resolved once, and must not lead to this machine (CVE-2020-8562).
#[tokio::test]
async fn node_names_are_resolved_once() {
    let node = json!({"status": {"addresses": [{"type": "Hostname", "address": "localhost"}]}});
    let named = node_proxy("n", &node).unwrap();
    assert_eq!(resolved(named).await.unwrap_err().message, "address not allowed");
    let ips = |all: &[&str]| all.iter().map(|ip| ip.parse().unwrap()).collect::<Vec<IpAddr>>();
    assert_eq!(
        foreign_address(&ips(&["192.0.2.1", "192.0.2.2"])).unwrap(),
        Some(ips(&["192.0.2.1"])[0])
    );
    assert!(foreign_address(&ips(&["192.0.2.1", "127.0.0.1"])).is_err());
    assert_eq!(foreign_address(&[]).unwrap(), None);
}
