//! Handlers of requests, one file per verb and subresource; this file dispatches to them.

mod bind;
mod create;
mod delete;
mod evict;
mod get;
mod list;
mod metrics_history;
mod patch;
mod proxy;
mod resource_metrics;
mod review;
mod scale;
mod unsafe_delete;
mod update;
pub(crate) mod watch;

pub(crate) use crate::request::options::{FieldValidation, WriteOptions};

#[cfg(feature = "fuzzing")]
pub(crate) use crate::request::options::fuzz as fuzz_options;
#[cfg(feature = "fuzzing")]
pub(crate) use list::fuzz as fuzz_token;

use std::sync::Arc;

use api::Status;
use api::zpages::{PageContent, Statusz};
use http::{Method, Request, Response, StatusCode};
use sorting::CompactSort as _;

use crate::aggregator::openapi;
use crate::discovery::zpages;
use crate::metrics::exposition;
use crate::request::body::Body;
use crate::request::context::{Context, RequestParts};
use crate::request::user::User;
use crate::request::{Query, RequestInfo};
use crate::request_tracing;
use crate::response::status;
use crate::state::ServerState;

/// Calls the handler of a request about a served resource.
pub(crate) async fn dispatch(
    context: &Context,
    exchange: RequestParts,
) -> Result<Response<Body>, Status> {
    let info = &context.info;
    if let Some(warning) = context.row.spec.custom.as_ref().and_then(|custom| custom.deprecation())
    {
        warn_deprecated(context, warning);
    }
    if !info.subresource.is_empty() {
        return dispatch_subresource(context, exchange).await;
    }
    // Upstream serves custom resources outside its router, which has no HEAD and parses Accept
    // headers strictly.
    let is_routed = context.row.spec.custom.is_none();
    if is_routed && exchange.method == Method::HEAD {
        return Err(status::no_method());
    }
    let spec = &context.row.spec;
    // A namespaced resource has items only inside a namespace, a cluster-scoped one only outside.
    let is_item = !info.path_name.is_empty();
    let has_scope = spec.namespaced != info.namespace.is_empty()
        || (!spec.namespaced && info.resource == "namespaces");
    if is_item && !has_scope
        || (!spec.namespaced && !info.namespace.is_empty() && info.resource != "namespaces")
    {
        return Err(status::no_resource());
    }
    let verb = info.verb;
    if verb == "watch" && !context.row.has_verb("watch") && !context.row.has_verb("list") {
        return Err(status::no_method());
    }
    let needs_item = matches!(verb, "get" | "update" | "patch" | "delete");
    let creates_item = verb == "create" && is_item;
    if is_item && !context.row.is_stored() && !context.row.has_verb("get") {
        // Resources that can only be created have no item paths.
        return Err(status::no_resource());
    }
    if !context.row.has_verb(verb)
        || creates_item
        || (needs_item && !is_item)
        || (matches!(verb, "create" | "deletecollection")
            && spec.namespaced
            && info.namespace.is_empty())
    {
        return Err(status::no_method());
    }
    if is_routed && verb != "patch" {
        // A patch is checked for its patch type first.
        context.accept_route()?;
    }
    if let Some(warning) = deprecation(&spec.gvk) {
        warn_deprecated(context, warning.to_owned());
    }
    if !context.row.is_stored() && verb != "create" {
        return match context.row.is_resource_metrics() {
            true => resource_metrics::serve(context).await,
            false => list::component_statuses(context).await,
        };
    }
    let name = match verb {
        "get" => "Get",
        "list" => "List",
        "watch" => "WatchList",
        "create" => "Create",
        "update" => "Update",
        "patch" => "Patch",
        _ => "Delete",
    };
    let handler = Box::pin(run_verb(context, exchange, verb));
    let outcome = request_tracing::run(name, || span_attributes(context), handler).await;
    let changes = matches!(verb, "update" | "patch" | "delete" | "deletecollection");
    if changes && outcome.is_ok() {
        let name = is_item.then_some(info.path_name.as_str());
        crate::priority_and_fairness::status::after_write(context, name).await;
    }
    outcome
}

/// Attributes of the span of a verb (`traceFields`).
fn span_attributes(context: &Context) -> request_tracing::Attributes {
    let Context { info, headers, .. } = context;
    let header = |name: http::HeaderName| -> request_tracing::Value {
        headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().into()
    };
    vec![
        ("accept", header(http::header::ACCEPT)),
        ("api-group", info.group.as_str().into()),
        ("api-version", info.version.as_str().into()),
        ("name", info.name.as_str().into()),
        ("subresource", info.subresource.as_str().into()),
        ("namespace", info.namespace.as_str().into()),
        ("resource", info.resource.as_str().into()),
        ("scope", info.scope().into()),
        ("url", info.path.as_str().into()),
        ("user-agent", header(http::header::USER_AGENT)),
        ("verb", info.verb.into()),
    ]
}

/// Runs the handler of the verb.
async fn run_verb(
    context: &Context,
    exchange: RequestParts,
    verb: &str,
) -> Result<Response<Body>, Status> {
    match verb {
        "create" if !context.row.is_stored() => review::review(context, exchange).await,
        "create" => create::create(context, exchange).await,
        "get" => get::get(context).await,
        "list" => list::list(context).await,
        "watch" => watch::watch(context).await,
        "update" => update::update(context, exchange).await,
        "patch" => patch::patch(context, exchange).await,
        "delete" => delete::delete(context, exchange).await,
        "deletecollection" => delete::delete_collection(context, exchange).await,
        _ => Err(status::no_method()),
    }
}

/// Warns the client that it uses a deprecated API, and records the use.
fn warn_deprecated(context: &Context, warning: String) {
    let subresource = context.subresource.as_ref().map_or("", |of| &*of.name);
    context.warn(warning);
    let Context { user, headers, row, .. } = context;
    context.server.deprecated.record(&row.spec.gvr, subresource, user, headers);
}

/// The warning of every request about a deprecated kind (`APILifecycleDeprecated` in
/// `k8s.io/api/core/v1/lifecycle.go`).
fn deprecation(kind: &api::Gvk) -> Option<&'static str> {
    match (&*kind.group, &*kind.version, &*kind.kind) {
        ("", "v1", "ComponentStatus") => Some("v1 ComponentStatus is deprecated in v1.19+"),
        ("", "v1", "Endpoints") => {
            Some("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice")
        }
        _ => None,
    }
}

/// Calls the handler of a request about a subresource.
async fn dispatch_subresource(
    context: &Context,
    exchange: RequestParts,
) -> Result<Response<Body>, Status> {
    let info = &context.info;
    let Some(subresource) = &context.subresource else {
        return Err(match &context.row.spec.custom {
            Some(_) => context.not_found(&info.name),
            None => status::no_resource(),
        });
    };
    let has_scope =
        context.row.spec.namespaced != info.namespace.is_empty() || info.resource == "namespaces";
    if !has_scope {
        return Err(status::no_resource());
    }
    let name = subresource.name.as_ref();
    let is_routed = context.row.spec.custom.is_none();
    let is_connection = matches!(name, "log" | "exec" | "attach" | "portforward" | "proxy");
    if !info.rest.is_empty() && name != "proxy" {
        return Err(status::no_resource());
    }
    if !is_connection
        && (is_routed && exchange.method == Method::HEAD
            || !subresource.verbs.iter().any(|v| v.as_ref() == info.verb))
    {
        return Err(status::no_method());
    }
    if is_routed && !is_connection && info.verb != "patch" {
        context.accept_route()?;
    }
    match (name, info.verb) {
        _ if is_connection => proxy::connect(context, exchange).await,
        ("scale", "get") => scale::get(context).await,
        ("scale", "update") => scale::update(context, exchange).await,
        ("scale", "patch") => scale::patch(context, exchange).await,
        ("binding", "create") => bind::bind(context, exchange).await,
        ("eviction", "create") => evict::evict(context, exchange).await,
        ("token", "create") => review::token(context, exchange).await,
        (_, "get") => get::get(context).await,
        (_, "update") => update::update(context, exchange).await,
        (_, "patch") => patch::patch(context, exchange).await,
        _ => Err(status::no_method()),
    }
}

/// The page `/metrics` or `/metrics/slis`.
async fn metrics(inner: &ServerState, path: &str) -> Response<Body> {
    let mut text = match path {
        "/metrics" => exposition::render(inner),
        _ => exposition::render_indicators(inner),
    };
    if let ("/metrics", Some(extra)) = (path, inner.extra_metrics.get()) {
        extra.append(&mut text).await;
    }
    let mut response = status::text(StatusCode::OK, text);
    let kind = http::HeaderValue::from_static(
        "text/plain; version=0.0.4; charset=utf-8; escaping=underscores",
    );
    response.headers_mut().insert(http::header::CONTENT_TYPE, kind);
    response
}

/// Responds to a request for a path that is not a resource.
pub(crate) async fn serve_path(
    inner: &Arc<ServerState>,
    info: &RequestInfo,
    query: &Query,
    request: Request<Body>,
) -> Response<Body> {
    let path = info.path.as_str();
    let is_read = matches!(info.verb, "get" | "head");
    let remotes = inner.aggregator.remotes();
    let documents = inner.documents.of(&inner.objects.registry());
    let merged = if remotes.is_empty() { None } else { documents.with(&remotes, path) };
    if merged.is_some() {
        crate::metrics::requests::MERGED.inc(&[]);
    }
    let documents = merged.as_ref().unwrap_or(&documents);
    if let Some(response) = documents.answer(path, request.headers(), query) {
        // The roots of groups are not routes of upstream's router and accept any verb.
        let is_group = path.starts_with("/apis") && path.trim_matches('/').split('/').count() <= 2;
        return if is_read || is_group { response } else { status::response(&status::no_method()) };
    }
    let root = path.trim_matches('/').split('/').next().unwrap_or_default();
    match root {
        "healthz" | "livez" | "readyz" if is_read => inner.ready.answer(path, query).await,
        "version" if path.trim_end_matches('/') == "/version" && is_read => {
            version(inner, request.headers(), query)
        }
        "metrics" if matches!(path, "/metrics" | "/metrics/slis") && is_read => {
            metrics(inner, path).await
        }
        "openapi" if is_read => {
            if let Some(remote) = openapi::of_document(&remotes, path) {
                let own = User::authenticated("system:aggregator", &[]);
                return remote.serve(&own, request).await;
            }
            let (registry, others) = (inner.objects.registry(), openapi::described(&remotes));
            inner
                .openapi
                .answer(registry, others, path, request.headers(), query)
                .await
                .unwrap_or_else(status::page_not_found)
        }
        "debug" if inner.flow.is_some() => {
            let details = query.get("includeRequestDetails").is_some_and(|given| !given.is_empty());
            let text = inner.flow.as_ref().and_then(|flow| flow.dump(path, details));
            text.map_or_else(status::page_not_found, status::plain)
        }
        ".well-known" | "openid" if is_read => token_issuer(inner, path),
        "v1-kube-lite" if path == metrics_history::PATH && is_read => {
            match inner.resource_metrics.get() {
                Some(store) => metrics_history::serve(store, request.headers(), query),
                None => status::page_not_found(),
            }
        }
        // Upstream's mux serves these paths for each method.
        "statusz" if path == "/statusz" => {
            zpages::respond(PageContent::Statusz(&status_page(inner)), request.headers(), query)
        }
        "flagz" if path == "/flagz" => {
            zpages::respond(PageContent::Flagz(&inner.config.flags), request.headers(), query)
        }
        "" if is_read => root_paths(inner, request.headers(), query),
        "version" => status::response(&status::no_resource()),
        // An unknown path is a Status under a served group and plain text elsewhere, like the 404s
        // of upstream's two routers.
        "api" if path != "/api/" => status::response(&status::no_resource()),
        "apis" => {
            let group = path.trim_matches('/').split('/').nth(1).unwrap_or_default();
            let known = inner.objects.registry().group(group).is_some();
            if known { status::response(&status::no_resource()) } else { status::page_not_found() }
        }
        _ => status::page_not_found(),
    }
}

/// The documents of the service-account token issuer for `OpenID` clients.
fn token_issuer(inner: &ServerState, path: &str) -> Response<Body> {
    let documents = inner.parts.token_issuer.as_ref().and_then(|issuer| issuer.discovery());
    let (document, kind) = match (path, documents) {
        ("/.well-known/openid-configuration", Some((configuration, _))) => {
            (configuration, "application/json")
        }
        ("/openid/v1/jwks", Some((_, keys))) => (keys, "application/jwk-set+json"),
        _ => return status::page_not_found(),
    };
    let mut response = Response::new(crate::request::body::full(document.to_string()));
    let headers = response.headers_mut();
    headers.insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static(kind));
    headers.insert(
        http::header::CACHE_CONTROL,
        http::HeaderValue::from_static("public, max-age=3600"),
    );
    response
}

/// The document with all paths.
fn root_paths(inner: &ServerState, headers: &http::HeaderMap, query: &Query) -> Response<Body> {
    let paths = listed_paths(inner);
    crate::response::encode::plain_json(headers, query, &serde_json::json!({"paths": paths}))
}

/// All paths in order.
fn listed_paths(inner: &ServerState) -> Vec<String> {
    let mut paths = inner.documents.of(&inner.objects.registry()).paths();
    paths.extend(inner.ready.paths());
    let others = [
        "/flagz",
        "/metrics",
        "/metrics/slis",
        "/openapi/v2",
        "/openapi/v3",
        "/openapi/v3/",
        "/statusz",
        "/version",
    ];
    paths.extend(others.map(str::to_owned));
    if inner.parts.token_issuer.as_ref().is_some_and(|issuer| issuer.discovery().is_some()) {
        paths.extend(["/.well-known/openid-configuration", "/openid/v1/jwks"].map(str::to_owned));
    }
    paths.compact_sort();
    paths
}

/// The content of `/statusz`.
fn status_page(inner: &ServerState) -> Statusz {
    let seconds = |time: std::time::Duration| i64::try_from(time.as_secs()).unwrap_or_default();
    Statusz {
        started: seconds(inner.metrics.started),
        now: seconds(base::clock::unix_time()),
        binary_version: format!("1.37.1+kubelite.{}", inner.config.product_version),
        // Upstream lists the paths that are registered before this one.
        paths: listed_paths(inner).into_iter().filter(|path| path != "/statusz").collect(),
    }
}

fn version(inner: &ServerState, headers: &http::HeaderMap, query: &Query) -> Response<Body> {
    let document = serde_json::json!({
        "major": "1", "minor": "37",
        "emulationMajor": "1", "emulationMinor": "37", "minCompatibilityMajor": "1", "minCompatibilityMinor": "36",
        "gitVersion": format!("v1.37.1+kubelite.{}", inner.config.product_version),
        "gitCommit": "", "gitTreeState": "clean", "buildDate": "", "goVersion": "", "compiler": "rustc",
        "platform": format!("linux/{}", if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }),
    });
    crate::response::encode::plain_json(headers, query, &document)
}
