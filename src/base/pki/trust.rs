//! Trust anchors that can be replaced while connections exist, when the CA of a cluster is rotated.

use std::sync::Arc;

use parking_lot::RwLock;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, SignatureScheme,
};
use tokio::sync::watch;

use super::certificates;
use super::store_id::{self, StoreId};
use super::tls::{BadConfig, bad, roots};

/// The servers that new connections trust. Existing connections are not affected.
#[derive(Debug)]
pub struct Servers {
    verifier: RwLock<Arc<WebPkiServerVerifier>>,
    /// The store whose servers are trusted; that of the first server while none is known.
    store: watch::Sender<Option<StoreId>>,
}

/// The clients that new connections trust; a client without a certificate may authenticate by other
/// means.
#[derive(Debug)]
pub struct Clients(RwLock<Arc<dyn ClientCertVerifier>>);

fn servers(pem: &str) -> Result<Arc<WebPkiServerVerifier>, BadConfig> {
    let roots = Arc::new(roots(&certificates(pem).map_err(bad)?)?);
    let provider = Arc::new(default_provider());
    WebPkiServerVerifier::builder_with_provider(roots, provider).build().map_err(bad)
}

fn clients(pem: &str) -> Result<Arc<dyn ClientCertVerifier>, BadConfig> {
    let roots = Arc::new(roots(&certificates(pem).map_err(bad)?)?);
    let builder = WebPkiClientVerifier::builder_with_provider(roots, Arc::new(default_provider()));
    builder.allow_unauthenticated().build().map_err(bad)
}

impl Servers {
    /// Trusts the CAs of this PEM bundle.
    ///
    /// # Errors
    /// When the bundle contains no usable CA.
    pub fn new(pem: &str) -> Result<Arc<Self>, BadConfig> {
        let verifier = RwLock::new(servers(pem)?);
        Ok(Arc::new(Self { verifier, store: watch::Sender::default() }))
    }

    /// Replaces the bundle.
    ///
    /// # Errors
    /// As [`Servers::new`]; the old bundle then stays in use.
    pub fn set(&self, pem: &str) -> Result<(), BadConfig> {
        *self.verifier.write() = servers(pem)?;
        Ok(())
    }

    /// Replaces the trusted store.
    pub fn expect_store(&self, store: Option<StoreId>) {
        self.store.send_replace(store);
    }

    /// The store whose servers are trusted; the channel reports changes.
    pub fn store(&self) -> watch::Receiver<Option<StoreId>> {
        self.store.subscribe()
    }

    /// Updates the trusted store from a server's verified certificate.
    fn follow_store(&self, end: &CertificateDer<'_>) -> Result<(), Error> {
        let shown = StoreId::of_certificate(end);
        let mut followed = Ok(());
        self.store.send_if_modified(|known| match store_id::follow(known.as_ref(), shown) {
            Ok(now) => {
                let is_new = *known != now;
                *known = now;
                is_new
            }
            Err(other) => {
                let other = OtherError(Arc::new(other));
                followed = Err(Error::InvalidCertificate(CertificateError::Other(other)));
                false
            }
        });
        followed
    }

    fn now(&self) -> Arc<WebPkiServerVerifier> {
        Arc::clone(&self.verifier.read())
    }
}

impl Clients {
    /// Trusts the CAs of this PEM bundle.
    ///
    /// # Errors
    /// When the bundle contains no usable CA.
    pub fn new(pem: &str) -> Result<Arc<Self>, BadConfig> {
        Ok(Arc::new(Self(RwLock::new(clients(pem)?))))
    }

    /// Replaces the bundle.
    ///
    /// # Errors
    /// As [`Clients::new`]; the old bundle then stays in use.
    pub fn set(&self, pem: &str) -> Result<(), BadConfig> {
        *self.0.write() = clients(pem)?;
        Ok(())
    }

    fn now(&self) -> Arc<dyn ClientCertVerifier> {
        Arc::clone(&self.0.read())
    }
}

/// Methods that both delegate to the current verifier.
macro_rules! as_now {
    () => {
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            self.now().verify_tls12_signature(message, cert, signature)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            self.now().verify_tls13_signature(message, cert, signature)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.now().supported_verify_schemes()
        }
    };
}

impl ServerCertVerifier for Servers {
    fn verify_server_cert(
        &self,
        end: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        at: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified = self.now().verify_server_cert(end, rest, name, ocsp, at)?;
        self.follow_store(end)?;
        Ok(verified)
    }

    as_now!();
}

impl ClientCertVerifier for Clients {
    /// Empty: the names would have to live as long as this verifier. A client then presents any
    /// certificate (RFC 8446, 4.2.4).
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn verify_client_cert(
        &self,
        end: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        at: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.now().verify_client_cert(end, rest, at)
    }

    as_now!();
}
