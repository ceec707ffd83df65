//! Authorization: whether the user is allowed to send the request.

use api::Status;
use http::{Response, StatusCode, Uri};

use super::exchange::{Exchange, Next};
use crate::audit;
use crate::authz::{Attributes, Decision};
use crate::metrics::requests as metrics;
use crate::request::body::Body;
use crate::request::user::User;
use crate::request::{Query, RequestInfo};
use crate::request_tracing;
use crate::response::status;
use crate::state::ServerState;

/// Rejects requests that the user is not allowed to send (upstream's `WithAuthorization`).
pub(crate) async fn authorize(exchange: Box<Exchange>, next: Next) -> Response<Body> {
    let begun = base::clock::now();
    let Exchange { server, user, info, query, request, .. } = &*exchange;
    let is_upgrade = stream::upgrade::is_upgrade(request.headers());
    let refusal = refusal(server, user, info, query, request.uri(), is_upgrade);
    let refusal = request_tracing::run("authorization", Vec::new, refusal).await;
    metrics::filtered("authorization", begun);
    match refusal {
        Some(refusal) => refusal,
        None => next.run(exchange).await,
    }
}

/// The response to a request that is not allowed.
async fn refusal(
    server: &ServerState,
    user: &User,
    info: &RequestInfo,
    query: &Query,
    uri: &Uri,
    is_upgrade: bool,
) -> Option<Response<Body>> {
    // Upstream uses selectors for these verbs only, and not for paths under `/watch/`.
    let selects = matches!(info.verb, "list" | "watch" | "deletecollection") && !info.watch_path;
    let selector = |name| query.get(name).filter(|_| selects).unwrap_or_default();
    let attributes = if info.is_resource {
        Attributes {
            verb: info.verb,
            group: &info.group,
            version: &info.version,
            resource: &info.resource,
            subresource: &info.subresource,
            namespace: &info.namespace,
            name: &info.name,
            path: "",
            field_selector: selector("fieldSelector"),
            label_selector: selector("labelSelector"),
        }
    } else {
        Attributes { verb: info.verb, path: &info.path, ..Attributes::default() }
    };
    let refusal = decide(server, user, info, &attributes, uri).await;
    if refusal.is_some() {
        return refusal;
    }
    // A WebSocket opens with GET, and a user that may only read must not get a shell: upstream
    // requires for both verbs since 1.35. `nodes/proxy` reaches the kubelet's exec and attach,
    // which upstream allows to users with the verb `get`.
    let opens_stream = match (info.resource.as_str(), info.subresource.as_str()) {
        ("pods", "exec" | "attach" | "portforward") => true,
        ("nodes", "proxy") => is_upgrade && info.group.is_empty(),
        _ => false,
    };
    if info.is_resource && opens_stream && info.verb == "get" {
        let info = RequestInfo { verb: "create", ..info.clone() };
        let attributes = Attributes { verb: "create", ..attributes };
        return decide(server, user, &info, &attributes, uri).await;
    }
    None
}

/// Asks the authorizers for a decision; returns the 403 response of a denied request.
async fn decide(
    inner: &ServerState,
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
    metrics::authorized(result, begun.elapsed());
    match decision {
        Decision::Allow(reason) => {
            audit::decided("allow", &reason);
            None
        }
        Decision::Deny(reason) | Decision::NoOpinion(reason) => {
            audit::decided("forbid", &reason);
            Some(status::response(&forbidden(user, info, &reason)))
        }
        // Upstream's `responsewriters.InternalError` is a text, not a Status.
        Decision::Failed(failure) => {
            audit::annotate("authorization.k8s.io/reason", || "internal error".to_owned());
            // The URI of HTTP/2 has scheme and host, which Go's `RequestURI` does not have.
            let target = uri.path_and_query().map_or("/", |target| target.as_str());
            let uri = api::field::go_quote(target);
            let text = format!("Internal Server Error: {uri}: {}\n", failure.error);
            Some(status::text(StatusCode::INTERNAL_SERVER_ERROR, status::without_html(&text)))
        }
    }
}

/// 403 with upstream's text.
fn forbidden(user: &User, info: &RequestInfo, reason: &str) -> Status {
    let user_name = api::field::go_quote(&user.name);
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
            "User {user_name} cannot {} resource \"{resource}\" in API group \"{}\" {place}",
            info.verb, info.group
        )
    } else {
        format!("User {user_name} cannot {} path {}", info.verb, api::field::go_quote(&info.path))
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
