//! `kube-lite agent`: joins a cluster at its first start, connects to its servers, runs the node,
//! and waits for the end.

pub mod config;
mod first_join;
mod link;
mod renewal;
mod status;
mod store_identity;
mod virtual_addresses;

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use api::k8s::api::core::v1::Pod;
use base::pki::reloadable_cert::LiveCert;
use base::pki::{tls, trust};
use base::{Shutdown, Tasks};
use client::{Client, OfflineTransport, Transform, gvr_of};
use cluster::join::files::Joined;

use crate::error_catalogue::{AGENT_STOPPED, BAD_CLOCK, CommandError, DATA_DIR, OTHER_CLUSTER};
use crate::k3s_metrics::K3sFamilies;
use crate::machine::{Clients, NodeClaim};
use crate::process::end_reason::{self, EndReason};
use crate::server::data_dir::check as check_owner;
use config::Config;
use link::Link;

/// How long the tasks may take to end after SIGTERM.
const GRACE: Duration = Duration::from_millis(700);

/// Runs until SIGTERM, SIGINT or the failure of a critical task.
///
/// # Errors
/// Why the agent could not join or start, or which component failed.
pub async fn run(config: Config) -> Result<(), CommandError> {
    let _lock = lock(&config)?;
    let claim = config.machine.claim()?;
    let tasks = Tasks::new(Shutdown::new());
    crate::process::allocator::trim_after_bursts(&tasks);
    let shutdown = tasks.shutdown().clone();
    let outcome = tokio::select! {
        outcome = start(&config, &claim, &tasks) => outcome,
        _ = end_reason::wait_for_signal() => {
            shutdown.request();
            Ok(())
        }
    };
    if outcome.is_ok() && !shutdown.is_requested() {
        tokio::select! {
            end = end_reason::wait_for_signal() => match end {
                EndReason::Stop => tracing::info!("agent: stopping; pods keep running"),
                EndReason::PowerOff => config.machine.power.stop_pods().await,
            },
            () = shutdown.requested() => {}
        }
    }
    shutdown.request();
    for name in tasks.drain(GRACE).await {
        tracing::warn!(task = name, "agent: task did not stop in time");
    }
    outcome?;
    tasks.fault().map_or(Ok(()), |fault| Err(AGENT_STOPPED.error(fault)))
}

/// User agents of the two parts of the node, and the folders of their caches.
const KUBELET: &str = "kubelet";
const PROXY: &str = "kube-proxy";

/// Locks the data directory, which must not belong to a server or another program.
fn lock(config: &Config) -> Result<File, CommandError> {
    let data_dir = &config.machine.data_dir;
    check_owner(data_dir)?;
    if data_dir.join("server/token").exists() {
        return Err(OTHER_CLUSTER.error(format!("{} belongs to a server", data_dir.display())));
    }
    let directory = config.machine.directory();
    for directory in [data_dir, &directory] {
        base::fs::create_dir(directory, 0o700).map_err(|e| DATA_DIR.error(e))?;
    }
    crate::machine::lock(&directory.join("lock"))
}

/// The certificates in use, which a renewal replaces.
#[derive(Clone)]
struct ReloadableCerts {
    kubelet_client: Arc<LiveCert>,
    kubelet_serving: Arc<LiveCert>,
    proxy_client: Arc<LiveCert>,
    /// The CA and store that servers must prove.
    servers: Arc<trust::Servers>,
    /// The CA that clients of the kubelet API must prove.
    clients: Arc<trust::Clients>,
}

impl ReloadableCerts {
    fn new(joined: &Joined) -> Result<Self, CommandError> {
        let live = |leaf| LiveCert::new(leaf).map_err(|e| DATA_DIR.error(e));
        Ok(Self {
            kubelet_client: live(&joined.kubelet_client)?,
            kubelet_serving: live(&joined.kubelet_serving)?,
            proxy_client: live(&joined.proxy_client)?,
            servers: trust::Servers::new(&joined.server_ca).map_err(|e| DATA_DIR.error(e))?,
            clients: trust::Clients::new(&joined.client_ca).map_err(|e| DATA_DIR.error(e))?,
        })
    }
}

async fn start(config: &Config, claim: &NodeClaim, tasks: &Tasks) -> Result<(), CommandError> {
    let machine = &config.machine;
    let stored = first_join::load_joined(config)?;
    // A machine without a hardware clock starts in the past. An agent that has joined starts its
    // pods all the same.
    let ignored = if stored.is_some() { &[BAD_CLOCK][..] } else { &[] };
    machine.check_except(ignored)?;
    let (joined, is_new) = match stored {
        Some(joined) => (joined, false),
        None => (first_join::join(config, tasks.shutdown()).await?, true),
    };
    let link = Link::new(config, &joined)?;
    let certs = ReloadableCerts::new(&joined)?;
    // Before the first connection.
    store_identity::follow(machine.directory(), &certs.servers, tasks)
        .map_err(|e| DATA_DIR.error(e))?;
    let network = link.client(&certs.servers, &certs.proxy_client, PROXY)?;
    let clients = Clients {
        node: with_offline_cache(
            config,
            link.client(&certs.servers, &certs.kubelet_client, KUBELET)?,
            KUBELET,
            tasks,
        )?,
        network: with_offline_cache(config, with_trimmed_pods(&network, tasks), PROXY, tasks)?,
        answering: link.answering(),
        virtual_addresses: net::VirtualAddresses {
            servers: link.lease_servers(&certs, tasks)?,
            held: tokio::sync::watch::Sender::default(),
        },
        api_vip: None,
    };
    let serving = Arc::clone(&certs.kubelet_serving);
    let tls = tls::following_server(serving, Arc::clone(&certs.clients), &["http/1.1"])
        .map_err(|e| DATA_DIR.error(e))?;
    let cluster = joined.settings.clone();
    machine.check_backend(cluster.backend)?;
    machine.check_overlay(&cluster, None)?;
    let sender = machine.addresses();
    let addresses = sender.subscribe();
    link.start(config, &certs, &clients, addresses.clone(), tasks)?;
    let runtime = Arc::default();
    let servers = link.server_lines();
    let client = clients.node.clone();
    let held = clients.virtual_addresses.held.subscribe();
    let status_parts = (servers, held);
    status::serve(machine, cluster.backend, client, status_parts, Arc::clone(&runtime), tasks)?;
    let (servers, client) = (Arc::clone(&certs.servers), Arc::clone(&certs.kubelet_client));
    let peers = tls::following_client(servers, Some(client), &["http/1.1"])
        .map_err(|e| DATA_DIR.error(e))?;
    let mut kubelet_api = machine.kubelet_api(claim, Arc::new(tls), Arc::new(peers));
    if cluster.supervisor_metrics {
        let families = K3sFamilies::new(&machine.data_dir, Some(link.servers()));
        let port = link.server().port;
        kubelet_api.supervisor = machine.supervisor_metrics(port, Arc::new(families), tasks);
    }
    machine.start(kubelet_api, &cluster, clients, runtime, sender, tasks);
    renewal::start(config, joined, certs, addresses, &link, !is_new, tasks)
}

/// The same client, whose pods are reduced to the fields that network policies need: while there
/// are policies, it watches all pods of the cluster.
fn with_trimmed_pods(client: &Client, tasks: &Tasks) -> Client {
    let pods = gvr_of::<Pod>();
    let inner = Arc::clone(client.transport());
    Client::new(Arc::new(Transform::new(inner, pods, net::trimmed_pod, tasks)), PROXY)
}

/// The same client with a cache on disk, from which pods start when no server answers.
fn with_offline_cache(
    config: &Config,
    client: Client,
    agent: &str,
    tasks: &Tasks,
) -> Result<Client, CommandError> {
    let directory = config.machine.directory().join("known").join(agent);
    let inner = Arc::clone(client.transport());
    let transport =
        OfflineTransport::open(inner, &directory, tasks).map_err(|e| DATA_DIR.error(e))?;
    Ok(Client::new(Arc::new(transport), agent))
}
