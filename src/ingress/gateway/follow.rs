//! Serves Gateways on a node.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use api::k8s::api::core::v1::Service;
use api::k8s::api::discovery::v1::EndpointSlice;
use arc_swap::ArcSwap;
use base::accept::bind_when_free;
use base::{Kind, Shutdown, Tasks};
use client::{Change, Client, Informer, Informers};
use parking_lot::Mutex;
use settings::TrustedProxies;
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::Notify;

use super::caches::Caches;
use super::model::build;
use super::service::{NAME_LABEL, is_owned, node_ports, service_name};
use super::tables::{self, tables};
use crate::follow::{BY_SERVICE, service_index, service_of};
use crate::objects::services::BackendRegistry;
use http_proxy::proxy::Listener;
use http_proxy::proxy::entry::{Port, PortMode, serve_datagrams, serve_port};
use http_proxy::routes::Routes;
use http_proxy::routes::hosts::WildcardLabels;

/// Changes that arrive within this time are applied together.
const GATHER: Duration = Duration::from_millis(20);

/// Why the Gateways of a node cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A worker thread panicked.
    #[error("a gateway worker stopped: {0}")]
    Worker(#[from] tokio::task::JoinError),
}

#[derive(Debug, Default)]
struct Dirty {
    objects: AtomicBool,
    services: Mutex<BTreeSet<(String, String)>>,
    wake: Notify,
}

impl Dirty {
    fn objects(&self) {
        self.objects.store(true, Ordering::Release);
        self.wake.notify_one();
    }
}

/// A port of this node: the number, and whether it is UDP.
type NodePort = (u16, bool);

struct Running {
    port: Arc<Port>,
    tasks: Tasks,
}

struct Follower {
    caches: Caches,
    slices: Informer<EndpointSlice>,
    registry: BackendRegistry,
    running: BTreeMap<NodePort, Running>,
    address: IpAddr,
    proxies: Arc<TrustedProxies>,
    dirty: Arc<Dirty>,
    tasks: Tasks,
}

/// Serves the Gateways of the cluster on this node until shutdown. Nothing of Gateway API is read
/// before a Service of a Gateway exists. `informers` belong to the network (`system:kube-proxy`),
/// whose client is `network`; `node` may read the Secrets of type `kubernetes.io/tls`.
///
/// # Errors
/// A worker thread panicked. A port that is in use is reported and retried.
pub async fn run(
    (address, proxies): (IpAddr, Arc<TrustedProxies>),
    informers: Informers,
    node: Client,
    tasks: Tasks,
) -> Result<(), Error> {
    let shutdown = tasks.shutdown().clone();
    if !has_gateway(&informers, &shutdown).await {
        return Ok(());
    }
    let dirty = Arc::new(Dirty::default());
    let note = Arc::clone(&dirty);
    let caches =
        Caches::new(&informers, informers.client(), &node, &tasks, move |_| note.objects());
    let slices = informers.of::<EndpointSlice>();
    slices.add_index(BY_SERVICE, service_index);
    let note = Arc::clone(&dirty);
    slices.on_change(move |change| {
        if let Some((namespace, name)) = service_of(change.object()) {
            note.services.lock().insert((namespace.to_owned(), name.to_owned()));
            note.wake.notify_one();
        }
    });
    tokio::select! {
        () = async { tokio::join!(caches.synced(), slices.synced()); } => {}
        () = shutdown.requested() => return Ok(()),
    }
    dirty.objects();
    let mut follower = Follower {
        caches,
        slices,
        registry: BackendRegistry::default(),
        running: BTreeMap::new(),
        address,
        proxies,
        dirty,
        tasks,
    };
    loop {
        follower = follower.apply().await?;
        tokio::select! {
            () = follower.dirty.wake.notified() => {}
            () = shutdown.requested() => return Ok(()),
        }
        base::clock::sleep(GATHER).await;
    }
}

/// Waits for the Service of a Gateway; returns `false` at shutdown.
async fn has_gateway(informers: &Informers, shutdown: &Shutdown) -> bool {
    let found = Arc::new(Notify::new());
    let note = Arc::clone(&found);
    informers.of::<Service>().on_change(move |change| {
        let is_gone = matches!(change, Change::Deleted(_));
        if !is_gone && change.object().label(NAME_LABEL).is_some() {
            note.notify_one();
        }
    });
    tokio::select! {
        () = found.notified() => true,
        () = shutdown.requested() => false,
    }
}

impl Follower {
    /// Applies what has changed.
    async fn apply(mut self) -> Result<Self, Error> {
        let services = std::mem::take(&mut *self.dirty.services.lock());
        if self.dirty.objects.swap(false, Ordering::AcqRel) {
            let (mut own, ports) = base::tasks::blocking(move || {
                let ports = self.compile();
                (self, ports)
            })
            .await?;
            own.serve(ports);
            return Ok(own);
        }
        for (namespace, name) in services {
            let slices = &self.slices;
            self.registry.update(Some((&namespace, &name)), |n, s| slices_of(slices, n, s));
        }
        Ok(self)
    }

    /// What is to be served, by the port of the node. Of two Services that claim a port, the older
    /// one has it.
    fn compile(&mut self) -> BTreeMap<NodePort, tables::Port> {
        let objects = self.caches.objects();
        let model = build(&objects, &self.caches, &mut self.registry);
        let slices = &self.slices;
        self.registry.update(None, |namespace, name| slices_of(slices, namespace, name));
        let mut claims = BTreeMap::new();
        for gateway in &objects.gateways {
            let (metadata, class) = (&gateway.metadata, &gateway.spec.gateway_class_name);
            let name = service_name(&metadata.name, class);
            let service = self.caches.services.get(&metadata.namespace, &name);
            let Some(service) = service.filter(|s| is_owned(s, &metadata.uid)) else { continue };
            for (public, is_udp, target) in node_ports(&service) {
                let key = (metadata.namespace.clone(), metadata.name.clone(), public, is_udp);
                claims.insert(key, target);
            }
        }
        let mut ports = BTreeMap::new();
        for port in tables(&objects, &model) {
            let is_udp = matches!(port.entry, PortMode::Udp(_));
            let key = (port.namespace.clone(), port.name.clone(), port.number, is_udp);
            if let Some(target) = claims.get(&key) {
                ports.entry((*target, is_udp)).or_insert(port);
            }
        }
        ports
    }

    /// Exchanges the tables of ports that are served, and starts and stops others.
    fn serve(&mut self, ports: BTreeMap<NodePort, tables::Port>) {
        self.running.retain(|key, running| {
            let stays =
                ports.get(key).is_some_and(|port| port.number == running.port.listener.public_port);
            if !stays {
                running.tasks.shutdown().request();
            }
            stays
        });
        for (key, table) in ports {
            if let Some(running) = self.running.get(&key) {
                running.port.listener.routes.store(Arc::new(table.routes));
                running.port.entry.store(Arc::new(table.entry));
                continue;
            }
            let tasks = self.tasks.child();
            let listener = Arc::new(Listener {
                public_port: table.number,
                routes: ArcSwap::from_pointee(Routes::new(WildcardLabels::Many)),
                tls: None,
                proxies: Arc::clone(&self.proxies),
                tasks: tasks.clone(),
            });
            listener.routes.store(Arc::new(table.routes));
            let port = Arc::new(Port { listener, entry: ArcSwap::from_pointee(table.entry) });
            let address = SocketAddr::new(self.address, key.0);
            let serving = serve_at(Arc::clone(&port), (address, key.1), tasks.clone());
            tasks.spawn(Kind::Request, "gateway-listener", serving);
            self.running.insert(key, Running { port, tasks });
        }
    }
}

fn slices_of(slices: &Informer<EndpointSlice>, namespace: &str, name: &str) -> Vec<EndpointSlice> {
    slices.by_index(BY_SERVICE, &format!("{namespace}/{name}"))
}

/// Binds a port and serves it; a port in use is a problem of this node, not its end.
async fn serve_at(
    port: Arc<Port>,
    (address, is_udp): (SocketAddr, bool),
    tasks: Tasks,
) -> Result<(), std::convert::Infallible> {
    let pauses = (Duration::from_millis(200), Duration::from_secs(60));
    let report = |error| tracing::warn!(%address, is_udp, %error, "gateway: cannot listen");
    let shutdown = tasks.shutdown();
    if is_udp {
        let bind = || UdpSocket::bind(address);
        if let Some(socket) = bind_when_free(bind, pauses, shutdown, report).await {
            serve_datagrams(port, socket).await;
        }
    } else {
        let bind = || TcpListener::bind(address);
        if let Some(socket) = bind_when_free(bind, pauses, shutdown, report).await {
            serve_port(port, socket).await;
        }
    }
    Ok(())
}
