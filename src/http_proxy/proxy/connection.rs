//! Listeners and the connections of clients.

use std::convert::Infallible;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use base::accept::{Accepted, accept};
use base::{Kind, Shutdown, Tasks};
use http::header::CONNECTION;
use http::{HeaderValue, Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::{HttpService, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulConnection;
use rustls::server::Acceptor;
use settings::TrustedProxies;
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{LazyConfigAcceptor, server};

use super::body::ResponseBody;
use super::exchange::{Client, answer_request};
use super::proxy_protocol::{self, Header};
use super::splice::Pipe;
use super::stream::{Prefixed, Stream};
use super::streams::{MultiplexedConnection, StreamExecutor};
use super::tls::TlsSettings;
use crate::routes::Routes;

/// Connections of one listener that are served at once; more wait in the kernel's queue.
pub(super) const CONNECTIONS_MAX: usize = 8192;
/// Time for the TLS handshake.
pub(super) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for the head of a request, and for which a connection may be idle (nginx's
/// `keepalive_timeout` is 75 s, its `client_header_timeout` 60 s).
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// What a client over HTTP/2 sends first (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Bytes that are read to learn the protocol; a common head fits.
const FIRST_BYTES: usize = 1024;
/// Bytes of the head of a request.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Requests of one HTTP/2 connection at a time (nginx's `http2_max_concurrent_streams`).
const STREAMS_MAX: u32 = 128;
/// Streams that a client has reset and that are still served (CVE-2023-44487).
const RESET_STREAMS_MAX: usize = 20;
/// Bytes that a stream may receive before the endpoint has read them.
const STREAM_WINDOW: u32 = 256 * 1024;
/// The same for all streams of a connection.
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// How long a connection without a request waits for the last one once the process stops.
const LAST_REQUEST_TIME: Duration = Duration::from_millis(200);
/// How long requests in progress may take once the process stops.
const DRAIN_TIME: Duration = Duration::from_secs(2);

/// One port on which clients are served.
pub struct Listener {
    /// The port as clients see it, for redirects and forwarded headers.
    pub public_port: u16,
    /// The routes, exchanged when objects change.
    pub routes: ArcSwap<Routes>,
    /// TLS settings; `None` serves plain HTTP.
    pub tls: Option<Arc<TlsSettings>>,
    /// Proxies in front of this one, whose headers about the client are kept.
    pub proxies: Arc<TrustedProxies>,
    /// Tasks of connections.
    pub tasks: Tasks,
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("public_port", &self.public_port).finish_non_exhaustive()
    }
}

impl Listener {
    /// Whether headers about the client come from a proxy that may set them.
    pub(super) fn trusts(&self, address: IpAddr) -> bool {
        self.proxies.contains(address)
    }

    /// The address of the client of a connection from `peer`, and the bytes that were read of it.
    /// A trusted proxy may tell the address by the PROXY protocol.
    ///
    /// # Errors
    /// The header is malformed, or does not end in time.
    pub(super) async fn client_of(
        &self,
        peer: SocketAddr,
        stream: &mut TcpStream,
    ) -> Result<(SocketAddr, Vec<u8>), HeaderError> {
        if !self.proxies.proxy_protocol || !self.trusts(peer.ip()) {
            return Ok((peer, Vec::new()));
        }
        let reading = read_header(peer, stream);
        tokio::time::timeout(HEAD_TIMEOUT, reading).await.map_err(|_| HeaderError::Timeout)?
    }
}

/// Accepts connections until shutdown; returns the socket, with the connections in its queue.
pub async fn serve(listener: Arc<Listener>, socket: TcpListener) -> TcpListener {
    let shutdown = listener.tasks.shutdown().clone();
    accept(&socket, "ingress", CONNECTIONS_MAX, &shutdown, |accepted| {
        let listener = Arc::clone(&listener);
        let tasks = listener.tasks.clone();
        tasks.spawn(Kind::Request, "ingress-connection", async move {
            serve_connection(&listener, accepted).await;
            Ok::<(), Infallible>(())
        });
    })
    .await;
    socket
}

/// Why the header of a proxy in front of this one cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum HeaderError {
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("{0}")]
    Malformed(#[from] proxy_protocol::BadHeader),
    #[error("the header of the PROXY protocol does not end within {HEAD_TIMEOUT:?}")]
    Timeout,
}

/// Reads a header of the PROXY protocol; returns the client's address and the bytes behind it.
async fn read_header(
    peer: SocketAddr,
    stream: &mut TcpStream,
) -> Result<(SocketAddr, Vec<u8>), HeaderError> {
    let mut bytes = Vec::with_capacity(FIRST_BYTES);
    loop {
        let is_end = stream.read_buf(&mut bytes).await? == 0;
        match proxy_protocol::parse(&bytes)? {
            Header::Partial if !is_end => {}
            Header::Partial | Header::Absent => return Ok((peer, bytes)),
            Header::Complete { length, client } => {
                return Ok((client.unwrap_or(peer), bytes.split_off(length)));
            }
        }
    }
}

/// Reads the first bytes of a client without TLS until they tell its protocol. `bytes` were read
/// before.
async fn first_bytes(stream: &mut TcpStream, mut bytes: Vec<u8>) -> std::io::Result<Vec<u8>> {
    bytes.reserve(FIRST_BYTES);
    loop {
        let is_preface = bytes.iter().zip(PREFACE).all(|(byte, expected)| byte == expected);
        if !is_preface || bytes.len() >= PREFACE.len() {
            return Ok(bytes);
        }
        if stream.read_buf(&mut bytes).await? == 0 {
            return Ok(bytes);
        }
    }
}

/// Serves HTTP over a connection without TLS. A client that stays silent is closed like one whose
/// head does not end.
pub(super) async fn serve_plain(
    listener: &Arc<Listener>,
    client: Client,
    mut stream: TcpStream,
    read: Vec<u8>,
) {
    let shutdown = listener.tasks.shutdown();
    let reading = tokio::time::timeout(HEAD_TIMEOUT, first_bytes(&mut stream, read));
    let read = tokio::select! {
        read = reading => read,
        // A connection that has just been accepted may have its request under way.
        () = async {
            shutdown.requested().await;
            base::clock::sleep(LAST_REQUEST_TIME).await;
        } => return,
    };
    let Ok(Ok(bytes)) = read else {
        return tracing::debug!(from = %client.address, "ingress: no request from the client");
    };
    let is_http2 = bytes.starts_with(PREFACE);
    let stream = Stream::Plain(Prefixed::new(stream, bytes));
    serve_http(listener, client, stream, is_http2).await;
}

/// Serves HTTP over a connection with TLS, in the protocol that the handshake has chosen.
pub(super) async fn serve_tls(
    listener: &Arc<Listener>,
    client: Client,
    stream: Box<server::TlsStream<Prefixed>>,
) {
    let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    serve_http(listener, client, Stream::Client(stream), is_http2).await;
}

fn http1_builder() -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        // Heads have at most 100 fields, hyper's limit, for which it allocates no memory.
        .max_buf_size(HEAD_BYTES_MAX);
    builder
}

fn http2_builder(executor: StreamExecutor) -> http2::Builder<StreamExecutor> {
    let mut builder = http2::Builder::new(executor);
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_pending_accept_reset_streams(RESET_STREAMS_MAX)
        .max_header_list_size(HEAD_BYTES_MAX as u32)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .keep_alive_interval(HEAD_TIMEOUT)
        .keep_alive_timeout(HANDSHAKE_TIMEOUT);
    builder
}

async fn serve_connection(listener: &Arc<Listener>, accepted: Accepted) {
    let Accepted { mut stream, from, place } = accepted;
    let (address, read) = match listener.client_of(from, &mut stream).await {
        Ok(client) => client,
        Err(error) => return tracing::debug!(%from, %error, "ingress: connection is not served"),
    };
    let client = Client::new(address, listener.tls.is_some(), None);
    match &listener.tls {
        None => serve_plain(listener, client, stream, read).await,
        Some(settings) => {
            let handshake = async {
                let stream = Prefixed::new(stream, read);
                let start = LazyConfigAcceptor::new(Acceptor::default(), stream).await?;
                let settings = settings.of(&start.client_hello());
                start.into_stream(settings).await.map(Box::new)
            };
            match tokio::time::timeout(HANDSHAKE_TIMEOUT, Box::pin(handshake)).await {
                Ok(Ok(stream)) => {
                    serve_tls(listener, client, stream).await;
                }
                Ok(Err(error)) => tracing::debug!(%from, %error, "ingress: no TLS"),
                Err(_) => tracing::debug!(%from, "ingress: TLS handshake took too long"),
            }
        }
    }
    drop(place);
}

/// What the task of a connection and its requests tell each other.
#[derive(Debug, Default)]
struct State {
    /// Where the kernel moves large bodies to a client over HTTP/1.1 without TLS.
    pipe: Option<Pipe>,
    /// The process stops: the next response ends the connection.
    closing: AtomicBool,
    /// A request came over HTTP/2. Before the first one the end of the connection waits for it.
    is_http2: AtomicBool,
}

/// Answers a request; the last response of a connection over HTTP/1.1 says so.
async fn answer(
    listener: Arc<Listener>,
    client: Client,
    state: Arc<State>,
    request: Request<Incoming>,
) -> Result<Response<ResponseBody>, Infallible> {
    let is_http2 = request.version() == Version::HTTP_2;
    if is_http2 {
        state.is_http2.store(true, Ordering::Relaxed);
    }
    let mut response = answer_request(&listener, client, request).await?;
    if let Some(pipe) = &state.pipe {
        response.body_mut().set_pipe(pipe);
    }
    let is_last = state.closing.load(Ordering::Relaxed) && !is_http2;
    if is_last && response.status() != StatusCode::SWITCHING_PROTOCOLS {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(response)
}

/// Serves HTTP over a connection until it ends or the listener stops.
async fn serve_http(listener: &Arc<Listener>, client: Client, mut stream: Stream, is_http2: bool) {
    let pipe = if is_http2 { None } else { stream.with_pipe() };
    let state = Arc::new(State { pipe, ..State::default() });
    let address = client.address;
    let service = service_fn(|request: Request<Incoming>| {
        answer(Arc::clone(listener), client.clone(), Arc::clone(&state), request)
    });
    let stream = TokioIo::new(stream);
    let shutdown = listener.tasks.shutdown();
    let ended = if is_http2 {
        let executor = StreamExecutor::default();
        let serving = http2_builder(executor.clone()).serve_connection(stream, service);
        let serving = MultiplexedConnection::new(serving, executor);
        drive(std::pin::pin!(serving), &state, shutdown).await
    } else {
        let serving = http1_builder().serve_connection(stream, service).with_upgrades();
        drive(std::pin::pin!(serving), &state, shutdown).await
    };
    if let Err(error) = ended {
        tracing::debug!(from = %address, %error, "ingress: connection ended");
    }
}

/// A connection that can end after the requests in progress.
trait Graceful: Future<Output = Result<(), hyper::Error>> {
    fn end_gracefully(self: Pin<&mut Self>);
}

impl<S> Graceful for http1::UpgradeableConnection<TokioIo<Stream>, S>
where
    S: HttpService<Incoming, ResBody = ResponseBody, Error = Infallible>,
{
    fn end_gracefully(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

impl<C> Graceful for MultiplexedConnection<C>
where
    C: GracefulConnection<Error = hyper::Error>,
{
    fn end_gracefully(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

/// Runs a connection until it ends. Once the process stops, requests in progress end first.
async fn drive(
    mut serving: Pin<&mut impl Graceful>,
    state: &State,
    shutdown: &Shutdown,
) -> Result<(), hyper::Error> {
    tokio::select! {
        ended = serving.as_mut() => return ended,
        () = shutdown.requested() => state.closing.store(true, Ordering::Relaxed),
    }
    // A client over HTTP/1.1 may have sent its next request already: it gets its answer, with
    // `Connection: close`. HTTP/2 has GOAWAY for that.
    if !state.is_http2.load(Ordering::Relaxed)
        && let Ok(ended) = tokio::time::timeout(LAST_REQUEST_TIME, serving.as_mut()).await
    {
        return ended;
    }
    serving.as_mut().end_gracefully();
    tokio::time::timeout(DRAIN_TIME, serving).await.unwrap_or(Ok(()))
}
