//! Serves health checks of load balancers: whether this node has endpoints of a Service
//! (`healthCheckNodePort`) and whether its proxy works.

mod proxy;

use std::collections::HashMap;
use std::net::Ipv6Addr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::response::{IntoResponse, Response};
use base::accept::Accepted;
use base::{Kind, Shutdown, Tasks};
use http::StatusCode;
use http::header::{CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use tokio::net::TcpListener;

pub(crate) use proxy::Health;
pub(crate) use proxy::{serve as serve_proxy, serve_metrics};

/// Load balancers send one request at a time; more connections than this are an attack or a
/// mistake.
const CONNECTIONS_MAX: usize = 64;
/// Longest request head read, hyper's minimum.
const HEAD_MAX: usize = 8192;
const DEADLINE: Duration = Duration::from_secs(5);

#[derive(Debug)]
struct Check {
    port: u16,
    local: Arc<Mutex<usize>>,
    stop: Shutdown,
}

/// The listeners: one per Service with a health check node port.
#[derive(Debug)]
pub(crate) struct HealthChecks {
    tasks: Tasks,
    health: Arc<Health>,
    checks: Mutex<HashMap<(String, String), Check>>,
}

/// The response about a Service: 200 if this node has endpoints of it and a working proxy, else
/// 503.
fn service_response(namespace: &str, name: &str, local: usize, healthy: bool) -> Response {
    let body = serde_json::json!({
        "service": {"namespace": namespace, "name": name},
        "localEndpoints": local,
        "serviceProxyHealthy": healthy,
    });
    let weight = [("x-load-balancing-endpoint-weight", local.to_string())];
    (weight, response(local > 0 && healthy, &body)).into_response()
}

/// A response with a JSON body: 200 or 503.
fn response(good: bool, body: &serde_json::Value) -> Response {
    let status = if good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let headers = [(CONTENT_TYPE, "application/json"), (X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (status, headers, body.to_string()).into_response()
}

/// Accepts until `stop`, within the connection limit. A connection serves one request.
pub(crate) async fn accept(listener: TcpListener, tasks: Tasks, stop: Shutdown, router: Router) {
    base::accept::accept(&listener, "health checks", CONNECTIONS_MAX, &stop, |accepted| {
        let router = router.clone();
        tasks.spawn(Kind::Request, "health-check", async move {
            let Accepted { stream, place: _place, .. } = accepted;
            let connection = http1::Builder::new()
                .keep_alive(false)
                .max_buf_size(HEAD_MAX)
                .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
            // A connection that ends early harms its client only.
            let _ = tokio::time::timeout(DEADLINE, connection).await;
            Ok::<(), std::convert::Infallible>(())
        });
    })
    .await;
}

impl HealthChecks {
    pub(crate) fn new(tasks: Tasks, health: Arc<Health>) -> Self {
        Self { tasks, health, checks: Mutex::default() }
    }

    /// Sets the health check port of a Service (`None`: no listener) and its number of endpoints on
    /// this node.
    pub(crate) fn set(&self, namespace: &str, name: &str, port: Option<u16>, local: usize) {
        let key = (namespace.to_owned(), name.to_owned());
        let mut checks = self.checks.lock();
        if let Some(check) = checks.get(&key) {
            if Some(check.port) == port {
                *check.local.lock() = local;
                return;
            }
            check.stop.request();
            checks.remove(&key);
        }
        let Some(port) = port else { return };
        let stop = self.tasks.shutdown().child();
        let count = Arc::new(Mutex::new(local));
        let (tasks, health) = (self.tasks.clone(), Arc::clone(&self.health));
        let run = listen(tasks, key.clone(), port, (Arc::clone(&count), health), stop.clone());
        self.tasks.spawn(Kind::Request, "health-check-node-port", run);
        checks.insert(key, Check { port, local: count, stop });
    }
}

/// The health check node port of a Service cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on health check node port {port} of {service}: {source}")]
struct ListenError {
    port: u16,
    /// `namespace/name`.
    service: String,
    source: std::io::Error,
}

async fn listen(
    tasks: Tasks,
    (namespace, name): (String, String),
    port: u16,
    (local, health): (Arc<Mutex<usize>>, Arc<Health>),
    stop: Shutdown,
) -> Result<(), ListenError> {
    let listener = match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await {
        Ok(listener) => listener,
        Err(_) => TcpListener::bind(("0.0.0.0", port)).await.map_err(|source| {
            let service = format!("{namespace}/{name}");
            ListenError { port, service, source }
        })?,
    };
    let service = move || {
        let local = *local.lock();
        std::future::ready(service_response(&namespace, &name, local, health.is_healthy()))
    };
    accept(listener, tasks, stop, Router::new().fallback(service)).await;
    Ok(())
}
