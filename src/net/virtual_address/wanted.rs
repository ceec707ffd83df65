//! Which virtual addresses this node may hold: those in the status of Services that select it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use api::Object;
use api::k8s::api::core::v1::{Node, Service};
use api::k8s::api::discovery::v1::EndpointSlice;
use base::{Kind, Shutdown, Tasks};
use client::{Change, Informer, Informers};
use parking_lot::Mutex;
use settings::AddressPool;
use sorting::CollectOrdered as _;
use tokio::sync::{Notify, watch};

use super::{Holder, HolderConfig, VirtualAddresses};
use crate::config::Config;
use crate::proxy::BY_SERVICE;
use crate::proxy::services::{self, SERVICE_NAME_LABEL};

/// Labels of ServiceLB; the controller's records describe them.
const ENABLE_LABEL: &str = "svccontroller.k3s.cattle.io/enablelb";
const POOL_LABEL: &str = "svccontroller.k3s.cattle.io/lbpool";
const POOL_PREFIX: &str = "lbpool.svccontroller.k3s.cattle.io/";
const EXCLUDE_LABEL: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
/// What the bytes of every Service of that type contain.
const BALANCER: &[u8] = b"LoadBalancer";

type Key = (String, String);

/// A Service with virtual addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Balanced {
    addresses: Vec<IpAddr>,
    /// The pool of nodes that it selects.
    pool: Option<String>,
    /// `externalTrafficPolicy: Local`.
    is_local: bool,
}

/// What selects a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct NodeRecord {
    enabled: Option<String>,
    pools: BTreeSet<String>,
    is_excluded: bool,
    is_ready: bool,
}

#[derive(Debug, Default)]
struct State {
    services: BTreeMap<Key, Balanced>,
    nodes: BTreeMap<String, NodeRecord>,
}

impl Balanced {
    /// Reads a Service; `None` without virtual addresses.
    fn of(service: &Service, pool: &AddressPool) -> Option<Self> {
        let spec = service.spec.as_ref()?;
        let is_ours = spec.type_.as_deref() == Some("LoadBalancer")
            && spec.load_balancer_class.is_none()
            && service.metadata.deletion_timestamp.is_none();
        let status = service.status.as_ref().filter(|_| is_ours)?.load_balancer.as_ref()?;
        let ingress = status.ingress.iter().flatten();
        let addresses: Vec<IpAddr> = ingress
            .filter_map(|ingress| ingress.ip.as_ref()?.parse().ok())
            .filter(|ip| pool.contains(*ip))
            .collect();
        let labels = service.metadata.labels.as_ref();
        let own_pool = labels.and_then(|labels| labels.get(POOL_LABEL)).cloned();
        (!addresses.is_empty()).then(|| Self {
            addresses,
            pool: own_pool.filter(|pool| !pool.is_empty()),
            is_local: spec.external_traffic_policy.as_deref() == Some("Local"),
        })
    }
}

impl NodeRecord {
    fn of(node: &Object) -> Self {
        let several = node.labels.iter().filter(|(_, value)| &**value == "true");
        let several = several.filter_map(|(key, _)| key.strip_prefix(POOL_PREFIX));
        let decoded = client::informer::decode::<Node>(node);
        let conditions = decoded.and_then(|node| node.status?.conditions).unwrap_or_default();
        Self {
            enabled: node.label(ENABLE_LABEL).map(str::to_owned),
            pools: several.chain(node.label(POOL_LABEL)).map(str::to_owned).collect(),
            is_excluded: node.label(EXCLUDE_LABEL).is_some(),
            is_ready: conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True"),
        }
    }
}

impl State {
    /// The addresses that the node `own` may hold. `has_endpoint` is whether a Service has a ready
    /// pod on it.
    fn wanted(&self, own: &str, has_endpoint: impl Fn(&Key) -> bool) -> BTreeSet<IpAddr> {
        let Some(node) = self.nodes.get(own).filter(|n| n.is_ready && !n.is_excluded) else {
            return BTreeSet::new();
        };
        let is_restricted = self.nodes.values().any(|node| node.enabled.is_some());
        if is_restricted && node.enabled.as_deref() != Some("true") {
            return BTreeSet::new();
        }
        let selects = |(key, service): &(&Key, &Balanced)| {
            service.pool.as_ref().is_none_or(|pool| node.pools.contains(pool))
                && (!service.is_local || has_endpoint(key))
        };
        let all = self.services.iter().filter(selects);
        all.flat_map(|(_, service)| &service.addresses).copied().collect_set()
    }

    /// Records a change of a Service; returns whether it matters.
    fn service_changed(&mut self, change: &Change, pool: &AddressPool) -> bool {
        let object = change.object();
        let key = (object.key.namespace.to_string(), object.key.name.to_string());
        let is_gone = matches!(change, Change::Deleted(_))
            || !object.raw().windows(BALANCER.len()).any(|bytes| bytes == BALANCER);
        let decoded = if is_gone { None } else { client::informer::decode::<Service>(object) };
        match decoded.and_then(|service| Balanced::of(&service, pool)) {
            Some(new) => self.services.insert(key, new.clone()).is_none_or(|old| old != new),
            None => self.services.remove(&key).is_some(),
        }
    }

    /// Records a change of a Node; returns whether it matters.
    fn node_changed(&mut self, change: &Change) -> bool {
        let object = change.object();
        let name = object.key.name.to_string();
        if matches!(change, Change::Deleted(_)) {
            return self.nodes.remove(&name).is_some();
        }
        let new = NodeRecord::of(object);
        self.nodes.insert(name, new.clone()).is_none_or(|old| old != new)
    }
}

/// Follows Services and holds the virtual addresses of those that select this node, until shutdown.
/// The index of EndpointSlices by Service must exist.
pub(crate) fn follow(
    config: &Config,
    virtual_addresses: &VirtualAddresses,
    informers: &Informers,
    nodes: &Informer<Node>,
    tasks: &Tasks,
) {
    let (services, slices) = (informers.of::<Service>(), informers.of::<EndpointSlice>());
    let (state, wake) = (Arc::new(Mutex::new(State::default())), Arc::new(Notify::new()));
    let pool = config.cluster.lb_pool.clone();
    let (known, note, of_services) = (Arc::clone(&state), Arc::clone(&wake), pool.clone());
    services.on_change(move |change| {
        if known.lock().service_changed(change, &of_services) {
            note.notify_one();
        }
    });
    let (known, note) = (Arc::clone(&state), Arc::clone(&wake));
    nodes.on_change(move |change| {
        if known.lock().node_changed(change) {
            note.notify_one();
        }
    });
    let (known, note) = (Arc::clone(&state), Arc::clone(&wake));
    slices.on_change(move |change| {
        let object = change.object();
        let Some(name) = object.label(SERVICE_NAME_LABEL) else { return };
        let key = (object.key.namespace.to_string(), name.to_owned());
        if known.lock().services.get(&key).is_some_and(|service| service.is_local) {
            note.notify_one();
        }
    });
    let (sender, wanted) = watch::channel(None);
    let holder = HolderConfig {
        name: config.node_name.clone(),
        servers: Arc::clone(&virtual_addresses.servers),
        wanted,
        addresses: config.addresses.subscribe(),
        is_virtual: Arc::new(move |ip| pool.contains(ip)),
        held: virtual_addresses.held.clone(),
    };
    tasks.spawn(Kind::Critical, "virtual-addresses", Holder::new(holder, tasks).run());
    let follower = Follower {
        node: config.node_name.clone(),
        state,
        wake,
        services,
        slices,
        nodes: nodes.clone(),
        sender,
    };
    tasks.spawn(Kind::Critical, "virtual-addresses-wanted", follower.run(tasks.shutdown().clone()));
}

struct Follower {
    node: String,
    state: Arc<Mutex<State>>,
    wake: Arc<Notify>,
    services: Informer<Service>,
    slices: Informer<EndpointSlice>,
    nodes: Informer<Node>,
    sender: watch::Sender<Option<BTreeSet<IpAddr>>>,
}

impl Follower {
    async fn run(self, shutdown: Shutdown) -> Result<(), std::convert::Infallible> {
        let ready = async {
            tokio::join!(self.services.synced(), self.slices.synced(), self.nodes.synced())
        };
        tokio::select! {
            _ = ready => {}
            () = shutdown.requested() => return Ok(()),
        }
        loop {
            let now = self.state.lock().wanted(&self.node, |key| self.has_endpoint(key));
            self.sender.send_if_modified(|known| {
                let changed = known.as_ref() != Some(&now);
                *known = Some(now);
                changed
            });
            tokio::select! {
                () = self.wake.notified() => {}
                () = shutdown.requested() => return Ok(()),
            }
        }
    }

    /// Whether a Service has a pod on this node that takes connections.
    fn has_endpoint(&self, (namespace, name): &Key) -> bool {
        let slices = self.slices.by_index(BY_SERVICE, &format!("{namespace}/{name}"));
        let all = services::endpoints(&slices, &self.node, &BTreeSet::new());
        all.values().flatten().any(|endpoint| endpoint.local && endpoint.ready)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn object(value: Value) -> Arc<Object> {
        Arc::new(Object::from_value(value).unwrap())
    }

    fn service(name: &str, ip: &str, labels: Value, spec: Value) -> Change {
        let mut value = json!({"metadata": {"name": name, "namespace": "d", "uid": name,
                "labels": labels},
            "spec": {"type": "LoadBalancer"},
            "status": {"loadBalancer": {"ingress": [{"ip": ip}]}}});
        value["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        Change::Added(object(value))
    }

    fn node(name: &str, labels: Value, ready: &str) -> Change {
        Change::Added(object(json!({"metadata": {"name": name, "uid": name, "labels": labels},
            "status": {"conditions": [{"type": "Ready", "status": ready}]}})))
    }

    #[test]
    fn a_node_may_hold_the_addresses_of_the_services_that_select_it() {
        let pool = AddressPool::parse(["192.0.2.10-192.0.2.19"]).unwrap();
        let mut state = State::default();
        for (name, ip, labels, spec) in [
            ("plain", "192.0.2.10", json!({}), json!({})),
            ("local", "192.0.2.11", json!({}), json!({"externalTrafficPolicy": "Local"})),
            ("away", "192.0.2.12", json!({}), json!({"externalTrafficPolicy": "Local"})),
            ("pool", "192.0.2.13", json!({POOL_LABEL: "one"}), json!({})),
            ("other", "192.0.2.14", json!({POOL_LABEL: "two"}), json!({})),
            ("class", "192.0.2.15", json!({}), json!({"loadBalancerClass": "x"})),
            ("nodes", "192.0.2.1", json!({}), json!({})),
        ] {
            state.service_changed(&service(name, ip, labels, spec), &pool);
        }
        let shown = |state: &State| {
            let wanted = state.wanted("me", |(_, name)| name == "local");
            wanted.iter().map(|ip| ip.to_string()[8..].to_owned()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(shown(&state), "", "the node does not exist");
        for (labels, ready, want) in [
            (json!({}), "True", "10 11"),
            (json!({}), "Unknown", ""),
            (json!({POOL_LABEL: "one"}), "True", "10 11 13"),
            (json!({"lbpool.svccontroller.k3s.cattle.io/two": "true"}), "True", "10 11 14"),
            (json!({EXCLUDE_LABEL: ""}), "True", ""),
            (json!({ENABLE_LABEL: "false"}), "True", ""),
        ] {
            state.node_changed(&node("me", labels.clone(), ready));
            assert_eq!(shown(&state), want, "{labels} {ready}");
        }
        state.node_changed(&node("me", json!({}), "True"));
        assert!(state.node_changed(&node("b", json!({ENABLE_LABEL: "true"}), "True")));
        assert_eq!(shown(&state), "", "another node is enabled, so this one is not");
        state.node_changed(&node("me", json!({ENABLE_LABEL: "true"}), "True"));
        let plain = service("plain", "192.0.2.10", json!({}), json!({}));
        assert!(!state.service_changed(&plain, &pool));
        assert!(state.service_changed(&Change::Deleted(plain.object().clone()), &pool));
        assert_eq!(shown(&state), "11");
    }
}
