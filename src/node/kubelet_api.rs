//! The kubelet API on 10250: logs, exec, attach, port-forward, pods, stats; authenticated and
//! authorized by the API server.

mod auth;
mod config;
mod local_volumes;
mod logs;
mod query;
mod response;
mod state;
mod stats;
mod streaming;
mod system_logs;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use base::accept::{Accepted, accept};
use base::{Kind, Shutdown};
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use stream::opening::Opening;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use self::query::query;
use self::response::{Body, response, text_response};
use self::state::KubeletApi;
use self::stats::cache::StatsCache;
use crate::config::KubeletApiConfig;
use crate::context::Node;
use crate::pods::table::PodTable;

/// Maximum number of simultaneous connections; further ones wait.
const CONNECTIONS_MAX: usize = 256;
/// Time limit for the TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for the request headers: any client can connect, and connections are limited.
const HEADERS_TIMEOUT: Duration = Duration::from_secs(32);

/// Registers the bound listener with the async runtime.
///
/// # Errors
///
/// The async runtime rejects the listener.
pub(crate) fn listener(config: &KubeletApiConfig) -> std::io::Result<TcpListener> {
    TcpListener::from_std(config.listener.try_clone()?)
}

/// Serves until shutdown.
pub(crate) async fn run(
    node: Arc<Node>,
    table: PodTable,
    config: KubeletApiConfig,
    listener: TcpListener,
    shutdown: Shutdown,
) -> Result<(), Infallible> {
    let auth = auth::ApiAuth::new(node.api.client.clone(), &node.identity.config.node_name);
    let api = Arc::new(KubeletApi { node, table, auth, stats: StatsCache::default() });
    let acceptor = TlsAcceptor::from(config.tls);
    accept(&listener, "kubelet API", CONNECTIONS_MAX, &shutdown, |accepted| {
        let (api, acceptor, stop) = (Arc::clone(&api), acceptor.clone(), shutdown.clone());
        let tasks = api.node.tasks.clone();
        tasks.spawn(Kind::Request, "kubelet-api", async move {
            let Accepted { stream, place: _place, .. } = accepted;
            tokio::select! {
                () = stop.requested() => {}
                () = serve(api, acceptor, stream) => {}
            }
            Ok::<(), Infallible>(())
        });
    })
    .await;
    Ok(())
}

async fn serve(api: Arc<KubeletApi>, acceptor: TlsAcceptor, stream: TcpStream) {
    let handshake = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await;
    let Ok(Ok(stream)) = handshake else { return };
    let certificate =
        stream.get_ref().1.peer_certificates().and_then(|c| c.first()).map(|c| c.to_vec());
    let user = certificate.as_deref().and_then(auth::from_certificate);
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let (api, user) = (Arc::clone(&api), user.clone());
        async move { Ok::<_, Infallible>(handle(&api, user, request).await) }
    });
    let stream = Opening::new(stream, HEADERS_TIMEOUT);
    let mut builder =
        hyper_util::server::conn::auto::Builder::new(TokioExecutor::new()).http1_only();
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADERS_TIMEOUT);
    if let Err(error) = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).await
    {
        tracing::debug!(%error, "kubelet API connection failed");
    }
}

async fn handle(
    api: &Arc<KubeletApi>,
    user: Option<auth::User>,
    request: Request<Incoming>,
) -> Response<Body> {
    let token = request.headers().get("authorization").and_then(|v| v.to_str().ok());
    let user = match (user, token) {
        (Some(user), _) => user,
        (None, Some(token)) => match api.auth.authenticate_token(token).await {
            Ok(user) => user,
            Err(response) => return *response,
        },
        (None, None) => return text_response(StatusCode::UNAUTHORIZED, "Unauthorized"),
    };
    if let Err(response) = api.auth.authorize(&user, request.method(), request.uri().path()).await {
        return *response;
    }
    route(api, request).await
}

async fn route(api: &Arc<KubeletApi>, request: Request<Incoming>) -> Response<Body> {
    let path = request.uri().path().to_owned();
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let query = query(request.uri().query().unwrap_or_default());
    let get = request.method() == Method::GET;
    match parts.as_slice() {
        ["healthz"] | ["healthz", _] if get => text_response(StatusCode::OK, "ok"),
        ["pods" | "runningpods"] if get => pods(api),
        ["containerLogs", namespace, pod, container] if get => {
            logs::serve(api, namespace, pod, container, &query).await
        }
        ["exec" | "attach", namespace, pod, container]
        | ["exec" | "attach", namespace, pod, _, container] => {
            let attach = parts.first() == Some(&"attach");
            streaming::in_container(api, namespace, pod, container, &query, attach, request).await
        }
        ["portForward", namespace, pod] | ["portForward", namespace, pod, _] => {
            streaming::port_forward(api, namespace, pod, &query, request).await
        }
        ["localVolumes", name] => local_volumes::serve(api, request.method(), name, &query).await,
        ["logs", ..] => system_logs::serve(api, &request).await,
        ["stats", "summary"] if get => stats::summary(api).await,
        ["metrics", "resource"] if get => stats::resource_metrics(api).await,
        ["configz"] if get => response(StatusCode::OK, "application/json", config::configz(api)),
        ["metrics"] if get => response(
            StatusCode::OK,
            "text/plain; version=0.0.4; charset=utf-8",
            stats::agent_metrics(api),
        ),
        _ => text_response(StatusCode::NOT_FOUND, "404 page not found\n"),
    }
}

fn pods(api: &KubeletApi) -> Response<Body> {
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
