//! Keeps routes, certificates and endpoints in sync with the API, and serves them.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use api::Object;
use api::k8s::api::core::v1::{Secret, Service};
use api::k8s::api::discovery::v1::EndpointSlice;
use api::k8s::api::networking::v1::{Ingress, IngressClass};
use arc_swap::ArcSwap;
use base::accept::bind_when_free;
use base::{Kind, Tasks};
use client::{Client, Informer, Informers, Scope, gvr_of};
use parking_lot::Mutex;
use rustls::sign::CertifiedKey;
use settings::TrustedProxies;
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc};

use crate::auth_secrets::{self, AuthSecrets};
use crate::handover::Handover;
use crate::objects::ingress::{Classes, Compiled, References, compile};
use crate::objects::services::BackendRegistry;
use http_proxy::proxy::{CertificateStore, Certificates, Listener, NoCertificate, serve};
use http_proxy::routes::Routes;
use http_proxy::routes::hosts::WildcardLabels;

/// Label of an EndpointSlice with the name of its Service.
const SERVICE_LABEL: &str = "kubernetes.io/service-name";
/// Index of EndpointSlices by `namespace/service`.
pub(crate) const BY_SERVICE: &str = "service";
/// The listeners of a node: HTTP and HTTPS.
const LISTENERS: usize = 2;
/// Changes that arrive within this time are applied together.
const GATHER: Duration = Duration::from_millis(20);

/// Settings of the ingress of a node.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where plain HTTP is served.
    pub http: SocketAddr,
    /// Where HTTPS is served.
    pub https: SocketAddr,
    /// Proxies whose headers about the client are kept.
    pub proxies: Arc<TrustedProxies>,
    /// The Unix socket through which a process leaves its listening sockets to the next one.
    pub handover: PathBuf,
}

/// Why the ingress of a node cannot run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The certificate for unknown names could not be made.
    #[error("cannot make the ingress' default certificate: {0}")]
    Certificate(#[from] NoCertificate),
    /// rustls refused its own settings.
    #[error("cannot set up TLS of the ingress: {0}")]
    Tls(#[from] rustls::Error),
    /// A worker thread panicked.
    #[error("an ingress worker stopped: {0}")]
    Worker(#[from] tokio::task::JoinError),
}

#[derive(Debug, Default)]
struct Dirty {
    routes: AtomicBool,
    services: Mutex<BTreeSet<(String, String)>>,
    wake: Notify,
}

impl Dirty {
    fn routes(&self) {
        self.routes.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    fn service(&self, namespace: &str, name: &str) {
        self.services.lock().insert((namespace.to_owned(), name.to_owned()));
        self.wake.notify_one();
    }
}

pub(crate) fn service_of(slice: &Object) -> Option<(&str, &str)> {
    Some((&slice.key.namespace, slice.label(SERVICE_LABEL)?))
}

pub(crate) fn service_index(slice: &Object) -> Vec<String> {
    let name = service_of(slice).map(|(namespace, name)| format!("{namespace}/{name}"));
    name.into_iter().collect()
}

/// The caches that routes are compiled from.
#[derive(Debug, Clone)]
struct Caches {
    ingresses: Informer<Ingress>,
    classes: Informer<IngressClass>,
    services: Informer<Service>,
    slices: Informer<EndpointSlice>,
    /// Started by the first Ingress with TLS.
    secrets: Option<Informer<Secret>>,
    /// The users of Ingresses with authentication.
    auth_secrets: Arc<Mutex<AuthSecrets>>,
}

impl References for Caches {
    fn service(&self, namespace: &str, name: &str) -> Option<Service> {
        self.services.get(namespace, name)
    }

    fn secret(&self, namespace: &str, name: &str) -> Option<Secret> {
        let with_certificate = self.secrets.as_ref().and_then(|all| all.get(namespace, name));
        with_certificate.or_else(|| self.auth_secrets.lock().get(namespace, name))
    }
}

impl Caches {
    fn new(informers: &Informers, dirty: &Arc<Dirty>) -> Self {
        let ingresses = informers.of::<Ingress>();
        let classes = informers.of::<IngressClass>();
        let services = informers.of::<Service>();
        let slices = informers.of::<EndpointSlice>();
        let note = Arc::clone(dirty);
        ingresses.on_change(move |_| note.routes());
        let note = Arc::clone(dirty);
        classes.on_change(move |_| note.routes());
        let note = Arc::clone(dirty);
        services.on_change(move |_| note.routes());
        slices.add_index(BY_SERVICE, service_index);
        let note = Arc::clone(dirty);
        slices.on_change(move |change| {
            if let Some((namespace, name)) = service_of(change.object()) {
                note.service(namespace, name);
            }
        });
        Self { ingresses, classes, services, slices, secrets: None, auth_secrets: Arc::default() }
    }

    async fn synced(&self) {
        tokio::join!(
            self.ingresses.synced(),
            self.classes.synced(),
            self.services.synced(),
            self.slices.synced()
        );
    }

    fn slices_of(&self, namespace: &str, name: &str) -> Vec<EndpointSlice> {
        self.slices.by_index(BY_SERVICE, &format!("{namespace}/{name}"))
    }
}

struct Follower {
    caches: Caches,
    registry: BackendRegistry,
    http: Arc<Listener>,
    https: Arc<Listener>,
    certificates: Arc<CertificateStore>,
    /// For clients that name no known host.
    default: Arc<CertifiedKey>,
    dirty: Arc<Dirty>,
    /// Reads Secrets of type `kubernetes.io/tls`, and those with users of Ingresses.
    secrets: Informers,
    tasks: Tasks,
}

/// Serves the Ingresses of the cluster on this node until shutdown. `informers` belong to the
/// network (`system:kube-proxy`), `node` is the node, which may read the Secrets of type
/// `kubernetes.io/tls`.
///
/// # Errors
/// TLS cannot be set up. A port that is in use is reported and retried.
pub async fn run(
    config: Config,
    informers: Informers,
    node: Client,
    tasks: Tasks,
) -> Result<(), Error> {
    let dirty = Arc::new(Dirty::default());
    let caches = Caches::new(&informers, &dirty);
    let default = base::tasks::blocking(Certificates::self_signed).await??;
    let shutdown = tasks.shutdown().clone();
    let waiting = caches.clone();
    tokio::select! {
        () = waiting.synced() => {}
        () = shutdown.requested() => return Ok(()),
    }
    let listener = |public_port, tls| {
        Arc::new(Listener {
            public_port,
            routes: ArcSwap::from_pointee(Routes::new(WildcardLabels::One)),
            tls,
            proxies: Arc::clone(&config.proxies),
            tasks: tasks.clone(),
        })
    };
    let certificates = CertificateStore::new(Certificates::new(Some(Arc::clone(&default))));
    let mut follower = Follower {
        caches,
        registry: BackendRegistry::default(),
        http: listener(80, None),
        https: listener(443, Some(certificates.config()?)),
        certificates,
        default,
        dirty,
        secrets: Informers::new(node, tasks.clone()),
        tasks: tasks.clone(),
    };
    // Clients are served once the routes exist, so that a start answers none with 404.
    follower.dirty.routes();
    follower = follower.apply().await?;
    let path = config.handover;
    let handover = Arc::new(base::tasks::blocking(|| Handover::take(path)).await?);
    let (serving, mut stopped) = mpsc::channel(LISTENERS);
    for (listener, address) in [(&follower.http, config.http), (&follower.https, config.https)] {
        let (listener, serving, tasks) = (Arc::clone(listener), serving.clone(), tasks.clone());
        let inherited = handover.listener(address);
        tasks.clone().spawn(Kind::Critical, "ingress-listener", async move {
            if let Some(socket) = serve_at(listener, (address, inherited), tasks).await {
                // The receiver waits for the sockets once the process stops.
                drop(serving.send(socket).await);
            }
            Ok::<(), Infallible>(())
        });
    }
    handover.close_rest();
    drop(serving);
    loop {
        tokio::select! {
            () = follower.dirty.wake.notified() => {}
            () = shutdown.requested() => break,
        }
        base::clock::sleep(GATHER).await;
        follower = follower.apply().await?;
    }
    let mut sockets = Vec::new();
    while let Some(socket) = stopped.recv().await {
        sockets.extend(socket.into_std());
    }
    let left = base::tasks::blocking(move || handover.leave(&sockets)).await?;
    if let Err(error) = left {
        tracing::warn!(%error, "ingress: clients are refused until the next process listens");
    }
    Ok(())
}

/// Serves an inherited socket, or binds a port; a port in use is a problem of this node, not its
/// end. Returns the socket at shutdown.
async fn serve_at(
    listener: Arc<Listener>,
    (address, inherited): (SocketAddr, Option<TcpListener>),
    tasks: Tasks,
) -> Option<TcpListener> {
    let socket = match inherited {
        Some(socket) => socket,
        None => {
            let pauses = (Duration::from_secs(1), Duration::from_secs(60));
            let report = |error| tracing::warn!(%address, %error, "ingress: cannot listen");
            let bind = || TcpListener::bind(address);
            bind_when_free(bind, pauses, tasks.shutdown(), report).await?
        }
    };
    Some(serve(listener, socket).await)
}

impl Follower {
    /// Applies what has changed.
    async fn apply(mut self) -> Result<Self, Error> {
        let services = std::mem::take(&mut *self.dirty.services.lock());
        if self.dirty.routes.swap(false, Ordering::AcqRel) {
            self.watch_secrets().await;
            self.watch_auth_secrets().await;
            return Ok(base::tasks::blocking(move || {
                self.rebuild();
                self
            })
            .await?);
        }
        for (namespace, name) in services {
            let caches = &self.caches;
            self.registry.update(Some((&namespace, &name)), |n, s| caches.slices_of(n, s));
        }
        Ok(self)
    }

    /// Starts to read Secrets when an Ingress needs them.
    async fn watch_secrets(&mut self) {
        if self.caches.secrets.is_some() {
            return;
        }
        let has_tls = |ingress: &Ingress| {
            ingress.spec.as_ref().and_then(|s| s.tls.as_ref()).is_some_and(|tls| !tls.is_empty())
        };
        if !self.caches.ingresses.list("").iter().any(has_tls) {
            return;
        }
        let scope = Scope::all(gvr_of::<Secret>()).fields("type=kubernetes.io/tls");
        let secrets = self.secrets.scoped::<Secret>(scope);
        let note = Arc::clone(&self.dirty);
        secrets.on_change(move |_| note.routes());
        secrets.synced().await;
        self.caches.secrets = Some(secrets);
    }

    /// Follows the Secrets with users of Ingresses.
    async fn watch_auth_secrets(&mut self) {
        let classes = Classes::new(&self.caches.classes.list(""));
        let wanted = auth_secrets::wanted(&self.caches.ingresses.list(""), &classes);
        let note = Arc::clone(&self.dirty);
        // Taken out, because no lock is held while Secrets are read.
        let mut all = std::mem::take(&mut *self.caches.auth_secrets.lock());
        let from = (self.secrets.client(), &self.tasks);
        all.follow(&wanted, from, move || note.routes()).await;
        *self.caches.auth_secrets.lock() = all;
    }

    fn rebuild(&mut self) {
        let classes = Classes::new(&self.caches.classes.list(""));
        let ingresses = self.caches.ingresses.list("");
        let compiled = compile(ingresses, &classes, &self.caches, &mut self.registry);
        let Compiled { routes, certificates, problems } = compiled;
        for problem in problems {
            let (namespace, name) = (&problem.namespace, &problem.name);
            tracing::debug!(namespace, name, problem = problem.message, "ingress: not served");
        }
        let caches = &self.caches;
        self.registry.update(None, |namespace, name| caches.slices_of(namespace, name));
        let routes = Arc::new(routes);
        self.http.routes.store(Arc::clone(&routes));
        self.https.routes.store(routes);
        let mut hosts = Certificates::new(Some(Arc::clone(&self.default)));
        for (host, certificate) in &certificates {
            hosts.insert(host, certificate);
        }
        self.certificates.exchange(hosts);
    }
}
