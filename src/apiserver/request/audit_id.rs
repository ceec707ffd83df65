//! The ID of a request, by which audit events, traces and responses name it.

use http::{HeaderName, HeaderValue, Request};

/// The header with the ID of a request, in requests and responses.
pub(crate) const HEADER: HeaderName = HeaderName::from_static("audit-id");

/// The id of a request: the client's own where it brings one, as it is, else a new one. Every
/// answer has it, also where nothing is recorded (`WithAuditInit` of
/// `k8s.io/apiserver/pkg/endpoints/filters`).
pub(crate) fn of<B>(request: &Request<B>) -> HeaderValue {
    if let Some(AssignedId(id)) = request.extensions().get() {
        return id.clone();
    }
    let given = request.headers().get(&HEADER).filter(|value| !value.is_empty()).cloned();
    given.unwrap_or_else(|| {
        HeaderValue::try_from(base::clock::random_uuid()).unwrap_or(HeaderValue::from_static("0"))
    })
}

/// The ID that the server gave a request. An extension, so that requests that are proxied keep
/// their headers.
#[derive(Debug, Clone)]
struct AssignedId(HeaderValue);

/// Gives the request its ID: that of the client where it sent one.
pub(crate) fn assign<B>(request: &mut Request<B>) -> HeaderValue {
    let id = of(request);
    request.extensions_mut().insert(AssignedId(id.clone()));
    id
}
