//! What a handler knows of its request.

use std::sync::Arc;

use api::Status;
use http::HeaderMap;
use parking_lot::Mutex;

use crate::flow::Watching;
use crate::negotiate::{self, Accepted, Offer};
use crate::registry::{Resource, Subresource};
use crate::request::{Query, RequestInfo};
use crate::server::Inner;
use crate::user::User;

/// One authenticated and authorized request about a resource.
pub(crate) struct Context {
    pub(crate) server: Arc<Inner>,
    pub(crate) user: User,
    pub(crate) info: RequestInfo,
    pub(crate) query: Query,
    pub(crate) headers: HeaderMap,
    pub(crate) row: Arc<Resource>,
    pub(crate) subresource: Option<Subresource>,
    pub(crate) warnings: Mutex<Vec<String>>,
    /// What a watch holds of flow control.
    pub(crate) watching: Mutex<Option<Watching>>,
}

impl Context {
    /// The same request about another row.
    pub(crate) fn with_row(&self, row: Arc<Resource>) -> Self {
        Self {
            server: Arc::clone(&self.server),
            user: self.user.clone(),
            info: self.info.clone(),
            query: self.query.clone(),
            headers: self.headers.clone(),
            row,
            subresource: None,
            warnings: Mutex::new(Vec::new()),
            watching: Mutex::new(None),
        }
    }

    /// Namespace of the request; for namespaces themselves that is none.
    pub(crate) fn namespace(&self) -> &str {
        if self.row.spec.namespaced { &self.info.namespace } else { "" }
    }

    /// The Accept header against what every route offers.
    ///
    /// # Errors
    /// 406.
    pub(crate) fn accept(&self) -> Result<Accepted, Status> {
        negotiate::accept(&self.headers, &self.query, self.offer())
    }

    /// The Accept header against the media types of the route alone, which is looked at before anything else of the request.
    ///
    /// # Errors
    /// 406 with the router's text.
    pub(crate) fn accept_route(&self) -> Result<(), Status> {
        negotiate::accept_route(&self.headers, self.offer())
    }

    fn offer(&self) -> Offer {
        let streams = matches!(self.info.verb, "list" | "watch" | "deletecollection");
        Offer { transforms: true, streams }
    }

    /// `pods "x" not found`.
    pub(crate) fn not_found(&self, name: &str) -> Status {
        Status::not_found(&self.row.spec.gvr.group, &self.row.spec.gvr.resource, name)
    }

    /// A warning for the client; repeated ones are sent once.
    pub(crate) fn warn(&self, text: impl Into<String>) {
        let text = text.into();
        let mut warnings = self.warnings.lock();
        if !warnings.contains(&text) {
            warnings.push(text);
        }
    }
}
