//! Traces of requests for a collector of OpenTelemetry (`--tracing-config-file` of upstream, KEP-647): which requests are sampled, spans and
//! their nesting. Names and attributes are upstream's (`pkg/endpoints/filters/traces.go`, `component-base/tracing`).
//!
//! A request that is not sampled carries nothing of it. What ends is put into a bounded queue, from which one task sends batches; what does
//! not fit is dropped and counted, so that no request waits for a collector.

mod config;
mod export;
mod otlp;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::Tasks;
use http::{HeaderMap, Request};
use tokio::sync::mpsc;

use crate::request::RequestInfo;
use crate::track::Track;
use crate::user::User;
pub use config::{Plan, is_flag};

/// Spans that wait to be sent (`DefaultMaxQueueSize` of OpenTelemetry's library for Go).
const QUEUE_MAX: usize = 2048;
/// Members of one span; nothing here has more than a few.
const MEMBERS_MAX: usize = 32;
/// Groups whose members may say whether their requests are sampled (`notSystemPrivilegedGroup`).
const TRUSTED: [&str; 2] = ["system:masters", "system:monitoring"];

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    Text(String),
    Number(i64),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

/// Attributes in their order.
pub(crate) type Attributes = Vec<(&'static str, Value)>;

/// What a span is among others (`SpanKind`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Internal = 1,
    Server = 2,
}

/// A place in a trace, as `traceparent` says it (W3C Trace Context).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    trace: [u8; 16],
    span: [u8; 8],
    sampled: bool,
}

impl Place {
    /// Reads the header; `None` where it is damaged, as the specification wants it.
    fn of(headers: &HeaderMap) -> Option<Self> {
        let text = headers.get("traceparent")?.to_str().ok()?;
        let mut parts = text.split('-');
        let version = hex::<1>(parts.next()?)?;
        let trace = hex::<16>(parts.next()?)?;
        let span = hex::<8>(parts.next()?)?;
        let flags = hex::<1>(parts.next()?)?;
        let more = parts.next().is_some();
        let is_valid =
            version != [0xff] && (version != [0] || !more) && trace != [0; 16] && span != [0; 8];
        is_valid.then_some(Self { trace, span, sampled: flags[0] & 1 == 1 })
    }
}

/// Bytes of small hexadecimal digits.
fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != 2 * N || !text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
        return None;
    }
    let mut bytes = [0; N];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(bytes)
}

/// What happened at a moment within a span.
#[derive(Debug, Clone)]
struct Event {
    at: u64,
    name: &'static str,
    attributes: Attributes,
}

/// A span that has ended, or goes on.
#[derive(Debug, Clone)]
struct Record {
    place: Place,
    /// Zeros where there is none.
    parent: [u8; 8],
    /// The parent is in another process.
    is_remote: bool,
    /// What the client said of a trace that is not believed.
    link: Option<Place>,
    name: Cow<'static, str>,
    kind: Kind,
    /// In nanoseconds since 1970.
    times: (u64, u64),
    attributes: Attributes,
    events: Vec<Event>,
    failed: bool,
}

/// What samples, and where spans go.
pub struct Tracer {
    /// Of 2^63 numbers those below this are sampled (`TraceIDRatioBased`).
    bound: u64,
    queue: mpsc::Sender<Record>,
    dropped: AtomicU64,
}

impl std::fmt::Debug for Tracer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tracer").finish_non_exhaustive()
    }
}

fn now() -> u64 {
    u64::try_from(base::clock::unix_time().as_nanos()).unwrap_or(u64::MAX)
}

fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    base::clock::random_bytes(&mut bytes);
    bytes
}

impl Tracer {
    /// Starts what sends spans; `tasks` must end behind everything that serves requests.
    pub fn start(plan: &Plan, tasks: &Tasks) -> Arc<Self> {
        let (queue, ended) = mpsc::channel(QUEUE_MAX);
        let tracer = Arc::new(Self { bound: plan.bound(), queue, dropped: AtomicU64::new(0) });
        export::start(plan.endpoint.clone(), ended, Arc::downgrade(&tracer), tasks);
        tracer
    }

    fn samples(&self, trace: &[u8; 16]) -> bool {
        let [.., a, b, c, d, e, f, g, h] = *trace;
        u64::from_be_bytes([a, b, c, d, e, f, g, h]) >> 1 < self.bound
    }

    /// The span of a request whose user is known; a span that is none when it is not sampled. `arrived` is when the request came.
    pub(crate) fn request<B>(
        self: &Arc<Self>,
        request: &Request<B>,
        info: &RequestInfo,
        user: &User,
        arrived: std::time::Duration,
    ) -> Span {
        let told = Place::of(request.headers());
        let is_trusted = TRUSTED.iter().any(|group| user.in_group(group));
        let parent = told.filter(|_| is_trusted);
        let trace = parent.map_or_else(random, |parent| parent.trace);
        let sampled = parent.map_or_else(|| self.samples(&trace), |parent| parent.sampled);
        if !sampled {
            return Span(None);
        }
        let place = Place { trace, span: random(), sampled };
        let record = Record {
            place,
            parent: parent.map_or([0; 8], |parent| parent.span),
            is_remote: parent.is_some(),
            link: told.filter(|_| !is_trusted),
            name: name_of(request, info).into(),
            kind: Kind::Server,
            times: (u64::try_from(arrived.as_nanos()).unwrap_or(u64::MAX), 0),
            attributes: attributes_of(request, info),
            events: Vec::new(),
            failed: false,
        };
        Span(Some(Box::new(Open { tracer: Arc::clone(self), record })))
    }
}

/// `GET /api/v1/namespaces/{:namespace}/pods/{:name}`; of what is no resource the method.
fn name_of<B>(request: &Request<B>, info: &RequestInfo) -> String {
    let method = request.method().as_str();
    if !info.is_resource {
        return method.to_owned();
    }
    let mut name = format!("{method} /{}", info.prefix);
    let mut add = |part: &str| {
        if !part.is_empty() {
            name.push('/');
            name.push_str(part);
        }
    };
    add(&info.group);
    add(&info.version);
    add(if info.namespace.is_empty() { "" } else { "namespaces/{:namespace}" });
    add(&info.resource);
    add(if info.name.is_empty() { "" } else { "{:name}" });
    add(&info.subresource);
    name
}

/// Those of OpenTelemetry's conventions for servers of HTTP, the target, and the id that events of the audit log have.
fn attributes_of<B>(request: &Request<B>, info: &RequestInfo) -> Attributes {
    let header = |name: http::HeaderName| {
        request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    };
    let authority = request.uri().authority().map(http::uri::Authority::as_str);
    let host = authority.unwrap_or_else(|| header(http::header::HOST));
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => (name, port.parse().ok()),
        _ => (host, None::<i64>),
    };
    let mut all: Attributes = vec![
        ("server.address", name.trim_matches(['[', ']']).into()),
        ("http.request.method", request.method().as_str().into()),
        ("url.scheme", "https".into()),
    ];
    all.extend(port.map(|port| ("server.port", port.into())));
    if let Some(remote) = request.extensions().get::<crate::audit::Remote>() {
        all.push(("network.peer.address", remote.0.ip().to_string().into()));
        all.push(("network.peer.port", i64::from(remote.0.port()).into()));
    }
    let agent = header(http::header::USER_AGENT);
    if !agent.is_empty() {
        all.push(("user_agent.original", agent.into()));
    }
    all.push(("url.path", info.path.as_str().into()));
    let version = match request.version() {
        http::Version::HTTP_2 => "2.0",
        http::Version::HTTP_10 => "1.0",
        _ => "1.1",
    };
    all.push(("network.protocol.version", version.into()));
    let target = request.uri().path_and_query().map_or("/", |target| target.as_str());
    all.push(("http.target", target.into()));
    let id = String::from_utf8_lossy(crate::audit::id_of(request).as_bytes()).into_owned();
    all.push(("audit-id", id.into()));
    all
}

/// A span that goes on until this is dropped; nothing where the request is not sampled.
#[derive(Debug)]
pub(crate) struct Span(Option<Box<Open>>);

#[derive(Debug)]
struct Open {
    tracer: Arc<Tracer>,
    record: Record,
}

impl Drop for Span {
    fn drop(&mut self) {
        let Some(open) = self.0.take() else { return };
        let Open { tracer, mut record } = *open;
        record.times.1 = now();
        if tracer.queue.try_send(record).is_err() {
            tracer.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// What spans within a span need to know.
#[derive(Debug, Clone)]
pub(crate) struct Within {
    tracer: Arc<Tracer>,
    place: Place,
}

tokio::task_local! {
    /// The span under way within a request.
    static WITHIN: Span;
}

/// A span within the one that is under way.
pub(crate) fn start(
    name: impl Into<Cow<'static, str>>,
    attributes: impl FnOnce() -> Attributes,
) -> Span {
    let within = WITHIN.try_with(Span::within).ok().flatten();
    let within = within.or_else(|| crate::track::current()?.within());
    let Some(Within { tracer, place }) = within else { return Span(None) };
    let record = Record {
        place: Place { span: random(), ..place },
        parent: place.span,
        is_remote: false,
        link: None,
        name: name.into(),
        kind: Kind::Internal,
        times: (now(), 0),
        attributes: attributes(),
        events: Vec::new(),
        failed: false,
    };
    Span(Some(Box::new(Open { tracer, record })))
}

/// Does something within a span of its own, which ends with it. As with [`crate::track::along`], the work is held once.
pub(crate) fn run<F: Future>(
    name: &'static str,
    attributes: impl FnOnce() -> Attributes,
    work: F,
) -> impl Future<Output = F::Output> {
    WITHIN.scope(start(name, attributes), work)
}

impl Span {
    /// For what is done within it; `None` when it is none.
    pub(crate) fn within(&self) -> Option<Within> {
        let open = self.0.as_ref()?;
        Some(Within { tracer: Arc::clone(&open.tracer), place: open.record.place })
    }

    /// Something happened.
    pub(crate) fn event(&mut self, name: &'static str, attributes: impl FnOnce() -> Attributes) {
        if let Some(open) = self.0.as_mut().filter(|open| open.record.events.len() < MEMBERS_MAX) {
            let event = Event { at: now(), name, attributes: attributes() };
            open.record.events.push(event);
        }
    }

    /// The request was answered with this code; a fault of the server is one of the span.
    pub(crate) fn answered(&mut self, code: u16, bytes: Option<u64>) {
        let Some(open) = &mut self.0 else { return };
        let record = &mut open.record;
        let bytes = bytes.and_then(|bytes| i64::try_from(bytes).ok()).filter(|bytes| *bytes > 0);
        record.attributes.extend(bytes.map(|bytes| ("http.response.body.size", bytes.into())));
        record.attributes.push(("http.response.status_code", i64::from(code).into()));
        record.failed = code >= 500;
    }
}

/// What the span of a verb says of its request (`traceFields`).
pub(crate) fn fields(context: &crate::context::Context) -> Attributes {
    let crate::context::Context { info, headers, .. } = context;
    let header = |name: http::HeaderName| -> Value {
        headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().into()
    };
    vec![
        ("accept", header(http::header::ACCEPT)),
        ("api-group", info.group.as_str().into()),
        ("api-version", info.version.as_str().into()),
        ("name", info.name.as_str().into()),
        ("subresource", info.subresource.as_str().into()),
        ("namespace", info.namespace.as_str().into()),
        ("resource", info.resource.as_str().into()),
        ("scope", crate::metrics::scope(info).into()),
        ("url", info.path.as_str().into()),
        ("user-agent", header(http::header::USER_AGENT)),
        ("verb", info.verb.into()),
    ]
}

/// A span of a request to the store.
pub(crate) fn of_store(name: &'static str, row: &crate::registry::Resource, key: &str) -> Span {
    let gvr = &row.spec.gvr;
    let said = || {
        vec![
            ("key", key.into()),
            ("group", gvr.group.as_ref().into()),
            ("resource", gvr.resource.as_ref().into()),
        ]
    };
    start(name, said)
}

impl Track {
    /// For what is done within the request; `None` when it is not sampled.
    fn within(&self) -> Option<Within> {
        self.span.lock().as_ref()?.within()
    }
}
