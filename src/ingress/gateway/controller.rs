//! The part of Gateway API that runs on the server that leads: statuses, and the Service of each
//! Gateway with its endpoints.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use api::Gvr;
use api::k8s::api::core::v1::{Node, Service};
use api::k8s::api::discovery::v1::EndpointSlice;
use api::k8s::jiff::Timestamp;
use base::{Backoff, Kind, Shutdown, Tasks};
use client::informer::decode;
use client::{Client, DeleteOptions, Error, Informer, Informers, Patch, Scope, gvr_of};
use serde_json::{Value, json};
use sorting::CollectOrdered as _;
use tokio::sync::Notify;

use super::caches::{Caches, gvr};
use super::model::{Model, build};
use super::objects::{CONTROLLER, Objects};
use super::service::{
    CLASS_LABEL, NAME_LABEL, allocate, change, endpoint_ports, is_owned, node_ports, owners,
    service, service_name,
};
use super::status::{Reporter, Update};
use super::tables::public_ports;
use super::types::{GROUP, GatewaySpec, Metadata, Resource};
use crate::node_endpoints::{self, NodeService};
use crate::objects::services::BackendRegistry;

/// User of the controller.
pub const USER: &str = "system:gateway-controller";
/// Its user agent, and the manager of its EndpointSlices.
pub const AGENT: &str = "gateway-controller";
/// The class that the server creates.
const CLASS: &str = "kube-lite";
/// Changes that arrive within this time are applied together.
const GATHER: Duration = Duration::from_millis(50);
/// The resources that must be served.
const RESOURCES: [&str; 10] = [
    "backendtlspolicies",
    "gatewayclasses",
    "gateways",
    "grpcroutes",
    "httproutes",
    "listenersets",
    "referencegrants",
    "tcproutes",
    "tlsroutes",
    "udproutes",
];
/// Annotation of a definition with the release that it is from.
const BUNDLE: &str = "gateway.networking.k8s.io/bundle-version";

struct Controller {
    client: Client,
    caches: Caches,
    definition: Informer<()>,
    nodes: Informer<Node>,
    slices: Informer<EndpointSlice>,
    wake: Arc<Notify>,
}

/// Starts the controller; it ends with `tasks`. Until the definitions of Gateway API exist, it only
/// waits for them.
pub fn start(client: Client, informers: &Informers, tasks: &Tasks) {
    let gvr = Gvr::new("apiextensions.k8s.io", "v1", "customresourcedefinitions");
    let definition = informers.scoped::<()>(Scope::all(gvr));
    let wake = Arc::new(Notify::new());
    let own = Arc::clone(&wake);
    let is_ours = |change: &client::Change| change.object().key.name.ends_with(GROUP);
    definition.on_change(move |change| {
        if is_ours(change) {
            own.notify_one();
        }
    });
    let (informers, own) = (informers.clone(), tasks.clone());
    tasks.spawn(Kind::Critical, "gateway-controller", async move {
        let shutdown = own.shutdown().clone();
        while !is_established(&definition) {
            tokio::select! {
                () = wake.notified() => {}
                () = shutdown.requested() => return Ok::<(), Infallible>(()),
            }
        }
        let controller = Controller::new(client, &informers, &own, definition, wake);
        tokio::select! {
            () = controller.caches.synced() => {}
            () = shutdown.requested() => return Ok(()),
        }
        controller.run(&shutdown).await;
        Ok(())
    });
}

/// Whether all kinds that the controller reads are served.
fn is_established(definitions: &Informer<()>) -> bool {
    RESOURCES.iter().all(|resource| {
        let object = definitions.cache().get("", &format!("{resource}.{GROUP}"));
        let value = object.and_then(|object| object.value().ok());
        value.is_some_and(|value| api::value::is_condition_true(&value, "Established"))
    })
}

impl Controller {
    fn new(
        client: Client,
        informers: &Informers,
        tasks: &Tasks,
        definition: Informer<()>,
        wake: Arc<Notify>,
    ) -> Self {
        let note = Arc::clone(&wake);
        let caches = Caches::new(informers, &client, &client, tasks, move |_| note.notify_one());
        let nodes = informers.of::<Node>();
        let note = Arc::clone(&wake);
        nodes.on_change(move |change| {
            if node_endpoints::concerns(change) {
                note.notify_one();
            }
        });
        let slices = informers.of::<EndpointSlice>();
        let note = Arc::clone(&wake);
        slices.on_change(move |change| {
            if change.object().label(node_endpoints::MANAGER_LABEL) == Some(AGENT) {
                note.notify_one();
            }
        });
        Self { client, caches, definition, nodes, slices, wake }
    }

    async fn run(&self, shutdown: &Shutdown) {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
        self.nodes.synced().await;
        self.slices.synced().await;
        loop {
            match self.reconcile().await {
                Ok(()) => {
                    backoff.reset();
                    tokio::select! {
                        () = self.wake.notified() => base::clock::sleep(GATHER).await,
                        () = shutdown.requested() => return,
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "gateway: cannot write status, Service or endpoints");
                    if !backoff.wait(shutdown).await {
                        return;
                    }
                }
            }
        }
    }

    async fn reconcile(&self) -> Result<(), Error> {
        let (caches, bundle) = (self.caches.clone(), self.bundle());
        let computed = base::tasks::blocking(move || {
            let objects = caches.objects();
            let model = build(&objects, &caches, &mut BackendRegistry::default());
            let now = Timestamp::from_second(Timestamp::now().as_second())
                .map(|now| now.to_string())
                .unwrap_or_default();
            let reporter =
                Reporter { objects: &objects, model: &model, now: &now, bundle: &bundle };
            let updates = reporter.updates(|metadata| service_of(&caches, &objects, metadata));
            (objects, model, updates)
        });
        // Only a panic ends it early, which the log has.
        let Ok((objects, model, updates)) = computed.await else { return Ok(()) };
        self.ensure_class(&objects).await?;
        for update in &updates {
            self.write_status(update).await?;
        }
        self.write_services(&objects, &model).await
    }

    /// The release of the definitions in the cluster.
    fn bundle(&self) -> String {
        let object = self.definition.cache().get("", &format!("gateways.{GROUP}"));
        let value = object.and_then(|object| object.value().ok()).unwrap_or_default();
        let annotations = value.pointer("/metadata/annotations");
        let version = annotations.and_then(|a| a.get(BUNDLE)).and_then(Value::as_str);
        version.unwrap_or_default().to_owned()
    }

    /// Creates the class of this controller, unless the cluster has one.
    async fn ensure_class(&self, objects: &Objects) -> Result<(), Error> {
        let has_class = objects
            .classes
            .iter()
            .any(|class| class.spec.controller_name == CONTROLLER || class.metadata.name == CLASS);
        if has_class {
            return Ok(());
        }
        let class = json!({"apiVersion": format!("{GROUP}/v1"), "kind": "GatewayClass",
            "metadata": {"name": CLASS}, "spec": {"controllerName": CONTROLLER}});
        match self.client.post_value(&gvr("gatewayclasses"), "", "", "", &class).await {
            Err(error) if !error.is_already_exists() => Err(error),
            _ => Ok(()),
        }
    }

    async fn write_status(&self, update: &Update) -> Result<(), Error> {
        let patch = json!({"metadata": {"resourceVersion": update.resource_version},
            "status": update.status});
        let (resource, patch) = (gvr(update.resource), Patch::Merge(&patch));
        let (namespace, name) = (&update.namespace, &update.name);
        match self.client.patch_value(&resource, namespace, name, "status", &patch).await {
            // The event of the change or deletion reconciles again.
            Err(error) if !error.is_not_found() && !error.is_conflict() => Err(error),
            _ => Ok(()),
        }
    }

    async fn write_services(&self, objects: &Objects, model: &Model) -> Result<(), Error> {
        // Each change of any Service comes here.
        if model.gateways.is_empty() {
            return Ok(());
        }
        // Few of a cluster's Services are those of Gateways: only these are decoded.
        let known = self.caches.services.cache().list("");
        let ours = known.iter().filter(|object| object.label(NAME_LABEL).is_some());
        let ours = ours.filter_map(|object| decode::<Service>(object));
        let mut taken: BTreeSet<u16> =
            ours.flat_map(|service| node_ports(&service)).map(|port| port.2).collect_set();
        let nodes = self.nodes.list("");
        for gateway in &model.gateways {
            let Some(object) = objects.gateways.get(gateway.at) else { continue };
            let wanted = match gateway.accepted.is_ok() {
                true => public_ports(gateway),
                false => Vec::new(),
            };
            let (namespace, uid) = (&object.metadata.namespace, &object.metadata.uid);
            let name = service_name(&object.metadata.name, &object.spec.gateway_class_name);
            let current = self.caches.services.get(namespace, &name);
            if current.as_ref().is_some_and(|current| !is_owned(current, uid)) {
                tracing::warn!(
                    gateway = object.metadata.full_name(),
                    service = name,
                    "gateway: another Service has the name of the Gateway's; delete it"
                );
                continue;
            }
            if wanted.is_empty() {
                if current.is_some() {
                    self.delete_service(namespace, &name).await?;
                }
                continue;
            }
            let own = current.as_ref().map(node_ports).unwrap_or_default();
            let ports = match allocate(&wanted, &own, &mut taken) {
                Ok(ports) => ports,
                Err(error) => {
                    let gateway = object.metadata.full_name();
                    tracing::warn!(gateway, %error, "gateway: no port");
                    continue;
                }
            };
            let endpoints = NodeService {
                namespace,
                name: &name,
                manager: AGENT,
                ports: endpoint_ports(&ports),
                owners: owners(object),
            };
            // The load balancer chooses nodes by the endpoints that exist when it sees the Service.
            endpoints.write(&self.client, &self.slices, &nodes).await?;
            self.write_service(object, (namespace, &name), &service(object, &ports)).await?;
        }
        Ok(())
    }

    async fn write_service(
        &self,
        gateway: &Resource<GatewaySpec>,
        (namespace, name): (&str, &str),
        wanted: &Value,
    ) -> Result<(), Error> {
        let resource = gvr_of::<Service>();
        let current = self.caches.services.cache().get(namespace, name);
        let current = current.and_then(|object| object.value().ok());
        let written = match current {
            None => self.client.post_value(&resource, namespace, "", "", wanted).await.map(drop),
            Some(current) => match change(&current, wanted) {
                None => return Ok(()),
                Some(patch) => {
                    let patch = Patch::Merge(&patch);
                    self.client.patch_value(&resource, namespace, name, "", &patch).await.map(drop)
                }
            },
        };
        match written {
            // The cache follows; the namespace of a Gateway may be on its way out.
            Err(error)
                if error.is_already_exists()
                    || error.is_conflict()
                    || error.is_not_found()
                    || error.is_namespace_terminating() =>
            {
                Ok(())
            }
            Err(error) if error.is_invalid() => {
                let gateway = gateway.metadata.full_name();
                tracing::warn!(gateway, %error, "gateway: the Service is refused");
                Ok(())
            }
            other => other,
        }
    }

    async fn delete_service(&self, namespace: &str, name: &str) -> Result<(), Error> {
        let options = DeleteOptions::default();
        match self.client.delete::<Service>(namespace, name, &options).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }
}

/// The Service of a Gateway.
fn service_of(caches: &Caches, objects: &Objects, metadata: &Metadata) -> Option<Service> {
    let gateway = objects.gateways.iter().find(|gateway| gateway.metadata.uid == metadata.uid)?;
    let name = service_name(&metadata.name, &gateway.spec.gateway_class_name);
    let service = caches.services.get(&metadata.namespace, &name)?;
    let labels = service.metadata.labels.as_ref()?;
    (labels.contains_key(CLASS_LABEL) && is_owned(&service, &metadata.uid)).then_some(service)
}
