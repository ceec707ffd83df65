//! HTTP/2 messages: calls of the fast path are refused in the same way as those of the gRPC
//! library.

use std::convert::Infallible;

use bytes::Bytes;
use futures::{FutureExt, StreamExt};
use http::{HeaderMap, Request};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};

use super::{World, put};

type Sent = UnsyncBoxBody<Bytes, Infallible>;

/// A response: headers, data and trailers.
#[derive(Debug, PartialEq)]
struct Answer {
    headers: HeaderMap,
    data: Bytes,
    trailers: Option<HeaderMap>,
}

impl Answer {
    /// Code and message, as sent.
    fn status(&self) -> (&str, &str) {
        let of = |name| {
            let told = self.trailers.as_ref().and_then(|trailers| trailers.get(name));
            told.or_else(|| self.headers.get(name)).map_or("", |value| value.to_str().unwrap())
        };
        (of("grpc-status"), of("grpc-message"))
    }
}

/// A connection, and its socket for breaking it.
async fn connect(world: &World) -> (SendRequest<Sent>, std::net::TcpStream) {
    let stream = tokio::net::TcpStream::connect(world.address).await.unwrap();
    let socket = stream.into_std().unwrap();
    let stream = tokio::net::TcpStream::from_std(socket.try_clone().unwrap()).unwrap();
    let (sender, connection) =
        handshake::<_, _, Sent>(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    // The caller of a request receives its error.
    let connection = connection.map(|_| Ok::<(), String>(()));
    world.tasks.spawn(base::Kind::Request, "client", connection);
    (sender, socket)
}

/// A body of these frames; it does not end if `open`.
fn body(frames: &[&[u8]], open: bool) -> Sent {
    let frames: Vec<_> = frames
        .iter()
        .map(|f| Ok::<_, Infallible>(Frame::data(Bytes::copy_from_slice(f))))
        .collect();
    let frames = futures::stream::iter(frames);
    if open {
        StreamBody::new(frames.chain(futures::stream::pending())).boxed_unsync()
    } else {
        StreamBody::new(frames).boxed_unsync()
    }
}

async fn call(
    sender: &mut SendRequest<Sent>,
    method: &str,
    headers: &[(&'static str, &str)],
    body: Sent,
) -> Answer {
    let mut request = Request::post(format!("http://etcd/etcdserverpb.KV/{method}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = sender.send_request(request.body(body).unwrap()).await.unwrap();
    assert_eq!(response.status(), 200);
    let (parts, body) = response.into_parts();
    let mut headers = parts.headers;
    headers.remove("date");
    let body = body.collect().await.unwrap();
    let trailers = body.trailers().cloned();
    Answer { headers, data: body.to_bytes(), trailers }
}

#[tokio::test]
async fn an_answer_is_headers_a_message_and_trailers() {
    let mut world = World::new().await;
    world.put("k", "v").await;
    let (mut sender, _) = connect(&world).await;
    let answer =
        call(&mut sender, "Range", &[], body(&[&[0, 0, 0, 0, 3, 10, 1, b'k']], false)).await;
    let trailers = answer.trailers.as_ref().unwrap();
    assert_eq!((trailers.len(), trailers.get("grpc-status").unwrap().as_bytes()), (1, &b"0"[..]));
    assert_eq!(answer.headers.get("content-type").unwrap(), "application/grpc");
    // The pair and the count: field 2 with key, revisions, version and value, field 4.
    let pair = [18, 12, 10, 1, b'k', 16, 2, 24, 2, 32, 1, 42, 1, b'v', 32, 1];
    assert!(answer.data.ends_with(&pair), "{:?}", answer.data);
    assert_eq!(usize::from(answer.data[4]), answer.data.len() - 5);
    // etcd's error, in the headers, as for its own calls that have sent nothing.
    let answer = call(&mut sender, "Range", &[], body(&[&[0, 0, 0, 0, 0]], false)).await;
    assert_eq!(answer.status(), ("3", "etcdserver:%20key%20is%20not%20provided"));
    assert!(answer.data.is_empty());
}

#[tokio::test]
async fn calls_that_are_read_here_are_refused_as_others_are() {
    let world = World::new().await;
    let (mut sender, _) = connect(&world).await;
    let gzip = [("grpc-encoding", "gzip")];
    let cases: [(&[_], &[&[u8]], &str); 9] = [
        (&[], &[], "13"),
        (&[], &[&[0, 0, 0]], "13"),
        (&[], &[&[0, 0, 0, 0, 9, 1], &[2]], "13"),
        (&[], &[&[1, 0, 0, 0, 1, 1]], "13"),
        (&[], &[&[2, 0, 0, 0, 1, 1]], "13"),
        (&[("grpc-encoding", "identity")], &[&[1, 0, 0, 0, 1, 1]], "13"),
        // A field with number 0.
        (&[], &[&[0, 0, 0, 0, 1, 0]], "13"),
        (&[], &[&[0, 0, 0x20, 0, 1]], "11"),
        (&gzip, &[&[1, 0, 0, 0, 1, 1]], "12"),
    ];
    for (headers, frames, code) in cases {
        let other = call(&mut sender, "Compact", headers, body(frames, false)).await;
        assert_eq!(other.status().0, code, "{frames:?}: {other:?}");
        for method in ["Range", "Put", "DeleteRange", "Txn"] {
            let answer = call(&mut sender, method, headers, body(frames, false)).await;
            assert_eq!(answer, other, "{method} {frames:?}");
        }
    }
}

#[tokio::test]
async fn a_deadline_ends_a_call_whose_message_does_not_come() {
    let world = World::new().await;
    let (mut sender, _) = connect(&world).await;
    let deadline = [("grpc-timeout", "20m")];
    let other = call(&mut sender, "Compact", &deadline, body(&[&[0, 0]], true)).await;
    let answer = call(&mut sender, "Put", &deadline, body(&[&[0, 0]], true)).await;
    assert_eq!(answer, other);
    assert_ne!(answer.status().0, "0");
}

/// A client that disconnects while it sends counts as cancelled and affects no other.
#[tokio::test]
async fn a_call_that_is_given_up_is_counted_as_cancelled() {
    let world = World::new().await;
    let (mut gone, socket) = connect(&world).await;
    let request = Request::post("http://etcd/etcdserverpb.KV/Put")
        .header("content-type", "application/grpc")
        .body(body(&[&[0, 0]], true))
        .unwrap();
    let asks = async move { gone.send_request(request).await.map(drop) };
    world.tasks.spawn(base::Kind::Request, "asks", asks);
    let mut kv = world.kv.clone();
    let line = async |what: &str| {
        let (mut http, _) = connect(&world).await;
        let request = Request::get("http://etcd/metrics").body(body(&[], false)).unwrap();
        let page = http.send_request(request).await.unwrap().into_body().collect().await.unwrap();
        String::from_utf8(page.to_bytes().to_vec()).unwrap().contains(what)
    };
    let started = r#"grpc_server_started_total{grpc_method="Put""#;
    while !line(started).await {
        tokio::task::yield_now().await;
    }
    socket.shutdown(std::net::Shutdown::Both).unwrap();
    let cancelled = r#"grpc_server_handled_total{grpc_code="Canceled",grpc_method="Put""#;
    while !line(cancelled).await {
        tokio::task::yield_now().await;
    }
    kv.put(put("after")).await.unwrap();
}
