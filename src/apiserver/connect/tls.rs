//! TLS towards pods and services, whose certificates nobody vouches for, and towards nodes.

use std::io;
use std::sync::Arc;

use base::io::BoxIo;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use tokio_rustls::TlsConnector;

/// Accepts any server: upstream's proxies to pods and services do, for their certificates are their own affair.
#[derive(Debug)]
struct Anyone(Arc<CryptoProvider>);

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// The same client, presenting the same certificate, but believing any server.
pub(super) fn trusting(config: &ClientConfig) -> Arc<ClientConfig> {
    let mut config = config.clone();
    let verifier = Arc::new(Anyone(Arc::clone(config.crypto_provider())));
    config.dangerous().set_certificate_verifier(verifier);
    Arc::new(config)
}

/// A client without certificate that believes any server.
pub(super) fn stranger(config: &ClientConfig) -> Result<Arc<ClientConfig>, Error> {
    let provider = Arc::clone(config.crypto_provider());
    let verifier = Arc::new(Anyone(Arc::clone(&provider)));
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// TLS over a connection to this host.
///
/// # Errors
/// When the host's name cannot stand in a certificate, or the handshake fails.
pub(super) async fn wrap(io: BoxIo, host: &str, config: Arc<ClientConfig>) -> io::Result<BoxIo> {
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    let stream = TlsConnector::from(config).connect(name, io).await?;
    Ok(Box::new(stream))
}
