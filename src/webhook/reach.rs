//! Connects to webhooks: Service endpoints through their nodes, URLs by their addresses; rejects
//! forbidden addresses.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use api::value::{at, bool_at, get, int_at, items, str_at, str_in};
use async_trait::async_trait;
use base::Tasks;
use base::io::{BoxIo, Dial};
use serde_json::Value;

use super::errors::ResolveError;
use lookup::Lookup;

/// Resolves and dials Service endpoints and URL hosts.
#[async_trait]
pub trait Reach: Send + Sync {
    /// A ready endpoint for this port of a Service.
    ///
    /// # Errors
    /// If the Service does not exist or has no usable endpoint; the messages are those of
    /// upstream's endpoint resolver, such as `service "x" not found`.
    async fn endpoint(
        &self,
        namespace: &str,
        name: &str,
        port: u16,
    ) -> Result<SocketAddr, ResolveError>;

    /// Resolves a host. Callers dial the returned addresses only, so that a name that resolves
    /// differently later cannot change the target.
    ///
    /// # Errors
    /// If the host is unknown, or none of its addresses is allowed.
    async fn resolve(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, ResolveError>;

    /// Connects to this address.
    ///
    /// # Errors
    /// Network errors.
    async fn dial(&self, address: SocketAddr) -> io::Result<BoxIo>;
}

/// The access of the API server to webhooks, and the owner of the connections.
#[derive(Clone)]
pub struct Callout {
    /// Resolves and dials.
    pub reach: Arc<dyn Reach>,
    /// The tasks that drive keep-alive connections.
    pub tasks: Tasks,
}

impl std::fmt::Debug for Callout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Callout")
    }
}

/// Reaches Services by their EndpointSlices (upstream's `--enable-aggregator-routing`): it works on
/// a server without a service proxy, and for pods on agents behind a tunnel.
pub struct Services {
    lookup: Arc<dyn Lookup>,
    dial: Arc<dyn Dial>,
    /// The index at which the next endpoint selection starts, for round robin.
    turn: AtomicUsize,
}

impl Services {
    /// Creates it with these objects and this dialer.
    pub fn new(lookup: Arc<dyn Lookup>, dial: Arc<dyn Dial>) -> Self {
        Self { lookup, dial, turn: AtomicUsize::new(0) }
    }
}

#[async_trait]
impl Reach for Services {
    async fn endpoint(
        &self,
        namespace: &str,
        name: &str,
        port: u16,
    ) -> Result<SocketAddr, ResolveError> {
        let unreadable = |status| ResolveError::Lookup(Box::new(status));
        let service = self.lookup.get(&lookup::SERVICES, namespace, name).await;
        let service = service.and_then(lookup::value).map_err(unreadable)?;
        let service =
            service.ok_or_else(|| ResolveError::ServiceNotFound { name: name.to_owned() })?;
        let port_name = port_name(&service, name, port)?;
        let all = self.lookup.list(&lookup::ENDPOINT_SLICES, namespace).await;
        let all = all.map_err(unreadable)?;
        let slices: Vec<Value> = all
            .iter()
            .filter_map(|o| o.value().ok())
            .filter(|s| str_in(s, &["metadata", "labels", "kubernetes.io/service-name"]) == name)
            .collect();
        let family = items(get(&service, "spec"), "ipFamilies").first().and_then(Value::as_str);
        let found = endpoints(&slices, port_name, family.unwrap_or_default());
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let chosen = found.get(turn % found.len().max(1)).copied();
        let chosen = chosen.ok_or_else(|| ResolveError::NoEndpoints { name: name.to_owned() })?;
        if !is_foreign(chosen.ip()) {
            return Err(ResolveError::ForbiddenEndpoint { address: chosen, name: name.to_owned() });
        }
        Ok(chosen)
    }

    async fn resolve(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, ResolveError> {
        let unknown = || ResolveError::NoSuchHost { host: host.to_owned() };
        let found: Vec<SocketAddr> = match host.parse::<IpAddr>() {
            Ok(ip) => vec![SocketAddr::new(ip, port)],
            Err(_) => tokio::net::lookup_host((host, port)).await.map_err(|_| unknown())?.collect(),
        };
        let allowed: Vec<SocketAddr> =
            found.iter().copied().filter(|address| may_be_url(address.ip())).collect();
        match (found.first(), allowed.is_empty()) {
            (None, _) => Err(unknown()),
            (Some(first), true) => Err(ResolveError::Forbidden { address: *first }),
            _ => Ok(allowed),
        }
    }

    async fn dial(&self, address: SocketAddr) -> io::Result<BoxIo> {
        self.dial.dial(&address.ip().to_string(), address.port()).await
    }
}

/// The name of the Service's port with this number.
fn port_name<'a>(service: &'a Value, name: &str, port: u16) -> Result<&'a str, ResolveError> {
    let kind = match str_in(service, &["spec", "type"]) {
        "" => "ClusterIP",
        kind => kind,
    };
    if !matches!(kind, "ClusterIP" | "NodePort" | "LoadBalancer") {
        return Err(ResolveError::ServiceType { kind: kind.to_owned() });
    }
    let ports = items(get(service, "spec"), "ports");
    let found = ports.iter().find(|p| int_at(p, "port") == Some(i64::from(port)));
    let missing = || ResolveError::ServicePort { name: name.to_owned(), port };
    found.map(|p| str_at(p, "name")).ok_or_else(missing)
}

/// The addresses of ready endpoints with this port; limited to the Service's primary IP family if
/// it has endpoints.
fn endpoints(slices: &[Value], port: &str, family: &str) -> Vec<SocketAddr> {
    let mut of_family = Vec::new();
    let mut of_other_families = Vec::new();
    for slice in slices {
        let number = items(slice, "ports")
            .iter()
            .find(|p| str_at(p, "name") == port)
            .and_then(|p| int_at(p, "port"))
            .and_then(|p| u16::try_from(p).ok());
        let Some(number) = number else { continue };
        for endpoint in items(slice, "endpoints") {
            let conditions = at(endpoint, &["conditions"]);
            let unready = get(conditions, "ready").is_boolean() && !bool_at(conditions, "ready");
            let address = items(endpoint, "addresses").first().and_then(Value::as_str);
            let Some(ip) = address.and_then(|a| a.parse::<IpAddr>().ok()) else { continue };
            if !unready {
                let is_of_family = str_at(slice, "addressType") == family;
                let list = if is_of_family { &mut of_family } else { &mut of_other_families };
                list.push(SocketAddr::new(ip, number));
            }
        }
    }
    if of_family.is_empty() { of_other_families } else { of_family }
}

/// Whether a URL may lead to this address: neither unspecified, nor multicast, nor link-local,
/// where cloud metadata services are.
fn may_be_url(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => {
            !(ip.is_unspecified() || ip.is_multicast() || ip.is_link_local() || ip.is_broadcast())
        }
        IpAddr::V6(ip) => !(ip.is_unspecified() || ip.is_multicast() || ip.is_unicast_link_local()),
    }
}

/// Like [`may_be_url`], and not loopback: users that write endpoints need not be administrators.
fn is_foreign(ip: IpAddr) -> bool {
    may_be_url(ip) && !ip.to_canonical().is_loopback()
}
