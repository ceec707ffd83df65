//! The client of one webhook: keep-alive connections, one request at a time on each, limits on
//! everything.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use base::pki::external_roots;
use base::{Kind, Tasks};
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HOST, HeaderValue, USER_AGENT};
use http::{Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::sync::OnceCell;
use tokio_rustls::TlsConnector;

use super::config::Address;
use super::errors::{ConfigError, ResolveError, ResponseError, TransportError};
use super::{CallError, Callout, ClientConfig, errors, go_duration};
use api::Status;

/// The maximum size of a response: an object of 3 MiB as a patch in base64, or lists of converted
/// objects.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// The maximum number of idle connections per webhook (as in client-go's transport).
const IDLE_MAX: usize = 25;
/// The age from which on an idle connection is not reused (Go's `IdleConnTimeout`).
const IDLE_AGE_MAX: Duration = Duration::from_secs(90);
/// The timeout for connection and TLS handshake; that of the call may be shorter (30 s and 10 s in
/// Go).
const CONNECT_MAX: Duration = Duration::from_secs(30);

/// An idle connection.
struct Idle {
    address: SocketAddr,
    sender: SendRequest<Full<Bytes>>,
    since: tokio::time::Instant,
}

/// The client of one webhook. Calls can run concurrently.
pub struct Client {
    config: ClientConfig,
    address: Address,
    callout: Callout,
    tls: OnceCell<Arc<rustls::ClientConfig>>,
    idle: Mutex<Vec<Idle>>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Client(https://{}{})", self.address.authority, self.address.path)
    }
}

impl Client {
    /// Creates a client; the first call opens a connection.
    ///
    /// # Errors
    /// If the address is invalid.
    pub fn new(config: ClientConfig, callout: Callout) -> Result<Self, ConfigError> {
        let address = Address::of(&config.endpoint)?;
        Ok(Self { config, address, callout, tls: OnceCell::new(), idle: Mutex::new(Vec::new()) })
    }

    /// Posts a review and returns the JSON of the response. `timeout` limits the whole call and is
    /// sent as the parameter `timeout`, rounded up to seconds.
    ///
    /// # Errors
    /// The reason why there is no response, or the error response.
    pub async fn post(&self, review: &Value, timeout: Duration) -> Result<Value, CallError> {
        let path = format!("{}?timeout={}", self.address.path, go_duration(timeout));
        let url = format!("https://{}{path}", self.address.authority);
        let failed = |source: TransportError| CallError::Transport { url: url.clone(), source };
        let body = serde_json::to_vec(review).map_err(ConfigError::Review)?;
        let request = self.request(&path, body.into())?;
        let tls = self
            .tls
            .get_or_try_init(|| external_roots::client(&self.config.ca_bundle, false, None))
            .await
            .map_err(|e| ConfigError::RootCertificates { reason: e.to_string() })?;
        let exchange = async {
            let (response, sender, address) = self.send(request, tls).await.map_err(failed)?;
            let (parts, body) = response.into_parts();
            let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
            let body = body.map_err(ResponseError::Body)?;
            self.return_idle(address, sender);
            answer(&parts, &body.to_bytes())
        };
        match tokio::time::timeout(timeout, exchange).await {
            Ok(outcome) => outcome,
            Err(_) => Err(failed(TransportError::Deadline)),
        }
    }

    fn request(&self, path: &str, body: Bytes) -> Result<Request<Full<Bytes>>, ConfigError> {
        Request::post(path)
            .header(HOST, &self.address.authority)
            .header(CONTENT_TYPE, HeaderValue::from_static("application/json"))
            .header(ACCEPT, HeaderValue::from_static("application/json, */*"))
            .header(USER_AGENT, HeaderValue::from_static("kube-apiserver-admission"))
            .body(Full::new(body))
            .map_err(ConfigError::Request)
    }

    /// Sends over an idle connection to one of the addresses, else over a new one.
    async fn send(
        &self,
        mut request: Request<Full<Bytes>>,
        tls: &Arc<rustls::ClientConfig>,
    ) -> Result<(Response<Incoming>, SendRequest<Full<Bytes>>, SocketAddr), TransportError> {
        let addresses = self.addresses().await?;
        while let Some(mut idle) = self.take(&addresses) {
            if idle.sender.ready().await.is_err() {
                continue;
            }
            match idle.sender.try_send_request(request).await {
                Ok(response) => return Ok((response, idle.sender, idle.address)),
                // The connection was closed before anything was sent: the request can be retried.
                Err(mut error) => match error.take_message() {
                    Some(whole) => request = whole,
                    None => return Err(TransportError::Exchange(error.into_error())),
                },
            }
        }
        let (mut sender, address) = self.connect(&addresses, tls).await?;
        let response = sender.send_request(request).await.map_err(TransportError::Exchange)?;
        Ok((response, sender, address))
    }

    async fn addresses(&self) -> Result<Vec<SocketAddr>, ResolveError> {
        let reach = &self.callout.reach;
        match &self.address.service {
            Some((namespace, name)) => {
                let endpoint = reach.endpoint(namespace, name, self.address.port).await?;
                Ok(vec![endpoint])
            }
            None => reach.resolve(&self.address.host, self.address.port).await,
        }
    }

    fn take(&self, addresses: &[SocketAddr]) -> Option<Idle> {
        let mut idle = self.idle.lock();
        idle.retain(|i| i.since.elapsed() < IDLE_AGE_MAX && !i.sender.is_closed());
        let at = idle.iter().rposition(|i| addresses.contains(&i.address))?;
        Some(idle.swap_remove(at))
    }

    fn return_idle(&self, address: SocketAddr, sender: SendRequest<Full<Bytes>>) {
        let mut idle = self.idle.lock();
        if idle.len() < IDLE_MAX && !sender.is_closed() {
            idle.push(Idle { address, sender, since: base::clock::now() });
        }
    }

    /// Connects to the first address that accepts.
    async fn connect(
        &self,
        addresses: &[SocketAddr],
        tls: &Arc<rustls::ClientConfig>,
    ) -> Result<(SendRequest<Full<Bytes>>, SocketAddr), TransportError> {
        let host = &self.address.host;
        let name = ServerName::try_from(host.clone())
            .map_err(|source| TransportError::ServerName { host: host.clone(), source })?;
        let mut last = TransportError::NoAddress;
        for address in addresses {
            let dialled = tokio::time::timeout(CONNECT_MAX, self.callout.reach.dial(*address));
            let io = match dialled.await {
                Ok(Ok(io)) => io,
                Ok(Err(error)) => {
                    last = TransportError::dial(*address, error);
                    continue;
                }
                Err(_) => {
                    last = TransportError::DialTimeout { address: *address };
                    continue;
                }
            };
            let shaken = TlsConnector::from(Arc::clone(tls)).connect(name.clone(), io);
            let io = match tokio::time::timeout(CONNECT_MAX, shaken).await {
                Ok(Ok(io)) => io,
                Ok(Err(error)) => return Err(TransportError::handshake(host, error)),
                Err(_) => return Err(TransportError::HandshakeTimeout),
            };
            let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(io))
                .await
                .map_err(TransportError::Exchange)?;
            serve(&self.callout.tasks, connection);
            return Ok((sender, *address));
        }
        Err(last)
    }
}

/// Drives a connection until its sender is dropped, the peer closes it or the process stops.
fn serve<C>(tasks: &Tasks, connection: C)
where
    C: Future<Output = hyper::Result<()>> + Send + 'static,
{
    let shutdown = tasks.shutdown().clone();
    tasks.spawn(Kind::Request, "webhook-connection", async move {
        tokio::select! {
            ended = connection => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection to a webhook failed");
                }
            }
            () = shutdown.requested() => {}
        }
        Ok::<(), std::convert::Infallible>(())
    });
}

/// Parses a response.
///
/// # Errors
/// The error response, or that it cannot be parsed.
pub fn answer(parts: &http::response::Parts, body: &[u8]) -> Result<Value, CallError> {
    let code = parts.status.as_u16();
    let media = parts.headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let decoded = serde_json::from_slice::<Value>(body);
    let status = decoded
        .as_ref()
        .ok()
        .filter(|v| api::value::str_at(v, "kind") == "Status")
        .and_then(|v| serde_json::from_value::<Status>(v.clone()).ok())
        .filter(|status| status.status != "Success");
    if let Some(status) = status {
        return Err(CallError::Refused(Box::new(status)));
    }
    if !(200..=206).contains(&code) {
        let is_text = media.is_empty() || media.starts_with("text/");
        return Err(CallError::Refused(Box::new(errors::generic(code, body, is_text))));
    }
    if body.is_empty() {
        let media = if media.is_empty() { "application/json" } else { media };
        return Err(ResponseError::Empty { code, media_type: media.to_owned() }.into());
    }
    Ok(decoded.map_err(ResponseError::Json)?)
}
