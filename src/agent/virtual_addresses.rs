//! Asks the servers for leases of virtual addresses, as an agent.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::{Kind, Tasks};
use bytes::Bytes;
use client::{HttpsTransport, Transport as _};
use cluster::join::{SERVER_NAME, ServerAddress};
use cluster::servers::Servers;
use http::{Method, Request, StatusCode, header};
use net::{LeaseError, LeaseRequest, LeaseResponse, LeaseServer, LeaseServers};
use parking_lot::Mutex;
use rustls::ClientConfig;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use crate::agent::link::FixedServer;
use crate::server::ADDRESS_LEASES_PATH;

/// A claim without an answer for so long does not keep the next one from a new connection: after a
/// partition the kernel sends on an old connection only seconds later.
const SILENCE_MAX: Duration = Duration::from_millis(400);
/// Timeout of a claim with its connection, which may outlast the holder's interest: a slow
/// handshake is not repeated in vain.
const CLAIM_MAX: Duration = Duration::from_secs(2);
/// Timeout of a request that watches: the server answers after 10 s.
const WATCH_MAX: Duration = Duration::from_millis(10_200);

/// The connection for claims.
#[derive(Default)]
struct Claims {
    /// A connection that no claim uses now.
    idle: Option<HttpsTransport>,
    /// When the last claim without an answer was sent.
    sent: Option<Instant>,
}

/// One server by one of its addresses.
struct Server {
    address: String,
    tls: ClientConfig,
    tasks: Tasks,
    claims: Arc<Mutex<Claims>>,
    /// The connection for watching, on which requests share a connection.
    watches: Mutex<Option<HttpsTransport>>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Server({})", self.address)
    }
}

async fn post(transport: &HttpsTransport, body: Bytes) -> Result<LeaseResponse, LeaseError> {
    let request = Request::builder()
        .method(Method::POST)
        .uri(ADDRESS_LEASES_PATH)
        .header(header::CONTENT_TYPE, "application/json")
        .body(body)
        .map_err(|e| LeaseError(e.to_string()))?;
    let answer = transport.call(request).await.map_err(|e| LeaseError(e.to_string()))?;
    if answer.status() != StatusCode::OK {
        return Err(LeaseError(format!("it answers {}", answer.status())));
    }
    serde_json::from_slice(answer.body()).map_err(|e| LeaseError(e.to_string()))
}

async fn post_within(
    limit: Duration,
    transport: &HttpsTransport,
    body: Bytes,
) -> Result<LeaseResponse, LeaseError> {
    let answer = tokio::time::timeout(limit, post(transport, body)).await;
    answer.unwrap_or_else(|_| Err(LeaseError("no answer in time".into())))
}

impl Server {
    fn connect(&self) -> Result<HttpsTransport, LeaseError> {
        let address = format!("https://{}", self.address);
        let address: ServerAddress = address.parse().map_err(|e: &str| LeaseError(e.to_owned()))?;
        let dial = Arc::new(FixedServer(address));
        let base = format!("https://{SERVER_NAME}");
        HttpsTransport::over(dial, &base, self.tls.clone(), "")
            .map_err(|e| LeaseError(e.to_string()))
    }

    async fn watch(&self, body: Bytes) -> Result<LeaseResponse, LeaseError> {
        let known = self.watches.lock().clone();
        let transport = match known {
            Some(transport) => transport,
            None => self.connect()?,
        };
        *self.watches.lock() = Some(transport.clone());
        let answer = post_within(WATCH_MAX, &transport, body).await;
        if answer.is_err() {
            *self.watches.lock() = None;
        }
        answer
    }

    /// Sends a claim in a task: if the caller is content with the answers of other servers, the
    /// connection stays usable.
    async fn claim(&self, body: Bytes) -> Result<LeaseResponse, LeaseError> {
        let now = base::clock::now();
        let idle = {
            let mut claims = self.claims.lock();
            let is_waiting = |sent: Instant| now.duration_since(sent) < SILENCE_MAX;
            if claims.idle.is_none() && claims.sent.is_some_and(is_waiting) {
                return Err(LeaseError("the last claim has no answer yet".into()));
            }
            claims.sent = Some(now);
            claims.idle.take()
        };
        let transport = match idle {
            Some(transport) => transport,
            None => self.connect()?,
        };
        let (sender, answer) = oneshot::channel();
        let claims = Arc::clone(&self.claims);
        self.tasks.spawn(Kind::Request, "address claim", async move {
            let answer = post_within(CLAIM_MAX, &transport, body).await;
            {
                let mut claims = claims.lock();
                if answer.is_ok() {
                    claims.idle = Some(transport);
                }
                if claims.sent == Some(now) || answer.is_ok() {
                    claims.sent = None;
                }
            }
            // The caller may have gone.
            let _ = sender.send(answer);
            Ok::<(), std::convert::Infallible>(())
        });
        answer.await.unwrap_or_else(|_| Err(LeaseError("stopping".into())))
    }
}

#[async_trait]
impl LeaseServer for Server {
    async fn request(&self, request: &LeaseRequest) -> Result<LeaseResponse, LeaseError> {
        let body = serde_json::to_vec(request).map_err(|e| LeaseError(e.to_string()))?;
        let answer = match request.watch.is_empty() {
            true => self.claim(body.into()).await,
            false => self.watch(body.into()).await,
        };
        answer.map_err(|error| LeaseError(format!("{}: {error}", self.address)))
    }
}

/// The servers of an agent.
pub(super) struct AgentLeases {
    servers: Servers,
    tls: ClientConfig,
    tasks: Tasks,
    known: Mutex<BTreeMap<String, Arc<dyn LeaseServer>>>,
    contested: watch::Sender<bool>,
}

impl std::fmt::Debug for AgentLeases {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AgentLeases").field("known", &self.known).finish_non_exhaustive()
    }
}

impl AgentLeases {
    /// Asks these servers; `tls` presents the node's certificate.
    pub(super) fn new(servers: Servers, tls: ClientConfig, tasks: &Tasks) -> Arc<Self> {
        let (tasks, contested) = (tasks.clone(), watch::Sender::new(true));
        Arc::new(Self { servers, tls, tasks, known: Mutex::default(), contested })
    }
}

impl LeaseServers for AgentLeases {
    fn list(&self) -> Vec<Arc<dyn LeaseServer>> {
        let addresses = self.servers.addresses().borrow().clone();
        let mut known = self.known.lock();
        known.retain(|address, _| addresses.contains(address));
        for address in addresses {
            known.entry(address.clone()).or_insert_with(|| {
                let (tls, tasks) = (self.tls.clone(), self.tasks.clone());
                let (claims, watches) = (Arc::default(), Mutex::default());
                Arc::new(Server { address, tls, tasks, claims, watches })
            });
        }
        known.values().cloned().collect()
    }

    fn contested(&self) -> watch::Receiver<bool> {
        self.contested.subscribe()
    }
}
