//! The TLS configuration of all listeners and clients: versions 1.2 and 1.3, AEAD suites with
//! ephemeral keys, one provider.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    ClientConfig, DigitallySignedStruct, DistinguishedName, Error as TlsError, RootCertStore,
    ServerConfig, SignatureScheme,
};

use super::trust;
use crate::pki::reloadable_cert::LiveCert;

/// A TLS configuration is invalid.
#[derive(Debug, thiserror::Error)]
#[error("cannot set up TLS: {0}")]
pub struct BadConfig(String);

pub(super) fn bad(error: impl ToString) -> BadConfig {
    BadConfig(error.to_string())
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// Creates a root store of these certificates.
///
/// # Errors
/// When one is not a CA certificate.
pub fn roots(ca: &[CertificateDer<'static>]) -> Result<RootCertStore, BadConfig> {
    let mut store = RootCertStore::empty();
    for cert in ca {
        store.add(cert.clone()).map_err(bad)?;
    }
    Ok(store)
}

fn protocols(alpn: &[&str]) -> Vec<Vec<u8>> {
    alpn.iter().map(|p| p.as_bytes().to_vec()).collect()
}

/// Requests a client certificate signed by one of `hints`, and accepts any certificate or none.
///
/// The handshake only proves possession of the key. The user of the identity must verify the chain.
/// The API server does so per connection and answers 401, where a failed handshake would give the
/// client no reason.
pub fn server(
    cert: Arc<LiveCert>,
    hints: &[CertificateDer<'static>],
    alpn: &[&str],
) -> Result<ServerConfig, BadConfig> {
    let verifier = AnyClient::new(roots(hints)?.subjects(), provider());
    serving(Arc::new(verifier), cert, alpn)
}

/// What a server offers in handshakes, out of what this program has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Offer {
    /// Version 1.3 alone.
    pub is_13_only: bool,
    /// The cipher suites of version 1.2 by their names (`TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256`);
    /// empty for all.
    pub suites: Vec<String>,
}

/// As [`server`], with a part of the versions and cipher suites.
///
/// # Errors
/// When the certificates cannot be used, or nothing is left to offer.
pub fn offering_server(
    cert: Arc<LiveCert>,
    hints: &[CertificateDer<'static>],
    alpn: &[&str],
    offer: &Offer,
) -> Result<ServerConfig, BadConfig> {
    let verifier = AnyClient::new(roots(hints)?.subjects(), provider());
    let mut offered = ring::default_provider();
    if !offer.suites.is_empty() {
        let is_listed = |name: &str| {
            // Go has two names for these suites.
            let short = name.strip_suffix("POLY1305_SHA256").map(|head| format!("{head}POLY1305"));
            offer.suites.iter().any(|suite| suite == name || Some(suite) == short.as_ref())
        };
        offered.cipher_suites.retain(|suite| {
            suite.tls13().is_some() || suite.suite().as_str().is_some_and(is_listed)
        });
    }
    let has_12 = offered.cipher_suites.iter().any(|suite| suite.tls13().is_none());
    let versions: &[&rustls::SupportedProtocolVersion] = match has_12 && !offer.is_13_only {
        true => &[&rustls::version::TLS13, &rustls::version::TLS12],
        false => &[&rustls::version::TLS13],
    };
    let builder = ServerConfig::builder_with_provider(Arc::new(offered));
    let builder = builder.with_protocol_versions(versions).map_err(bad)?;
    let mut config = builder.with_client_cert_verifier(Arc::new(verifier)).with_cert_resolver(cert);
    config.alpn_protocols = protocols(alpn);
    Ok(config)
}

fn serving(
    verifier: Arc<dyn ClientCertVerifier>,
    cert: Arc<LiveCert>,
    alpn: &[&str],
) -> Result<ServerConfig, BadConfig> {
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(bad)?;
    let mut config = builder.with_client_cert_verifier(verifier).with_cert_resolver(cert);
    config.alpn_protocols = protocols(alpn);
    Ok(config)
}

/// Verifies a client certificate against `client_ca` if the client presents one; a client without
/// may authenticate by other means.
///
/// # Errors
/// When the CA cannot be used.
pub fn verifying_server(
    cert: Arc<LiveCert>,
    client_ca: &[CertificateDer<'static>],
    alpn: &[&str],
) -> Result<ServerConfig, BadConfig> {
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots(client_ca)?), provider())
            .allow_unauthenticated()
            .build()
            .map_err(bad)?;
    serving(verifier, cert, alpn)
}

/// Requires a client certificate signed by `client_ca`.
///
/// # Errors
/// When the CA cannot be used.
pub fn demanding_server(
    cert: Arc<LiveCert>,
    client_ca: &[CertificateDer<'static>],
    alpn: &[&str],
) -> Result<ServerConfig, BadConfig> {
    let roots = Arc::new(roots(client_ca)?);
    let verifier =
        WebPkiClientVerifier::builder_with_provider(roots, provider()).build().map_err(bad)?;
    serving(verifier, cert, alpn)
}

/// As [`verifying_server`], with the clients that `clients` trusts at the time of a connection.
///
/// # Errors
/// When the configuration is invalid.
pub fn following_server(
    cert: Arc<LiveCert>,
    clients: Arc<trust::Clients>,
    alpn: &[&str],
) -> Result<ServerConfig, BadConfig> {
    serving(clients, cert, alpn)
}

/// As [`client`], with the servers that `servers` trusts at the time of a connection.
///
/// # Errors
/// When the configuration is invalid.
pub fn following_client(
    servers: Arc<trust::Servers>,
    cert: Option<Arc<LiveCert>>,
    alpn: &[&str],
) -> Result<ClientConfig, BadConfig> {
    let mut config = client(&[], cert, alpn)?;
    config.dangerous().set_certificate_verifier(servers);
    Ok(config)
}

/// A client that trusts only `server_ca` and presents `cert`, if given.
///
/// # Errors
/// When the CA cannot be used.
pub fn client(
    server_ca: &[CertificateDer<'static>],
    cert: Option<Arc<LiveCert>>,
    alpn: &[&str],
) -> Result<ClientConfig, BadConfig> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(bad)?;
    let builder = builder.with_root_certificates(roots(server_ca)?);
    let mut config = match cert {
        Some(cert) => builder.with_client_cert_resolver(cert),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = protocols(alpn);
    Ok(config)
}

/// A client that trusts any server: for public data that is verified by other means, never for a
/// secret.
///
/// # Errors
/// When the configuration is invalid.
pub fn unverified_client(alpn: &[&str]) -> Result<ClientConfig, BadConfig> {
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(bad)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyServer::new(provider())))
        .with_no_client_auth();
    config.alpn_protocols = protocols(alpn);
    Ok(config)
}

/// The methods of both verifiers that check the peer's possession of its certificate's key.
macro_rules! proves_possession {
    () => {
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, TlsError> {
            let known = &self.provider.signature_verification_algorithms;
            verify_tls12_signature(message, cert, signature, known)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, TlsError> {
            let known = &self.provider.signature_verification_algorithms;
            verify_tls13_signature(message, cert, signature, known)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.provider.signature_verification_algorithms.supported_schemes()
        }
    };
}

/// Accepts any server that possesses the key of its certificate.
#[derive(Debug)]
pub struct AnyServer {
    provider: Arc<CryptoProvider>,
}

impl AnyServer {
    /// Creates it with the signature schemes of this provider.
    pub fn new(provider: Arc<CryptoProvider>) -> Self {
        Self { provider }
    }
}

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        Ok(ServerCertVerified::assertion())
    }

    proves_possession!();
}

/// Asks for a certificate, and accepts any client that possesses the key of its own, or has none.
#[derive(Debug)]
pub struct AnyClient {
    hints: Vec<DistinguishedName>,
    provider: Arc<CryptoProvider>,
}

impl AnyClient {
    /// `hints` are the authorities that the handshake names.
    pub fn new(hints: Vec<DistinguishedName>, provider: Arc<CryptoProvider>) -> Self {
        Self { hints, provider }
    }
}

impl ClientCertVerifier for AnyClient {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, TlsError> {
        Ok(ClientCertVerified::assertion())
    }

    proves_possession!();
}

#[cfg(test)]
mod tests {
    use super::super::{Ca, Profile};
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio_rustls::{TlsAcceptor, TlsConnector};

    fn ca(dir: &tempfile::TempDir, name: &str) -> Ca {
        Ca::load_or_create(
            &dir.path().join(format!("{name}.crt")),
            &dir.path().join(format!("{name}.key")),
            name,
        )
        .unwrap()
    }

    fn live(ca: &Ca, profile: &Profile) -> Arc<LiveCert> {
        LiveCert::new(&ca.issue(profile).unwrap()).unwrap()
    }

    /// Connects over a pipe; returns the number of client certificates at the server, or the first
    /// error.
    async fn connect(server: ServerConfig, client: ClientConfig) -> Result<usize, String> {
        let (ours, theirs) = tokio::io::duplex(16 * 1024);
        let accept = async {
            let mut stream = TlsAcceptor::from(Arc::new(server))
                .accept(ours)
                .await
                .map_err(|e| e.to_string())?;
            let seen = stream.get_ref().1.peer_certificates().map_or(0, <[_]>::len);
            stream.write_all(b"x").await.map_err(|e| e.to_string())?;
            Ok::<usize, String>(seen)
        };
        let dial = async {
            let name = ServerName::try_from("localhost").unwrap();
            let mut stream = TlsConnector::from(Arc::new(client))
                .connect(name, theirs)
                .await
                .map_err(|e| e.to_string())?;
            stream.read_u8().await.map_err(|e| e.to_string())
        };
        let (seen, read) = tokio::join!(accept, dial);
        read.and(seen)
    }

    #[tokio::test]
    async fn only_the_verifying_server_refuses_foreign_clients() {
        let dir = tempfile::tempdir().unwrap();
        let (server_ca, client_ca, stranger) = (ca(&dir, "s"), ca(&dir, "c"), ca(&dir, "x"));
        let serving = live(&server_ca, &Profile::server("s", &["localhost".into()], &[]));
        let (trusted, clients) = ([server_ca.der().clone()], [client_ca.der().clone()]);
        let with = |cert: Option<Arc<LiveCert>>| client(&trusted, cert, &["h2"]).unwrap();
        let (own, other) = (
            live(&client_ca, &Profile::client("jane", None)),
            live(&stranger, &Profile::client("jane", None)),
        );
        let open = || server(Arc::clone(&serving), &clients, &["h2"]).unwrap();
        assert_eq!(connect(open(), with(None)).await, Ok(0));
        assert_eq!(connect(open(), with(Some(Arc::clone(&own)))).await, Ok(2));
        assert_eq!(connect(open(), with(Some(Arc::clone(&other)))).await, Ok(2));
        let asking = || verifying_server(Arc::clone(&serving), &clients, &["h2"]).unwrap();
        assert_eq!(connect(asking(), with(Some(own))).await, Ok(2));
        assert!(connect(asking(), with(Some(other))).await.is_err());
        assert_eq!(connect(asking(), with(None)).await, Ok(0));
    }

    #[tokio::test]
    async fn trust_changes_with_the_ca_of_the_cluster() {
        let dir = tempfile::tempdir().unwrap();
        let (old, new, clients) = (ca(&dir, "old"), ca(&dir, "new"), ca(&dir, "clients"));
        let profile = Profile::server("s", &["localhost".into()], &[]);
        let servers = trust::Servers::new(old.cert_pem()).unwrap();
        let config = |ca: &Ca| server(live(ca, &profile), &[], &[]).unwrap();
        let dial = || following_client(Arc::clone(&servers), None, &[]).unwrap();
        assert_eq!(connect(config(&old), dial()).await, Ok(0));
        assert!(connect(config(&new), dial()).await.is_err());
        servers.set(new.cert_pem()).unwrap();
        assert!(connect(config(&old), dial()).await.is_err());
        assert_eq!(connect(config(&new), dial()).await, Ok(0));
        assert!(servers.set("").is_err());
        assert_eq!(connect(config(&new), dial()).await, Ok(0));

        let trusted_clients = trust::Clients::new(old.cert_pem()).unwrap();
        let serving = live(&new, &profile);
        let config =
            || following_server(Arc::clone(&serving), Arc::clone(&trusted_clients), &[]).unwrap();
        let jane = live(&clients, &Profile::client("jane", None));
        let dial = |cert| following_client(Arc::clone(&servers), cert, &[]).unwrap();
        assert!(connect(config(), dial(Some(Arc::clone(&jane)))).await.is_err());
        trusted_clients.set(clients.cert_pem()).unwrap();
        assert_eq!(connect(config(), dial(Some(jane))).await, Ok(2));
        assert_eq!(connect(config(), dial(None)).await, Ok(0));
        assert!(trusted_clients.set("").is_err());
    }

    #[tokio::test]
    async fn a_renewed_certificate_is_used_for_the_next_connection() {
        let dir = tempfile::tempdir().unwrap();
        let (old, new) = (ca(&dir, "old"), ca(&dir, "new"));
        let profile = Profile::server("s", &["localhost".into()], &[]);
        let serving = live(&old, &profile);
        let config = || server(Arc::clone(&serving), &[], &[]).unwrap();
        let trusting = |ca: &Ca| client(&[ca.der().clone()], None, &[]).unwrap();
        assert_eq!(connect(config(), trusting(&old)).await, Ok(0));
        serving.set(&new.issue(&profile).unwrap()).unwrap();
        assert!(connect(config(), trusting(&old)).await.is_err());
        assert_eq!(connect(config(), trusting(&new)).await, Ok(0));
    }
}
