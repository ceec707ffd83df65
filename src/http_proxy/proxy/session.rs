//! Sessions of clients with endpoints.

use http::Response;
use http::header::SET_COOKIE;

use super::body::ResponseBody;
use crate::backend::Backend;
use crate::routes::Forward;
use crate::routes::affinity::EndpointId;

/// The session of a request whose rule has sessions; `None` begins one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Session(pub(super) Option<EndpointId>);

/// The endpoint that answered a request with a session.
#[derive(Debug, Clone, Copy)]
pub(super) struct ServedBy(pub(super) EndpointId);

/// Sets the cookie of a session that is new. A session whose endpoint still exists but was not
/// reached changes only if the rule says so.
pub(super) fn set_session(
    forward: &Forward,
    backend: &Backend,
    session: Option<Session>,
    is_secure: bool,
    response: &mut Response<ResponseBody>,
) {
    let served = response.extensions_mut().remove::<ServedBy>();
    let (Some(affinity), Some(ServedBy(id)), Some(Session(old))) =
        (&forward.affinity, served, session)
    else {
        return;
    };
    let exists = old.is_some_and(|old| backend.endpoint(old).is_some());
    if old == Some(id) || (exists && !affinity.change_on_failure) {
        return;
    }
    if let Some(cookie) = affinity.set_cookie(id, is_secure) {
        response.headers_mut().append(SET_COOKIE, cookie);
    }
}
