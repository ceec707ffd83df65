//! Services and their endpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use api::k8s::api::core::v1::{Service, ServicePort};
use api::k8s::api::discovery::v1::EndpointSlice;

use http_proxy::backend::{Backend, Protocol};
use http_proxy::proxy::upstream::UpstreamTls;

/// Why a Service cannot serve a route.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoBackend {
    /// It does not exist.
    #[error("Service {0} does not exist")]
    Missing(String),
    /// It is a name of another host.
    #[error("Service {0} is of type ExternalName, which is not supported as a backend")]
    ExternalName(String),
    /// It has no such port.
    #[error("Service {0} has no port {1}")]
    NoPort(String, String),
}

/// A port of a Service, by number or name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortRef<'a> {
    /// `port.number`.
    Number(i32),
    /// `port.name`.
    Name(&'a str),
    /// The number of a UDP port.
    Udp(i32),
}

/// One port of a Service with the protocol of its endpoints.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct BackendKey {
    /// Namespace of the Service.
    pub namespace: String,
    /// Name of the Service.
    pub service: String,
    /// Name of the port; empty if it has none.
    pub port: String,
    /// The protocol.
    pub protocol: Protocol,
    /// Distinguishes backends of one port by their TLS: 0 for plain connections.
    pub tls: u64,
}

/// The protocol of a port by its `appProtocol` (KEP-3726: `kubernetes.io/h2c`; `grpc` as others
/// read it).
fn protocol(port: &ServicePort) -> Protocol {
    if port.protocol.as_deref() == Some("UDP") {
        return Protocol::Udp;
    }
    match port.app_protocol.as_deref() {
        Some("kubernetes.io/h2c" | "h2c" | "grpc") => Protocol::Http2,
        _ => Protocol::Http1,
    }
}

/// The backend that a reference means.
///
/// # Errors
/// The reason why there is none.
pub fn resolve(
    namespace: &str,
    name: &str,
    service: Option<&Service>,
    port: PortRef<'_>,
) -> Result<BackendKey, NoBackend> {
    let full = format!("{namespace}/{name}");
    let Some(service) = service else { return Err(NoBackend::Missing(full)) };
    let spec = service.spec.as_ref();
    if spec.and_then(|s| s.type_.as_deref()) == Some("ExternalName") {
        return Err(NoBackend::ExternalName(full));
    }
    let is_meant = |candidate: &&ServicePort| match port {
        PortRef::Number(number) => candidate.port == number && protocol(candidate) != Protocol::Udp,
        PortRef::Udp(number) => candidate.port == number && protocol(candidate) == Protocol::Udp,
        PortRef::Name(name) => candidate.name.as_deref() == Some(name),
    };
    let ports = spec.and_then(|s| s.ports.as_deref()).unwrap_or_default();
    let Some(found) = ports.iter().find(is_meant) else {
        let port = match port {
            PortRef::Number(number) => number.to_string(),
            PortRef::Udp(number) => format!("{number}/UDP"),
            PortRef::Name(name) => format!("{name:?}"),
        };
        return Err(NoBackend::NoPort(full, port));
    };
    Ok(BackendKey {
        namespace: namespace.to_owned(),
        service: name.to_owned(),
        port: found.name.clone().unwrap_or_default(),
        protocol: protocol(found),
        tls: 0,
    })
}

/// Whether an endpoint may have this address. The API refuses most others; custom slices must not
/// make the proxy call services of its own machine.
fn is_allowed(address: IpAddr) -> bool {
    let link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_unicast_link_local() || v6.to_ipv4_mapped().is_some(),
    };
    !(link_local || address.is_loopback() || address.is_unspecified() || address.is_multicast())
}

/// The addresses of a port: ready endpoints, else those that terminate and still serve.
/// `transport` is `TCP` or `UDP`.
pub fn addresses(slices: &[EndpointSlice], port: &str, transport: &str) -> Vec<SocketAddr> {
    let (mut ready, mut leaving) = (BTreeSet::new(), BTreeSet::new());
    for slice in slices.iter().filter(|slice| slice.address_type != "FQDN") {
        let number = slice
            .ports
            .iter()
            .flatten()
            .filter(|p| p.protocol.as_deref().unwrap_or("TCP") == transport)
            .find(|p| p.name.as_deref().unwrap_or_default() == port)
            .and_then(|p| u16::try_from(p.port?).ok());
        let Some(number) = number else { continue };
        for endpoint in slice.endpoints.iter().flatten() {
            // Only the first address counts (API documentation of EndpointSlice).
            let address = endpoint.addresses.first().and_then(|a| a.parse::<IpAddr>().ok());
            let Some(address) = address.filter(|address| is_allowed(*address)) else { continue };
            let conditions = endpoint.conditions.as_ref();
            let is_ready = conditions.and_then(|c| c.ready).unwrap_or(true);
            let serves = conditions.and_then(|c| c.serving).unwrap_or(is_ready);
            let address = SocketAddr::new(address, number);
            if is_ready {
                ready.insert(address);
            } else if serves {
                leaving.insert(address);
            }
        }
    }
    let chosen = if ready.is_empty() { leaving } else { ready };
    chosen.into_iter().collect()
}

/// The backends in use. A backend keeps its connections while routes change.
#[derive(Debug, Default)]
pub struct BackendRegistry {
    known: BTreeMap<BackendKey, Arc<Backend>>,
    used: BTreeSet<BackendKey>,
}

impl BackendRegistry {
    /// Begins a new set of routes.
    pub fn begin(&mut self) {
        self.used.clear();
    }

    /// The backend of a key; a new one has no endpoints yet.
    pub fn get(&mut self, key: &BackendKey) -> Arc<Backend> {
        self.get_with(key, || None)
    }

    /// The same for a key with TLS, whose settings `tls` makes.
    pub fn get_with(
        &mut self,
        key: &BackendKey,
        tls: impl FnOnce() -> Option<Arc<UpstreamTls>>,
    ) -> Arc<Backend> {
        self.used.insert(key.clone());
        let backend = self.known.entry(key.clone()).or_insert_with(|| {
            let name = format!("{}/{}:{}", key.namespace, key.service, key.port);
            Arc::new(Backend::new(name, key.protocol).with_tls(tls()))
        });
        Arc::clone(backend)
    }

    /// Ends a set of routes: backends that it does not use are forgotten.
    pub fn end(&mut self) {
        let used = &self.used;
        self.known.retain(|key, backend| {
            let keep = used.contains(key);
            if !keep {
                backend.set_endpoints(&[]);
            }
            keep
        });
    }

    /// Calls `each` for the backends of a Service, of all Services if `service` is `None`.
    pub fn update(
        &self,
        service: Option<(&str, &str)>,
        mut slices: impl FnMut(&str, &str) -> Vec<EndpointSlice>,
    ) {
        for (key, backend) in &self.known {
            let of = (key.namespace.as_str(), key.service.as_str());
            if service.is_none_or(|wanted| wanted == of) {
                let transport = if key.protocol == Protocol::Udp { "UDP" } else { "TCP" };
                backend.set_endpoints(&addresses(&slices(of.0, of.1), &key.port, transport));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn service(spec: Value) -> Service {
        serde_json::from_value(json!({"metadata": {"name": "s"}, "spec": spec})).unwrap()
    }

    #[test]
    fn references_name_a_port_of_a_service() {
        let web = service(json!({"ports": [
            {"name": "http", "port": 80, "targetPort": 8080},
            {"name": "rpc", "port": 90, "appProtocol": "kubernetes.io/h2c"}]}));
        let key = |port: PortRef<'_>| resolve("n", "s", Some(&web), port);
        let found = key(PortRef::Number(80)).unwrap();
        assert_eq!((found.port.as_str(), found.protocol), ("http", Protocol::Http1));
        assert_eq!(key(PortRef::Name("rpc")).unwrap().protocol, Protocol::Http2);
        let text = |result: Result<BackendKey, NoBackend>| result.unwrap_err().to_string();
        assert_eq!(text(key(PortRef::Name("x"))), "Service n/s has no port \"x\"");
        assert_eq!(text(key(PortRef::Number(8080))), "Service n/s has no port 8080");
        let missing = resolve("n", "s", None, PortRef::Number(80));
        assert_eq!(text(missing), "Service n/s does not exist");
        let other = service(json!({"type": "ExternalName", "externalName": "a.example"}));
        assert!(
            text(resolve("n", "s", Some(&other), PortRef::Number(80))).contains("ExternalName")
        );
    }

    #[test]
    fn endpoints_are_ready_or_serve_while_they_terminate() {
        let slice = |endpoints: Value| -> Vec<EndpointSlice> {
            serde_json::from_value(json!([{"metadata": {"name": "s"}, "addressType": "IPv4",
                "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
                "endpoints": endpoints}]))
            .unwrap()
        };
        let texts = |list: Vec<SocketAddr>| -> Vec<String> {
            list.iter().map(ToString::to_string).collect()
        };
        let ready = json!({"addresses": ["10.0.0.1"]});
        let leaving = json!({"addresses": ["10.0.0.2"],
            "conditions": {"ready": false, "serving": true, "terminating": true}});
        let dead = json!({"addresses": ["10.0.0.3"], "conditions": {"ready": false}});
        let own = json!({"addresses": ["127.0.0.1"]});
        let cloud = json!({"addresses": ["169.254.169.254"]});
        let all = slice(json!([ready, leaving, dead, own, cloud]));
        assert_eq!(texts(addresses(&all, "http", "TCP")), ["10.0.0.1:8080"]);
        assert!(addresses(&all, "other", "TCP").is_empty());
        assert_eq!(
            texts(addresses(&slice(json!([leaving, dead])), "http", "TCP")),
            ["10.0.0.2:8080"]
        );
    }
}
