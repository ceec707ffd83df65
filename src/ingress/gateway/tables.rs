//! From the model to what a node serves on each port of a Gateway.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::listeners::{Listener, Protocol};
use super::model::{Gateway, Model};
use super::objects::{Objects, RouteKind, intersect};
use super::types::{Resource, RouteSpec};
use http_proxy::backend::Split;
use http_proxy::proxy::entry::{PortMode, TlsEntry, server_config};
use http_proxy::routes::Routes;
use http_proxy::routes::hosts::{HostMap, WildcardLabels};
use sorting::CompactSort as _;

/// A port of a Gateway.
#[derive(Debug)]
pub struct Port {
    /// Namespace of the Gateway.
    pub namespace: String,
    /// Name of the Gateway.
    pub name: String,
    /// The port as clients see it.
    pub number: u16,
    /// Routes of HTTP.
    pub routes: Routes,
    /// What is done with a connection.
    pub entry: PortMode,
}

/// The ports of all Gateways.
pub fn tables(objects: &Objects, model: &Model) -> Vec<Port> {
    let mut ports = Vec::new();
    for (position, gateway) in model.gateways.iter().enumerate() {
        let Some(object) = objects.gateways.get(gateway.at) else { continue };
        if gateway.accepted.is_err() {
            continue;
        }
        let builder = Builder { objects, model, position, gateway };
        for ((_, number), listeners) in by_port(gateway) {
            let (routes, entry) = builder.port(&listeners);
            let (namespace, name) =
                (object.metadata.namespace.clone(), object.metadata.name.clone());
            ports.push(Port { namespace, name, number, routes, entry });
        }
    }
    ports
}

/// The listeners that serve, with their position, by transport (UDP or not) and port.
fn by_port(gateway: &Gateway) -> BTreeMap<(bool, u16), Vec<(usize, &Listener)>> {
    let mut ports: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (at, listener) in gateway.listeners.iter().enumerate() {
        if listener.serves() {
            let port = (listener.protocol == Some(Protocol::Udp), listener.spec.port);
            ports.entry(port).or_default().push((at, listener));
        }
    }
    ports
}

struct Builder<'a> {
    objects: &'a Objects,
    model: &'a Model,
    /// The position of the Gateway.
    position: usize,
    gateway: &'a Gateway,
}

impl<'a> Builder<'a> {
    fn port(&self, listeners: &[(usize, &Listener)]) -> (Routes, PortMode) {
        let none = Routes::new(WildcardLabels::Many);
        let Some((first, listener)) = listeners.first() else { return (none, PortMode::Http) };
        match listener.protocol {
            Some(Protocol::Tcp) => return (none, PortMode::Tcp(self.backends(*first))),
            Some(Protocol::Udp) => return (none, PortMode::Udp(self.backends(*first))),
            _ => {}
        }
        let mut hosts = HostMap::new(WildcardLabels::Many);
        let mut names = HostMap::new(WildcardLabels::Many);
        for (at, listener) in listeners {
            let host = listener.spec.hostname.as_deref().unwrap_or_default();
            if matches!(listener.protocol, Some(Protocol::Http | Protocol::Https)) {
                hosts.entry(host, || Arc::new(self.routes(*at, listener)));
            }
            let config = || server_config(&listener.certificates, listener.validation.as_ref());
            let entry = match listener.protocol {
                Some(Protocol::Https) => config().map(TlsEntry::Http),
                Some(Protocol::Tls) => {
                    config().map(|config| TlsEntry::Terminate(config, self.by_name(*at, listener)))
                }
                Some(Protocol::Passthrough) => {
                    Ok(TlsEntry::Passthrough(self.by_name(*at, listener)))
                }
                _ => continue,
            };
            match entry {
                Ok(entry) => drop(names.entry(host, || Arc::new(entry))),
                Err(error) => {
                    tracing::warn!(
                        gateway = self.gateway.at, listener = listener.spec.name, %error,
                        "ingress: cannot set up TLS of a listener"
                    );
                }
            }
        }
        let routes = Routes::of_listeners(hosts);
        let is_plain = listener.protocol == Some(Protocol::Http);
        (routes, if is_plain { PortMode::Http } else { PortMode::Tls(names) })
    }

    /// The routes at a listener, the oldest first.
    fn attached(
        &self,
        listener: usize,
    ) -> impl Iterator<Item = (&'a Resource<RouteSpec>, &'a super::rules::Compiled)> {
        let (objects, position) = (self.objects, self.position);
        self.model.routes.iter().filter_map(move |route| {
            let is_attached = route
                .parents
                .iter()
                .any(|parent| parent.gateway == position && parent.listeners.contains(&listener));
            let (_, object) = objects.routes.get(route.at).filter(|_| is_attached)?;
            Some((object, route.compiled.get(&position)?))
        })
    }

    /// HTTP routes of one listener. A route is found by its own host, so that a more specific one
    /// wins even if the listener's host narrows both to the same.
    fn routes(&self, at: usize, listener: &Listener) -> Routes {
        let mut routes = Routes::new(WildcardLabels::Many);
        for (route, compiled) in self.attached(at) {
            for host in hosts(route, listener) {
                for (path, rule) in &compiled.rules {
                    routes.insert(host, path, Arc::clone(rule));
                }
            }
        }
        routes.sort();
        routes
    }

    /// TLS routes of one listener by server name; of two with the same the older one serves.
    fn by_name(&self, at: usize, listener: &Listener) -> HostMap<Arc<Split>> {
        let mut names = HostMap::new(WildcardLabels::Many);
        for (route, compiled) in self.attached(at) {
            let Some(split) = &compiled.split else { continue };
            for host in hosts(route, listener) {
                names.entry(host, || Arc::clone(split));
            }
        }
        names
    }

    /// The backends of the oldest route.
    fn backends(&self, at: usize) -> Option<Arc<Split>> {
        self.attached(at).find_map(|(_, compiled)| compiled.split.clone())
    }
}

/// The hosts of a route that a listener serves.
fn hosts<'a>(
    route: &'a Resource<RouteSpec>,
    listener: &'a Listener,
) -> impl Iterator<Item = &'a str> {
    let every = route.spec.hostnames.is_empty().then_some("");
    let own = route.spec.hostnames.iter().map(String::as_str);
    let host = listener.spec.hostname.as_deref();
    every.into_iter().chain(own.filter(move |own| intersect(host, Some(own))))
}

/// The ports of a Gateway that its Service needs: the public port, and whether it is UDP.
pub fn public_ports(gateway: &Gateway) -> Vec<(u16, bool)> {
    let mut ports: Vec<(u16, bool)> = gateway
        .listeners
        .iter()
        .filter(|listener| listener.accepted.is_ok())
        .map(|listener| (listener.spec.port, listener.kinds.contains(&RouteKind::Udp)))
        .collect();
    ports.compact_sort();
    ports.dedup();
    ports
}
