//! Composition root of `kube-lite agent`: join or remember that it did, make clients, start the node, wait.

pub mod config;
mod first_join;
mod link;
mod renewal;
mod status;
mod store_identity;

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use api::k8s::api::core::v1::Pod;
use base::pki::reloadable_cert::LiveCert;
use base::pki::{tls, trust};
use base::{Shutdown, Tasks};
use client::{Client, OfflineTransport, Transform, gvr_of};
use cluster::join::files::Joined;

use crate::error_catalogue::{AGENT_STOPPED, BAD_CLOCK, DATA_DIR, OTHER_CLUSTER, Refusal};
use crate::machine::{Clients, NodeClaim};
use crate::process::end_reason;
use crate::process::end_reason::End;
use crate::server::data_dir::check as check_owner;
use config::Config;
use link::Link;

/// Everything must end within this time after SIGTERM.
const GRACE: Duration = Duration::from_millis(700);

/// Runs until SIGTERM, SIGINT or a fault.
///
/// # Errors
/// Why it could not join or start, or what made it stop.
pub async fn run(config: Config) -> Result<(), Refusal> {
    let _lock = lock(&config)?;
    let claim = config.machine.claim()?;
    let tasks = Tasks::new(Shutdown::new());
    crate::process::allocator::keep_small(&tasks);
    let shutdown = tasks.shutdown().clone();
    let outcome = tokio::select! {
        outcome = start(&config, &claim, &tasks) => outcome,
        _ = end_reason::asked_to_end() => {
            shutdown.request();
            Ok(())
        }
    };
    if outcome.is_ok() && !shutdown.is_requested() {
        tokio::select! {
            end = end_reason::asked_to_end() => match end {
                End::Stop => tracing::info!("stopping, pods go on"),
                End::PowerOff => config.machine.power.stop_pods().await,
            },
            () = shutdown.requested() => {}
        }
    }
    shutdown.request();
    for name in tasks.drain(GRACE).await {
        tracing::warn!(task = name, "did not stop in time");
    }
    outcome?;
    tasks.fault().map_or(Ok(()), |fault| Err(AGENT_STOPPED.refuse(fault)))
}

/// How the two parts of the node name themselves, and their memories.
const KUBELET: &str = "kubelet";
const PROXY: &str = "kube-proxy";

/// One agent works on a data directory, and it is nobody else's.
fn lock(config: &Config) -> Result<File, Refusal> {
    let data_dir = &config.machine.data_dir;
    check_owner(data_dir)?;
    if data_dir.join("server/token").exists() {
        return Err(OTHER_CLUSTER.refuse(format!("{} is of a server", data_dir.display())));
    }
    let directory = config.machine.directory();
    for directory in [data_dir, &directory] {
        base::fs::create_dir(directory, 0o700).map_err(|e| DATA_DIR.refuse(e))?;
    }
    crate::machine::lock(&directory.join("lock"))
}

/// The certificates in use; a renewal sets them anew.
#[derive(Clone)]
struct Lives {
    kubelet_client: Arc<LiveCert>,
    kubelet_serving: Arc<LiveCert>,
    proxy_client: Arc<LiveCert>,
    /// Who is believed to be a server, and who to be a client of one.
    servers: Arc<trust::Servers>,
    clients: Arc<trust::Clients>,
}

impl Lives {
    fn new(joined: &Joined) -> Result<Self, Refusal> {
        let live = |leaf| LiveCert::new(leaf).map_err(|e| DATA_DIR.refuse(e));
        Ok(Self {
            kubelet_client: live(&joined.kubelet_client)?,
            kubelet_serving: live(&joined.kubelet_serving)?,
            proxy_client: live(&joined.proxy_client)?,
            servers: trust::Servers::new(&joined.server_ca).map_err(|e| DATA_DIR.refuse(e))?,
            clients: trust::Clients::new(&joined.client_ca).map_err(|e| DATA_DIR.refuse(e))?,
        })
    }
}

async fn start(config: &Config, claim: &NodeClaim, tasks: &Tasks) -> Result<(), Refusal> {
    let machine = &config.machine;
    let remembered = first_join::remembered(config)?;
    // Without a clock of its own a machine starts in the past; who has joined needs no time to start its pods.
    let spared = if remembered.is_some() { &[BAD_CLOCK][..] } else { &[] };
    machine.check_but(spared)?;
    let (joined, fresh) = match remembered {
        Some(joined) => (joined, false),
        None => (first_join::join(config, tasks.shutdown()).await?, true),
    };
    let link = Link::new(config, &joined)?;
    let lives = Lives::new(&joined)?;
    // Before the first connection.
    store_identity::follow(machine.directory(), &lives.servers, tasks)
        .map_err(|e| DATA_DIR.refuse(e))?;
    let network = link.client(&lives.servers, &lives.proxy_client, PROXY)?;
    let clients = Clients {
        node: remember(
            config,
            link.client(&lives.servers, &lives.kubelet_client, KUBELET)?,
            KUBELET,
            tasks,
        )?,
        network: remember(config, trim(&network, tasks), PROXY, tasks)?,
        answering: link.answering(),
    };
    let serving = Arc::clone(&lives.kubelet_serving);
    let tls = tls::following_server(serving, Arc::clone(&lives.clients), &["http/1.1"])
        .map_err(|e| DATA_DIR.refuse(e))?;
    let cluster = joined.settings.clone();
    machine.check_backend(cluster.backend)?;
    let moves = machine.addresses();
    let addresses = moves.subscribe();
    link.start(config, &lives, &clients, addresses.clone(), tasks)?;
    let runtime = Arc::default();
    let known = link.known();
    let client = clients.node.clone();
    status::serve(machine, cluster.backend, client, known, Arc::clone(&runtime), tasks)?;
    let kubelet_api = machine.kubelet_api(claim, Arc::new(tls));
    machine.start(kubelet_api, &cluster, clients, runtime, moves, tasks);
    renewal::start(config, joined, lives, addresses, &link, !fresh, tasks)
}

/// The same client that keeps of pods what network policies need: while there are some, it knows those of the whole cluster.
fn trim(client: &Client, tasks: &Tasks) -> Client {
    let pods = gvr_of::<Pod>();
    let inner = Arc::clone(client.transport());
    Client::new(Arc::new(Transform::new(inner, pods, net::trimmed_pod, tasks)), PROXY)
}

/// The same client with a memory of its own: pods start from it when no server is there.
fn remember(
    config: &Config,
    client: Client,
    agent: &str,
    tasks: &Tasks,
) -> Result<Client, Refusal> {
    let directory = config.machine.directory().join("known").join(agent);
    let inner = Arc::clone(client.transport());
    let transport =
        OfflineTransport::open(inner, &directory, tasks).map_err(|e| DATA_DIR.refuse(e))?;
    Ok(Client::new(Arc::new(transport), agent))
}
