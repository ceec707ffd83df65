//! The part of the ingress that runs on the server that leads: the endpoints of its Service, the
//! addresses in the status of Ingresses, and events about what is not served.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use api::k8s::api::core::v1::{Node, Secret, Service};
use api::k8s::api::discovery::v1::EndpointSlice;
use api::k8s::api::networking::v1::{Ingress, IngressClass};
use base::{Backoff, Kind, Tasks};
use client::events::EventType;
use client::{Client, Error, EventRecorder, Informer, Informers, Patch, Scope, gvr_of};
use serde_json::{Value, json};
use sorting::CollectOrdered as _;
use tokio::sync::Notify;

use crate::auth_secrets::{self, AuthSecrets};
use crate::node_endpoints::{self, NodeService};
use crate::objects::ingress::{Classes, Problem, References, compile};
use crate::objects::services::BackendRegistry;
use crate::{HTTP_PORT, HTTPS_PORT};

/// User of the controller.
pub const USER: &str = "system:ingress-controller";
/// Its user agent, the component of its events, and the manager of its EndpointSlices.
pub const AGENT: &str = "ingress-controller";
/// The Service of `manifests/ingress.yaml`, whose load balancer is that of all Ingresses.
pub const SERVICE: (&str, &str) = ("kube-system", "ingress");
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
            if node_endpoints::concerns(change) {
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
        let endpoints = NodeService {
            namespace: SERVICE.0,
            name: SERVICE.1,
            manager: AGENT,
            ports: json!([
                {"name": "http", "port": HTTP_PORT, "protocol": "TCP"},
                {"name": "https", "port": HTTPS_PORT, "protocol": "TCP"},
            ]),
            owners: json!([]),
        };
        let nodes = service.map(|_| self.nodes.list("")).unwrap_or_default();
        endpoints.write(&self.client, &self.slices, &nodes).await
    }

    /// Records an event for each new problem.
    fn report(&mut self, ingresses: &[Ingress], classes: &Classes) {
        let mut registry = BackendRegistry::default();
        let compiled = compile(ingresses.to_vec(), classes, self, &mut registry);
        let key = |p: &Problem| (p.namespace.clone(), p.name.clone(), p.message.clone());
        let now: BTreeSet<_> = compiled.problems.iter().map(key).collect_set();
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
