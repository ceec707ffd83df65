//! The sockets of cluster DNS: UDP and TCP on each of its addresses.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base::{Backoff, Kind, Shutdown, Tasks};
use hickory_proto::op::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;

use crate::dns::forward::Forwarder;
use crate::dns::message::{Outcome, append, encode, outcome, udp_limit};
use crate::dns::source::Cluster;
use crate::dns::zone::{Directory, Zone};

/// Forwarded questions and TCP connections at once; more are dropped, and clients ask again.
const WORK_MAX: usize = 512;
/// A TCP client that says nothing for so long is let go.
const IDLE_MAX: Duration = Duration::from_secs(10);

struct Server {
    zone: Zone,
    cluster: Cluster,
    forwarder: Forwarder,
    work: Arc<Semaphore>,
    turn: AtomicUsize,
}

/// Answers at these addresses until shutdown. An address or port that cannot be bound is tried
/// again.
pub(crate) fn serve(config: &crate::Config, cluster: Cluster, tasks: &Tasks) {
    let server = Arc::new(Server {
        zone: Zone {
            domain: config.cluster.cluster_domain.trim_end_matches('.').to_ascii_lowercase(),
            reverse: config
                .cluster
                .service_cidrs
                .iter()
                .chain(&config.cluster.cluster_cidrs)
                .copied()
                .collect(),
            servers: config.cluster.cluster_dns.clone(),
        },
        cluster,
        forwarder: Forwarder::new(config.resolv_conf.clone(), config.cluster.cluster_dns.clone()),
        work: Arc::new(Semaphore::new(WORK_MAX)),
        turn: AtomicUsize::new(0),
    });
    for ip in &config.cluster.cluster_dns {
        let (one, two) = (Arc::clone(&server), server.clone());
        let at = SocketAddr::new(*ip, 53);
        tasks.spawn(Kind::Critical, "dns-udp", one.udp(at, tasks.clone()));
        tasks.spawn(Kind::Critical, "dns-tcp", two.tcp(at, tasks.clone()));
    }
}

async fn bound<T, F>(
    at: SocketAddr,
    shutdown: &Shutdown,
    bind: impl Fn(SocketAddr) -> F,
) -> Option<T>
where
    F: Future<Output = std::io::Result<T>>,
{
    let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(30));
    loop {
        match bind(at).await {
            Ok(socket) => return Some(socket),
            Err(error) => {
                tracing::warn!(%at, %error, "cluster DNS cannot listen; is another name server bound to all addresses?");
            }
        }
        if !backoff.wait(shutdown).await {
            return None;
        }
    }
}

impl Server {
    fn outcome(&self, bytes: &[u8]) -> Outcome {
        let directory: Option<&dyn Directory> =
            if self.cluster.is_synced() { Some(&self.cluster) } else { None };
        outcome(bytes, &self.zone, directory, self.turn.fetch_add(1, Ordering::Relaxed))
    }

    /// The answer, after what has to be asked elsewhere.
    async fn settle(&self, outcome: Outcome, tcp: bool) -> Option<Message> {
        match outcome {
            Outcome::Ignore => None,
            Outcome::Reply(reply) => Some(*reply),
            Outcome::Forward(request) => Some(self.forwarder.resolve(&request, tcp).await),
            Outcome::Chase { mut reply, ask } => {
                append(&mut reply, self.forwarder.resolve(&ask, tcp).await);
                Some(*reply)
            }
        }
    }

    async fn udp(self: Arc<Self>, at: SocketAddr, tasks: Tasks) -> Result<(), std::io::Error> {
        let shutdown = tasks.shutdown().clone();
        let Some(socket) = bound(at, &shutdown, UdpSocket::bind).await else { return Ok(()) };
        let socket = Arc::new(socket);
        let mut buffer = vec![0; 4096];
        loop {
            let received = tokio::select! {
                () = shutdown.requested() => return Ok(()),
                received = socket.recv_from(&mut buffer) => received,
            };
            // The socket reports an ICMP error of an earlier answer here; it concerns one client
            // only.
            let Ok((length, peer)) = received else { continue };
            let bytes = buffer.get(..length).unwrap_or_default();
            match self.outcome(bytes) {
                Outcome::Ignore => {}
                Outcome::Reply(reply) => {
                    if let Some(answer) = encode(&reply, udp_limit(bytes)) {
                        let _ = socket.send_to(&answer, peer).await;
                    }
                }
                later @ (Outcome::Forward(_) | Outcome::Chase { .. }) => {
                    let Ok(permit) = Arc::clone(&self.work).try_acquire_owned() else { continue };
                    let (this, socket, limit) =
                        (Arc::clone(&self), Arc::clone(&socket), udp_limit(bytes));
                    tasks.spawn(Kind::Request, "dns-forward", async move {
                        let _permit = permit;
                        let reply = this.settle(later, false).await;
                        if let Some(answer) = reply.and_then(|r| encode(&r, limit)) {
                            socket.send_to(&answer, peer).await?;
                        }
                        Ok::<(), std::io::Error>(())
                    });
                }
            }
        }
    }

    async fn tcp(self: Arc<Self>, at: SocketAddr, tasks: Tasks) -> Result<(), std::io::Error> {
        let shutdown = tasks.shutdown().clone();
        let Some(listener) = bound(at, &shutdown, TcpListener::bind).await else { return Ok(()) };
        loop {
            let accepted = tokio::select! {
                () = shutdown.requested() => return Ok(()),
                accepted = listener.accept() => accepted,
            };
            let Ok((stream, _)) = accepted else { continue };
            let Ok(permit) = Arc::clone(&self.work).try_acquire_owned() else { continue };
            let this = Arc::clone(&self);
            tasks.spawn(Kind::Request, "dns-connection", async move {
                let _permit = permit;
                // Ends by itself, by idleness or by the client.
                let _ = this.connection(stream).await;
                Ok::<(), std::convert::Infallible>(())
            });
        }
    }

    async fn connection(&self, mut stream: TcpStream) -> std::io::Result<()> {
        loop {
            let length = tokio::time::timeout(IDLE_MAX, stream.read_u16()).await??;
            let mut bytes = vec![0; usize::from(length)];
            tokio::time::timeout(IDLE_MAX, stream.read_exact(&mut bytes)).await??;
            let Some(reply) = self.settle(self.outcome(&bytes), true).await else { return Ok(()) };
            let Some(answer) = encode(&reply, usize::from(u16::MAX)) else { return Ok(()) };
            let length = u16::try_from(answer.len()).map_err(std::io::Error::other)?;
            let framed = [&length.to_be_bytes()[..], &answer].concat();
            tokio::time::timeout(IDLE_MAX, stream.write_all(&framed)).await??;
        }
    }
}
