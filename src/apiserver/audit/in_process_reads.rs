//! Audits reads by components in this process, which are function calls: each is recorded as the
//! equivalent HTTP request.

use std::fmt::Write;
use std::sync::Arc;

use api::uri::escaped;
use api::{Gvr, Status};
use http::{Method, Request};

use super::{Audit, Ongoing, Trail};
use crate::registry::selection::Select;
use crate::request::user::User;
use crate::request::{self, Query};

/// The trail of a read; `None` if it is not recorded.
#[derive(Default)]
pub(crate) struct Read(Option<(Arc<Trail>, Ongoing)>);

impl Read {
    /// Starts a read; `is_watch` tells a watch from a list.
    ///
    /// # Errors
    /// 500 if the read must be recorded but cannot be.
    pub(crate) async fn begin(
        audit: &Arc<Audit>,
        user: &User,
        gvr: &Gvr,
        name: &str,
        select: &Select,
        is_watch: bool,
    ) -> Result<Self, Status> {
        let uri = uri(gvr, name, select, is_watch);
        let (path, query) = uri.split_once('?').unwrap_or((&uri, ""));
        let info = request::parse(&Method::GET, path, &Query::parse(query));
        let request = Request::get(&uri).body(());
        // A read without a valid URL has no equivalent HTTP request, so it is not recorded.
        let (Ok(info), Ok(request)) = (info, request) else { return Ok(Self::default()) };
        let trail = audit.trail(&request);
        let ongoing = Ongoing::new(&trail);
        if !trail.received(user, &info).await {
            return Err(Status::internal("failed to store audit event"));
        }
        Ok(Self(Some((trail, ongoing))))
    }

    /// The trail for [`super::scope`].
    pub(crate) fn trail(&self) -> Option<Arc<Trail>> {
        self.0.as_ref().map(|(trail, _)| Arc::clone(trail))
    }

    /// Records the outcome. A watch keeps the returned value until it ends.
    pub(crate) async fn answered<T>(self, outcome: &Result<T, Status>) -> Option<Ongoing> {
        let (trail, ongoing) = self.0?;
        if let Err(status) = outcome {
            trail.status(status);
        }
        trail.answered(outcome.as_ref().map_or_else(|status| status.code, |_| 200)).await;
        Some(ongoing)
    }
}

/// The URL of a read.
fn uri(gvr: &Gvr, name: &str, select: &Select, is_watch: bool) -> String {
    let mut uri = match &*gvr.group {
        "" => format!("/api/{}", gvr.version),
        group => format!("/apis/{group}/{}", gvr.version),
    };
    // Writing to memory cannot fail.
    if !select.namespace.is_empty() {
        let _ = write!(uri, "/namespaces/{}", escaped(&select.namespace));
    }
    let _ = write!(uri, "/{}", gvr.resource);
    if !name.is_empty() {
        let _ = write!(uri, "/{}", escaped(name));
    }
    let watch = if is_watch { "true" } else { "" };
    let mut mark = '?';
    for (key, value) in [
        ("fieldSelector", select.fields.as_str()),
        ("labelSelector", &select.labels),
        ("watch", watch),
    ] {
        if !value.is_empty() {
            let _ = write!(uri, "{mark}{key}={}", api::uri::escaped(value));
            mark = '&';
        }
    }
    uri
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_have_the_url_of_the_equivalent_request() {
        let none = Select::default();
        let pods = Gvr::new("", "v1", "pods");
        assert_eq!(uri(&pods, "", &none, true), "/api/v1/pods?watch=true");
        let select = Select {
            namespace: "n".into(),
            labels: "a in (b,c)".into(),
            fields: "spec.nodeName=x".into(),
        };
        assert_eq!(
            uri(&pods, "", &select, false),
            "/api/v1/namespaces/n/pods?fieldSelector=spec.nodeName%3Dx&labelSelector=a%20in%20%28b%2Cc%29"
        );
        assert_eq!(
            uri(&Gvr::new("apps", "v1", "deployments"), "d", &none, false),
            "/apis/apps/v1/deployments/d"
        );
    }
}
