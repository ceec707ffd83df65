//! The kubelet API on 10250: logs, exec, attach, port-forward, pods, stats; authenticated and
//! authorized by the API server.

mod auth;
mod checkpoint;
mod config;
pub(crate) mod healthz;
mod local_driver;
mod local_volumes;
mod logs;
mod query;
mod response;
mod router;
mod running_pods;
mod state;
mod stats;
mod streaming;
mod supervisor;
mod system_logs;
mod zpages;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use axum::{Extension, Router};
use base::accept::{Accepted, accept};
use base::{Kind, Shutdown};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use stream::opening::Opening;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use self::auth::CertificateUser;
use self::state::KubeletApi;
use self::stats::cache::StatsCache;
pub(crate) use self::stats::{NodeResources, measure_now};
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
    let local_paths = ArcSwapOption::empty();
    let (stats, network) = (StatsCache::default(), config.network);
    let api = KubeletApi { node, table, auth, stats, local_paths, network };
    let api = Arc::new(api);
    let tasks = api.node.tasks.clone();
    let acceptor = TlsAcceptor::from(config.tls);
    if let Some(supervisor) = config.supervisor {
        let router = supervisor::router(Arc::clone(&api), supervisor.families);
        let (acceptor, shutdown, task) = (acceptor.clone(), shutdown.clone(), tasks.clone());
        tasks.spawn(Kind::Critical, "supervisor metrics", async move {
            let listener = TcpListener::from_std(supervisor.listener.try_clone()?)?;
            serve_listener(&listener, "supervisor metrics", router, acceptor, &shutdown, &task)
                .await;
            Ok::<(), std::io::Error>(())
        });
    }
    let router = router::router(api);
    serve_listener(&listener, "kubelet API", router, acceptor, &shutdown, &tasks).await;
    Ok(())
}

/// Serves the connections of a listener until shutdown.
async fn serve_listener(
    listener: &TcpListener,
    name: &'static str,
    router: Router,
    acceptor: TlsAcceptor,
    shutdown: &Shutdown,
    tasks: &base::Tasks,
) {
    accept(listener, name, CONNECTIONS_MAX, shutdown, |accepted| {
        let (router, acceptor, stop) = (router.clone(), acceptor.clone(), shutdown.clone());
        tasks.spawn(Kind::Request, "kubelet-api", async move {
            let Accepted { stream, place: _place, .. } = accepted;
            tokio::select! {
                () = stop.requested() => {}
                () = serve(router, acceptor, stream) => {}
            }
            Ok::<(), Infallible>(())
        });
    })
    .await;
}

async fn serve(router: Router, acceptor: TlsAcceptor, stream: TcpStream) {
    let handshake = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await;
    let Ok(Ok(stream)) = handshake else { return };
    let certificate =
        stream.get_ref().1.peer_certificates().and_then(|c| c.first()).map(|c| c.to_vec());
    let user = certificate.as_deref().and_then(auth::from_certificate);
    let service = TowerToHyperService::new(router.layer(Extension(CertificateUser(user))));
    let stream = Opening::new(stream, HEADERS_TIMEOUT);
    let mut builder =
        hyper_util::server::conn::auto::Builder::new(TokioExecutor::new()).http1_only();
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADERS_TIMEOUT);
    if let Err(error) = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).await
    {
        tracing::debug!(%error, "kubelet API connection failed");
    }
}
