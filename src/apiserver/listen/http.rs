//! TLS, HTTP/1.1 and HTTP/2 on a listener: bounded connections, deadlines, graceful drain.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use base::accept::{Accepted, accept};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Version, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use stream::opening::Opening;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::authn::x509::PeerIdentity;
use crate::authn::x509::Verifier;
use crate::interfaces::ExtraRoutes;
use crate::listen::connection_limiter::{ConnectionGuard, ConnectionLimiter, RequestGuard};
use crate::metrics::requests as metrics;
use crate::request::body::{Body, keeping};
use crate::state::ApiServer;

/// Connections served at once; more wait in the listener's queue.
const CONNECTIONS_MAX: usize = 4096;
/// Above this number of connections each new one evicts the longest idle one, so that there is
/// always room.
const CONNECTIONS_SOFT_MAX: usize = CONNECTIONS_MAX - 256;
/// Time for the TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for the headers of a request (upstream's `ReadHeaderTimeout`).
const HEADER_TIMEOUT: Duration = Duration::from_secs(32);
/// Bytes of the headers of one HTTP/2 request.
const HEADER_BYTES_MAX: u32 = 64 * 1024;
/// Header fields of one HTTP/1.1 request. Impersonation sends one field per group, so a user in
/// hundreds of groups needs many.
const HEADER_FIELDS_MAX: usize = 512;
/// Streams of one HTTP/2 connection (upstream's `http2-max-streams-per-connection` default of the
/// serving library).
const STREAMS_MAX: u32 = 250;
/// Bytes of a response that an HTTP/1.1 connection buffers before the client reads; also bounds the
/// headers of a request.
const SEND_BUFFER_MAX: usize = 128 * 1024;
/// Bytes of a response that an HTTP/2 stream buffers before the client reads.
const STREAM_SEND_BUFFER_MAX: usize = 64 * 1024;
/// Encrypted bytes buffered for a client that does not read.
const TLS_BUFFER_MAX: usize = 32 * 1024;
/// Grace period for open connections when the server stops.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);

/// TLS acceptor and verifier of client certificates of a listener.
struct Security {
    acceptor: TlsAcceptor,
    verifier: Option<Arc<Verifier>>,
}

impl ApiServer {
    /// Serves a listener until shutdown. `verifier` identifies clients by their certificates;
    /// `extra_routes` handles its paths instead of the API.
    pub async fn serve(
        &self,
        listener: TcpListener,
        tls: Arc<rustls::ServerConfig>,
        verifier: Option<Arc<Verifier>>,
        extra_routes: Option<Arc<dyn ExtraRoutes>>,
    ) {
        let acceptor = TlsAcceptor::from(tls);
        let limiter = Arc::new(ConnectionLimiter::default());
        let tasks = &self.inner.tasks;
        accept(&listener, "API", CONNECTIONS_MAX, tasks.shutdown(), |accepted| {
            let (server, acceptor, verifier) = (self.clone(), acceptor.clone(), verifier.clone());
            let extra_routes = extra_routes.clone();
            let guard = limiter.accept(CONNECTIONS_SOFT_MAX);
            tasks.spawn(base::tasks::Kind::Request, "connection", async move {
                let Accepted { stream, from, place: _place } = accepted;
                let security = Security { acceptor, verifier };
                let ended = server.connection((stream, from), security, extra_routes, guard).await;
                if let Err(error) = ended {
                    tracing::debug!(%error, "connection ended");
                }
                Ok::<(), String>(())
            });
        })
        .await;
        self.inner.ready.stop();
    }

    async fn connection(
        &self,
        (stream, from): (TcpStream, SocketAddr),
        Security { acceptor, verifier }: Security,
        extra_routes: Option<Arc<dyn ExtraRoutes>>,
        guard: Arc<ConnectionGuard>,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let mut stream = tokio::select! {
            stream = handshake(&acceptor, stream) => stream?,
            () = guard.evicted() => return Ok(()),
        };
        stream.get_mut().1.set_buffer_limit(Some(TLS_BUFFER_MAX));
        let chain = stream.get_ref().1.peer_certificates();
        let identity = chain
            .zip(verifier)
            .and_then(|(chain, v)| v.peer(chain))
            .map(|peer| PeerIdentity(Arc::new(peer)));
        let client = Arc::new(Client { server: self.clone(), from, identity, extra_routes });
        let request_guard = Arc::clone(&guard);
        let service = hyper::service::service_fn(move |request: Request<Incoming>| {
            // Boxed because the future of a request is large and an HTTP/2 stream holds the space
            // of its largest state until it ends, which for a watch may be hours.
            Box::pin(Arc::clone(&client).respond(request, request_guard.request()))
        });
        let builder = http_builder();
        let stream = Opening::new(stream, HEADER_TIMEOUT);
        let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
        tokio::pin!(connection);
        let shutdown = self.inner.tasks.shutdown();
        tokio::select! {
            ended = connection.as_mut() => return ended,
            () = shutdown.requested() => connection.as_mut().graceful_shutdown(),
            () = guard.evicted() => connection.as_mut().graceful_shutdown(),
        }
        // Watches do not end on their own, so their connections are closed after the grace period.
        let _ = tokio::time::timeout(DRAIN_TIMEOUT, connection).await;
        Ok(())
    }
}

/// The TLS handshake of a new connection.
///
/// # Errors
/// The error of TLS, or that the time is over.
async fn handshake(
    acceptor: &TlsAcceptor,
    stream: TcpStream,
) -> Result<TlsStream<TcpStream>, Box<dyn std::error::Error + Send + Sync>> {
    match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => Ok(stream),
        failed => {
            metrics::HANDSHAKES.inc(&[]);
            Ok(failed??)
        }
    }
}

/// The limits and deadlines of HTTP/1.1 and HTTP/2 connections.
fn http_builder() -> hyper_util::server::conn::auto::Builder<TokioExecutor> {
    let mut builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .max_headers(HEADER_FIELDS_MAX)
        .max_buf_size(SEND_BUFFER_MAX)
        // Pipelined flushing stays off: it defers flushes while input is pending, so the
        // response to a head that cannot be parsed would never be sent.
        .header_read_timeout(HEADER_TIMEOUT);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEADER_BYTES_MAX)
        .max_send_buf_size(STREAM_SEND_BUFFER_MAX)
        .initial_stream_window_size(256 * 1024)
        .initial_connection_window_size(1024 * 1024)
        .keep_alive_interval(Some(Duration::from_secs(30)))
        .keep_alive_timeout(Duration::from_secs(20));
    builder
}

/// The client end of a connection.
struct Client {
    server: ApiServer,
    from: SocketAddr,
    /// The identity of its client certificate.
    identity: Option<PeerIdentity>,
    extra_routes: Option<Arc<dyn ExtraRoutes>>,
}

impl Client {
    /// Responds to one request of the connection; `guard` is held until the response is sent.
    async fn respond(
        self: Arc<Self>,
        request: Request<Incoming>,
        guard: RequestGuard,
    ) -> Result<Response<Body>, std::convert::Infallible> {
        if let Some((code, why)) = reject_head(request.version(), request.headers()) {
            let mut response = crate::response::status::text(code, why);
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(header::CONNECTION, close);
            return Ok(response);
        }
        let mut request = request.map(|body| -> Body { body.map_err(Into::into).boxed_unsync() });
        let inner = &self.server.inner;
        let extra_routes =
            self.extra_routes.as_ref().filter(|routes| routes.matches(request.uri().path()));
        let response = if let Some(extra_routes) = extra_routes {
            let peer = self.identity.as_ref().map(|identity| &*identity.0);
            let (headers, path) = (request.headers(), request.uri().path());
            let user = inner.parts.authenticator.authenticate(headers, peer, path);
            let user = user.await.ok().flatten();
            extra_routes.handle(self.from, user, request).await
        } else {
            if let Some(identity) = &self.identity {
                request.extensions_mut().insert(identity.clone());
            }
            if inner.audit.get().is_some() || inner.tracer.get().is_some() {
                request.extensions_mut().insert(crate::request::remote::Remote(self.from));
            }
            self.server.call(None, request).await
        };
        Ok(response.map(|body| keeping(body, guard)))
    }
}

/// Rejects an HTTP/1 request head as Go's `net/http` server does: a missing, repeated or malformed
/// `Host`, and a `Transfer-Encoding` other than `chunked`, which would allow request smuggling
/// through a proxy (RFC 9112, sections 3.2 and 6.1).
fn reject_head(version: Version, headers: &HeaderMap) -> Option<(StatusCode, &'static str)> {
    if version > Version::HTTP_11 {
        return None;
    }
    let mut hosts = headers.get_all(header::HOST).iter();
    let why = match (hosts.next(), hosts.next()) {
        (None, _) if version == Version::HTTP_11 => "400 Bad Request: missing required Host header",
        (Some(host), None) if !host.as_bytes().iter().all(in_host) => {
            "400 Bad Request: malformed Host header"
        }
        (_, Some(_)) => "400 Bad Request",
        _ => {
            let mut encodings = headers.get_all(header::TRANSFER_ENCODING).iter();
            let other = match (encodings.next(), encodings.next()) {
                (None, _) => false,
                (Some(one), None) => !one.as_bytes().eq_ignore_ascii_case(b"chunked"),
                _ => true,
            };
            return other.then_some((StatusCode::NOT_IMPLEMENTED, "Unsupported transfer encoding"));
        }
    };
    Some((StatusCode::BAD_REQUEST, why))
}

/// Bytes that are valid in a `Host` header (Go's `httpguts.ValidHostHeader`).
fn in_host(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!$%&'()*+,-.:;=[]_~".contains(byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Status code and message for an HTTP/1.1 request with these headers; `None` when it is
    /// accepted.
    fn rejected(headers: &[(&'static str, &'static str)]) -> Option<(u16, &'static str)> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_static(value));
        }
        reject_head(Version::HTTP_11, &map).map(|(code, why)| (code.as_u16(), why))
    }

    #[test]
    fn request_heads_are_rejected_like_go_net_http() {
        const MALFORMED: (u16, &str) = (400, "400 Bad Request: malformed Host header");
        const ENCODING: (u16, &str) = (501, "Unsupported transfer encoding");
        let host = ("host", "[::1]:6443");
        assert_eq!(rejected(&[host]), None);
        assert_eq!(rejected(&[("host", "")]), None);
        assert_eq!(rejected(&[]), Some((400, "400 Bad Request: missing required Host header")));
        assert_eq!(rejected(&[("host", "a b")]), Some(MALFORMED));
        assert_eq!(rejected(&[("host", "a/b")]), Some(MALFORMED));
        assert_eq!(rejected(&[host, ("host", "b")]), Some((400, "400 Bad Request")));
        assert_eq!(rejected(&[host, ("transfer-encoding", "Chunked")]), None);
        assert_eq!(rejected(&[host, ("transfer-encoding", "gzip, chunked")]), Some(ENCODING));
        let twice = [host, ("transfer-encoding", "chunked"), ("transfer-encoding", "chunked")];
        assert_eq!(rejected(&twice), Some(ENCODING));
        assert!(reject_head(Version::HTTP_2, &HeaderMap::new()).is_none());
        assert!(reject_head(Version::HTTP_10, &HeaderMap::new()).is_none());
    }
}
