//! Spans, and the tracer that samples and queues them.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::HeaderMap;
use tokio::sync::mpsc;

/// The maximum number of pending spans (`DefaultMaxQueueSize` of OpenTelemetry's Go library).
pub(super) const QUEUE_MAX: usize = 2048;
/// The maximum number of events per span.
const EVENTS_MAX: usize = 32;

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

/// Attributes by name.
pub(crate) type Attributes = Vec<(&'static str, Value)>;

/// `SpanKind` of OpenTelemetry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Internal = 1,
    Server = 2,
}

/// The identity of a span, as in the header `traceparent` (W3C Trace Context).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SpanContext {
    pub(super) trace: [u8; 16],
    pub(super) span: [u8; 8],
    pub(super) sampled: bool,
}

impl SpanContext {
    /// Parses the header; `None` if it is absent or invalid, as the specification requires.
    pub(super) fn from_headers(headers: &HeaderMap) -> Option<Self> {
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

/// Decodes lower-case hexadecimal digits.
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

/// An event within a span; `at` is Unix time in nanoseconds.
#[derive(Debug, Clone)]
pub(super) struct Event {
    pub(super) at: u64,
    pub(super) name: &'static str,
    pub(super) attributes: Attributes,
}

/// The data of a span.
#[derive(Debug, Clone)]
pub(super) struct SpanRecord {
    pub(super) context: SpanContext,
    /// The parent span; zeros if there is none.
    pub(super) parent: [u8; 8],
    /// Whether the parent is in another process.
    pub(super) is_remote: bool,
    /// The span of an untrusted client.
    pub(super) link: Option<SpanContext>,
    pub(super) name: Cow<'static, str>,
    pub(super) kind: Kind,
    /// Start and end as Unix time in nanoseconds.
    pub(super) times: (u64, u64),
    pub(super) attributes: Attributes,
    pub(super) events: Vec<Event>,
    pub(super) failed: bool,
}

/// Samples requests and queues ended spans.
pub struct Tracer {
    /// A trace is sampled if its number, of 63 bits, is less than this bound (`TraceIDRatioBased`).
    pub(super) bound: u64,
    pub(super) queue: mpsc::Sender<SpanRecord>,
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

/// A span that ends when it is dropped; `None` if the request is not sampled.
#[derive(Debug)]
pub(crate) struct Span(pub(super) Option<Box<OpenSpan>>);

#[derive(Debug)]
pub(super) struct OpenSpan {
    pub(super) tracer: Arc<Tracer>,
    pub(super) record: SpanRecord,
}

impl Drop for Span {
    fn drop(&mut self) {
        let Some(open) = self.0.take() else { return };
        let OpenSpan { tracer, mut record } = *open;
        record.times.1 = now();
        if tracer.queue.try_send(record).is_err() {
            tracer.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The parent of a span.
#[derive(Debug, Clone)]
pub(crate) struct ParentSpan {
    pub(super) tracer: Arc<Tracer>,
    pub(super) context: SpanContext,
}

impl Span {
    /// This span as a parent; `None` if the request is not sampled.
    pub(crate) fn as_parent(&self) -> Option<ParentSpan> {
        let open = self.0.as_ref()?;
        Some(ParentSpan { tracer: Arc::clone(&open.tracer), context: open.record.context })
    }

    /// Adds an event that happens now.
    pub(crate) fn event(&mut self, name: &'static str, attributes: impl FnOnce() -> Attributes) {
        if let Some(open) = self.0.as_mut().filter(|open| open.record.events.len() < EVENTS_MAX) {
            let event = Event { at: now(), name, attributes: attributes() };
            open.record.events.push(event);
        }
    }

    /// Sets the status code and size of the response; the span fails with codes from 500.
    pub(crate) fn answered(&mut self, code: u16, bytes: Option<u64>) {
        let Some(open) = &mut self.0 else { return };
        let record = &mut open.record;
        let bytes = bytes.and_then(|bytes| i64::try_from(bytes).ok()).filter(|bytes| *bytes > 0);
        record.attributes.extend(bytes.map(|bytes| ("http.response.body.size", bytes.into())));
        record.attributes.push(("http.response.status_code", i64::from(code).into()));
        record.failed = code >= 500;
    }
}
