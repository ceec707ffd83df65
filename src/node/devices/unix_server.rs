//! Serves gRPC at a Unix socket.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use base::http2::AuthorityFilter;
use base::{Backoff, Kind, Tasks};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tonic::service::Routes;

/// Requests of one connection that are served at a time.
const STREAMS_MAX: u32 = 64;

/// Accepts connections until shutdown and serves at most `room` at a time; more wait in the
/// kernel's queue. `what` names the listener in the log.
///
/// # Errors
///
/// Never; the type is required for tasks.
pub(super) async fn serve(
    listener: UnixListener,
    routes: Routes,
    what: &'static str,
    room: usize,
    tasks: Tasks,
) -> Result<(), Infallible> {
    let routes = routes.prepare();
    let places = Arc::new(Semaphore::new(room));
    let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_secs(1));
    let shutdown = tasks.shutdown().clone();
    loop {
        let next = async {
            let place = Arc::clone(&places).acquire_owned().await;
            (listener.accept().await, place)
        };
        let (accepted, place) = tokio::select! {
            () = shutdown.requested() => return Ok(()),
            next = next => next,
        };
        let Ok(place) = place else { return Ok(()) };
        match accepted {
            Ok((stream, _)) => {
                backoff.reset();
                let (routes, stop) = (routes.clone(), shutdown.clone());
                tasks.spawn(Kind::Request, "kubelet-grpc", async move {
                    let _place = place;
                    tokio::select! {
                        () = stop.requested() => {}
                        () = serve_connection(stream, routes, what) => {}
                    }
                    Ok::<(), Infallible>(())
                });
            }
            Err(error) => {
                // Out of descriptors or memory: the listener itself works.
                tracing::warn!(listener = what, %error, "a connection was not accepted");
                if !backoff.wait(&shutdown).await {
                    return Ok(());
                }
            }
        }
    }
}

async fn serve_connection(stream: UnixStream, routes: Routes, what: &'static str) {
    let mut builder = auto::Builder::new(TokioExecutor::new()).http2_only();
    builder.http2().timer(TokioTimer::new()).max_concurrent_streams(STREAMS_MAX);
    // Clients in Go send the path of the socket as `:authority`.
    let io = TokioIo::new(AuthorityFilter::new(stream));
    if let Err(error) = builder.serve_connection(io, TowerToHyperService::new(routes)).await {
        tracing::debug!(listener = what, %error, "a connection ended");
    }
}
