//! The answering side.

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

use super::{KEEPALIVE, PATH, TOLD_PATH, WINDOWS};

/// Connections at a time: two of each of some members, and as many that their other end has lost.
const CONNECTIONS_MAX: usize = 64;
/// Messages of one connection that are answered at a time.
const STREAMS_MAX: u32 = 256;
/// Time for the handshake.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// Time for the whole of a message: one of the largest over a link of some 100 KB/s.
const MESSAGE_TIME: Duration = Duration::from_secs(120);

/// Who answers.
pub trait Answers: Send + Sync + 'static {
    /// What answers on one connection; dropped at its end.
    fn connected(&self) -> Arc<dyn Answer>;
}

/// One connection of another server of the cluster.
#[async_trait]
pub trait Answer: Send + Sync {
    /// The answer to what it sent.
    async fn answer(&self, message: &[u8]) -> Vec<u8>;

    /// The answer to what is none of the store's.
    async fn told(&self, message: &[u8]) -> Vec<u8>;
}

/// Answers messages of at most `message_max` bytes until `tasks` shut down. `tls` has to demand a
/// certificate of a peer. In a box, as [`super::Calls::call`].
#[inline(never)]
pub fn serve(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    message_max: usize,
    answers: Arc<dyn Answers>,
    tasks: Tasks,
) -> BoxFuture<'static, ()> {
    Box::pin(run(listener, tls, message_max, answers, tasks))
}

async fn run(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    message_max: usize,
    answers: Arc<dyn Answers>,
    tasks: Tasks,
) {
    let acceptor = TlsAcceptor::from(tls);
    accept(&listener, "peers", CONNECTIONS_MAX, tasks.shutdown(), |accepted| {
        let (acceptor, answers) = (acceptor.clone(), Arc::clone(&answers));
        let shutdown = tasks.shutdown().clone();
        tasks.spawn(Kind::Request, "peer", async move {
            let Accepted { stream, from, place: _place } = accepted;
            let ended = tokio::select! {
                ended = carry(stream, acceptor, message_max, &*answers) => ended,
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

async fn carry(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    message_max: usize,
    answers: &dyn Answers,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let stream = tokio::time::timeout(HANDSHAKE_MAX, acceptor.accept(stream)).await??;
    let cork = Cork::new(Box::new(stream));
    let connected = answers.connected();
    let service = service_fn(move |request| {
        let connected = Arc::clone(&connected);
        async move { Ok::<_, Infallible>(answer(request, message_max, &*connected).await) }
    });
    let nested = InlineExecutor::default();
    let connection = hyper::server::conn::http2::Builder::new(nested.clone())
        .timer(TokioTimer::new())
        .auto_date_header(false)
        .max_concurrent_streams(STREAMS_MAX)
        .initial_stream_window_size(WINDOWS.0)
        .initial_connection_window_size(WINDOWS.1)
        .keep_alive_interval(KEEPALIVE.0)
        .keep_alive_timeout(KEEPALIVE.1)
        .serve_connection(TokioIo::new(cork.clone()), service);
    Ok(nested.drive_corked(connection, &cork).await?)
}

async fn answer(
    request: Request<Incoming>,
    message_max: usize,
    answers: &dyn Answer,
) -> Response<Full<Bytes>> {
    let with = |status, body| {
        let mut response = Response::new(Full::new(body));
        *response.status_mut() = status;
        response
    };
    let told = request.uri().path() == TOLD_PATH;
    if !told && request.uri().path() != PATH || request.method() != Method::POST {
        return with(StatusCode::NOT_FOUND, Bytes::new());
    }
    let body = Limited::new(request.into_body(), message_max).collect();
    match tokio::time::timeout(MESSAGE_TIME, body).await {
        Ok(Ok(body)) if told => with(StatusCode::OK, answers.told(&body.to_bytes()).await.into()),
        Ok(Ok(body)) => with(StatusCode::OK, answers.answer(&body.to_bytes()).await.into()),
        Ok(Err(error)) => {
            tracing::debug!(%error, "the message of a peer cannot be read");
            with(StatusCode::BAD_REQUEST, Bytes::new())
        }
        Err(_) => with(StatusCode::REQUEST_TIMEOUT, Bytes::new()),
    }
}
