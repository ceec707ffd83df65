//! The connection to a member of etcd, with failover to the next member.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base::pki::reloadable_cert::{LiveCert, ReloadError};
use base::pki::{Leaf, RootsError, external_roots};
use base::{Backoff, Shutdown};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint as TonicEndpoint, Uri};

use super::endpoints::{Endpoints, MemberAddress};
use super::error::causes;
use crate::contract::StoreError;
use crate::external::config::DatastoreTls;

/// Timeout of a connection attempt before the next member is tried.
const CONNECT: Duration = Duration::from_secs(5);
/// Interval of keepalive pings, of which etcd allows one per 5 s, and their timeout.
const ALIVE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(5));
/// First and longest wait between attempts.
const WAIT: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// Why no member of an etcd can be connected.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectError {
    /// A TLS file cannot be read.
    #[error("{0}")]
    File(#[source] std::io::Error),
    /// The CA file is empty.
    #[error("--datastore-cafile {} is empty", .0.display())]
    EmptyCa(PathBuf),
    /// Client certificate and key cannot be used.
    #[error(
        "--datastore-certfile {} with --datastore-keyfile {}: {source}",
        certificate.display(),
        key.display()
    )]
    Certificate {
        /// File of the certificate.
        certificate: PathBuf,
        /// File of the key.
        key: PathBuf,
        /// The reason.
        source: ReloadError,
    },
    /// The CA cannot be used.
    #[error("{0}")]
    Roots(#[source] RootsError),
    /// The attempts with each member failed.
    #[error("{}", .0.iter().map(|(url, error)| format!("{url}: {error}")).collect::<Vec<_>>().join("; "))]
    Members(Vec<(String, MemberError)>),
}

/// Why a member of an etcd cannot be connected.
#[derive(Debug, thiserror::Error)]
pub(super) enum MemberError {
    /// The member did not answer.
    #[error("no answer for {} s", CONNECT.as_secs())]
    Timeout,
    /// The address is not part of a URI.
    #[error("{0}")]
    Uri(#[source] tonic::transport::Error),
    /// The connection failed.
    #[error("{}", causes(String::new(), Some(.0)).trim_start_matches(": "))]
    Transport(#[source] tonic::transport::Error),
}

/// A connection and its number.
#[derive(Debug, Clone)]
pub(super) struct Connection {
    pub(super) number: u64,
    pub(super) channel: Channel,
}

/// The members of an etcd and the current connection.
#[derive(Debug)]
pub(super) struct Connections {
    pub(super) endpoints: Endpoints,
    tls: DatastoreTls,
    current: watch::Sender<Option<Connection>>,
    /// The last error, for requests that time out.
    last_error: parking_lot::Mutex<String>,
}

impl Connections {
    /// Connects to the first reachable member.
    ///
    /// # Errors
    /// The error of every member, with its address.
    pub(super) async fn connect(
        endpoints: Endpoints,
        tls: DatastoreTls,
    ) -> Result<Self, ConnectError> {
        let connections = Self {
            endpoints,
            tls,
            current: watch::Sender::new(None),
            last_error: Default::default(),
        };
        let (_, channel) = connections.round(0).await?;
        connections.current.send_replace(Some(Connection { number: 1, channel }));
        Ok(connections)
    }

    /// The current connection, as soon as there is one.
    pub(super) async fn current(&self) -> Connection {
        let mut current = self.current.subscribe();
        loop {
            if let Some(connection) = current.borrow_and_update().clone() {
                return connection;
            }
            if current.changed().await.is_err() {
                // The sender lives as long as `self`.
                std::future::pending::<()>().await;
            }
        }
    }

    /// The last connection error.
    pub(super) fn last_error(&self) -> String {
        self.last_error.lock().clone()
    }

    /// Reports that a connection failed.
    pub(super) fn lost(&self, number: u64, error: &str) {
        self.current.send_if_modified(|current| {
            let same = current.as_ref().is_some_and(|connection| connection.number == number);
            if same {
                tracing::warn!(etcd = %self.endpoints, error, "the connection to etcd is lost, \
                    reconnecting");
                error.clone_into(&mut self.last_error.lock());
                *current = None;
            }
            same
        });
    }

    /// Reconnects after each loss.
    ///
    /// # Errors
    /// None; the health check decides how long etcd may be unreachable.
    pub(super) async fn keep_connected(
        self: Arc<Self>,
        shutdown: Shutdown,
    ) -> Result<(), StoreError> {
        let mut current = self.current.subscribe();
        let mut backoff = Backoff::new(WAIT.0, WAIT.1);
        let (mut number, mut first) = (1_u64, 1_usize);
        loop {
            tokio::select! {
                biased;
                () = shutdown.requested() => return Ok(()),
                gone = current.wait_for(Option::is_none) => if gone.is_err() { return Ok(()) },
            }
            // Also bounds the attempts with a member that accepts connections and then refuses
            // every request.
            if !backoff.wait(&shutdown).await {
                return Ok(());
            }
            let begun = base::clock::now();
            let connected = tokio::select! {
                biased;
                () = shutdown.requested() => return Ok(()),
                connected = self.round(first) => connected,
            };
            match connected {
                Ok((at, channel)) => {
                    tracing::info!(etcd = %self.endpoints, member = at, took = ?begun.elapsed(), "etcd \
                        is connected again");
                    (number, first) = (number + 1, at + 1);
                    self.current.send_replace(Some(Connection { number, channel }));
                    // A loss soon after connecting prolongs the backoff; a stable connection resets
                    // it.
                    tokio::select! {
                        biased;
                        () = shutdown.requested() => return Ok(()),
                        () = base::clock::sleep(ALIVE.0) => backoff.reset(),
                        gone = current.wait_for(Option::is_none) => {
                            if gone.is_err() { return Ok(()) }
                        }
                    }
                }
                Err(error) => *self.last_error.lock() = error.to_string(),
            }
        }
    }

    /// Tries each member once, starting with `first`.
    async fn round(&self, first: usize) -> Result<(usize, Channel), ConnectError> {
        let config = match self.endpoints.tls {
            true => Some(certificates(&self.tls).await?),
            false => None,
        };
        let count = self.endpoints.members.len();
        let mut failed = Vec::new();
        for at in (0..count).map(|n| first.wrapping_add(n) % count.max(1)) {
            let Some(member) = self.endpoints.members.get(at) else { continue };
            let connected = tokio::time::timeout(CONNECT, connect(member, config.clone())).await;
            match connected.unwrap_or(Err(MemberError::Timeout)) {
                Ok(channel) => return Ok((at, channel)),
                Err(error) => {
                    failed.push((format!("{}://{member}", self.endpoints.scheme()), error))
                }
            }
        }
        Err(ConnectError::Members(failed))
    }
}

/// The TLS configuration; files are read for each connection because certificates are renewed.
async fn certificates(tls: &DatastoreTls) -> Result<Arc<rustls::ClientConfig>, ConnectError> {
    let read = |path: &std::path::Path| base::fs::read_to_string(path).map_err(ConnectError::File);
    let ca = match &tls.ca {
        Some(path) => {
            let pem = read(path)?;
            if pem.trim().is_empty() {
                return Err(ConnectError::EmptyCa(path.clone()));
            }
            pem
        }
        None => String::new(),
    };
    let shown = match (&tls.certificate, &tls.key) {
        (Some(certificate), Some(key)) => {
            let (cert_pem, key_pem) = (read(certificate)?, read(key)?);
            let not_after = base::pki::end_of(&cert_pem).unwrap_or_default();
            let leaf = Leaf { cert_pem, key_pem: key_pem.into(), not_after };
            let (certificate, key) = (certificate.clone(), key.clone());
            Some(LiveCert::new(&leaf).map_err(|source| ConnectError::Certificate {
                certificate,
                key,
                source,
            })?)
        }
        _ => None,
    };
    let made = external_roots::client(ca.as_bytes(), false, shown).await;
    let made = made.map_err(ConnectError::Roots)?;
    let mut config = rustls::ClientConfig::clone(&made);
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}

async fn connect(
    member: &MemberAddress,
    tls: Option<Arc<rustls::ClientConfig>>,
) -> Result<Channel, MemberError> {
    // The scheme http keeps the library from adding its own TLS.
    let endpoint =
        TonicEndpoint::from_shared(format!("http://{member}")).map_err(MemberError::Uri)?;
    let endpoint = endpoint
        .http2_keep_alive_interval(ALIVE.0)
        .keep_alive_timeout(ALIVE.1)
        .keep_alive_while_idle(true);
    let to = member.clone();
    let dial = tower::service_fn(move |_: Uri| dial(to.clone(), tls.clone()));
    endpoint.connect_with_connector(dial).await.map_err(MemberError::Transport)
}

async fn dial(
    member: MemberAddress,
    tls: Option<Arc<rustls::ClientConfig>>,
) -> std::io::Result<TokioIo<base::io::BoxIo>> {
    let stream = TcpStream::connect((member.host.as_str(), member.port)).await?;
    stream.set_nodelay(true)?;
    let Some(config) = tls else { return Ok(TokioIo::new(Box::new(stream))) };
    let name = ServerName::try_from(member.host).map_err(std::io::Error::other)?;
    let stream = TlsConnector::from(config).connect(name, stream).await?;
    Ok(TokioIo::new(Box::new(stream)))
}
