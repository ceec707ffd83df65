//! The connection to one plugin: made early, so that it is known whether the plugin runs, and again
//! after each loss.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use base::{Backoff, Shutdown};
use futures::future::BoxFuture;
use http::uri::{PathAndQuery, Uri};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::UnixStream;
use tokio::sync::{Notify, watch};
use tonic::Code;
use tonic::body::Body;

use crate::csi::driver_client::RpcError;

/// Delays between attempts to connect (gRPC's `backoff.DefaultConfig`).
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(120);
/// A connection that was shorter counts as a failed attempt.
const USEFUL_MIN: Duration = Duration::from_secs(5);

/// Sends requests over an established connection.
type Sender = http2::SendRequest<Body>;

/// The state of a connection.
#[derive(Debug, Clone)]
enum Link {
    Connecting,
    Connected(Sender),
    /// The last attempt failed.
    Failed(RpcError),
    /// The plugin is gone.
    Closed,
}

/// A connection to a plugin; cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct PluginConnection {
    link: Arc<watch::Sender<Link>>,
    /// Ends the delay before the next attempt.
    retry: Arc<Notify>,
}

impl PluginConnection {
    /// Creates a connection that [`PluginConnection::run`] establishes.
    pub(super) fn new() -> Self {
        Self { link: Arc::new(watch::Sender::new(Link::Connecting)), retry: Arc::default() }
    }

    /// Whether requests can be sent now.
    pub(super) fn is_connected(&self) -> bool {
        matches!(&*self.link.borrow(), Link::Connected(_))
    }

    /// Waits until the connection is established.
    pub(super) async fn connected(&self) {
        // The sender is part of `self`, so that it lives as long as this waits.
        let _ = self.link.subscribe().wait_for(|link| matches!(link, Link::Connected(_))).await;
    }

    /// Returns how requests of a service are sent. Tries at once to connect if the last attempt
    /// failed.
    ///
    /// # Errors
    ///
    /// The plugin does not accept connections.
    pub(super) async fn service(&self, name: &'static str) -> Result<PluginService, RpcError> {
        let mut link = self.link.subscribe();
        if matches!(&*link.borrow_and_update(), Link::Failed(_)) {
            self.retry.notify_one();
            let _ = link.changed().await;
        }
        loop {
            match &*link.borrow_and_update() {
                Link::Connected(sender) => {
                    return Ok(PluginService { sender: sender.clone(), name });
                }
                Link::Failed(error) => return Err(error.clone()),
                Link::Closed => return Err(closing()),
                Link::Connecting => {}
            }
            let _ = link.changed().await;
        }
    }

    /// Keeps the connection to the plugin at `endpoint` until `end`; calls `on_change` after each
    /// change of [`PluginConnection::is_connected`].
    pub(super) async fn run(
        self,
        endpoint: PathBuf,
        on_change: impl Fn() + Send,
        end: Shutdown,
    ) -> Result<(), std::convert::Infallible> {
        let mut backoff = Backoff::new(RETRY_FIRST, RETRY_MAX);
        loop {
            let attempt = tokio::select! {
                () = end.requested() => break,
                attempt = connect(&endpoint) => attempt,
            };
            let begun = base::clock::now();
            let failed = match attempt {
                Ok((sender, connection)) => {
                    self.link.send_replace(Link::Connected(sender));
                    on_change();
                    tokio::select! {
                        () = end.requested() => break,
                        ended = connection => {
                            connection_error(ended.as_ref().err().map(|e| e as &dyn Error))
                        }
                    }
                }
                Err(error) => connection_error(Some(&*error)),
            };
            let was_useful = begun.elapsed() >= USEFUL_MIN;
            let lost = self.is_connected();
            self.link.send_replace(if was_useful {
                Link::Connecting
            } else {
                Link::Failed(failed)
            });
            if lost {
                on_change();
            }
            if was_useful {
                backoff.reset();
            } else if !backoff.wait_or(&end, self.retry.notified()).await {
                break;
            } else {
                self.link.send_replace(Link::Connecting);
            }
        }
        self.link.send_replace(Link::Closed);
        Ok(())
    }
}

/// The error of a call to a plugin that is gone, as in gRPC.
fn closing() -> RpcError {
    let message = "grpc: the client connection is closing".to_owned();
    RpcError { code: Code::Cancelled, message }
}

type Established = (Sender, http2::Connection<TokioIo<UnixStream>, Body, TokioExecutor>);

async fn connect(endpoint: &Path) -> Result<Established, Box<dyn Error + Send + Sync>> {
    let stream = UnixStream::connect(endpoint).await?;
    Ok(http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?)
}

fn connection_error(cause: Option<&(dyn Error + 'static)>) -> RpcError {
    let mut text = "the plugin closed the connection".to_owned();
    let mut cause = cause;
    while let Some(error) = cause {
        text = error.to_string();
        cause = error.source();
    }
    let message = format!("connection error: desc = \"transport: {text}\"");
    RpcError { code: Code::Unavailable, message }
}

/// Sends the requests of a generated client to the service `name`. The versions of a service have
/// the same messages, so that one client serves all of them.
#[derive(Debug, Clone)]
pub(super) struct PluginService {
    sender: Sender,
    name: &'static str,
}

impl tower::Service<http::Request<Body>> for PluginService {
    type Response = http::Response<Incoming>;
    type Error = Box<dyn Error + Send + Sync>;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.sender.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        let method = request.uri().path().rsplit('/').next().unwrap_or_default();
        let path = PathAndQuery::try_from(format!("/{}/{method}", self.name));
        // The name of the host is required but has no meaning.
        let uri = path.map_err(http::Error::from).and_then(|path| {
            Uri::builder().scheme("http").authority("localhost").path_and_query(path).build()
        });
        match uri {
            Ok(uri) => *request.uri_mut() = uri,
            Err(error) => return Box::pin(std::future::ready(Err(error.into()))),
        }
        let response = self.sender.send_request(request);
        Box::pin(async move { Ok(response.await?) })
    }
}
