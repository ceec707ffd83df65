//! A certificate that can be replaced while it serves.

use std::fmt;
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::client::ResolvesClientCert;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{SignatureScheme, crypto};

use super::{Leaf, certificates};

/// The certificate of new connections; replaced on renewal. Established connections are not
/// affected.
pub struct LiveCert(RwLock<Arc<CertifiedKey>>);

/// A certificate and key that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("certificate cannot be used: {0}")]
pub struct Unusable(String);

fn certified(leaf: &Leaf) -> Result<Arc<CertifiedKey>, Unusable> {
    let chain = certificates(&leaf.cert_pem).map_err(Unusable)?;
    let key = PrivateKeyDer::from_pem_slice(leaf.key_pem.as_bytes())
        .map_err(|e| Unusable(format!("no PEM key: {e}")))?;
    let provider = crypto::ring::default_provider();
    let made =
        CertifiedKey::from_der(chain, key, &provider).map_err(|e| Unusable(e.to_string()))?;
    Ok(Arc::new(made))
}

impl LiveCert {
    /// Serves with this certificate.
    ///
    /// # Errors
    /// When the PEM is bad, or key and certificate do not belong together.
    pub fn new(leaf: &Leaf) -> Result<Arc<Self>, Unusable> {
        Ok(Arc::new(Self(RwLock::new(certified(leaf)?))))
    }

    /// Serves new connections with this one.
    ///
    /// # Errors
    /// As [`LiveCert::new`]; the old one then goes on.
    pub fn set(&self, leaf: &Leaf) -> Result<(), Unusable> {
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
