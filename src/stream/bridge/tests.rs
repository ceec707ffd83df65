//! A WebSocket client, the bridge, and a runtime with SPDY, in one process.

use std::time::Duration;

use async_trait::async_trait;
use base::Shutdown;
use http::header::{SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION};
use hyper::body::Incoming;
use hyper::service::service_fn;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::{Message, Role as Side};

use futures::{SinkExt as _, StreamExt as _};

use super::*;
use crate::spdy::{Headers, Stream};
use base::io::BoxIo;

const EXIT_3: &str = r#"{"metadata":{},"status":"Failure","message":"command terminated with non-zero exit code","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"3"}]}}"#;

type Answer = Result<Response<Body>, std::convert::Infallible>;

/// Serves HTTP/1.1 with upgrades on one end of a pipe; returns the other end.
fn http<F>(tasks: &Tasks, answer: impl Fn(Request<Incoming>) -> F + Send + 'static) -> BoxIo
where
    F: Future<Output = Answer> + Send + 'static,
{
    let (ours, theirs) = tokio::io::duplex(32 * 1024);
    tasks.spawn(Kind::Request, "test-http", async move {
        hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(theirs), service_fn(answer))
            .with_upgrades()
            .await
    });
    Box::new(ours)
}

/// A runtime that accepts SPDY, then runs `behave` with the connection.
struct Runtime<B>(Tasks, B);

#[async_trait]
impl<B, F> Dial for Runtime<B>
where
    B: Fn(Connection) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    async fn dial(&self, host: &str, port: u16) -> std::io::Result<BoxIo> {
        assert_eq!((host, port), ("127.0.0.1", 1234));
        let (tasks, behave) = (self.0.clone(), self.1.clone());
        Ok(http(&self.0, move |mut request| {
            let (tasks, behave) = (tasks.clone(), behave.clone());
            async move {
                assert_eq!(request.method(), Method::POST);
                assert_eq!(request.uri().path(), "/exec/token");
                let upgraded = hyper::upgrade::on(&mut request);
                let owner = tasks.clone();
                tasks.spawn(Kind::Request, "test-runtime", async move {
                    let io = TokioIo::new(upgraded.await?);
                    behave(Connection::start(io, Role::Server, &owner)).await;
                    Ok::<(), hyper::Error>(())
                });
                let response = Response::builder()
                    .status(StatusCode::SWITCHING_PROTOCOLS)
                    .header(CONNECTION, "Upgrade")
                    .header(UPGRADE, spdy::UPGRADE)
                    .body(upgrade::empty());
                Ok(response.unwrap())
            }
        }))
    }
}

/// Accepts the first stream of each requested kind.
async fn streams(connection: &mut Connection, count: usize) -> Vec<(String, Stream)> {
    let mut found = Vec::new();
    while found.len() < count {
        let stream = connection.accept().await.unwrap();
        found.push((stream.headers.get("streamtype").unwrap().to_owned(), stream));
    }
    found
}

/// Opens a session through the bridge; returns the client's side of the WebSocket.
async fn connect<B, F>(
    session: Session,
    protocol: &'static str,
    behave: B,
) -> WebSocketStream<TokioIo<hyper::upgrade::Upgraded>>
where
    B: Fn(Connection) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let tasks = Tasks::new(Shutdown::new());
    let (owner, runtime) = (tasks.clone(), std::sync::Arc::new(Runtime(tasks.clone(), behave)));
    let server = http(&tasks, move |request| {
        let (owner, runtime) = (owner.clone(), std::sync::Arc::clone(&runtime));
        async move {
            let url: Uri = "http://127.0.0.1:1234/exec/token".parse().unwrap();
            Ok(serve(request, session, &url, &*runtime, &owner).await.unwrap())
        }
    });
    let request = Request::builder()
        .uri("/exec/ns/pod/c")
        .header(HOST, "node")
        .header(CONNECTION, "Upgrade")
        .header(UPGRADE, "websocket")
        .header(SEC_WEBSOCKET_VERSION, "13")
        .header(SEC_WEBSOCKET_KEY, "dGhlIHNhbXBsZSBub25jZQ==")
        .header(SEC_WEBSOCKET_PROTOCOL, protocol)
        .body(upgrade::empty())
        .unwrap();
    let mut response = upgrade::send(server, request, &tasks).await.unwrap();
    assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
    assert_eq!(response.headers()[SEC_WEBSOCKET_PROTOCOL], protocol);
    let io = TokioIo::new(hyper::upgrade::on(&mut response).await.unwrap());
    WebSocketStream::from_raw_socket(io, Side::Client, None).await
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), future).await.unwrap()
}

#[tokio::test]
async fn a_command_receives_input_and_its_end_and_returns_output_and_exit_code() {
    let all = Streams { stdin: true, stdout: true, stderr: true, tty: false };
    let runtime = |mut connection: Connection| async move {
        let mut found = streams(&mut connection, 4).await;
        let kinds: Vec<&str> = found.iter().map(|(k, _)| k.as_str()).collect();
        assert_eq!(kinds, ["error", "stdin", "stdout", "stderr"]);
        let mut heard = Vec::new();
        while let Some(piece) = found[1].1.read().await {
            heard.extend_from_slice(&piece);
        }
        found[2].1.write(Bytes::from(heard)).await.unwrap();
        found[3].1.write(Bytes::from_static(b"oops")).await.unwrap();
        found[0].1.write(Bytes::from_static(EXIT_3.as_bytes())).await.unwrap();
    };
    let mut client = within(connect(Session::Command(all), websocket::V5, runtime)).await;
    let send = |bytes: &'static [u8]| Message::Binary(Bytes::from_static(bytes));
    client.send(send(b"\x00hello ")).await.unwrap();
    client.send(send(b"\x00world")).await.unwrap();
    client.send(send(b"\xff\x00")).await.unwrap();
    let mut heard: [Vec<u8>; 5] = Default::default();
    let mut closed = false;
    while let Some(message) = within(client.next()).await {
        match message.unwrap() {
            Message::Binary(bytes) => heard[bytes[0] as usize].extend_from_slice(&bytes[1..]),
            Message::Close(_) => {
                closed = true;
                break;
            }
            other => panic!("{other}"),
        }
    }
    assert!(closed);
    assert_eq!(heard[1], b"hello world");
    assert_eq!(heard[2], b"oops");
    assert_eq!(heard[3], EXIT_3.as_bytes());
}

#[tokio::test]
async fn a_terminal_is_resizable_and_has_no_stderr() {
    let tty = Streams { stdin: false, stdout: true, stderr: true, tty: true };
    let runtime = |mut connection: Connection| async move {
        let mut found = streams(&mut connection, 3).await;
        let kinds: Vec<&str> = found.iter().map(|(k, _)| k.as_str()).collect();
        assert_eq!(kinds, ["error", "stdout", "resize"]);
        let size = found[2].1.read().await.unwrap();
        found[1].1.write(size).await.unwrap();
    };
    let mut client = within(connect(Session::Command(tty), websocket::V5, runtime)).await;
    client.send(Message::Binary(Bytes::from_static(b"\x04{\"Width\":80}"))).await.unwrap();
    let mut said = Vec::new();
    while let Some(Ok(Message::Binary(bytes))) = within(client.next()).await {
        said.push(String::from_utf8(bytes.to_vec()).unwrap());
    }
    assert_eq!(said[0], "\u{1}");
    assert_eq!(said[1], "\u{1}{\"Width\":80}");
    // The runtime closed without a result: the client receives an error.
    assert!(said[2].contains("ended the connection without a result"), "{said:?}");
}

#[tokio::test]
async fn port_forward_tunnels_spdy_inside_websocket() {
    let runtime = |mut connection: Connection| async move {
        let mut stream = connection.accept().await.unwrap();
        assert_eq!(stream.headers.get("port"), Some("80"));
        let piece = stream.read().await.unwrap();
        stream.write(piece).await.unwrap();
        stream.finish().await.unwrap();
        while stream.read().await.is_some() {}
    };
    let client = within(connect(Session::PortForward, websocket::TUNNEL, runtime)).await;
    // The client's side of the tunnel, as a pipe for a SPDY client.
    let (ours, theirs) = tokio::io::duplex(1024);
    let tasks = Tasks::new(Shutdown::new());
    let (mut sink, mut source) = client.split();
    let (mut read, mut write) = tokio::io::split(theirs);
    tasks.spawn(Kind::Request, "up", async move {
        let mut buffer = [0; 512];
        loop {
            let n = tokio::io::AsyncReadExt::read(&mut read, &mut buffer).await.unwrap();
            if n == 0
                || sink.send(Message::Binary(Bytes::copy_from_slice(&buffer[..n]))).await.is_err()
            {
                return Ok::<(), String>(());
            }
        }
    });
    tasks.spawn(Kind::Request, "down", async move {
        while let Some(Ok(Message::Binary(bytes))) = source.next().await {
            tokio::io::AsyncWriteExt::write_all(&mut write, &bytes).await.unwrap();
        }
        Ok::<(), String>(())
    });
    let connection = Connection::start(ours, Role::Client, &tasks);
    let headers = Headers::of(&[("streamType", "data"), ("port", "80"), ("requestID", "0")]);
    let mut stream = within(connection.open(headers)).await.unwrap();
    stream.write(Bytes::from_static(b"GET / HTTP/1.0")).await.unwrap();
    assert_eq!(within(stream.read()).await.unwrap().as_ref(), b"GET / HTTP/1.0");
    assert_eq!(within(stream.read()).await, None);
}
