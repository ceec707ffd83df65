//! The seam between clients and the server: in process, or HTTPS.

use std::fmt;
use std::sync::Arc;

use api::{Gvr, WatchEvent};
use async_trait::async_trait;
use bytes::Bytes;

use crate::Error;

/// What a watch looks at.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Scope {
    /// Resource.
    pub gvr: Gvr,
    /// Namespace; empty is all of them, or a cluster-scoped resource.
    pub namespace: String,
    /// Label selector in its string form; empty is everything.
    pub label_selector: String,
    /// Field selector in its string form; empty is everything.
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

/// Events in order; a closed channel means the watch ended and is to be started again.
pub type WatchStream = tokio::sync::mpsc::Receiver<WatchEvent>;

/// One way to reach the API server, bound to one identity.
#[async_trait]
pub trait Transport: Send + Sync + fmt::Debug {
    /// One request and its whole answer (bounded by the implementation, 64 MiB at most). The URI
    /// holds path and query only.
    ///
    /// # Errors
    /// [`Error::Transport`] when no answer came; an answer of any status code is no error here.
    async fn call(&self, request: http::Request<Bytes>) -> Result<http::Response<Bytes>, Error>;

    /// Starts a watch. Without `resume_from` it is a streaming list: `Added` for every object, a
    /// bookmark with `initial`, then changes. With it: changes after that revision. In process the
    /// objects are the cache's own.
    ///
    /// # Errors
    /// The server's refusal (410 when the revision is compacted) or the transport's failure.
    async fn watch(&self, scope: &Scope, resume_from: Option<i64>) -> Result<WatchStream, Error>;

    /// Resolves when the server is reached again after it was away: who waits before a retry need
    /// not wait longer. A transport that does not know never resolves.
    async fn back(&self) {
        std::future::pending().await
    }

    /// Whether the last try to reach the server failed: who has something to go on with need not
    /// try, and what is known may be old.
    fn is_away(&self) -> bool {
        false
    }

    /// Nobody watches this scope any more: what is remembered of it may go.
    fn forget(&self, _scope: &Scope) {}

    /// Where users of this transport keep what they need while the server is away; `None` where it
    /// never is.
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
