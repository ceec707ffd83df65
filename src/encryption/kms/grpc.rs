//! A plugin on a Unix socket: three unary calls of `k8s.io/kms/apis/v2` by gRPC over HTTP/2
//! (`PROTOCOL-HTTP2.md` of grpc).

use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use base::tasks::{Kind, Tasks};
use bytes::Bytes;
use http::{HeaderMap, Request, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::UnixStream;
use tokio::sync::Mutex;

use super::wire::{Annotations, Fields, put, put_map};
use super::{Plugin, SealedKey, Status};
use crate::errors::RpcError;

/// The maximum size of a response: a key of 1 kB and annotations of 32 kB.
const ANSWER_MAX: usize = 256 * 1024;
/// The initial and maximum delay for a socket that does not exist yet.
const WAIT: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

/// The names of status codes, by number.
const CODES: [&str; 17] = [
    "OK",
    "Canceled",
    "Unknown",
    "InvalidArgument",
    "DeadlineExceeded",
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "ResourceExhausted",
    "FailedPrecondition",
    "Aborted",
    "OutOfRange",
    "Unimplemented",
    "Internal",
    "Unavailable",
    "DataLoss",
    "Unauthenticated",
];

type Sender = SendRequest<Full<Bytes>>;

/// The gRPC client of one plugin.
pub(crate) struct Grpc {
    path: PathBuf,
    timeout: Duration,
    tasks: Tasks,
    connection: Mutex<Option<Sender>>,
}

impl std::fmt::Debug for Grpc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grpc").field("path", &self.path).finish_non_exhaustive()
    }
}

fn error(code: &'static str, message: impl ToString) -> RpcError {
    RpcError { code, message: message.to_string() }
}

impl Grpc {
    /// Creates a client; `path` is that of the socket, an abstract one if it begins with `@`.
    pub(crate) fn new(path: PathBuf, timeout: Duration, tasks: &Tasks) -> Self {
        Self { path, timeout, tasks: tasks.clone(), connection: Mutex::default() }
    }

    async fn connect(&self) -> std::io::Result<UnixStream> {
        use std::os::linux::net::SocketAddrExt as _;
        let text = self.path.to_string_lossy();
        let Some(name) = text.strip_prefix('@') else {
            return UnixStream::connect(&self.path).await;
        };
        let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
        let stream =
            base::tasks::blocking(move || std::os::unix::net::UnixStream::connect_addr(&address));
        let stream = stream.await.map_err(std::io::Error::other)??;
        stream.set_nonblocking(true)?;
        UnixStream::from_std(stream)
    }

    /// The current connection, or a new one. As in upstream, waits for a socket that does not exist
    /// yet.
    async fn sender(&self) -> Result<Sender, RpcError> {
        let mut current = self.connection.lock().await;
        if let Some(sender) = current.as_ref().filter(|sender| !sender.is_closed()) {
            return Ok(sender.clone());
        }
        let mut wait = base::Backoff::new(WAIT.0, WAIT.1);
        let stream = loop {
            match self.connect().await {
                Ok(stream) => break stream,
                Err(error) => {
                    tracing::debug!(
                        socket = %self.path.display(), %error, "cannot connect to the KMS plugin"
                    );
                    base::clock::sleep(wait.next_delay()).await;
                }
            }
        };
        let made = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .handshake(TokioIo::new(stream))
            .await;
        let (sender, connection) = made.map_err(|e| error("Unavailable", e))?;
        let shutdown = self.tasks.shutdown().clone();
        self.tasks.spawn(Kind::Request, "kms connection", async move {
            tokio::select! {
                ended = connection => ended,
                () = shutdown.requested() => Ok(()),
            }
        });
        *current = Some(sender.clone());
        Ok(sender)
    }

    async fn call(&self, method: &str, message: Vec<u8>) -> Result<Bytes, RpcError> {
        let called = tokio::time::timeout(self.timeout, self.exchange(method, &message)).await;
        called.unwrap_or_else(|_| Err(error("DeadlineExceeded", "context deadline exceeded")))
    }

    async fn exchange(&self, method: &str, message: &[u8]) -> Result<Bytes, RpcError> {
        let mut body = Vec::with_capacity(message.len() + 5);
        body.push(0);
        // Messages are short.
        body.extend_from_slice(&u32::try_from(message.len()).unwrap_or_default().to_be_bytes());
        body.extend_from_slice(message);
        let request = Request::post(format!("http://localhost/v2.KeyManagementService/{method}"))
            .header(header::CONTENT_TYPE, "application/grpc")
            .header(header::TE, "trailers")
            .header(header::USER_AGENT, "kube-lite")
            .body(Full::new(Bytes::from(body)))
            .map_err(|e| error("Internal", e))?;
        let mut sender = self.sender().await?;
        sender.ready().await.map_err(|e| error("Unavailable", e))?;
        let response = sender.send_request(request).await;
        let response = response.map_err(|e| error("Unavailable", e))?;
        let (head, body) = response.into_parts();
        let whole = Limited::new(body, ANSWER_MAX).collect().await;
        let whole = whole.map_err(|e| error("Unavailable", e))?;
        let trailers = whole.trailers().cloned().unwrap_or_default();
        status(&trailers).or_else(|| status(&head.headers)).unwrap_or_else(|| {
            let text = format!(
                "unexpected HTTP status code received from server: {}",
                head.status.as_u16()
            );
            Err(error("Unknown", text))
        })?;
        let bytes = whole.to_bytes();
        match bytes.split_first_chunk::<5>() {
            Some(([0, ..], message)) => Ok(bytes.slice_ref(message)),
            Some(_) => {
                let text = "grpc: Decompressor is not installed for grpc-encoding";
                Err(error("Unimplemented", text))
            }
            None => Err(error("Internal", "cardinality violation: received no response message")),
        }
    }
}

/// The status of the call in headers or trailers, if any.
fn status(headers: &HeaderMap) -> Option<Result<(), RpcError>> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let code: usize = text("grpc-status")?.parse().unwrap_or(2);
    if code == 0 {
        return Some(Ok(()));
    }
    let name = CODES.get(code).copied().unwrap_or("Unknown");
    let message = percent_decoded(text("grpc-message").unwrap_or_default());
    Some(Err(error(name, message)))
}

fn percent_decoded(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        let digits = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(value) if *byte == b'%' => {
                out.push(value);
                rest = after.get(2..).unwrap_or_default();
            }
            _ => out.push(*byte),
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[async_trait]
impl Plugin for Grpc {
    async fn status(&self) -> Result<Status, RpcError> {
        let answer = self.call("Status", Vec::new()).await?;
        let mut status = Status::default();
        for field in Fields(&answer) {
            let Some((number, value)) = field else { return Err(damaged()) };
            match number {
                1 => status.version = value.text().ok_or_else(damaged)?,
                2 => status.health = value.text().ok_or_else(damaged)?,
                3 => status.key_id = value.text().ok_or_else(damaged)?,
                _ => {}
            }
        }
        Ok(status)
    }

    async fn encrypt(&self, uid: &str, plain: &[u8]) -> Result<SealedKey, RpcError> {
        let mut message = Vec::new();
        put(&mut message, 1, plain);
        put(&mut message, 2, uid.as_bytes());
        let answer = self.call("Encrypt", message).await?;
        let mut sealed = SealedKey::default();
        for field in Fields(&answer) {
            let Some((number, value)) = field else { return Err(damaged()) };
            match number {
                1 => sealed.ciphertext = value.bytes().ok_or_else(damaged)?.to_vec(),
                2 => sealed.key_id = value.text().ok_or_else(damaged)?,
                3 => {
                    let (key, value) = value.entry().ok_or_else(damaged)?;
                    sealed.annotations.insert(key, value);
                }
                _ => {}
            }
        }
        Ok(sealed)
    }

    async fn decrypt(
        &self,
        uid: &str,
        ciphertext: &[u8],
        key_id: &str,
        annotations: &Annotations,
    ) -> Result<Vec<u8>, RpcError> {
        let mut message = Vec::new();
        put(&mut message, 1, ciphertext);
        put(&mut message, 2, uid.as_bytes());
        put(&mut message, 3, key_id.as_bytes());
        put_map(&mut message, 4, annotations);
        let answer = self.call("Decrypt", message).await?;
        let mut plain = Vec::new();
        for field in Fields(&answer) {
            if let (1, value) = field.ok_or_else(damaged)? {
                plain = value.bytes().ok_or_else(damaged)?.to_vec();
            }
        }
        Ok(plain)
    }
}

fn damaged() -> RpcError {
    error(
        "Internal",
        "grpc: failed to unmarshal the received message: proto: cannot parse invalid wire-format data",
    )
}
