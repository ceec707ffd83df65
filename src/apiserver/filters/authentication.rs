//! Authentication: the user of a request.

use api::Status;
use http::{HeaderMap, Response};

use super::exchange::{Exchange, Next};
use crate::audit;
use crate::authn::unauthorized;
use crate::authn::x509::PeerIdentity;
use crate::metrics::requests as metrics;
use crate::request::body::Body;
use crate::request::user::User;
use crate::response::status;
use crate::state::ServerState;

/// Finds the user by the credentials of the request, or rejects it with 401 (upstream's
/// `WithAuthentication`).
pub(crate) async fn authenticate(mut exchange: Box<Exchange>, next: Next) -> Response<Body> {
    let begun = base::clock::now();
    if !exchange.is_in_process {
        let (server, headers) = (&exchange.server, exchange.request.headers());
        let peer = exchange.request.extensions().get::<PeerIdentity>();
        match user_of(server, headers, peer, &exchange.info.path).await {
            Ok(user) => exchange.user = user,
            Err(refusal) => {
                audit::with(|trail| trail.refused(&exchange.info));
                return status::response(&refusal);
            }
        }
    }
    metrics::filtered("authentication", begun);
    next.run(exchange).await
}

async fn user_of(
    server: &ServerState,
    headers: &HeaderMap,
    peer: Option<&PeerIdentity>,
    path: &str,
) -> Result<User, Status> {
    let peer = peer.map(|identity| identity.0.as_ref());
    let begun = base::clock::now();
    let found = server.parts.authenticator.authenticate(headers, peer, path).await;
    let name = found.as_ref().map(|user| user.as_ref().map(|user| user.name.as_str()));
    metrics::authenticated(name.map_err(|_| ()), begun.elapsed());
    found?.ok_or_else(unauthorized)
}
