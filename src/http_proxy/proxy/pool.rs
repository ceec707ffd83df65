//! Connections to one endpoint.

use std::future::{Future as _, poll_fn};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;

use base::{Kind, Tasks};
use http::{Request, Response};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::body::{EndpointBody, Lease, RequestBody};
use super::http1::{ExchangeError, Http1, Unanswered};
use super::stream::Stream;
use super::upstream::UpstreamTls;
use crate::backend::{Endpoint, Protocol};

/// Idle connections that an endpoint keeps. With fewer, clients over HTTP/2 open connections for
/// most of their concurrent requests, and the node runs out of local ports.
const IDLE_MAX: usize = 256;
/// How long a connection may be idle. Shorter than the idle time of common servers (Go has none,
/// nginx 75 s, node 5 s; a closed one is detected and replaced).
const IDLE_TIME: Duration = Duration::from_secs(55);
/// Idle connections that were used since are watched again after this time.
const WATCH_PAUSE: Duration = Duration::from_secs(5);

#[derive(Debug)]
struct Idle {
    connection: Box<Http1>,
    since: tokio::time::Instant,
}

/// The connections to one endpoint.
#[derive(Debug)]
pub(crate) struct Pool {
    protocol: Protocol,
    /// How connections are encrypted.
    tls: Option<Arc<UpstreamTls>>,
    state: Arc<Mutex<State>>,
    /// Owner of the task that watches idle connections; set by the first connection.
    tasks: OnceLock<Tasks>,
}

#[derive(Debug, Default)]
struct State {
    /// Connections without a request; the most recently used last.
    idle: Vec<Idle>,
    /// A task closes idle connections.
    is_watched: bool,
    /// The connection of HTTP/2, which all requests share.
    shared: Option<http2::SendRequest<RequestBody>>,
    /// The endpoint is gone: connections are not kept.
    closed: bool,
}

/// A connection for one request.
#[derive(Debug)]
pub(crate) enum Connection {
    /// HTTP/1.1.
    Http1(Box<Http1>),
    /// HTTP/2.
    Http2(http2::SendRequest<RequestBody>),
}

/// Why a request was not answered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SendError {
    /// The connection was closed before the request was written, or before its response if the
    /// request may be repeated; it is complete and may be sent over another connection.
    #[error("the connection was closed before the response")]
    Unsent(Box<Request<RequestBody>>),
    /// An exchange over HTTP/1.1 failed.
    #[error("{0}")]
    Exchange(#[from] ExchangeError),
    /// The endpoint closed the connection or broke the protocol.
    #[error("{0}")]
    Http(#[from] hyper::Error),
}

/// Why no connection to an endpoint exists.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    /// The kernel's answer.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// No answer in time.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// HTTP could not begin.
    #[error("{0}")]
    Http(#[from] hyper::Error),
    /// The backend has UDP ports.
    #[error("a UDP port has no connections")]
    Datagrams,
}

impl Pool {
    pub(crate) fn new(protocol: Protocol, tls: Option<Arc<UpstreamTls>>) -> Self {
        Self { protocol, tls, state: Arc::default(), tasks: OnceLock::new() }
    }

    /// Closes idle connections; those in use are closed after their request.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.idle.clear();
        state.shared = None;
    }

    /// A connection that is ready: an idle one, else a new one.
    pub(crate) async fn connect(
        &self,
        address: SocketAddr,
        timeout: Duration,
        tasks: &Tasks,
    ) -> Result<Connection, ConnectError> {
        if let Some(found) = self.take_idle() {
            return Ok(found);
        }
        // Beside most requests, which use a kept connection, this is rare: their futures are not
        // made larger for it.
        let starting = Box::pin(self.start(address, tasks));
        match tokio::time::timeout(timeout, starting).await {
            Ok(done) => done,
            Err(_) => Err(ConnectError::Timeout(timeout)),
        }
    }

    async fn start(&self, address: SocketAddr, tasks: &Tasks) -> Result<Connection, ConnectError> {
        if self.protocol == Protocol::Udp {
            return Err(ConnectError::Datagrams);
        }
        let stream = self.open(address).await?;
        if self.protocol == Protocol::Http1 {
            self.tasks.get_or_init(|| tasks.clone());
            return Ok(Connection::Http1(Box::new(Http1::new(stream))));
        }
        let io = TokioIo::new(stream);
        let (sender, running) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(Duration::from_secs(30))
            .keep_alive_while_idle(false)
            .handshake::<_, RequestBody>(io)
            .await?;
        tasks.spawn(Kind::Request, "ingress-upstream", async move {
            // The requests that use the connection report its end.
            drop(running.await);
            Ok::<(), std::convert::Infallible>(())
        });
        let mut state = self.state.lock();
        if !state.closed {
            state.shared = Some(sender.clone());
        }
        Ok(Connection::Http2(sender))
    }

    /// A new connection without a protocol.
    pub(crate) async fn open(&self, address: SocketAddr) -> std::io::Result<Stream> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let Some(tls) = &self.tls else { return Ok(Stream::plain(stream)) };
        let connector = TlsConnector::from(Arc::clone(&tls.config));
        let stream = connector.connect(tls.name.clone(), stream).await?;
        Ok(Stream::Endpoint(Box::new(stream)))
    }

    fn take_idle(&self) -> Option<Connection> {
        let mut state = self.state.lock();
        if let Some(shared) = &state.shared {
            if !shared.is_closed() {
                return Some(Connection::Http2(shared.clone()));
            }
            state.shared = None;
        }
        while let Some(Idle { mut connection, since }) = state.idle.pop() {
            // The rest of an old list is older still.
            if since.elapsed() > IDLE_TIME {
                state.idle.clear();
                return None;
            }
            if connection.is_ready() {
                return Some(Connection::Http1(connection));
            }
        }
        None
    }

    /// Keeps a connection whose response has ended.
    pub(crate) fn give_back(&self, mut connection: Box<Http1>) {
        if !connection.is_ready() {
            return;
        }
        connection.rest();
        let mut state = self.state.lock();
        if state.closed {
            return;
        }
        if state.idle.len() >= IDLE_MAX {
            state.idle.remove(0);
        }
        state.idle.push(Idle { connection, since: base::clock::now() });
        if !state.is_watched
            && let Some(tasks) = self.tasks.get()
        {
            state.is_watched = true;
            let (state, shutdown) = (Arc::clone(&self.state), tasks.shutdown().clone());
            tasks.spawn(Kind::Request, "ingress-idle", async move {
                tokio::select! {
                    () = watch_idle(&state) => {}
                    () = shutdown.requested() => {}
                }
                Ok::<(), std::convert::Infallible>(())
            });
        }
    }
}

/// Drops idle connections that the endpoint has closed, or that are too old, until none is left.
async fn watch_idle(state: &Mutex<State>) {
    let mut pause = pin!(tokio::time::sleep(WATCH_PAUSE));
    poll_fn(|context| {
        loop {
            // A request that uses a connection takes over its wake-ups.
            let mut state = state.lock();
            state.idle.retain_mut(|idle| {
                idle.since.elapsed() <= IDLE_TIME && !idle.connection.is_ended(context)
            });
            let Some(oldest) = state.idle.first() else {
                state.is_watched = false;
                return Poll::Ready(());
            };
            if pause.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            // Connections that were in use are older than the pause at the next turn, or used.
            let youngest = state.idle.last().map_or(oldest.since, |idle| idle.since);
            let next = match youngest.elapsed() < WATCH_PAUSE {
                true => base::clock::now() + WATCH_PAUSE,
                false => oldest.since + IDLE_TIME + Duration::from_millis(1),
            };
            pause.as_mut().reset(next);
        }
    })
    .await;
}

impl Connection {
    /// Sends a request to an endpoint.
    pub(crate) async fn send(
        self,
        request: Box<Request<RequestBody>>,
        endpoint: &Arc<Endpoint>,
    ) -> Result<Response<EndpointBody>, SendError> {
        match self {
            Self::Http1(mut connection) => match connection.send(request).await {
                Ok(response) => {
                    let lease = Lease { connection, endpoint: Arc::clone(endpoint) };
                    Ok(response.map(|()| EndpointBody::Http1(Some(lease))))
                }
                Err(Unanswered::Unsent(request)) => Err(SendError::Unsent(request)),
                Err(Unanswered::Failed(error)) => Err(error.into()),
            },
            Self::Http2(mut sender) => match sender.try_send_request(*request).await {
                Ok(response) => Ok(response.map(EndpointBody::Http2)),
                Err(mut error) => Err(match error.take_message() {
                    Some(request) => SendError::Unsent(Box::new(request)),
                    None => SendError::Http(error.into_error()),
                }),
            },
        }
    }
}
