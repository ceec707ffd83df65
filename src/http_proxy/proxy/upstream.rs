//! TLS towards endpoints (BackendTLSPolicy), and authorities of certificates.

use std::fmt;
use std::sync::Arc;

use base::pki::tls::AnyServer;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{WebPkiSupportedAlgorithms, ring};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

/// Authorities of certificates.
pub struct Roots {
    /// The trust anchors.
    pub(crate) store: Arc<RootCertStore>,
}

impl fmt::Debug for Roots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Roots({})", self.store.len())
    }
}

/// Why a text has no authorities.
#[derive(Debug, thiserror::Error)]
pub enum NoRoots {
    /// It is not PEM.
    #[error("{0}")]
    Pem(String),
    /// A certificate is no authority.
    #[error("{0}")]
    Certificate(#[from] Error),
    /// It has no certificate.
    #[error("no certificate in PEM")]
    Empty,
}

impl Roots {
    /// The authorities of a bundle.
    ///
    /// # Errors
    /// It has none, or one that cannot be used.
    pub fn new(pem: &str) -> Result<Self, NoRoots> {
        use rustls::pki_types::pem::PemObject as _;
        let mut store = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
            let certificate = certificate.map_err(|error| NoRoots::Pem(error.to_string()))?;
            store.add(certificate)?;
        }
        if store.is_empty() {
            return Err(NoRoots::Empty);
        }
        Ok(Self { store: Arc::new(store) })
    }
}

/// A name that the certificate of an endpoint may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EndpointName {
    /// A host name.
    Host(ServerName<'static>),
    /// A URI, such as a SPIFFE identity.
    Uri(String),
}

/// How connections to endpoints are encrypted.
#[derive(Debug)]
pub struct UpstreamTls {
    /// The settings of rustls.
    pub(crate) config: Arc<ClientConfig>,
    /// The server name of the handshake.
    pub(crate) name: ServerName<'static>,
}

impl UpstreamTls {
    /// Settings for endpoints with any certificate, which are sent no server name. `http2` offers
    /// HTTP/2 alone.
    ///
    /// # Errors
    /// rustls refuses its own protocol versions.
    pub fn unverified(http2: bool) -> Result<Self, Error> {
        let provider = Arc::new(ring::default_provider());
        let verifier = AnyServer::new(Arc::clone(&provider));
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth();
        let protocol: &[u8] = if http2 { b"h2" } else { b"http/1.1" };
        config.alpn_protocols = vec![protocol.to_vec()];
        let name = ServerName::IpAddress(std::net::Ipv4Addr::UNSPECIFIED.into());
        Ok(Self { config: Arc::new(config), name })
    }

    /// Settings for endpoints whose certificate comes from `roots` and has one of `names`; without
    /// names, that of the server name. `http2` offers HTTP/2 alone.
    ///
    /// # Errors
    /// rustls refuses its own protocol versions.
    pub fn new(
        name: ServerName<'static>,
        roots: &Roots,
        names: Vec<EndpointName>,
        certificate: Option<&Arc<CertifiedKey>>,
        http2: bool,
    ) -> Result<Self, Error> {
        let provider = Arc::new(ring::default_provider());
        let names = match names.is_empty() {
            true => vec![EndpointName::Host(name.clone())],
            false => names,
        };
        let verifier = NameVerifier {
            roots: Arc::clone(&roots.store),
            names,
            supported: provider.signature_verification_algorithms,
        };
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let mut config = match certificate {
            Some(certificate) => builder.with_client_cert_resolver(Arc::new(
                SingleCertAndKey::from(CertifiedKey::clone(certificate)),
            )),
            None => builder.with_no_client_auth(),
        };
        let protocol: &[u8] = if http2 { b"h2" } else { b"http/1.1" };
        config.alpn_protocols = vec![protocol.to_vec()];
        Ok(Self { config: Arc::new(config), name })
    }
}

/// Verifies the chain as webpki does, and one of several names.
#[derive(Debug)]
struct NameVerifier {
    roots: Arc<RootCertStore>,
    names: Vec<EndpointName>,
    supported: WebPkiSupportedAlgorithms,
}

fn has_uri(certificate: &CertificateDer<'_>, wanted: &str) -> bool {
    let Ok((_, parsed)) = X509Certificate::from_der(certificate) else { return false };
    let Ok(Some(names)) = parsed.subject_alternative_name() else { return false };
    names.value.general_names.iter().any(|n| matches!(n, GeneralName::URI(uri) if *uri == wanted))
}

impl ServerCertVerifier for NameVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let parsed = ParsedCertificate::try_from(end_entity)?;
        let algorithms = self.supported.all;
        verify_server_cert_signed_by_trust_anchor(
            &parsed,
            &self.roots,
            intermediates,
            now,
            algorithms,
        )?;
        let matches = |name: &EndpointName| match name {
            EndpointName::Host(host) => verify_server_name(&parsed, host).is_ok(),
            EndpointName::Uri(uri) => has_uri(end_entity, uri),
        };
        match self.names.iter().any(matches) {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(CertificateError::NotValidForName.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls12_signature(message, certificate, signature, &self.supported)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls13_signature(message, certificate, signature, &self.supported)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.supported.supported_schemes()
    }
}
