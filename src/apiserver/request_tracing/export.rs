//! Sends spans in batches: unary calls of gRPC (`PROTOCOL-HTTP2.md` of grpc) without TLS, as
//! upstream does, for the collector is expected on the same machine.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use base::tasks::{Kind, Tasks};
use bytes::Bytes;
use http::{HeaderMap, Request, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::mpsc::{self, Receiver};

use super::config::{Endpoint, Plan};
use super::otlp;
use super::span::{QUEUE_MAX, Record, Tracer};

/// Spans of one call, and the longest that the first of them waits (`DefaultMaxExportBatchSize`,
/// `DefaultScheduleDelay`).
const BATCH_MAX: usize = 512;
const DELAY: Duration = Duration::from_secs(5);
/// Time for one call, and for all attempts at one batch (`otlptracegrpc`'s timeout and its
/// `MaxElapsedTime`).
const CALL_MAX: Duration = Duration::from_secs(10);
const ATTEMPTS_MAX: Duration = Duration::from_secs(60);
/// First and longest wait between two attempts.
const WAIT: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(30));
/// Time for what is left when the server stops.
const LAST_MAX: Duration = Duration::from_secs(2);
/// The answer is empty, or says how many spans were not taken.
const ANSWER_MAX: usize = 64 * 1024;
const PATH: &str = "http://localhost/opentelemetry.proto.collector.trace.v1.TraceService/Export";

type Sender = SendRequest<Full<Bytes>>;

impl Tracer {
    /// Starts what sends spans; `tasks` must end behind everything that serves requests.
    pub fn start(plan: &Plan, tasks: &Tasks) -> Arc<Self> {
        let (queue, ended) = mpsc::channel(QUEUE_MAX);
        let tracer = Arc::new(Self { bound: plan.bound(), queue, dropped: AtomicU64::new(0) });
        start(plan.endpoint.clone(), ended, Arc::downgrade(&tracer), tasks);
        tracer
    }
}

/// Starts the task.
fn start(endpoint: Endpoint, mut ended: Receiver<Record>, tracer: Weak<Tracer>, tasks: &Tasks) {
    let shutdown = tasks.shutdown().clone();
    let mut line = Line { endpoint, sender: None, tasks: tasks.clone(), is_well: true };
    tasks.spawn(Kind::Request, "spans", async move {
        let mut batch = Vec::with_capacity(BATCH_MAX);
        loop {
            let is_over = tokio::select! {
                more = gather(&mut ended, &mut batch) => !more,
                () = shutdown.requested() => {
                    while let Ok(record) = ended.try_recv() {
                        batch.push(record);
                    }
                    true
                }
            };
            if is_over {
                // Whoever stops the server does not wait for a collector that is away.
                let _ = tokio::time::timeout(LAST_MAX, line.call(&batch)).await;
                return Ok::<(), std::convert::Infallible>(());
            }
            tokio::select! {
                () = line.deliver(&batch) => {}
                () = shutdown.requested() => continue,
            }
            batch.clear();
            let dropped = tracer.upgrade().map_or(0, |t| t.dropped.swap(0, Ordering::Relaxed));
            if dropped > 0 {
                tracing::warn!(spans = dropped, "spans were dropped, the collector is too slow");
            }
        }
    });
}

/// Fills a batch; `false` when no more spans can come.
async fn gather(ended: &mut Receiver<Record>, batch: &mut Vec<Record>) -> bool {
    if batch.is_empty() {
        let Some(first) = ended.recv().await else { return false };
        batch.push(first);
    }
    let fill = async {
        while batch.len() < BATCH_MAX {
            match ended.recv().await {
                Some(record) => batch.push(record),
                None => return false,
            }
        }
        true
    };
    tokio::time::timeout(DELAY, fill).await.unwrap_or(true)
}

/// The way to the collector.
struct Line {
    endpoint: Endpoint,
    sender: Option<Sender>,
    tasks: Tasks,
    is_well: bool,
}

impl Line {
    /// Sends a batch, again and again for a while; then it is dropped.
    async fn deliver(&mut self, batch: &[Record]) {
        let attempts = async {
            let mut wait = base::Backoff::new(WAIT.0, WAIT.1);
            loop {
                match self.call(batch).await {
                    Ok(()) => {
                        self.is_well = true;
                        return;
                    }
                    Err(why) => {
                        if std::mem::replace(&mut self.is_well, false) {
                            tracing::warn!(endpoint = ?self.endpoint, error = why, "spans cannot be sent, the collector is tried again");
                        }
                    }
                }
                base::clock::sleep(wait.next_delay()).await;
            }
        };
        if tokio::time::timeout(ATTEMPTS_MAX, attempts).await.is_err() {
            tracing::debug!(spans = batch.len(), "spans were dropped, the collector is away");
        }
    }

    async fn call(&mut self, batch: &[Record]) -> Result<(), String> {
        if batch.is_empty() {
            return Ok(());
        }
        let called = tokio::time::timeout(CALL_MAX, self.exchange(batch)).await;
        let outcome = called.unwrap_or_else(|_| Err("no answer in ten seconds".to_owned()));
        if outcome.is_err() {
            self.sender = None;
        }
        outcome
    }

    async fn exchange(&mut self, batch: &[Record]) -> Result<(), String> {
        let message = otlp::request(batch, crate::server_identity::own_identity());
        let mut body = Vec::with_capacity(message.len() + 5);
        body.push(0);
        let length = u32::try_from(message.len()).map_err(|_| "a batch of 4 GiB")?;
        body.extend_from_slice(&length.to_be_bytes());
        body.extend_from_slice(&message);
        let request = Request::post(PATH)
            .header(header::CONTENT_TYPE, "application/grpc")
            .header(header::TE, "trailers")
            .header(header::USER_AGENT, "kube-lite")
            .body(Full::new(Bytes::from(body)))
            .map_err(|e| e.to_string())?;
        let text = |e: &dyn std::fmt::Display| e.to_string();
        let mut sender = match self.sender.take().filter(|sender| !sender.is_closed()) {
            Some(sender) => sender,
            None => self.connect().await?,
        };
        sender.ready().await.map_err(|e| text(&e))?;
        let response = sender.send_request(request).await.map_err(|e| text(&e))?;
        let (head, body) = response.into_parts();
        let whole = Limited::new(body, ANSWER_MAX).collect().await.map_err(|e| text(&e))?;
        let trailers = whole.trailers().cloned().unwrap_or_default();
        let status = status(&trailers).or_else(|| status(&head.headers));
        self.sender = Some(sender);
        status.unwrap_or_else(|| Err(format!("it answers with {}", head.status)))
    }

    async fn connect(&self) -> Result<Sender, String> {
        let bad = |e: std::io::Error| e.to_string();
        match &self.endpoint {
            Endpoint::Tcp(address) => {
                let stream = TcpStream::connect(address).await.map_err(bad)?;
                // A batch is one write.
                stream.set_nodelay(true).map_err(bad)?;
                self.shake(TokioIo::new(stream)).await
            }
            Endpoint::Unix(path) => {
                self.shake(TokioIo::new(UnixStream::connect(path).await.map_err(bad)?)).await
            }
            Endpoint::Abstract(name) => {
                use std::os::linux::net::SocketAddrExt as _;
                let address =
                    std::os::unix::net::SocketAddr::from_abstract_name(name).map_err(bad)?;
                let connect = move || std::os::unix::net::UnixStream::connect_addr(&address);
                let stream = base::tasks::blocking(connect).await;
                let stream = stream.map_err(|e| e.to_string())?.map_err(bad)?;
                stream.set_nonblocking(true).map_err(bad)?;
                self.shake(TokioIo::new(UnixStream::from_std(stream).map_err(bad)?)).await
            }
        }
    }

    async fn shake(
        &self,
        io: impl hyper::rt::Read + hyper::rt::Write + Send + Unpin + 'static,
    ) -> Result<Sender, String> {
        let made = http2::Builder::new(TokioExecutor::new()).timer(TokioTimer::new()).handshake(io);
        let (sender, connection) = made.await.map_err(|e| e.to_string())?;
        let shutdown = self.tasks.shutdown().clone();
        self.tasks.spawn(Kind::Request, "spans connection", async move {
            let last = async {
                shutdown.requested().await;
                base::clock::sleep(LAST_MAX).await;
            };
            tokio::select! {
                ended = connection => ended,
                () = last => Ok(()),
            }
        });
        Ok(sender)
    }
}

/// What headers or trailers say of the call, if they do.
fn status(headers: &HeaderMap) -> Option<Result<(), String>> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    match text("grpc-status")? {
        "0" => Some(Ok(())),
        code => Some(Err(format!(
            "it answers with code {code} of gRPC: {}",
            text("grpc-message").unwrap_or_default()
        ))),
    }
}
