//! Certificates by server name.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::routes::hosts::{HostMap, WildcardLabels, normalized};

/// Certificates of a listener, by server name.
pub struct Certificates {
    names: HostMap<Arc<CertifiedKey>>,
    /// For clients that send no name or an unknown one.
    default: Option<Arc<CertifiedKey>>,
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificates").finish_non_exhaustive()
    }
}

/// Why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NoCertificate {
    /// `tls.crt` has no certificate in PEM.
    #[error("tls.crt: {0}")]
    Chain(String),
    /// `tls.key` has no private key in PEM.
    #[error("tls.key: {0}")]
    Key(String),
    /// Both do not belong together, or the key has an unknown type.
    #[error("tls.crt and tls.key do not belong together: {0}")]
    Pair(rustls::Error),
}

impl Certificates {
    /// No certificates but that for unknown names.
    pub fn new(default: Option<Arc<CertifiedKey>>) -> Self {
        Self { names: HostMap::new(WildcardLabels::Many), default }
    }

    /// Sets the certificate for a host as objects write it, unless an earlier call has set it.
    pub fn insert(&mut self, host: &str, certificate: &Arc<CertifiedKey>) {
        self.names.entry(host, || Arc::clone(certificate));
    }

    /// A chain and its key.
    ///
    /// # Errors
    /// They are not PEM, or do not belong together.
    pub fn pair(chain: &[u8], key: &[u8]) -> Result<Arc<CertifiedKey>, NoCertificate> {
        use rustls::pki_types::pem::PemObject as _;
        let chain: Vec<_> = CertificateDer::pem_slice_iter(chain)
            .collect::<Result<_, _>>()
            .map_err(|error| NoCertificate::Chain(error.to_string()))?;
        if chain.is_empty() {
            return Err(NoCertificate::Chain("no certificate in PEM".into()));
        }
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|error| NoCertificate::Key(error.to_string()))?;
        let pair = CertifiedKey::from_der(chain, key, &ring::default_provider())
            .map_err(NoCertificate::Pair)?;
        Ok(Arc::new(pair))
    }

    /// A certificate that no client trusts, for hosts without one.
    ///
    /// # Errors
    /// The random generator or rustls fails.
    pub fn self_signed() -> Result<Arc<CertifiedKey>, NoCertificate> {
        let names = vec!["ingress.invalid".to_owned()];
        let made = rcgen::generate_simple_self_signed(names)
            .map_err(|error| NoCertificate::Key(error.to_string()))?;
        Self::pair(made.cert.pem().as_bytes(), made.signing_key.serialize_pem().as_bytes())
    }

    fn find(&self, name: &str) -> Option<Arc<CertifiedKey>> {
        self.names.get(&normalized(name)).or(self.default.as_ref()).cloned()
    }
}

/// The certificates of a running listener. An exchange keeps the sessions of clients.
#[derive(Debug)]
pub struct CertificateStore(ArcSwap<Certificates>);

impl CertificateStore {
    /// A store with its first certificates.
    pub fn new(certificates: Certificates) -> Arc<Self> {
        Arc::new(Self(ArcSwap::from_pointee(certificates)))
    }

    /// Exchanges the certificates; connections that exist keep theirs.
    pub fn exchange(&self, certificates: Certificates) {
        self.0.store(Arc::new(certificates));
    }

    /// The settings of a TLS listener that speaks HTTP.
    ///
    /// # Errors
    /// rustls refuses its own protocol versions.
    pub fn config(self: &Arc<Self>) -> Result<Arc<ServerConfig>, rustls::Error> {
        let provider = Arc::new(ring::default_provider());
        let resolver: Arc<dyn ResolvesServerCert> = Arc::<Self>::clone(self);
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(resolver);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        config.ticketer = ring::Ticketer::new()?;
        Ok(Arc::new(config))
    }
}

impl ResolvesServerCert for CertificateStore {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.load().find(hello.server_name().unwrap_or_default())
    }
}
