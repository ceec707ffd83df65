//! Requests and their filters (`pkg/endpoints/metrics`, `pkg/endpoints/filters`,
//! `pkg/endpoints/handlers/metrics`), tokens, impersonation.

use std::time::Duration;

use api::Gvr;
use base::metrics::{DEFAULT_BOUNDS, Family, exponential, linear};
use tokio::time::Instant;

/// Times that an API server could not be asked any more (`pkg/controllers/status/metrics` of
/// kube-aggregator).
pub(crate) static APISERVICE_UNAVAILABLE: Family = Family::counter(
    "aggregator_unavailable_apiservice_total",
    "[ALPHA] Counter of APIServices which are marked as unavailable broken down by \
     APIService name and reason.",
    &["name", "reason"],
);

static FILTERS: [f64; 13] =
    [0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 5.0, 10.0, 15.0, 30.0];
/// Bounds of answers that lists and watches wait for, in seconds.
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

/// Those of lists that are watched.
const WATCH_LISTS_BOUNDS: [f64; 25] = [
    0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0,
    30.0, 45.0, 60.0, 90.0, 120.0, 180.0, 300.0,
];

/// Requests for versions that go away, each once with 1.
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
/// Handshakes that failed.
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
/// Seconds that the certificate of a request's user has to live.
pub(crate) static EXPIRATION: Family = Family::histogram(
    "apiserver_client_certificate_expiration_seconds",
    "[ALPHA] Distribution of the remaining lifetime on the certificate used to authenticate \
     a request.",
    &[],
    &EXPIRATIONS,
);
/// Good tokens of service accounts.
pub(crate) static TOKENS: Family = Family::counter(
    "serviceaccount_valid_tokens_total",
    "[BETA] Cumulative valid projected service account tokens used",
    &[],
);
/// Those older than an hour whose life was extended.
pub(crate) static STALE_TOKENS: Family = Family::counter(
    "serviceaccount_stale_tokens_total",
    "[BETA] Cumulative stale projected service account tokens used",
    &[],
);
/// Tokens in Secrets.
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
/// Streams over WebSocket to pods, handed over as they are or as another protocol.
pub(crate) static STREAMS: Family = Family::counter(
    "apiserver_websocket_streaming_requests_total",
    "[ALPHA] Total number of WebSocket streaming requests (exec/attach/portforward) routed \
     by the API server, labeled by subresource and proxy_type. proxy_type is \
     proxied_to_kubelet when the kubelet handles the request directly; otherwise \
     translated_at_apiserver.",
    &["proxy_type", "subresource"],
);
/// Readers of logs, by whether the kubelet's certificate is looked at.
pub(crate) static LOGS: Family = Family::counter(
    "kube_apiserver_pod_logs_insecure_backend_total",
    "[ALPHA] Total number of requests for pods/logs sliced by usage type: enforce_tls, \
     skip_tls_allowed, skip_tls_denied",
    &["usage"],
);
/// Kubelets that could not prove it.
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
/// Tokens in Secrets that a user has made.
pub(crate) static MANUAL_TOKENS: Family = Family::counter(
    "serviceaccount_legacy_manual_token_uses_total",
    "[ALPHA] Cumulative manually created legacy tokens used",
    &[],
);
/// Tokens in Secrets that belong to their account.
pub(crate) static AUTO_TOKENS: Family = Family::counter(
    "serviceaccount_legacy_auto_token_uses_total",
    "[ALPHA] Cumulative auto-generated legacy tokens used",
    &[],
);
/// Those that were marked as not used any more.
pub(crate) static INVALID_TOKENS: Family = Family::counter(
    "serviceaccount_invalid_legacy_auto_token_uses_total",
    "[ALPHA] Cumulative invalid auto-generated legacy tokens used",
    &[],
);
/// Webhooks and issuers whose certificate names nobody.
pub(crate) static NAMELESS: Family = Family::counter(
    "apiserver_webhooks_x509_missing_san_total",
    "[BETA] Counts the number of requests to servers missing SAN extension in their serving \
     certificate OR the number of connection failures due to the lack of x509 certificate \
     SAN extension missing (either/or, based on the runtime environment)",
    &[],
);
/// Discovery documents made of several API servers.
pub(crate) static MERGED: Family = Family::counter(
    "aggregator_discovery_aggregation_count_total",
    "[ALPHA] Counter of number of times discovery was aggregated",
    &[],
);

pub(super) static ALL: [&Family; 38] = [
    &IMPERSONATION_CHECKS,
    &IMPERSONATION_CHECK_TIME,
    &MANUAL_TOKENS,
    &AUTO_TOKENS,
    &INVALID_TOKENS,
    &NAMELESS,
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

/// What all metrics of requests say of one: verb, group, version, resource, subresource, scope.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Words<'a> {
    pub(crate) verb: &'a str,
    pub(crate) group: &'a str,
    pub(crate) version: &'a str,
    pub(crate) resource: &'a str,
    pub(crate) subresource: &'a str,
    pub(crate) scope: &'a str,
}

/// A request that lives long, as long as this is there.
#[derive(Debug)]
pub(crate) struct Long([String; 6]);

impl Long {
    /// It begins.
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

/// A request was ended with this code, 429 or 504, to protect the server.
pub(crate) fn terminated(words: &Words<'_>, code: u16) {
    let Words { verb, group, version, resource, subresource, scope } = *words;
    let code = code.to_string();
    TERMINATIONS.inc(&[&code, "apiserver", group, resource, scope, subresource, verb, version]);
}

/// A request of this server's own user.
pub(crate) fn own(words: &Words<'_>) {
    OWN.inc(&[words.group, words.resource, words.subresource, words.verb]);
}

/// A request was answered with this wish for validation of fields, empty where there was none.
pub(crate) fn validated(wish: &str, took: Duration) {
    let wish = match wish {
        "" | "Ignore" | "Warn" | "Strict" => wish,
        _ => "invalid",
    };
    FIELD_VALIDATION.took(&[wish], took);
}

/// A filter has let the request through, or refused it.
pub(crate) fn filtered(filter: &str, since: Instant) -> Instant {
    let now = base::clock::now();
    FILTER.took(&[filter], now.duration_since(since));
    now
}

/// A body of so many bytes was read.
pub(crate) fn body(gvr: &Gvr, verb: &str, bytes: usize) {
    BODIES.observe(&[&gvr.group, &gvr.resource, verb], bytes as f64);
}

/// An event of so many bytes is sent to a watch.
pub(crate) fn sent(gvr: &Gvr, bytes: usize) {
    let labels = [&*gvr.group, &*gvr.resource, &*gvr.version];
    WATCH_EVENTS.inc(&labels);
    WATCH_SIZES.observe(&labels, bytes as f64);
}

/// A watch has sent the list that it begins with.
pub(crate) fn listed(gvr: &Gvr, scope: &str, took: Duration) {
    WATCH_LISTS.took(&[&gvr.group, &gvr.resource, scope, &gvr.version], took);
}

/// Whose request it is was found out: the name, nobody (`None`), or that something was wrong.
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

/// Names as upstream's `compressUsername` makes few of many.
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

/// The authorizers answered `allowed`, `denied`, `no-opinion` or `error`.
pub(crate) fn authorized(result: &'static str, took: Duration) {
    AUTHORIZATIONS.inc(&[result]);
    AUTHORIZATION.took(&[result], took);
}

/// It was decided whether a request may act as somebody else.
pub(crate) fn impersonated(allowed: bool, took: Duration) {
    let labels = [if allowed { "allowed" } else { "denied" }, "legacy"];
    IMPERSONATIONS.inc(&labels);
    IMPERSONATION.took(&labels, took);
}

/// One right that acting as somebody else needs was asked for.
pub(crate) fn impersonation_checked(allowed: bool, took: Duration) {
    let labels = [if allowed { "allowed" } else { "denied" }, "legacy"];
    IMPERSONATION_CHECKS.inc(&labels);
    IMPERSONATION_CHECK_TIME.took(&labels, took);
}

/// A token was looked up: in the cache, or by the webhook, which answered or did not.
pub(crate) fn token(hit: bool, answered: bool, since: Instant) {
    let status = if hit { "hit" } else { "miss" };
    TOKEN_CACHE.inc(&[status]);
    TOKEN_CACHE_TIME.took(&[status], since.elapsed());
    if !hit {
        TOKEN_FETCHES.inc(&[if answered { "ok" } else { "error" }]);
    }
}

/// The webhook is asked about one more token, or one fewer.
pub(crate) fn fetching(by: f64) {
    TOKEN_FETCHING.add(&["in_flight"], by);
}

/// A pod, or what makes pods, was held against a policy: `allow` or `deny` in `enforce`, `audit` or
/// `warn`.
pub(crate) fn evaluated(
    decision: &str,
    mode: &str,
    (level, version): (&str, &str),
    (operation, resource, subresource): (&str, &str, &str),
) {
    EVALUATIONS.inc(&[decision, mode, level, version, operation, resource, subresource]);
}
