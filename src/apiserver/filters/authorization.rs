//! One question to the authorizers, and the answer to who is not allowed.

use api::Status;
use http::{Response, StatusCode, Uri};

use crate::audit;
use crate::authz::{Attributes, Decision};
use crate::request::RequestInfo;
use crate::request::body::Body;
use crate::request::user::User;
use crate::response::status;
use crate::state::Inner;

/// Asks the authorizers one question; the answer to who is not allowed.
pub(super) async fn decide(
    inner: &Inner,
    user: &User,
    info: &RequestInfo,
    attributes: &Attributes<'_>,
    uri: &Uri,
) -> Option<Response<Body>> {
    let begun = base::clock::now();
    let decision = inner.parts.authorizer.authorize(user, attributes).await;
    let result = match &decision {
        Decision::Allow(_) => "allowed",
        Decision::Deny(_) => "denied",
        Decision::NoOpinion(_) => "no-opinion",
        Decision::Failed(_) => "error",
    };
    crate::metrics::requests::authorized(result, begun.elapsed());
    match decision {
        Decision::Allow(reason) => {
            audit::decided("allow", &reason);
            None
        }
        Decision::Deny(reason) | Decision::NoOpinion(reason) => {
            audit::decided("forbid", &reason);
            Some(status::response(&forbidden(user, info, &reason)))
        }
        // Upstream's `responsewriters.InternalError`: a text, no Status.
        Decision::Failed(failure) => {
            audit::annotate("authorization.k8s.io/reason", || "internal error".to_owned());
            // HTTP/2 has host and scheme in it, which Go's `RequestURI` has not.
            let target = uri.path_and_query().map_or("/", |target| target.as_str());
            let uri = api::field::go_quote(target);
            let text = format!("Internal Server Error: {uri}: {}\n", failure.error);
            Some(status::text(StatusCode::INTERNAL_SERVER_ERROR, status::without_html(&text)))
        }
    }
}

/// 403 with upstream's sentence.
fn forbidden(user: &User, info: &RequestInfo, reason: &str) -> Status {
    let who = api::field::go_quote(&user.name);
    let mut why = if info.is_resource {
        let resource = if info.subresource.is_empty() {
            info.resource.clone()
        } else {
            format!("{}/{}", info.resource, info.subresource)
        };
        let place = if info.namespace.is_empty() {
            "at the cluster scope".into()
        } else {
            format!("in the namespace \"{}\"", info.namespace)
        };
        format!(
            "User {who} cannot {} resource \"{resource}\" in API group \"{}\" {place}",
            info.verb, info.group
        )
    } else {
        format!("User {who} cannot {} path {}", info.verb, api::field::go_quote(&info.path))
    };
    if !reason.is_empty() {
        why.push_str(": ");
        why.push_str(reason);
    }
    if info.is_resource {
        return Status::forbidden(&info.group, &info.resource, &info.name, &why);
    }
    let mut status = Status::failure(403, "Forbidden", format!("forbidden: {why}"));
    status.details = Some(api::status::Details::default());
    status
}
