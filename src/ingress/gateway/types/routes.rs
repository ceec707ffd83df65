//! Routes of all kinds.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A parent of a route, as it is repeated in the status.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ParentRef {
    /// API group; that of Gateway API if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// `Gateway` (default) or `ListenerSet`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Namespace; that of the route if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Name.
    pub name: String,
    /// One listener.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub section_name: Option<String>,
    /// The listeners of one port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
}

/// A route of any kind.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RouteSpec {
    /// Gateways and ListenerSets.
    pub parent_refs: Vec<ParentRef>,
    /// Hosts; all if empty.
    pub hostnames: Vec<String>,
    /// Rules.
    pub rules: Vec<RouteRule>,
}

/// A rule of a route.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RouteRule {
    /// What a request must match; one of them suffices.
    pub matches: Vec<RouteMatch>,
    /// Changes of requests and responses.
    pub filters: Vec<Filter>,
    /// Backends.
    pub backend_refs: Vec<BackendRef>,
    /// Limits of time.
    pub timeouts: Option<TimeoutsSpec>,
    /// Repeated attempts.
    pub retry: Option<RetrySpec>,
    /// Not supported.
    pub session_persistence: Option<Value>,
}

/// What a request must match; all of it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RouteMatch {
    /// The path.
    pub path: Option<TypedValue>,
    /// Headers.
    pub headers: Vec<TypedValue>,
    /// Query parameters.
    pub query_params: Vec<TypedValue>,
    /// HTTPRoute: the method. GRPCRoute: type, service and method.
    pub method: Value,
}

/// A named value and how it is compared.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct TypedValue {
    /// `Exact`, `PathPrefix` or `RegularExpression`.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// The name.
    pub name: String,
    /// The value.
    pub value: String,
}

/// A filter of a rule or backend.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Filter {
    /// The type, which names the field that is set.
    #[serde(rename = "type")]
    pub kind: String,
    /// Changes of request headers.
    pub request_header_modifier: Option<HeaderModifier>,
    /// Changes of response headers.
    pub response_header_modifier: Option<HeaderModifier>,
    /// A second backend that gets a copy.
    pub request_mirror: Option<MirrorSpec>,
    /// A redirect.
    pub request_redirect: Option<RedirectSpec>,
    /// Changes of host and path.
    pub url_rewrite: Option<RewriteSpec>,
    /// Cross-origin requests.
    pub cors: Option<CorsSpec>,
}

/// `HTTPHeaderFilter`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct HeaderModifier {
    /// Replaces.
    pub set: Vec<TypedValue>,
    /// Appends.
    pub add: Vec<TypedValue>,
    /// Removes.
    pub remove: Vec<String>,
}

/// `HTTPRequestMirrorFilter`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct MirrorSpec {
    /// The backend.
    pub backend_ref: BackendRef,
    /// The share in percent.
    pub percent: Option<u32>,
    /// The share as a fraction.
    pub fraction: Option<Fraction>,
}

/// A fraction.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Fraction {
    /// Numerator.
    pub numerator: u32,
    /// Denominator; 100 if absent.
    pub denominator: Option<u32>,
}

/// `HTTPRequestRedirectFilter`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RedirectSpec {
    /// `http` or `https`.
    pub scheme: Option<String>,
    /// Host.
    pub hostname: Option<String>,
    /// Path.
    pub path: Option<PathModifier>,
    /// Port.
    pub port: Option<u16>,
    /// 302 if absent.
    pub status_code: Option<u16>,
}

/// `HTTPURLRewriteFilter`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct RewriteSpec {
    /// Host.
    pub hostname: Option<String>,
    /// Path.
    pub path: Option<PathModifier>,
}

/// `HTTPPathModifier`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PathModifier {
    /// `ReplaceFullPath`.
    pub replace_full_path: Option<String>,
    /// `ReplacePrefixMatch`.
    pub replace_prefix_match: Option<String>,
}

/// `HTTPCORSFilter`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CorsSpec {
    /// Origins.
    pub allow_origins: Vec<String>,
    /// Credentials.
    pub allow_credentials: bool,
    /// Methods.
    pub allow_methods: Vec<String>,
    /// Request headers.
    pub allow_headers: Vec<String>,
    /// Response headers.
    pub expose_headers: Vec<String>,
    /// Seconds for which a preflight response is valid; 5 if absent.
    pub max_age: Option<u32>,
}

/// A backend of a rule.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct BackendRef {
    /// API group; the core group if absent.
    pub group: Option<String>,
    /// `Service` (default).
    pub kind: Option<String>,
    /// Namespace; that of the route if absent.
    pub namespace: Option<String>,
    /// Name.
    pub name: String,
    /// Port of the Service.
    pub port: Option<u16>,
    /// Share; 1 if absent.
    pub weight: Option<u32>,
    /// Filters for this backend alone.
    pub filters: Vec<Filter>,
}

/// `HTTPRouteTimeouts`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TimeoutsSpec {
    /// For the whole request.
    pub request: Option<String>,
    /// For one attempt.
    pub backend_request: Option<String>,
}

/// `HTTPRouteRetry`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct RetrySpec {
    /// Status codes that are tried again.
    pub codes: Vec<u16>,
    /// Attempts after the first one; 1 if absent.
    pub attempts: Option<u32>,
    /// Time between attempts.
    pub backoff: Option<String>,
}
