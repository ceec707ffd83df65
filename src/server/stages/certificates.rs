//! Stage `certificates`: CAs, certificates, join tokens and the keys of encryption at rest.

use std::net::IpAddr;
use std::sync::Arc;

use cluster::certs::{Names, ServerCerts};
use cluster::token::files::{Error, TokenFiles};
use encryption::Keys;

use crate::error_catalogue::{BAD_VALUE, CommandError, DATA_DIR};
use crate::secrets_encrypt::ServerKeys;
use crate::server::config::Config;
use crate::server::store_identity::StoreIdentity;

/// The credentials of this server.
pub(crate) struct Certificates {
    /// CAs and certificates.
    pub(crate) certs: Arc<ServerCerts>,
    /// Files of the join tokens.
    pub(crate) tokens: TokenFiles,
    /// Keys of encryption at rest.
    pub(crate) keys: Arc<ServerKeys>,
}

/// Loads the credentials, and creates the missing ones.
///
/// # Errors
/// A file that cannot be used, or a token that contradicts the one in its file.
pub(crate) fn load_certificates(
    config: &Config,
    identity: Option<&StoreIdentity>,
) -> Result<Certificates, CommandError> {
    let certs = Arc::new(server_certificates(config, identity)?);
    let tokens = token_files(config, &certs)?;
    // Secrets are encrypted from the first write. Other servers ask for the key file, which is
    // stored with the certificates.
    let keys = Keys::load_or_generate(&config.machine.data_dir.join("server/tls/encryption.keys"));
    let keys = ServerKeys::new(Arc::new(keys.map_err(|e| DATA_DIR.error(e))?));
    Ok(Certificates { certs, tokens, keys })
}

fn server_certificates(
    config: &Config,
    identity: Option<&StoreIdentity>,
) -> Result<ServerCerts, CommandError> {
    let (ips, dns): (Vec<&String>, Vec<&String>) =
        config.tls_san.iter().partition(|n| n.parse::<IpAddr>().is_ok());
    let mut all_ips: Vec<IpAddr> = ips.into_iter().filter_map(|ip| ip.parse().ok()).collect();
    all_ips.extend(config.machine.node_ips.iter().copied().chain([config.advertise]));
    all_ips.extend(&config.machine.args.addresses.node_external_ip);
    all_ips.extend(config.api_vip);
    let mut names: Vec<String> = dns.into_iter().cloned().collect();
    names.push(config.machine.node_name.clone());
    let names = Names {
        dns: names,
        ips: all_ips,
        service_ips: config.cluster.service_cidrs.iter().filter_map(|c| c.nth(1)).collect(),
        cluster_domain: config.cluster.cluster_domain.clone(),
        store: identity.map(StoreIdentity::certificate_id),
    };
    cluster::certs::ensure(&config.machine.data_dir, &names).map_err(|e| DATA_DIR.error(e))
}

fn token_files(config: &Config, certs: &ServerCerts) -> Result<TokenFiles, CommandError> {
    let files = TokenFiles::new(&config.machine.data_dir);
    let (token, agent) = (config.token.as_ref(), config.agent_token.as_ref());
    let notices =
        files.ensure(certs.server_ca().cert_pem(), token, agent).map_err(|e| match e {
            Error::Differs(_) | Error::Weak(_) => BAD_VALUE.usage_error(format!("the token: {e}")),
            Error::Io(_) | Error::Content { .. } => DATA_DIR.error(e),
        })?;
    for notice in notices {
        tracing::warn!("{notice}");
    }
    Ok(files)
}
