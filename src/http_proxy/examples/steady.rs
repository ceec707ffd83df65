//! Steady load on an ingress for `tests/ingress-churn`: `steady HTTP_ADDRESS HTTPS_ADDRESS HOST
//! SECONDS`. Kept connections over HTTP/1.1, kept ones over HTTP/2, and a connection for each
//! request, half of them with TLS. Prints a line `failed UNIX_MS KIND STAGE REASON` for each
//! request without a whole answer, and at the end a line of counts for each kind.

#![expect(clippy::print_stdout, reason = "a program that prints its results")]

use std::collections::BTreeMap;
use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use base::pki::tls::AnyServer;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use rustls::ClientConfig;
use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Clients of each kind.
const CLIENTS: usize = 8;
/// Between two requests of a client.
const PAUSE: Duration = Duration::from_millis(4);
/// A request without an answer by then has failed.
const TIMEOUT: Duration = Duration::from_secs(10);

type AnyError = Box<dyn Error + Send + Sync>;

trait Io: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Kept,
    Http2,
    Short,
    ShortTls,
}

/// Why a request failed, and when.
struct Failed(&'static str, AnyError);

fn at(stage: &'static str) -> impl Fn(AnyError) -> Failed {
    move |error| Failed(stage, error)
}

#[derive(Debug, Default)]
struct Counts {
    answered: u64,
    failed: u64,
    connections: u64,
    slowest: Duration,
}

struct Load {
    http: SocketAddr,
    https: SocketAddr,
    host: String,
    tls: [TlsConnector; 2],
    end: Instant,
    counts: Mutex<BTreeMap<Kind, Counts>>,
}

fn connector(protocol: &[u8]) -> Result<TlsConnector, rustls::Error> {
    let provider = Arc::new(ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()?
        .dangerous()
        // The certificate changes while the load runs.
        .with_custom_certificate_verifier(Arc::new(AnyServer::new(provider)))
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

/// The connection of a client, with its own end of the request queue.
enum Sender {
    Http1(http1::SendRequest<Empty<Bytes>>),
    Http2(http2::SendRequest<Empty<Bytes>>),
}

impl Load {
    async fn connect(&self, kind: Kind) -> Result<Sender, AnyError> {
        self.counts.lock().entry(kind).or_default().connections += 1;
        let with_tls = matches!(kind, Kind::Http2 | Kind::ShortTls);
        let stream = TcpStream::connect(if with_tls { self.https } else { self.http }).await?;
        stream.set_nodelay(true)?;
        let io: Box<dyn Io> = if with_tls {
            let [first, second] = &self.tls;
            let connector = if kind == Kind::Http2 { second } else { first };
            let name = ServerName::try_from(self.host.clone())?;
            Box::new(connector.connect(name, stream).await?)
        } else {
            Box::new(stream)
        };
        let io = TokioIo::new(io);
        if kind == Kind::Http2 {
            let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await?;
            spawn(async move { drop(connection.await) });
            return Ok(Sender::Http2(sender));
        }
        let (sender, connection) = http1::handshake(io).await?;
        spawn(async move { drop(connection.await) });
        Ok(Sender::Http1(sender))
    }

    fn request(&self, kind: Kind) -> Result<Request<Empty<Bytes>>, http::Error> {
        let mut request = Request::get("/1k");
        if kind == Kind::Http2 {
            request = Request::get(format!("https://{}/1k", self.host));
        } else {
            request = request.header("host", self.host.as_str());
        }
        if matches!(kind, Kind::Short | Kind::ShortTls) {
            request = request.header("connection", "close");
        }
        request.body(Empty::new())
    }

    /// One request over the connection, which is opened first if there is none.
    async fn exchange(&self, kind: Kind, kept: &mut Option<Sender>) -> Result<(), Failed> {
        // A connection that the server has announced to close is not used again; the request is
        // sent over the next one if none of it was sent, as any client does.
        for _ in 0..3 {
            let mut sender = match kept.take() {
                Some(sender) => sender,
                None => self.connect(kind).await.map_err(at("connect"))?,
            };
            let request = self.request(kind).map_err(|e| Failed("request", e.into()))?;
            let sent = match &mut sender {
                Sender::Http1(sender) => match sender.ready().await {
                    Ok(()) => sender.try_send_request(request).await,
                    Err(_) => continue,
                },
                Sender::Http2(sender) => match sender.ready().await {
                    Ok(()) => sender.try_send_request(request).await,
                    Err(_) => continue,
                },
            };
            let response = match sent {
                Ok(response) => response,
                Err(error) if error.message().is_some() => continue,
                Err(error) if is_go_away(error.error()) => continue,
                Err(error) => return Err(Failed("answer", error.into_error().into())),
            };
            let closes = response.headers().get("connection").is_some_and(|v| v == "close");
            whole(response).await.map_err(at("body"))?;
            if !closes {
                *kept = Some(sender);
            }
            return Ok(());
        }
        Err(Failed("answer", "three connections were closed before the request was sent".into()))
    }

    async fn run(&self, kind: Kind) {
        let mut kept = None;
        while Instant::now() < self.end {
            let begun = Instant::now();
            let done = tokio::time::timeout(TIMEOUT, self.exchange(kind, &mut kept)).await;
            let done = done.unwrap_or_else(|_| Err(Failed("answer", "timeout".into())));
            let took = begun.elapsed();
            {
                let mut counts = self.counts.lock();
                let counts = counts.entry(kind).or_default();
                counts.slowest = counts.slowest.max(took);
                match &done {
                    Ok(()) => counts.answered += 1,
                    Err(_) => counts.failed += 1,
                }
            }
            if let Err(Failed(stage, error)) = done {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                println!("failed {} {kind:?} {stage} {}", now.as_millis(), chain(&*error));
                kept = None;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Whether the server has announced the end of the connection before it took the request. The
/// server answers requests that it took (RFC 9113, 6.8), so any client may send this one again.
fn is_go_away(error: &(dyn Error + 'static)) -> bool {
    chain(error).contains("connection error received: not a result of an error")
}

fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text = format!("{text}: {source}");
        next = source.source();
    }
    text
}

/// Reads an answer to its end; anything but a whole 200 is an error.
async fn whole(response: Response<Incoming>) -> Result<(), AnyError> {
    let status = response.status();
    let body = response.into_body().collect().await?.to_bytes();
    match (status, body.len()) {
        (StatusCode::OK, 1024) => Ok(()),
        (status, length) => Err(format!("status {status}, {length} bytes").into()),
    }
}

#[expect(clippy::disallowed_methods, reason = "a program of its own")]
fn spawn<T: Send + 'static>(
    task: impl Future<Output = T> + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    tokio::spawn(task)
}

async fn run(args: Vec<String>) -> Result<(), AnyError> {
    let [http, https, host, seconds] = args.as_slice() else {
        return Err("usage: steady HTTP_ADDRESS HTTPS_ADDRESS HOST SECONDS".into());
    };
    let load = Arc::new(Load {
        http: http.parse()?,
        https: https.parse()?,
        host: host.clone(),
        tls: [connector(b"http/1.1")?, connector(b"h2")?],
        end: Instant::now() + Duration::from_secs(seconds.parse()?),
        counts: Mutex::default(),
    });
    let kinds = [Kind::Kept, Kind::Http2, Kind::Short, Kind::ShortTls];
    let clients = kinds.into_iter().flat_map(|kind| std::iter::repeat_n(kind, CLIENTS));
    let running: Vec<_> = clients
        .map(|kind| {
            let load = Arc::clone(&load);
            spawn(async move { load.run(kind).await })
        })
        .collect();
    for client in running {
        client.await?;
    }
    for (kind, counts) in load.counts.lock().iter() {
        let Counts { answered, failed, connections, slowest } = counts;
        let slowest = slowest.as_millis();
        println!(
            "{kind:?}: answered {answered}, failed {failed}, connections {connections}, slowest \
             {slowest} ms"
        );
    }
    Ok(())
}

fn main() -> Result<(), AnyError> {
    let args = std::env::args().skip(1).collect();
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?
        .block_on(run(args))
}
