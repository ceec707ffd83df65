//! The audit ID of a request, used in audit events, traces and responses.

use http::{HeaderName, HeaderValue, Request};

/// The header that carries the audit ID, in requests and responses.
pub(crate) const HEADER: HeaderName = HeaderName::from_static("audit-id");

/// The audit ID of a request: the client's header unchanged, or a new one. Every response carries
/// it, even when auditing is off (`WithAuditInit` of `k8s.io/apiserver/pkg/endpoints/filters`).
pub(crate) fn of<B>(request: &Request<B>) -> HeaderValue {
    if let Some(AssignedId(id)) = request.extensions().get() {
        return id.clone();
    }
    let client_id = request.headers().get(&HEADER).filter(|value| !value.is_empty()).cloned();
    client_id.unwrap_or_else(|| {
        HeaderValue::try_from(base::clock::random_uuid()).unwrap_or(HeaderValue::from_static("0"))
    })
}

/// The audit ID as a request extension, so that the headers of proxied requests stay unchanged.
#[derive(Debug, Clone)]
struct AssignedId(HeaderValue);

/// Determines the audit ID of the request and stores it in the request's extensions.
pub(crate) fn assign<B>(request: &mut Request<B>) -> HeaderValue {
    let id = of(request);
    request.extensions_mut().insert(AssignedId(id.clone()));
    id
}
