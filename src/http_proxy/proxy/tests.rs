//! The proxy between real sockets.

mod abuse;
mod endpoints;
mod policies;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use base::{Shutdown, Tasks};
use http::StatusCode;
use settings::TrustedProxies;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::backend::{Backend, Protocol, Split, WeightedBackend};
use crate::routes::hosts::WildcardLabels;
use crate::routes::path::PathMatch;
use crate::routes::{Action, Conditions, Forward, Routes, Rule};

/// A server that answers each request with its head and body, and counts its connections.
struct Echo {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
}

/// Reads one request; `None` at the end of the connection.
async fn read_request(stream: &mut TcpStream) -> Option<(String, Vec<u8>)> {
    let (mut bytes, mut chunk) = (Vec::new(), [0; 4096]);
    let head = loop {
        if let Some(end) = bytes.windows(4).position(|w| w == b"\r\n\r\n") {
            break end;
        }
        match stream.read(&mut chunk).await.ok()? {
            0 => return None,
            count => bytes.extend_from_slice(&chunk[..count]),
        }
    };
    let text = String::from_utf8(bytes[..head].to_vec()).unwrap();
    let mut body = bytes[head + 4..].to_vec();
    let length = text
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "))
        .map_or(0, |value| value.parse::<usize>().unwrap());
    while body.len() < length {
        let count = stream.read(&mut chunk).await.ok()?;
        body.extend_from_slice(&chunk[..count]);
    }
    Some((text, body))
}

impl Echo {
    async fn start(tasks: &Tasks) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let (count, own) = (Arc::clone(&connections), tasks.clone());
        tasks.spawn(base::Kind::Request, "echo", async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::SeqCst);
                own.spawn(base::Kind::Request, "echo-connection", async move {
                    while let Some((head, body)) = read_request(&mut stream).await {
                        if head.to_lowercase().contains("upgrade: echo") {
                            let answer = "HTTP/1.1 101 Switching Protocols\r\n\
                                connection: upgrade\r\nupgrade: echo\r\n\r\n";
                            stream.write_all(answer.as_bytes()).await?;
                            let (mut read, mut write) = stream.split();
                            tokio::io::copy(&mut read, &mut write).await?;
                            break;
                        }
                        let text = format!("{head}\r\n{}", String::from_utf8_lossy(&body));
                        let answer = format!(
                            "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{text}",
                            text.len()
                        );
                        stream.write_all(answer.as_bytes()).await?;
                        if head.starts_with("GET /close") {
                            break;
                        }
                    }
                    Ok::<(), std::io::Error>(())
                });
            }
            Ok::<(), std::io::Error>(())
        });
        Self { address, connections }
    }
}

fn rule(endpoints: &[SocketAddr], change: impl FnOnce(&mut Forward)) -> Arc<Rule> {
    let backend = Arc::new(Backend::new("n/echo:80", Protocol::Http1));
    backend.set_endpoints(endpoints);
    let weighted =
        WeightedBackend { weight: 1, backend: Some(backend), ..WeightedBackend::default() };
    let mut forward = Forward { split: Split::new(vec![weighted]), ..Forward::default() };
    change(&mut forward);
    Arc::new(Rule {
        source: "n/i".into(),
        order: (0, "n/i".into(), 0),
        conditions: Conditions::default(),
        action: Action::Forward(Box::new(forward)),
    })
}

/// Serves one rule for `a.example`; returns the address.
async fn proxy(rule: Arc<Rule>, tasks: &Tasks, tls: Option<Arc<TlsSettings>>) -> SocketAddr {
    proxy_behind(Arc::default(), rule, tasks, tls).await
}

/// As [`proxy`], behind other proxies.
async fn proxy_behind(
    proxies: Arc<TrustedProxies>,
    rule: Arc<Rule>,
    tasks: &Tasks,
    tls: Option<Arc<TlsSettings>>,
) -> SocketAddr {
    let mut routes = Routes::new(WildcardLabels::One);
    routes.insert("a.example", &PathMatch::Prefix("/".into()), rule);
    let listener = Listener {
        public_port: 80,
        routes: ArcSwap::from_pointee(routes),
        tls,
        proxies,
        tasks: tasks.clone(),
    };
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    tasks.spawn(base::Kind::Request, "proxy", async move {
        drop(serve(Arc::new(listener), socket).await);
        Ok::<(), std::convert::Infallible>(())
    });
    address
}

/// Sends bytes and returns the answer up to the end of the connection.
async fn exchange(proxy: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(proxy).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let reading = stream.read_to_end(&mut answer);
    tokio::time::timeout(Duration::from_secs(5), reading).await.expect("an answer").unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

fn get(path: &str, more: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a.example\r\n{more}Connection: close\r\n\r\n")
}

fn status(answer: &str) -> StatusCode {
    answer.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status")
}

#[tokio::test]
async fn requests_reach_the_endpoint_with_their_headers_and_bodies() {
    let tasks = Tasks::new(Shutdown::new());
    let echo = Echo::start(&tasks).await;
    let proxy = proxy(rule(&[echo.address], |_| {}), &tasks, None).await;
    let request = "POST /a%2Fb?c=d HTTP/1.1\r\nHost: A.example:80\r\nX-One: 1\r\n\
        X-Forwarded-For: 198.51.100.9\r\nContent-Length: 5\r\nConnection: close, x-hop\r\n\
        X-Hop: 1\r\n\r\nhello";
    let answer = exchange(proxy, request).await;
    assert_eq!(status(&answer), StatusCode::OK);
    let echoed = answer.split_once("\r\n\r\n").unwrap().1;
    assert!(echoed.starts_with("POST /a%2Fb?c=d HTTP/1.1\r\n"), "{echoed}");
    assert!(echoed.ends_with("\r\nhello"), "{echoed}");
    for line in ["host: A.example:80", "x-one: 1", "x-forwarded-for: 127.0.0.1"] {
        assert!(echoed.lines().any(|l| l == line), "{line} is not in {echoed}");
    }
    assert!(!echoed.contains("x-hop"), "{echoed}");
    tasks.shutdown().request();
}

#[tokio::test]
async fn a_trusted_proxy_tells_the_address_of_a_client() {
    let tasks = Tasks::new(Shutdown::new());
    let echo = Echo::start(&tasks).await;
    let behind = |network: &str, proxy_protocol| {
        Arc::new(TrustedProxies { networks: vec![network.parse().unwrap()], proxy_protocol })
    };
    let line = "PROXY TCP4 198.51.100.7 192.0.2.1 56324 80\r\n";
    let forged = "X-Forwarded-For: 203.0.113.9\r\n";
    for (proxies, before, forwarded_for) in [
        (behind("127.0.0.0/8", true), line, Some("198.51.100.7")),
        (behind("127.0.0.0/8", true), "", Some("203.0.113.9, 127.0.0.1")),
        (behind("127.0.0.0/8", false), "", Some("203.0.113.9, 127.0.0.1")),
        (behind("10.0.0.0/8", true), "", Some("127.0.0.1")),
        // A request line that HTTP does not know, since the header is no header here.
        (behind("10.0.0.0/8", true), line, None),
        (behind("127.0.0.0/8", false), line, None),
    ] {
        let proxy = proxy_behind(proxies, rule(&[echo.address], |_| {}), &tasks, None).await;
        let answer = exchange(proxy, &format!("{before}{}", get("/", forged))).await;
        let found = answer.lines().find_map(|line| line.strip_prefix("x-forwarded-for: "));
        assert_eq!(found, forwarded_for, "{answer}");
        assert_eq!(status(&answer) == StatusCode::OK, forwarded_for.is_some(), "{answer}");
    }
    tasks.shutdown().request();
}

#[tokio::test]
async fn a_malformed_header_of_a_trusted_proxy_ends_the_connection() {
    let tasks = Tasks::new(Shutdown::new());
    let echo = Echo::start(&tasks).await;
    let networks = vec!["127.0.0.0/8".parse().unwrap()];
    let proxies = Arc::new(TrustedProxies { networks, proxy_protocol: true });
    let proxy = proxy_behind(proxies, rule(&[echo.address], |_| {}), &tasks, None).await;
    let line = "PROXY TCP4 198.51.100.7\r\n";
    assert_eq!(exchange(proxy, &format!("{line}{}", get("/", ""))).await, "");
    assert_eq!(echo.connections.load(Ordering::SeqCst), 0);
    tasks.shutdown().request();
}

#[tokio::test]
async fn connections_to_endpoints_are_used_again_until_they_close() {
    let tasks = Tasks::new(Shutdown::new());
    let echo = Echo::start(&tasks).await;
    let proxy = proxy(rule(&[echo.address], |_| {}), &tasks, None).await;
    for _ in 0..5 {
        assert_eq!(status(&exchange(proxy, &get("/", "")).await), StatusCode::OK);
    }
    assert_eq!(echo.connections.load(Ordering::SeqCst), 1);
    for _ in 0..3 {
        // The endpoint closes after its answer, while the proxy believes the connection is idle.
        assert_eq!(status(&exchange(proxy, &get("/close", "")).await), StatusCode::OK);
    }
    tasks.shutdown().request();
}

#[tokio::test]
async fn an_endpoint_that_refuses_connections_is_passed_over() {
    let tasks = Tasks::new(Shutdown::new());
    let echo = Echo::start(&tasks).await;
    let closed = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap()
    };
    let both = proxy(rule(&[closed, echo.address], |_| {}), &tasks, None).await;
    for _ in 0..4 {
        assert_eq!(status(&exchange(both, &get("/", "")).await), StatusCode::OK);
    }
    let dead = proxy(rule(&[closed], |_| {}), &tasks, None).await;
    assert_eq!(status(&exchange(dead, &get("/", "")).await), StatusCode::BAD_GATEWAY);
    let none = proxy(rule(&[], |_| {}), &tasks, None).await;
    assert_eq!(status(&exchange(none, &get("/", "")).await), StatusCode::SERVICE_UNAVAILABLE);
    tasks.shutdown().request();
}

#[tokio::test]
async fn bad_requests_are_refused_before_an_endpoint_sees_them() {
    let tasks = Tasks::new(Shutdown::new());
    let echo = Echo::start(&tasks).await;
    let proxy = proxy(rule(&[echo.address], |f| f.body_bytes_max = 4), &tasks, None).await;
    let head = "Host: a.example\r\nConnection: close\r\n";
    for (request, expected) in [
        // RFC 9112, 6.3: two lengths; 3.2: no host, several hosts; 5.2: a folded line.
        (
            format!("POST / HTTP/1.1\r\n{head}Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcd"),
            StatusCode::BAD_REQUEST,
        ),
        ("GET / HTTP/1.1\r\nConnection: close\r\n\r\n".into(), StatusCode::BAD_REQUEST),
        (format!("GET / HTTP/1.1\r\n{head}Host: b.example\r\n\r\n"), StatusCode::BAD_REQUEST),
        (format!("GET / HTTP/1.1\r\n{head}X: a\r\n b\r\n\r\n"), StatusCode::BAD_REQUEST),
        (format!("GET /../etc HTTP/1.1\r\n{head}\r\n"), StatusCode::BAD_REQUEST),
        (
            format!("POST / HTTP/1.1\r\n{head}Content-Length: 5\r\n\r\nhello"),
            StatusCode::PAYLOAD_TOO_LARGE,
        ),
        (
            "GET / HTTP/1.1\r\nHost: b.example\r\nConnection: close\r\n\r\n".into(),
            StatusCode::NOT_FOUND,
        ),
    ] {
        assert_eq!(status(&exchange(proxy, &request).await), expected, "{request}");
    }
    assert_eq!(echo.connections.load(Ordering::SeqCst), 0);
    tasks.shutdown().request();
}

/// RFC 9112, 6.3: the length counts as not sent, and the endpoint must not see it.
#[tokio::test]
async fn a_length_beside_chunks_is_removed() {
    let tasks = Tasks::new(Shutdown::new());
    let echo = Echo::start(&tasks).await;
    let proxy = proxy(rule(&[echo.address], |_| {}), &tasks, None).await;
    for lengths in [
        "Content-Length: 4\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 4",
    ] {
        let request = format!(
            "POST / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n{lengths}\r\n\r\n0\r\n\r\n"
        );
        let answer = exchange(proxy, &request).await;
        let echoed = answer.split_once("\r\n\r\n").unwrap().1;
        assert!(echoed.contains("transfer-encoding: chunked"), "{echoed}");
        assert!(!echoed.contains("content-length"), "{echoed}");
    }
    tasks.shutdown().request();
}

#[tokio::test]
async fn upgraded_connections_carry_bytes_both_ways() {
    let tasks = Tasks::new(Shutdown::new());
    let echo = Echo::start(&tasks).await;
    let proxy = proxy(rule(&[echo.address], |_| {}), &tasks, None).await;
    let mut stream = TcpStream::connect(proxy).await.unwrap();
    let request = "GET /ws HTTP/1.1\r\nHost: a.example\r\nConnection: keep-alive, Upgrade\r\nUpgrade: echo\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(stream.read_u8().await.unwrap());
    }
    let text = String::from_utf8(answer).unwrap().to_lowercase();
    assert!(text.starts_with("http/1.1 101"), "{text}");
    assert!(text.contains("upgrade: echo"), "{text}");
    for message in ["one", "two"] {
        stream.write_all(message.as_bytes()).await.unwrap();
        let mut back = [0; 3];
        stream.read_exact(&mut back).await.unwrap();
        assert_eq!(back, message.as_bytes());
    }
    tasks.shutdown().request();
}

#[tokio::test]
async fn a_tls_listener_offers_http2_and_closes_gracefully() {
    let tasks = Tasks::new(Shutdown::new());
    let echo = Echo::start(&tasks).await;
    let certificates = Certificates::new(Some(Certificates::self_signed().unwrap()));
    let rule = rule(&[echo.address], |_| {});
    let address =
        proxy(rule, &tasks, Some(CertificateStore::new(certificates).config().unwrap())).await;
    let stream = tls(address, b"h2").await;
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(b"h2".as_slice()));
    let executor = hyper_util::rt::TokioExecutor::new();
    let io = hyper_util::rt::TokioIo::new(stream);
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(executor, io).await.unwrap();
    tasks.spawn(base::Kind::Request, "client", connection);
    let request = http::Request::get("https://a.example/x")
        .body(http_body_util::Empty::<bytes::Bytes>::new())
        .unwrap();
    let response = sender.send_request(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let body = http_body_util::BodyExt::collect(response.into_body()).await.unwrap().to_bytes();
    let text = String::from_utf8_lossy(&body);
    assert!(text.contains("host: a.example"), "{text}");
    assert!(text.contains("x-forwarded-proto: https"), "{text}");
    tasks.shutdown().request();
    let closed = tokio::time::timeout(Duration::from_secs(5), async {
        while sender.ready().await.is_ok() {
            tokio::task::yield_now().await;
        }
    });
    closed.await.expect("GOAWAY ends the connection");
}

/// A TLS connection that trusts every certificate.
async fn tls(address: SocketAddr, protocol: &[u8]) -> tokio_rustls::client::TlsStream<TcpStream> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(TrustAll(provider)))
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    let stream = TcpStream::connect(address).await.unwrap();
    let name = rustls::pki_types::ServerName::try_from("a.example").unwrap();
    tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
}

#[derive(Debug)]
struct TrustAll(Arc<rustls::crypto::CryptoProvider>);

impl rustls::client::danger::ServerCertVerifier for TrustAll {
    fn verify_server_cert(
        &self,
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &[rustls::pki_types::CertificateDer<'_>],
        _: &rustls::pki_types::ServerName<'_>,
        _: &[u8],
        _: rustls::pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &rustls::pki_types::CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &rustls::pki_types::CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
