//! The control plane: store, certificates and API server, started stage by stage.

use std::fs::File;
use std::net::SocketAddr;
use std::sync::Arc;

use apiserver::ApiServer;
use apiserver::connect::Nodes;
use cluster::certs::ServerCerts;
use cluster::tunnel::Tunnels;
use store::{Backend, Members};

use crate::certificates::CaRotation;
use crate::error_catalogue::CommandError;
use crate::peer_servers::PeerServers;
use crate::secrets_encrypt::SecretsEncryption;
use crate::server::config::Config;
use crate::server::kubeconfig::KubeconfigLock;
use crate::server::node_joins::JoinService;
use crate::server::reach::NodeDialer;
use crate::server::stages::{self, Bootstrapped, TaskSets};
use crate::server::virtual_addresses::AddressLeases;

/// A running API server and the parts that the rest of the server uses.
pub(crate) struct ControlPlane {
    /// The API server.
    pub(crate) server: ApiServer,
    /// CAs and certificates.
    pub(crate) certs: Arc<ServerCerts>,
    /// The store of the cluster's objects.
    pub(crate) store: Arc<dyn Backend>,
    /// Members of the embedded store.
    pub(crate) members: Arc<Members>,
    /// The other servers.
    pub(crate) peer_servers: PeerServers,
    /// Leases of virtual addresses.
    pub(crate) address_leases: Arc<AddressLeases>,
    /// What the bootstrap objects say about this server.
    pub(crate) published: Bootstrapped,
    /// The bound address of the API.
    pub(crate) address: SocketAddr,
    /// Joins nodes and servers.
    pub(crate) joins: Arc<JoinService>,
    /// Tunnels of agents.
    pub(crate) tunnels: Tunnels,
    /// Connects to nodes and pods; [`NodeDialer::follow`] tells it the addresses of the nodes.
    pub(crate) dialer: Arc<NodeDialer>,
    /// Sends requests to kubelets.
    pub(crate) connections: Arc<Nodes>,
    /// Usages of nodes and pods, if the resource metrics API is served.
    pub(crate) resource_metrics: Option<Arc<resource_metrics::Store>>,
    /// Changes the keys of encryption at rest.
    pub(crate) secrets_encryption: Arc<SecretsEncryption>,
    /// Changes the CAs.
    pub(crate) ca_rotation: Arc<CaRotation>,
    /// The administrator's kubeconfig.
    pub(crate) kubeconfig: KubeconfigLock,
    /// Keeps other servers out of the data directory.
    _lock: File,
}

/// Starts the control plane.
///
/// # Errors
/// An error that names the port, path or damage. Everything that was started by then ends with
/// `tasks`.
pub(crate) async fn start(config: &Config, tasks: &TaskSets) -> Result<ControlPlane, CommandError> {
    let (api, ports) = (&tasks.api, stages::bind_ports(config).await?);
    let (address, port) = (ports.address, ports.address.port());
    let directory = stages::open_directory(config)?;
    let membership = stages::join_cluster(config, directory.identity, address, api).await?;
    let identity = membership.identity.as_ref();
    let certificates = stages::load_certificates(config, identity)?;
    let certs = Arc::clone(&certificates.certs);
    let (db, joined) = (directory.db, membership.joined);
    let store = stages::open_store(config, db, identity, joined, &certificates, tasks).await?;
    ports.etcd.serve(config, &certs, &store.backend, &store.members, api)?;
    // The first file outside the data directory; every port is bound by now.
    let kubeconfig = KubeconfigLock::default();
    kubeconfig.write(config, &certs, port)?;
    let layer =
        stages::serve_objects(config, &certificates, &membership.settings, &store.backend, api)
            .await?;
    let security = stages::start_security(config, &certs, &layer, port, api).await?;
    let connections = stages::connections(&layer, &certs, api)?;
    let resource_metrics = config.resource_metrics.then(Arc::default);
    let server = stages::build_api_server(
        config,
        &certs,
        &layer,
        security,
        &connections,
        resource_metrics.as_ref(),
        tasks,
    )
    .await?;
    let members = &store.members;
    let published = stages::write_bootstrap_objects(config, &certs, members, &server, port).await?;
    let joins = stages::accept_joins(
        config,
        membership.settings,
        certificates,
        identity,
        &store,
        (&server, port),
        api,
    )
    .await?;
    stages::listen(
        &server,
        (&certs, &config.apiserver.offer),
        ports.api,
        &joins,
        (&layer.tunnels, &store.address_leases),
        &config.machine.data_dir,
        api,
    )?;
    Ok(ControlPlane {
        server,
        certs,
        store: store.backend,
        members: store.members,
        peer_servers: store.peer_servers,
        address_leases: store.address_leases,
        published,
        address,
        joins,
        tunnels: layer.tunnels,
        dialer: layer.dialer,
        connections,
        resource_metrics,
        secrets_encryption: store.secrets_encryption,
        ca_rotation: store.ca_rotation,
        kubeconfig,
        _lock: directory.lock,
    })
}
