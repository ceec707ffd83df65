//! Composition root of `kube-lite server`: build, start, wait, drain.

pub mod adapters;
pub mod config;
mod control_plane;
pub(crate) mod data_dir;
mod datastore;
mod etcd;
mod extra_routes;
mod fast_loss;
mod in_process;
mod kubeconfig;
mod members;
mod node;
mod node_joins;
mod node_roles;
mod reach;
mod renewal;
pub mod reset;
pub mod status;
pub(crate) mod store_identity;

use std::sync::Arc;
use std::time::Duration;

use apiserver::{ApiServer, User};
use base::{Kind, Shutdown, Tasks};
use client::{Client, Informers};

use crate::certificates;
use crate::error_catalogue::{DATA_DIR, Refusal, SERVER_STOPPED};
use crate::machine::{Clients, NodeClaim};
use crate::process::end_reason;
use crate::process::end_reason::End;
use crate::snapshots::{self, Snapshots};
use config::Config;
use control_plane::ControlPlane;
use in_process::{InProcess, service_account};
use members::leadership;

/// Upstream's users of the controllers and the scheduler, and their names.
const MANAGER: &str = "system:kube-controller-manager";
const MANAGER_AGENT: &str = "kube-controller-manager";
const APISERVER_AGENT: &str = "kube-apiserver";
const SCHEDULER: &str = "system:kube-scheduler";
const SCHEDULER_AGENT: &str = "kube-scheduler";

/// Everything but the store must end within this time after SIGTERM; then the store has the same time again.
const GRACE: Duration = Duration::from_millis(700);

/// Runs until SIGTERM, SIGINT or a fault.
///
/// # Errors
/// Why it could not start, or what made it stop.
pub async fn run(config: Config) -> Result<(), Refusal> {
    let started = base::clock::now();
    let claim = if config.agent {
        config.machine.check()?;
        Some(config.machine.claim()?)
    } else {
        None
    };
    let tasks = Tasks::new(Shutdown::new());
    crate::process::allocator::keep_small(&tasks);
    // Ends after everything that writes.
    let store_tasks = Tasks::new(Shutdown::new());
    // Ends last: the store gives its lead away before it ends.
    let peer_tasks = Tasks::new(Shutdown::new());
    let shutdown = tasks.shutdown().clone();
    let faults = [&store_tasks, &peer_tasks].map(|stage| stage.shutdown().clone());
    let outcome = match control_plane::start(&config, &tasks, &store_tasks, &peer_tasks).await {
        Ok(plane) => {
            tracing::info!(address = %plane.address, took = ?started.elapsed(), "API serving");
            start_rest(&config, claim.as_ref(), &Arc::new(plane), &tasks)
        }
        Err(refusal) => Err(refusal),
    };
    if outcome.is_ok() {
        tokio::select! {
            end = end_reason::asked_to_end() => match end {
                End::Stop => tracing::info!("stopping, pods go on"),
                End::PowerOff => config.machine.power.stop_pods().await,
            },
            () = shutdown.requested() => {}
            () = faults[0].requested() => {}
            () = faults[1].requested() => {}
        }
    }
    let stages = [&tasks, &store_tasks, &peer_tasks];
    for stage in stages {
        stage.shutdown().request();
        for name in stage.drain(GRACE).await {
            tracing::warn!(task = name, "did not stop in time");
        }
    }
    outcome?;
    match stages.into_iter().find_map(Tasks::fault) {
        Some(fault) => Err(SERVER_STOPPED.refuse(fault)),
        None => Ok(()),
    }
}

fn start_rest(
    config: &Config,
    claim: Option<&NodeClaim>,
    plane: &Arc<ControlPlane>,
    tasks: &Tasks,
) -> Result<(), Refusal> {
    let runtime = Arc::default();
    let client_of = client_maker(plane, tasks);
    let node_user = || {
        let name = format!("system:node:{}", config.machine.node_name);
        User::authenticated(&name, &["system:nodes"])
    };
    let own = config.agent.then(|| client_of(node_user(), "kubelet"));
    status::serve(config, plane, Arc::clone(&runtime), own, tasks)?;
    let snapshots = Snapshots::new(&plane.store, config.snapshots.clone());
    snapshots::serve(&config.machine.data_dir, Arc::clone(&snapshots), tasks)?;
    snapshots::follow(&snapshots, tasks);
    certificates::serve(&config.machine.data_dir, Arc::clone(&plane.rotation), tasks)?;
    crate::secrets_encrypt::serve(&config.machine.data_dir, Arc::clone(&plane.sealing), tasks)?;
    let manager = User::authenticated(MANAGER, &[]);
    let informers = Informers::new(client_of(manager, MANAGER_AGENT), tasks.clone());
    plane.reach.follow(&informers);
    let own = config.agent.then(|| members::nodes::Own {
        name: config.machine.node_name.clone(),
        client: client_of(node_user(), "kubelet"),
    });
    members::nodes::follow(&plane.members, &informers, own, tasks);
    if config.agent {
        let (name, embedded) = (config.machine.node_name.clone(), config.datastore.is_none());
        let client = client_of(User::apiserver(), APISERVER_AGENT);
        node_roles::follow(name, embedded, client, &informers, tasks);
    }
    lead(config, plane, tasks)?;
    plane.joining.follow(&informers, tasks);
    let node_cert = if let Some(claim) = claim {
        let proxy = User::authenticated("system:kube-proxy", &[]);
        let clients = Clients {
            node: client_of(node_user(), "kubelet"),
            network: client_of(proxy, "kube-proxy"),
            answering: tokio::sync::watch::channel(true).1,
        };
        let (tls, cert) = node::tls(config, plane)?;
        let moves = config.machine.addresses();
        let addresses = moves.subscribe();
        let kubelet_api = config.machine.kubelet_api(claim, tls);
        config.machine.start(kubelet_api, &config.cluster, clients, runtime, moves, tasks);
        Some((cert, addresses))
    } else {
        None
    };
    renewal::start(config, plane, node_cert, tasks);
    Ok(())
}

/// Clients that act as a user through this server.
fn client_maker(plane: &ControlPlane, tasks: &Tasks) -> impl Fn(User, &str) -> Client + use<> {
    let (server, tasks) = (plane.server.clone(), tasks.clone());
    move |user: User, agent: &str| in_process_client(&server, user, agent, &tasks)
}

/// Runs controllers and scheduler while this server leads.
fn lead(config: &Config, plane: &Arc<ControlPlane>, tasks: &Tasks) -> Result<(), Refusal> {
    let (config, plane, sign_token) = (config.clone(), Arc::clone(plane), sign_token(plane)?);
    let holder = format!("{}_{:016x}", config.machine.node_name, plane.members.id());
    let members = Arc::clone(&plane.members);
    let begin = move |tasks: &Tasks| {
        let client_of = client_maker(&plane, tasks);
        let manager = || client_of(User::authenticated(MANAGER, &[]), MANAGER_AGENT);
        let informers = Informers::new(manager(), tasks.clone());
        let show = |client, name| {
            leadership::show(client, name, holder.clone(), Arc::clone(&plane.members), tasks);
        };
        if config.controllers {
            start_controllers(&config, &plane, &sign_token, &informers, tasks);
            show(manager(), MANAGER_AGENT);
        }
        let server = User::apiserver();
        controllers::autoregister::start(tasks, &informers, client_of(server, APISERVER_AGENT));
        if config.scheduler {
            let client = || client_of(User::authenticated(SCHEDULER, &[]), SCHEDULER_AGENT);
            scheduler::start(client(), &informers, tasks);
            show(client(), SCHEDULER_AGENT);
        }
        leadership::publish(&config, &plane, tasks);
    };
    tasks.spawn(Kind::Critical, "leader", leadership::follow(members, tasks.clone(), begin));
    Ok(())
}

/// Every controller acts as its service account, but for the one that upstream lets act as the whole, and for requests to
/// kubelets: the API server makes these itself, so that no service account holds `nodes/proxy`.
fn identity(name: &str) -> User {
    match name {
        MANAGER_AGENT => User::authenticated(MANAGER, &[]),
        APISERVER_AGENT => User::apiserver(),
        name => service_account(name),
    }
}

fn in_process_client(server: &ApiServer, user: User, agent: &str, tasks: &Tasks) -> Client {
    Client::new(Arc::new(InProcess::new(server.clone(), user, tasks.clone())), agent)
}

/// Signs the tokens of service-account Secrets with the key of all service-account tokens.
fn sign_token(plane: &ControlPlane) -> Result<controllers::SignToken, Refusal> {
    let signer = apiserver::authn::secret_token::Signer::from_pem(&plane.certs.service_account_key)
        .map_err(|e| DATA_DIR.refuse(e))?;
    Ok(controllers::SignToken::new(move |namespace, account, uid, secret| {
        signer.sign(namespace, account, uid, secret).map_err(controllers::SigningError::new)
    }))
}

/// Signs requests for certificates: what serves by the CA of servers, what shows a user by that of clients.
fn sign_request(plane: &ControlPlane) -> controllers::SignRequest {
    let certs = Arc::clone(&plane.certs);
    controllers::SignRequest::new(move |signer, asked, usages, valid| {
        let ca = match signer {
            controllers::Signer::KubeletServing => certs.server_ca(),
            controllers::Signer::Client | controllers::Signer::KubeletClient => certs.client_ca(),
        };
        ca.sign_csr(asked, usages, valid, base::pki::now()).map_err(controllers::SigningError::new)
    })
}

fn start_controllers(
    config: &Config,
    plane: &ControlPlane,
    sign_token: &controllers::SignToken,
    informers: &Informers,
    tasks: &Tasks,
) {
    let settings = controllers::Config {
        cluster_cidrs: config.cluster.cluster_cidrs.iter().map(ToString::to_string).collect(),
        service_cidrs: config.cluster.service_cidrs.iter().map(ToString::to_string).collect(),
        root_ca: plane.certs.server_ca().cert_pem().to_owned(),
        node_name: config.agent.then(|| config.machine.node_name.clone()),
        sign_token: sign_token.clone(),
        sign_request: sign_request(plane),
        quota_usage: apiserver::admission::quota::total_usage,
        fast_loss: config.fast_node_loss.then(|| {
            let (_, unreachable) = config.toleration_seconds;
            fast_loss::start(plane.tunnels.presences(), config.advertise, unreachable, tasks)
        }),
        disabled: if config.local_storage {
            Vec::new()
        } else {
            vec!["local-path-provisioner".into()]
        },
    };
    let (server, own) = (plane.server.clone(), tasks.clone());
    let client_for: controllers::ClientFor =
        Arc::new(move |name| in_process_client(&server, identity(name), name, &own));
    controllers::start(&controllers::Context::new(
        tasks.clone(),
        informers.clone(),
        settings,
        client_for,
    ));
}
