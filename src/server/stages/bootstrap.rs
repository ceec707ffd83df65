//! Stage `bootstrap`: the objects that every cluster starts with.

use apiserver::ApiServer;
use cluster::certs::ServerCerts;
use store::Members;

use crate::error_catalogue::{CommandError, SERVER_STOPPED};
use crate::server::bootstrap_writer::BootstrapWriter;
use crate::server::config::Config;

/// What the bootstrap objects say about this server; the leader publishes it again when the
/// addresses of the servers change.
pub(crate) type Bootstrapped = apiserver::bootstrap::Settings;

/// Writes the bootstrap objects and loads flow schemas and priority levels; `port` is the bound
/// port of the API.
///
/// # Errors
/// An object cannot be written or loaded.
pub(crate) async fn write_bootstrap_objects(
    config: &Config,
    certs: &ServerCerts,
    members: &Members,
    server: &ApiServer,
    port: u16,
) -> Result<Bootstrapped, CommandError> {
    let cluster = &config.cluster;
    let service_ip = cluster.service_cidrs.first().and_then(|cidr| cidr.nth(1));
    // Without a node here, nodes of agents run CoreDNS. Without a node and without controllers
    // this is an API server alone, and no pod of it ever starts.
    let has_dns = config.agent || config.controllers;
    let settings = Bootstrapped {
        service_ip: service_ip.unwrap_or(config.advertise),
        service_cidrs: cluster.service_cidrs.iter().map(ToString::to_string).collect(),
        cluster_dns: if has_dns { cluster.cluster_dns.clone() } else { Vec::new() },
        // With several servers the leader publishes the addresses of the responsive ones.
        advertised: if members.list().len() > 1 { Vec::new() } else { vec![config.advertise] },
        port: config.advertised_port(port),
        client_ca: certs.client_ca().cert_pem().to_owned(),
        request_header_ca: certs.request_header_ca().cert_pem().to_owned(),
        request_header_names: ServerCerts::proxy_names().iter().map(|n| (*n).to_owned()).collect(),
        resource_metrics: config.resource_metrics,
    };
    let writer = BootstrapWriter::new(server.clone());
    apiserver::bootstrap::ensure(&writer, &settings).await.map_err(|e| {
        SERVER_STOPPED
            .error(format!("the objects that every cluster starts with cannot be written: {e}"))
    })?;
    server.control_flow().await.map_err(|e| {
        SERVER_STOPPED.error(format!("flow schemas and priority levels cannot be loaded: {e}"))
    })?;
    Ok(settings)
}
