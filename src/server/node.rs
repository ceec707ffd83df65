//! The node of a server: its certificates come from the CAs in the same process.

use std::sync::Arc;

use base::pki::live::LiveCert;
use base::pki::tls;

use crate::error_catalogue::{DATA_DIR, Refusal};
use crate::machine::Facts;
use crate::server::config::Config;
use crate::server::control_plane::ControlPlane;
use crate::server::renewal::NodeCert;

/// What this cluster says to its nodes.
pub(crate) fn facts(config: &Config) -> Facts {
    Facts {
        cluster_cidrs: config.cluster_cidrs.clone(),
        service_cidrs: config.service_cidrs.clone(),
        cluster_dns: if config.dns { config.cluster_dns.clone() } else { Vec::new() },
        cluster_domain: config.cluster_domain.clone(),
        proxy: config.proxy,
        policies: config.network_policies,
        api_ports: vec![config.listen.port()],
        backend: config.machine.backend.unwrap_or_default(),
    }
}

/// The same as machines that join are told it; `port` is the API's.
pub(crate) fn told(config: &Config, port: u16) -> cluster::join::Facts {
    let facts = facts(config);
    cluster::join::Facts {
        cluster_cidrs: facts.cluster_cidrs.iter().map(ToString::to_string).collect(),
        service_cidrs: facts.service_cidrs.iter().map(ToString::to_string).collect(),
        cluster_dns: facts.cluster_dns,
        cluster_domain: facts.cluster_domain,
        proxy: facts.proxy,
        network_policies: facts.policies,
        backend: facts.backend.to_string(),
        servers: vec![std::net::SocketAddr::new(config.advertise, port).to_string()],
    }
}

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
