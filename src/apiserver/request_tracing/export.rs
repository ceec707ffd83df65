//! Sends spans in batches with unary gRPC calls (`PROTOCOL-HTTP2.md` of grpc), without TLS as in
//! upstream, which expects the collector on the same machine.

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

use super::config::{Endpoint, TracingConfig};
use super::otlp;
use super::span::{QUEUE_MAX, SpanRecord, Tracer};

/// The maximum number of spans per call (`DefaultMaxExportBatchSize`).
const BATCH_MAX: usize = 512;
/// The maximum time that the first span of a batch waits (`DefaultScheduleDelay`).
const DELAY: Duration = Duration::from_secs(5);
/// The timeout of one call (that of `otlptracegrpc`).
const CALL_MAX: Duration = Duration::from_secs(10);
/// The time for all attempts to send one batch (`MaxElapsedTime` of `otlptracegrpc`).
const ATTEMPTS_MAX: Duration = Duration::from_secs(60);
/// The first and the maximum delay between two attempts.
const RETRY_DELAYS: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(30));
/// The time for the remaining spans when the server stops.
const LAST_MAX: Duration = Duration::from_secs(2);
/// The maximum size of a response, which contains at most the number of rejected spans.
const ANSWER_MAX: usize = 64 * 1024;
const PATH: &str = "http://localhost/opentelemetry.proto.collector.trace.v1.TraceService/Export";

type Sender = SendRequest<Full<Bytes>>;

/// A batch cannot be sent.
#[derive(Debug, thiserror::Error)]
enum ExportError {
    /// The collector does not respond in time.
    #[error("no response within {CALL_MAX:?}")]
    Timeout,
    /// The length of the batch does not fit into the 32 bits of the gRPC message prefix.
    #[error("the batch is too large")]
    TooLarge,
    /// The connection cannot be opened.
    #[error("{0}")]
    Connect(#[from] std::io::Error),
    /// The blocking connect has panicked.
    #[error("{0}")]
    Blocking(#[from] tokio::task::JoinError),
    /// The request is invalid.
    #[error("{0}")]
    Request(#[from] http::Error),
    /// The HTTP connection has failed.
    #[error("{0}")]
    Http(#[from] hyper::Error),
    /// The response cannot be read.
    #[error("{0}")]
    Body(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The response has no gRPC status.
    #[error("the collector responds with {0}")]
    Status(http::StatusCode),
    /// The response has a gRPC status other than 0.
    #[error("the collector responds with gRPC status {code}: {message}")]
    Grpc { code: String, message: String },
}

impl Tracer {
    /// Starts the task that sends spans; `tasks` must end after all tasks that serve requests.
    pub fn start(config: &TracingConfig, tasks: &Tasks) -> Arc<Self> {
        let (queue, ended) = mpsc::channel(QUEUE_MAX);
        let tracer = Arc::new(Self { bound: config.bound(), queue, dropped: AtomicU64::new(0) });
        start(config.endpoint.clone(), ended, Arc::downgrade(&tracer), tasks);
        tracer
    }
}

/// Starts the task.
fn start(endpoint: Endpoint, mut ended: Receiver<SpanRecord>, tracer: Weak<Tracer>, tasks: &Tasks) {
    let shutdown = tasks.shutdown().clone();
    let mut exporter = Exporter { endpoint, sender: None, tasks: tasks.clone(), is_healthy: true };
    tasks.spawn(Kind::Request, "spans", async move {
        let mut batch = Vec::with_capacity(BATCH_MAX);
        loop {
            let is_over = tokio::select! {
                is_open = fill_batch(&mut ended, &mut batch) => !is_open,
                () = shutdown.requested() => {
                    while let Ok(record) = ended.try_recv() {
                        batch.push(record);
                    }
                    true
                }
            };
            if is_over {
                // The shutdown must not wait for an unavailable collector.
                let _ = tokio::time::timeout(LAST_MAX, exporter.call(&batch)).await;
                return Ok::<(), std::convert::Infallible>(());
            }
            tokio::select! {
                () = exporter.deliver(&batch) => {}
                () = shutdown.requested() => continue,
            }
            batch.clear();
            let dropped = tracer.upgrade().map_or(0, |t| t.dropped.swap(0, Ordering::Relaxed));
            if dropped > 0 {
                tracing::warn!(spans = dropped, "tracing: the queue is full, spans are dropped");
            }
        }
    });
}

/// Waits until the batch is full or [`DELAY`] has passed since its first span. Returns `false` if
/// the tracer is dropped.
async fn fill_batch(ended: &mut Receiver<SpanRecord>, batch: &mut Vec<SpanRecord>) -> bool {
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

/// The client of the collector.
struct Exporter {
    endpoint: Endpoint,
    sender: Option<Sender>,
    tasks: Tasks,
    /// Whether the last call succeeded.
    is_healthy: bool,
}

impl Exporter {
    /// Sends a batch; retries for [`ATTEMPTS_MAX`], then drops it.
    async fn deliver(&mut self, batch: &[SpanRecord]) {
        let attempts = async {
            let mut backoff = base::Backoff::new(RETRY_DELAYS.0, RETRY_DELAYS.1);
            loop {
                match self.call(batch).await {
                    Ok(()) => {
                        self.is_healthy = true;
                        return;
                    }
                    Err(error) => {
                        if std::mem::replace(&mut self.is_healthy, false) {
                            tracing::warn!(
                                endpoint = ?self.endpoint,
                                %error,
                                "tracing: cannot send spans to the collector, retrying"
                            );
                        }
                    }
                }
                base::clock::sleep(backoff.next_delay()).await;
            }
        };
        if tokio::time::timeout(ATTEMPTS_MAX, attempts).await.is_err() {
            tracing::debug!(
                spans = batch.len(),
                "tracing: the collector is unavailable, spans are dropped"
            );
        }
    }

    async fn call(&mut self, batch: &[SpanRecord]) -> Result<(), ExportError> {
        if batch.is_empty() {
            return Ok(());
        }
        let called = tokio::time::timeout(CALL_MAX, self.exchange(batch)).await;
        let outcome = called.unwrap_or(Err(ExportError::Timeout));
        if outcome.is_err() {
            self.sender = None;
        }
        outcome
    }

    async fn exchange(&mut self, batch: &[SpanRecord]) -> Result<(), ExportError> {
        let message = otlp::request(batch, base::server_identity::own_identity());
        let mut body = Vec::with_capacity(message.len() + 5);
        body.push(0);
        let length = u32::try_from(message.len()).map_err(|_| ExportError::TooLarge)?;
        body.extend_from_slice(&length.to_be_bytes());
        body.extend_from_slice(&message);
        let request = Request::post(PATH)
            .header(header::CONTENT_TYPE, "application/grpc")
            .header(header::TE, "trailers")
            .header(header::USER_AGENT, "kube-lite")
            .body(Full::new(Bytes::from(body)))?;
        let mut sender = match self.sender.take().filter(|sender| !sender.is_closed()) {
            Some(sender) => sender,
            None => self.connect().await?,
        };
        sender.ready().await?;
        let response = sender.send_request(request).await?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, ANSWER_MAX).collect().await.map_err(ExportError::Body)?;
        let trailers = body.trailers().cloned().unwrap_or_default();
        let status = grpc_status(&trailers).or_else(|| grpc_status(&head.headers));
        self.sender = Some(sender);
        status.unwrap_or(Err(ExportError::Status(head.status)))
    }

    async fn connect(&self) -> Result<Sender, ExportError> {
        match &self.endpoint {
            Endpoint::Tcp(address) => {
                let stream = TcpStream::connect(address).await?;
                // Batches are written at once, so Nagle's algorithm would only delay them.
                stream.set_nodelay(true)?;
                self.handshake(TokioIo::new(stream)).await
            }
            Endpoint::Unix(path) => {
                self.handshake(TokioIo::new(UnixStream::connect(path).await?)).await
            }
            Endpoint::Abstract(name) => {
                use std::os::linux::net::SocketAddrExt as _;
                let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
                let connect = move || std::os::unix::net::UnixStream::connect_addr(&address);
                let stream = base::tasks::blocking(connect).await??;
                stream.set_nonblocking(true)?;
                self.handshake(TokioIo::new(UnixStream::from_std(stream)?)).await
            }
        }
    }

    async fn handshake(
        &self,
        io: impl hyper::rt::Read + hyper::rt::Write + Send + Unpin + 'static,
    ) -> Result<Sender, ExportError> {
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .handshake(io)
            .await?;
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

/// The gRPC status in headers or trailers; `None` if there is none.
fn grpc_status(headers: &HeaderMap) -> Option<Result<(), ExportError>> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    match text("grpc-status")? {
        "0" => Some(Ok(())),
        code => Some(Err(ExportError::Grpc {
            code: code.to_owned(),
            message: text("grpc-message").unwrap_or_default().to_owned(),
        })),
    }
}
