//! What policies let through, with the cases of the API's documentation and of upstream's
//! end-to-end suite.

use std::net::IpAddr;

use api::{Object, ObjectKey};
use serde_json::{Value as Json, json};

use super::decide::{Decider, Decision, Local, SetName};
use super::model::{Pod, Policy, trimmed};
use crate::nft::set::{Element, Value};
use settings::addr::{Family, octets};

const NAMESPACES: [&str; 3] = ["x", "y", "z"];
const PODS: [&str; 3] = ["a", "b", "c"];
const TCP: u8 = 6;
const UDP: u8 = 17;
const SCTP: u8 = 132;

fn object(value: Json) -> Object {
    Object::from_value(value).unwrap()
}

/// Three namespaces of three pods, all on this node, as upstream's suite has them.
struct World(Decider);

fn address(key: &str, family: Family) -> IpAddr {
    let (namespace, pod) = key.split_once('/').unwrap();
    let n = NAMESPACES.iter().position(|x| *x == namespace).unwrap() * 3
        + PODS.iter().position(|x| *x == pod).unwrap();
    match family {
        Family::V4 => format!("10.42.0.{}", 10 + n).parse().unwrap(),
        Family::V6 => format!("fd00:42::{}", 10 + n).parse().unwrap(),
    }
}

fn pod_object(key: &str, labels: Json) -> Object {
    let (namespace, name) = key.split_once('/').unwrap();
    let ips: Vec<Json> =
        Family::ALL.iter().map(|f| json!({"ip": address(key, *f).to_string()})).collect();
    let port = |number: u16, protocol: &str| {
        let text = protocol.to_lowercase();
        json!({"name": "c", "image": "i", "env": [{"name": "SECRET", "value": "hush"}],
            "ports": [{"name": format!("serve-{number}-{text}"), "containerPort": number, "protocol": protocol}]})
    };
    object(json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name, "uid": key, "labels": labels, "resourceVersion": "7"},
        "spec": {"nodeName": "me", "containers": [port(80, "TCP"), port(81, "TCP"), port(80, "UDP"), port(81, "UDP"), port(80, "SCTP")]},
        "status": {"phase": "Running", "podIPs": ips, "conditions": []}}))
}

impl World {
    fn new() -> Self {
        let mut decider = Decider::new(&["10.43.0.10".parse().unwrap()]);
        let mut local = Vec::new();
        for namespace in NAMESPACES {
            label(
                &mut decider,
                namespace,
                json!({"ns": namespace, "kubernetes.io/metadata.name": namespace}),
            );
            for pod in PODS {
                let key = format!("{namespace}/{pod}");
                let read = Pod::read(&pod_object(&key, json!({"pod": pod})));
                decider.pod(&ObjectKey::new(namespace, pod), read);
                let addresses = Family::ALL.iter().map(|f| address(&key, *f)).collect();
                let link = format!("link-{key}");
                local.push(Local {
                    key: ObjectKey::new(namespace, pod),
                    uid: key,
                    addresses,
                    link,
                });
            }
        }
        label(&mut decider, "kube-system", json!({"kubernetes.io/metadata.name": "kube-system"}));
        decider.local(local);
        Self(decider)
    }

    fn with(policies: &[(&str, Json)]) -> Self {
        let mut world = Self::new();
        for (index, (namespace, spec)) in policies.iter().enumerate() {
            world.set(namespace, &format!("p{index}"), Some(spec.clone()));
        }
        world
    }

    fn set(&mut self, namespace: &str, name: &str, spec: Option<Json>) {
        let read = spec.map(|spec| {
            Policy::read(&object(
                json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
                "metadata": {"namespace": namespace, "name": name}, "spec": spec}),
            ))
        });
        self.0.policy(&ObjectKey::new(namespace, name), read);
    }

    /// Which of all ways between pods of each other are open and should not be, or the reverse.
    fn check(&mut self, (protocol, port): (u8, u16), expected: impl Fn(&str, &str) -> bool) {
        let decision = self.0.decide();
        let all: Vec<String> =
            NAMESPACES.iter().flat_map(|n| PODS.iter().map(move |p| format!("{n}/{p}"))).collect();
        let mut wrong = Vec::new();
        for from in &all {
            for to in &all {
                let want = from == to || expected(from, to);
                for family in Family::ALL {
                    let (source, target) = (address(from, family), address(to, family));
                    if passes(&decision, source, target, protocol, port) != want {
                        wrong.push(format!("{from} to {to}, {}: not {want}", family.name()));
                    }
                }
            }
        }
        assert!(wrong.is_empty(), "port {port}, protocol {protocol}: {wrong:#?}");
    }
}

fn label(decider: &mut Decider, namespace: &str, labels: Json) {
    let read = object(
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}}),
    );
    decider.namespace(&namespace.into(), Some(read.labels));
}

/// What the rules in the kernel make of these sets.
fn passes(decision: &Decision, from: IpAddr, to: IpAddr, protocol: u8, port: u16) -> bool {
    let family = Family::of(from);
    let set = |name| decision.sets.get(&family).and_then(|s| s.get(&name)).into_iter().flatten();
    let value =
        |name, key: IpAddr| set(name).find(|e| e.key == octets(key)).map(|e| e.data.clone());
    let side = |map, own: IpAddr, other: IpAddr| {
        let Some(profile) = value(map, own) else { return true };
        let itself = Value::default().address(own).address(other).0;
        if set(SetName::Own).any(|e| e.key == itself) {
            return true;
        }
        // Numbers are equal or not; addresses, protocols and ports lie between two.
        let within = |e: &Element, at: usize, value: &[u8]| {
            let (low, high) =
                (&e.key[at..at + value.len()], &e.end.as_ref().unwrap()[at..at + value.len()]);
            low <= value && value <= high
        };
        let class = value(SetName::Classes, other);
        let by_class = class.is_some_and(|class| {
            set(SetName::Pods).any(|e| {
                e.key[..4] == profile
                    && e.key[4..8] == class
                    && within(e, 8, &[protocol])
                    && within(e, 12, &port.to_be_bytes())
            })
        });
        let w = usize::from(family.length());
        by_class
            || set(SetName::Blocks).any(|e| {
                e.key[..4] == profile
                    && within(e, 4, &octets(other))
                    && within(e, 4 + w, &[protocol])
                    && within(e, 8 + w, &port.to_be_bytes())
            })
    };
    side(SetName::Egress, from, to) && side(SetName::Ingress, to, from)
}

const HTTP: (u8, u16) = (TCP, 80);

fn pod(name: &str) -> Json {
    json!({"matchLabels": {"pod": name}})
}

fn ns(name: &str) -> Json {
    json!({"matchLabels": {"ns": name}})
}

fn of(key: &str) -> &str {
    key.split('/').next().unwrap()
}

#[test]
fn without_a_policy_everything_passes_and_nothing_is_made() {
    let mut world = World::new();
    assert!(world.0.decide().is_idle());
    world.check(HTTP, |_, _| true);
    // A policy that selects no pod of this node.
    world.set("x", "p", Some(json!({"podSelector": pod("nobody")})));
    assert!(world.0.decide().is_idle());
    world.set("w", "p", Some(json!({"podSelector": {}})));
    assert!(world.0.decide().is_idle());
}

#[test]
fn default_deny_closes_the_sides_that_it_is_about() {
    // 'default-deny-ingress', and policyTypes that follow from what is there.
    for spec in [
        json!({"podSelector": {}, "policyTypes": ["Ingress"]}),
        json!({"podSelector": {}}),
        json!({}),
    ] {
        World::with(&[("x", spec)]).check(HTTP, |_, to| of(to) != "x");
    }
    // 'default-deny-all'.
    World::with(&[("x", json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}))])
        .check(HTTP, |from, to| of(from) != "x" && of(to) != "x");
    // "should deny egress from all pods in a namespace", and of one by its labels.
    World::with(&[("x", json!({"podSelector": {}, "policyTypes": ["Egress"]}))])
        .check(HTTP, |from, _| of(from) != "x");
    World::with(&[("x", json!({"podSelector": pod("a"), "policyTypes": ["Egress"]}))])
        .check(HTTP, |from, _| from != "x/a");
    // An egress section isolates both sides, an empty one the ingress side alone.
    World::with(&[("x", json!({"podSelector": pod("a"), "egress": [{}]}))])
        .check(HTTP, |_, to| to != "x/a");
    World::with(&[("x", json!({"podSelector": pod("a"), "egress": []}))])
        .check(HTTP, |_, to| to != "x/a");
    // A rule without anything allows everything ("should support allow-all policy").
    World::with(&[("x", json!({"podSelector": {}, "ingress": [{}]}))]).check(HTTP, |_, _| true);
}

#[test]
fn peers_are_selected_by_pods_namespaces_and_both() {
    let ingress = |peers: Json| json!({"podSelector": pod("a"), "ingress": [{"from": peers}]});
    let expects = |peers: Json, allowed: fn(&str) -> bool| {
        World::with(&[("x", ingress(peers))]).check(HTTP, |from, to| to != "x/a" || allowed(from));
    };
    // "based on PodSelector": of its own namespace alone.
    expects(json!([{"podSelector": pod("b")}]), |from| from == "x/b");
    // "to allow ingress traffic from pods in all namespaces".
    expects(json!([{"namespaceSelector": {}}]), |_| true);
    // "only from a different namespace, based on NamespaceSelector".
    expects(json!([{"namespaceSelector": ns("y")}]), |from| of(from) == "y");
    // "based on PodSelector with MatchExpressions".
    expects(
        json!([{"podSelector": {"matchExpressions": [{"key": "pod", "operator": "In", "values": ["b"]}]}}]),
        |from| from == "x/b",
    );
    // "based on NamespaceSelector with MatchExpressions", with the label that each has, too.
    for key in ["ns", "kubernetes.io/metadata.name"] {
        let exp = |operator: &str, value: &str| json!([{"namespaceSelector": {"matchExpressions": [{"key": key, "operator": operator, "values": [value]}]}}]);
        expects(exp("In", "y"), |from| of(from) == "y");
        expects(exp("NotIn", "x"), |from| of(from) != "x");
    }
    // "based on PodSelector or NamespaceSelector": two peers.
    expects(
        json!([{"namespaceSelector": {"matchExpressions": [{"key": "ns", "operator": "NotIn", "values": ["x"]}]}}, {"podSelector": pod("b")}]),
        |from| of(from) != "x" || from == "x/b",
    );
    // "based on PodSelector and NamespaceSelector": one peer.
    expects(
        json!([{"namespaceSelector": {"matchExpressions": [{"key": "ns", "operator": "NotIn", "values": ["x"]}]}, "podSelector": pod("b")}]),
        |from| from == "y/b" || from == "z/b",
    );
    // "based on Multiple PodSelectors and NamespaceSelectors".
    expects(
        json!([{"namespaceSelector": {"matchExpressions": [{"key": "ns", "operator": "NotIn", "values": ["x"]}]},
            "podSelector": {"matchExpressions": [{"key": "pod", "operator": "In", "values": ["b", "c"]}]}}]),
        |from| ["y/b", "y/c", "z/b", "z/c"].contains(&from),
    );
    // "based on any PodSelectors".
    expects(json!([{"podSelector": pod("b")}, {"podSelector": pod("c")}]), |from| {
        from == "x/b" || from == "x/c"
    });
    // "from a pod in a different namespace based on PodSelector and NamespaceSelector".
    expects(json!([{"namespaceSelector": ns("y"), "podSelector": pod("a")}]), |from| from == "y/a");
    // "should deny ingress from pods on other namespaces".
    World::with(&[("x", json!({"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}]}]}))])
        .check(HTTP, |from, to| of(to) != "x" || of(from) == "x");
    // The same towards a server: "based on PodSelector and NamespaceSelector" for egress.
    World::with(&[(
        "x",
        json!({"podSelector": pod("a"), "policyTypes": ["Egress"], "egress": [{"to": [{"namespaceSelector": ns("y"), "podSelector": pod("a")}]}]}),
    )])
    .check(HTTP, |from, to| from != "x/a" || to == "y/a");
}

#[test]
fn ports_are_numbers_names_ranges_and_protocols() {
    let rule = |ports: Json| json!({"podSelector": pod("a"), "ingress": [{"ports": ports}]});
    let open = |ports: Json, to: (u8, u16), want: bool| {
        World::with(&[("x", rule(ports.clone()))]).check(to, |_, target| target != "x/a" || want);
    };
    let number = |port: u16| json!([{"port": port, "protocol": "TCP"}]);
    open(number(81), (TCP, 81), true);
    open(number(81), (TCP, 80), false);
    open(number(81), (UDP, 81), false);
    open(json!([{"port": 81}]), (TCP, 81), true);
    // "should allow ingress access on one named port", and no other port when no port has the name.
    open(json!([{"port": "serve-81-tcp"}]), (TCP, 81), true);
    open(json!([{"port": "serve-81-tcp"}]), (TCP, 80), false);
    open(json!([{"port": "nothing"}]), (TCP, 80), false);
    open(json!([{"port": "serve-81-tcp", "protocol": "UDP"}]), (UDP, 81), false);
    // "any port traffic to a server on a specific protocol".
    open(json!([{"protocol": "UDP"}]), (UDP, 5000), true);
    open(json!([{"protocol": "UDP"}]), (TCP, 5000), false);
    // "should not mistakenly treat 'protocol: SCTP' as 'protocol: TCP'", and SCTP itself.
    open(json!([{"port": 80, "protocol": "SCTP"}]), (TCP, 80), false);
    open(json!([{"port": 80, "protocol": "SCTP"}]), (SCTP, 80), true);
    // Ranges include both ends.
    let range = json!([{"port": 32000, "endPort": 32768}]);
    for (port, want) in
        [(31999, false), (32000, true), (32500, true), (32768, true), (32769, false)]
    {
        open(range.clone(), (TCP, port), want);
    }
    // Several items add up, and overlaps are no fault.
    let many = json!([{"port": 80, "endPort": 90}, {"port": 85, "endPort": 100}, {"port": 86}, {"port": 53, "protocol": "UDP"}]);
    for (to, want) in
        [((TCP, 95), true), ((TCP, 101), false), ((UDP, 53), true), ((UDP, 86), false)]
    {
        open(many.clone(), to, want);
    }
    // Without ports, those of all protocols: ICMP, too.
    World::with(&[(
        "x",
        json!({"podSelector": pod("a"), "ingress": [{"from": [{"podSelector": {}}]}]}),
    )])
    .check((1, 0), |from, to| to != "x/a" || of(from) == "x");
}

#[test]
fn a_named_port_of_egress_is_the_destinations() {
    let egress =
        |rule: Json| json!({"podSelector": pod("a"), "policyTypes": ["Egress"], "egress": [rule]});
    // "should allow egress access on one named port".
    let by_name = egress(json!({"ports": [{"port": "serve-80-tcp"}]}));
    World::with(&[("x", by_name.clone())]).check((TCP, 80), |_, _| true);
    World::with(&[("x", by_name)]).check((TCP, 81), |from, _| from != "x/a");
    // Of a pod that has another number under the name.
    let mut world = World::with(&[(
        "x",
        egress(
            json!({"ports": [{"port": "web"}], "to": [{"podSelector": pod("b")}, {"ipBlock": {"cidr": "0.0.0.0/0"}}]}),
        ),
    )]);
    let mut other = pod_object("x/b", json!({"pod": "b"})).value().unwrap();
    other["spec"]["containers"] =
        json!([{"name": "c", "ports": [{"name": "web", "containerPort": 8080}]}]);
    other["spec"]["initContainers"] = json!([{"name": "s", "restartPolicy": "Always", "ports": [{"name": "web", "containerPort": 8081}]},
        {"name": "once", "ports": [{"name": "web", "containerPort": 8082}]}]);
    world.0.pod(&ObjectKey::new("x", "b"), Pod::read(&object(other)));
    for (port, want) in [(8080, true), (8081, true), (8082, false), (80, false)] {
        world.check((TCP, port), |from, to| from != "x/a" || (want && to == "x/b"));
    }
}

#[test]
fn policies_add_up() {
    let deny = json!({"podSelector": {}, "policyTypes": ["Ingress"]});
    let only = |port: u16| json!({"podSelector": pod("a"), "ingress": [{"from": [{"namespaceSelector": ns("y")}], "ports": [{"port": port}]}]});
    // "multiple, stacked policies with overlapping podSelectors".
    let mut world = World::with(&[("x", deny.clone()), ("x", only(80)), ("x", only(81))]);
    for port in [80, 81] {
        world.check((TCP, port), |from, to| of(to) != "x" || (to == "x/a" && of(from) == "y"));
    }
    world.check((TCP, 82), |_, to| of(to) != "x");
    // "multiple ingress policies with ingress allow-all policy taking precedence".
    World::with(&[("x", deny.clone()), ("x", json!({"podSelector": {}, "ingress": [{}]}))])
        .check(HTTP, |_, _| true);
    // "Ingress, Egress specified together".
    let both = json!({"podSelector": pod("a"), "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": [{"podSelector": pod("b")}]}], "egress": [{"ports": [{"port": 80}]}]});
    let mut world = World::with(&[("x", both)]);
    world.check((TCP, 80), |from, to| to != "x/a" || from == "x/b");
    world.check((TCP, 81), |from, to| from != "x/a" && (to != "x/a" || from == "x/b"));
    // "denying of egress traffic on the client side (even if the server explicitly allows this
    // traffic)".
    let mut world = World::with(&[
        (
            "x",
            json!({"podSelector": pod("a"), "policyTypes": ["Egress"], "egress": [{"to": [{"namespaceSelector": ns("y"), "podSelector": pod("a")}]}]}),
        ),
        (
            "y",
            json!({"podSelector": {}, "ingress": [{"from": [{"namespaceSelector": ns("x"), "podSelector": pod("a")}]}]}),
        ),
    ]);
    world.check(HTTP, |from, to| match (from, to) {
        ("x/a", "y/a") => true,
        ("x/a", _) => false,
        (_, to) => of(to) != "y",
    });
    // "should stop enforcing policies after they are deleted".
    let mut world = World::with(&[("x", deny)]);
    world.check(HTTP, |_, to| of(to) != "x");
    world.set("x", "p0", None);
    world.check(HTTP, |_, _| true);
    assert!(world.0.decide().is_idle());
}

#[test]
fn blocks_have_exceptions_and_unions_have_the_last_word() {
    let host = |key: &str, family, length| format!("{}/{length}", address(key, family));
    let egress = |blocks: Json| json!({"podSelector": pod("a"), "policyTypes": ["Egress"], "egress": [{"to": blocks}]});
    let of_both = |four: Json, six: Json| json!([{"ipBlock": four}, {"ipBlock": six}]);
    // "should allow egress access to server in CIDR block".
    let one = of_both(
        json!({"cidr": host("y/b", Family::V4, 32)}),
        json!({"cidr": host("y/b", Family::V6, 128)}),
    );
    World::with(&[("x", egress(one.clone()))]).check(HTTP, |from, to| from != "x/a" || to == "y/b");
    // "should enforce except clause while egress access to server in CIDR block".
    let but_one = of_both(
        json!({"cidr": "10.42.0.0/24", "except": [host("x/b", Family::V4, 32)]}),
        json!({"cidr": "fd00:42::/64", "except": [host("x/b", Family::V6, 128)]}),
    );
    World::with(&[("x", egress(but_one.clone()))])
        .check(HTTP, |from, to| from != "x/a" || to != "x/b");
    // "should ensure an IP overlapping both IPBlock.CIDR and IPBlock.Except is allowed".
    let that = of_both(
        json!({"cidr": host("x/b", Family::V4, 32)}),
        json!({"cidr": host("x/b", Family::V6, 128)}),
    );
    World::with(&[("x", egress(but_one)), ("x", egress(that))]).check(HTTP, |_, _| true);
}

#[test]
fn the_example_of_the_documentation() {
    let spec = json!({"podSelector": {"matchLabels": {"role": "db"}}, "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": [{"ipBlock": {"cidr": "172.17.0.0/16", "except": ["172.17.1.0/24"]}},
            {"namespaceSelector": {"matchLabels": {"project": "myproject"}}}, {"podSelector": {"matchLabels": {"role": "frontend"}}}],
            "ports": [{"protocol": "TCP", "port": 6379}]}],
        "egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/24"}}], "ports": [{"protocol": "TCP", "port": 5978}]}]});
    let mut world = World::with(&[("x", spec)]);
    label(&mut world.0, "y", json!({"project": "myproject"}));
    for (key, role) in [("x/a", "db"), ("x/b", "frontend"), ("z/b", "frontend")] {
        let (namespace, name) = key.split_once('/').unwrap();
        let read = Pod::read(&pod_object(key, json!({"role": role})));
        world.0.pod(&ObjectKey::new(namespace, name), read);
    }
    world.check((TCP, 6379), |from, to| {
        from != "x/a" && (to != "x/a" || of(from) == "y" || from == "x/b")
    });
    world.check((TCP, 80), |from, to| from != "x/a" && to != "x/a");
    let decision = world.0.decide();
    let db = address("x/a", Family::V4);
    let at = |text: &str| -> IpAddr { text.parse().unwrap() };
    for (from, to, port, want) in [
        ("172.17.0.1", db, 6379, true),
        ("172.17.1.1", db, 6379, false),
        ("172.17.2.255", db, 6379, true),
        ("172.18.0.1", db, 6379, false),
        ("172.17.0.1", db, 80, false),
        ("10.42.0.10", at("10.0.0.9"), 5978, true),
        ("10.42.0.10", at("10.0.1.9"), 5978, false),
        ("10.42.0.10", at("10.0.0.9"), 5979, false),
    ] {
        assert_eq!(passes(&decision, at(from), to, TCP, port), want, "{from} to {to}:{port}");
    }
}

#[test]
fn labels_that_change_change_what_passes() {
    let spec = json!({"podSelector": pod("a"), "ingress": [{"from": [{"namespaceSelector": ns("y"), "podSelector": pod("b")}]}]});
    let mut world = World::with(&[("x", spec)]);
    world.check(HTTP, |from, to| to != "x/a" || from == "y/b");
    // "should allow ingress access from updated pod" and "from updated namespace".
    world.0.pod(&ObjectKey::new("y", "c"), Pod::read(&pod_object("y/c", json!({"pod": "b"}))));
    world.check(HTTP, |from, to| to != "x/a" || from == "y/b" || from == "y/c");
    label(&mut world.0, "z", json!({"ns": "y"}));
    world.check(HTTP, |from, to| to != "x/a" || ["y/b", "y/c", "z/b"].contains(&from));
    label(&mut world.0, "y", json!({}));
    world.check(HTTP, |from, to| to != "x/a" || from == "z/b");
    // "should deny ingress access to updated pod".
    world.0.pod(&ObjectKey::new("x", "c"), Pod::read(&pod_object("x/c", json!({"pod": "a"}))));
    world.check(HTTP, |from, to| !["x/a", "x/c"].contains(&to) || from == "z/b");
    // "should enforce updated policy".
    world.set("x", "p0", Some(json!({"podSelector": pod("a"), "ingress": [{}]})));
    world.check(HTTP, |_, _| true);
}

#[test]
fn a_pod_that_the_api_has_not_told_of_is_closed_where_a_policy_of_its_namespace_closes() {
    let mut world = World::with(&[
        ("x", json!({"podSelector": pod("nobody"), "policyTypes": ["Ingress", "Egress"]})),
        ("y", json!({"podSelector": pod("nobody"), "ingress": [{}]})),
    ]);
    world.check(HTTP, |_, _| true);
    for (namespace, name) in [("x", "a"), ("y", "a"), ("z", "a")] {
        world.0.pod(&ObjectKey::new(namespace, name), None);
    }
    world.check(HTTP, |from, to| from != "x/a" && to != "x/a" && to != "y/a");
    let unknown: Vec<String> = world.0.decide().unknown.iter().map(ToString::to_string).collect();
    assert_eq!(unknown, ["x/a", "y/a"], "no policy can be about the third");
    // One of the same name that went before it.
    let mut before = pod_object("x/a", json!({"pod": "a"})).value().unwrap();
    before["metadata"]["uid"] = "another".into();
    world.0.pod(&ObjectKey::new("x", "a"), Pod::read(&object(before.clone())));
    world.check(HTTP, |from, to| from != "x/a" && to != "x/a" && to != "y/a");
    // A static pod runs under a uid of its own.
    before["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "hash"});
    world.0.pod(&ObjectKey::new("x", "a"), Pod::read(&object(before)));
    world.check(HTTP, |_, to| to != "y/a");
}

#[test]
fn pods_of_the_node_and_those_that_are_over_are_no_peers() {
    let mut host = pod_object("x/b", json!({"pod": "b"})).value().unwrap();
    host["spec"]["hostNetwork"] = true.into();
    assert_eq!(Pod::read(&object(host.clone())), None);
    host["spec"]["hostNetwork"] = false.into();
    host["status"]["phase"] = "Succeeded".into();
    assert_eq!(Pod::read(&object(host)), None);
}

#[test]
fn cluster_dns_is_selected_as_upstreams_pods_are() {
    let dns: IpAddr = "10.43.0.10".parse().unwrap();
    let from = address("x/a", Family::V4);
    let egress =
        |rules: Json| json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": rules});
    for (rules, want) in [
        (json!([]), [false, false, false]),
        (
            json!([{"to": [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}}}], "ports": [{"port": 53, "protocol": "UDP"}]}]),
            [true, false, false],
        ),
        (
            json!([{"to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}}]}]),
            [true, true, true],
        ),
        (
            json!([{"to": [{"namespaceSelector": {}}], "ports": [{"port": "dns", "protocol": "UDP"}, {"port": "dns-tcp"}]}]),
            [true, true, false],
        ),
        (json!([{"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53}]}]), [true, true, false]),
        (json!([{"to": [{"podSelector": {}}]}]), [false, false, false]),
        (json!([{"to": [{"ipBlock": {"cidr": "10.43.0.10/32"}}]}]), [true, true, true]),
    ] {
        let decision = World::with(&[("x", egress(rules.clone()))]).0.decide();
        let got = [(UDP, 53), (TCP, 53), (TCP, 443)]
            .map(|(p, port)| passes(&decision, from, dns, p, port));
        assert_eq!(got, want, "{rules}");
    }
}

#[test]
fn a_change_of_one_pod_changes_its_element_alone() {
    let allow = json!({"podSelector": {}, "ingress": [{"from": [{"podSelector": pod("b")}], "ports": [{"port": 80}]}]});
    let mut world = World::with(&[("x", allow)]);
    let count = |d: &Decision| -> Vec<(SetName, usize)> {
        d.sets[&Family::V4].iter().map(|(name, elements)| (*name, elements.len())).collect()
    };
    let before = world.0.decide();
    assert_eq!(
        count(&before),
        [
            (SetName::Ingress, 3),
            (SetName::Own, 3),
            (SetName::Classes, 1),
            (SetName::Pods, 1),
            (SetName::IngressDrops, 3)
        ]
    );
    assert_eq!(world.0.decide(), before);
    world.0.pod(&ObjectKey::new("x", "c"), Pod::read(&pod_object("x/c", json!({"pod": "b"}))));
    let after = world.0.decide();
    for (name, old) in &before.sets[&Family::V4] {
        let new = &after.sets[&Family::V4][name];
        let fresh = new.difference(old).count();
        assert_eq!(
            (fresh, old.difference(new).count()),
            (usize::from(*name == SetName::Classes), 0),
            "{name:?}"
        );
    }
}

#[test]
fn agents_keep_of_pods_what_decides_and_nothing_else() {
    let whole = pod_object("x/a", json!({"pod": "a"}));
    let short = trimmed(&whole).unwrap();
    assert_eq!(Pod::read(&short), Pod::read(&whole));
    assert_eq!((short.resource_version, &short.uid, &short.key), (7, &whole.uid, &whole.key));
    let text = String::from_utf8(short.raw().to_vec()).unwrap();
    assert!(!text.contains("hush") && !text.contains("image") && text.len() < 700, "{text}");
}
