//! Requests to the registries of other nodes, over their kubelet API with mutual TLS.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::FuturesUnordered;
use futures::{Stream, StreamExt};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::peers::Peer;
use crate::digest::Sha256;

/// Time limit for connecting to a node and for its answer; after it containerd pulls from the
/// registry.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Time limit for each further part of the content.
const PART_TIMEOUT: Duration = Duration::from_secs(30);

/// Why a node does not serve content.
#[derive(Debug, thiserror::Error)]
pub(super) enum FetchError {
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Http(#[from] hyper::Error),
    #[error("it does not answer in time")]
    Timeout,
    #[error("it answers {0}")]
    Status(StatusCode),
}

/// An open connection to a peer that has the content.
pub(super) struct Source {
    pub(super) peer: Peer,
    connection: SendRequest<Empty<Bytes>>,
    /// Headers of the answer to HEAD.
    pub(super) headers: HeaderMap,
}

/// Connects to a peer. The connection ends when its handle is dropped.
async fn connect(
    peer: &Peer,
    tls: &Arc<ClientConfig>,
    tasks: &base::Tasks,
) -> Result<SendRequest<Empty<Bytes>>, FetchError> {
    let stream = TcpStream::connect((peer.address, peer.port)).await?;
    stream.set_nodelay(true)?;
    let name = ServerName::IpAddress(peer.address.into());
    let stream = TlsConnector::from(Arc::clone(tls)).connect(name, stream).await?;
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let stop = tasks.shutdown().clone();
    tasks.spawn(base::Kind::Request, "registry-peer", async move {
        tokio::select! {
            () = stop.requested() => Ok(()),
            ended = connection => ended,
        }
    });
    Ok(sender)
}

async fn send(
    connection: &mut SendRequest<Empty<Bytes>>,
    method: Method,
    peer: &Peer,
    path: &str,
    range: Option<&HeaderValue>,
) -> Result<Response<Incoming>, FetchError> {
    let host = std::net::SocketAddr::new(peer.address, peer.port).to_string();
    let mut request = Request::builder().method(method).uri(path).header(header::HOST, host);
    if let Some(range) = range {
        request = request.header(header::RANGE, range);
    }
    let request = request.body(Empty::new()).map_err(std::io::Error::other)?;
    let response = connection.send_request(request).await?;
    if response.status().is_success() {
        Ok(response)
    } else {
        Err(FetchError::Status(response.status()))
    }
}

/// Asks the peers at the same time; returns the first that has the content.
pub(super) async fn find(
    peers: Vec<Peer>,
    path: &str,
    tls: &Arc<ClientConfig>,
    tasks: &base::Tasks,
) -> Option<Source> {
    let ask = |peer: Peer| async move {
        let asked = async {
            let mut connection = connect(&peer, tls, tasks).await?;
            let answer = send(&mut connection, Method::HEAD, &peer, path, None).await?;
            let headers = answer.headers().clone();
            // Only a consumed answer frees the connection for the next request.
            let _ = answer.into_body().collect().await?;
            Ok((connection, headers))
        };
        let outcome = tokio::time::timeout(ANSWER_TIMEOUT, asked).await;
        match outcome.unwrap_or(Err(FetchError::Timeout)) {
            Ok((connection, headers)) => Some(Source { peer, connection, headers }),
            Err(error) => {
                tracing::debug!(node = peer.node, path, %error, "image registry: not from node");
                None
            }
        }
    };
    let mut asked: FuturesUnordered<_> = peers.into_iter().map(ask).collect();
    while let Some(answer) = asked.next().await {
        if answer.is_some() {
            return answer;
        }
    }
    None
}

impl Source {
    /// Size of the content.
    pub(super) fn size(&self) -> Option<u64> {
        self.headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
    }

    /// Requests the content or a part of it.
    pub(super) async fn get(
        &mut self,
        path: &str,
        range: Option<&HeaderValue>,
    ) -> Result<Response<Incoming>, FetchError> {
        let answer = send(&mut self.connection, Method::GET, &self.peer, path, range);
        tokio::time::timeout(ANSWER_TIMEOUT, answer).await.map_err(|_| FetchError::Timeout)?
    }
}

/// The content of an answer does not match its digest.
#[derive(Debug, thiserror::Error)]
pub(super) enum BodyError {
    #[error("the content of node {node} does not match {digest}")]
    Corrupt { node: String, digest: String },
    #[error("cannot read from node {node}: {why}")]
    Read { node: String, why: String },
}

/// What is expected of a body.
pub(super) struct Expected {
    pub(super) node: String,
    /// Not set for a part, which only containerd can verify.
    pub(super) digest: Option<String>,
}

/// State of [`parts`].
struct Reader {
    body: Incoming,
    hash: Sha256,
    /// The last part, which is passed on only after the digest of the whole was verified.
    held: Option<Bytes>,
    expected: Expected,
    done: bool,
}

impl Reader {
    fn read_error(&self, why: impl ToString) -> BodyError {
        BodyError::Read { node: self.expected.node.clone(), why: why.to_string() }
    }

    /// The next part; `None` at the end.
    async fn next(&mut self) -> Result<Option<Bytes>, BodyError> {
        while !self.done {
            let frame = tokio::time::timeout(PART_TIMEOUT, self.body.frame()).await;
            match frame.map_err(|_| self.read_error("no data for 30 s"))? {
                Some(frame) => {
                    let frame = frame.map_err(|error| self.read_error(error))?;
                    let Ok(data) = frame.into_data() else { continue };
                    self.hash.update(&data);
                    if let Some(before) = self.held.replace(data) {
                        return Ok(Some(before));
                    }
                }
                None => {
                    self.done = true;
                    let found = std::mem::take(&mut self.hash).finish();
                    if let Some(digest) = self.expected.digest.take().filter(|d| *d != found) {
                        let node = self.expected.node.clone();
                        return Err(BodyError::Corrupt { node, digest });
                    }
                }
            }
        }
        Ok(self.held.take())
    }
}

/// The parts of a body. The last one is withheld until the digest of all was verified, so that
/// other content never arrives completely.
pub(super) fn parts(
    body: Incoming,
    expected: Expected,
) -> impl Stream<Item = Result<Bytes, BodyError>> + Send {
    let reader = Reader { body, hash: Sha256::default(), held: None, expected, done: false };
    futures::stream::unfold(Some(reader), |reader| async move {
        let mut reader = reader?;
        match reader.next().await {
            Ok(Some(part)) => Some((Ok(part), Some(reader))),
            Ok(None) => None,
            Err(error) => Some((Err(error), None)),
        }
    })
}
