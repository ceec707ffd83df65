//! The node of a server: its certificates come from the CAs in the same process.

use std::sync::Arc;

use base::pki::reloadable_cert::LiveCert;
use base::pki::tls;

use crate::error_catalogue::{DATA_DIR, Refusal};
use crate::server::config::Config;
use crate::server::control_plane::ControlPlane;
use crate::server::renewal::NodeCert;

/// TLS of the kubelet API, and the certificate in it, which has to be renewed some day.
///
/// # Errors
/// Certificates that cannot be made.
pub(crate) fn tls(
    config: &Config,
    plane: &ControlPlane,
) -> Result<(Arc<rustls::ServerConfig>, NodeCert), Refusal> {
    let (machine, directory) = (&config.machine, config.machine.directory());
    let certs = plane
        .certs
        .ensure_node(&directory, &machine.node_name, &machine.node_ips, base::pki::now())
        .map_err(|e| DATA_DIR.refuse(e))?;
    let serving = LiveCert::new(&certs.serving).map_err(|e| DATA_DIR.refuse(e))?;
    let not_after = certs.serving.not_after.into();
    let named = parking_lot::Mutex::new(machine.node_ips.clone());
    let cert = NodeCert { live: Arc::clone(&serving), named, directory, not_after };
    let client_ca = plane.certs.client_ca().bundle();
    let tls = tls::verifying_server(serving, &client_ca, &["http/1.1"])
        .map_err(|e| DATA_DIR.refuse(e))?;
    Ok((Arc::new(tls), cert))
}
