//! Store, certificates and API server: what a cluster cannot be without.

use std::fs::File;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use api::schema::Schema;
use apiserver::authn::x509::Verifier;
use apiserver::connect::Nodes;
use apiserver::encryption::{Configured, Keys};
use apiserver::interfaces::{Connect, ExtraRoutes};
use apiserver::registry::lookup::Lookup;
use apiserver::registry::storage::Transformer;
use apiserver::security::Security;
use apiserver::webhook::{Callout, Services};
use apiserver::{ApiServer, Objects, User};
use base::pki::tls;
use base::{Kind, Tasks};
use cluster::certs::{Names, ServerCerts};
use cluster::join;
use cluster::join::files::{node_password, store_node_password};
use cluster::peers::PeerClient;
use cluster::token::files::{Error, TokenFiles};
use cluster::tunnel::{HeartbeatConfig, Tunnels};
use store::{Backend, Members};
use tokio::net::TcpListener;

use crate::certificates::Rotation;
use crate::error_catalogue::{
    BAD_VALUE, DATA_DIR, DATA_DIR_LOCKED, NAME_TAKEN, PORT_IN_USE, Refusal, SEALED_WITHOUT_KEY,
    SERVER_STOPPED, STORE_DAMAGED,
};
use crate::secrets_encrypt;
use crate::secrets_encrypt::{Place, Sealing};
use crate::server::adapters::BootstrapWriter;
use crate::server::config::Config;
use crate::server::datastore;
use crate::server::etcd::Listeners;
use crate::server::extra_routes::Parts;
use crate::server::kubeconfig::KubeconfigLock;
use crate::server::members;
use crate::server::members::join::{Entered, enter};
use crate::server::node_joins;
use crate::server::node_joins::Joining;
use crate::server::reach::{Connects, Reach};
use crate::server::reset;
use crate::server::store_identity::{self, StoreIdentity};

/// A running API server with what stands behind it.
pub(crate) struct ControlPlane {
    /// The API server.
    pub(crate) server: ApiServer,
    /// Its certificates.
    pub(crate) certs: Arc<ServerCerts>,
    /// The store.
    pub(crate) store: Arc<dyn Backend>,
    /// Its members.
    pub(crate) members: Arc<Members>,
    /// What the API server publishes about itself.
    pub(crate) published: apiserver::bootstrap::Settings,
    /// The bound address.
    pub(crate) address: std::net::SocketAddr,
    /// What machines join by.
    pub(crate) joining: Arc<Joining>,
    /// Tunnels of agents.
    pub(crate) tunnels: Tunnels,
    /// The way to nodes and pods; it has to be told of the nodes.
    pub(crate) reach: Arc<Reach>,
    /// Changes the keys of Secrets.
    pub(crate) sealing: Arc<Sealing>,
    /// Changes the CAs.
    pub(crate) rotation: Arc<Rotation>,
    /// The administrator's kubeconfig.
    pub(crate) kubeconfig: KubeconfigLock,
    /// Keeps other servers from the data directory.
    _lock: File,
}

/// Opens the store, binds the listener and serves. `store_tasks` is shut down behind everything that writes, `peer_tasks`
/// behind the store.
///
/// # Errors
/// A refusal that names port, path or damage; nothing is left running then that shutdown does not end.
pub(crate) async fn start(
    config: &Config,
    tasks: &Tasks,
    store_tasks: &Tasks,
    peer_tasks: &Tasks,
) -> Result<ControlPlane, Refusal> {
    let listener = TcpListener::bind(config.listen).await.map_err(|e| match e.kind() {
        std::io::ErrorKind::AddrInUse => PORT_IN_USE.refuse(format!("{} is in use", config.listen)),
        _ => PORT_IN_USE.refuse(format!("cannot listen on {}: {e}", config.listen)),
    })?;
    let address = listener.local_addr().map_err(|e| PORT_IN_USE.refuse(e))?;
    let etcd = Listeners::bind(config).await?;
    // Inherited by every connection: tunnels and watches over bad links.
    cluster::tunnel::socket::set_keepalive(&listener);
    crate::server::data_dir::check(&config.machine.data_dir)?;
    base::fs::create_dir(&config.machine.data_dir, 0o700).map_err(|e| DATA_DIR.refuse(e))?;
    // The store has a lock of its own; this one is for what stands beside it, and is taken before anything there is changed.
    let path = config.machine.data_dir.join("server");
    base::fs::create_dir(&path, 0o700).map_err(|e| DATA_DIR.refuse(e))?;
    let lock = crate::machine::lock(&path.join("lock"))?;
    let db = datastore::folder(config)?;
    let identity = StoreIdentity::open(config, &db)?;
    // Before anything reads a CA.
    match &identity {
        Some(own) if cluster::rotation::is_pending(&config.machine.data_dir) => {
            own.forget_files()?
        }
        Some(own) => own.check_files()?,
        None => {}
    }
    let changed = cluster::rotation::apply_pending(&config.machine.data_dir);
    let changed = changed.map_err(|e| DATA_DIR.refuse(e))?;
    if !changed.is_empty() {
        tracing::info!(files = changed.join(" "), "CAs and keys were changed");
    }
    let told = settings::ClusterSettings {
        servers: vec![std::net::SocketAddr::new(config.advertise, address.port()).to_string()],
        ..config.cluster.clone()
    };
    let entered = enter(config, told.clone(), address.port(), tasks.shutdown()).await?;
    let identity = match (identity, &entered) {
        (None, Some(entered)) => {
            Some(StoreIdentity::join(config, entered.store, entered.replaced_at)?)
        }
        (identity, _) => identity,
    };
    let certs = Arc::new(certificates(config, identity.as_ref())?);
    let join_tokens = token_files(config, &certs)?;
    // Secrets are sealed from the first write; the key file stands beside the certificates, and other servers ask for it.
    let keys = Keys::load_or_generate(&config.machine.data_dir.join("server/tls/encryption.keys"));
    let place = Place::new(Arc::new(keys.map_err(|e| DATA_DIR.refuse(e))?));
    let joined = entered.is_some();
    let (store, members, peers, calls) = open(
        config,
        &certs,
        (db, identity.as_ref()),
        entered,
        &place,
        [tasks, store_tasks, peer_tasks],
    )
    .await?;
    if let Some(identity) = &identity {
        identity.record_files()?;
    }
    secrets_encrypt::catch_up(&place.keys, &members, &calls, joined, tasks.shutdown()).await;
    let file = config.encryption.as_ref().map(|plan| plan.file.clone());
    let sealing = Sealing::new(&place, &store, &members, &calls, file, tasks.problems());
    let rotation = Rotation::new(config.machine.data_dir.clone(), &members, &calls);
    etcd.serve(config, &certs, &store, &members, tasks)?;
    // The first file outside the data directory: every port is bound.
    let kubeconfig = KubeconfigLock::default();
    kubeconfig.write(config, &certs, address.port())?;

    let schema = Schema::builtin();
    let bad = |why| BAD_VALUE.refuse_usage(format!("--kube-apiserver-arg: {why}"));
    let transformer: Arc<dyn Transformer> = match config.encryption.clone() {
        Some(plan) => {
            let keys = Arc::clone(&place.keys);
            Configured::start(plan, keys, tasks).await.map_err(bad)?
        }
        None => Arc::clone(&place.keys) as Arc<dyn Transformer>,
    };
    check_keys(config, &place.keys, &store, &*transformer).await?;
    let objects = Objects::new(Arc::clone(&store), Some(transformer), schema, tasks);
    let pace = if config.fast_node_loss { HeartbeatConfig::FAST } else { HeartbeatConfig::CALM };
    let tunnels = Tunnels::new(
        pace,
        join::digest(&told, certs.server_ca().cert_pem(), certs.client_ca().cert_pem()),
        tasks.clone(),
    );
    let reach = Reach::new(tunnels.clone());
    let settings = apiserver::security::Settings {
        issuer: crate::server::config::ISSUER.to_owned(),
        service_account_key: certs.service_account_key.clone(),
        address: std::net::SocketAddr::new(config.advertise, address.port()).to_string(),
        tokens: tokens(config)?,
        authentication: config.authentication.clone(),
        tolerations: apiserver::admission::pods::DefaultTolerationSeconds {
            not_ready: config.toleration_seconds.0,
            unreachable: config.toleration_seconds.1,
        },
        callout: callout(&objects, &reach, tasks),
        authorization: config.authorization.clone(),
        hardened: config.machine.hardened(),
    };
    let security = Security::new(&objects, settings).map_err(|e| DATA_DIR.refuse(e))?;
    security.authorization.check().await.map_err(bad)?;
    objects.storage().reach_webhooks(security.callout.clone());
    let server = build(config, &objects, &security, &certs, &reach, tasks)?;
    if let Some(plan) = config.audit.clone() {
        let audit = apiserver::audit::Audit::start(plan, store_tasks).await;
        server.audit(audit.map_err(bad)?);
    }
    if let Some(plan) = &config.spans {
        server.trace(apiserver::request_tracing::Tracer::start(plan, store_tasks));
    }
    security
        .follow(&objects, tasks)
        .await
        .map_err(|e| SERVER_STOPPED.refuse(format!("roles and bindings cannot be loaded: {e}")))?;
    let aggregation = apiserver::aggregator::Settings {
        callout: security.callout.clone(),
        certificate: Arc::clone(&certs.proxy_client),
    };
    server
        .aggregate(&aggregation)
        .await
        .map_err(|e| SERVER_STOPPED.refuse(format!("APIServices cannot be loaded: {e}")))?;
    let settings = apiserver::bootstrap::Settings {
        service_ip: config
            .cluster
            .service_cidrs
            .first()
            .and_then(|c| c.nth(1))
            .unwrap_or(config.advertise),
        service_cidrs: config.cluster.service_cidrs.iter().map(ToString::to_string).collect(),
        // Without a node here, agents answer it.
        // Without a node and without controllers this is an API server alone: nobody will ever answer names.
        cluster_dns: if config.agent || config.controllers {
            config.cluster.cluster_dns.clone()
        } else {
            Vec::new()
        },
        // Of several servers the leader publishes who answers.
        advertised: if members.list().len() > 1 { Vec::new() } else { vec![config.advertise] },
        port: address.port(),
        client_ca: certs.client_ca().cert_pem().to_owned(),
        request_header_ca: certs.request_header_ca().cert_pem().to_owned(),
        request_header_names: ServerCerts::proxy_names().iter().map(|n| (*n).to_owned()).collect(),
    };
    let writer = BootstrapWriter::new(server.clone());
    let written = apiserver::bootstrap::ensure(&writer, &settings).await;
    written.map_err(|e| {
        SERVER_STOPPED
            .refuse(format!("the objects that every cluster starts with cannot be written: {e}"))
    })?;
    server.control_flow().await.map_err(|e| {
        SERVER_STOPPED.refuse(format!("flow schemas and priority levels cannot be loaded: {e}"))
    })?;
    let published = settings;
    let settings = node_joins::Settings {
        store: node_joins::servers::Store {
            members: Arc::clone(&members),
            listener: peers,
            data_dir: config.machine.data_dir.clone(),
            replaced_at: identity.as_ref().map_or(0, |own| own.shown().replaced_at),
            port: address.port(),
            external: config.datastore.is_some(),
        },
        certs: Arc::clone(&certs),
        tokens: join_tokens,
        cluster: told,
    };
    let joining = Joining::new(settings, &server, tasks);
    let restored = reset::was_reset(&config.machine.data_dir);
    if config.agent {
        claim_own_name(config, &joining, restored).await?;
    }
    reset::forget(&config.machine.data_dir)?;
    let extra_routes: Vec<Arc<dyn ExtraRoutes>> =
        vec![Arc::clone(&joining) as Arc<dyn ExtraRoutes>, Arc::new(Connects(tunnels.clone()))];
    listen(&server, &certs, listener, extra_routes, tasks)?;
    Ok(ControlPlane {
        _lock: lock,
        kubeconfig,
        server,
        certs,
        store,
        members,
        published,
        address,
        joining,
        tunnels,
        reach,
        sealing,
        rotation,
    })
}

/// Saves keys that were generated for a store without sealed values.
///
/// # Errors
/// When the store has values that no key opens.
async fn check_keys(
    config: &Config,
    keys: &Keys,
    store: &Arc<dyn Backend>,
    transformer: &dyn Transformer,
) -> Result<(), Refusal> {
    let unopened = apiserver::encryption::rewrite::unopened(store, transformer).await;
    let unopened = unopened.map_err(|e| SERVER_STOPPED.refuse(format!("the store: {e}")))?;
    if let Some(unopened) = unopened {
        let file = keys.path().display();
        let state = if keys.is_unsaved() { "is missing" } else { "lacks a key" };
        let beside = match &config.encryption {
            Some(plan) => format!(", and {} has no provider for it", plan.file.display()),
            None => String::new(),
        };
        return Err(SEALED_WITHOUT_KEY.refuse(format!(
            "{file} {state}{beside}: {} cannot be decrypted: {}",
            unopened.key, unopened.why
        )));
    }
    keys.save().await.map_err(|e| DATA_DIR.refuse(e))
}

/// Opens the store, as a member of those that this server joins if it `entered` their cluster, and waits until it answers.
async fn open(
    config: &Config,
    certs: &ServerCerts,
    (db, identity): (PathBuf, Option<&StoreIdentity>),
    entered: Option<Entered<'_>>,
    place: &Arc<Place>,
    [tasks, store_tasks, peer_tasks]: [&Tasks; 3],
) -> Result<(Arc<dyn Backend>, Arc<Members>, Arc<members::Listener>, Arc<PeerClient>), Refusal> {
    let mut settings = store::Config::new(db);
    settings.cluster = identity.map(StoreIdentity::store);
    settings.record = identity.map(StoreIdentity::file);
    settings.exists = identity.is_some_and(|own| own.exists);
    settings.quota = Some(config.etcd_quota);
    let (seat, calls) = members::seat(config, certs, entered.is_some(), peer_tasks)?;
    let address = seat.address.clone();
    let opened = store::open_member(settings, seat, store_tasks).await;
    let (store, all) = opened.map_err(|e| refusal_of(&e))?;
    let listener = Arc::new(members::Listener::new(config, certs, &all, place, peer_tasks)?);
    if config.cluster_init || entered.is_some() || all.list().len() > 1 {
        listener.ensure().await?;
    }
    let shutdown = tasks.shutdown();
    if let Some(entered) = entered {
        entered.become_member(&all, &address, shutdown).await?;
    }
    let answering = members::until_answering(&*store, shutdown).await;
    answering.map_err(|e| SERVER_STOPPED.refuse(format!("the store does not answer: {e}")))?;
    let problems = tasks.problems().clone();
    let telling = members::tell_address(Arc::clone(&all), address, problems, shutdown.clone());
    tasks.spawn(Kind::Request, "member address", telling);
    let store = match &config.datastore {
        Some(endpoint) => datastore::open(endpoint, config, all.id(), store_tasks).await?,
        None => store,
    };
    let promoting = members::promote(Arc::clone(&all), shutdown.clone());
    tasks.spawn(Kind::Critical, "voters", promoting);
    Ok((store, all, listener, calls))
}

fn token_files(config: &Config, certs: &ServerCerts) -> Result<TokenFiles, Refusal> {
    let files = TokenFiles::new(&config.machine.data_dir);
    let (token, agent) = (config.token.as_ref(), config.agent_token.as_ref());
    let notices =
        files.ensure(certs.server_ca().cert_pem(), token, agent).map_err(|e| match e {
            Error::Differs(_) | Error::Weak(_) => BAD_VALUE.refuse_usage(format!("the token: {e}")),
            Error::Io(_) | Error::Content { .. } => DATA_DIR.refuse(e),
        })?;
    for notice in notices {
        tracing::warn!("{notice}");
    }
    Ok(files)
}

/// The name of this machine's node is its own, before any other machine may ask for it.
async fn claim_own_name(config: &Config, joining: &Joining, restored: bool) -> Result<(), Refusal> {
    let (directory, node) = (config.machine.directory(), &config.machine.node_name);
    if restored {
        joining.free_own(node).await.map_err(|e| NAME_TAKEN.refuse(e))?;
    }
    let password = node_password(&directory).map_err(|e| DATA_DIR.refuse(e))?;
    store_node_password(&directory, &password).map_err(|e| DATA_DIR.refuse(e))?;
    joining.claim_own(node, &password).await.map_err(|e| NAME_TAKEN.refuse(e))
}

fn tokens(config: &Config) -> Result<Vec<(String, User)>, Refusal> {
    let Some(path) = &config.token_auth_file else { return Ok(Vec::new()) };
    let bad = |why: String| {
        BAD_VALUE.refuse_usage(format!("--token-auth-file={}: {why}", path.display()))
    };
    let text = std::fs::read_to_string(path).map_err(|e| bad(e.to_string()))?;
    apiserver::authn::static_token::parse(&text).map_err(bad)
}

fn refusal_of(error: &store::OpenError) -> Refusal {
    if let Some(refusal) = store_identity::refusal_of(error) {
        return refusal;
    }
    let text = error.to_string();
    match error {
        store::OpenError::Locked { .. } => DATA_DIR_LOCKED.refuse(text),
        store::OpenError::Corrupt { .. } => STORE_DAMAGED.refuse(text),
        _ => DATA_DIR.refuse(text),
    }
}

fn certificates(config: &Config, identity: Option<&StoreIdentity>) -> Result<ServerCerts, Refusal> {
    let (ips, dns): (Vec<&String>, Vec<&String>) =
        config.tls_san.iter().partition(|n| n.parse::<IpAddr>().is_ok());
    let mut all_ips: Vec<IpAddr> = ips.into_iter().filter_map(|ip| ip.parse().ok()).collect();
    all_ips.extend(config.machine.node_ips.iter().copied().chain([config.advertise]));
    let mut names: Vec<String> = dns.into_iter().cloned().collect();
    names.push(config.machine.node_name.clone());
    let names = Names {
        dns: names,
        ips: all_ips,
        service_ips: config.cluster.service_cidrs.iter().filter_map(|c| c.nth(1)).collect(),
        cluster_domain: config.cluster.cluster_domain.clone(),
        store: identity.map(StoreIdentity::shown),
    };
    cluster::certs::ensure(&config.machine.data_dir, &names).map_err(|e| DATA_DIR.refuse(e))
}

fn build(
    config: &Config,
    objects: &Arc<Objects>,
    security: &Security,
    certs: &ServerCerts,
    reach: &Arc<Reach>,
    tasks: &Tasks,
) -> Result<ApiServer, Refusal> {
    let parts = security.parts(objects, Some(connections(objects, certs, reach, tasks)?));
    let settings = apiserver::Config {
        product_version: env!("CARGO_PKG_VERSION").to_owned(),
        service_cidrs: config.cluster.service_cidrs.iter().map(ToString::to_string).collect(),
        node_ports: config.node_ports,
        flow: config.flow,
    };
    apiserver::build(settings, parts, tasks.clone()).map_err(|e| SERVER_STOPPED.refuse(e))
}

/// The way to webhooks.
fn callout(objects: &Arc<Objects>, reach: &Arc<Reach>, tasks: &Tasks) -> Callout {
    let lookup: Arc<dyn Lookup> = Arc::clone(objects) as Arc<dyn Lookup>;
    let services = Services::new(lookup, Arc::clone(reach) as Arc<dyn base::io::Dial>);
    Callout { reach: Arc::new(services), tasks: tasks.clone() }
}

/// The way to kubelets, pods and services.
fn connections(
    objects: &Arc<Objects>,
    certs: &ServerCerts,
    reach: &Arc<Reach>,
    tasks: &Tasks,
) -> Result<Arc<dyn Connect>, Refusal> {
    let ca = certs.server_ca().bundle();
    let client = tls::client(&ca, Some(Arc::clone(&certs.kubelet_client)), &["http/1.1"])
        .map_err(|e| DATA_DIR.refuse(e))?;
    let lookup: Arc<dyn Lookup> = Arc::clone(objects) as Arc<dyn Lookup>;
    let dial: Arc<dyn base::io::Dial> = Arc::clone(reach) as _;
    let nodes = Nodes::new(lookup, Arc::new(client), dial, tasks.clone())
        .map_err(|e| SERVER_STOPPED.refuse(e))?;
    Ok(Arc::new(nodes))
}

fn listen(
    server: &ApiServer,
    certs: &Arc<ServerCerts>,
    listener: TcpListener,
    extra_routes: Vec<Arc<dyn ExtraRoutes>>,
    tasks: &Tasks,
) -> Result<(), Refusal> {
    let client_ca = certs.client_ca().bundle();
    let proxy_ca = certs.request_header_ca().bundle();
    let hints = [client_ca.clone(), proxy_ca.clone()].concat();
    let config = tls::server(Arc::clone(&certs.serving), &hints, &["h2", "http/1.1"])
        .map_err(|e| DATA_DIR.refuse(e))?;
    let verifier = Verifier::new(&client_ca, &proxy_ca, &ServerCerts::proxy_names())
        .map_err(|e| DATA_DIR.refuse(e))?;
    let (server, verifier) = (server.clone(), Arc::new(verifier));
    tasks.spawn(Kind::Critical, "https", async move {
        let extra_routes = Arc::new(Parts(extra_routes));
        server.serve(listener, Arc::new(config), Some(verifier), Some(extra_routes)).await;
        Ok::<(), std::convert::Infallible>(())
    });
    Ok(())
}
