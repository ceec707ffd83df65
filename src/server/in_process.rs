//! The transport of clients in the same process: no TLS, no JSON for watches, the same
//! authorization and admission.

use std::fmt;
use std::sync::Arc;

use api::WatchEvent;
use apiserver::listen::in_process::{Select, WatchStart};
use apiserver::request::body;
use apiserver::{ApiServer, User};
use async_trait::async_trait;
use base::{Kind, Tasks};
use bytes::Bytes;
use client::{Client, Error, Scope, Transport, WatchStream};
use futures::StreamExt;
use http::{Request, Response};
use http_body_util::BodyExt;
use tokio::sync::{Semaphore, mpsc};

/// Events waiting for one informer.
const WATCH_BUFFER_MAX: usize = 256;

/// Concurrent calls of one client. It bounds the memory of a controller that creates hundreds of
/// objects at once, as upstream's client rate limit does.
const CALLS_MAX: usize = 64;

/// Calls the server as one user.
#[derive(Clone)]
pub(crate) struct InProcess {
    server: ApiServer,
    user: User,
    tasks: Tasks,
    calls: Arc<Semaphore>,
}

impl fmt::Debug for InProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InProcess({})", self.user.name)
    }
}

impl InProcess {
    /// A transport that acts as `user`.
    pub(crate) fn new(server: ApiServer, user: User, tasks: Tasks) -> Self {
        Self { server, user, tasks, calls: Arc::new(Semaphore::new(CALLS_MAX)) }
    }
}

/// Creates clients that act as a user through the API server of this process.
pub(crate) struct ClientMaker {
    server: ApiServer,
    tasks: Tasks,
}

impl ClientMaker {
    /// Creates clients of `server`, whose watches end with `tasks`.
    pub(crate) fn new(server: &ApiServer, tasks: &Tasks) -> Self {
        Self { server: server.clone(), tasks: tasks.clone() }
    }

    /// A client that acts as `user` with the user agent `agent`.
    pub(crate) fn client(&self, user: User, agent: &str) -> Client {
        let transport = InProcess::new(self.server.clone(), user, self.tasks.clone());
        Client::new(Arc::new(transport), agent)
    }
}

/// The user of a service account in `kube-system`.
pub(crate) fn service_account(name: &str) -> User {
    User::authenticated(
        &format!("system:serviceaccount:kube-system:{name}"),
        &["system:serviceaccounts", "system:serviceaccounts:kube-system"],
    )
}

#[async_trait]
impl Transport for InProcess {
    async fn call(&self, request: Request<Bytes>) -> Result<Response<Bytes>, Error> {
        // The semaphore is never closed.
        let _permit = self.calls.acquire().await;
        let response = self.server.call(Some(self.user.clone()), request.map(body::full)).await;
        let (parts, body) = response.into_parts();
        // The answer comes from this process, so its size needs no limit.
        let body = body.collect().await.map_err(|e| Error::Transport(e.to_string()))?;
        Ok(Response::from_parts(parts, body.to_bytes()))
    }

    async fn watch(&self, scope: &Scope, resume_from: Option<i64>) -> Result<WatchStream, Error> {
        let select = Select {
            namespace: scope.namespace.clone(),
            labels: scope.label_selector.clone(),
            fields: scope.field_selector.clone(),
        };
        let start = resume_from.map_or(WatchStart::List, WatchStart::After);
        let stream = self.server.watch_objects(&self.user, &scope.gvr, &select, start).await?;
        let (sender, receiver) = mpsc::channel::<WatchEvent>(WATCH_BUFFER_MAX);
        let shutdown = self.tasks.shutdown().clone();
        self.tasks.spawn(Kind::Request, "informer-watch", async move {
            let mut stream = std::pin::pin!(stream);
            loop {
                let event = tokio::select! {
                    event = stream.next() => event,
                    () = sender.closed() => None,
                    () = shutdown.requested() => None,
                };
                let Some(event) = event else { return Ok::<(), std::convert::Infallible>(()) };
                if sender.send(event).await.is_err() {
                    return Ok(());
                }
            }
        });
        Ok(receiver)
    }
}
