//! The listener: gRPC over TLS with client certificates, or without TLS if explicitly configured.
//!
//! The requests of a connection are answered within its task, so that responses that are ready
//! together are written together.

use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use base::accept::{Accepted, accept};
use base::http2::AuthorityFilter;
use base::tasks::{Kind, Shutdown};
use base::{Cork, Hold, InlineExecutor};
use futures::future::BoxFuture;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use proto::etcdserverpb::auth_server::AuthServer;
use proto::etcdserverpb::cluster_server::ClusterServer;
use proto::etcdserverpb::kv_server::KvServer;
use proto::etcdserverpb::lease_server::LeaseServer;
use proto::etcdserverpb::maintenance_server::MaintenanceServer;
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tonic::service::Routes;

use crate::front::Front;
use crate::service::{Etcd, MESSAGE_BYTES};
use crate::watch::WatchService;

/// Maximum number of connections; more wait in the kernel's queue.
const CONNECTIONS: usize = 1024;

/// Maximum number of concurrent requests per connection; more wait at the client.
const CONCURRENT_STREAMS: u32 = 4096;

/// Timeout of a TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Keepalive of idle connections: interval and timeout. The timeout is etcd's
/// `--grpc-keepalive-timeout`; etcd's interval of two hours would keep dead clients at the edge too
/// long.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(20));

/// Serves a listener until the tasks of `etcd` shut down, and its connections to their ends. With
/// `tls` clients must present a certificate.
///
/// The future is boxed: an unboxed one is compiled in the crate that polls it, and that is the
/// program, which is optimized for size.
///
/// # Errors
/// Never; the type is required for tasks.
#[inline(never)]
pub fn serve(
    etcd: Etcd,
    listener: TcpListener,
    tls: Option<Arc<ServerConfig>>,
) -> BoxFuture<'static, Result<(), Infallible>> {
    Box::pin(run(etcd, listener, tls))
}

async fn run(
    etcd: Etcd,
    listener: TcpListener,
    tls: Option<Arc<ServerConfig>>,
) -> Result<(), Infallible> {
    let acceptor = tls.map(TlsAcceptor::from);
    let (tasks, shared) = (etcd.tasks.clone(), Arc::new(etcd.clone()));
    let routes = Routes::new(KvServer::new(etcd.clone()).max_decoding_message_size(MESSAGE_BYTES))
        .add_service(WatchService(Arc::clone(&shared)))
        .add_service(LeaseServer::new(etcd.clone()))
        .add_service(ClusterServer::new(etcd.clone()))
        .add_service(MaintenanceServer::new(etcd.clone()))
        .add_service(AuthServer::new(etcd))
        .prepare();
    let front = Front::new(shared, routes);
    let (open, mut closed) = mpsc::channel::<Infallible>(1);
    let shutdown = tasks.shutdown();
    accept(&listener, "etcd", CONNECTIONS, shutdown, |accepted| {
        let (front, acceptor, open) = (front.clone(), acceptor.clone(), open.clone());
        let shutdown = shutdown.clone();
        tasks.spawn(Kind::Request, "etcd connection", async move {
            let Accepted { stream, from, place: _place } = accepted;
            if let Err(error) = serve_connection(stream, acceptor, front, &shutdown).await {
                tracing::debug!(%from, %error, "a connection of etcd's interface ended");
            }
            drop(open);
            Ok::<(), Infallible>(())
        });
    })
    .await;
    // No new connections are accepted; existing ones are served to their end.
    drop((listener, open));
    // Nothing is ever sent: the channel closes when the last connection ends.
    let _ = closed.recv().await;
    Ok(())
}

async fn serve_connection(
    stream: TcpStream,
    acceptor: Option<TlsAcceptor>,
    front: Front,
    shutdown: &Shutdown,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let cork = Cork::new(accept_tls(stream, acceptor).await?);
    let nested = InlineExecutor::default();
    let mut builder = auto::Builder::new(nested.clone());
    builder
        .http2()
        .timer(TokioTimer::new())
        // gRPC servers send no date.
        .auto_date_header(false)
        .max_concurrent_streams(CONCURRENT_STREAMS)
        .keep_alive_interval(KEEPALIVE.0)
        .keep_alive_timeout(KEEPALIVE.1);
    // Enables the timeout of 30 s for request heads.
    builder.http1().timer(TokioTimer::new());
    let service = service_fn(move |request| front.answer(request));
    let serving = async {
        let io = TokioIo::new(AuthorityFilter::new(cork.clone()));
        let mut connection = pin!(builder.serve_connection(io, service));
        tokio::select! {
            biased;
            ended = connection.as_mut() => return ended,
            () = shutdown.requested() => connection.as_mut().graceful_shutdown(),
        }
        connection.await
    };
    nested.drive_corked(serving, &cork).await
}

async fn accept_tls(stream: TcpStream, acceptor: Option<TlsAcceptor>) -> io::Result<Box<dyn Hold>> {
    match acceptor {
        Some(acceptor) => {
            let stream = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await??;
            Ok(Box::new(stream))
        }
        None => Ok(Box::new(stream)),
    }
}
