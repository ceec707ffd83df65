//! Ports of Gateways: HTTP, TLS by server name, TCP and UDP.

use std::convert::Infallible;
use std::fmt;
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use base::Kind;
use base::accept::{Accepted, accept};
use base::pki::tls::AnyClient;
use rustls::ServerConfig;
use rustls::client::verify_server_name;
use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use rustls::server::{
    Acceptor, ClientHello, NoServerSessionStorage, ParsedCertificate, ProducesTickets,
    ResolvesServerCert, WebPkiClientVerifier,
};
use rustls::sign::CertifiedKey;
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, server};

use super::connection::{
    CONNECTIONS_MAX, HANDSHAKE_TIMEOUT, HeaderError, Listener, serve_plain, serve_tls,
};
use super::exchange::Client;
use super::stream::{Prefixed, Stream};
use super::tcp;
use super::tls::TICKETS;
use super::upstream::Roots;
use crate::backend::Split;
use crate::routes::hosts::{HostMap, normalized};

/// Bytes of the first message of a client.
const HELLO_BYTES_MAX: usize = 64 * 1024;

/// What is done with a connection of a port.
pub enum PortMode {
    /// Plain HTTP.
    Http,
    /// TLS, by server name.
    Tls(HostMap<Arc<TlsEntry>>),
    /// TCP is passed on; `None` has no route.
    Tcp(Option<Arc<Split>>),
    /// UDP is passed on; `None` has no route.
    Udp(Option<Arc<Split>>),
}

impl fmt::Debug for PortMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Http => "Http",
            Self::Tls(_) => "Tls",
            Self::Tcp(_) => "Tcp",
            Self::Udp(_) => "Udp",
        })
    }
}

/// What is done with a TLS connection.
pub enum TlsEntry {
    /// It is decrypted, and serves HTTP.
    Http(Arc<ServerConfig>),
    /// It is decrypted, and passed on by server name.
    Terminate(Arc<ServerConfig>, HostMap<Arc<Split>>),
    /// It is passed on by server name.
    Passthrough(HostMap<Arc<Split>>),
}

/// A port that is served.
#[derive(Debug)]
pub struct Port {
    /// Its HTTP part.
    pub listener: Arc<Listener>,
    /// What is done with a connection, exchanged when objects change.
    pub entry: ArcSwap<PortMode>,
}

/// Why a connection is not served.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("{0}")]
    Header(#[from] HeaderError),
    #[error("{0}")]
    Tls(#[from] rustls::Error),
    #[error("the client sent no TLS hello within {HANDSHAKE_TIMEOUT:?}")]
    Timeout,
    #[error("the TLS hello is larger than {HELLO_BYTES_MAX} bytes")]
    HelloTooLarge,
    #[error("no listener or route has this server name")]
    UnknownName,
    #[error("{0}")]
    Backend(#[from] tcp::NoEndpoint),
}

/// Accepts connections until the tasks of the listener stop.
pub async fn serve_port(port: Arc<Port>, socket: TcpListener) {
    let shutdown = port.listener.tasks.shutdown().clone();
    accept(&socket, "gateway", CONNECTIONS_MAX, &shutdown, |accepted| {
        let own = Arc::clone(&port);
        port.listener.tasks.spawn(Kind::Request, "gateway-connection", async move {
            let Accepted { stream, from, place } = accepted;
            if let Err(error) = serve(&own, stream, from).await {
                tracing::debug!(%from, %error, "gateway: connection is not served");
            }
            drop(place);
            Ok::<(), Infallible>(())
        });
    })
    .await;
}

async fn serve(
    port: &Port,
    mut stream: TcpStream,
    from: std::net::SocketAddr,
) -> Result<(), Refusal> {
    let listener = &port.listener;
    let (address, read) = listener.client_of(from, &mut stream).await?;
    let entry = port.entry.load_full();
    match &*entry {
        PortMode::Http => {
            let client = Client::new(address, false, None);
            serve_plain(listener, client, stream, read).await;
            Ok(())
        }
        PortMode::Tcp(split) => {
            let stream = Stream::Plain(Prefixed::new(stream, read));
            Ok(tcp::forward(stream, split.as_deref(), &listener.tasks).await?)
        }
        // UDP has no connections.
        PortMode::Udp(_) => Ok(()),
        PortMode::Tls(names) => {
            let hello = tokio::time::timeout(HANDSHAKE_TIMEOUT, read_hello(stream, read)).await;
            let (stream, name) = hello.map_err(|_| Refusal::Timeout)??;
            let found = Arc::clone(names.get(&name).ok_or(Refusal::UnknownName)?);
            drop(entry);
            let route = |routes: &HostMap<Arc<Split>>| routes.get(&name).cloned();
            match &*found {
                TlsEntry::Http(config) => {
                    let stream = handshake(config, stream).await?;
                    let client = Client::new(address, true, Some(name.into()));
                    serve_tls(listener, client, stream).await;
                    Ok(())
                }
                TlsEntry::Terminate(config, routes) => {
                    let split = route(routes).ok_or(Refusal::UnknownName)?;
                    let stream = Stream::Client(handshake(config, stream).await?);
                    Ok(tcp::forward(stream, Some(&split), &listener.tasks).await?)
                }
                TlsEntry::Passthrough(routes) => {
                    let split = route(routes).ok_or(Refusal::UnknownName)?;
                    let stream = Stream::Plain(stream);
                    Ok(tcp::forward(stream, Some(&split), &listener.tasks).await?)
                }
            }
        }
    }
}

async fn handshake(
    config: &Arc<ServerConfig>,
    stream: Prefixed,
) -> Result<Box<server::TlsStream<Prefixed>>, Refusal> {
    let accepting = TlsAcceptor::from(Arc::clone(config)).accept(stream);
    let accepted = tokio::time::timeout(HANDSHAKE_TIMEOUT, accepting).await;
    Ok(Box::new(accepted.map_err(|_| Refusal::Timeout)??))
}

/// Reads the first message of a TLS client. The name is normalized, and empty if there is none; the
/// stream begins with the message again. `bytes` were read before.
async fn read_hello(
    mut stream: TcpStream,
    mut bytes: Vec<u8>,
) -> Result<(Prefixed, String), Refusal> {
    let mut acceptor = Acceptor::default();
    let mut seen = 0;
    loop {
        if bytes.len() == seen && stream.read_buf(&mut bytes).await? == 0 {
            return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
        }
        let mut part = bytes.get(seen..).unwrap_or_default();
        seen = bytes.len();
        if seen > HELLO_BYTES_MAX {
            return Err(Refusal::HelloTooLarge);
        }
        while !part.is_empty() {
            acceptor.read_tls(&mut part)?;
        }
        match acceptor.accept() {
            Ok(None) => {}
            Ok(Some(accepted)) => {
                let name = accepted.client_hello().server_name().map(str::to_owned);
                let name = normalized(&name.unwrap_or_default()).into_owned();
                return Ok((Prefixed::new(stream, bytes), name));
            }
            Err((error, _)) => return Err(error.into()),
        }
    }
}

/// The certificates of one listener: the first one that is valid for the server name, else the
/// first.
#[derive(Debug)]
struct ListenerCertificates(Vec<Arc<CertifiedKey>>);

impl ResolvesServerCert for ListenerCertificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name().and_then(|name| ServerName::try_from(name).ok());
        let is_valid = |pair: &&Arc<CertifiedKey>| {
            let parsed = pair.end_entity_cert().ok().map(ParsedCertificate::try_from);
            let (Some(Ok(parsed)), Some(name)) = (parsed, &name) else { return false };
            verify_server_name(&parsed, name).is_ok()
        };
        self.0.iter().find(is_valid).or(self.0.first()).cloned()
    }
}

/// One key for the tickets of all listeners without verification of clients.
fn ticketer() -> Result<Arc<dyn ProducesTickets>, rustls::Error> {
    static TICKETER: OnceLock<Arc<dyn ProducesTickets>> = OnceLock::new();
    match TICKETER.get() {
        Some(known) => Ok(Arc::clone(known)),
        None => {
            let made = ring::Ticketer::new()?;
            Ok(Arc::clone(TICKETER.get_or_init(|| made)))
        }
    }
}

/// How certificates of clients are verified.
#[derive(Debug, Clone)]
pub struct ClientValidation {
    /// The authorities.
    pub roots: Arc<Roots>,
    /// Clients without a valid certificate are served, too.
    pub allows_invalid: bool,
}

/// The TLS settings of a listener.
///
/// # Errors
/// The authorities of clients cannot be used.
pub fn server_config(
    certificates: &[Arc<CertifiedKey>],
    validation: Option<&ClientValidation>,
) -> Result<Arc<ServerConfig>, rustls::Error> {
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()?;
    let builder = match validation {
        None => builder.with_no_client_auth(),
        Some(validation) if validation.allows_invalid => {
            let subjects = validation.roots.store.subjects();
            builder.with_client_cert_verifier(Arc::new(AnyClient::new(subjects, provider)))
        }
        Some(validation) => {
            let roots = Arc::clone(&validation.roots.store);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build();
            let verifier = verifier.map_err(|e| rustls::Error::General(e.to_string()))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let resolver = Arc::new(ListenerCertificates(certificates.to_vec()));
    let mut config = builder.with_cert_resolver(resolver);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    match validation {
        None => {
            config.ticketer = ticketer()?;
            config.send_tls13_tickets = TICKETS;
        }
        // A session must not outlive a change of the authorities.
        Some(_) => config.session_storage = Arc::new(NoServerSessionStorage {}),
    }
    Ok(Arc::new(config))
}

/// Serves the datagrams of a port until its tasks stop.
pub async fn serve_datagrams(port: Arc<Port>, socket: tokio::net::UdpSocket) {
    super::udp::serve(Arc::new(socket), &port.entry, &port.listener.tasks).await;
}
