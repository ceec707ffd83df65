//! The server side: accepts connections of peers and passes their messages to handlers.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::accept::{Accepted, accept};
use base::tasks::{Kind, Tasks};
use base::{Cork, InlineExecutor};
use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::{CONTROL_PATH, KEEPALIVE, PATH, WINDOWS};

/// Maximum number of connections: two of each member, and as many that a peer has lost.
const CONNECTIONS_MAX: usize = 64;
/// Maximum number of concurrent messages of one connection.
const STREAMS_MAX: u32 = 256;
/// Timeout of the handshake.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// Timeout of receiving a message: the largest one at about 100 KB/s.
const MESSAGE_TIME: Duration = Duration::from_secs(120);

/// Creates a handler per connection.
pub trait PeerService: Send + Sync + 'static {
    /// The handler of a new connection; dropped at its end.
    fn handler(&self) -> Arc<dyn PeerHandler>;
}

/// Handles the messages of one connection of another server.
#[async_trait]
pub trait PeerHandler: Send + Sync {
    /// The response to a message of the store.
    async fn answer(&self, message: &[u8]) -> Vec<u8>;

    /// The response to a control message.
    async fn answer_control(&self, message: &[u8]) -> Vec<u8>;
}

/// Serves messages of at most `message_max` bytes until `tasks` shut down. `tls` must require a
/// peer certificate. The future is boxed as that of [`super::PeerClient::call`].
#[inline(never)]
pub fn serve(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    message_max: usize,
    service: Arc<dyn PeerService>,
    tasks: Tasks,
) -> BoxFuture<'static, ()> {
    Box::pin(run(listener, tls, message_max, service, tasks))
}

async fn run(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    message_max: usize,
    service: Arc<dyn PeerService>,
    tasks: Tasks,
) {
    let acceptor = TlsAcceptor::from(tls);
    accept(&listener, "peers", CONNECTIONS_MAX, tasks.shutdown(), |accepted| {
        let (acceptor, service) = (acceptor.clone(), Arc::clone(&service));
        let shutdown = tasks.shutdown().clone();
        tasks.spawn(Kind::Request, "peer", async move {
            let Accepted { stream, from, place: _place } = accepted;
            let ended = tokio::select! {
                ended = drive(stream, acceptor, message_max, &*service) => ended,
                () = shutdown.requested() => Ok(()),
            };
            if let Err(error) = ended {
                tracing::debug!(%from, %error, "the connection of a peer ended");
            }
            Ok::<(), Infallible>(())
        });
    })
    .await;
}

async fn drive(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    message_max: usize,
    service: &dyn PeerService,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let stream = tokio::time::timeout(HANDSHAKE_MAX, acceptor.accept(stream)).await??;
    let cork = Cork::new(Box::new(stream));
    let handler = service.handler();
    let service = service_fn(move |request| {
        let handler = Arc::clone(&handler);
        async move { Ok::<_, Infallible>(answer(request, message_max, &*handler).await) }
    });
    let executor = InlineExecutor::default();
    let connection = hyper::server::conn::http2::Builder::new(executor.clone())
        .timer(TokioTimer::new())
        .auto_date_header(false)
        .max_concurrent_streams(STREAMS_MAX)
        .initial_stream_window_size(WINDOWS.0)
        .initial_connection_window_size(WINDOWS.1)
        .keep_alive_interval(KEEPALIVE.0)
        .keep_alive_timeout(KEEPALIVE.1)
        .serve_connection(TokioIo::new(cork.clone()), service);
    Ok(executor.drive_corked(connection, &cork).await?)
}

async fn answer(
    request: Request<Incoming>,
    message_max: usize,
    handler: &dyn PeerHandler,
) -> Response<Full<Bytes>> {
    let with = |status, body| {
        let mut response = Response::new(Full::new(body));
        *response.status_mut() = status;
        response
    };
    let is_control = request.uri().path() == CONTROL_PATH;
    if !is_control && request.uri().path() != PATH || request.method() != Method::POST {
        return with(StatusCode::NOT_FOUND, Bytes::new());
    }
    let body = Limited::new(request.into_body(), message_max).collect();
    match tokio::time::timeout(MESSAGE_TIME, body).await {
        Ok(Ok(body)) if is_control => {
            with(StatusCode::OK, handler.answer_control(&body.to_bytes()).await.into())
        }
        Ok(Ok(body)) => with(StatusCode::OK, handler.answer(&body.to_bytes()).await.into()),
        Ok(Err(error)) => {
            tracing::debug!(%error, "the message of a peer cannot be read");
            with(StatusCode::BAD_REQUEST, Bytes::new())
        }
        Err(_) => with(StatusCode::REQUEST_TIMEOUT, Bytes::new()),
    }
}
