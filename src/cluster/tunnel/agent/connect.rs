//! Opens a tunnel: TCP, TLS and the HTTP upgrade.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use base::io::BoxIo;
use base::pki::store_id::OtherStore;
use base::{Kind, Tasks};
use bytes::Bytes;
use http::header::{CONNECTION, HOST, HeaderMap, UPGRADE};
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio_rustls::TlsConnector;

use crate::servers;
use crate::tunnel::{
    EXTRA_CONNECTIONS_HEADER, HAVE_HEADER, HEARTBEAT_ONLY_HEADER, HeartbeatConfig, INTERVAL_HEADER,
    PATH, PROTOCOL, SERVER_HEADER, SETTINGS_HEADER, SILENCE_HEADER, socket,
};

/// Timeout of the TCP handshake. The kernel retransmits a lost SYN after 1 s and 3 s.
const DIAL_MAX: Duration = Duration::from_secs(5);
/// Timeout of the TLS handshake and the upgrade together.
const UPGRADE_MAX: Duration = Duration::from_secs(10);
/// Maximum number of bytes read of a refusal's body.
const REFUSAL_BYTES_MAX: usize = 1000;
/// DNS name in every server's certificate: the agent verifies it instead of the address, which may
/// be missing in the certificate.
const SERVER_NAME: &str = "kubernetes";

/// The kind of a connection.
#[derive(Debug, Clone, Copy)]
pub(in crate::tunnel) enum ConnectionKind<'a> {
    /// A tunnel. The agent already has tunnels to the servers with these ids.
    Tunnel(&'a [String]),
    /// A connection that only carries heartbeats.
    HeartbeatOnly,
}

/// An upgraded connection to a server, on which HTTP/2 has not started yet.
pub(in crate::tunnel) struct Connected {
    /// The upgraded byte stream.
    pub(in crate::tunnel) io: BoxIo,
    /// Id of the server; empty if the server does not send it.
    pub(in crate::tunnel) id: String,
    /// The server's heartbeat configuration.
    pub(in crate::tunnel) config: HeartbeatConfig,
    /// Digest of the cluster's settings; empty if the server does not send it.
    pub(in crate::tunnel) settings: String,
    /// Local address of the connection, if known.
    pub(in crate::tunnel) local: Option<IpAddr>,
}

/// Why a connection could not be opened. The agent retries all but `Same`; after `Same` it first
/// waits until the existing tunnel ends.
#[derive(Debug, thiserror::Error)]
pub(in crate::tunnel) enum ConnectError {
    /// The agent has a tunnel to this server by another address.
    #[error("another address has a tunnel to the server {0}")]
    Same(String),
    /// The server does not answer.
    #[error("{0}")]
    Unreachable(io::Error),
    /// The TLS handshake failed, at the agent or at the server.
    #[error("{0}")]
    Tls(io::Error),
    /// The server's certificate is valid, but names another store than that of the node's cluster.
    #[error("{0}")]
    OtherStore(OtherStore),
    /// The server refused the request.
    #[error("the server responds {0}: {1}")]
    Refused(StatusCode, String),
    /// The HTTP connection failed, or the response is invalid.
    #[error("{0}")]
    Http(String),
}

impl ConnectError {
    /// The problem and the fix, as `kube-lite status` shows them.
    pub(super) fn describe(&self, address: &str) -> (String, String) {
        let what = format!("no tunnel to the server {address}: {self}");
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let fix = match self {
            Self::OtherStore(_) => format!(
                "pods continue to run; find out why {address} lost its store, and restore it. If the store was replaced on purpose, stop kube-lite here, remove store.json in the agent folder of the data directory and start again"
            ),
            Self::Tls(error) if is_unknown_ca(error) => format!(
                "the CA of the cluster was replaced, or {address} is of another cluster. If it was replaced, this node has to join again: stop kube-lite \
                 here, delete the node (kubectl delete node), remove the agent folder of the data directory, start with --server and the cluster's token"
            ),
            Self::Tls(_) => format!(
                "check that {address} is a server of this cluster and that the clocks of both machines are right (date)"
            ),
            Self::Refused(StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, _) => {
                "check the clock of this machine (date); if the cluster was created again, remove the agent's data and join again".to_owned()
            }
            Self::Refused(..) | Self::Http(_) => {
                "check that the versions of kube-lite on the server and on this machine are compatible (kube-lite --version)".to_owned()
            }
            Self::Unreachable(_) | Self::Same(_) => format!(
                "check that the server runs and that this machine reaches it: curl -k https://{address}/ping, ping {host}"
            ),
        };
        (what, fix)
    }
}

/// Whether verification failed because no CA that the agent trusts signed the certificate.
fn is_unknown_ca(error: &io::Error) -> bool {
    use rustls::{CertificateError, Error as TlsError};
    let error = error.get_ref().and_then(|e| e.downcast_ref::<TlsError>());
    // If the signing CA has the same name as a trusted CA but another key, rustls reports
    // `BadSignature` instead of `UnknownIssuer`.
    let unknown_ca = [CertificateError::UnknownIssuer, CertificateError::BadSignature];
    matches!(error, Some(TlsError::InvalidCertificate(why)) if unknown_ca.contains(why))
}

/// Converts an error of the TLS handshake. The certificate verifier reports a server with another
/// store as [`OtherStore`] in `CertificateError::Other`.
fn classify_tls_error(error: io::Error) -> ConnectError {
    use rustls::{CertificateError, Error as TlsError};
    match error.get_ref().and_then(|e| e.downcast_ref::<TlsError>()) {
        Some(TlsError::InvalidCertificate(CertificateError::Other(other))) => {
            match other.0.downcast_ref::<OtherStore>() {
                Some(store) => ConnectError::OtherStore(store.clone()),
                None => ConnectError::Tls(error),
            }
        }
        _ => ConnectError::Tls(error),
    }
}

/// Opens a connection of this kind to `address`.
pub(super) async fn connect(
    address: &str,
    tls: &Arc<ClientConfig>,
    kind: ConnectionKind<'_>,
    tasks: &Tasks,
) -> Result<Connected, ConnectError> {
    let stream = servers::connect(address, DIAL_MAX).await.map_err(ConnectError::Unreachable)?;
    socket::set_tunnel_options(&stream);
    let local = stream.local_addr().ok().map(|at| at.ip().to_canonical());
    let tls_and_upgrade = async {
        let name =
            ServerName::try_from(SERVER_NAME).map_err(|e| ConnectError::Http(e.to_string()))?;
        let connector = TlsConnector::from(Arc::clone(tls));
        let stream = connector.connect(name, stream).await.map_err(classify_tls_error)?;
        upgrade(Box::new(stream), address, kind, tasks).await
    };
    let timed_out =
        || ConnectError::Unreachable(io::Error::new(io::ErrorKind::TimedOut, "no answer in time"));
    let connected = tokio::time::timeout(UPGRADE_MAX, tls_and_upgrade)
        .await
        .unwrap_or_else(|_| Err(timed_out()))?;
    Ok(Connected { local, ..connected })
}

/// Sends the upgrade request over a connection to the server and reads its response.
pub(in crate::tunnel) async fn upgrade(
    io: BoxIo,
    address: &str,
    kind: ConnectionKind<'_>,
    tasks: &Tasks,
) -> Result<Connected, ConnectError> {
    let http_error = |e: &dyn std::fmt::Display| ConnectError::Http(e.to_string());
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(io))
        .await
        .map_err(|e| http_error(&e))?;
    let shutdown = tasks.shutdown().clone();
    // Drives the HTTP/1.1 connection until hyper hands over the upgraded stream.
    tasks.spawn(Kind::Request, "tunnel-upgrade", async move {
        tokio::select! {
            ended = connection.with_upgrades() => drop(ended),
            () = shutdown.requested() => {}
        }
        Ok::<(), std::convert::Infallible>(())
    });
    let request = Request::get(PATH)
        .header(HOST, address)
        .header(CONNECTION, "upgrade")
        .header(UPGRADE, PROTOCOL);
    let (request, have) = match kind {
        ConnectionKind::Tunnel(have) => (request.header(HAVE_HEADER, have.join(",")), have),
        ConnectionKind::HeartbeatOnly => (request.header(HEARTBEAT_ONLY_HEADER, "1"), &[][..]),
    };
    let request = request.body(Empty::<Bytes>::new()).map_err(|e| http_error(&e))?;
    let response = sender.send_request(request).await.map_err(|e| http_error(&e))?;
    let id = header_text(response.headers(), SERVER_HEADER);
    match response.status() {
        StatusCode::SWITCHING_PROTOCOLS => {}
        // The agent named the id of this server in `HAVE_HEADER`.
        StatusCode::CONFLICT if have.contains(&id) => return Err(ConnectError::Same(id)),
        status => {
            let body = Limited::new(response.into_body(), REFUSAL_BYTES_MAX).collect().await;
            let body = body.map(|b| b.to_bytes()).unwrap_or_default();
            let text = String::from_utf8_lossy(&body).trim().to_owned();
            return Err(ConnectError::Refused(status, text));
        }
    }
    let millis = |name: &str, default: Duration| {
        let default = u64::try_from(default.as_millis()).unwrap_or_default();
        header_text(response.headers(), name).parse::<u64>().unwrap_or(default)
    };
    let config = HeartbeatConfig::within_reason(
        millis(INTERVAL_HEADER, HeartbeatConfig::CALM.interval),
        millis(SILENCE_HEADER, HeartbeatConfig::CALM.silence),
        header_text(response.headers(), EXTRA_CONNECTIONS_HEADER).parse().unwrap_or(0),
    );
    let settings = header_text(response.headers(), SETTINGS_HEADER);
    let upgraded = hyper::upgrade::on(response).await.map_err(|e| http_error(&e))?;
    Ok(Connected { io: Box::new(TokioIo::new(upgraded)), id, config, settings, local: None })
}

/// The text of a header; empty if it is missing or not text.
fn header_text(headers: &HeaderMap, name: &str) -> String {
    headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned()
}
