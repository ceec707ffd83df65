//! Metrics of requests and filters (`pkg/endpoints/metrics`, `pkg/endpoints/filters`,
//! `pkg/endpoints/handlers/metrics`), tokens and impersonation.

use std::time::Duration;

use api::Gvr;
use base::metrics::{DEFAULT_BOUNDS, Family, exponential, linear};
use tokio::time::Instant;

/// Transitions of APIServices to unavailable (`pkg/controllers/status/metrics` of kube-aggregator).
pub(crate) static APISERVICE_UNAVAILABLE: Family = Family::counter(
    "aggregator_unavailable_apiservice_total",
    "[ALPHA] Counter of APIServices which are marked as unavailable broken down by \
     APIService name and reason.",
    &["name", "reason"],
);

static FILTERS: [f64; 13] =
    [0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 5.0, 10.0, 15.0, 30.0];
/// The bounds for response latencies, in seconds.
pub(crate) const LATENCIES: [f64; 21] = [
    0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0,
    30.0, 45.0, 60.0,
];
static EXPIRATIONS: [f64; 14] = [
    0.0,
    1800.0,
    3600.0,
    7200.0,
    21600.0,
    43200.0,
    86400.0,
    172_800.0,
    345_600.0,
    604_800.0,
    2_592_000.0,
    7_776_000.0,
    15_552_000.0,
    31_104_000.0,
];

/// The bounds for watch lists, in seconds.
const WATCH_LISTS_BOUNDS: [f64; 25] = [
    0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0,
    30.0, 45.0, 60.0, 90.0, 120.0, 180.0, 300.0,
];

/// Requested deprecated APIs.
pub(crate) static DEPRECATED: Family = Family::gauge(
    "apiserver_requested_deprecated_apis",
    "[STABLE] Gauge of deprecated APIs that have been requested, broken out by API group, \
     version, resource, subresource, and removed_release.",
    &["group", "removed_release", "resource", "subresource", "version"],
);
static LONG: Family = Family::gauge(
    "apiserver_longrunning_requests",
    "[STABLE] Gauge of all active long-running apiserver requests broken out by verb, group, \
     version, resource, scope and component. Not all requests are tracked this way.",
    &["component", "group", "resource", "scope", "subresource", "verb", "version"],
);
static FIELD_VALIDATION: Family = Family::histogram(
    "field_validation_request_duration_seconds",
    "[ALPHA] Response latency distribution in seconds for each field validation value",
    &["field_validation"],
    &LATENCIES,
);
/// Failed TLS handshakes.
pub(crate) static HANDSHAKES: Family = Family::counter(
    "apiserver_tls_handshake_errors_total",
    "[ALPHA] Number of requests dropped with 'TLS handshake error from' error",
    &[],
);
static WATCH_EVENTS: Family = Family::counter(
    "apiserver_watch_events_total",
    "[BETA] Number of events sent in watch clients",
    &["group", "resource", "version"],
);
static WATCH_SIZES: Family = Family::histogram(
    "apiserver_watch_events_sizes",
    "[BETA] Watch event size distribution in bytes",
    &["group", "resource", "version"],
    &exponential::<8>(1024.0, 2.0),
);
static WATCH_LISTS: Family = Family::histogram(
    "apiserver_watch_list_duration_seconds",
    "[BETA] Response latency distribution in seconds for watch list requests broken by \
     group, version, resource and scope.",
    &["group", "resource", "scope", "version"],
    &WATCH_LISTS_BOUNDS,
);
static TERMINATIONS: Family = Family::counter(
    "apiserver_request_terminations_total",
    "[ALPHA] Number of requests which apiserver terminated in self-defense.",
    &["code", "component", "group", "resource", "scope", "subresource", "verb", "version"],
);
static OWN: Family = Family::counter(
    "apiserver_selfrequest_total",
    "[ALPHA] Counter of apiserver self-requests broken out for each verb, API resource and \
     subresource.",
    &["group", "resource", "subresource", "verb"],
);
static FILTER: Family = Family::histogram(
    "apiserver_request_filter_duration_seconds",
    "[ALPHA] Request filter latency distribution in seconds, for each filter type",
    &["filter"],
    &FILTERS,
);
static BODIES: Family = Family::histogram(
    "apiserver_request_body_size_bytes",
    "[ALPHA] Apiserver request body size in bytes broken out by resource and verb.",
    &["group", "resource", "verb"],
    &linear::<31>(50_000.0, 100_000.0),
);
static USERS: Family = Family::counter(
    "authenticated_user_requests",
    "[ALPHA] Counter of authenticated requests broken out by username.",
    &["username"],
);
static AUTHENTICATIONS: Family = Family::counter(
    "authentication_attempts",
    "[ALPHA] Counter of authenticated attempts.",
    &["result"],
);
static AUTHENTICATION: Family = Family::histogram(
    "authentication_duration_seconds",
    "[ALPHA] Authentication duration in seconds broken out by result.",
    &["result"],
    &exponential::<15>(0.001, 2.0),
);
static AUTHORIZATIONS: Family = Family::counter(
    "authorization_attempts_total",
    "[ALPHA] Counter of authorization attempts broken down by result. It can be either \
     'allowed', 'denied', 'no-opinion' or 'error'.",
    &["result"],
);
static AUTHORIZATION: Family = Family::histogram(
    "authorization_duration_seconds",
    "[ALPHA] Authorization duration in seconds broken out by result.",
    &["result"],
    &exponential::<15>(0.001, 2.0),
);
static IMPERSONATIONS: Family = Family::counter(
    "apiserver_impersonation_attempts_total",
    "[ALPHA] Total number of impersonation attempts split by mode and decision.",
    &["decision", "mode"],
);
static IMPERSONATION: Family = Family::histogram(
    "apiserver_impersonation_attempts_duration_seconds",
    "[ALPHA] Latency of impersonation attempts in seconds split by mode and decision.",
    &["decision", "mode"],
    &exponential::<15>(0.001, 2.0),
);
static TOKEN_CACHE: Family =
    Family::counter("authentication_token_cache_request_total", "[ALPHA] ", &["status"]);
static TOKEN_CACHE_TIME: Family = Family::histogram(
    "authentication_token_cache_request_duration_seconds",
    "[ALPHA] ",
    &["status"],
    &DEFAULT_BOUNDS,
);
static TOKEN_FETCHES: Family =
    Family::counter("authentication_token_cache_fetch_total", "[ALPHA] ", &["status"]);
static TOKEN_FETCHING: Family =
    Family::gauge("authentication_token_cache_active_fetch_count", "[ALPHA] ", &["status"]);
/// The remaining lifetime of client certificates, in seconds.
pub(crate) static EXPIRATION: Family = Family::histogram(
    "apiserver_client_certificate_expiration_seconds",
    "[ALPHA] Distribution of the remaining lifetime on the certificate used to authenticate \
     a request.",
    &[],
    &EXPIRATIONS,
);
/// Requests with valid service account tokens.
pub(crate) static TOKENS: Family = Family::counter(
    "serviceaccount_valid_tokens_total",
    "[BETA] Cumulative valid projected service account tokens used",
    &[],
);
/// Requests with service account tokens that are only valid because of their extended lifetime.
pub(crate) static STALE_TOKENS: Family = Family::counter(
    "serviceaccount_stale_tokens_total",
    "[BETA] Cumulative stale projected service account tokens used",
    &[],
);
/// Requests with tokens from Secrets.
pub(crate) static LEGACY_TOKENS: Family = Family::counter(
    "serviceaccount_legacy_tokens_total",
    "[BETA] Cumulative legacy service account tokens used",
    &[],
);
static EVALUATIONS: Family = Family::counter(
    "pod_security_evaluations_total",
    "[ALPHA] Number of policy evaluations that occurred, not counting ignored or exempt requests.",
    &[
        "decision",
        "mode",
        "policy_level",
        "policy_version",
        "request_operation",
        "resource",
        "subresource",
    ],
);
/// WebSocket streams to pods, proxied unchanged or translated.
pub(crate) static STREAMS: Family = Family::counter(
    "apiserver_websocket_streaming_requests_total",
    "[ALPHA] Total number of WebSocket streaming requests (exec/attach/portforward) routed \
     by the API server, labeled by subresource and proxy_type. proxy_type is \
     proxied_to_kubelet when the kubelet handles the request directly; otherwise \
     translated_at_apiserver.",
    &["proxy_type", "subresource"],
);
/// Requests for pod logs, by whether the kubelet's certificate is verified.
pub(crate) static LOGS: Family = Family::counter(
    "kube_apiserver_pod_logs_insecure_backend_total",
    "[ALPHA] Total number of requests for pods/logs sliced by usage type: enforce_tls, \
     skip_tls_allowed, skip_tls_denied",
    &["usage"],
);
/// Requests for pod logs with an invalid kubelet certificate.
pub(crate) static LOGS_FAILED: Family = Family::counter(
    "kube_apiserver_pod_logs_backend_tls_failure_total",
    "[ALPHA] Total number of requests for pods/logs that failed due to kubelet server TLS \
     verification",
    &[],
);

static IMPERSONATION_CHECKS: Family = Family::counter(
    "apiserver_impersonation_authorization_attempts_total",
    "[ALPHA] Total number of authorization checks made by the impersonation handler split by \
     mode and decision.",
    &["decision", "mode"],
);
static IMPERSONATION_CHECK_TIME: Family = Family::histogram(
    "apiserver_impersonation_authorization_attempts_duration_seconds",
    "[ALPHA] Latency of authorization checks made by the impersonation handler in seconds \
     split by mode and decision.",
    &["decision", "mode"],
    &exponential::<15>(0.001, 2.0),
);
/// Requests with tokens from Secrets that a user created.
pub(crate) static MANUAL_TOKENS: Family = Family::counter(
    "serviceaccount_legacy_manual_token_uses_total",
    "[ALPHA] Cumulative manually created legacy tokens used",
    &[],
);
/// Requests with tokens from Secrets that a controller created for the service account.
pub(crate) static AUTO_TOKENS: Family = Family::counter(
    "serviceaccount_legacy_auto_token_uses_total",
    "[ALPHA] Cumulative auto-generated legacy tokens used",
    &[],
);
/// Requests with tokens from Secrets that were marked as unused.
pub(crate) static INVALID_TOKENS: Family = Family::counter(
    "serviceaccount_invalid_legacy_auto_token_uses_total",
    "[ALPHA] Cumulative invalid auto-generated legacy tokens used",
    &[],
);
/// Aggregations of discovery documents.
pub(crate) static MERGED: Family = Family::counter(
    "aggregator_discovery_aggregation_count_total",
    "[ALPHA] Counter of number of times discovery was aggregated",
    &[],
);

pub(super) static ALL: [&Family; 37] = [
    &IMPERSONATION_CHECKS,
    &IMPERSONATION_CHECK_TIME,
    &MANUAL_TOKENS,
    &AUTO_TOKENS,
    &INVALID_TOKENS,
    &MERGED,
    &APISERVICE_UNAVAILABLE,
    &DEPRECATED,
    &LONG,
    &FIELD_VALIDATION,
    &HANDSHAKES,
    &WATCH_EVENTS,
    &WATCH_SIZES,
    &WATCH_LISTS,
    &TERMINATIONS,
    &OWN,
    &FILTER,
    &BODIES,
    &USERS,
    &AUTHENTICATIONS,
    &AUTHENTICATION,
    &AUTHORIZATIONS,
    &AUTHORIZATION,
    &IMPERSONATIONS,
    &IMPERSONATION,
    &TOKEN_CACHE,
    &TOKEN_CACHE_TIME,
    &TOKEN_FETCHES,
    &TOKEN_FETCHING,
    &EXPIRATION,
    &TOKENS,
    &STALE_TOKENS,
    &LEGACY_TOKENS,
    &EVALUATIONS,
    &STREAMS,
    &LOGS,
    &LOGS_FAILED,
];

/// The common labels of request metrics.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Words<'a> {
    pub(crate) verb: &'a str,
    pub(crate) group: &'a str,
    pub(crate) version: &'a str,
    pub(crate) resource: &'a str,
    pub(crate) subresource: &'a str,
    pub(crate) scope: &'a str,
}

/// A long-running request, counted until this is dropped.
#[derive(Debug)]
pub(crate) struct Long([String; 6]);

impl Long {
    /// Counts the request.
    pub(crate) fn begin(words: &Words<'_>) -> Self {
        let Words { verb, group, version, resource, subresource, scope } = *words;
        let own = [group, resource, scope, subresource, verb, version].map(str::to_owned);
        let long = Self(own);
        long.add(1.0);
        long
    }

    fn add(&self, by: f64) {
        let [group, resource, scope, subresource, verb, version] = &self.0;
        LONG.add(&["apiserver", group, resource, scope, subresource, verb, version], by);
    }
}

impl Drop for Long {
    fn drop(&mut self) {
        self.add(-1.0);
    }
}

/// Counts a request that was terminated with this code, 429 or 504, to protect the server.
pub(crate) fn terminated(words: &Words<'_>, code: u16) {
    let Words { verb, group, version, resource, subresource, scope } = *words;
    let code = code.to_string();
    TERMINATIONS.inc(&[&code, "apiserver", group, resource, scope, subresource, verb, version]);
}

/// Counts a request of this server to itself.
pub(crate) fn own(words: &Words<'_>) {
    OWN.inc(&[words.group, words.resource, words.subresource, words.verb]);
}

/// Counts a request by its `fieldValidation`; empty if it has none.
pub(crate) fn validated(wish: &str, took: Duration) {
    let wish = match wish {
        "" | "Ignore" | "Warn" | "Strict" => wish,
        _ => "invalid",
    };
    FIELD_VALIDATION.took(&[wish], took);
}

/// Counts the duration of a filter; returns the current time.
pub(crate) fn filtered(filter: &str, since: Instant) -> Instant {
    let now = base::clock::now();
    FILTER.took(&[filter], now.duration_since(since));
    now
}

/// Counts a request body of so many bytes.
pub(crate) fn body(gvr: &Gvr, verb: &str, bytes: usize) {
    BODIES.observe(&[&gvr.group, &gvr.resource, verb], bytes as f64);
}

/// Counts a watch event of so many bytes.
pub(crate) fn sent(gvr: &Gvr, bytes: usize) {
    let labels = [&*gvr.group, &*gvr.resource, &*gvr.version];
    WATCH_EVENTS.inc(&labels);
    WATCH_SIZES.observe(&labels, bytes as f64);
}

/// Counts a watch that has sent its initial objects.
pub(crate) fn listed(gvr: &Gvr, scope: &str, took: Duration) {
    WATCH_LISTS.took(&[&gvr.group, &gvr.resource, scope, &gvr.version], took);
}

/// Counts an authentication: the user name, `None` without a user, or an error.
pub(crate) fn authenticated(who: Result<Option<&str>, ()>, took: Duration) {
    let result = match who {
        Ok(Some(name)) => {
            USERS.inc(&[kind_of(name)]);
            "success"
        }
        Ok(None) => "failure",
        Err(()) => "error",
    };
    AUTHENTICATIONS.inc(&[result]);
    AUTHENTICATION.took(&[result], took);
}

/// Reduces user names to a closed set (upstream's `compressUsername`).
fn kind_of(name: &str) -> &str {
    match name {
        "admin"
        | "client"
        | "kube_proxy"
        | "kubelet"
        | "system:serviceaccount:kube-system:default" => name,
        _ if name.contains('@') => "email_id",
        _ => "other",
    }
}

/// Counts an authorization: `allowed`, `denied`, `no-opinion` or `error`.
pub(crate) fn authorized(result: &'static str, took: Duration) {
    AUTHORIZATIONS.inc(&[result]);
    AUTHORIZATION.took(&[result], took);
}

/// Counts an impersonation.
pub(crate) fn impersonated(allowed: bool, took: Duration) {
    let labels = [if allowed { "allowed" } else { "denied" }, "legacy"];
    IMPERSONATIONS.inc(&labels);
    IMPERSONATION.took(&labels, took);
}

/// Counts a permission check for an impersonation.
pub(crate) fn impersonation_checked(allowed: bool, took: Duration) {
    let labels = [if allowed { "allowed" } else { "denied" }, "legacy"];
    IMPERSONATION_CHECKS.inc(&labels);
    IMPERSONATION_CHECK_TIME.took(&labels, took);
}

/// Counts a token lookup: a cache hit, or a webhook call that has succeeded or failed.
pub(crate) fn token(hit: bool, answered: bool, since: Instant) {
    let status = if hit { "hit" } else { "miss" };
    TOKEN_CACHE.inc(&[status]);
    TOKEN_CACHE_TIME.took(&[status], since.elapsed());
    if !hit {
        TOKEN_FETCHES.inc(&[if answered { "ok" } else { "error" }]);
    }
}

/// Changes the number of running token lookups by webhook.
pub(crate) fn fetching(by: f64) {
    TOKEN_FETCHING.add(&["in_flight"], by);
}

/// Counts a pod security evaluation of a pod or workload: `allow` or `deny` in the mode `enforce`,
/// `audit` or `warn`.
pub(crate) fn evaluated(
    decision: &str,
    mode: &str,
    (level, version): (&str, &str),
    (operation, resource, subresource): (&str, &str, &str),
) {
    EVALUATIONS.inc(&[decision, mode, level, version, operation, resource, subresource]);
}
