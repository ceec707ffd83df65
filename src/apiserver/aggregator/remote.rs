//! One API server beside this one: what its APIService says, whether it answers, what it serves.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use api::value::{bool_at, get, int_at, items, str_at, str_in};
use arc_swap::ArcSwapOption;
use base::io::BoxIo;
use base::pki::outside;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::sync::{Notify, OnceCell};
use tokio_rustls::TlsConnector;

use super::Settings;
use crate::webhook::{dial_text, handshake_text};

/// Port of a Service that names none.
const PORT: u16 = 443;
/// Time to connect and to shake hands (upstream's dialer has as much).
const CONNECT_MAX: Duration = Duration::from_secs(30);

/// One API server beside this one.
pub(crate) struct Remote {
    /// Name of the APIService, `VERSION.GROUP`.
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
    /// The resources it serves, an `APIResourceList`, as it last said.
    pub(super) resources: ArcSwapOption<Value>,
    /// What it says of its group version in OpenAPI documents.
    pub(super) described: ArcSwapOption<super::openapi::Described>,
    changed: Notify,
    ended: AtomicBool,
}

impl Remote {
    /// Of an APIService that names a Service; `None` for those that are served here.
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
        remote.note_status(object);
        Some(remote)
    }

    /// The APIService says the same as when this was made, its status apart.
    pub(super) fn is_same(&self, object: &Value) -> bool {
        self.spec == *get(object, "spec")
    }

    /// What this server found when it looked.
    pub(super) fn set_available(&self, available: bool) {
        self.available.store(available, Ordering::Release);
    }

    /// Takes the stored condition `Available` over: until this server has looked itself, it is what another one found.
    fn note_status(&self, object: &Value) {
        let conditions = items(get(object, "status"), "conditions");
        let available = conditions
            .iter()
            .any(|c| str_at(c, "type") == "Available" && str_at(c, "status") == "True");
        self.available.store(available, Ordering::Release);
    }

    /// Requests are handed over.
    /// It is the one of this APIService, and cannot be asked now.
    pub(crate) fn is_away(&self, name: &str) -> bool {
        self.name == name && !self.is_available()
    }

    pub(super) fn is_available(&self) -> bool {
        self.available.load(Ordering::Acquire)
    }

    /// Something it depends on changed.
    pub(super) fn wake(&self) {
        self.changed.notify_one();
    }

    /// Resolves at the next [`Remote::wake`].
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// The APIService is gone or says something else.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.wake();
    }

    pub(super) fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// The name that its certificate has to have.
    pub(super) fn host(&self) -> String {
        format!("{}.{}.svc", self.service, self.namespace)
    }

    pub(super) fn tasks(&self) -> &base::Tasks {
        &self.settings.callout.tasks
    }

    /// An endpoint of its Service.
    ///
    /// # Errors
    /// A sentence as upstream's resolver has it.
    pub(super) async fn endpoint(&self) -> Result<SocketAddr, String> {
        self.settings.callout.reach.endpoint(&self.namespace, &self.service, self.port).await
    }

    /// A connection to it that shows the front proxy's certificate.
    ///
    /// # Errors
    /// Go's text of what went wrong.
    pub(super) async fn open(&self, address: SocketAddr) -> Result<BoxIo, String> {
        let bundle = STANDARD
            .decode(str_at(&self.spec, "caBundle"))
            .map_err(|e| format!("caBundle is no base64: {e}"))?;
        let unverified = bool_at(&self.spec, "insecureSkipTLSVerify");
        let certificate = Arc::clone(&self.settings.certificate);
        let tls =
            self.tls.get_or_try_init(|| outside::client(&bundle, unverified, Some(certificate)));
        let tls = Arc::clone(tls.await.map_err(|e| e.to_string())?);
        let host = self.host();
        let name = ServerName::try_from(host.clone()).map_err(|e| format!("tls: {host}: {e}"))?;
        let opened = async {
            let io = self.settings.callout.reach.dial(address).await;
            let io = io.map_err(|e| dial_text(address, &e))?;
            let io = TlsConnector::from(tls).connect(name, io).await;
            io.map(|io| Box::new(io) as BoxIo).map_err(|e| handshake_text(&host, &e))
        };
        match tokio::time::timeout(CONNECT_MAX, opened).await {
            Ok(opened) => opened,
            Err(_) => Err(format!("dial tcp {address}: i/o timeout")),
        }
    }
}
