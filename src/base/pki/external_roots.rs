//! TLS to external servers (webhooks, issuers, S3): the trusted roots, with the latitude of Go's
//! verifier.

use std::fmt;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, SignatureScheme};

use super::tls::AnyServer;
use super::{RootsError, system, tls};
use crate::pki::reloadable_cert::LiveCert;

/// A client for HTTP/1.1 only: a single HTTP/2 connection would keep one endpoint busy (Kubernetes
/// issue 75791). `bundle` holds the trusted CA certificates as PEM; blank means the system's.
/// `unverified` accepts any server certificate, as configured by the user. `certificate` is the
/// client certificate.
///
/// # Errors
/// When the bundle holds no usable certificate.
pub async fn client(
    bundle: &[u8],
    unverified: bool,
    certificate: Option<Arc<LiveCert>>,
) -> Result<Arc<ClientConfig>, RootsError> {
    let made = tls::client(&[], certificate, &["http/1.1"]);
    let mut config = made.map_err(RootsError::Config)?;
    let provider = Arc::clone(config.crypto_provider());
    if unverified {
        config.dangerous().set_certificate_verifier(Arc::new(AnyServer::new(provider)));
        return Ok(Arc::new(config));
    }
    let pem = if bundle.iter().all(u8::is_ascii_whitespace) {
        system::bundle().await
    } else {
        String::from_utf8_lossy(bundle).into_owned()
    };
    let roots: Vec<CertificateDer<'static>> =
        super::certificates(&pem).map_err(RootsError::Parse)?;
    if roots.is_empty() {
        return Err(RootsError::Empty);
    }
    let mut store = rustls::RootCertStore::empty();
    // What webpki cannot use as an anchor may still be pinned: Go takes any certificate of the
    // bundle.
    store.add_parsable_certificates(roots.iter().cloned());
    let chains = if store.is_empty() {
        None
    } else {
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::new(store), provider.clone());
        Some(verifier.build().map_err(RootsError::Verifier)?)
    };
    let supported = provider.signature_verification_algorithms;
    let verifier = Pinning { chains, pinned: roots, supported };
    config.dangerous().set_certificate_verifier(Arc::new(verifier));
    Ok(Arc::new(config))
}

/// Trusts chains to the bundle and also a certificate that is itself in the bundle: a self-signed
/// one made with `openssl req -x509` is a CA, which webpki rejects as a server certificate and Go
/// accepts.
struct Pinning {
    chains: Option<Arc<WebPkiServerVerifier>>,
    pinned: Vec<CertificateDer<'static>>,
    supported: rustls::crypto::WebPkiSupportedAlgorithms,
}

impl fmt::Debug for Pinning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pinning({} certificates)", self.pinned.len())
    }
}

impl Pinning {
    fn verify_pinned(
        cert: &CertificateDer<'_>,
        name: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<(), Error> {
        let (_, parsed) = x509_parser::parse_x509_certificate(cert)
            .map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))?;
        let seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        let validity = parsed.validity();
        if seconds < validity.not_before.timestamp() || seconds > validity.not_after.timestamp() {
            return Err(Error::InvalidCertificate(CertificateError::Expired));
        }
        verify_server_name(&ParsedCertificate::try_from(cert)?, name)
    }
}

impl ServerCertVerifier for Pinning {
    fn verify_server_cert(
        &self,
        cert: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if self.pinned.iter().any(|known| known.as_ref() == cert.as_ref()) {
            Self::verify_pinned(cert, name, now)?;
            return Ok(ServerCertVerified::assertion());
        }
        match &self.chains {
            Some(chains) => chains.verify_server_cert(cert, between, name, ocsp, now),
            None => Err(Error::InvalidCertificate(CertificateError::UnknownIssuer)),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls12_signature(message, cert, signature, &self.supported)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls13_signature(message, cert, signature, &self.supported)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.supported.supported_schemes()
    }
}
