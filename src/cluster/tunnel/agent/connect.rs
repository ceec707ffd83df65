//! Opening a tunnel: TCP, TLS, the upgrade.

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
    BEAT_HEADER, BESIDE_HEADER, BESIDES_HEADER, HAVE_HEADER, PATH, PROTOCOL, Pace, SERVER_HEADER,
    SETTINGS_HEADER, SILENCE_HEADER, socket,
};

/// Time to reach the machine. A lost SYN is sent again after 1 s and 3 s.
const REACH_MAX: Duration = Duration::from_secs(5);
/// Time for TLS and the answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// Bytes read of a refusal.
const REFUSAL_BYTES_MAX: usize = 1000;
/// A name that every server's certificate has.
const SERVER_NAME: &str = "kubernetes";

/// What is asked for.
#[derive(Debug, Clone, Copy)]
pub(in crate::tunnel) enum Ask<'a> {
    /// A tunnel; these servers have one.
    Tunnel(&'a [String]),
    /// A connection of beats beside the tunnel.
    Beside,
}

/// A tunnel before HTTP/2.
pub(in crate::tunnel) struct Connected {
    pub(in crate::tunnel) io: BoxIo,
    /// Who the server is.
    pub(in crate::tunnel) id: String,
    pub(in crate::tunnel) pace: Pace,
    /// What the settings of the cluster are; empty from a server that does not say.
    pub(in crate::tunnel) settings: String,
    /// The address of this machine's end, where it is known.
    pub(in crate::tunnel) local: Option<IpAddr>,
}

/// Why there is no tunnel. All but `Same` are tried again.
#[derive(Debug, thiserror::Error)]
pub(in crate::tunnel) enum Failure {
    /// There is one to that server, by another address.
    #[error("another address has a tunnel to the server {0}")]
    Same(String),
    /// Nobody answers.
    #[error("{0}")]
    Unreachable(io::Error),
    /// Who answers is not trusted, or does not trust this node.
    #[error("{0}")]
    Tls(io::Error),
    /// The server has another store than this node's.
    #[error("{0}")]
    OtherStore(OtherStore),
    /// The server refuses.
    #[error("the server answers {0}: {1}")]
    Refused(StatusCode, String),
    /// The connection broke, or the answer makes no sense.
    #[error("{0}")]
    Http(String),
}

impl Failure {
    /// What is wrong and how to mend it.
    pub(super) fn sentences(&self, address: &str) -> (String, String) {
        let what = format!("no tunnel to the server {address}: {self}");
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let fix = match self {
            Self::OtherStore(_) => format!(
                "pods go on; see why {address} lost its store and bring it back. If it was replaced on purpose, stop kube-lite here, remove store.json in the agent folder of the data directory and start again"
            ),
            Self::Tls(error) if is_unknown_ca(error) => format!(
                "the CA of the cluster was replaced, or {address} is of another cluster. If it was replaced, this node has to join anew: stop kube-lite \
                 here, delete the node (kubectl delete node), remove the agent folder of the data directory, start with --server and the cluster's token"
            ),
            Self::Tls(_) => format!(
                "check that {address} is a server of this cluster and that the clocks of both machines are right (date)"
            ),
            Self::Refused(StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, _) => {
                "check the clock of this machine (date); if the cluster was made anew, remove the agent's data and join again".to_owned()
            }
            Self::Refused(..) | Self::Http(_) => {
                "check that the server runs kube-lite of a version that this agent knows (kube-lite --version)".to_owned()
            }
            Self::Unreachable(_) | Self::Same(_) => format!(
                "check that the server runs and that this machine reaches it: curl -k https://{address}/ping, ping {host}"
            ),
        };
        (what, fix)
    }
}

/// The certificate is good, but of a CA that this node does not know.
fn is_unknown_ca(error: &io::Error) -> bool {
    use rustls::{CertificateError, Error as TlsError};
    let error = error.get_ref().and_then(|e| e.downcast_ref::<TlsError>());
    // With the same name and another key the signature is what fails.
    let unknown = [CertificateError::UnknownIssuer, CertificateError::BadSignature];
    matches!(error, Some(TlsError::InvalidCertificate(why)) if unknown.contains(why))
}

/// Why TLS failed: a good certificate of a server with another store than this node's is a failure
/// of its own.
fn tls_failure(error: io::Error) -> Failure {
    use rustls::{CertificateError, Error as TlsError};
    match error.get_ref().and_then(|e| e.downcast_ref::<TlsError>()) {
        Some(TlsError::InvalidCertificate(CertificateError::Other(other))) => {
            match other.0.downcast_ref::<OtherStore>() {
                Some(store) => Failure::OtherStore(store.clone()),
                None => Failure::Tls(error),
            }
        }
        _ => Failure::Tls(error),
    }
}

/// Opens a connection to `address`.
pub(super) async fn connect(
    address: &str,
    tls: &Arc<ClientConfig>,
    ask: Ask<'_>,
    tasks: &Tasks,
) -> Result<Connected, Failure> {
    let stream = servers::connect(address, REACH_MAX).await.map_err(Failure::Unreachable)?;
    socket::tunnel(&stream);
    let local = stream.local_addr().ok().map(|at| at.ip().to_canonical());
    let rest = async {
        let name = ServerName::try_from(SERVER_NAME).map_err(|e| Failure::Http(e.to_string()))?;
        let connector = TlsConnector::from(Arc::clone(tls));
        let stream = connector.connect(name, stream).await.map_err(tls_failure)?;
        upgrade(Box::new(stream), address, ask, tasks).await
    };
    let late =
        || Failure::Unreachable(io::Error::new(io::ErrorKind::TimedOut, "no answer in time"));
    let connected = tokio::time::timeout(ANSWER_MAX, rest).await.unwrap_or_else(|_| Err(late()))?;
    Ok(Connected { local, ..connected })
}

/// Asks for the tunnel over a connection to the server.
pub(in crate::tunnel) async fn upgrade(
    io: BoxIo,
    address: &str,
    ask: Ask<'_>,
    tasks: &Tasks,
) -> Result<Connected, Failure> {
    let broken = |e: &dyn std::fmt::Display| Failure::Http(e.to_string());
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(io)).await.map_err(|e| broken(&e))?;
    let shutdown = tasks.shutdown().clone();
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
    let (request, have) = match ask {
        Ask::Tunnel(have) => (request.header(HAVE_HEADER, have.join(",")), have),
        Ask::Beside => (request.header(BESIDE_HEADER, "1"), &[][..]),
    };
    let request = request.body(Empty::<Bytes>::new()).map_err(|e| broken(&e))?;
    let response = sender.send_request(request).await.map_err(|e| broken(&e))?;
    let id = text(response.headers(), SERVER_HEADER);
    match response.status() {
        StatusCode::SWITCHING_PROTOCOLS => {}
        StatusCode::CONFLICT if have.contains(&id) => return Err(Failure::Same(id)),
        status => {
            let body = Limited::new(response.into_body(), REFUSAL_BYTES_MAX).collect().await;
            let body = body.map(|b| b.to_bytes()).unwrap_or_default();
            let text = String::from_utf8_lossy(&body).trim().to_owned();
            return Err(Failure::Refused(status, text));
        }
    }
    let millis = |name: &str, default: Duration| {
        let default = u64::try_from(default.as_millis()).unwrap_or_default();
        text(response.headers(), name).parse::<u64>().unwrap_or(default)
    };
    let pace = Pace::within_reason(
        millis(BEAT_HEADER, Pace::CALM.beat),
        millis(SILENCE_HEADER, Pace::CALM.silence),
        text(response.headers(), BESIDES_HEADER).parse().unwrap_or(0),
    );
    let settings = text(response.headers(), SETTINGS_HEADER);
    let upgraded = hyper::upgrade::on(response).await.map_err(|e| broken(&e))?;
    Ok(Connected { io: Box::new(TokioIo::new(upgraded)), id, pace, settings, local: None })
}

fn text(headers: &HeaderMap, name: &str) -> String {
    headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned()
}
