//! The targets of connections: addresses of nodes, pods and services, determined from objects only.

use std::net::IpAddr;

use api::Status;
use serde_json::Value;
use sorting::CompactSort as _;

use crate::request::Query;

/// The port of the kubelet if the node reports none.
const KUBELET_PORT: u16 = 10250;
/// The order in which a node's addresses are tried. Upstream starts with names; those of edge nodes
/// rarely resolve.
const ADDRESS_TYPES: [&str; 5] =
    ["InternalIP", "InternalDNS", "ExternalIP", "ExternalDNS", "Hostname"];

/// The TLS verification of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trust {
    /// A kubelet: verified, with the client certificate of the API server.
    Kubelet,
    /// A kubelet that is not verified, at the client's request.
    UnverifiedKubelet,
    /// TLS without verification.
    Unverified,
    /// No TLS.
    Plain,
}

/// A target to connect to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) host: String,
    /// The resolved address of `host`, which is dialed: resolving a name twice can yield two
    /// addresses.
    pub(super) resolved_ip: Option<IpAddr>,
    pub(super) port: u16,
    pub(super) trust: Trust,
}

impl Target {
    /// `host:port`, with an IPv6 host in brackets.
    pub(super) fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    pub(super) fn scheme(&self) -> &'static str {
        if self.trust == Trust::Plain { "http" } else { "https" }
    }
}

/// `name`, `name:port` or `scheme:name:port`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Named<'a> {
    pub(super) scheme: &'a str,
    pub(super) name: &'a str,
    pub(super) port: &'a str,
}

/// Parses the name of a proxied object; `kind` is `node`, `pod` or `service`.
pub(super) fn named<'a>(kind: &str, id: &'a str) -> Result<Named<'a>, Status> {
    let parts: Vec<&str> = id.split(':').collect();
    let (scheme, name, port) = match parts.as_slice() {
        [name] => ("", *name, ""),
        [name, port] => ("", *name, *port),
        [scheme, name, port] => (*scheme, *name, *port),
        _ => ("", "", ""),
    };
    if name.is_empty() || !matches!(scheme, "" | "http" | "https") {
        let id = api::field::go_quote(id);
        return Err(Status::bad_request(format!("invalid {kind} request {id}")));
    }
    Ok(Named { scheme, name, port })
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn items<'a>(object: &'a Value, pointer: &str) -> impl Iterator<Item = &'a Value> {
    object.pointer(pointer).and_then(Value::as_array).into_iter().flatten()
}

/// The kubelet of a node.
pub(super) fn kubelet(node: &Value) -> Result<Target, Status> {
    let addresses: Vec<(&str, &str)> = items(node, "/status/addresses")
        .map(|a| (text(a, "/type"), text(a, "/address")))
        .filter(|(_, address)| !address.is_empty())
        .collect();
    let found = ADDRESS_TYPES.iter().find_map(|kind| addresses.iter().find(|(k, _)| k == kind));
    let Some((_, host)) = found else {
        let known: Vec<String> = addresses.iter().map(|(k, a)| format!("{{{k} {a}}}")).collect();
        let known = known.join(" ");
        let message = format!("no preferred addresses found; known addresses: [{known}]");
        return Err(Status::failure(500, "", message));
    };
    let port = node.pointer("/status/daemonEndpoints/kubeletEndpoint/Port").and_then(Value::as_u64);
    let port = port.and_then(|p| u16::try_from(p).ok()).filter(|p| *p > 0).unwrap_or(KUBELET_PORT);
    Ok(Target { host: (*host).to_owned(), resolved_ip: None, port, trust: Trust::Kubelet })
}

/// Go's `IsGlobalUnicast`: neither loopback, nor multicast, nor link-local. IPv4-mapped addresses
/// count as IPv4, as in Go and in the kernel.
fn is_global_unicast(ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    let link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    !(ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || link_local)
}

/// The first address of a name, if all of them are global (upstream's `IsProxyableHostname`).
pub(super) fn foreign_address(addresses: &[IpAddr]) -> Result<Option<IpAddr>, Status> {
    if addresses.iter().any(|ip| !is_global_unicast(*ip)) {
        return Err(not_allowed());
    }
    Ok(addresses.first().copied())
}

fn not_allowed() -> Status {
    Status::bad_request("address not allowed")
}

fn trust_of(scheme: &str) -> Trust {
    if scheme == "https" { Trust::Unverified } else { Trust::Plain }
}

fn port_of(port: &str, trust: Trust) -> Result<u16, Status> {
    if port.is_empty() {
        return Ok(if trust == Trust::Plain { 80 } else { 443 });
    }
    port.parse().map_err(|_| {
        let port = api::field::go_quote(port);
        Status::failure(
            503,
            "ServiceUnavailable",
            format!("error trying to reach service: invalid port {port}"),
        )
    })
}

/// The target of `nodes/proxy`: the kubelet unless the name has another port.
pub(super) fn node_proxy(id: &str, node: &Value) -> Result<Target, Status> {
    let named = named("node", id)?;
    let kubelet = kubelet(node)?;
    if kubelet.host.parse::<IpAddr>().is_ok_and(|ip| !is_global_unicast(ip)) {
        return Err(not_allowed());
    }
    if named.port.is_empty() || named.port == kubelet.port.to_string() {
        return Ok(kubelet);
    }
    let trust = trust_of(named.scheme);
    Ok(Target { port: port_of(named.port, trust)?, trust, ..kubelet })
}

/// The target of `pods/proxy`: the port in the name, else the first container port.
pub(super) fn pod_proxy(id: &str, pod: &Value) -> Result<Target, Status> {
    let named = named("pod", id)?;
    let declared = items(pod, "/spec/containers")
        .find_map(|c| items(c, "/ports").next())
        .and_then(|p| p.get("containerPort"))
        .and_then(Value::as_u64)
        .map(|p| p.to_string())
        .unwrap_or_default();
    let port = if named.port.is_empty() { &declared } else { named.port };
    let first = text(pod, "/status/podIPs/0/ip");
    let host = if first.is_empty() { text(pod, "/status/podIP") } else { first };
    match host.parse::<IpAddr>() {
        Ok(ip) if is_global_unicast(ip) => {}
        _ => return Err(not_allowed()),
    }
    let trust = trust_of(named.scheme);
    Ok(Target { host: host.to_owned(), resolved_ip: None, port: port_of(port, trust)?, trust })
}

/// The name of the requested service port: numbers are resolved, names are kept.
pub(super) fn service_port(named: &Named<'_>, service: &Value) -> Result<String, Status> {
    let Ok(number) = named.port.parse::<i64>() else { return Ok(named.port.to_owned()) };
    let found = items(service, "/spec/ports")
        .find(|p| p.get("port").and_then(Value::as_i64) == Some(number));
    let found = found.map(|p| text(p, "/name").to_owned());
    found.ok_or_else(|| {
        let name = api::field::go_quote(named.name);
        let message = format!("no service port {number} found for service {name}");
        Status::failure(503, "ServiceUnavailable", message)
    })
}

/// The endpoints of a service, primary family first; `slices` are all of the service.
///
/// Each has the pod that it claims to be, which the caller must verify.
pub(super) fn endpoints<'a>(
    slices: &'a [Value],
    port: &str,
    family: &str,
    namespace: &str,
) -> Vec<(&'a str, u16, &'a str)> {
    let mut slices: Vec<&Value> = slices.iter().collect();
    slices.compact_sort_by_key(|s| text(s, "/addressType") != family);
    let mut found = Vec::new();
    for slice in slices {
        let number = items(slice, "/ports")
            .filter(|p| p.get("name").is_some_and(Value::is_string) && text(p, "/name") == port)
            .find_map(|p| p.get("port").and_then(Value::as_u64))
            .and_then(|p| u16::try_from(p).ok());
        let Some(number) = number else { continue };
        for endpoint in items(slice, "/endpoints") {
            let ready = endpoint.pointer("/conditions/ready").and_then(Value::as_bool);
            let here = text(endpoint, "/targetRef/namespace") == namespace;
            if ready != Some(false) && here {
                let pod = text(endpoint, "/targetRef/name");
                found.push((text(endpoint, "/addresses/0"), number, pod));
            }
        }
    }
    found
}

/// Whether the pod has this address.
pub(super) fn has_address(pod: &Value, address: &str) -> bool {
    items(pod, "/status/podIPs").any(|ip| text(ip, "/ip") == address)
}

/// The error if there is no usable endpoint.
pub(super) fn no_endpoints(name: &str) -> Status {
    let name = api::field::go_quote(name);
    Status::failure(503, "ServiceUnavailable", format!("no endpoints available for service {name}"))
}

/// The requested container, else the only one.
pub(super) fn container(pod: &Value, query: &Query) -> Result<String, Status> {
    if let Some(name) = query.get("container").filter(|c| !c.is_empty()) {
        return Ok(name.to_owned());
    }
    let names: Vec<&str> = items(pod, "/spec/containers").map(|c| text(c, "/name")).collect();
    let pod_name = text(pod, "/metadata/name");
    match names.as_slice() {
        [only] => Ok((*only).to_owned()),
        [] => Err(Status::bad_request(format!(
            "a container name must be specified for pod {pod_name}"
        ))),
        _ => {
            let all = ["initContainers", "containers", "ephemeralContainers"].map(|list| {
                items(pod, &format!("/spec/{list}")).map(|c| text(c, "/name")).collect::<Vec<_>>()
            });
            let all = all.concat().join(" ");
            Err(Status::bad_request(format!(
                "a container name must be specified for pod {pod_name}, choose one of: [{all}]"
            )))
        }
    }
}

/// Percent-encodes all but unreserved characters, as in a query.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

fn is_true(query: &Query, key: &str) -> bool {
    query.get(key).is_some_and(|v| v != "0" && !v.eq_ignore_ascii_case("false"))
}

/// The path and query on a kubelet for `log`, `exec`, `attach` or `portforward`, with the options
/// in the kubelet's form.
pub(super) fn kubelet_path(
    subresource: &str,
    pod: &Value,
    query: &Query,
) -> Result<String, Status> {
    let (namespace, name) = (text(pod, "/metadata/namespace"), text(pod, "/metadata/name"));
    let mut pairs: Vec<(&str, String)> = Vec::new();
    let path = match subresource {
        "log" => {
            for key in ["follow", "previous", "timestamps"] {
                if is_true(query, key) {
                    pairs.push((key, "true".into()));
                }
            }
            for key in ["sinceSeconds", "sinceTime", "tailLines", "limitBytes"] {
                if let Some(value) = query.get(key).filter(|v| !v.is_empty()) {
                    pairs.push((key, value.to_owned()));
                }
            }
            let stream = query.get("stream").filter(|v| !v.is_empty());
            pairs.push(("stream", stream.unwrap_or("All").to_owned()));
            format!("/containerLogs/{namespace}/{name}/{}", container(pod, query)?)
        }
        "portforward" => {
            let ports: Vec<&str> = query.all("ports").collect();
            if !ports.is_empty() {
                pairs.push(("port", ports.join(",")));
            }
            format!("/portForward/{namespace}/{name}")
        }
        _ => {
            for (key, param) in
                [("stdin", "input"), ("stdout", "output"), ("stderr", "error"), ("tty", "tty")]
            {
                if is_true(query, key) {
                    pairs.push((param, "1".into()));
                }
            }
            if subresource == "exec" {
                pairs.extend(query.all("command").map(|c| ("command", c.to_owned())));
            }
            format!("/{subresource}/{namespace}/{name}/{}", container(pod, query)?)
        }
    };
    let query: Vec<String> =
        pairs.into_iter().map(|(k, v)| format!("{k}={}", escape(&v))).collect();
    Ok(if query.is_empty() { path } else { format!("{path}?{}", query.join("&")) })
}
