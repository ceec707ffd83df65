//! Stage `listen`: the API port starts to answer, for clients and for machines that join.

use std::path::Path;
use std::sync::Arc;

use apiserver::ApiServer;
use apiserver::authn::x509::Verifier;
use base::pki::tls;
use base::{Kind, Tasks};
use cluster::certs::ServerCerts;
use cluster::join::files::{node_password, store_node_password};
use cluster::tunnel::Tunnels;
use settings::ClusterSettings;
use tokio::net::TcpListener;

use super::{Certificates, OpenStore};
use crate::error_catalogue::{CommandError, DATA_DIR, NAME_TAKEN};
use crate::server::config::Config;
use crate::server::node_joins::{self, JoinService};
use crate::server::reset;
use crate::server::static_files::{self, StaticFiles};
use crate::server::store_identity::StoreIdentity;
use crate::server::supervisor_api::SupervisorApi;
use crate::server::virtual_addresses::AddressLeases;

/// Creates the service that joins machines, and claims the name of this machine's own node before
/// another machine can ask for it. `port` is the bound port of the API.
///
/// # Errors
/// Another machine has the name of this node.
pub(crate) async fn accept_joins(
    config: &Config,
    cluster: ClusterSettings,
    certificates: Certificates,
    identity: Option<&StoreIdentity>,
    store: &OpenStore,
    (server, port): (&ApiServer, u16),
    tasks: &Tasks,
) -> Result<Arc<JoinService>, CommandError> {
    let settings = node_joins::Settings {
        store: node_joins::servers::MemberAdmission {
            members: Arc::clone(&store.members),
            listener: Arc::clone(&store.peer_listener),
            data_dir: config.machine.data_dir.clone(),
            replaced_at: identity.map_or(0, |own| own.certificate_id().replaced_at),
            port: config.advertised_port(port),
            external: config.datastore.is_some(),
        },
        certs: certificates.certs,
        tokens: certificates.tokens,
        cluster,
    };
    let joins = JoinService::new(settings, server, tasks);
    let was_reset = reset::was_reset(&config.machine.data_dir);
    if config.agent {
        claim_own_name(config, &joins, was_reset).await?;
    }
    reset::forget(&config.machine.data_dir)?;
    Ok(joins)
}

async fn claim_own_name(
    config: &Config,
    joins: &JoinService,
    was_reset: bool,
) -> Result<(), CommandError> {
    let (directory, node) = (config.machine.directory(), &config.machine.node_name);
    if was_reset {
        joins.release_own_name(node).await.map_err(|e| NAME_TAKEN.error(e))?;
    }
    let password = node_password(&directory).map_err(|e| DATA_DIR.error(e))?;
    store_node_password(&directory, &password).map_err(|e| DATA_DIR.error(e))?;
    joins.claim_own_name(node, &password).await.map_err(|e| NAME_TAKEN.error(e))
}

/// Serves the API, joins, tunnels and static files on `listener` until shutdown.
///
/// # Errors
/// Certificates that cannot be used.
pub(crate) fn listen(
    server: &ApiServer,
    (certs, offer): (&ServerCerts, &tls::Offer),
    listener: TcpListener,
    joins: &Arc<JoinService>,
    (tunnels, leases): (&Tunnels, &Arc<AddressLeases>),
    data_dir: &Path,
    tasks: &Tasks,
) -> Result<(), CommandError> {
    let client_ca = certs.client_ca().bundle();
    let proxy_ca = certs.request_header_ca().bundle();
    let hints = [client_ca.clone(), proxy_ca.clone()].concat();
    let serving = Arc::clone(&certs.serving);
    let config = tls::offering_server(serving, &hints, &["h2", "http/1.1"], offer)
        .map_err(|e| DATA_DIR.error(e))?;
    let verifier = Verifier::new(&client_ca, &proxy_ca, &ServerCerts::proxy_names())
        .map_err(|e| DATA_DIR.error(e))?;
    let static_files = StaticFiles::new(&data_dir.join(static_files::FOLDER));
    let (joins, static_files) = (Arc::clone(joins), Arc::new(static_files));
    let routes = SupervisorApi::new(joins, tunnels.clone(), static_files, Arc::clone(leases));
    let routes = Arc::new(routes);
    let (server, verifier) = (server.clone(), Arc::new(verifier));
    tasks.spawn(Kind::Critical, "https", async move {
        server.serve(listener, Arc::new(config), Some(verifier), Some(routes)).await;
        Ok::<(), std::convert::Infallible>(())
    });
    Ok(())
}
