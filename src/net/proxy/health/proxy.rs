//! The proxy's own health: `/healthz` and `/livez` as kube-proxy serves them on port 10256.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use api::k8s::api::core::v1::Node;
use api::k8s::jiff::Timestamp;
use axum::Router;
use axum::response::Response;
use axum::routing::any;
use base::accept::bind_when_free;
use base::{Shutdown, Tasks};
use client::Informer;
use http::header::{CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::{accept, response};
use crate::config::Error;
use crate::proxy::changes::Dirty;
use crate::proxy::metrics;
use settings::addr::Family;

/// A change pending for this long makes the proxy unhealthy (kube-proxy: twice its `syncPeriod` of
/// 30 s).
const LATE: Duration = Duration::from_secs(60);
/// Taint of a node that the cluster autoscaler is about to remove; it gets no new connections.
const LEAVING_TAINT: &str = "ToBeDeletedByClusterAutoscaler";

#[derive(Debug, Default)]
struct Progress {
    /// When the oldest pending change arrived.
    waiting: Option<tokio::time::Instant>,
    applied: Option<Timestamp>,
}

/// The health state of the proxy.
#[derive(Debug)]
pub(crate) struct Health {
    families: Vec<Family>,
    node: Informer<Node>,
    node_name: String,
    progress: Mutex<Progress>,
}

fn eligible(node: Option<&Node>) -> bool {
    let Some(node) = node else { return false };
    let taints = node.spec.iter().flat_map(|s| s.taints.iter().flatten());
    node.metadata.deletion_timestamp.is_none()
        && !taints.into_iter().any(|t| t.key == LEAVING_TAINT)
}

fn code(good: bool) -> &'static str {
    if good { "200" } else { "503" }
}

impl Health {
    pub(crate) fn new(families: Vec<Family>, node: Informer<Node>, node_name: &str) -> Self {
        let node_name = node_name.to_owned();
        Self { families, node, node_name, progress: Mutex::default() }
    }

    /// Records that a change is pending.
    pub(crate) fn waiting(&self) {
        self.progress.lock().waiting.get_or_insert_with(base::clock::now);
    }

    /// Records that everything known is applied. Before the first `full` sync a proxy counts as
    /// starting, which is healthy.
    pub(crate) fn applied(&self, full: bool) {
        let mut progress = self.progress.lock();
        progress.waiting = None;
        if full {
            progress.applied = Some(Timestamp::now());
        }
    }

    /// The address families that the proxy serves.
    pub(crate) fn families(&self) -> &[Family] {
        &self.families
    }

    /// Whether no change has been pending for too long. A proxy that starts is healthy.
    pub(crate) fn is_healthy(&self) -> bool {
        let progress = self.progress.lock();
        progress.applied.is_none() || progress.waiting.is_none_or(|since| since.elapsed() < LATE)
    }

    fn body(&self, healthy: bool, eligible: Option<bool>) -> Value {
        let applied = self.progress.lock().applied.map(|t| t.to_string());
        let now = Timestamp::now().to_string();
        let zero = "0001-01-01T00:00:00Z";
        let last = applied.as_deref().unwrap_or(zero);
        // With nothing pending the time is current by definition, as in kube-proxy's response.
        let shown = if healthy && eligible != Some(false) { now.as_str() } else { last };
        let mut body = json!({"lastUpdated": shown, "currentTime": now, "healthy": healthy});
        if let (Some(eligible), Some(body)) = (eligible, body.as_object_mut()) {
            body.insert("nodeEligible".into(), eligible.into());
        }
        if let (Some(_), Some(body)) = (&applied, body.as_object_mut()) {
            let one = json!({"lastUpdated": last, "healthy": healthy});
            let all = self.families.iter().map(|f| (f.name().to_owned(), one.clone()));
            body.insert("status".into(), Value::Object(all.collect()));
        }
        body
    }

    /// Whether the proxy works and the node shall get new connections.
    fn healthz(&self) -> Response {
        let healthy = self.is_healthy();
        let eligible = eligible(self.node.get("", &self.node_name).as_ref());
        metrics::HEALTHZ.inc(&[code(healthy && eligible)]);
        response(healthy && eligible, &self.body(healthy, Some(eligible)))
    }

    /// Whether the proxy works.
    fn livez(&self) -> Response {
        let healthy = self.is_healthy();
        metrics::LIVEZ.inc(&[code(healthy)]);
        response(healthy, &self.body(healthy, None))
    }
}

/// Listens; binding is retried, since pod traffic does not depend on it. `None` at shutdown.
async fn bind(at: SocketAddr, what: &str, setting: &str, stop: &Shutdown) -> Option<TcpListener> {
    let pauses = (Duration::from_millis(500), Duration::from_secs(60));
    let report = |error| {
        tracing::warn!(%at, %error, "proxy: cannot serve {what}; choose a free {setting}");
    };
    bind_when_free(|| TcpListener::bind(at), pauses, stop, report).await
}

/// Serves `/healthz` and `/livez` until shutdown.
pub(crate) async fn serve(health: Arc<Health>, at: SocketAddr, tasks: Tasks) -> Result<(), Error> {
    let stop = tasks.shutdown().clone();
    let listener = bind(at, "health checks", "--proxy-healthz-port", &stop).await;
    let Some(listener) = listener else { return Ok(()) };
    let live = Arc::clone(&health);
    let router = Router::new()
        .route("/healthz", any(move || std::future::ready(health.healthz())))
        .route("/livez", any(move || std::future::ready(live.livez())));
    accept(listener, tasks, stop, router).await;
    Ok(())
}

/// Serves `/metrics`, `/proxyMode` and the plain `/healthz` until shutdown, as kube-proxy does at
/// its `--metrics-bind-address`.
pub(crate) async fn serve_metrics(
    dirty: Arc<Dirty>,
    at: SocketAddr,
    tasks: Tasks,
) -> Result<(), Error> {
    let stop = tasks.shutdown().clone();
    let setting = "--kube-proxy-arg=metrics-bind-address";
    let Some(listener) = bind(at, "metrics", setting, &stop).await else { return Ok(()) };
    let plain = |text: String| {
        ([(CONTENT_TYPE, "text/plain; charset=utf-8"), (X_CONTENT_TYPE_OPTIONS, "nosniff")], text)
    };
    let text = move || {
        let headers = [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
        std::future::ready((headers, metrics::text(&dirty)))
    };
    let router = Router::new()
        .route("/healthz", any(move || std::future::ready(plain("ok".into()))))
        .route("/proxyMode", any(move || std::future::ready(plain("nftables".into()))))
        .route("/metrics", any(text));
    accept(listener, tasks, stop, router).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_leaves_gets_no_connections() {
        let node = |value| serde_json::from_value::<Node>(value).unwrap();
        assert!(!eligible(None));
        assert!(eligible(Some(&node(json!({"metadata": {"name": "n"}})))));
        let taint = json!({"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"});
        let leaving = json!({"metadata": {"name": "n"}, "spec": {"taints": [taint]}});
        assert!(!eligible(Some(&node(leaving))));
        let gone = json!({"metadata": {"name": "n", "deletionTimestamp": "2026-01-01T00:00:00Z"}});
        assert!(!eligible(Some(&node(gone))));
    }
}
