//! Impersonation: a request that acts as another user.

use api::Status;
use http::{HeaderMap, Response};

use super::exchange::{Exchange, Next};
use crate::audit;
use crate::metrics::requests as metrics;
use crate::request::body::Body;
use crate::request::user::User;
use crate::response::status;
use crate::state::ServerState;

/// Replaces the user of a request that has `Impersonate-*` headers (upstream's
/// `WithImpersonation`).
pub(crate) async fn impersonate(mut exchange: Box<Exchange>, next: Next) -> Response<Body> {
    let begun = base::clock::now();
    let headers = exchange.request.headers();
    if headers.keys().any(|name| name.as_str().starts_with("impersonate-")) {
        let Exchange { server, user, .. } = &*exchange;
        match impersonated(server, user.clone(), headers).await {
            Ok(user) => exchange.user = user,
            Err(refusal) => return status::response(&refusal),
        }
    }
    metrics::filtered("constrainedimpersonation", begun);
    next.run(exchange).await
}

async fn impersonated(
    server: &ServerState,
    user: User,
    headers: &HeaderMap,
) -> Result<User, Status> {
    let Some(impersonation) = &server.parts.impersonation else {
        let text = "impersonation is not available on this server";
        return Err(Status::forbidden("", "users", "", text));
    };
    let begun = base::clock::now();
    let user = impersonation.apply(user, headers).await;
    metrics::impersonated(user.is_ok(), begun.elapsed());
    let user = user?;
    audit::with(|trail| trail.impersonated(&user));
    Ok(user)
}
