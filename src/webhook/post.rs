//! Posts to one endpoint over keep-alive connections: audit, authentication and authorization
//! webhooks with a kubeconfig, and extenders of the scheduler.

use std::sync::Arc;
use std::time::Duration;

use base::io::{BoxIo, Dial, Tcp};
use base::pki::external_roots;
use base::{Kind, Tasks};
use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue, USER_AGENT};
use http::{Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use tokio::sync::OnceCell;
use tokio_rustls::TlsConnector;

use super::errors::TransportError;
use super::kubeconfig::WebhookEndpoint;

/// The maximum number of idle connections.
const IDLE_MAX: usize = 16;
/// The time for pending calls to complete at shutdown.
const LAST_MAX: Duration = Duration::from_millis(500);

/// The number of attempts of one post, and the growth of the delay between them (upstream's
/// `DefaultAuthWebhookRetryBackoff` and `DefaultRetryBackoffWithInitialDelay`).
const ATTEMPTS: u32 = 5;
const GROWTH: f64 = 1.5;
const JITTER: f64 = 0.2;

/// The attempts of one post.
pub struct Attempts {
    /// The number of attempts that were started.
    made: u32,
    delay: Duration,
}

impl Attempts {
    /// The default delay before the second attempt (upstream's `DefaultAuthWebhookRetryBackoff`).
    pub const DELAY: Duration = Duration::from_millis(500);

    /// Starts with the first attempt; the second one follows after `delay`.
    pub fn first(delay: Duration) -> Self {
        Self { made: 1, delay }
    }

    /// The delay before the next attempt; `None` after the last one.
    pub fn next_delay(&mut self) -> Option<Duration> {
        if self.made >= ATTEMPTS {
            return None;
        }
        self.made += 1;
        let wait = self.delay + self.delay.mul_f64(base::clock::random_f64() * JITTER);
        self.delay = self.delay.mul_f64(GROWTH);
        Some(wait)
    }
}

/// The CA certificates of the kubeconfig are unusable.
#[derive(Debug, thiserror::Error)]
#[error("certificate-authority: {reason}")]
pub struct CertificateAuthorityError {
    reason: String,
}

/// The component that posts.
#[derive(Clone, Copy, Debug)]
pub struct User {
    /// `User-Agent`.
    agent: &'static str,
    /// The name of the tasks that drive connections.
    task: &'static str,
}

impl User {
    pub const AUDIT: Self =
        Self { agent: "kube-apiserver-audit", task: "audit webhook connection" };
    pub const AUTHENTICATION: Self =
        Self { agent: "kube-apiserver", task: "authentication webhook connection" };
    pub const AUTHORIZATION: Self =
        Self { agent: "kube-apiserver", task: "authorization webhook connection" };
    pub const SCHEDULER: Self =
        Self { agent: "kube-scheduler", task: "scheduler extender connection" };
}

/// The client for one endpoint.
pub struct Poster {
    endpoint: WebhookEndpoint,
    user: User,
    tls: OnceCell<Arc<rustls::ClientConfig>>,
    idle: Mutex<Vec<SendRequest<Full<Bytes>>>>,
    tasks: Tasks,
}

impl std::fmt::Debug for Poster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.endpoint)
    }
}

impl Poster {
    /// Creates a client; the first post opens a connection.
    pub fn new(endpoint: WebhookEndpoint, user: User, tasks: &Tasks) -> Self {
        Self { endpoint, user, tls: OnceCell::new(), idle: Mutex::default(), tasks: tasks.clone() }
    }

    /// The URL, without possible secrets.
    pub fn url(&self) -> String {
        self.endpoint.url()
    }

    /// Posts a JSON body and reads the response, unless it is longer than `answer_max` bytes or
    /// ends early. `timeout` is sent to the webhook, as a Go duration; the caller enforces it.
    ///
    /// # Errors
    /// If there is no response.
    pub async fn post(
        &self,
        body: Bytes,
        timeout: &str,
        answer_max: usize,
    ) -> Result<(http::response::Parts, Option<Bytes>), TransportError> {
        let path = format!("{}?timeout={timeout}", self.endpoint.path);
        self.post_to(&path, body, answer_max).await
    }

    /// As [`Poster::post`], to another path of the endpoint.
    ///
    /// # Errors
    /// If there is no response.
    pub async fn post_to(
        &self,
        path: &str,
        body: Bytes,
        answer_max: usize,
    ) -> Result<(http::response::Parts, Option<Bytes>), TransportError> {
        let mut request = Request::post(path)
            .header(HOST, &self.endpoint.authority)
            .header(CONTENT_TYPE, HeaderValue::from_static("application/json"))
            .header(ACCEPT, HeaderValue::from_static("application/json, */*"))
            .header(USER_AGENT, HeaderValue::from_static(self.user.agent))
            .body(Full::new(body))?;
        if let Some(credentials) = &self.endpoint.credentials {
            request.headers_mut().insert(AUTHORIZATION, credentials.clone());
        }
        let (response, sender) = self.exchange(request).await?;
        let (parts, body) = response.into_parts();
        let read = Limited::new(body, answer_max).collect().await;
        if read.is_ok() {
            let mut idle = self.idle.lock();
            if idle.len() < IDLE_MAX && !sender.is_closed() {
                idle.push(sender);
            }
        }
        Ok((parts, read.ok().map(http_body_util::Collected::to_bytes)))
    }

    async fn exchange(
        &self,
        mut request: Request<Full<Bytes>>,
    ) -> Result<(Response<Incoming>, SendRequest<Full<Bytes>>), TransportError> {
        while let Some(mut sender) = self.take() {
            if sender.ready().await.is_err() {
                continue;
            }
            match sender.try_send_request(request).await {
                Ok(response) => return Ok((response, sender)),
                // The connection was closed before anything was sent: the request can be retried.
                Err(mut error) => match error.take_message() {
                    Some(whole) => request = whole,
                    None => return Err(TransportError::Exchange(error.into_error())),
                },
            }
        }
        let io = self.open().await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(io))
            .await
            .map_err(TransportError::Exchange)?;
        let shutdown = self.tasks.shutdown().clone();
        let webhook = self.user.agent;
        self.tasks.spawn(Kind::Request, self.user.task, async move {
            let ending = async {
                shutdown.requested().await;
                base::clock::sleep(LAST_MAX).await;
            };
            tokio::select! {
                ended = connection => {
                    if let Err(error) = ended {
                        tracing::debug!(%error, webhook, "a connection to a webhook failed");
                    }
                }
                () = ending => {}
            }
            Ok::<(), std::convert::Infallible>(())
        });
        let response = sender.send_request(request).await.map_err(TransportError::Exchange)?;
        Ok((response, sender))
    }

    fn take(&self) -> Option<SendRequest<Full<Bytes>>> {
        let mut idle = self.idle.lock();
        idle.retain(|sender| !sender.is_closed());
        idle.pop()
    }

    async fn open(&self) -> Result<BoxIo, TransportError> {
        let endpoint = &self.endpoint;
        let io = Tcp.dial(&endpoint.host, endpoint.port).await;
        let io = io.map_err(|source| {
            let address = format!("{}:{}", endpoint.host, endpoint.port);
            TransportError::Dial { address, source }
        })?;
        let Some(trust) = &endpoint.tls else { return Ok(io) };
        let tls = self.tls.get_or_try_init(|| {
            external_roots::client(&trust.bundle, trust.unverified, trust.certificate.clone())
        });
        let tls = tls.await;
        let unusable = |reason: String| TransportError::RootCertificates { reason };
        let tls = Arc::clone(tls.map_err(|e| unusable(e.to_string()))?);
        let name = ServerName::try_from(trust.name.clone())?;
        let io = TlsConnector::from(tls).connect(name, io).await;
        io.map(|io| Box::new(io) as BoxIo).map_err(|e| TransportError::handshake(&trust.name, e))
    }

    /// Checks the TLS configuration before the first post.
    ///
    /// # Errors
    /// If the CA certificates are unusable.
    pub async fn check(&self) -> Result<(), CertificateAuthorityError> {
        let Some(trust) = &self.endpoint.tls else { return Ok(()) };
        let made =
            external_roots::client(&trust.bundle, trust.unverified, trust.certificate.clone())
                .await;
        made.map(|_| ()).map_err(|e| CertificateAuthorityError { reason: e.to_string() })
    }
}
