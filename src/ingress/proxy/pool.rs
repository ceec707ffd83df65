//! Connections to one endpoint.

use std::net::SocketAddr;
use std::time::Duration;

use base::{Kind, Tasks};
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::net::TcpStream;

use crate::backend::Protocol;
use crate::proxy::body::RequestBody;

/// Idle connections that an endpoint keeps.
const IDLE_MAX: usize = 64;
/// How long a connection may be idle. Shorter than the idle time of common servers (Go has none,
/// nginx 75 s, node 5 s; a closed one is detected and replaced).
const IDLE_TIME: Duration = Duration::from_secs(55);

/// A sender over an HTTP/1.1 connection that is used by one request at a time.
#[derive(Debug)]
pub(crate) struct Idle {
    sender: http1::SendRequest<RequestBody>,
    since: tokio::time::Instant,
}

/// The connections to one endpoint.
#[derive(Debug)]
pub(crate) struct Pool {
    protocol: Protocol,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Connections without a request; the most recently used last.
    idle: Vec<Idle>,
    /// The connection of HTTP/2, which all requests share.
    shared: Option<http2::SendRequest<RequestBody>>,
    /// The endpoint is gone: connections are not kept.
    closed: bool,
}

/// A connection for one request.
#[derive(Debug)]
pub(crate) enum Connection {
    /// HTTP/1.1, and whether it was used before.
    Http1(http1::SendRequest<RequestBody>, bool),
    /// HTTP/2.
    Http2(http2::SendRequest<RequestBody>),
}

/// Why a request was not answered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SendError {
    /// The connection was closed before the request was written; the request is complete and may be
    /// sent over another one.
    #[error("the connection was closed before the request was sent")]
    Unsent(Box<Request<RequestBody>>),
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
}

impl Pool {
    pub(crate) fn new(protocol: Protocol) -> Self {
        Self { protocol, state: Mutex::default() }
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
        let connecting = async {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            let io = TokioIo::new(stream);
            match self.protocol {
                Protocol::Http1 => {
                    let (sender, connection) = http1::Builder::new()
                        .preserve_header_case(false)
                        .handshake::<_, RequestBody>(io)
                        .await?;
                    let running = connection.with_upgrades();
                    tasks.spawn(Kind::Request, "ingress-upstream", async move {
                        // The request that uses the connection reports its end.
                        drop(running.await);
                        Ok::<(), std::convert::Infallible>(())
                    });
                    Ok(Connection::Http1(sender, false))
                }
                Protocol::Http2 => {
                    let (sender, running) = http2::Builder::new(TokioExecutor::new())
                        .timer(TokioTimer::new())
                        .keep_alive_interval(Duration::from_secs(30))
                        .keep_alive_while_idle(false)
                        .handshake::<_, RequestBody>(io)
                        .await?;
                    tasks.spawn(Kind::Request, "ingress-upstream", async move {
                        drop(running.await);
                        Ok::<(), std::convert::Infallible>(())
                    });
                    let mut state = self.state.lock();
                    if !state.closed {
                        state.shared = Some(sender.clone());
                    }
                    Ok(Connection::Http2(sender))
                }
            }
        };
        match tokio::time::timeout(timeout, connecting).await {
            Ok(done) => done,
            Err(_) => Err(ConnectError::Timeout(timeout)),
        }
    }

    fn take_idle(&self) -> Option<Connection> {
        let mut state = self.state.lock();
        if let Some(shared) = &state.shared {
            if !shared.is_closed() {
                return Some(Connection::Http2(shared.clone()));
            }
            state.shared = None;
        }
        while let Some(idle) = state.idle.pop() {
            // The rest of an old list is older still.
            if idle.since.elapsed() > IDLE_TIME {
                state.idle.clear();
                return None;
            }
            if idle.sender.is_ready() {
                return Some(Connection::Http1(idle.sender, true));
            }
        }
        None
    }

    /// Keeps a connection whose response has ended.
    pub(crate) fn give_back(&self, sender: http1::SendRequest<RequestBody>) {
        if sender.is_closed() {
            return;
        }
        let mut state = self.state.lock();
        if state.closed {
            return;
        }
        if state.idle.len() >= IDLE_MAX {
            state.idle.remove(0);
        }
        state.idle.push(Idle { sender, since: base::clock::now() });
    }
}

impl Connection {
    /// Sends a request. The sender of HTTP/1.1 is returned with the response, to be given back when
    /// the body has ended.
    pub(crate) async fn send(
        self,
        request: Request<RequestBody>,
    ) -> Result<(Response<Incoming>, Option<http1::SendRequest<RequestBody>>), SendError> {
        match self {
            Self::Http1(mut sender, _) => match sender.try_send_request(request).await {
                Ok(response) => Ok((response, Some(sender))),
                Err(mut error) => Err(match error.take_message() {
                    Some(request) => SendError::Unsent(Box::new(request)),
                    None => SendError::Http(error.into_error()),
                }),
            },
            Self::Http2(mut sender) => match sender.try_send_request(request).await {
                Ok(response) => Ok((response, None)),
                Err(mut error) => Err(match error.take_message() {
                    Some(request) => SendError::Unsent(Box::new(request)),
                    None => SendError::Http(error.into_error()),
                }),
            },
        }
    }
}
