//! Tests of the spans that a whole server sends to a collector. Names, nesting and attributes are
//! those of upstream's sources, field numbers those of
//! `opentelemetry/proto/trace/v1/trace.proto`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::Tasks;

use http::{HeaderMap, Request, Response};
use http_body_util::BodyExt as _;
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::*;
use crate::server::tests::{server, with_user};

/// The value of a field of a message.
enum Item<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let (mut value, mut shift) = (0, 0);
    loop {
        let (first, rest) = bytes.split_first().unwrap();
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        shift += 7;
        if first & 0x80 == 0 {
            return value;
        }
    }
}

fn fields(mut bytes: &[u8]) -> Vec<(u64, Item<'_>)> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes);
        let item = match tag & 7 {
            0 => Item::Number(varint(&mut bytes)),
            2 => {
                let length = usize::try_from(varint(&mut bytes)).unwrap();
                let (taken, rest) = bytes.split_at(length);
                bytes = rest;
                Item::Bytes(taken)
            }
            kind => {
                let (taken, rest) = bytes.split_at(if kind == 1 { 8 } else { 4 });
                bytes = rest;
                let mut whole = [0; 8];
                whole[..taken.len()].copy_from_slice(taken);
                Item::Number(u64::from_le_bytes(whole))
            }
        };
        all.push((tag >> 3, item));
    }
    all
}

fn messages(bytes: &[u8], field: u64) -> Vec<&[u8]> {
    let of = |(number, item)| match item {
        Item::Bytes(bytes) if number == field => Some(bytes),
        _ => None,
    };
    fields(bytes).into_iter().filter_map(of).collect()
}

fn number(bytes: &[u8], field: u64) -> Option<u64> {
    let of = |(number, item)| match item {
        Item::Number(value) if number == field => Some(value),
        _ => None,
    };
    fields(bytes).into_iter().find_map(of)
}

fn text(bytes: &[u8], field: u64) -> String {
    let found = messages(bytes, field);
    found.first().map(|text| String::from_utf8(text.to_vec()).unwrap()).unwrap_or_default()
}

fn attributes(bytes: &[u8], field: u64) -> BTreeMap<String, String> {
    let of = |entry: &[u8]| {
        let value = messages(entry, 2)[0];
        let shown = number(value, 3).map_or_else(|| text(value, 1), |number| number.to_string());
        (text(entry, 1), shown)
    };
    messages(bytes, field).into_iter().map(of).collect()
}

/// A decoded span.
#[derive(Debug, Clone, PartialEq)]
struct DecodedSpan {
    name: String,
    trace: Vec<u8>,
    id: Vec<u8>,
    parent: Vec<u8>,
    kind: u64,
    attributes: BTreeMap<String, String>,
    events: Vec<String>,
    links: Vec<Vec<u8>>,
    status: u64,
    flags: u64,
}

fn decode_span(span: &[u8]) -> DecodedSpan {
    assert!(number(span, 7).unwrap() <= number(span, 8).unwrap(), "it ends before its start");
    DecodedSpan {
        name: text(span, 5),
        trace: messages(span, 1)[0].to_vec(),
        id: messages(span, 2)[0].to_vec(),
        parent: messages(span, 4).first().map(|id| id.to_vec()).unwrap_or_default(),
        kind: number(span, 6).unwrap(),
        attributes: attributes(span, 9),
        events: messages(span, 11).into_iter().map(|event| text(event, 2)).collect(),
        links: messages(span, 13).into_iter().map(|link| messages(link, 1)[0].to_vec()).collect(),
        status: messages(span, 15).first().and_then(|s| number(s, 3)).unwrap_or(0),
        flags: number(span, 16).unwrap(),
    }
}

/// Starts a collector; returns its address and the messages that it receives.
#[expect(clippy::disallowed_methods, reason = "the collector is no part of the server")]
async fn collector() -> (String, Arc<Mutex<Vec<Vec<u8>>>>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let received: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
    let all = Arc::clone(&received);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let received = Arc::clone(&received);
            let service =
                hyper::service::service_fn(move |request: Request<hyper::body::Incoming>| {
                    let received = Arc::clone(&received);
                    async move {
                        let path = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
                        assert_eq!(request.uri().path(), path);
                        let kind = request.headers()["content-type"].clone();
                        let body = request.into_body().collect().await.unwrap().to_bytes();
                        assert_eq!((kind.as_bytes(), body[0]), (&b"application/grpc"[..], 0));
                        received.lock().push(body[5..].to_vec());
                        let response = Response::builder().header("grpc-status", "0");
                        let body = crate::request::body::empty();
                        Ok::<_, std::convert::Infallible>(
                            response.header("content-type", "application/grpc").body(body).unwrap(),
                        )
                    }
                });
            tokio::spawn(
                hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(stream), service),
            );
        }
    });
    (address, all)
}

fn config(body: &str) -> TracingConfig {
    let head = "apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\n";
    TracingConfig::parse(format!("{head}{body}").as_bytes()).unwrap()
}

/// Flushes pending spans, as a shutdown does, and returns all spans in the order of their end.
async fn flushed(tasks: &Tasks, received: &Mutex<Vec<Vec<u8>>>) -> Vec<DecodedSpan> {
    tasks.shutdown().request();
    assert!(tasks.drain(std::time::Duration::from_secs(20)).await.is_empty());
    let received = received.lock();
    let mut all = Vec::new();
    for message in received.iter() {
        let resource = messages(message, 1)[0];
        let of = attributes(messages(resource, 1)[0], 1);
        assert_eq!(of["service.name"], "apiserver");
        assert!(of["service.instance.id"].starts_with("apiserver-"), "{of:?}");
        let scope = messages(resource, 2)[0];
        all.extend(messages(scope, 2).into_iter().map(decode_span));
    }
    all
}

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const TRACE: [u8; 16] = [
    0x0a, 0xf7, 0x65, 0x19, 0x16, 0xcd, 0x43, 0xdd, 0x84, 0x48, 0xeb, 0x21, 0x1c, 0x80, 0x31, 0x9c,
];

#[tokio::test]
async fn a_sampled_request_has_a_span_with_children() {
    let (address, received) = collector().await;
    let (server, tasks) = (server(), Tasks::default());
    server.trace(Tracer::start(&config(&format!("endpoint: {address}\n")), &tasks));
    let admin = || User::authenticated("admin", &["system:masters"]);
    let made = Request::post("/api/v1/namespaces/n/configmaps?fieldManager=m")
        .header("host", "api.example.com:6443")
        .header("traceparent", PARENT)
        .header("content-type", "application/json")
        .header("user-agent", "test/1")
        .header("audit-id", "an-id")
        .body(crate::request::body::full(r#"{"metadata": {"name": "a"}}"#))
        .unwrap();
    assert_eq!(with_user(&server, admin(), made).await, 201);
    // This request has no sampled parent, and the sampling rate is 0.
    let other = Request::get("/api/v1/namespaces/n/configmaps/a")
        .body(crate::request::body::empty())
        .unwrap();
    assert_eq!(with_user(&server, admin(), other).await, 200);
    let all = flushed(&tasks, &received).await;
    let of = |name: &str| {
        let found = all.iter().find(|span| span.name == name);
        found.unwrap_or_else(|| panic!("no span {name} among {all:#?}"))
    };
    assert!(all.iter().all(|span| span.trace == TRACE), "{all:#?}");
    let root = of("POST /api/v1/namespaces/{:namespace}/configmaps");
    assert_eq!((root.kind, root.status, root.flags), (2, 0, 0x301));
    assert_eq!(root.parent, [0xb7, 0xad, 0x6b, 0x71, 0x69, 0x20, 0x33, 0x31]);
    for (key, value) in [
        ("server.address", "api.example.com"),
        ("server.port", "6443"),
        ("http.request.method", "POST"),
        ("url.scheme", "https"),
        ("user_agent.original", "test/1"),
        ("url.path", "/api/v1/namespaces/n/configmaps"),
        ("http.target", "/api/v1/namespaces/n/configmaps?fieldManager=m"),
        ("audit-id", "an-id"),
        ("http.response.status_code", "201"),
    ] {
        assert_eq!(root.attributes.get(key).map(String::as_str), Some(value), "{key}");
    }
    let create = of("Create");
    assert_eq!((create.kind, create.flags, &create.parent), (1, 0x101, &root.id));
    assert_eq!(create.attributes["verb"], "create");
    assert_eq!(create.attributes["resource"], "configmaps");
    let stored = of("Create etcd3");
    assert_eq!(stored.parent, create.id);
    assert_eq!(stored.attributes["key"], "/registry/configmaps/n/a");
    assert_eq!(stored.events, ["Txn call succeeded"]);
    assert_eq!(of("authorization").parent, root.id);
    assert_eq!(of("priorityandfairness").parent, root.id);
}

/// Upstream's `notSystemPrivilegedGroup`: requests of untrusted clients start a new trace, which
/// links the client's span.
#[tokio::test]
async fn untrusted_clients_do_not_decide_what_is_sampled() {
    let (address, received) = collector().await;
    let (server, tasks) = (server(), Tasks::default());
    let body = format!("endpoint: {address}\nsamplingRatePerMillion: 1000000\n");
    server.trace(Tracer::start(&config(&body), &tasks));
    let ask = || {
        let request = Request::get("/version").header("traceparent", PARENT);
        request.body(crate::request::body::empty()).unwrap()
    };
    with_user(&server, User::authenticated("jane", &[]), ask()).await;
    with_user(&server, User::authenticated("m", &["system:monitoring"]), ask()).await;
    let refused = Request::get("/version")
        .header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00");
    let refused = refused.body(crate::request::body::empty()).unwrap();
    with_user(&server, User::authenticated("m", &["system:monitoring"]), refused).await;
    let all = flushed(&tasks, &received).await;
    let roots: Vec<&DecodedSpan> = all.iter().filter(|span| span.kind == 2).collect();
    let [jane, trusted] = roots.as_slice() else { panic!("{roots:#?}") };
    assert_eq!(jane.name, "GET");
    assert!(jane.parent.is_empty() && jane.trace != TRACE);
    assert_eq!(jane.links, [TRACE.to_vec()]);
    assert!(trusted.links.is_empty());
    assert_eq!(trusted.trace, TRACE);
}

/// The examples of the W3C specification, valid and invalid.
#[test]
fn traceparent_is_parsed_as_specified() {
    let of = |text: &str| {
        let headers = HeaderMap::from_iter([(
            http::HeaderName::from_static("traceparent"),
            text.parse().unwrap(),
        )]);
        SpanContext::from_headers(&headers)
    };
    let context = of(PARENT).unwrap();
    assert_eq!((context.trace, context.sampled), (TRACE, true));
    for bad in [
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
        "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
        "",
    ] {
        assert_eq!(of(bad), None, "{bad}");
    }
    assert!(of("01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00-more").is_some());
}

/// An unavailable collector does not block requests: spans that do not fit are dropped.
#[tokio::test]
async fn no_request_waits_for_a_collector() {
    let (queue, mut ended) = mpsc::channel(1);
    let tracer = Arc::new(Tracer { bound: 1 << 63, queue, dropped: AtomicU64::new(0) });
    let request = Request::get("/version").body(()).unwrap();
    let info = RequestInfo { verb: "get", path: "/version".into(), ..RequestInfo::default() };
    for _ in 0..3 {
        let arrived = base::clock::unix_time();
        drop(tracer.request(&request, &info, &User::anonymous(), arrived));
    }
    assert!(ended.try_recv().is_ok() && ended.try_recv().is_err());
    assert_eq!(tracer.dropped.load(Ordering::Relaxed), 2);
}
