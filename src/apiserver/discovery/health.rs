//! Serves `/healthz`, `/livez` and `/readyz`, and their single checks, in upstream's format.

use std::sync::Arc;

use base::metrics::Family;
use http::{Response, StatusCode};
use parking_lot::Mutex;

use crate::registry::objects::Objects;
use crate::registry::storage::Transformer;
use crate::request::Query;
use crate::request::body::Body;
use crate::response::status;

/// The checks of upstream's post-start hooks. This server does their work before it serves the
/// first request.
const HOOKS: [&str; 30] = [
    "poststarthook/start-apiserver-admission-initializer",
    "poststarthook/generic-apiserver-start-informers",
    "poststarthook/priority-and-fairness-config-consumer",
    "poststarthook/priority-and-fairness-filter",
    "poststarthook/storage-object-count-tracker-hook",
    "poststarthook/start-apiextensions-informers",
    "poststarthook/start-apiextensions-controllers",
    "poststarthook/crd-informer-synced",
    "poststarthook/start-system-namespaces-controller",
    "poststarthook/peer-endpoint-reconciler-controller",
    "poststarthook/start-cluster-authentication-info-controller",
    "poststarthook/start-kube-apiserver-identity-lease-controller",
    "poststarthook/start-kube-apiserver-identity-lease-garbage-collector",
    "poststarthook/storage-readiness",
    "poststarthook/start-legacy-token-tracking-controller",
    "poststarthook/start-service-ip-repair-controllers",
    "poststarthook/rbac/bootstrap-roles",
    "poststarthook/scheduling/bootstrap-system-priority-classes",
    "poststarthook/priority-and-fairness-config-producer",
    "poststarthook/bootstrap-controller",
    "poststarthook/start-kubernetes-service-cidr-controller",
    "poststarthook/start-kube-aggregator-informers",
    "poststarthook/apiservice-status-local-available-controller",
    "poststarthook/apiservice-status-remote-available-controller",
    "poststarthook/apiservice-registration-controller",
    "poststarthook/apiservice-discovery-controller",
    "poststarthook/kube-apiserver-autoregistration",
    "autoregister-completion",
    "poststarthook/apiservice-openapi-controller",
    "poststarthook/apiservice-openapiv3-controller",
];

static CHECK: Family = Family::gauge(
    "kubernetes_healthcheck",
    "[STABLE] This metric records the result of a single healthcheck.",
    &["name", "type"],
);
static CHECKED: Family = Family::counter(
    "kubernetes_healthchecks_total",
    "[STABLE] This metric records the results of all healthcheck.",
    &["name", "status", "type"],
);

/// The metrics for `/metrics/slis` (`component-base/metrics/prometheus/slis`).
pub(crate) fn indicators() -> String {
    let mut out = String::new();
    CHECK.render(&mut out);
    CHECKED.render(&mut out);
    out
}

/// Counts one check of a request for all checks; as in upstream, requests for a single check are
/// not counted.
fn observe(endpoint: &str, name: &str, passed: bool) {
    CHECK.set(&[name, endpoint], if passed { 1.0 } else { 0.0 });
    CHECKED.inc(&[name, if passed { "success" } else { "error" }, endpoint]);
}

/// The check of all KMS plugins (`kmsReloadHealthCheckName`).
const PLUGINS: &str = "kms-providers";

/// The state of the checks.
pub(crate) struct Checks {
    objects: Arc<Objects>,
    /// The names of steps that must be completed before the server is ready.
    pending: Mutex<Vec<&'static str>>,
    stopping: std::sync::atomic::AtomicBool,
}

impl Checks {
    pub(crate) fn new(objects: Arc<Objects>) -> Self {
        Self {
            objects,
            pending: Mutex::new(Vec::new()),
            stopping: std::sync::atomic::AtomicBool::new(false),
        }
    }

    /// Adds a step: the server is not ready until [`Checks::done`] is called with the same name.
    pub(crate) fn wait_for(&self, name: &'static str) {
        self.pending.lock().push(name);
    }

    pub(crate) fn done(&self, name: &'static str) {
        self.pending.lock().retain(|n| *n != name);
    }

    pub(crate) fn stop(&self) {
        self.stopping.store(true, std::sync::atomic::Ordering::Relaxed);
    }

    fn transformer(&self) -> Option<&Arc<dyn Transformer>> {
        self.objects.storage().transformer()
    }

    /// The names of an endpoint's checks, in upstream's order.
    fn names(&self, endpoint: &str) -> Vec<String> {
        let first: &[&str] = match endpoint {
            "readyz" => &["ping", "log", "etcd", "etcd-readiness", "informer-sync"],
            _ => &["ping", "log", "loopback-serving-certificate", "etcd"],
        };
        let mut names: Vec<String> = first.iter().map(|n| (*n).to_owned()).collect();
        // As in upstream, `livez` omits plugins: a restart of the server does not repair them.
        if endpoint != "livez" && self.transformer().is_some_and(|t| t.has_health()) {
            names.push(PLUGINS.to_owned());
        }
        names.extend(HOOKS.iter().map(|hook| (*hook).to_owned()));
        if endpoint == "readyz" {
            names.push("shutdown".into());
        }
        names
    }

    /// The paths of all endpoints and their checks.
    pub(crate) fn paths(&self) -> Vec<String> {
        let of = |endpoint: &str| -> Vec<String> {
            let checks = self.names(endpoint).into_iter();
            let checks = checks.map(|name| format!("/{endpoint}/{name}"));
            std::iter::once(format!("/{endpoint}")).chain(checks).collect()
        };
        ["healthz", "livez", "readyz"].map(of).concat()
    }

    /// Whether one check passes.
    async fn passes(&self, endpoint: &str, name: &str) -> bool {
        match name {
            "etcd" | "etcd-readiness" => {
                self.objects.storage().backend().read_index().await.is_ok()
            }
            PLUGINS => match self.transformer() {
                Some(transformer) => {
                    let checked = transformer.check().await;
                    if let Err(error) = &checked {
                        tracing::warn!(%error, "a KMS plugin is not healthy");
                    }
                    checked.is_ok()
                }
                None => true,
            },
            "shutdown" => !self.stopping.load(std::sync::atomic::Ordering::Relaxed),
            _ if endpoint == "livez" => true,
            _ => !self
                .pending
                .lock()
                .iter()
                .any(|pending| name.strip_prefix("poststarthook/").unwrap_or(name) == *pending),
        }
    }

    /// Handles requests such as `/livez?verbose&exclude=x` and `/livez/etcd`.
    pub(crate) async fn answer(&self, path: &str, query: &Query) -> Response<Body> {
        let path = path.trim_matches('/');
        let (endpoint, one) = path.split_once('/').unwrap_or((path, ""));
        let names = self.names(endpoint);
        if !one.is_empty() {
            return if !names.iter().any(|n| n == one) {
                status::page_not_found()
            } else if self.passes(endpoint, one).await {
                ok(b"ok".to_vec())
            } else {
                status::text(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    "internal server error: reason withheld\n",
                )
            };
        }
        let mut lines = String::new();
        let mut failed = Vec::new();
        for name in &names {
            if query.all("exclude").any(|e| e == name) {
                lines.push_str(&format!("[+]{name} excluded: ok\n"));
                continue;
            }
            let passed = self.passes(endpoint, name).await;
            observe(endpoint, name, passed);
            if passed {
                lines.push_str(&format!("[+]{name} ok\n"));
            } else {
                lines.push_str(&format!("[-]{name} failed: reason withheld\n"));
                failed.push(name.as_str());
            }
        }
        if !failed.is_empty() {
            return status::text(
                StatusCode::INTERNAL_SERVER_ERROR,
                format!("{lines}{endpoint} check failed\n"),
            );
        }
        if query.get("verbose").is_some() {
            ok(format!("{lines}{endpoint} check passed\n").into_bytes())
        } else {
            ok(b"ok".to_vec())
        }
    }
}

fn ok(bytes: Vec<u8>) -> Response<Body> {
    status::text(StatusCode::OK, bytes)
}
