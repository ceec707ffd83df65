//! The routes of the kubelet API (upstream's `pkg/kubelet/server/server.go`) and the filter before
//! all of them, which authenticates and authorizes each request.

use std::sync::Arc;

use axum::Router;
use axum::body::Body as RequestBody;
use axum::extract::{Extension, Path, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response as AxumResponse};
use axum::routing::{MethodRouter, any, get, post};
use http::{Method, Request, Response, StatusCode};

use super::auth::CertificateUser;
use super::query::Query;
use super::response::{Body, response, text_response};
use super::state::KubeletApi;
use super::streaming::Command;
use super::{
    checkpoint, config, local_driver, local_volumes, logs, running_pods, stats, streaming,
    system_logs, zpages,
};

type Api = State<Arc<KubeletApi>>;

/// Content type of the Prometheus text format.
pub(super) const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The router of the kubelet API. Every request, also one without a route, is authorized first.
pub(super) fn router(api: Arc<KubeletApi>) -> Router {
    let exec = get(exec).post(self::exec);
    let attach = get(attach).post(self::attach);
    let port_forward = get(port_forward).post(self::port_forward);
    let routes: [(&str, MethodRouter<Arc<KubeletApi>>); 20] = [
        ("/healthz", get(healthz)),
        ("/healthz/{check}", get(healthz)),
        ("/pods", get(pods)),
        ("/runningpods", get(running_pods)),
        ("/checkpoint/{namespace}/{pod}/{container}", post(checkpoint)),
        ("/containerLogs/{namespace}/{pod}/{container}", get(container_logs)),
        ("/exec/{namespace}/{pod}/{container}", exec.clone()),
        ("/exec/{namespace}/{pod}/{uid}/{container}", exec),
        ("/attach/{namespace}/{pod}/{container}", attach.clone()),
        ("/attach/{namespace}/{pod}/{uid}/{container}", attach),
        ("/portForward/{namespace}/{pod}", port_forward.clone()),
        ("/portForward/{namespace}/{pod}/{uid}", port_forward),
        ("/localDriver/{kind}/{name}", any(local_driver_request)),
        ("/localVolumes/{name}", any(local_volume)),
        ("/stats/summary", get(stats_summary)),
        ("/metrics", get(metrics)),
        ("/metrics/cadvisor", get(cadvisor_metrics)),
        ("/metrics/probes", get(probe_metrics)),
        ("/metrics/resource", get(resource_metrics)),
        ("/configz", get(configz)),
    ];
    let mut router = Router::new();
    for (path, methods) in routes {
        // go-restful serves each path with a slash at its end, too.
        router = router.route(path, methods.clone()).route(&format!("{path}/"), methods);
    }
    router
        .route("/v2/", any(image))
        .route("/v2/{*path}", any(image))
        .route("/logs/", any(system_log))
        .route("/logs/{*path}", any(system_log))
        .route("/statusz", any(statusz))
        .route("/flagz", any(flagz))
        .fallback(async || text_response(StatusCode::NOT_FOUND, "404 page not found\n"))
        .method_not_allowed_fallback(async || {
            text_response(StatusCode::METHOD_NOT_ALLOWED, "405: Method Not Allowed")
        })
        .layer(middleware::from_fn_with_state(Arc::clone(&api), authorize))
        .with_state(api)
}

/// Lets a request pass whose user may use its path: the user of the client certificate, or else of
/// the bearer token.
async fn authorize(
    State(api): Api,
    Extension(CertificateUser(user)): Extension<CertificateUser>,
    request: Request<RequestBody>,
    next: Next,
) -> AxumResponse {
    let user = match api.auth.authenticate(user, request.headers()).await {
        Ok(user) => user,
        Err(refusal) => return refusal.into_response(),
    };
    let path = request.uri().path();
    if path.starts_with("/v2/") && user.is_node() {
        return next.run(request).await;
    }
    if let Err(refusal) = api.auth.authorize(&user, request.method(), path).await {
        return refusal.into_response();
    }
    next.run(request).await
}

/// Images of this node for other nodes; see [`crate::image_registry`].
async fn image(
    State(api): Api,
    method: Method,
    uri: http::Uri,
    headers: http::HeaderMap,
) -> Response<Body> {
    match &api.node.runtime.image_registry {
        Some(registry) => registry.handle_peer(&method, &uri, &headers).await,
        None => text_response(StatusCode::NOT_FOUND, "404 page not found\n"),
    }
}

async fn healthz() -> Response<Body> {
    text_response(StatusCode::OK, "ok")
}

async fn pods(State(api): Api) -> Response<Body> {
    let items: Vec<_> = api
        .table
        .all()
        .into_iter()
        .map(|(pod, handle)| {
            let mut object = pod.object.clone();
            object.status = Some(handle.reported.lock().status.clone());
            object
        })
        .collect();
    let list =
        serde_json::json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items});
    response(StatusCode::OK, "application/json", list.to_string())
}

async fn running_pods(State(api): Api) -> Response<Body> {
    running_pods::serve(&api).await
}

async fn checkpoint(
    State(api): Api,
    Path(path): Path<ContainerPath>,
    query: Query,
) -> Response<Body> {
    let container = (path.namespace.as_str(), path.pod.as_str(), path.container.as_str());
    checkpoint::serve(&api, container, &query).await
}

/// The parameters of a route in a container; the UID that some routes carry is not read.
#[derive(serde::Deserialize)]
struct ContainerPath {
    namespace: String,
    pod: String,
    container: String,
}

#[derive(serde::Deserialize)]
struct PodPath {
    namespace: String,
    pod: String,
}

async fn container_logs(
    State(api): Api,
    Path(path): Path<ContainerPath>,
    query: Query,
) -> Response<Body> {
    logs::serve(&api, &path.namespace, &path.pod, &path.container, &query).await
}

async fn exec(
    State(api): Api,
    Path(path): Path<ContainerPath>,
    query: Query,
    request: Request<RequestBody>,
) -> Response<Body> {
    in_container(&api, &path, &query, Command::Exec, request).await
}

async fn attach(
    State(api): Api,
    Path(path): Path<ContainerPath>,
    query: Query,
    request: Request<RequestBody>,
) -> Response<Body> {
    in_container(&api, &path, &query, Command::Attach, request).await
}

async fn in_container(
    api: &Arc<KubeletApi>,
    ContainerPath { namespace, pod, container }: &ContainerPath,
    query: &Query,
    command: Command,
    request: Request<RequestBody>,
) -> Response<Body> {
    streaming::in_container(api, namespace, pod, container, query, command, request.map(drop)).await
}

async fn port_forward(
    State(api): Api,
    Path(path): Path<PodPath>,
    query: Query,
    request: Request<RequestBody>,
) -> Response<Body> {
    streaming::port_forward(&api, &path.namespace, &path.pod, &query, request.map(drop)).await
}

async fn local_volume(
    State(api): Api,
    method: Method,
    Path(name): Path<String>,
    query: Query,
) -> Response<Body> {
    local_volumes::serve(&api, &method, &name, &query).await
}

async fn local_driver_request(
    State(api): Api,
    method: Method,
    Path((kind, name)): Path<(String, String)>,
    request: Request<RequestBody>,
) -> Response<Body> {
    match axum::body::to_bytes(request.into_body(), local_driver::BODY_MAX).await {
        Ok(body) => local_driver::serve(&api, &method, (&kind, &name), &body).await,
        Err(error) => text_response(StatusCode::PAYLOAD_TOO_LARGE, format!("{error}\n")),
    }
}

async fn system_log(State(api): Api, request: Request<RequestBody>) -> Response<Body> {
    let (head, _) = request.into_parts();
    system_logs::serve(&api, &head).await
}

async fn statusz(State(api): Api, request: Request<RequestBody>) -> Response<Body> {
    zpages::statusz(&api, &request.into_parts().0)
}

async fn flagz(State(api): Api, request: Request<RequestBody>) -> Response<Body> {
    zpages::flagz(&api, &request.into_parts().0)
}

async fn stats_summary(State(api): Api) -> Response<Body> {
    stats::summary(&api).await
}

async fn resource_metrics(State(api): Api) -> Response<Body> {
    stats::resource_metrics(&api).await
}

async fn cadvisor_metrics(State(api): Api) -> Response<Body> {
    stats::cadvisor_metrics(&api).await
}

async fn probe_metrics(State(api): Api) -> Response<Body> {
    response(StatusCode::OK, METRICS_TYPE, api.node.runtime.probes.render())
}

async fn metrics(State(api): Api) -> Response<Body> {
    response(StatusCode::OK, METRICS_TYPE, stats::agent_metrics(&api).await)
}

async fn configz(State(api): Api) -> Response<Body> {
    response(StatusCode::OK, "application/json", config::configz(&api))
}
