//! `kube-lite server`: starts the control plane, what runs on it, and this machine's node; waits
//! for the end and stops everything in order.

mod bootstrap_writer;
pub mod config;
mod control_plane;
pub(crate) mod data_dir;
mod datastore;
mod etcd;
mod fast_loss;
mod in_process;
mod kubeconfig;
mod leader;
mod manifests;
mod members;
mod node;
mod node_joins;
mod node_roles;
mod reach;
mod renewal;
mod reserved_ports;
pub mod reset;
mod resource_metrics;
mod stages;
mod static_files;
pub mod status;
pub(crate) mod store_identity;
mod supervisor_api;
mod supervisor_metrics;
mod token_uses;
mod vertical_autoscaler;
mod virtual_addresses;

use std::sync::{Arc, OnceLock};

use apiserver::User;
use base::Tasks;
use client::{EventRecorder, Informers};

use crate::certificates;
use crate::error_catalogue::{CommandError, SERVER_STOPPED};
use crate::machine::{Clients, NodeClaim};
use crate::process::end_reason::{self, EndReason};
use crate::secrets_encrypt;
use crate::snapshots::{self, SnapshotObjects, Snapshots};
use config::Config;
use control_plane::ControlPlane;
use in_process::ClientMaker;
use leader::{APISERVER_AGENT, MANAGER, MANAGER_AGENT};
use stages::TaskSets;
pub(crate) use supervisor_api::ADDRESS_LEASES_PATH;
use virtual_addresses::ClusterServers;

/// Upstream's user agents of the two parts of a node.
const KUBELET_AGENT: &str = "kubelet";
const PROXY_AGENT: &str = "kube-proxy";

/// Description of the container runtime, set once it answers.
type RuntimeDescription = Arc<OnceLock<String>>;

/// Runs until SIGTERM, SIGINT or the failure of a critical task.
///
/// # Errors
/// Why the server could not start, or which component failed.
pub async fn run(config: Config) -> Result<(), CommandError> {
    let started = base::clock::now();
    let claim = if config.agent {
        config.machine.check()?;
        Some(config.machine.claim()?)
    } else {
        None
    };
    let tasks = TaskSets::new();
    crate::process::allocator::trim_after_bursts(&tasks.api);
    let outcome = match control_plane::start(&config, &tasks).await {
        Ok(plane) => {
            tracing::info!(address = %plane.address, took = ?started.elapsed(), "API serving");
            start_components(&config, claim.as_ref(), &Arc::new(plane), &tasks.api)
        }
        Err(command_error) => Err(command_error),
    };
    if outcome.is_ok() {
        tokio::select! {
            reason = end_reason::wait_for_signal() => match reason {
                EndReason::Stop => tracing::info!("server: stopping; pods keep running"),
                EndReason::PowerOff => config.machine.power.stop_pods().await,
            },
            () = tasks.shutdown_requested() => {}
        }
    }
    tasks.drain().await;
    outcome?;
    tasks.fault().map_or(Ok(()), |fault| Err(SERVER_STOPPED.error(fault)))
}

/// Starts everything that needs the API: control sockets, followers of Nodes, controllers,
/// scheduler, this machine's node and the renewal of certificates.
fn start_components(
    config: &Config,
    claim: Option<&NodeClaim>,
    plane: &Arc<ControlPlane>,
    tasks: &Tasks,
) -> Result<(), CommandError> {
    let runtime = RuntimeDescription::default();
    let clients = ClientMaker::new(&plane.server, tasks);
    serve_control_sockets(config, plane, &clients, &runtime, tasks)?;
    let manager = User::authenticated(MANAGER, &[]);
    let informers = Informers::new(clients.client(manager, MANAGER_AGENT), tasks.clone());
    follow_nodes(config, plane, &clients, &informers, tasks);
    if let Some(store) = &plane.resource_metrics {
        let (store, connections) = (Arc::clone(store), &plane.connections);
        resource_metrics::start(config, store, connections, &informers, tasks);
    }
    supervisor_metrics::start(config, &plane.server, &plane.connections, &informers);
    leader::start(config, plane, tasks)?;
    manifests::start(config, &clients, tasks);
    plane.joins.follow(&informers, tasks);
    let lease_servers = ClusterServers::new(&plane.address_leases, &plane.peer_servers);
    let node = match claim {
        Some(claim) => {
            let servers = Arc::clone(&lease_servers);
            Some(start_node(config, claim, plane, (&clients, servers), runtime, tasks)?)
        }
        None => None,
    };
    let own = node.as_ref().map(|(_, addresses)| addresses.clone());
    let own = own.unwrap_or_else(|| config.machine.addresses().subscribe());
    virtual_addresses::hold_api_vip(config, lease_servers, own, tasks);
    renewal::start(config, plane, node, tasks);
    Ok(())
}

/// The sockets of `kube-lite status`, `etcd-snapshot`, `certificate` and `secrets-encrypt`.
fn serve_control_sockets(
    config: &Config,
    plane: &Arc<ControlPlane>,
    clients: &ClientMaker,
    runtime: &RuntimeDescription,
    tasks: &Tasks,
) -> Result<(), CommandError> {
    let data_dir = &config.machine.data_dir;
    let node_client = config.agent.then(|| clients.client(node_user(config), KUBELET_AGENT));
    status::serve(config, plane, Arc::clone(runtime), node_client, tasks)?;
    let user = User::authenticated(snapshots::USER, &[]);
    let client = clients.client(user, snapshots::AGENT);
    let node = &config.snapshots.node;
    let events = EventRecorder::new(client.clone(), snapshots::AGENT, node, tasks);
    let objects = SnapshotObjects::new(client.clone(), events, node);
    let snapshots = Snapshots::new(&plane.store, config.snapshots.clone(), client, objects);
    if config.agent || config.controllers {
        snapshots.start(tasks);
    }
    snapshots::serve(data_dir, Arc::clone(&snapshots), tasks)?;
    snapshots::follow(&snapshots, tasks);
    certificates::serve(data_dir, Arc::clone(&plane.ca_rotation), tasks)?;
    secrets_encrypt::serve(data_dir, Arc::clone(&plane.secrets_encryption), tasks)
}

/// Follows Nodes: their addresses, the members of the store among them, and this server's roles.
fn follow_nodes(
    config: &Config,
    plane: &ControlPlane,
    clients: &ClientMaker,
    informers: &Informers,
    tasks: &Tasks,
) {
    plane.dialer.follow(informers);
    let own = config.agent.then(|| members::nodes::OwnNode {
        name: config.machine.node_name.clone(),
        client: clients.client(node_user(config), KUBELET_AGENT),
    });
    members::nodes::follow(&plane.members, informers, own, tasks);
    if config.agent {
        let (name, embedded) = (config.machine.node_name.clone(), config.datastore.is_none());
        let client = clients.client(User::apiserver(), APISERVER_AGENT);
        node_roles::follow(name, embedded, client, informers, tasks);
    }
}

/// Starts this machine's node; returns its certificate and its addresses for renewal.
fn start_node(
    config: &Config,
    claim: &NodeClaim,
    plane: &ControlPlane,
    (clients, lease_servers): (&ClientMaker, Arc<ClusterServers>),
    runtime: RuntimeDescription,
    tasks: &Tasks,
) -> Result<(renewal::NodeCert, certificates::renewal::Addresses), CommandError> {
    let proxy = User::authenticated("system:kube-proxy", &[]);
    let clients = Clients {
        node: clients.client(node_user(config), KUBELET_AGENT),
        network: clients.client(proxy, PROXY_AGENT),
        answering: tokio::sync::watch::channel(true).1,
        virtual_addresses: net::VirtualAddresses {
            servers: lease_servers,
            held: tokio::sync::watch::Sender::default(),
        },
        api_vip: config.api_vip,
    };
    let (tls, cert) = node::tls(config, plane)?;
    let peers = node::peer_tls(plane)?;
    let sender = config.machine.addresses();
    let addresses = sender.subscribe();
    let kubelet_api = config.machine.kubelet_api(claim, tls, peers);
    let settings = config.settings_for_nodes(plane.address.port());
    config.machine.start(kubelet_api, &settings, clients, runtime, sender, tasks);
    Ok((cert, addresses))
}

/// The user of this machine's node.
fn node_user(config: &Config) -> User {
    let name = format!("system:node:{}", config.machine.node_name);
    User::authenticated(&name, &["system:nodes"])
}
