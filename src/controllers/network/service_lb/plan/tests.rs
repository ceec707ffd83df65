//! Tests of the assignment of nodes and addresses.

use super::*;
use crate::framework::context::Protocol;
use serde_json::json;

fn tcp(number: u16) -> PortKey {
    PortKey { protocol: Protocol::Tcp, number }
}

fn key(name: &str) -> Key {
    ("d".into(), name.into())
}

/// A Service of this age with these ports.
fn service(created: &str, ports: &[PortKey]) -> ServiceRecord {
    ServiceRecord {
        age: (created.into(), String::new()),
        node_ports: Vec::new(),
        balanced: Some(Balanced {
            ports: ports.to_vec(),
            pool: None,
            is_local: false,
            pool_request: None,
        }),
        needs_cleanup: false,
    }
}

fn in_pool(created: &str, pool: &str) -> ServiceRecord {
    let mut service = service(created, &[tcp(80)]);
    service.balanced.as_mut().unwrap().pool = Some(pool.into());
    service
}

fn node(pools: &[&str], enabled: Option<&str>) -> NodeRecord {
    NodeRecord {
        is_ready: true,
        enabled: enabled.map(str::to_owned),
        pools: pools.iter().map(|pool| (*pool).to_owned()).collect(),
        kubelet_port: Some(10250),
        ..NodeRecord::default()
    }
}

fn cluster(nodes: &[(&str, NodeRecord)], services: &[(&str, ServiceRecord)]) -> Cluster {
    Cluster {
        nodes: nodes.iter().map(|(name, node)| ((*name).to_owned(), node.clone())).collect(),
        services: services.iter().map(|(name, service)| (key(name), service.clone())).collect(),
        pods: BTreeMap::new(),
    }
}

fn nodes_of(assignments: &BTreeMap<Key, Assignment>, name: &str) -> String {
    assignments[&key(name)].nodes.iter().cloned().collect::<Vec<_>>().join(",")
}

fn conflict_of(assignments: &BTreeMap<Key, Assignment>, name: &str) -> String {
    assignments[&key(name)].conflict_message().unwrap_or_default()
}

#[test]
fn labels_select_the_nodes() {
    let excluded = NodeRecord { is_excluded: true, ..node(&[], None) };
    for (name, nodes, pool, want) in [
        ("all", vec![("a", node(&[], None)), ("b", node(&["p"], None))], None, "a,b"),
        ("enabled", vec![("a", node(&[], Some("true"))), ("b", node(&[], None))], None, "a"),
        ("not true", vec![("a", node(&[], Some("false"))), ("b", node(&[], None))], None, ""),
        ("pool", vec![("a", node(&["q"], None)), ("b", node(&["p", "q"], None))], Some("p"), "b"),
        (
            "both",
            vec![("a", node(&["p"], None)), ("b", node(&["p"], Some("true")))],
            Some("p"),
            "b",
        ),
        ("no such pool", vec![("a", node(&["q"], None))], Some("p"), ""),
        ("excluded", vec![("a", excluded.clone()), ("b", node(&[], None))], None, "b"),
    ] {
        let service = pool.map_or_else(|| service("1", &[tcp(80)]), |pool| in_pool("1", pool));
        let assignments = assign(&cluster(&nodes, &[("s", service)]), &[]);
        assert_eq!(nodes_of(&assignments, "s"), want, "{name}");
        assert_eq!(conflict_of(&assignments, "s"), "", "{name}");
    }
}

#[test]
fn the_oldest_service_has_a_port_and_a_newer_one_takes_what_is_free() {
    let nodes = [("a", node(&["p"], None)), ("b", node(&[], None))];
    let services = [
        ("new", service("2", &[tcp(443), tcp(80)])),
        ("old", service("1", &[tcp(80)])),
        ("udp", service("3", &[PortKey { protocol: Protocol::Udp, number: 80 }])),
        ("next", service("4", &[tcp(443)])),
    ];
    let assignments = assign(&cluster(&nodes, &services), &[]);
    assert_eq!(nodes_of(&assignments, "old"), "a,b");
    assert_eq!(nodes_of(&assignments, "new"), "");
    assert_eq!(conflict_of(&assignments, "new"), "port 80/TCP is in use by Service d/old on a, b");
    assert_eq!(nodes_of(&assignments, "udp"), "a,b", "another protocol");
    assert_eq!(nodes_of(&assignments, "next"), "a,b", "a refused Service holds no port");
    // The pool of the older one leaves the other node.
    let services = [("old", in_pool("1", "p")), ("new", service("2", &[tcp(80)]))];
    let assignments = assign(&cluster(&nodes, &services), &[]);
    assert_eq!(
        (nodes_of(&assignments, "old"), nodes_of(&assignments, "new")),
        ("a".into(), "b".into())
    );
    assert_eq!(conflict_of(&assignments, "new"), "port 80/TCP is in use by Service d/old on a");
    // Two Services of the same second: the order of their names.
    let services = [("x", service("1", &[tcp(80)])), ("w", service("1", &[tcp(80)]))];
    let mut cluster = cluster(&nodes, &services);
    for name in ["x", "w"] {
        cluster.services.get_mut(&key(name)).unwrap().age.1 = name.into();
    }
    assert_eq!(nodes_of(&assign(&cluster, &[]), "w"), "a,b");
}

#[test]
fn ports_of_the_node_and_older_host_and_node_ports_are_left_alone() {
    let reserved = [ReservedPort { port: tcp(6443), purpose: "the API server" }];
    let nodes = [("a", node(&[], None)), ("b", node(&[], None))];
    let plain = |created: &str, number| ServiceRecord {
        balanced: None,
        node_ports: vec![tcp(number)],
        ..service(created, &[])
    };
    let services = [
        ("api", service("5", &[tcp(6443)])),
        ("kubelet", service("5", &[tcp(10250)])),
        ("ssh", service("5", &[tcp(22)])),
        ("older", plain("1", 30080)),
        ("newer", plain("9", 30081)),
        ("against-older", service("5", &[tcp(30080)])),
        ("against-newer", service("5", &[tcp(30081)])),
        ("own", ServiceRecord { node_ports: vec![tcp(30090)], ..service("5", &[tcp(30090)]) }),
        ("pod", service("5", &[tcp(8080)])),
        ("newer-pod", service("5", &[tcp(8081)])),
    ];
    let mut cluster = cluster(&nodes, &services);
    for (name, created, number) in [("p", "1", 8080), ("q", "9", 8081)] {
        let pod =
            PodRecord { created: created.into(), node: "a".into(), ports: [tcp(number)].into() };
        cluster.pods.insert(key(name), pod);
    }
    let assignments = assign(&cluster, &reserved);
    for (name, want_nodes, want_conflict) in [
        ("api", "", "port 6443/TCP is in use by the API server of kube-lite on a, b"),
        ("kubelet", "", "port 10250/TCP is in use by the kubelet API of kube-lite on a, b"),
        ("ssh", "a,b", ""),
        ("against-older", "", "port 30080/TCP is in use by a node port of Service d/older on a, b"),
        ("against-newer", "a,b", ""),
        ("own", "a,b", ""),
        ("pod", "b", "port 8080/TCP is in use by a host port of Pod d/p on a"),
        ("newer-pod", "a,b", ""),
    ] {
        assert_eq!(nodes_of(&assignments, name), want_nodes, "{name}");
        assert_eq!(conflict_of(&assignments, name), want_conflict, "{name}");
    }
}

#[test]
fn messages_name_a_few_nodes() {
    let conflict = ((tcp(80), "x".to_owned()), (0..10).map(|n| format!("n{n}")).collect());
    let assignment = Assignment { conflicts: [conflict].into(), ..Assignment::default() };
    assert_eq!(
        assignment.conflict_message().unwrap(),
        "port 80/TCP is in use by x on n0, n1, n2, n3, n4, n5, n6, n7 and 2 more nodes"
    );
}

/// k3s's `Test_UnitFilterByIPFamily` and the comment of its `podIPs`.
#[test]
fn external_addresses_come_first_and_families_in_the_order_of_the_service() {
    let with = |internal: &[&str], external: &[&str]| NodeRecord {
        internal: internal.iter().map(|ip| ip.parse().unwrap()).collect(),
        external: external.iter().map(|ip| ip.parse().unwrap()).collect(),
        ..node(&[], None)
    };
    let (one, two) = (["1.2.3.4", "2001:db8::1"], ["2.3.4.5", "3001:db8::1"]);
    for (nodes, families, want) in [
        (vec![with(&one, &[])], json!([]), vec![]),
        (vec![with(&one, &[])], json!(["IPv4"]), vec!["1.2.3.4"]),
        (vec![with(&one, &[])], json!(["IPv6"]), vec!["2001:db8::1"]),
        (
            vec![with(&two, &[]), with(&one, &[])],
            json!(["IPv4", "IPv6"]),
            vec!["1.2.3.4", "2.3.4.5", "2001:db8::1", "3001:db8::1"],
        ),
        (vec![with(&one, &[])], json!(["IPv6", "IPv4"]), vec!["2001:db8::1", "1.2.3.4"]),
        (vec![with(&one, &["9.9.9.9"]), with(&two, &[])], json!(["IPv4"]), vec!["9.9.9.9"]),
        (vec![with(&one, &["9.9.9.9"])], json!(["IPv6"]), vec![]),
        (
            vec![with(&["10.0.0.1"], &[]), with(&["9.0.0.1"], &[])],
            json!(["IPv4"]),
            vec!["10.0.0.1", "9.0.0.1"],
        ),
        (vec![with(&["9.0.0.1"], &[]), with(&["9.0.0.1"], &[])], json!(["IPv4"]), vec!["9.0.0.1"]),
    ] {
        let spec: ServiceSpec = serde_json::from_value(json!({"ipFamilies": families})).unwrap();
        let nodes: Vec<&NodeRecord> = nodes.iter().collect();
        let found: Vec<String> = addresses(&nodes, &spec).iter().map(ToString::to_string).collect();
        assert_eq!(found, want, "{families}");
    }
}

#[test]
fn the_status_lists_each_address_with_every_port() {
    let spec = json!({"ports": [{"port": 80, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}]});
    let spec: ServiceSpec = serde_json::from_value(spec).unwrap();
    let status = load_balancer_status(&["192.0.2.1".parse().unwrap()], &spec);
    let want = json!({"ingress": [{"ip": "192.0.2.1", "ipMode": "VIP", "ports": [
        {"port": 80, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}]}]});
    assert_eq!(serde_json::to_value(&status).unwrap(), want);
    assert_eq!(shown(Some(&status)), "[192.0.2.1]");
    assert_eq!(shown(None), "[]");
    let service = |status: serde_json::Value| -> Service {
        serde_json::from_value(json!({"metadata": {}, "status": {"loadBalancer": status}})).unwrap()
    };
    assert!(status_is_current(&service(want), &status));
    assert!(!status_is_current(&service(json!({})), &status));
    assert!(status_is_current(&service(json!({})), &load_balancer_status(&[], &spec)));
}
