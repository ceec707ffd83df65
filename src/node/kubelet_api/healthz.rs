//! The kubelet's `/healthz` for the machine itself, on 127.0.0.1:10248 without TLS.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::routing::any;
use base::accept::{Accepted, accept, bind_when_free};
use base::{Kind, Shutdown, Tasks};
use http::header::{CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;

/// Checks come one at a time.
const CONNECTIONS_MAX: usize = 16;
/// Longest request head read, hyper's minimum.
const HEAD_MAX: usize = 8192;
const DEADLINE: Duration = Duration::from_secs(5);

fn router() -> Router {
    let headers =
        [(CONTENT_TYPE, "text/plain; charset=utf-8"), (X_CONTENT_TYPE_OPTIONS, "nosniff")];
    let ok = move || std::future::ready((headers, "ok"));
    Router::new().route("/healthz", any(ok.clone())).route("/healthz/ping", any(ok))
}

/// Serves until shutdown; binding is retried, as upstream does. A connection serves one request.
pub(crate) async fn serve(at: SocketAddr, tasks: Tasks) -> Result<(), Infallible> {
    let stop = tasks.shutdown().clone();
    let Some(listener) = bind(at, &stop).await else { return Ok(()) };
    let router = router();
    accept(&listener, "kubelet healthz", CONNECTIONS_MAX, &stop, |accepted| {
        let router = router.clone();
        tasks.spawn(Kind::Request, "kubelet-healthz", async move {
            let Accepted { stream, place: _place, .. } = accepted;
            let connection = http1::Builder::new()
                .keep_alive(false)
                .max_buf_size(HEAD_MAX)
                .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
            // A connection that ends early harms its client only.
            let _ = tokio::time::timeout(DEADLINE, connection).await;
            Ok::<(), Infallible>(())
        });
    })
    .await;
    Ok(())
}

async fn bind(at: SocketAddr, stop: &Shutdown) -> Option<TcpListener> {
    let pauses = (Duration::from_millis(500), Duration::from_secs(60));
    let report = |error| {
        tracing::warn!(%at, %error, "node: cannot serve /healthz; choose a free --kubelet-arg=healthz-port");
    };
    bind_when_free(|| TcpListener::bind(at), pauses, stop, report).await
}
