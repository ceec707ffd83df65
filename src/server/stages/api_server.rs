//! Stage `api_server`: the API server with its audit log, tracing and aggregation; it does not
//! listen yet.

use std::sync::Arc;

use apiserver::ApiServer;
use apiserver::connect::Nodes;
use apiserver::interfaces::Connect;
use apiserver::security::Security;
use base::Tasks;
use base::pki::tls;
use cluster::certs::ServerCerts;
use lookup::Lookup;

use super::{ObjectLayer, TaskSets};
use crate::error_catalogue::{CommandError, DATA_DIR, SERVER_STOPPED};
use crate::server::config::{Config, apiserver_arg_error};
use crate::server::token_uses;

/// Builds the API server and loads roles, bindings and APIServices.
///
/// # Errors
/// The audit log cannot be opened, or stored objects cannot be loaded.
pub(crate) async fn build_api_server(
    config: &Config,
    certs: &ServerCerts,
    layer: &ObjectLayer,
    security: Security,
    connections: &Arc<Nodes>,
    resource_metrics: Option<&Arc<resource_metrics::Store>>,
    tasks: &TaskSets,
) -> Result<ApiServer, CommandError> {
    let connect = Arc::clone(connections) as Arc<dyn Connect>;
    let parts = security.parts(&layer.objects, Some(connect));
    let settings = apiserver::Config {
        product_version: env!("CARGO_PKG_VERSION").to_owned(),
        service_cidrs: config.cluster.service_cidrs.iter().map(ToString::to_string).collect(),
        node_ports: config.node_ports,
        flow: config.flow,
        request_timeout: config.apiserver.request_timeout,
        flags: Arc::clone(&config.machine.flags),
    };
    let server = apiserver::build(settings, parts, tasks.api.clone())
        .map_err(|e| SERVER_STOPPED.error(e))?;
    if let Some(plan) = config.audit.clone() {
        let audit = apiserver::audit::Audit::start(plan, &tasks.store).await;
        server.audit(audit.map_err(|why| apiserver_arg_error(&why))?);
    }
    if let Some(plan) = &config.spans {
        server.trace(apiserver::request_tracing::Tracer::start(plan, &tasks.store));
    }
    security
        .follow(&layer.objects, &tasks.api)
        .await
        .map_err(|e| SERVER_STOPPED.error(format!("roles and bindings cannot be loaded: {e}")))?;
    if let Some(store) = resource_metrics {
        server.serve_resource_metrics(Arc::clone(store));
    }
    let aggregation = apiserver::aggregator::Settings {
        callout: security.callout.clone(),
        certificate: Arc::clone(&certs.proxy_client),
    };
    server
        .aggregate(&aggregation)
        .await
        .map_err(|e| SERVER_STOPPED.error(format!("APIServices cannot be loaded: {e}")))?;
    token_uses::start(security.token_uses, &server, &tasks.api);
    Ok(server)
}

/// Connects to kubelets, pods and Services for `exec`, `logs`, `proxy` and `port-forward`.
///
/// # Errors
/// TLS cannot be set up.
pub(crate) fn connections(
    layer: &ObjectLayer,
    certs: &ServerCerts,
    tasks: &Tasks,
) -> Result<Arc<Nodes>, CommandError> {
    let ca = certs.server_ca().bundle();
    let client = tls::client(&ca, Some(Arc::clone(&certs.kubelet_client)), &["http/1.1"])
        .map_err(|e| DATA_DIR.error(e))?;
    let lookup: Arc<dyn Lookup> = Arc::clone(&layer.objects) as Arc<dyn Lookup>;
    let dial: Arc<dyn base::io::Dial> = Arc::clone(&layer.dialer) as _;
    let nodes = Nodes::new(lookup, Arc::new(client), dial, tasks.clone())
        .map_err(|e| SERVER_STOPPED.error(e))?;
    Ok(Arc::new(nodes))
}
