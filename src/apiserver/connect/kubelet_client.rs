//! Requests of this server itself to kubelets, over one kept connection for each node: a request
//! each 15 s must not cost a TLS handshake.

use std::collections::{BTreeSet, HashMap};
use std::convert::Infallible;
use std::io;
use std::sync::Arc;

use api::Status;
use base::Kind;
use bytes::Bytes;
use http::header::HOST;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty, LengthLimitError, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::Value;

use super::target::Target;
use super::{Nodes, dial_error, target};

/// Why a kubelet did not answer a request.
#[derive(Debug, thiserror::Error)]
pub enum KubeletError {
    /// The node has no address.
    #[error("{}", .0.message)]
    Address(Box<Status>),
    /// The connection or its TLS handshake failed; the message is in Go's format.
    #[error("{0}")]
    Connect(String),
    /// The connection ended before the response.
    #[error("GET {path}: {source}")]
    Exchange {
        /// The path.
        path: String,
        source: hyper::Error,
    },
    /// The request cannot be built.
    #[error("GET {path}: {source}")]
    Request {
        /// The path.
        path: String,
        source: http::Error,
    },
    /// The response is an error.
    #[error("GET {path}: {status}: {text}")]
    Status {
        /// The path.
        path: String,
        /// The status code.
        status: StatusCode,
        /// The begin of the body.
        text: String,
    },
    /// The response is longer than the caller accepts, or ended early.
    #[error("GET {path}: the response is incomplete or longer than {bytes_max} bytes")]
    Body {
        /// The path.
        path: String,
        /// The limit.
        bytes_max: usize,
    },
}

type Sender = SendRequest<Empty<Bytes>>;

/// Sends requests to kubelets as the API server.
pub struct KubeletClient {
    nodes: Arc<Nodes>,
    /// Idle connections by node.
    idle: Mutex<HashMap<String, (String, Sender)>>,
}

impl KubeletClient {
    /// A client that connects as `nodes` does.
    pub fn new(nodes: Arc<Nodes>) -> Self {
        Self { nodes, idle: Mutex::default() }
    }

    /// Closes the connections to other nodes than these.
    pub fn retain(&self, nodes: &BTreeSet<String>) {
        self.idle.lock().retain(|name, _| nodes.contains(name));
    }

    /// Sends a GET for `path` to the kubelet of a Node and reads up to `bytes_max` bytes.
    ///
    /// # Errors
    /// No response, or one that is no success.
    pub async fn get(
        &self,
        name: &str,
        node: &Value,
        path: &str,
        bytes_max: usize,
    ) -> Result<Bytes, KubeletError> {
        let target =
            target::kubelet(node).map_err(|status| KubeletError::Address(Box::new(status)))?;
        let authority = target.authority();
        let kept = self.idle.lock().remove(name);
        // A connection of another address or that the kubelet has closed is dropped here.
        let kept = kept.filter(|(to, sender)| *to == authority && !sender.is_closed());
        let mut sender = match kept {
            Some((_, sender)) => sender,
            None => self.connect(&target).await?,
        };
        let exchange = |source| KubeletError::Exchange { path: path.to_owned(), source };
        let response = match sender.send_request(request(path, &authority)?).await {
            // The kubelet closed the kept connection meanwhile.
            Err(error) if error.is_canceled() || error.is_closed() => {
                sender = self.connect(&target).await?;
                sender.send_request(request(path, &authority)?).await.map_err(exchange)?
            }
            other => other.map_err(exchange)?,
        };
        let status = response.status();
        if status != StatusCode::OK {
            let text = super::read_error_body(response.into_body()).await;
            return Err(KubeletError::Status { path: path.to_owned(), status, text });
        }
        let body = Limited::new(response.into_body(), bytes_max).collect().await;
        let body = body.map_err(|error| {
            if !error.is::<LengthLimitError>() {
                tracing::debug!(%error, node = name, "kubelet client: the response ended early");
            }
            KubeletError::Body { path: path.to_owned(), bytes_max }
        })?;
        self.idle.lock().insert(name.to_owned(), (authority, sender));
        Ok(body.to_bytes())
    }

    async fn connect(&self, target: &Target) -> Result<Sender, KubeletError> {
        let failed = |error: io::Error| KubeletError::Connect(dial_error(target, &error));
        let io = self.nodes.open(target).await.map_err(failed)?;
        let handshake = http1::handshake(TokioIo::new(io)).await;
        let (sender, connection) = handshake.map_err(|e| failed(io::Error::other(e)))?;
        let tasks = &self.nodes.tasks;
        let shutdown = tasks.shutdown().clone();
        tasks.spawn(Kind::Request, "kubelet-client", async move {
            tokio::select! {
                ended = connection => {
                    if let Err(error) = ended {
                        tracing::debug!(%error, "kubelet client: the connection failed");
                    }
                }
                () = shutdown.requested() => {}
            }
            Ok::<(), Infallible>(())
        });
        Ok(sender)
    }
}

fn request(path: &str, authority: &str) -> Result<Request<Empty<Bytes>>, KubeletError> {
    let request = Request::get(path).header(HOST, authority).body(Empty::new());
    request.map_err(|source| KubeletError::Request { path: path.to_owned(), source })
}
