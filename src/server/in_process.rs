//! The transport of clients in the same process: no TLS, no JSON for watches, the same authorization and admission.

use std::fmt;
use std::sync::Arc;

use api::WatchEvent;
use apiserver::listen::in_process::{Select, WatchStart};
use apiserver::request::body;
use apiserver::{ApiServer, User};
use async_trait::async_trait;
use base::{Kind, Tasks};
use bytes::Bytes;
use client::{Error, Scope, Transport, WatchStream};
use futures::StreamExt;
use http::{Request, Response};
use http_body_util::BodyExt;
use tokio::sync::{Semaphore, mpsc};

/// Events waiting for one informer.
const WATCH_BUFFER_MAX: usize = 256;

/// Calls under way of one client: a controller that makes hundreds of objects at once needs what each request needs for these
/// alone. The others wait here, where they are small, as upstream's wait for their client's rate.
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
    /// Acts as `user`.
    pub(crate) fn new(server: ApiServer, user: User, tasks: Tasks) -> Self {
        Self { server, user, tasks, calls: Arc::new(Semaphore::new(CALLS_MAX)) }
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
        // Never closed.
        let _place = self.calls.acquire().await;
        let response = self.server.call(Some(self.user.clone()), request.map(body::full)).await;
        let (parts, body) = response.into_parts();
        // The server's own answer: as large as what it holds, no larger.
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
