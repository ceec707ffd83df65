//! A span and the tracer that samples and sends it.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::HeaderMap;
use tokio::sync::mpsc;

/// Spans that wait to be sent (`DefaultMaxQueueSize` of OpenTelemetry's library for Go).
pub(super) const QUEUE_MAX: usize = 2048;
/// Members of one span; nothing here has more than a few.
const MEMBERS_MAX: usize = 32;

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
pub(super) enum Kind {
    Internal = 1,
    Server = 2,
}

/// A place in a trace, as `traceparent` says it (W3C Trace Context).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) trace: [u8; 16],
    pub(super) span: [u8; 8],
    pub(super) sampled: bool,
}

impl Place {
    /// Reads the header; `None` where it is damaged, as the specification wants it.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
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
pub(super) struct Event {
    pub(super) at: u64,
    pub(super) name: &'static str,
    pub(super) attributes: Attributes,
}

/// A span that has ended, or goes on.
#[derive(Debug, Clone)]
pub(super) struct Record {
    pub(super) place: Place,
    /// Zeros where there is none.
    pub(super) parent: [u8; 8],
    /// The parent is in another process.
    pub(super) is_remote: bool,
    /// What the client said of a trace that is not believed.
    pub(super) link: Option<Place>,
    pub(super) name: Cow<'static, str>,
    pub(super) kind: Kind,
    /// In nanoseconds since 1970.
    pub(super) times: (u64, u64),
    pub(super) attributes: Attributes,
    pub(super) events: Vec<Event>,
    pub(super) failed: bool,
}

/// What samples, and where spans go.
pub struct Tracer {
    /// Of 2^63 numbers those below this are sampled (`TraceIDRatioBased`).
    pub(super) bound: u64,
    pub(super) queue: mpsc::Sender<Record>,
    pub(super) dropped: AtomicU64,
}

impl std::fmt::Debug for Tracer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tracer").finish_non_exhaustive()
    }
}

pub(super) fn now() -> u64 {
    u64::try_from(base::clock::unix_time().as_nanos()).unwrap_or(u64::MAX)
}

pub(super) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    base::clock::random_bytes(&mut bytes);
    bytes
}

impl Tracer {
    pub(super) fn samples(&self, trace: &[u8; 16]) -> bool {
        let [.., a, b, c, d, e, f, g, h] = *trace;
        u64::from_be_bytes([a, b, c, d, e, f, g, h]) >> 1 < self.bound
    }
}

/// A span that goes on until this is dropped; nothing where the request is not sampled.
#[derive(Debug)]
pub(crate) struct Span(pub(super) Option<Box<Open>>);

#[derive(Debug)]
pub(super) struct Open {
    pub(super) tracer: Arc<Tracer>,
    pub(super) record: Record,
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
    pub(super) tracer: Arc<Tracer>,
    pub(super) place: Place,
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
