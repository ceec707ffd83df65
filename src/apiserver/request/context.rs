//! The context of a request about a resource, which handlers share.

use std::sync::Arc;

use api::Status;
use http::{Extensions, HeaderMap, Method, Uri};
use parking_lot::Mutex;

use crate::priority_and_fairness::Watching;
use crate::registry::{Resource, Subresource};
use crate::request::body::Body;
use crate::request::negotiate;
use crate::request::negotiate::{Accepted, Offer};
use crate::request::size::RequestSize;
use crate::request::user::User;
use crate::request::{Query, RequestInfo};
use crate::state::ServerState;

/// One authenticated and authorized request about a resource.
pub(crate) struct Context {
    pub(crate) server: Arc<ServerState>,
    pub(crate) user: User,
    pub(crate) info: RequestInfo,
    pub(crate) query: Query,
    pub(crate) headers: HeaderMap,
    pub(crate) row: Arc<Resource>,
    pub(crate) subresource: Option<Subresource>,
    pub(crate) warnings: Mutex<Vec<String>>,
    /// The flow-control seat of a watch until it has begun.
    pub(crate) watching: Mutex<Option<Watching>>,
    pub(crate) size: RequestSize,
}

/// The parts of a request that handlers consume.
pub(crate) struct RequestParts {
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) extensions: Extensions,
    pub(crate) body: Body,
}

impl Context {
    /// The context of the same request for another row.
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
            size: RequestSize::default(),
        }
    }

    /// Namespace of the request; empty for cluster-scoped resources.
    pub(crate) fn namespace(&self) -> &str {
        if self.row.spec.namespaced { &self.info.namespace } else { "" }
    }

    /// Negotiates the response media type among those that every route supports.
    ///
    /// # Errors
    /// 406.
    pub(crate) fn accept(&self) -> Result<Accepted, Status> {
        negotiate::accept(&self.headers, &self.query, self.offer())
    }

    /// Checks the Accept header against the media types of the route, before any other check.
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

    /// Adds a warning for the client. Duplicates are sent once; warnings beyond what can be sent
    /// are dropped.
    pub(crate) fn warn(&self, text: impl Into<String>) {
        let text = text.into();
        let mut warnings = self.warnings.lock();
        if warnings.len() < WARNINGS_MAX && !warnings.contains(&text) {
            warnings.push(text);
        }
    }

    /// The warnings that the response contains.
    pub(crate) fn warnings_to_send(&self) -> Vec<String> {
        bounded(&self.warnings.lock())
    }
}

/// Maximum number of warnings of one request: more do not fit into [`WARNINGS_CHARS_MAX`].
const WARNINGS_MAX: usize = 512;
/// Characters of all warnings of a response; beyond them each warning is truncated (upstream's
/// `truncateAtTotalRunes`).
const WARNINGS_CHARS_MAX: usize = 4096;
/// Characters of a truncated warning (upstream's `truncateItemRunes`).
const WARNING_CHARS_MAX: usize = 256;

/// The warnings that fit into a response: all of them, or else the first ones, truncated.
fn bounded(warnings: &[String]) -> Vec<String> {
    let texts = || warnings.iter().filter(|text| !text.is_empty());
    if texts().map(|text| text.chars().count()).sum::<usize>() <= WARNINGS_CHARS_MAX {
        return texts().cloned().collect();
    }
    let (mut whole, mut cut, mut told) = (0, 0, Vec::new());
    for text in texts() {
        // When the warnings exceed the budget, those up to the first that does not fit are sent
        // truncated, later ones only while there is room.
        if whole > WARNINGS_CHARS_MAX && cut >= WARNINGS_CHARS_MAX {
            break;
        }
        let short: String = text.chars().take(WARNING_CHARS_MAX).collect();
        whole += text.chars().count();
        cut += short.chars().count();
        told.push(short);
    }
    told
}

#[cfg(test)]
mod tests {
    use super::bounded;

    /// Upstream's `filters/warning.go`: of 190 warnings of 116 characters kube-apiserver 1.37.1
    /// sends 36.
    #[test]
    fn warnings_are_truncated_to_fit_the_response_head() {
        let many: Vec<String> = (0..190).map(|i| format!("{i:0116}")).collect();
        assert_eq!(bounded(&many).len(), 36);
        assert_eq!(bounded(&many[..35]), many[..35]);
        let long = ["a".repeat(4000), "b".repeat(100), "c".repeat(300)];
        let told: Vec<usize> = bounded(&long).iter().map(String::len).collect();
        assert_eq!(told, [256, 100, 256]);
    }
}
