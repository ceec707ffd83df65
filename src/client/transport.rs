//! The interface between clients and the server: in process, or over HTTPS.

use std::fmt;
use std::sync::Arc;

use api::{Gvr, WatchEvent};
use async_trait::async_trait;
use bytes::Bytes;

use crate::Error;

/// The scope of a watch.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Scope {
    /// Resource.
    pub gvr: Gvr,
    /// Namespace; empty for all namespaces or a cluster-scoped resource.
    pub namespace: String,
    /// Label selector as text; empty matches everything.
    pub label_selector: String,
    /// Field selector as text; empty matches everything.
    pub field_selector: String,
}

impl Scope {
    /// All objects of a resource.
    pub fn all(gvr: Gvr) -> Self {
        Self {
            gvr,
            namespace: String::new(),
            label_selector: String::new(),
            field_selector: String::new(),
        }
    }

    /// Only objects that match this field selector.
    #[must_use]
    pub fn fields(mut self, selector: impl Into<String>) -> Self {
        self.field_selector = selector.into();
        self
    }
}

/// Events in order. A closed channel means that the watch ended and must be restarted.
pub type WatchStream = tokio::sync::mpsc::Receiver<WatchEvent>;

/// A connection to the API server under one identity.
#[async_trait]
pub trait Transport: Send + Sync + fmt::Debug {
    /// Sends a request and receives the whole response (bounded by the implementation, at most 64
    /// MiB). The URI contains path and query only.
    ///
    /// # Errors
    /// [`Error::Transport`] without a response; a response with any status code is not an error.
    async fn call(&self, request: http::Request<Bytes>) -> Result<http::Response<Bytes>, Error>;

    /// Starts a watch. Without `resume_from` it is a streaming list: `Added` for every object, a
    /// bookmark with `initial`, then changes. With it: changes after that revision. In process, the
    /// objects are shared with the watch cache.
    ///
    /// # Errors
    /// The server's refusal (410 if the revision is compacted) or a transport error.
    async fn watch(&self, scope: &Scope, resume_from: Option<i64>) -> Result<WatchStream, Error>;

    /// Resolves when the server is reached again after a failure, which ends a wait before a retry
    /// early. A transport without this knowledge never resolves.
    async fn back(&self) {
        std::future::pending().await
    }

    /// Whether the last attempt to reach the server failed: callers with cached data need not
    /// retry, and the data may be outdated.
    fn is_away(&self) -> bool {
        false
    }

    /// Reports that a scope is no longer watched, so that its cache can be removed.
    fn forget(&self, _scope: &Scope) {}

    /// Folder for data that users of this transport need while the server is unreachable; `None` if
    /// that never happens.
    fn kept(&self) -> Option<Arc<base::EncryptedDir>> {
        None
    }
}

#[async_trait]
impl<T: Transport + ?Sized> Transport for Arc<T> {
    async fn call(&self, request: http::Request<Bytes>) -> Result<http::Response<Bytes>, Error> {
        (**self).call(request).await
    }

    async fn watch(&self, scope: &Scope, resume_from: Option<i64>) -> Result<WatchStream, Error> {
        (**self).watch(scope, resume_from).await
    }

    async fn back(&self) {
        (**self).back().await;
    }

    fn is_away(&self) -> bool {
        (**self).is_away()
    }

    fn forget(&self, scope: &Scope) {
        (**self).forget(scope);
    }

    fn kept(&self) -> Option<Arc<base::EncryptedDir>> {
        (**self).kept()
    }
}
