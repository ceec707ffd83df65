//! Names outside the cluster: asked at upstream servers, whose failures are remembered.

mod exchange;
mod node_servers;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hickory_proto::op::{Message, ResponseCode};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::dns::message::plain;
use crate::dns::metrics;
use crate::dns::plugins::is_in;

pub(crate) use exchange::Tls;
pub(crate) use node_servers::NodeServers;

/// One try at one server; resolvers in pods give up after 5 s.
const TRY_MAX: Duration = Duration::from_millis(1800);
/// All tries of one question (CoreDNS's bound).
const TRIES_MAX: Duration = Duration::from_secs(5);
/// A server that failed gets questions again after this time.
const RETRY: Duration = Duration::from_secs(2);
/// `max_fails` without a line for it.
const MAX_FAILS: u32 = 2;

/// How often a server failed in a row, and when it gets questions again.
#[derive(Debug, Default)]
struct Health {
    fails: u32,
    retry: Option<Instant>,
}

/// One upstream server.
#[derive(Debug)]
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    /// The name in its certificate; none: no TLS.
    pub(crate) tls_name: Option<String>,
    health: Mutex<Health>,
}

impl Upstream {
    pub(crate) fn new(address: SocketAddr, tls_name: Option<String>) -> Self {
        Self { address, tls_name, health: Mutex::default() }
    }

    /// Whether it failed so often that other servers come before it.
    fn is_down(&self, max_fails: u32, now: Instant) -> bool {
        let health = self.health.lock();
        max_fails > 0 && health.fails >= max_fails && health.retry.is_some_and(|retry| now < retry)
    }

    /// Whether it failed and is not known to answer since.
    fn is_failing(&self) -> bool {
        self.health.lock().fails > 0
    }

    /// Takes the next try after a failure: one question at a time finds out whether it answers.
    fn takes_retry(&self, now: Instant) -> bool {
        let mut health = self.health.lock();
        let is_due = health.retry.is_none_or(|retry| now >= retry);
        if is_due {
            health.retry = Some(now + RETRY);
        }
        is_due
    }

    fn record(&self, answered: bool, now: Instant) {
        let mut health = self.health.lock();
        *health = match answered {
            true => Health::default(),
            false => Health { fails: health.fails.saturating_add(1), retry: Some(now + RETRY) },
        };
    }

    pub(crate) fn has_valid_tls_name(&self) -> bool {
        self.tls_name.as_ref().is_none_or(|name| exchange::is_server_name(name))
    }
}

/// Where questions go.
#[derive(Debug, Clone)]
pub(crate) enum To {
    /// The name servers in the node's resolver configuration.
    NodeServers,
    Server(Arc<Upstream>),
}

/// The order of servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Policy {
    Random,
    RoundRobin,
    Sequential,
}

/// The plugin `forward`.
#[derive(Debug)]
pub(crate) struct Forward {
    from: String,
    pub(crate) except: Vec<String>,
    pub(crate) to: Vec<To>,
    pub(crate) policy: Policy,
    /// 0: a server is never left out.
    pub(crate) max_fails: u32,
    pub(crate) force_tcp: bool,
    pub(crate) prefer_udp: bool,
    pub(crate) concurrent: Option<Semaphore>,
    /// Codes after which the plugin tries another of its servers.
    pub(crate) failover: Vec<ResponseCode>,
    /// Codes after which the next plugin `forward` gets the question.
    pub(crate) next: Vec<ResponseCode>,
    pub(crate) next_on_nodata: bool,
    /// The plugin tries no server when all are down.
    pub(crate) fails_fast: bool,
    turn: AtomicUsize,
}

impl Forward {
    pub(crate) fn new(from: String) -> Self {
        Self {
            from,
            except: Vec::new(),
            to: Vec::new(),
            policy: Policy::Random,
            max_fails: MAX_FAILS,
            force_tcp: false,
            prefer_udp: false,
            concurrent: None,
            failover: Vec::new(),
            next: Vec::new(),
            next_on_nodata: false,
            fails_fast: false,
            turn: AtomicUsize::new(0),
        }
    }

    /// The forwarder of the default block, which asks the node's servers as its resolver does: in
    /// order, and another one after a failure.
    pub(crate) fn to_node_servers() -> Self {
        Self {
            to: vec![To::NodeServers],
            policy: Policy::Sequential,
            failover: vec![ResponseCode::ServFail, ResponseCode::Refused],
            ..Self::new(String::new())
        }
    }

    /// Sets the name in the certificates of all servers with TLS.
    pub(crate) fn set_tls_name(&mut self, name: &str) {
        for to in &mut self.to {
            if let To::Server(server) = to
                && server.tls_name.is_some()
            {
                *server = Arc::new(Upstream::new(server.address, Some(name.to_owned())));
            }
        }
    }

    /// Whether the plugin is for a normal name.
    pub(crate) fn is_for(&self, name: &str) -> bool {
        is_in(name, &self.from)
            && (name == self.from || !self.except.iter().any(|zone| is_in(name, zone)))
    }

    /// The servers in the order in which the plugin tries them.
    fn ordered(&self, node: &NodeServers) -> Vec<Arc<Upstream>> {
        let mut list: Vec<Arc<Upstream>> = Vec::new();
        for to in &self.to {
            match to {
                To::NodeServers => list.extend(node.servers()),
                To::Server(server) => list.push(Arc::clone(server)),
            }
        }
        let turn = match self.policy {
            Policy::Sequential => 0,
            Policy::RoundRobin => self.turn.fetch_add(1, Ordering::Relaxed),
            Policy::Random => random(),
        };
        if !list.is_empty() {
            let shift = turn % list.len();
            list.rotate_left(shift);
        }
        list
    }

    /// Whether none of the servers is known to answer.
    pub(crate) fn is_failing(&self, node: &NodeServers) -> bool {
        self.ordered(node).iter().all(|server| server.is_failing())
    }

    /// Whether a server that failed is to be asked again, by the caller alone.
    pub(crate) fn takes_retry(&self, node: &NodeServers) -> bool {
        let now = base::clock::now();
        self.ordered(node).iter().any(|server| server.takes_retry(now))
    }
}

fn random() -> usize {
    let mut bytes = [0; 4];
    base::clock::random_bytes(&mut bytes);
    usize::try_from(u32::from_ne_bytes(bytes)).unwrap_or(0)
}

/// The servers to try: those that are up in order; if all are down, one of them.
fn candidates(list: &[Arc<Upstream>], forward: &Forward, now: Instant) -> VecDeque<Arc<Upstream>> {
    let up = list.iter().filter(|server| !server.is_down(forward.max_fails, now));
    let mut out: VecDeque<_> = up.cloned().collect();
    if out.is_empty() && !forward.fails_fast && !list.is_empty() {
        out.extend(list.get(random() % list.len()).cloned());
    }
    out
}

/// The answer of the first server of a plugin that has one; none if no server answers.
async fn ask_one(
    forward: &Forward,
    (node, tls): (&NodeServers, &Tls),
    request: &Message,
    tcp: bool,
) -> Option<Message> {
    let tcp = (tcp && !forward.prefer_udp) || forward.force_tcp;
    let _permit = match &forward.concurrent {
        None => None,
        Some(semaphore) => match semaphore.try_acquire() {
            Ok(permit) => Some(permit),
            Err(_) => {
                metrics::FORWARD_REJECTED.inc(&[]);
                let mut refused = request.clone();
                refused.metadata.response_code = ResponseCode::Refused;
                return Some(refused);
            }
        },
    };
    let start = base::clock::now();
    let list = forward.ordered(node);
    let mut left = candidates(&list, forward, start);
    if list.iter().all(|server| server.is_down(forward.max_fails, start)) {
        metrics::FORWARD_BROKEN.inc(&[]);
    }
    let mut last = None;
    while let Some(server) = left.pop_front() {
        let room = TRIES_MAX.saturating_sub(start.elapsed()).min(TRY_MAX);
        let began = base::clock::now();
        let mut answer =
            tokio::time::timeout(room, exchange::ask(request, &server, tcp, tls)).await;
        if let Ok(Ok(found)) = &answer
            && found.metadata.truncation
            && forward.prefer_udp
            && !tcp
        {
            answer = tokio::time::timeout(room, exchange::ask(request, &server, true, tls)).await;
        }
        let answered = matches!(answer, Ok(Ok(_)));
        server.record(answered, base::clock::now());
        let code = answer.as_ref().ok().and_then(|a| a.as_ref().ok());
        let code = code.map(|message| message.metadata.response_code);
        let to = server.address.to_string();
        let shown = code.map_or("", metrics::code_name);
        metrics::PROXY_TIME.took(&["forward", &to, shown], began.elapsed());
        match answer {
            Ok(Ok(found)) => {
                let is_last = left.is_empty();
                if !is_last && forward.failover.contains(&found.metadata.response_code) {
                    last = Some(found);
                    continue;
                }
                return Some(found);
            }
            Ok(Err(error)) => tracing::debug!(server = %to, %error, "dns: name server failed"),
            Err(_) => tracing::debug!(server = %to, "dns: name server did not answer"),
        }
    }
    last
}

/// Asks the plugins of a block in order; none if no server answers.
pub(crate) async fn ask(
    forwards: &[Forward],
    with: (&NodeServers, &Tls),
    request: &Message,
    tcp: bool,
) -> Option<Message> {
    let name = request.queries.first().map(|query| plain(query.name()))?;
    let fitting: Vec<&Forward> = forwards.iter().filter(|one| one.is_for(&name)).collect();
    for (index, forward) in fitting.iter().enumerate() {
        let answer = ask_one(forward, with, request, tcp).await;
        let code = answer.as_ref().map(|answer| answer.metadata.response_code);
        let is_empty = answer.as_ref().is_some_and(|answer| answer.answers.is_empty());
        let nodata = code == Some(ResponseCode::NoError) && is_empty && forward.next_on_nodata;
        let continues = nodata || code.is_some_and(|code| forward.next.contains(&code));
        if !continues || index + 1 == fitting.len() {
            return answer;
        }
    }
    None
}

#[cfg(test)]
mod tests;
