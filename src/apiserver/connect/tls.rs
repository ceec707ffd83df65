//! TLS to nodes, and to pods and services, whose certificates are not verified (as in upstream's
//! proxies).

use std::io;
use std::sync::Arc;

use base::io::BoxIo;
use base::pki::tls::AnyServer;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, Error};
use tokio_rustls::TlsConnector;

/// The same client configuration and certificate, without verification of the server.
pub(super) fn unverified(config: &ClientConfig) -> Arc<ClientConfig> {
    let mut config = config.clone();
    let verifier = Arc::new(AnyServer::new(Arc::clone(config.crypto_provider())));
    config.dangerous().set_certificate_verifier(verifier);
    Arc::new(config)
}

/// A client configuration without certificate and without verification of the server.
pub(super) fn anonymous_unverified(config: &ClientConfig) -> Result<Arc<ClientConfig>, Error> {
    let provider = Arc::clone(config.crypto_provider());
    let verifier = Arc::new(AnyServer::new(Arc::clone(&provider)));
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// Starts TLS over a connection to this host.
///
/// # Errors
/// If the host is not a valid server name, or the handshake fails.
pub(super) async fn wrap(io: BoxIo, host: &str, config: Arc<ClientConfig>) -> io::Result<BoxIo> {
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    let stream = TlsConnector::from(config).connect(name, io).await?;
    Ok(Box::new(stream))
}
