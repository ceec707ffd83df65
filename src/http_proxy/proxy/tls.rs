//! Certificates by server name.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{CipherSuite, ServerConfig};
use x509_parser::prelude::{FromDer as _, X509Certificate};

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
        Self { names: HostMap::new(WildcardLabels::One), default }
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

    /// When a certificate has expired, if that was before `now` (time since the Unix epoch).
    pub fn expired(pair: &CertifiedKey, now: Duration) -> Option<String> {
        let (_, parsed) = X509Certificate::from_der(pair.cert.first()?).ok()?;
        let end = parsed.validity().not_after;
        let is_over = u64::try_from(end.timestamp()).is_ok_and(|end| end < now.as_secs());
        is_over.then(|| end.to_string())
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

/// Tickets for each handshake, as Go sends them; a second one costs as much as a small request.
pub(super) const TICKETS: usize = 1;

/// AES-GCM with keys of 256 bits and SHA-384, which OpenSSL prefers.
const AES_256: [CipherSuite; 3] = [
    CipherSuite::TLS13_AES_256_GCM_SHA384,
    CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
];
/// AES-GCM with keys of 128 bits and SHA-256.
const AES_128: [CipherSuite; 3] = [
    CipherSuite::TLS13_AES_128_GCM_SHA256,
    CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
];

/// The TLS settings of a listener, for two kinds of clients.
#[derive(Debug)]
pub struct TlsSettings {
    /// The client's order of cipher suites decides, as one without instructions for AES prefers
    /// ChaCha20.
    by_client: Arc<ServerConfig>,
    /// AES with 128 bits comes first: processors have instructions for SHA-256, but few for
    /// SHA-384, which takes a tenth of the time of a handshake.
    aes_128: Arc<ServerConfig>,
}

impl TlsSettings {
    /// The settings for a client by its first cipher suite that is known here, as Go decides it.
    pub(super) fn of(&self, hello: &ClientHello<'_>) -> Arc<ServerConfig> {
        let known = |suite: &&CipherSuite| AES_256.contains(suite) || AES_128.contains(suite);
        let chacha = |suite: &CipherSuite| suite.as_str().is_some_and(|s| s.contains("CHACHA20"));
        let first = hello.cipher_suites().iter().find(|suite| known(suite) || chacha(suite));
        match first {
            Some(suite) if AES_256.contains(suite) => Arc::clone(&self.aes_128),
            _ => Arc::clone(&self.by_client),
        }
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
    pub fn config(self: &Arc<Self>) -> Result<Arc<TlsSettings>, rustls::Error> {
        let ticketer = ring::Ticketer::new()?;
        let config = |provider: CryptoProvider| {
            let resolver: Arc<dyn ResolvesServerCert> = Arc::<Self>::clone(self);
            let mut config = ServerConfig::builder_with_provider(Arc::new(provider))
                .with_safe_default_protocol_versions()?
                .with_no_client_auth()
                .with_cert_resolver(resolver);
            config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
            config.ticketer = Arc::clone(&ticketer);
            config.send_tls13_tickets = TICKETS;
            Ok::<_, rustls::Error>(config)
        };
        let mut provider = ring::default_provider();
        let by_client = Arc::new(config(provider.clone())?);
        // A stable sort: the rest keeps its order.
        provider.cipher_suites.sort_by_key(|suite| !AES_128.contains(&suite.suite()));
        let mut aes_128 = config(provider)?;
        aes_128.ignore_client_order = true;
        Ok(Arc::new(TlsSettings { by_client, aes_128: Arc::new(aes_128) }))
    }
}

impl ResolvesServerCert for CertificateStore {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.load().find(hello.server_name().unwrap_or_default())
    }
}
