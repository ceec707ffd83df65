//! The part of the ingress that runs on the server that leads: the endpoints of its Service, the
//! addresses in the status of Ingresses, and events about what is not served.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use api::k8s::api::core::v1::{Node, Secret, Service};
use api::k8s::api::discovery::v1::EndpointSlice;
use api::k8s::api::networking::v1::{Ingress, IngressClass};
use base::{Backoff, Kind, Tasks};
use client::events::EventType;
use client::{Client, Error, EventRecorder, Informer, Informers, Patch, Scope, gvr_of};
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::auth_secrets::{self, AuthSecrets};
use crate::objects::ingress::{Classes, Problem, References, compile};
use crate::objects::services::BackendRegistry;
use crate::{HTTP_PORT, HTTPS_PORT};

/// User of the controller.
pub const USER: &str = "system:ingress-controller";
/// Its user agent, the component of its events, and the manager of its EndpointSlices.
pub const AGENT: &str = "ingress-controller";
/// The Service of `manifests/ingress.yaml`, whose load balancer is that of all Ingresses.
pub const SERVICE: (&str, &str) = ("kube-system", "ingress");
/// Addresses of one EndpointSlice (`MaxEndpointsPerSlice`).
const ENDPOINTS_MAX: usize = 1000;
/// Changes that arrive within this time are applied together.
const GATHER: Duration = Duration::from_millis(100);

struct Controller {
    client: Client,
    events: EventRecorder,
    ingresses: Informer<Ingress>,
    classes: Informer<IngressClass>,
    services: Informer<Service>,
    secrets: Informer<Secret>,
    /// The users of Ingresses with authentication, and the client that reads them.
    auth_secrets: AuthSecrets,
    reader: Client,
    tasks: Tasks,
    wake: Arc<Notify>,
    nodes: Informer<Node>,
    slices: Informer<EndpointSlice>,
    /// Problems that have an event.
    reported: BTreeSet<(String, String, String)>,
}

impl References for Controller {
    fn service(&self, namespace: &str, name: &str) -> Option<Service> {
        self.services.get(namespace, name)
    }

    fn secret(&self, namespace: &str, name: &str) -> Option<Secret> {
        let with_certificate = self.secrets.get(namespace, name);
        with_certificate.or_else(|| self.auth_secrets.get(namespace, name))
    }
}

/// Starts the controller; it ends with `tasks`.
pub fn start(client: Client, informers: &Informers, tasks: &Tasks) {
    let wake = Arc::new(Notify::new());
    let secrets = Scope::all(gvr_of::<Secret>()).fields("type=kubernetes.io/tls");
    let controller = Controller {
        events: EventRecorder::new(client.clone(), AGENT, "", tasks),
        ingresses: informers.of(),
        classes: informers.of(),
        services: informers.of(),
        secrets: informers.scoped(secrets),
        auth_secrets: AuthSecrets::default(),
        reader: informers.client().clone(),
        tasks: tasks.clone(),
        wake: Arc::clone(&wake),
        nodes: informers.of(),
        slices: informers.of(),
        client,
        reported: BTreeSet::new(),
    };
    controller.watch();
    let shutdown = tasks.shutdown().clone();
    tasks.spawn(Kind::Critical, "ingress-controller", async move {
        let mut controller = controller;
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
        tokio::select! {
            () = controller.synced() => {}
            () = shutdown.requested() => return Ok::<(), std::convert::Infallible>(()),
        }
        loop {
            match controller.reconcile().await {
                Ok(()) => {
                    backoff.reset();
                    tokio::select! {
                        () = wake.notified() => base::clock::sleep(GATHER).await,
                        () = shutdown.requested() => return Ok(()),
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "ingress: cannot write status or endpoints");
                    if !backoff.wait(&shutdown).await {
                        return Ok(());
                    }
                }
            }
        }
    });
}

/// The address of a node, and whether it is ready.
fn endpoint(node: &Node) -> Option<(String, String, bool)> {
    let name = node.metadata.name.clone()?;
    let status = node.status.as_ref()?;
    let internal = status.addresses.iter().flatten().find(|a| a.type_ == "InternalIP")?;
    let conditions = status.conditions.iter().flatten();
    let ready = conditions.filter(|c| c.type_ == "Ready").any(|c| c.status == "True");
    Some((name, internal.address.clone(), ready))
}

/// The EndpointSlices of the ingress' Service, by name: the ports of each node's process.
fn endpoint_slices(nodes: &[Node]) -> BTreeMap<String, Value> {
    let mut families: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    let mut known: Vec<_> = nodes.iter().filter_map(endpoint).collect();
    known.sort();
    for (name, address, ready) in known {
        let family = if address.contains(':') { "IPv6" } else { "IPv4" };
        families.entry(family).or_default().push(json!({
            "addresses": [address],
            "nodeName": name,
            "targetRef": {"kind": "Node", "name": name},
            "conditions": {"ready": ready, "serving": ready, "terminating": false},
        }));
    }
    let mut slices = BTreeMap::new();
    for (family, endpoints) in families {
        for (number, chunk) in endpoints.chunks(ENDPOINTS_MAX).enumerate() {
            let name = format!("{}-{}-{number}", SERVICE.1, family.to_lowercase());
            let labels = json!({
                "kubernetes.io/service-name": SERVICE.1,
                "endpointslice.kubernetes.io/managed-by": AGENT,
            });
            let slice = json!({
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {"name": name, "namespace": SERVICE.0, "labels": labels},
                "addressType": family,
                "ports": [
                    {"name": "http", "port": HTTP_PORT, "protocol": "TCP"},
                    {"name": "https", "port": HTTPS_PORT, "protocol": "TCP"},
                ],
                "endpoints": chunk,
            });
            slices.insert(name, slice);
        }
    }
    slices
}

/// The addresses of Ingresses: those of the load balancer of the ingress' Service.
fn addresses(service: Option<&Service>) -> Vec<Value> {
    let status = service.and_then(|s| s.status.as_ref()?.load_balancer.as_ref());
    let list = status.and_then(|s| s.ingress.as_deref()).unwrap_or_default();
    list.iter()
        .filter_map(|i| match (&i.ip, &i.hostname) {
            (Some(ip), _) => Some(json!({"ip": ip})),
            (None, Some(name)) => Some(json!({"hostname": name})),
            (None, None) => None,
        })
        .collect()
}

/// The addresses that an Ingress' status has.
fn current(ingress: &Ingress) -> Vec<Value> {
    let status = ingress.status.as_ref().and_then(|s| s.load_balancer.as_ref());
    let list = status.and_then(|s| s.ingress.as_deref()).unwrap_or_default();
    list.iter().filter_map(|i| serde_json::to_value(i).ok()).collect()
}

impl Controller {
    /// Reconciles after changes.
    fn watch(&self) {
        let note = || {
            let wake = Arc::clone(&self.wake);
            move |_: &client::Change| wake.notify_one()
        };
        self.ingresses.on_change(note());
        self.classes.on_change(note());
        self.services.on_change(note());
        self.secrets.on_change(note());
        let own = Arc::clone(&self.wake);
        self.slices.on_change(move |change| {
            if &*change.object().key.namespace == SERVICE.0 {
                own.notify_one();
            }
        });
        let own = Arc::clone(&self.wake);
        self.nodes.on_change(move |change| {
            // A heartbeat changes neither addresses nor readiness.
            let is_news = match change {
                client::Change::Updated { old, new } => {
                    let read = |object: &api::Object| {
                        client::informer::decode::<Node>(object).map(|node| endpoint(&node))
                    };
                    read(old) != read(new)
                }
                _ => true,
            };
            if is_news {
                own.notify_one();
            }
        });
    }

    async fn synced(&self) {
        tokio::join!(
            self.ingresses.synced(),
            self.classes.synced(),
            self.services.synced(),
            self.secrets.synced(),
            self.nodes.synced(),
            self.slices.synced()
        );
    }

    async fn reconcile(&mut self) -> Result<(), Error> {
        let service = self.services.get(SERVICE.0, SERVICE.1);
        self.write_endpoints(service.as_ref()).await?;
        let classes = Classes::new(&self.classes.list(""));
        let ingresses = self.ingresses.list("");
        let names = auth_secrets::wanted(&ingresses, &classes);
        let wake = Arc::clone(&self.wake);
        let from = (&self.reader, &self.tasks);
        self.auth_secrets.follow(&names, from, move || wake.notify_one()).await;
        self.report(&ingresses, &classes);
        let wanted = addresses(service.as_ref());
        for ingress in ingresses.iter().filter(|ingress| classes.contain(ingress)) {
            if current(ingress) == wanted {
                continue;
            }
            let patch = json!({"status": {"loadBalancer": {"ingress": wanted}}});
            let namespace = ingress.metadata.namespace.as_deref().unwrap_or_default();
            let name = ingress.metadata.name.as_deref().unwrap_or_default();
            let patch = Patch::Merge(&patch);
            let written = self.client.patch::<Ingress>(namespace, name, "status", &patch).await;
            // The event of the deletion or change reconciles again.
            if let Err(error) = written
                && !error.is_not_found()
                && !error.is_conflict()
            {
                return Err(error);
            }
        }
        Ok(())
    }

    async fn write_endpoints(&self, service: Option<&Service>) -> Result<(), Error> {
        let gvr = gvr_of::<EndpointSlice>();
        let wanted = match service {
            Some(_) => endpoint_slices(&self.nodes.list("")),
            None => BTreeMap::new(),
        };
        for (name, slice) in &wanted {
            let known = self.slices.cache().get(SERVICE.0, name);
            let is_equal = known.as_ref().is_some_and(|object| {
                let value: Option<Value> = serde_json::from_slice(object.json().as_ref()).ok();
                value.is_some_and(|value| {
                    ["endpoints", "ports"].iter().all(|field| value.get(field) == slice.get(field))
                })
            });
            match known {
                Some(_) if is_equal => {}
                Some(_) => {
                    let patch = Patch::Merge(slice);
                    self.client.patch::<EndpointSlice>(SERVICE.0, name, "", &patch).await?;
                }
                None => {
                    self.client.post_value(&gvr, SERVICE.0, "", "", slice).await?;
                }
            }
        }
        for object in self.slices.cache().list(SERVICE.0) {
            let is_own = object.label("endpointslice.kubernetes.io/managed-by") == Some(AGENT);
            if is_own && !wanted.contains_key(&*object.key.name) {
                let deleted = self
                    .client
                    .delete_gvr(
                        &gvr,
                        SERVICE.0,
                        &object.key.name,
                        &client::DeleteOptions::default(),
                    )
                    .await;
                if let Err(error) = deleted
                    && !error.is_not_found()
                {
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Records an event for each new problem.
    fn report(&mut self, ingresses: &[Ingress], classes: &Classes) {
        let mut registry = BackendRegistry::default();
        let compiled = compile(ingresses.to_vec(), classes, self, &mut registry);
        let key = |p: &Problem| (p.namespace.clone(), p.name.clone(), p.message.clone());
        let now: BTreeSet<_> = compiled.problems.iter().map(key).collect();
        for (namespace, name, message) in now.difference(&self.reported) {
            let is_meant = |i: &&Ingress| {
                i.metadata.namespace.as_deref() == Some(namespace)
                    && i.metadata.name.as_deref() == Some(name)
            };
            if let Some(ingress) = ingresses.iter().find(is_meant) {
                self.events.event(ingress, EventType::Warning, "NotServed", message.clone());
            }
        }
        self.reported = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, address: &str, ready: &str) -> Node {
        serde_json::from_value(json!({"metadata": {"name": name}, "status": {
            "addresses": [{"type": "Hostname", "address": name},
                {"type": "InternalIP", "address": address}],
            "conditions": [{"type": "Ready", "status": ready}]}}))
        .unwrap()
    }

    #[test]
    fn each_node_is_an_endpoint_of_the_service() {
        let nodes = [
            node("b", "192.0.2.2", "True"),
            node("a", "192.0.2.1", "Unknown"),
            node("c", "2001:db8::1", "True"),
        ];
        let slices = endpoint_slices(&nodes);
        let names: Vec<&str> = slices.keys().map(String::as_str).collect();
        assert_eq!(names, ["ingress-ipv4-0", "ingress-ipv6-0"]);
        let endpoints = &slices["ingress-ipv4-0"]["endpoints"];
        assert_eq!(endpoints[0]["nodeName"], "a");
        assert_eq!(endpoints[0]["conditions"]["ready"], false);
        assert_eq!(endpoints[1]["addresses"][0], "192.0.2.2");
    }

    #[test]
    fn ingresses_have_the_addresses_of_the_service() {
        let service = serde_json::from_value(json!({"metadata": {}, "status": {"loadBalancer":
            {"ingress": [{"ip": "192.0.2.1", "ipMode": "VIP"}, {"hostname": "lb.example"}]}}}))
        .unwrap();
        let expected = vec![json!({"ip": "192.0.2.1"}), json!({"hostname": "lb.example"})];
        assert_eq!(addresses(Some(&service)), expected);
        assert!(addresses(None).is_empty());
    }
}
