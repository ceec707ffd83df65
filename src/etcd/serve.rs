//! The listener: gRPC over TLS with client certificates, or in the clear where that was asked for by name.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use base::tasks::Kind;
use futures::stream;
use proto::etcdserverpb::auth_server::AuthServer;
use proto::etcdserverpb::cluster_server::ClusterServer;
use proto::etcdserverpb::kv_server::KvServer;
use proto::etcdserverpb::lease_server::LeaseServer;
use proto::etcdserverpb::maintenance_server::MaintenanceServer;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tonic::transport::Server;
use tonic::transport::server::Connected;

use crate::http::Front;
use crate::watch::WatchService;
use crate::{Etcd, MESSAGE_BYTES};

/// Connections at a time; more wait in the kernel's queue.
const CONNECTIONS: usize = 1024;

/// Requests under way on one connection; a client's further ones wait there.
const CONCURRENT_STREAMS: u32 = 4096;

/// A client that does not finish its handshake by then is dropped.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// A silent connection is asked after the first, and is dead without an answer within the second: etcd's
/// `--grpc-keepalive-timeout`; its interval of two hours would keep dead clients of the edge too long.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(20));

/// One client, whichever way it came.
struct Connection {
    io: Box<dyn base::io::Io>,
    _place: OwnedSemaphorePermit,
}

impl Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, into)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// Serves a listener until the tasks of `etcd` shut down. With `tls` a client must show a certificate that it takes.
///
/// # Errors
/// When the services cannot go on.
pub async fn serve(
    etcd: Etcd,
    listener: TcpListener,
    tls: Option<Arc<ServerConfig>>,
) -> Result<(), tonic::transport::Error> {
    let (connections, mut accepted) = mpsc::channel(16);
    etcd.tasks.spawn(
        Kind::Request,
        "etcd listener",
        accept(etcd.clone(), listener, tls, connections),
    );
    let shutdown = etcd.tasks.shutdown().clone();
    let shared = Arc::new(etcd.clone());
    Server::builder()
        .accept_http1(true)
        .layer(Front(Arc::clone(&shared)))
        .max_concurrent_streams(CONCURRENT_STREAMS)
        .http2_keepalive_interval(Some(KEEPALIVE.0))
        .http2_keepalive_timeout(Some(KEEPALIVE.1))
        .add_service(KvServer::new(etcd.clone()).max_decoding_message_size(MESSAGE_BYTES))
        .add_service(WatchService(Arc::clone(&shared)))
        .add_service(LeaseServer::new(etcd.clone()))
        .add_service(ClusterServer::new(etcd.clone()))
        .add_service(MaintenanceServer::new(etcd.clone()))
        .add_service(AuthServer::new(etcd))
        .serve_with_incoming_shutdown(
            stream::poll_fn(move |cx| accepted.poll_recv(cx)),
            async move { shutdown.requested().await },
        )
        .await
}

async fn accept(
    etcd: Etcd,
    listener: TcpListener,
    tls: Option<Arc<ServerConfig>>,
    connections: mpsc::Sender<io::Result<Connection>>,
) -> Result<(), String> {
    let shutdown = etcd.tasks.shutdown().clone();
    let acceptor = tls.map(TlsAcceptor::from);
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let mut backoff = base::Backoff::new(Duration::from_millis(10), Duration::from_secs(1));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return Ok(()) };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = shutdown.requested() => return Ok(()),
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of descriptors or memory: the listener itself is sound, so try again a little later.
                tracing::warn!(%error, "a client of etcd's interface was not accepted");
                if !backoff.wait(&shutdown).await {
                    return Ok(());
                }
                continue;
            }
        };
        backoff.reset();
        let (acceptor, connections) = (acceptor.clone(), connections.clone());
        etcd.tasks.spawn(Kind::Request, "etcd connection", async move {
            match greet(stream, acceptor).await {
                Ok(io) => {
                    let _ = connections.send(Ok(Connection { io, _place: place })).await;
                }
                Err(error) => tracing::debug!(%error, "a client of etcd's interface was refused"),
            }
            Ok::<(), String>(())
        });
    }
}

async fn greet(
    stream: TcpStream,
    acceptor: Option<TlsAcceptor>,
) -> io::Result<Box<dyn base::io::Io>> {
    stream.set_nodelay(true)?;
    match acceptor {
        Some(acceptor) => {
            let stream = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await??;
            Ok(Box::new(stream))
        }
        None => Ok(Box::new(stream)),
    }
}
