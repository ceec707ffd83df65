//! The objects that every cluster starts with: created or repaired at each start, as in upstream.

pub mod policy;

use std::collections::BTreeMap;
use std::net::IpAddr;

use api::{Gvr, Status};
use async_trait::async_trait;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde_json::{Value, json};
use sorting::CompactSort as _;

use crate::authz::rule::{Rule, missing};

/// Priority levels, flow schemas, priority classes and API services of 1.37, one JSON object a
/// line.
const OBJECTS: &str = include_str!("bootstrap/objects.jsonl");

/// The number of concurrent writes: enough to share a few syncs of the store.
const CONCURRENCY: usize = 64;

/// Reads and writes objects. The implementation uses the handlers, so that defaulting and
/// validation apply.
#[async_trait]
pub trait Writer: Send + Sync {
    /// Whether the resource is served.
    fn serves(&self, gvr: &Gvr) -> bool;
    /// The stored object; `None` if it does not exist.
    ///
    /// # Errors
    /// If the object cannot be read.
    async fn get(&self, gvr: &Gvr, namespace: &str, name: &str) -> Result<Option<Value>, Status>;
    /// Creates it.
    async fn create(&self, gvr: &Gvr, namespace: &str, object: Value) -> Result<(), Status>;
    /// Replaces it; the value carries the resource version it was read at.
    async fn update(&self, gvr: &Gvr, namespace: &str, object: Value) -> Result<(), Status>;
    /// Deletes it.
    async fn delete(&self, gvr: &Gvr, namespace: &str, name: &str) -> Result<(), Status>;
}

/// The settings of this cluster.
#[derive(Debug, Clone)]
pub struct Settings {
    /// First address of the service range: the address of service `kubernetes`.
    pub service_ip: IpAddr,
    /// Service ranges, such as `10.43.0.0/16`, one per family.
    pub service_cidrs: Vec<String>,
    /// Addresses of cluster DNS, reserved by service `kube-dns`; empty where it is not served.
    pub cluster_dns: Vec<IpAddr>,
    /// Addresses at which the API server is reached; those of `service_ip`'s family are published.
    pub advertised: Vec<IpAddr>,
    /// Port at which it is reached.
    pub port: u16,
    /// PEM of the CA of clients.
    pub client_ca: String,
    /// PEM of the CA of front proxies; empty when there is none.
    pub request_header_ca: String,
    /// Common names allowed to front proxies.
    pub request_header_names: Vec<String>,
    /// Whether this server serves the resource metrics API.
    pub resource_metrics: bool,
}

/// How an existing object is updated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Upkeep {
    /// Left as it is.
    Create,
    /// Missing rules, subjects, labels and annotations are added, unless the autoupdate annotation
    /// is `false`.
    Rbac,
    /// `spec` is restored as the annotation `apf.kubernetes.io/autoupdate-spec` says
    /// ([`crate::priority_and_fairness`]).
    FlowControl,
    /// These top-level fields are restored.
    Fields(&'static [&'static str]),
    /// The ports of the Service are restored.
    Ports,
}

/// An object that every cluster has.
#[derive(Debug, Clone)]
pub struct BootstrapObject {
    gvr: Gvr,
    object: Value,
    upkeep: Upkeep,
}

/// The necessary change of an existing object.
#[derive(Debug, PartialEq)]
enum Change {
    None,
    Update(Value),
    Recreate,
}

/// The rules of the role `system:node`, for the Node authorizer.
pub fn node_rules() -> Vec<Rule> {
    policy::roles()
        .into_iter()
        .find(|role| role.namespace.is_empty() && role.name == "system:node")
        .map(|role| role.rules)
        .unwrap_or_default()
}

/// Updates the published addresses to those of `settings`.
///
/// # Errors
/// The first error.
pub async fn publish(writer: &dyn Writer, settings: &Settings) -> Result<(), Status> {
    for wanted in published_objects(settings) {
        ensure_one(writer, wanted).await?;
    }
    Ok(())
}

/// Creates or repairs all objects: namespaces first, then the others concurrently. Returns the
/// number of written objects.
///
/// # Errors
/// The first error.
pub async fn ensure(writer: &dyn Writer, settings: &Settings) -> Result<usize, Status> {
    let (namespaces, rest): (Vec<_>, Vec<_>) = objects(settings)
        .into_iter()
        .filter(|w| writer.serves(&w.gvr))
        .partition(|w| &*w.gvr.resource == "namespaces");
    let mut written = 0;
    for batch in [namespaces, rest] {
        let results = stream::iter(batch)
            .map(|wanted| ensure_one(writer, wanted))
            .buffer_unordered(CONCURRENCY);
        written +=
            results.try_fold(0, |sum, wrote| async move { Ok(sum + usize::from(wrote)) }).await?;
    }
    Ok(written)
}

async fn ensure_one(writer: &dyn Writer, wanted: BootstrapObject) -> Result<bool, Status> {
    let BootstrapObject { gvr, object, upkeep } = wanted;
    let field = |name: &str| {
        object
            .pointer(&format!("/metadata/{name}"))
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let (namespace, name) = (field("namespace"), field("name"));
    // Another server may write between the read and the write.
    for _ in 0..3 {
        let outcome = match writer.get(&gvr, &namespace, &name).await {
            Err(error) => Err(error),
            Ok(None) => writer.create(&gvr, &namespace, object.clone()).await,
            Ok(Some(existing)) => match change(&existing, &object, upkeep) {
                Change::None => return Ok(false),
                Change::Update(value) => writer.update(&gvr, &namespace, value).await,
                Change::Recreate => match writer.delete(&gvr, &namespace, &name).await {
                    Ok(()) => writer.create(&gvr, &namespace, object.clone()).await,
                    Err(error) => Err(error),
                },
            },
        };
        match outcome {
            Ok(()) => return Ok(true),
            Err(error)
                if error.is("AlreadyExists") || error.is("Conflict") || error.is("NotFound") => {}
            Err(mut error) => {
                error.message = format!(
                    "cannot read or write bootstrap object {gvr} {namespace}/{name}: {}",
                    error.message
                );
                return Err(error);
            }
        }
    }
    Err(Status::internal(&format!(
        "bootstrap object {gvr} {namespace}/{name} changes faster than it can be written"
    )))
}

/// Flow schemas and priority levels of 1.37.
pub(crate) fn flow_objects() -> impl Iterator<Item = Value> {
    let objects = OBJECTS.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    objects.filter(|object| {
        let kind = object.get("kind").and_then(Value::as_str).unwrap_or_default();
        matches!(kind, "FlowSchema" | "PriorityLevelConfiguration")
    })
}

/// All objects, for these settings.
pub fn objects(settings: &Settings) -> Vec<BootstrapObject> {
    let mut out = Vec::with_capacity(220);
    let mut add =
        |gvr: Gvr, object: Value, upkeep: Upkeep| out.push(BootstrapObject { gvr, object, upkeep });
    for name in ["default", "kube-node-lease", "kube-public", "kube-system"] {
        add(
            Gvr::new("", "v1", "namespaces"),
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}),
            Upkeep::Create,
        );
    }
    for (resource, object) in policy::objects() {
        add(Gvr::new("rbac.authorization.k8s.io", "v1", resource), object, Upkeep::Rbac);
    }
    if settings.resource_metrics {
        let gvr = Gvr::new("rbac.authorization.k8s.io", "v1", "clusterroles");
        add(gvr, metrics_reader(), Upkeep::Rbac);
    }
    for line in OBJECTS.lines() {
        let object: Value = serde_json::from_str(line).expect("the compiled-in objects are JSON");
        let (resource, upkeep) = match object.get("kind").and_then(Value::as_str) {
            Some("FlowSchema") => ("flowschemas", Upkeep::FlowControl),
            Some("PriorityLevelConfiguration") => {
                ("prioritylevelconfigurations", Upkeep::FlowControl)
            }
            Some("PriorityClass") => ("priorityclasses", Upkeep::Create),
            _ => ("apiservices", Upkeep::Create),
        };
        let api_version = object.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        add(Gvr::new(group, version, resource), object.clone(), upkeep);
    }
    let cidr = json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": "kubernetes"}, "spec": {"cidrs": settings.service_cidrs}});
    add(Gvr::new("networking.k8s.io", "v1", "servicecidrs"), cidr, Upkeep::Create);
    add(Gvr::new("", "v1", "services"), service(settings), Upkeep::Create);
    if !settings.cluster_dns.is_empty() {
        add(Gvr::new("", "v1", "services"), dns_service(&settings.cluster_dns), Upkeep::Ports);
    }
    out.extend(published_objects(settings));
    let mut add =
        |gvr: Gvr, object: Value, upkeep: Upkeep| out.push(BootstrapObject { gvr, object, upkeep });
    add(
        Gvr::new("", "v1", "configmaps"),
        extension_authentication(settings),
        Upkeep::Fields(&["data"]),
    );
    out
}

/// The role that adds the resource metrics to the roles of users (metrics-server's
/// `manifests/base/rbac.yaml`).
fn metrics_reader() -> Value {
    let to = |role: &str| format!("rbac.authorization.k8s.io/aggregate-to-{role}");
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "system:aggregated-metrics-reader",
            "labels": {to("view"): "true", to("edit"): "true", to("admin"): "true"}},
        "rules": [{"apiGroups": ["metrics.k8s.io"], "resources": ["pods", "nodes"],
            "verbs": ["get", "list", "watch"]}],
    })
}

/// The endpoints of the service `kubernetes`.
fn published_objects(settings: &Settings) -> Vec<BootstrapObject> {
    let mut out = Vec::new();
    let mut add = |gvr: Gvr, object: Value, fields| {
        out.push(BootstrapObject { gvr, object, upkeep: Upkeep::Fields(fields) });
    };
    // Loopback addresses are not published, because pods cannot reach them.
    if !published(settings).is_empty() {
        add(Gvr::new("", "v1", "endpoints"), endpoints(settings), &["subsets"]);
        let slices = Gvr::new("discovery.k8s.io", "v1", "endpointslices");
        add(slices, endpoint_slice(settings), &["endpoints", "ports"]);
    }
    out
}

fn service(settings: &Settings) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "kubernetes", "namespace": "default", "labels": {"component": "apiserver", "provider": "kubernetes"}},
        "spec": {
            "ports": [{"name": "https", "protocol": "TCP", "port": 443, "targetPort": settings.port}],
            "clusterIP": settings.service_ip.to_string(), "clusterIPs": [settings.service_ip.to_string()],
            "ipFamilies": [if settings.service_ip.is_ipv4() { "IPv4" } else { "IPv6" }], "ipFamilyPolicy": "SingleStack", "sessionAffinity": "None", "type": "ClusterIP",
        },
    })
}

/// The service `kube-dns`, which reserves the addresses of cluster DNS. It has no selector, because
/// each node serves DNS at these addresses itself.
fn dns_service(all: &[IpAddr]) -> Value {
    // A service has at most one address per family; nodes serve further ones nevertheless.
    let of = |v4: bool| all.iter().find(|ip| ip.is_ipv4() == v4);
    let first = all.first().is_none_or(IpAddr::is_ipv4);
    let addresses: Vec<&IpAddr> = [of(first), of(!first)].into_iter().flatten().collect();
    let texts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    let families: Vec<&str> =
        addresses.iter().map(|ip| if ip.is_ipv4() { "IPv4" } else { "IPv6" }).collect();
    let policy = if addresses.len() > 1 { "RequireDualStack" } else { "SingleStack" };
    let port = |name: &str, protocol: &str, number: u16| -> Value {
        json!({"name": name, "protocol": protocol, "port": number, "targetPort": number})
    };
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "kube-dns", "namespace": "kube-system", "labels": {"k8s-app": "kube-dns", "kubernetes.io/cluster-service": "true", "kubernetes.io/name": "CoreDNS"},
            "annotations": {"prometheus.io/port": "9153", "prometheus.io/scrape": "true"}},
        "spec": {
            "ports": [port("dns", "UDP", 53), port("dns-tcp", "TCP", 53), port("metrics", "TCP", 9153)],
            "clusterIP": texts.first(), "clusterIPs": texts,
            "ipFamilies": families, "ipFamilyPolicy": policy, "sessionAffinity": "None", "type": "ClusterIP",
        },
    })
}

/// The published addresses: those of the service's family, sorted and without duplicates.
fn published(settings: &Settings) -> Vec<String> {
    let mut addresses: Vec<IpAddr> = settings
        .advertised
        .iter()
        .copied()
        .filter(|ip| ip.is_ipv4() == settings.service_ip.is_ipv4() && !ip.is_loopback())
        .collect();
    addresses.compact_sort();
    addresses.dedup();
    addresses.iter().map(ToString::to_string).collect()
}

fn endpoints(settings: &Settings) -> Value {
    let addresses: Vec<Value> =
        published(settings).into_iter().map(|ip| json!({"ip": ip})).collect();
    json!({
        "apiVersion": "v1", "kind": "Endpoints",
        "metadata": {"name": "kubernetes", "namespace": "default", "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}},
        "subsets": [{"addresses": addresses, "ports": [{"name": "https", "port": settings.port, "protocol": "TCP"}]}],
    })
}

fn endpoint_slice(settings: &Settings) -> Value {
    let endpoints: Vec<Value> = published(settings)
        .into_iter()
        .map(|ip| json!({"addresses": [ip], "conditions": {"ready": true}}))
        .collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": "kubernetes", "namespace": "default", "labels": {"kubernetes.io/service-name": "kubernetes"}},
        "addressType": if settings.service_ip.is_ipv4() { "IPv4" } else { "IPv6" },
        "endpoints": endpoints,
        "ports": [{"name": "https", "port": settings.port, "protocol": "TCP"}],
    })
}

/// How extension API servers verify clients and the front proxy.
fn extension_authentication(settings: &Settings) -> Value {
    let mut data = BTreeMap::from([("client-ca-file", settings.client_ca.clone())]);
    if !settings.request_header_ca.is_empty() {
        data.insert("requestheader-client-ca-file", settings.request_header_ca.clone());
        data.insert(
            "requestheader-allowed-names",
            json!(settings.request_header_names).to_string(),
        );
        data.insert("requestheader-username-headers", r#"["X-Remote-User"]"#.into());
        data.insert("requestheader-uid-headers", r#"["X-Remote-Uid"]"#.into());
        data.insert("requestheader-group-headers", r#"["X-Remote-Group"]"#.into());
        data.insert("requestheader-extra-headers-prefix", r#"["X-Remote-Extra-"]"#.into());
    }
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "extension-apiserver-authentication", "namespace": "kube-system"},
        "data": data,
    })
}

fn change(existing: &Value, wanted: &Value, upkeep: Upkeep) -> Change {
    let mut updated = existing.clone();
    match upkeep {
        Upkeep::Create => return Change::None,
        Upkeep::Fields(fields) => {
            for field in fields {
                copy(&mut updated, wanted, field);
            }
        }
        Upkeep::Ports => {
            if let (Some(spec), Some(wanted)) = (updated.get_mut("spec"), wanted.get("spec")) {
                copy(spec, wanted, "ports");
            }
        }
        Upkeep::FlowControl => {
            return crate::priority_and_fairness::revised(existing, wanted)
                .map_or(Change::None, Change::Update);
        }
        Upkeep::Rbac => {
            if annotation(existing, "rbac.authorization.kubernetes.io/autoupdate") == Some("false")
            {
                return Change::None;
            }
            if wanted.get("roleRef") != existing.get("roleRef") {
                return Change::Recreate;
            }
            repair_rbac(&mut updated, wanted);
        }
    }
    if updated == *existing { Change::None } else { Change::Update(updated) }
}

fn annotation<'v>(object: &'v Value, key: &str) -> Option<&'v str> {
    object.get("metadata")?.get("annotations")?.get(key)?.as_str()
}

fn copy(to: &mut Value, from: &Value, field: &str) {
    if let (Some(to), Some(value)) = (to.as_object_mut(), from.get(field)) {
        to.insert(field.to_owned(), value.clone());
    }
}

/// Adds missing rules, subjects, labels and annotations of the bootstrap policy; additional ones
/// are kept.
fn repair_rbac(object: &mut Value, wanted: &Value) {
    for field in ["annotations", "labels"] {
        let Some(Value::Object(expected)) = wanted.pointer(&format!("/metadata/{field}")) else {
            continue;
        };
        let Some(meta) = object.get_mut("metadata").and_then(Value::as_object_mut) else {
            continue;
        };
        if let Some(map) = meta.entry(field).or_insert_with(|| json!({})).as_object_mut() {
            for (key, value) in expected {
                map.entry(key.clone()).or_insert_with(|| value.clone());
            }
        }
    }
    let rules = |value: &Value| {
        serde_json::from_value::<Vec<Rule>>(value.get("rules").cloned().unwrap_or_default())
            .unwrap_or_default()
    };
    // The aggregation controller maintains the rules of aggregated roles.
    if wanted.get("aggregationRule").is_none() && wanted.get("roleRef").is_none() {
        let owned = rules(object);
        append(
            object,
            "rules",
            missing(&owned, &rules(wanted)).into_iter().map(|rule| json!(rule)),
        );
        if let Some(map) = object.as_object_mut() {
            map.remove("aggregationRule");
        }
    } else if object.get("aggregationRule").is_none_or(Value::is_null) {
        copy(object, wanted, "aggregationRule");
    } else if let Some(rule) = object.get_mut("aggregationRule") {
        let selectors = |rule: Option<&Value>| {
            let list = rule.and_then(|rule| rule.get("clusterRoleSelectors"));
            list.and_then(Value::as_array).cloned().unwrap_or_default()
        };
        let there = selectors(Some(&*rule));
        let missing = selectors(wanted.get("aggregationRule"));
        let missing = missing.into_iter().filter(|selector| !there.contains(selector));
        append(rule, "clusterRoleSelectors", missing);
    }
    let list = |value: &Value| {
        value.get("subjects").and_then(Value::as_array).cloned().unwrap_or_default()
    };
    let there = list(object);
    append(object, "subjects", list(wanted).into_iter().filter(|subject| !there.contains(subject)));
}

fn append(object: &mut Value, field: &str, items: impl Iterator<Item = Value>) {
    let mut items = items.peekable();
    if items.peek().is_none() {
        return;
    }
    let Some(map) = object.as_object_mut() else { return };
    let list = map.entry(field).or_insert(Value::Null);
    if !list.is_array() {
        *list = json!([]);
    }
    if let Some(list) = list.as_array_mut() {
        list.extend(items);
    }
}

#[cfg(test)]
mod tests;
