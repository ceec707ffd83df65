//! Parses policies and pods into what decides about packets.

use std::net::IpAddr;
use std::sync::Arc;

use api::selector::{LabelSelector, SelectorError};
use api::value::{get, int_at, items, str_at};
use api::{Object, ObjectKey};
use serde_json::{Map, Value};

use crate::policy::drops::LogLimit;
use crate::proxy::services::protocol_number;
use settings::addr::Cidr;

/// Labels as objects have them.
pub(crate) type Labels = Arc<[(Arc<str>, Arc<str>)]>;

/// The two sides on which a pod can be isolated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Side {
    Ingress,
    Egress,
}

/// The parts of a pod that policies depend on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pod {
    pub(crate) uid: Arc<str>,
    pub(crate) labels: Labels,
    pub(crate) addresses: Vec<IpAddr>,
    /// Name, protocol and number of the ports that have a name.
    pub(crate) ports: Vec<(String, u8, u16)>,
    /// A mirror pod: its static pod runs under another uid.
    pub(crate) is_mirror: bool,
}

impl Pod {
    /// `None` for pods that policies do not apply to: host-network pods, and finished pods, whose
    /// addresses may already belong to other pods.
    pub(crate) fn read(object: &Object) -> Option<Self> {
        let value: Value = serde_json::from_slice(object.raw()).ok()?;
        let (spec, status) = (get(&value, "spec"), get(&value, "status"));
        let over = matches!(str_at(status, "phase"), "Succeeded" | "Failed");
        if over || get(spec, "hostNetwork").as_bool() == Some(true) {
            return None;
        }
        // Restartable init containers are sidecars, whose ports count like those of containers.
        let sidecars =
            items(spec, "initContainers").iter().filter(|c| str_at(c, "restartPolicy") == "Always");
        let ports =
            items(spec, "containers").iter().chain(sidecars).flat_map(|c| items(c, "ports"));
        let ports = ports.filter_map(|port| {
            let name = Some(str_at(port, "name")).filter(|n| !n.is_empty())?;
            let protocol = protocol_number(get(port, "protocol").as_str())?;
            let number = u16::try_from(int_at(port, "containerPort")?).ok()?;
            Some((name.to_owned(), protocol, number))
        });
        let addresses = items(status, "podIPs").iter();
        let annotations = get(get(&value, "metadata"), "annotations");
        Some(Self {
            uid: Arc::clone(&object.uid),
            labels: Arc::clone(&object.labels),
            addresses: addresses.filter_map(|ip| str_at(ip, "ip").parse().ok()).collect(),
            ports: ports.collect(),
            is_mirror: get(annotations, MIRROR).is_string(),
        })
    }
}

/// Annotation of mirror pods.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// A pod reduced to what [`Pod::read`] uses, since agents cache the pods of the whole cluster. An
/// object that cannot be parsed stays whole.
pub fn trimmed(object: &Object) -> Option<Object> {
    let value: Value = serde_json::from_slice(object.raw()).ok()?;
    let pick = |from: &Value, names: &[&str]| -> Value {
        let some = names.iter().filter_map(|n| Some(((*n).to_owned(), from.get(*n)?.clone())));
        Value::Object(some.collect())
    };
    let (meta, spec) = (get(&value, "metadata"), get(&value, "spec"));
    let containers = |name: &str| -> Value {
        let ported = items(spec, name).iter().filter(|c| !items(c, "ports").is_empty());
        ported.map(|c| pick(c, &["name", "restartPolicy", "ports"])).collect()
    };
    let mut metadata = pick(meta, &["name", "namespace", "uid", "labels"]);
    let mirror = pick(get(meta, "annotations"), &[MIRROR]);
    if mirror.as_object().is_some_and(|m| !m.is_empty()) {
        api::value::set(&mut metadata, "annotations", mirror);
    }
    api::value::set(&mut metadata, "resourceVersion", object.resource_version.to_string());
    let mut shortened = pick(spec, &["hostNetwork"]);
    for name in ["containers", "initContainers"] {
        api::value::set(&mut shortened, name, containers(name));
    }
    let mut out = Map::new();
    for (name, part) in [
        ("apiVersion", get(&value, "apiVersion").clone()),
        ("kind", get(&value, "kind").clone()),
        ("metadata", metadata),
        ("spec", shortened),
        ("status", pick(get(&value, "status"), &["phase", "podIPs"])),
    ] {
        out.insert(name.to_owned(), part);
    }
    Object::from_value(Value::Object(out)).ok()
}

/// The namespaces in which a selector matches pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Within {
    /// The policy's own namespace.
    Own(Arc<str>),
    /// Namespaces with matching labels.
    Matching(LabelSelector),
}

/// Pods that a peer selects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Selector {
    pub(crate) within: Within,
    pub(crate) pods: LabelSelector,
}

impl Selector {
    /// All pods of the cluster.
    pub(crate) fn all_pods() -> Self {
        let within = Within::Matching(LabelSelector::everything());
        Self { within, pods: LabelSelector::everything() }
    }

    /// A canonical text: equal for selectors that match the same pods.
    pub(crate) fn text(&self) -> String {
        match &self.within {
            Within::Own(namespace) => format!("={namespace}|{}", self.pods),
            Within::Matching(labels) => format!("{labels}|{}", self.pods),
        }
    }
}

/// The other end of an allowed connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Peer {
    Pods(Selector),
    Block(Cidr, Vec<Cidr>),
}

/// Ports that a rule names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Port {
    /// A range of ports of a protocol.
    Numbers(u8, u16, u16),
    /// A port name, resolved at the destination pod.
    Named(u8, String),
}

/// One rule: traffic with any of the peers at any of the ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rule {
    /// `None` matches every peer.
    pub(crate) peers: Option<Vec<Peer>>,
    /// `None` matches all ports of all protocols.
    pub(crate) ports: Option<Vec<Port>>,
}

/// A policy; a direction that it does not isolate is `None`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Policy {
    pub(crate) pods: LabelSelector,
    /// How many of the packets that it drops are logged.
    pub(crate) log: LogLimit,
    pub(crate) ingress: Option<Vec<Rule>>,
    pub(crate) egress: Option<Vec<Rule>>,
}

impl Policy {
    pub(crate) fn side(&self, side: Side) -> Option<&Vec<Rule>> {
        match side {
            Side::Ingress => self.ingress.as_ref(),
            Side::Egress => self.egress.as_ref(),
        }
    }

    /// Parses a policy. A part that cannot be parsed (the API server rejects those) allows nothing
    /// and selects everything.
    pub(crate) fn read(object: &Object) -> Self {
        let value: Value = serde_json::from_slice(object.raw()).unwrap_or_default();
        let spec = get(&value, "spec");
        let key = &object.key;
        let types = items(spec, "policyTypes");
        let is_about = |name: &str, otherwise: bool| match types {
            [] => otherwise,
            some => some.iter().any(|t| t == name),
        };
        let rules = |name: &str, peers: &str| -> Vec<Rule> {
            items(spec, name).iter().map(|r| rule(key, r, peers)).collect()
        };
        let pods = match get(spec, "podSelector") {
            Value::Null => LabelSelector::everything(),
            some => read_selector(key, some).unwrap_or_else(|_| LabelSelector::everything()),
        };
        Self {
            pods,
            log: LogLimit::read(key, get(&value, "metadata")),
            ingress: is_about("Ingress", true).then(|| rules("ingress", "from")),
            egress: is_about("Egress", !items(spec, "egress").is_empty())
                .then(|| rules("egress", "to")),
        }
    }
}

fn read_selector(key: &ObjectKey, value: &Value) -> Result<LabelSelector, SelectorError> {
    LabelSelector::from_value(Some(value)).inspect_err(|error| {
        tracing::warn!(policy = %key, %error, "policy: cannot parse a selector");
    })
}

fn rule(key: &ObjectKey, value: &Value, peers: &str) -> Rule {
    let list = |name: &str| Some(items(value, name)).filter(|l| !l.is_empty());
    Rule {
        peers: list(peers).map(|l| l.iter().filter_map(|p| peer(key, p)).collect()),
        ports: list("ports").map(|l| l.iter().filter_map(port).collect()),
    }
}

fn peer(key: &ObjectKey, value: &Value) -> Option<Peer> {
    let selector = |name: &str| match get(value, name) {
        Value::Null => Ok(None),
        some => read_selector(key, some).map(Some),
    };
    if let block @ Value::Object(_) = get(value, "ipBlock") {
        let cidr = |text: &str| {
            text.parse::<Cidr>().inspect_err(|error| {
                tracing::warn!(policy = %key, %error, "policy: cannot parse an ipBlock");
            })
        };
        let except = items(block, "except").iter().map(|e| cidr(e.as_str().unwrap_or_default()));
        return Some(Peer::Block(
            cidr(str_at(block, "cidr")).ok()?,
            except.collect::<Result<_, _>>().ok()?,
        ));
    }
    match (selector("namespaceSelector").ok()?, selector("podSelector").ok()?) {
        (None, None) => None,
        (None, Some(pods)) => {
            let within = Within::Own(Arc::clone(&key.namespace));
            Some(Peer::Pods(Selector { within, pods }))
        }
        (Some(namespaces), pods) => {
            let pods = pods.unwrap_or_else(LabelSelector::everything);
            Some(Peer::Pods(Selector { within: Within::Matching(namespaces), pods }))
        }
    }
}

fn port(value: &Value) -> Option<Port> {
    let protocol = protocol_number(get(value, "protocol").as_str())?;
    match get(value, "port") {
        Value::Null => Some(Port::Numbers(protocol, 0, u16::MAX)),
        Value::String(name) => Some(Port::Named(protocol, name.clone())),
        number => {
            let first = u16::try_from(number.as_u64()?).ok()?;
            let last = match int_at(value, "endPort") {
                Some(last) => u16::try_from(last).ok()?,
                None => first,
            };
            Some(Port::Numbers(protocol, first, last))
        }
    }
}
