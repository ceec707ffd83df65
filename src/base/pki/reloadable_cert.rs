//! A certificate that can be replaced while it is in use.

use std::fmt;
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::client::ResolvesClientCert;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{SignatureScheme, crypto};

use super::{CertificateError, Leaf, certificates};

/// The certificate of new connections; replaced on renewal. Established connections are not
/// affected.
pub struct LiveCert(RwLock<Arc<CertifiedKey>>);

/// Why certificate and key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// The certificate cannot be parsed.
    #[error("certificate cannot be used: {0}")]
    Certificate(#[source] CertificateError),
    /// The key cannot be parsed.
    #[error("certificate cannot be used: no PEM key: {0}")]
    Key(#[source] pem::Error),
    /// The key has an unsupported algorithm or belongs to another certificate.
    #[error("certificate cannot be used: {0}")]
    Pair(#[source] rustls::Error),
}

fn certified(leaf: &Leaf) -> Result<Arc<CertifiedKey>, ReloadError> {
    let chain = certificates(&leaf.cert_pem).map_err(ReloadError::Certificate)?;
    let key = PrivateKeyDer::from_pem_slice(leaf.key_pem.as_bytes()).map_err(ReloadError::Key)?;
    let provider = crypto::ring::default_provider();
    let certified = CertifiedKey::from_der(chain, key, &provider).map_err(ReloadError::Pair)?;
    Ok(Arc::new(certified))
}

impl LiveCert {
    /// Creates it with this certificate and key.
    ///
    /// # Errors
    /// When the PEM is invalid, or key and certificate do not match.
    pub fn new(leaf: &Leaf) -> Result<Arc<Self>, ReloadError> {
        Ok(Arc::new(Self(RwLock::new(certified(leaf)?))))
    }

    /// Replaces the certificate for new connections.
    ///
    /// # Errors
    /// As [`LiveCert::new`]; the old certificate then stays in use.
    pub fn set(&self, leaf: &Leaf) -> Result<(), ReloadError> {
        let fresh = certified(leaf)?;
        *self.0.write() = fresh;
        Ok(())
    }
}

impl fmt::Debug for LiveCert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LiveCert")
    }
}

impl ResolvesServerCert for LiveCert {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.read()))
    }
}

impl ResolvesClientCert for LiveCert {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.read()))
    }

    fn has_certs(&self) -> bool {
        true
    }
}
