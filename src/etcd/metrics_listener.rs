//! The listener of etcd's metrics (`--listen-metrics-urls`): metrics and health over HTTP without
//! TLS, and nothing that reads or changes keys.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use base::accept::{Accepted, accept};
use base::tasks::Kind;
use futures::future::BoxFuture;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;

use crate::service::Etcd;

/// Maximum number of connections; more wait in the kernel's queue.
const CONNECTIONS: usize = 16;
/// Time limit for the head of a request, and so for an idle connection.
const HEAD: Duration = Duration::from_secs(120);

/// Serves `/metrics`, `/health`, `/version`, `/livez` and `/readyz` until the tasks of `etcd` shut
/// down.
///
/// # Errors
/// Never; the type is required for tasks.
pub fn serve_metrics(
    etcd: Etcd,
    listener: TcpListener,
) -> BoxFuture<'static, Result<(), Infallible>> {
    Box::pin(async move {
        let tasks = etcd.tasks.clone();
        let (etcd, shutdown) = (Arc::new(etcd), tasks.shutdown());
        accept(&listener, "etcd metrics", CONNECTIONS, shutdown, |accepted| {
            let (etcd, shutdown) = (Arc::clone(&etcd), shutdown.clone());
            tasks.spawn(Kind::Request, "etcd metrics connection", async move {
                let Accepted { stream, place: _place, .. } = accepted;
                let service = service_fn(move |request: hyper::Request<_>| {
                    let etcd = Arc::clone(&etcd);
                    async move {
                        Ok::<_, Infallible>(etcd.http(request.method(), request.uri()).await)
                    }
                });
                let mut builder = http1::Builder::new();
                builder.timer(TokioTimer::new()).header_read_timeout(HEAD);
                tokio::select! {
                    ended = builder.serve_connection(TokioIo::new(stream), service) => {
                        if let Err(error) = ended {
                            tracing::debug!(%error, "a connection of etcd's metrics ended");
                        }
                    }
                    () = shutdown.requested() => {}
                }
                Ok::<(), Infallible>(())
            });
        })
        .await;
        Ok(())
    })
}
