//! The node of a server: the CAs in this process issue its certificates.

use std::sync::Arc;

use base::pki::reloadable_cert::LiveCert;
use base::pki::tls;

use crate::error_catalogue::{CommandError, DATA_DIR};
use crate::server::config::Config;
use crate::server::control_plane::ControlPlane;
use crate::server::renewal::NodeCert;

/// TLS of the kubelet API, and its certificate for renewal.
///
/// # Errors
/// Certificates that cannot be issued.
pub(crate) fn tls(
    config: &Config,
    plane: &ControlPlane,
) -> Result<(Arc<rustls::ServerConfig>, NodeCert), CommandError> {
    let (machine, directory) = (&config.machine, config.machine.directory());
    let (name, ips, additional) =
        (&machine.node_name, &machine.node_ips, machine.additional_names());
    let certs = plane
        .certs
        .ensure_node(&directory, name, ips, &additional, base::pki::now())
        .map_err(|e| DATA_DIR.error(e))?;
    let serving = LiveCert::new(&certs.serving).map_err(|e| DATA_DIR.error(e))?;
    let not_after = certs.serving.not_after.into();
    let addresses = parking_lot::Mutex::new(machine.node_ips.clone());
    let cert = NodeCert { live: Arc::clone(&serving), addresses, directory, not_after };
    let client_ca = plane.certs.client_ca().bundle();
    let tls =
        tls::verifying_server(serving, &client_ca, &["http/1.1"]).map_err(|e| DATA_DIR.error(e))?;
    Ok((Arc::new(tls), cert))
}

/// TLS to the kubelet APIs of other nodes, whose images this node pulls. This machine presents the
/// certificate with which its API server reaches kubelets.
///
/// # Errors
/// A CA that cannot be used.
pub(crate) fn peer_tls(plane: &ControlPlane) -> Result<Arc<rustls::ClientConfig>, CommandError> {
    let (ca, client) = (plane.certs.server_ca().bundle(), Arc::clone(&plane.certs.kubelet_client));
    let tls = tls::client(&ca, Some(client), &["http/1.1"]).map_err(|e| DATA_DIR.error(e))?;
    Ok(Arc::new(tls))
}
