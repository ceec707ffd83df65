//! A transport that reduces the watched objects of one resource to what its consumer needs, so that
//! caches use less memory.

use std::fmt;
use std::sync::Arc;

use api::{Gvr, Object, WatchEvent};
use async_trait::async_trait;
use base::{EncryptedDir, Kind, Tasks};
use bytes::Bytes;
use http::{Request, Response};
use tokio::sync::mpsc;

use crate::Error;
use crate::transport::{Scope, Transport, WatchStream};

/// Maximum number of queued events of a watch; while the queue is full, no event is read from the
/// inner transport.
const RELAY_MAX: usize = 64;

/// Reduces an object; `None` leaves it unchanged.
pub type Trim = fn(&Object) -> Option<Object>;

/// A transport that reduces the watched objects of one resource; reads are not affected.
pub struct Transform<T> {
    inner: T,
    gvr: Gvr,
    trim: Trim,
    tasks: Tasks,
}

impl<T: fmt::Debug> fmt::Debug for Transform<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Transform({} of {:?})", self.gvr, self.inner)
    }
}

impl<T: Transport> Transform<T> {
    /// Reduces watched objects of `gvr`; the tasks that forward the events run in `tasks`.
    pub fn new(inner: T, gvr: Gvr, trim: Trim, tasks: &Tasks) -> Self {
        Self { inner, gvr, trim, tasks: tasks.clone() }
    }
}

fn trimmed(event: WatchEvent, trim: Trim) -> WatchEvent {
    let reduced = |object: Arc<Object>| trim(&object).map_or(object, Arc::new);
    match event {
        WatchEvent::Added(object) => WatchEvent::Added(reduced(object)),
        WatchEvent::Modified(object) => WatchEvent::Modified(reduced(object)),
        WatchEvent::Deleted(object) => WatchEvent::Deleted(reduced(object)),
        other => other,
    }
}

#[async_trait]
impl<T: Transport> Transport for Transform<T> {
    async fn call(&self, request: Request<Bytes>) -> Result<Response<Bytes>, Error> {
        self.inner.call(request).await
    }

    async fn watch(&self, scope: &Scope, resume_from: Option<i64>) -> Result<WatchStream, Error> {
        let mut source = self.inner.watch(scope, resume_from).await?;
        if scope.gvr != self.gvr {
            return Ok(source);
        }
        let (sender, receiver) = mpsc::channel(RELAY_MAX);
        let (trim, shutdown) = (self.trim, self.tasks.shutdown().clone());
        self.tasks.spawn(Kind::Request, "trim-watch", async move {
            loop {
                let event = tokio::select! {
                    event = source.recv() => event,
                    () = sender.closed() => break,
                    () = shutdown.requested() => break,
                };
                let Some(event) = event else { break };
                if sender.send(trimmed(event, trim)).await.is_err() {
                    break;
                }
            }
            Ok::<(), std::convert::Infallible>(())
        });
        Ok(receiver)
    }

    async fn back(&self) {
        self.inner.back().await;
    }

    fn is_away(&self) -> bool {
        self.inner.is_away()
    }

    fn forget(&self, scope: &Scope) {
        self.inner.forget(scope);
    }

    fn kept(&self) -> Option<Arc<EncryptedDir>> {
        self.inner.kept()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A transport whose watch delivers an object and a bookmark, then ends.
    #[derive(Debug)]
    struct TwoEvents;

    #[async_trait]
    impl Transport for TwoEvents {
        async fn call(&self, _: Request<Bytes>) -> Result<Response<Bytes>, Error> {
            Err(Error::Transport("unexpected call".into()))
        }

        async fn watch(&self, _: &Scope, _: Option<i64>) -> Result<WatchStream, Error> {
            let (sender, receiver) = mpsc::channel(2);
            let value = json!({"apiVersion": "v1", "kind": "K", "metadata": {"name": "n"}, "spec": {"long": "text"}});
            let object = Arc::new(Object::from_value(value).unwrap());
            sender.send(WatchEvent::Added(object)).await.unwrap();
            sender.send(WatchEvent::Bookmark { revision: 9, initial: true }).await.unwrap();
            Ok(receiver)
        }
    }

    fn name_only(object: &Object) -> Option<Object> {
        Object::from_value(json!({"kind": "K", "metadata": {"name": &*object.key.name}})).ok()
    }

    #[tokio::test]
    async fn only_the_named_resource_is_reduced() {
        let tasks = Tasks::new(base::Shutdown::new());
        let transport = Transform::new(TwoEvents, Gvr::new("", "v1", "pods"), name_only, &tasks);
        for (resource, long) in [("pods", false), ("services", true)] {
            let scope = Scope::all(Gvr::new("", "v1", resource));
            let mut stream = transport.watch(&scope, None).await.unwrap();
            let Some(WatchEvent::Added(object)) = stream.recv().await else { panic!("no object") };
            let text = String::from_utf8(object.raw().to_vec()).unwrap();
            assert_eq!(text.contains("long"), long, "{resource}: {text}");
            let end = stream.recv().await;
            assert!(matches!(end, Some(WatchEvent::Bookmark { revision: 9, initial: true })));
            assert!(stream.recv().await.is_none());
        }
    }
}
