//! Backends and their endpoints.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;

use crate::proxy::pool::Pool;
use crate::proxy::upstream::UpstreamTls;
use crate::routes::affinity::EndpointId;
use crate::routes::edits::{HeaderEdits, Rewrite};

/// How long an endpoint that refused a connection gets no requests while others exist (nginx's
/// `fail_timeout`).
const FAILURE_PAUSE: Duration = Duration::from_secs(10);

/// The protocol towards endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2 without TLS (`appProtocol: kubernetes.io/h2c`, gRPC).
    Http2,
    /// UDP.
    Udp,
}

/// One address that serves a backend, with the connections to it.
#[derive(Debug)]
pub struct Endpoint {
    /// Address and port of the pod.
    pub address: SocketAddr,
    /// Its connections.
    pub(crate) pool: Pool,
    /// Requests in progress.
    active: AtomicUsize,
    /// Milliseconds of [`milliseconds`] until which it gets no requests.
    paused_until: AtomicU64,
}

/// Monotonic milliseconds since the first call.
fn milliseconds() -> u64 {
    static START: std::sync::OnceLock<tokio::time::Instant> = std::sync::OnceLock::new();
    let start = START.get_or_init(base::clock::now);
    u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX)
}

impl Endpoint {
    fn new(address: SocketAddr, protocol: Protocol, tls: Option<Arc<UpstreamTls>>) -> Self {
        Self {
            address,
            pool: Pool::new(protocol, tls),
            active: AtomicUsize::new(0),
            paused_until: AtomicU64::new(0),
        }
    }

    /// Takes the endpoint out of use for a while.
    pub(crate) fn failed(&self) {
        let until = milliseconds().saturating_add(FAILURE_PAUSE.as_millis() as u64);
        self.paused_until.store(until, Ordering::Relaxed);
    }

    /// The endpoint answers again.
    pub(crate) fn works(&self) {
        if self.paused_until.load(Ordering::Relaxed) != 0 {
            self.paused_until.store(0, Ordering::Relaxed);
        }
    }

    fn is_paused(&self) -> bool {
        let until = self.paused_until.load(Ordering::Relaxed);
        until != 0 && until > milliseconds()
    }

    /// Counts a request as in progress until the guard is dropped.
    pub(crate) fn begin(self: &Arc<Self>) -> ActiveRequest {
        self.active.fetch_add(1, Ordering::Relaxed);
        ActiveRequest(Arc::clone(self))
    }
}

/// A request in progress at an endpoint.
#[derive(Debug)]
pub(crate) struct ActiveRequest(Arc<Endpoint>);

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One port of a Service: its endpoints change without a change of the routes.
#[derive(Debug)]
pub struct Backend {
    /// `namespace/service:port`.
    pub name: Arc<str>,
    /// The protocol of its endpoints.
    pub protocol: Protocol,
    /// How connections to its endpoints are encrypted.
    tls: Option<Arc<UpstreamTls>>,
    endpoints: ArcSwap<Vec<Arc<Endpoint>>>,
    next: AtomicUsize,
}

impl Backend {
    /// A backend without endpoints.
    pub fn new(name: impl Into<Arc<str>>, protocol: Protocol) -> Self {
        Self {
            name: name.into(),
            protocol,
            tls: None,
            endpoints: ArcSwap::default(),
            next: AtomicUsize::new(0),
        }
    }

    /// Encrypts connections to its endpoints.
    #[must_use]
    pub fn with_tls(mut self, tls: Option<Arc<UpstreamTls>>) -> Self {
        self.tls = tls;
        self
    }

    /// Replaces the endpoints. Those that stay keep their connections; those that go finish their
    /// requests.
    pub fn set_endpoints(&self, addresses: &[SocketAddr]) {
        let old = self.endpoints.load();
        let kept = |address: &SocketAddr| old.iter().find(|e| e.address == *address).cloned();
        let endpoints = addresses.iter().map(|address| {
            let make = || Endpoint::new(*address, self.protocol, self.tls.clone());
            kept(address).unwrap_or_else(|| Arc::new(make()))
        });
        self.endpoints.store(Arc::new(endpoints.collect()));
        for gone in old.iter().filter(|e| !addresses.contains(&e.address)) {
            gone.pool.close();
        }
    }

    /// Whether no endpoint is ready.
    pub(crate) fn is_empty(&self) -> bool {
        self.endpoints.load().is_empty()
    }

    /// The endpoint of a session.
    pub(crate) fn endpoint(&self, id: EndpointId) -> Option<Arc<Endpoint>> {
        let endpoints = self.endpoints.load();
        endpoints.iter().find(|e| EndpointId::new(&self.name, e.address) == id).cloned()
    }

    /// The endpoint for a request with a session: that of the session unless it failed, else any.
    pub(crate) fn choose_for(
        &self,
        session: Option<EndpointId>,
        tried: &[SocketAddr],
    ) -> Option<Arc<Endpoint>> {
        let known = session.and_then(|id| self.endpoint(id));
        let usable = known.filter(|e| !tried.contains(&e.address) && !e.is_paused());
        usable.or_else(|| self.choose(tried))
    }

    /// The endpoint for a request: of two neighbours in turn, the one with fewer requests. Those in
    /// `tried` are left out; paused ones too, unless all are paused.
    pub(crate) fn choose(&self, tried: &[SocketAddr]) -> Option<Arc<Endpoint>> {
        let endpoints = self.endpoints.load();
        let start = self.next.fetch_add(1, Ordering::Relaxed);
        let count = endpoints.len();
        let in_turn = (0..count).filter_map(|n| endpoints.get(start.wrapping_add(n) % count));
        let untried = in_turn.filter(|endpoint| !tried.contains(&endpoint.address));
        let mut usable = untried.clone().filter(|endpoint| !endpoint.is_paused());
        let Some(first) = usable.next() else {
            return untried.clone().next().cloned();
        };
        let load = |endpoint: &Arc<Endpoint>| endpoint.active.load(Ordering::Relaxed);
        match usable.next() {
            Some(second) if load(second) < load(first) => Some(Arc::clone(second)),
            _ => Some(Arc::clone(first)),
        }
    }
}

/// A backend with its share of the requests.
#[derive(Debug, Default)]
pub struct WeightedBackend {
    /// Its share, relative to the sum of all weights.
    pub weight: u32,
    /// Where requests go; `None` answers with 500 (a backend that does not exist or is not
    /// allowed).
    pub backend: Option<Arc<Backend>>,
    /// Changes of headers for this backend alone.
    pub request_headers: HeaderEdits,
    /// Changes of its responses' headers.
    pub response_headers: HeaderEdits,
    /// Changes of host and path instead of those of the rule.
    pub rewrite: Option<Rewrite>,
}

/// Backends that share the requests of a rule.
#[derive(Debug, Default)]
pub struct Split {
    backends: Vec<WeightedBackend>,
    total: u64,
    next: AtomicU64,
}

impl Split {
    /// Backends by weight.
    pub fn new(backends: Vec<WeightedBackend>) -> Self {
        let total = backends.iter().map(|b| u64::from(b.weight)).sum();
        Self { backends, total, next: AtomicU64::new(0) }
    }

    /// Whether there is no backend at all.
    pub fn is_empty(&self) -> bool {
        self.backends.is_empty()
    }

    /// The backends, to complete them.
    pub fn backends_mut(&mut self) -> impl Iterator<Item = &mut WeightedBackend> {
        self.backends.iter_mut()
    }

    /// The backend of the next request; `None` if there is none with a weight.
    pub fn choose(&self) -> Option<&WeightedBackend> {
        match self.backends.as_slice() {
            [only] if only.weight > 0 => return Some(only),
            _ if self.total == 0 => return None,
            _ => {}
        }
        // Multiples of the golden ratio modulo 1 are spread evenly at each length.
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        let fraction = turn.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let point = (u128::from(fraction) * u128::from(self.total)) >> 64;
        let mut end = 0;
        self.backends.iter().find(|backend| {
            end += u128::from(backend.weight);
            point < end
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], port))
    }

    #[test]
    fn requests_are_shared_by_weight_at_each_length() {
        let backend = |weight, name: &str| WeightedBackend {
            weight,
            backend: Some(Arc::new(Backend::new(name, Protocol::Http1))),
            ..WeightedBackend::default()
        };
        let split = Split::new(vec![backend(70, "a"), backend(30, "b"), backend(0, "c")]);
        let mut counts = std::collections::BTreeMap::new();
        for _ in 0..500 {
            let chosen = split.choose().and_then(|b| b.backend.as_ref()).unwrap();
            *counts.entry(chosen.name.to_string()).or_insert(0) += 1;
        }
        let of = |name: &str| counts.get(name).copied().unwrap_or(0);
        assert!((345..=355).contains(&of("a")), "{counts:?}");
        assert_eq!((of("a") + of("b"), of("c")), (500, 0));
        assert!(Split::new(vec![backend(0, "a")]).choose().is_none());
        assert!(Split::new(Vec::new()).choose().is_none());
    }

    #[test]
    fn endpoints_take_turns_and_failed_ones_pause() {
        let backend = Backend::new("n/s:80", Protocol::Http1);
        assert!(backend.choose(&[]).is_none());
        backend.set_endpoints(&[address(1), address(2), address(3)]);
        let turn = |tried: &[SocketAddr]| backend.choose(tried).map(|e| e.address.port());
        let mut three: Vec<_> = (0..3).filter_map(|_| turn(&[])).collect();
        three.sort_unstable();
        assert_eq!(three, [1, 2, 3]);
        backend.endpoints.load()[1].failed();
        assert!((0..6).all(|_| turn(&[]) != Some(2)));
        assert_eq!(turn(&[address(1), address(3)]), Some(2), "a paused one before none");
        backend.endpoints.load()[1].works();
        assert!((0..6).any(|_| turn(&[]) == Some(2)));
        assert_eq!(turn(&[address(1), address(2), address(3)]), None);
    }

    #[test]
    fn a_busy_endpoint_gives_way_to_its_neighbour() {
        let backend = Backend::new("n/s:80", Protocol::Http1);
        backend.set_endpoints(&[address(1), address(2)]);
        let busy = Arc::clone(&backend.endpoints.load()[0]);
        let _request = busy.begin();
        assert!((0..4).all(|_| backend.choose(&[]).is_some_and(|e| e.address == address(2))));
    }

    #[test]
    fn endpoints_that_stay_keep_their_connections() {
        let backend = Backend::new("n/s:80", Protocol::Http1);
        backend.set_endpoints(&[address(1), address(2)]);
        let first = Arc::clone(&backend.endpoints.load()[0]);
        backend.set_endpoints(&[address(3), address(1)]);
        assert!(Arc::ptr_eq(&first, &backend.endpoints.load()[1]));
    }
}
