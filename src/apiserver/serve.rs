//! TLS, HTTP/1.1 and HTTP/2 on a listener: bounded connections, deadlines, graceful drain.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use base::accept::{Accepted, accept};
use http::Request;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use stream::opening::Opening;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::authn::x509::{Peer, Verifier};
use crate::body::Body;
use crate::seams::Aside;
use crate::server::ApiServer;

/// Connections served at once; more wait in the listener's queue.
const CONNECTIONS_MAX: usize = 4096;
/// Time for the TLS handshake.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// Time for the headers of a request (upstream's `ReadHeaderTimeout`).
const HEADERS_MAX: Duration = Duration::from_secs(32);
/// Bytes of the headers of one HTTP/2 request.
const HEADER_BYTES_MAX: u32 = 64 * 1024;
/// Streams of one HTTP/2 connection (upstream's `http2-max-streams-per-connection` default of the serving library).
const STREAMS_MAX: u32 = 250;
/// How long connections may finish their requests when the server stops.
const DRAIN_MAX: Duration = Duration::from_millis(500);

/// Who the certificates say, examined once per connection; an extension of each request.
#[derive(Debug, Clone)]
pub struct PeerIdentity(pub Arc<Peer>);

impl ApiServer {
    /// Serves a listener until shutdown. `verifier` examines client certificates; `aside` answers its paths instead of the API.
    pub async fn serve(
        &self,
        listener: TcpListener,
        tls: Arc<rustls::ServerConfig>,
        verifier: Option<Arc<Verifier>>,
        aside: Option<Arc<dyn Aside>>,
    ) {
        let acceptor = TlsAcceptor::from(tls);
        let tasks = &self.inner.tasks;
        accept(&listener, "API", CONNECTIONS_MAX, tasks.shutdown(), |accepted| {
            let (server, acceptor, verifier) = (self.clone(), acceptor.clone(), verifier.clone());
            let aside = aside.clone();
            tasks.spawn(base::tasks::Kind::Request, "connection", async move {
                let Accepted { stream, from, place: _place } = accepted;
                if let Err(error) = server.connection(stream, from, acceptor, verifier, aside).await
                {
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
        stream: TcpStream,
        from: SocketAddr,
        acceptor: TlsAcceptor,
        verifier: Option<Arc<Verifier>>,
        aside: Option<Arc<dyn Aside>>,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let stream = tokio::time::timeout(HANDSHAKE_MAX, acceptor.accept(stream)).await??;
        let chain = stream.get_ref().1.peer_certificates();
        let identity = chain
            .zip(verifier)
            .and_then(|(chain, v)| v.peer(chain))
            .map(|peer| PeerIdentity(Arc::new(peer)));
        let server = self.clone();
        let service = hyper::service::service_fn(move |request: Request<Incoming>| {
            let server = server.clone();
            let identity = identity.clone();
            let aside = aside.clone().filter(|aside| aside.takes(request.uri().path()));
            let answer = async move {
                let mut request =
                    request.map(|body| -> Body { body.map_err(Into::into).boxed_unsync() });
                if let Some(aside) = aside {
                    let peer = identity.as_ref().map(|i| &*i.0);
                    let (headers, path) = (request.headers(), request.uri().path());
                    let user = server.inner.parts.authenticator.authenticate(headers, peer, path);
                    let user = user.await.ok().flatten();
                    return Ok(aside.answer(from, user, request).await);
                }
                if let Some(identity) = identity {
                    request.extensions_mut().insert(identity);
                }
                if server.inner.audit.get().is_some() {
                    request.extensions_mut().insert(crate::audit::Remote(from));
                }
                Ok::<_, std::convert::Infallible>(server.call(None, request).await)
            };
            // The work on a request is large, and a stream of HTTP/2 keeps the room of its largest state to the end: a watch's would.
            Box::pin(answer)
        });
        let mut builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADERS_MAX)
            .pipeline_flush(true);
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS_MAX)
            .max_header_list_size(HEADER_BYTES_MAX)
            .initial_stream_window_size(256 * 1024)
            .initial_connection_window_size(1024 * 1024)
            .keep_alive_interval(Some(Duration::from_secs(30)))
            .keep_alive_timeout(Duration::from_secs(20));
        let stream = Opening::new(stream, HEADERS_MAX);
        let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
        tokio::pin!(connection);
        let shutdown = self.inner.tasks.shutdown();
        tokio::select! {
            ended = connection.as_mut() => return ended,
            () = shutdown.requested() => connection.as_mut().graceful_shutdown(),
        }
        // Watches never end by themselves: after the grace their connections are cut.
        let _ = tokio::time::timeout(DRAIN_MAX, connection).await;
        Ok(())
    }
}
