//! Stage `security`: authentication, authorization and admission of the API server.

use std::net::SocketAddr;
use std::sync::Arc;

use apiserver::User;
use apiserver::admission::Plugin;
use apiserver::security::Security;
use base::Tasks;
use cluster::certs::ServerCerts;
use lookup::Lookup;
use webhook::{Callout, Services};

use super::ObjectLayer;
use crate::error_catalogue::{BAD_VALUE, CommandError, DATA_DIR};
use crate::server::config::{Config, apiserver_arg_error};
use crate::server::vertical_autoscaler;

/// Builds authentication, authorization and admission; `port` is the bound port of the API.
///
/// # Errors
/// A key or file that cannot be used, or an authorization webhook that cannot be set up.
pub(crate) async fn start_security(
    config: &Config,
    certs: &ServerCerts,
    layer: &ObjectLayer,
    port: u16,
    tasks: &Tasks,
) -> Result<Security, CommandError> {
    let settings = apiserver::security::Settings {
        issuer: config.apiserver.issuers.first().cloned().unwrap_or_default(),
        former_issuers: config.apiserver.issuers.iter().skip(1).cloned().collect(),
        token_seconds_max: config.apiserver.token_seconds_max,
        service_account_key: certs.service_account_key.clone(),
        address: SocketAddr::new(config.advertise, config.advertised_port(port)).to_string(),
        tokens: static_tokens(config)?,
        authentication: config.authentication.clone(),
        tolerations: apiserver::admission::pods::DefaultTolerationSeconds {
            not_ready: config.toleration_seconds.0,
            unreachable: config.toleration_seconds.1,
        },
        callout: callout(layer, tasks),
        authorization: config.authorization.clone(),
        hardened: config.machine.is_hardened(),
        admission: config.admission.clone(),
        plugins: optional_plugins(config, layer),
    };
    let security = Security::new(&layer.objects, settings).map_err(|e| DATA_DIR.error(e))?;
    security.authorization.check().await.map_err(|why| apiserver_arg_error(&why))?;
    layer.objects.storage().reach_webhooks(security.callout.clone());
    if let Some(ttl) = config.apiserver.event_ttl {
        layer.objects.storage().set_event_ttl(ttl);
    }
    Ok(security)
}

/// The admission plugins of components that are enabled.
fn optional_plugins(config: &Config, layer: &ObjectLayer) -> Vec<Arc<dyn Plugin>> {
    let mut plugins: Vec<Arc<dyn Plugin>> = Vec::new();
    if config.vertical_autoscaler {
        let lookup = Arc::clone(&layer.objects) as Arc<dyn Lookup>;
        plugins.push(Arc::new(vertical_autoscaler::Admission::new(lookup)));
    }
    plugins
}

/// The users of `--token-auth-file`.
fn static_tokens(config: &Config) -> Result<Vec<(String, User)>, CommandError> {
    let Some(path) = &config.token_auth_file else { return Ok(Vec::new()) };
    let bad = |why: &dyn std::fmt::Display| {
        BAD_VALUE.usage_error(format!("--token-auth-file={}: {why}", path.display()))
    };
    let text = std::fs::read_to_string(path).map_err(|e| bad(&e))?;
    apiserver::authn::static_token::parse(&text).map_err(|e| bad(&e))
}

/// Calls webhooks: by URL, or at a Service whose pods the dialer reaches.
fn callout(layer: &ObjectLayer, tasks: &Tasks) -> Callout {
    let lookup: Arc<dyn Lookup> = Arc::clone(&layer.objects) as Arc<dyn Lookup>;
    let services = Services::new(lookup, Arc::clone(&layer.dialer) as Arc<dyn base::io::Dial>);
    Callout { reach: Arc::new(services), tasks: tasks.clone() }
}
