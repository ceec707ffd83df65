//! The sockets of cluster DNS: UDP and TCP on each of its addresses, and metrics.

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use api::k8s::api::core::v1::Node;
use arc_swap::ArcSwap;
use axum::Router;
use axum::routing::get;
use base::accept::bind_when_free;
use base::{Kind, Shutdown, Tasks};
use client::{Informer, Informers};
use hickory_proto::op::{Message, ResponseCode};
use http::header::CONTENT_TYPE;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::dns::custom::Custom;
use crate::dns::forward::NodeServers;
use crate::dns::message::{
    NoQuestion, Outcome, UDP_SMALLEST, append, encode, has_class, outcome, plain, read, response,
    udp_limit,
};
use crate::dns::metrics::{self, Question};
use crate::dns::node_hosts::NodeHosts;
use crate::dns::plugins::rewrite::rewrite;
use crate::dns::plugins::template::Template;
use crate::dns::resolver::{Answered, Resolver};
use crate::dns::rules::{Block, Rules};
use crate::dns::source::Cluster;
use crate::dns::zone::{Directory, Zone};

/// Forwarded questions and TCP connections at once; more are dropped, and clients ask again.
const WORK_MAX: usize = 512;
/// A TCP client that says nothing for so long is let go.
const IDLE_MAX: Duration = Duration::from_secs(10);
/// Port of the metrics, as that of CoreDNS in k3s.
const METRICS_PORT: u16 = 9153;

struct Server {
    zone: Zone,
    cluster: Cluster,
    rules: Arc<ArcSwap<Rules>>,
    resolver: Arc<Resolver>,
    nodes: Arc<NodeHosts>,
    work: Arc<Semaphore>,
    turn: AtomicUsize,
}

/// A question and what is needed to count and log its answer.
struct OpenQuery {
    client: IpAddr,
    question: Question,
    /// The name with its final dot, for servers that log.
    logged: Option<String>,
    start: Instant,
    limit: usize,
}

/// What has to be asked elsewhere.
struct Later {
    rules: Arc<Rules>,
    block: usize,
    /// The question before the rules for rewriting, if there are some.
    original: Option<Message>,
    request: Message,
    /// The beginning of the answer, which ends in the name of `request`.
    chase: Option<Box<Message>>,
}

enum Step {
    /// No answer.
    Ignore,
    /// An answer that is not counted: to bytes that are no question.
    Refuse(Box<Message>),
    Reply(Box<Answered>, OpenQuery),
    Later(Box<Later>, OpenQuery),
}

/// Answers at these addresses until shutdown. An address or port that cannot be bound is tried
/// again.
pub(crate) fn serve(
    config: &crate::Config,
    informers: &Informers,
    nodes: &Informer<Node>,
    tasks: &Tasks,
) {
    let work = Arc::new(Semaphore::new(WORK_MAX));
    let node = NodeServers::new(config.resolv_conf.clone(), config.cluster.cluster_dns.clone());
    let resolver = Arc::new(Resolver::new(node, tasks.clone(), Arc::clone(&work)));
    let rules = Arc::new(ArcSwap::from_pointee(Rules::default()));
    Custom::start(config, informers, (Arc::clone(&rules), Arc::clone(&resolver)), tasks);
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
        cluster: Cluster::new(informers),
        rules,
        resolver,
        nodes: NodeHosts::follow(nodes),
        work,
        turn: AtomicUsize::new(0),
    });
    for ip in &config.cluster.cluster_dns {
        let (one, two) = (Arc::clone(&server), server.clone());
        let at = SocketAddr::new(*ip, 53);
        tasks.spawn(Kind::Critical, "dns-udp", one.udp(at, tasks.clone()));
        tasks.spawn(Kind::Critical, "dns-tcp", two.tcp(at, tasks.clone()));
        let at = SocketAddr::new(*ip, METRICS_PORT);
        tasks.spawn(Kind::Critical, "dns-metrics", serve_metrics(at, tasks.clone()));
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
    let pauses = (Duration::from_millis(200), Duration::from_secs(30));
    let report = |error| {
        tracing::warn!(%at, %error, "cluster DNS cannot listen; is another name server bound to all addresses?");
    };
    bind_when_free(|| bind(at), pauses, shutdown, report).await
}

async fn serve_metrics(at: SocketAddr, tasks: Tasks) -> Result<(), std::io::Error> {
    let shutdown = tasks.shutdown().clone();
    let Some(listener) = bound(at, &shutdown, TcpListener::bind).await else { return Ok(()) };
    let text = || async { ([(CONTENT_TYPE, "text/plain; version=0.0.4")], metrics::text()) };
    let router = Router::new().route("/metrics", get(text));
    crate::proxy::accept(listener, tasks, shutdown, router).await;
    Ok(())
}

/// The answer of the plugins before that for the cluster.
fn from_plugins(block: &Block, request: &Message) -> Option<Answered> {
    if let Some(answer) = Template::answer(&block.templates, request) {
        return Some((answer, "template"));
    }
    Some((block.hosts.as_ref()?.answer(request)?, "hosts"))
}

impl Server {
    /// Answers what can be answered at once.
    fn begin(&self, bytes: &[u8], client: IpAddr, is_tcp: bool) -> Step {
        let request = match read(bytes) {
            Ok(request) => request,
            Err(NoQuestion::Ignored) => return Step::Ignore,
            Err(NoQuestion::Refused(reply)) => return Step::Refuse(reply),
        };
        let Some(query) = request.queries.first() else { return Step::Ignore };
        let name = plain(query.name());
        let rules = self.rules.load_full();
        let index = rules.select(&name);
        let Some(block) = rules.blocks.get(index) else { return Step::Ignore };
        let zone = crate::dns::plugins::zone_of(&name, &block.zones).unwrap_or_default();
        let asked = OpenQuery {
            client,
            question: Question {
                zone: format!("{zone}."),
                kind: query.query_type(),
                secure: request.edns.as_ref().is_some_and(|e| e.flags().dnssec_ok),
                bytes: bytes.len(),
                is_tcp,
                is_ipv4: client.is_ipv4(),
            },
            logged: block.logs.then(|| format!("{name}.")),
            start: base::clock::now(),
            limit: if is_tcp { usize::from(u16::MAX) } else { udp_limit(&request) },
        };
        let original = (!block.rewrites.is_empty()).then(|| request.clone());
        let mut request = request;
        let rewritten = match rewrite(&block.rewrites, &mut request) {
            Ok(rewritten) => rewritten,
            Err(error) => {
                tracing::debug!(%error, name, "dns: question not answered");
                let failed = response(&original.unwrap_or(request), ResponseCode::ServFail);
                return Step::Reply(Box::new((failed, "rewrite")), asked);
            }
        };
        let (mut reply, plugin) = match self.local(block, request) {
            Ok(answered) => answered,
            Err((request, chase)) => {
                drop(rewritten);
                let later = Later { rules, block: index, original, request, chase };
                return Step::Later(Box::new(later), asked);
            }
        };
        if let Some(rewritten) = rewritten {
            rewritten.undo(&mut reply);
        }
        Step::Reply(Box::new((reply, plugin)), asked)
    }

    /// The answer of the plugins of a block that need no other server, or the question to ask
    /// elsewhere with the beginning of its answer.
    fn local(
        &self,
        block: &Block,
        request: Message,
    ) -> Result<Answered, (Message, Option<Box<Message>>)> {
        if let Some(answered) = from_plugins(block, &request) {
            return Ok(answered);
        }
        if !block.is_default {
            if !has_class(&request) {
                return Ok((response(&request, ResponseCode::Refused), "forward"));
            }
            return Err((request, None));
        }
        if let Some(answer) = self.nodes.answer(&request) {
            return Ok((answer, "hosts"));
        }
        let directory: Option<&dyn Directory> =
            if self.cluster.is_synced() { Some(&self.cluster) } else { None };
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        match outcome(request, &self.zone, directory, turn) {
            Outcome::Reply(reply) => Ok((*reply, "kubernetes")),
            Outcome::Forward(request) => Err((*request, None)),
            Outcome::Chase { reply, ask } => Err((*ask, Some(reply))),
        }
    }

    /// The answer, after what has to be asked elsewhere.
    async fn finish(&self, later: Later, tcp: bool) -> Answered {
        let Later { rules, block, original, request, chase } = later;
        let (mut reply, plugin) = match chase {
            None => self.resolver.resolve(&rules, block, &request, tcp).await,
            Some(mut reply) => {
                let name = request.queries.first().map(|query| plain(query.name()));
                let index = rules.select(&name.unwrap_or_default());
                let block = rules.blocks.get(index);
                let found = match block.and_then(|block| from_plugins(block, &request)) {
                    Some((found, _)) => found,
                    None => self.resolver.resolve(&rules, index, &request, tcp).await.0,
                };
                append(&mut reply, found);
                (*reply, "kubernetes")
            }
        };
        if let (Some(mut original), Some(block)) = (original, rules.blocks.get(block)) {
            if let Ok(Some(rewritten)) = rewrite(&block.rewrites, &mut original) {
                rewritten.undo(&mut reply);
            }
        }
        (reply, plugin)
    }

    /// The bytes of an answer, which is counted, and logged where the server block says so.
    fn finished(asked: &OpenQuery, (reply, plugin): &Answered) -> Option<Vec<u8>> {
        let bytes = encode(reply, asked.limit)?;
        let time = asked.start.elapsed();
        metrics::record(&asked.question, reply, plugin, bytes.len(), time);
        if let Some(name) = &asked.logged {
            let code = metrics::code_name(reply.metadata.response_code);
            let (client, kind) = (asked.client, asked.question.kind);
            let micros = time.as_micros();
            tracing::info!(%client, name, %kind, code, plugin, bytes = bytes.len(), micros, "dns: query");
        }
        Some(bytes)
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
            match self.begin(bytes, peer.ip(), false) {
                Step::Ignore => {}
                Step::Refuse(reply) => {
                    if let Some(answer) = encode(&reply, UDP_SMALLEST) {
                        let _ = socket.send_to(&answer, peer).await;
                    }
                }
                Step::Reply(answered, asked) => {
                    if let Some(answer) = Self::finished(&asked, &answered) {
                        let _ = socket.send_to(&answer, peer).await;
                    }
                }
                Step::Later(later, asked) => {
                    let Ok(permit) = Arc::clone(&self.work).try_acquire_owned() else { continue };
                    let (this, socket) = (Arc::clone(&self), Arc::clone(&socket));
                    tasks.spawn(Kind::Request, "dns-forward", async move {
                        let _permit = permit;
                        let answered = this.finish(*later, false).await;
                        if let Some(answer) = Self::finished(&asked, &answered) {
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
            let Ok((stream, peer)) = accepted else { continue };
            let Ok(permit) = Arc::clone(&self.work).try_acquire_owned() else { continue };
            let this = Arc::clone(&self);
            tasks.spawn(Kind::Request, "dns-connection", async move {
                let _permit = permit;
                // Ends by itself, by idleness or by the client.
                let _ = this.connection(stream, peer.ip()).await;
                Ok::<(), std::convert::Infallible>(())
            });
        }
    }

    async fn connection(&self, mut stream: TcpStream, client: IpAddr) -> std::io::Result<()> {
        loop {
            let length = tokio::time::timeout(IDLE_MAX, stream.read_u16()).await??;
            let mut bytes = vec![0; usize::from(length)];
            tokio::time::timeout(IDLE_MAX, stream.read_exact(&mut bytes)).await??;
            let answer = match self.begin(&bytes, client, true) {
                Step::Ignore => return Ok(()),
                Step::Refuse(reply) => encode(&reply, usize::from(u16::MAX)),
                Step::Reply(answered, asked) => Self::finished(&asked, &answered),
                Step::Later(later, asked) => {
                    Self::finished(&asked, &self.finish(*later, true).await)
                }
            };
            let Some(answer) = answer else { return Ok(()) };
            let length = u16::try_from(answer.len()).map_err(std::io::Error::other)?;
            let framed = [&length.to_be_bytes()[..], &answer].concat();
            tokio::time::timeout(IDLE_MAX, stream.write_all(&framed)).await??;
        }
    }
}
