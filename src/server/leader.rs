//! Controllers and scheduler: they run on the server that leads the store.

use std::net::Ipv4Addr;
use std::sync::Arc;

use apiserver::User;
use base::{Kind, Tasks};
use client::Informers;
use client::proxy::ProxyRules;
use helm::fetch::{Network, OwnServer};

use crate::error_catalogue::{CommandError, DATA_DIR};
use crate::server::config::Config;
use crate::server::control_plane::ControlPlane;
use crate::server::fast_loss;
use crate::server::in_process::{ClientMaker, service_account};
use crate::server::members::leadership;

/// Upstream's users and user agents of the controllers and the scheduler.
pub(super) const MANAGER: &str = "system:kube-controller-manager";
pub(super) const MANAGER_AGENT: &str = "kube-controller-manager";
pub(super) const APISERVER_AGENT: &str = "kube-apiserver";
const SCHEDULER: &str = "system:kube-scheduler";
const SCHEDULER_AGENT: &str = "kube-scheduler";

/// Runs controllers and scheduler while this server leads.
///
/// # Errors
/// The key of service account tokens cannot be used.
pub(super) fn start(
    config: &Config,
    plane: &Arc<ControlPlane>,
    tasks: &Tasks,
) -> Result<(), CommandError> {
    let (config, plane, sign_token) = (config.clone(), Arc::clone(plane), sign_token(plane)?);
    let holder = format!("{}_{:016x}", config.machine.node_name, plane.members.id());
    let members = Arc::clone(&plane.members);
    let begin = move |tasks: &Tasks| {
        let clients = ClientMaker::new(&plane.server, tasks);
        let manager = || clients.client(User::authenticated(MANAGER, &[]), MANAGER_AGENT);
        let informers = Informers::new(manager(), tasks.clone());
        let hold_lease = |client, name| {
            let members = Arc::clone(&plane.members);
            leadership::hold_lease(client, name, holder.clone(), members, tasks);
        };
        if config.controllers {
            start_controllers(&config, &plane, &sign_token, &informers, tasks);
            hold_lease(manager(), MANAGER_AGENT);
        }
        let apiserver = clients.client(User::apiserver(), APISERVER_AGENT);
        controllers::legacy_token_tracking::start(tasks, &informers, apiserver.clone());
        controllers::autoregister::start(tasks, &informers, apiserver);
        if config.helm_controller {
            let user = User::authenticated(helm::controller::USER, &[]);
            let client = clients.client(user, helm::controller::AGENT);
            let proxies = config.proxies.with_exceptions(&config.cluster.no_proxy());
            let proxies = ProxyRules::Environment(proxies);
            let network = Network { own: own_server(&plane), proxies };
            helm::controller::start(network, client, &informers, tasks);
        }
        if config.controllers && config.cluster.ingress {
            let user = User::authenticated(ingress::controller::USER, &[]);
            let client = clients.client(user, ingress::controller::AGENT);
            ingress::controller::start(client, &informers, tasks);
            let user = User::authenticated(ingress::gateway::controller::USER, &[]);
            let client = clients.client(user, ingress::gateway::controller::AGENT);
            ingress::gateway::controller::start(client, &informers, tasks);
        }
        if config.vertical_autoscaler
            && let Some(usage) = &plane.resource_metrics
        {
            start_vertical_autoscaler(Arc::clone(usage), &clients, &informers, tasks);
        }
        if config.scheduler {
            let user = || User::authenticated(SCHEDULER, &[]);
            let client = clients.client(user(), SCHEDULER_AGENT);
            scheduler::start(&config.scheduling, client, &informers, tasks);
            hold_lease(clients.client(user(), SCHEDULER_AGENT), SCHEDULER_AGENT);
        }
        leadership::publish(&config, &plane, tasks);
    };
    let leading = leadership::run_while_leading(members, tasks.clone(), begin);
    tasks.spawn(Kind::Critical, "leader", leading);
    Ok(())
}

/// Starts the components of the vertical pod autoscaler.
fn start_vertical_autoscaler(
    usage: Arc<resource_metrics::Store>,
    clients: &ClientMaker,
    informers: &Informers,
    tasks: &Tasks,
) {
    use vertical_autoscaler::{Clients, recommender, updater};
    let client = |user, agent| clients.client(User::authenticated(user, &[]), agent);
    let clients = Clients {
        recommender: client(recommender::USER, recommender::AGENT),
        updater: client(updater::USER, updater::AGENT),
    };
    vertical_autoscaler::start(clients, usage, informers, tasks);
}

/// This API server, from which charts may be downloaded.
fn own_server(plane: &ControlPlane) -> OwnServer {
    let mut address = plane.address;
    if address.ip().is_unspecified() {
        address.set_ip(Ipv4Addr::LOCALHOST.into());
    }
    let ca = plane.certs.server_ca().cert_pem().to_owned();
    OwnServer { address: address.to_string(), ca }
}

/// The user that a controller acts as: its service account, but for the controller that upstream
/// runs as the whole manager, and for requests to kubelets. The API server makes the latter itself,
/// so that no service account has `nodes/proxy`.
fn controller_user(name: &str) -> User {
    match name {
        MANAGER_AGENT => User::authenticated(MANAGER, &[]),
        APISERVER_AGENT => User::apiserver(),
        name => service_account(name),
    }
}

/// Signs the tokens of service account Secrets with the key of all service account tokens.
fn sign_token(plane: &ControlPlane) -> Result<controllers::SignToken, CommandError> {
    let signer = apiserver::authn::secret_token::Signer::from_pem(&plane.certs.service_account_key)
        .map_err(|e| DATA_DIR.error(e))?;
    Ok(controllers::SignToken::new(move |namespace, account, uid, secret| {
        signer.sign(namespace, account, uid, secret).map_err(controllers::SigningError::new)
    }))
}

/// Signs CertificateSigningRequests: serving certificates by the server CA, client certificates by
/// the client CA.
fn sign_request(plane: &ControlPlane) -> controllers::SignRequest {
    let certs = Arc::clone(&plane.certs);
    controllers::SignRequest::new(move |signer, request, usages, valid| {
        let ca = match signer {
            controllers::Signer::KubeletServing => certs.server_ca(),
            controllers::Signer::Client | controllers::Signer::KubeletClient => certs.client_ca(),
        };
        ca.sign_csr(request, usages, valid, base::pki::now())
            .map_err(controllers::SigningError::new)
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
            fast_loss::start(plane.tunnels.presences(), config.peer_address, unreachable, tasks)
        }),
        tuning: config.tuning.clone(),
        lb_pool: config.cluster.lb_pool.clone(),
        reserved_ports: super::reserved_ports::reserved_ports(config),
        disabled: config.disabled_controllers.clone(),
    };
    let clients = ClientMaker::new(&plane.server, tasks);
    let client_for: controllers::ClientFor =
        Arc::new(move |name| clients.client(controller_user(name), name));
    controllers::start(&controllers::Context::new(
        tasks.clone(),
        informers.clone(),
        settings,
        client_for,
    ));
}
