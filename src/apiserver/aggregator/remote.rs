//! One aggregated API server: its APIService, availability and resources.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use api::value::{bool_at, get, int_at, is_condition_true, str_at, str_in};
use arc_swap::ArcSwapOption;
use base::io::BoxIo;
use base::pki::external_roots;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::sync::{Notify, OnceCell};
use tokio_rustls::TlsConnector;

use super::Settings;
use webhook::TransportError;

/// A remote cannot be reached or does not respond as expected.
#[derive(Debug, thiserror::Error)]
pub(super) enum RemoteError {
    /// The Service has no endpoint; the message is that of upstream's resolver.
    #[error("{0}")]
    Endpoint(String),
    /// `spec.caBundle` is not base64.
    #[error("caBundle is no base64: {0}")]
    CaBundle(#[source] base64::DecodeError),
    /// The CA certificates or the client certificate are unusable.
    #[error("{0}")]
    Tls(String),
    /// The host name of the Service is not a valid server name.
    #[error("tls: {host}: {source}")]
    ServerName {
        /// The host name.
        host: String,
        source: rustls::pki_types::InvalidDnsNameError,
    },
    /// The connection or its TLS handshake has failed; the message is in Go's format.
    #[error("{0}")]
    Connect(String),
    /// The connection was not established in time.
    #[error("dial tcp {0}: i/o timeout")]
    ConnectTimeout(SocketAddr),
    /// The request has failed.
    #[error("failing or missing response from {url}: Get {}: {reason}", api::field::go_quote(url))]
    Request {
        /// The URL.
        url: String,
        /// The error in Go's format.
        reason: String,
    },
    /// The response has a status code other than success.
    #[error("failing or missing response from {url}: bad status from {url}: {code}")]
    Status {
        /// The URL.
        url: String,
        /// The status code.
        code: u16,
    },
    /// The resource list was not received in time.
    #[error("timed out waiting for https://{host}{path}")]
    Timeout {
        /// The host name of the Service.
        host: String,
        /// The path of the resource list.
        path: String,
    },
}

/// The default port of a Service.
const PORT: u16 = 443;
/// The timeout for connection and TLS handshake (as in upstream's dialer).
const CONNECT_MAX: Duration = Duration::from_secs(30);

/// An aggregated API server.
pub(crate) struct Remote {
    /// The name of the APIService, `VERSION.GROUP`.
    pub(super) name: String,
    pub(super) group: String,
    pub(super) version: String,
    pub(super) namespace: String,
    pub(super) service: String,
    pub(super) port: u16,
    /// `groupPriorityMinimum` and `versionPriority`: higher ones come first in discovery.
    pub(super) priority: (i64, i64),
    spec: Value,
    settings: Settings,
    tls: OnceCell<Arc<ClientConfig>>,
    available: AtomicBool,
    /// The last known resource list, an `APIResourceList`.
    pub(super) resources: ArcSwapOption<Value>,
    /// The last known OpenAPI documents of its group version.
    pub(super) described: ArcSwapOption<super::openapi::Described>,
    changed: Notify,
    ended: AtomicBool,
}

impl Remote {
    /// Creates a remote for an APIService with a Service; `None` for group versions that this
    /// server serves.
    pub(super) fn of(object: &Value, settings: &Settings) -> Option<Self> {
        let spec = get(object, "spec");
        let service = get(spec, "service");
        if !service.is_object() {
            return None;
        }
        let port = int_at(service, "port").and_then(|p| u16::try_from(p).ok()).filter(|p| *p > 0);
        let number = |key: &str| int_at(spec, key).unwrap_or(0);
        let remote = Self {
            name: str_in(object, &["metadata", "name"]).to_owned(),
            group: str_at(spec, "group").to_owned(),
            version: str_at(spec, "version").to_owned(),
            namespace: str_at(service, "namespace").to_owned(),
            service: str_at(service, "name").to_owned(),
            port: port.unwrap_or(PORT),
            priority: (number("groupPriorityMinimum"), number("versionPriority")),
            spec: spec.clone(),
            settings: settings.clone(),
            tls: OnceCell::new(),
            available: AtomicBool::new(false),
            resources: ArcSwapOption::empty(),
            described: ArcSwapOption::empty(),
            changed: Notify::new(),
            ended: AtomicBool::new(false),
        };
        remote.adopt_stored_status(object);
        Some(remote)
    }

    /// Whether the spec of the APIService is unchanged.
    pub(super) fn is_same(&self, object: &Value) -> bool {
        self.spec == *get(object, "spec")
    }

    /// Sets the result of this server's own check.
    pub(super) fn set_available(&self, available: bool) {
        self.available.store(available, Ordering::Release);
    }

    /// Adopts the stored condition `Available`: it is the result of another server until this
    /// server has checked itself.
    fn adopt_stored_status(&self, object: &Value) {
        self.available.store(is_condition_true(object, "Available"), Ordering::Release);
    }

    /// Whether this is the remote of the APIService `name` and it is unavailable.
    pub(crate) fn is_away(&self, name: &str) -> bool {
        self.name == name && !self.is_available()
    }

    pub(super) fn is_available(&self) -> bool {
        self.available.load(Ordering::Acquire)
    }

    /// Wakes the availability task after a change of its dependencies.
    pub(super) fn wake(&self) {
        self.changed.notify_one();
    }

    /// Resolves at the next [`Remote::wake`].
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Ends the remote: the APIService was deleted or changed.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.wake();
    }

    pub(super) fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// The name that its certificate must be valid for.
    pub(super) fn host(&self) -> String {
        format!("{}.{}.svc", self.service, self.namespace)
    }

    pub(super) fn tasks(&self) -> &base::Tasks {
        &self.settings.callout.tasks
    }

    /// An endpoint of its Service.
    ///
    /// # Errors
    /// If the Service has no ready endpoint.
    pub(super) async fn endpoint(&self) -> Result<SocketAddr, RemoteError> {
        let reach = &self.settings.callout.reach;
        let endpoint = reach.endpoint(&self.namespace, &self.service, self.port).await;
        endpoint.map_err(|why| RemoteError::Endpoint(why.to_string()))
    }

    /// Connects with the front proxy's client certificate.
    ///
    /// # Errors
    /// If the certificates are unusable, or the connection cannot be established in time.
    pub(super) async fn open(&self, address: SocketAddr) -> Result<BoxIo, RemoteError> {
        let bundle =
            STANDARD.decode(str_at(&self.spec, "caBundle")).map_err(RemoteError::CaBundle)?;
        let unverified = bool_at(&self.spec, "insecureSkipTLSVerify");
        let certificate = Arc::clone(&self.settings.certificate);
        let tls = self
            .tls
            .get_or_try_init(|| external_roots::client(&bundle, unverified, Some(certificate)));
        let tls = Arc::clone(tls.await.map_err(|why| RemoteError::Tls(why.to_string()))?);
        let host = self.host();
        let name = ServerName::try_from(host.clone())
            .map_err(|source| RemoteError::ServerName { host: host.clone(), source })?;
        let connect = async {
            let io = self.settings.callout.reach.dial(address).await;
            let io =
                io.map_err(|e| RemoteError::Connect(TransportError::dial(address, e).to_string()))?;
            let io = TlsConnector::from(tls).connect(name, io).await;
            io.map(|io| Box::new(io) as BoxIo)
                .map_err(|e| RemoteError::Connect(TransportError::handshake(&host, e).to_string()))
        };
        match tokio::time::timeout(CONNECT_MAX, connect).await {
            Ok(connected) => connected,
            Err(_) => Err(RemoteError::ConnectTimeout(address)),
        }
    }
}
