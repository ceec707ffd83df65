//! Exports traces of requests to an OpenTelemetry collector (upstream's `--tracing-config-file`,
//! KEP-647). Span names and attributes are upstream's (`pkg/endpoints/filters/traces.go`,
//! `component-base/tracing`).
//!
//! Requests that are not sampled have no span. Ended spans are put into a bounded queue, from which
//! one task sends batches. If the queue is full, spans are dropped and counted: no request waits
//! for the collector.

mod config;
mod export;
mod otlp;
pub(crate) mod span;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::sync::Arc;

use http::Request;

use crate::request::RequestInfo;
use crate::request::scope::RequestScope;
use crate::request::user::User;
pub use config::{TracingConfig, TracingConfigError, is_flag};
pub use span::Tracer;
pub(crate) use span::{Attributes, Span, Value};
use span::{Kind, OpenSpan, ParentSpan, SpanContext, SpanRecord, now, random};

/// The groups whose members can decide whether their requests are sampled
/// (`notSystemPrivilegedGroup`).
const TRUSTED: [&str; 2] = ["system:masters", "system:monitoring"];

impl Tracer {
    /// Starts the span of an authenticated request; the span is empty if the request is not
    /// sampled. `arrived` is the Unix time of the request.
    pub(crate) fn request<B>(
        self: &Arc<Self>,
        request: &Request<B>,
        info: &RequestInfo,
        user: &User,
        arrived: std::time::Duration,
    ) -> Span {
        let client = SpanContext::from_headers(request.headers());
        let is_trusted = TRUSTED.iter().any(|group| user.in_group(group));
        let parent = client.filter(|_| is_trusted);
        let trace = parent.map_or_else(random, |parent| parent.trace);
        let sampled = parent.map_or_else(|| self.samples(&trace), |parent| parent.sampled);
        if !sampled {
            return Span(None);
        }
        let record = SpanRecord {
            context: SpanContext { trace, span: random(), sampled },
            parent: parent.map_or([0; 8], |parent| parent.span),
            is_remote: parent.is_some(),
            link: client.filter(|_| !is_trusted),
            name: name_of(request, info).into(),
            kind: Kind::Server,
            times: (u64::try_from(arrived.as_nanos()).unwrap_or(u64::MAX), 0),
            attributes: attributes_of(request, info),
            events: Vec::new(),
            failed: false,
        };
        Span(Some(Box::new(OpenSpan { tracer: Arc::clone(self), record })))
    }
}

/// The span name, such as `GET /api/v1/namespaces/{:namespace}/pods/{:name}`; the method for
/// non-resource requests.
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

/// The attributes of OpenTelemetry's conventions for HTTP servers, the target, and the audit id.
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
    if let Some(remote) = request.extensions().get::<crate::request::remote::Remote>() {
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
    let id = String::from_utf8_lossy(crate::request::audit_id::of(request).as_bytes()).into_owned();
    all.push(("audit-id", id.into()));
    all
}

tokio::task_local! {
    /// The current span of a request.
    static CURRENT: Span;
}

/// Starts a child of the current span.
pub(crate) fn start(
    name: impl Into<Cow<'static, str>>,
    attributes: impl FnOnce() -> Attributes,
) -> Span {
    let parent = CURRENT.try_with(Span::as_parent).ok().flatten();
    let parent = parent.or_else(|| crate::request::scope::current()?.parent_span());
    let Some(ParentSpan { tracer, context }) = parent else { return Span(None) };
    let record = SpanRecord {
        context: SpanContext { span: random(), ..context },
        parent: context.span,
        is_remote: false,
        link: None,
        name: name.into(),
        kind: Kind::Internal,
        times: (now(), 0),
        attributes: attributes(),
        events: Vec::new(),
        failed: false,
    };
    Span(Some(Box::new(OpenSpan { tracer, record })))
}

/// Runs `work` within a child of the current span. It is not an async function, which would store
/// the future twice, as in [`crate::request::scope::scope`].
pub(crate) fn run<F: Future>(
    name: &'static str,
    attributes: impl FnOnce() -> Attributes,
    work: F,
) -> impl Future<Output = F::Output> {
    CURRENT.scope(start(name, attributes), work)
}

/// Starts the span of a request to the store.
pub(crate) fn of_store(name: &'static str, gvr: &api::Gvr, key: &str) -> Span {
    let attributes = || {
        vec![
            ("key", key.into()),
            ("group", gvr.group.as_ref().into()),
            ("resource", gvr.resource.as_ref().into()),
        ]
    };
    start(name, attributes)
}

impl RequestScope {
    /// The span of the request as a parent; `None` if the request is not sampled.
    fn parent_span(&self) -> Option<ParentSpan> {
        self.span.lock().as_ref()?.as_parent()
    }
}
