//! Audit: the ID of a request, its event, and the policy's decision.

use std::sync::Arc;

use http::Response;

use super::exchange::{Exchange, Next};
use crate::audit;
use crate::metrics::requests as metrics;
use crate::request::audit_id;
use crate::request::body::{Body, keeping};
use crate::response::status::ResponseStatus;

/// Gives the request an ID unless the client sent one; the response names it (upstream's
/// `WithAuditInit`).
pub(crate) async fn assign_id(mut exchange: Box<Exchange>, next: Next) -> Response<Body> {
    let id = audit_id::assign(&mut exchange.request);
    let mut response = next.run(exchange).await;
    response.headers_mut().entry(audit_id::HEADER).or_insert(id);
    response
}

/// Collects the audit event of the request and emits its last stage. Does nothing when auditing is
/// off.
pub(crate) async fn record(mut exchange: Box<Exchange>, next: Next) -> Response<Body> {
    let Some(audit) = exchange.server.audit.get().map(Arc::clone) else {
        return next.run(exchange).await;
    };
    let trail = audit.trail(&exchange.request);
    let ongoing = audit::Ongoing::new(&trail);
    exchange.request.extensions_mut().insert(ongoing.clone());
    let mut response = audit::scope(Some(Arc::clone(&trail)), next.run(exchange)).await;
    if let Some(ResponseStatus(status)) = response.extensions_mut().remove() {
        trail.status(&status);
    }
    if trail.answered(response.status().as_u16()).await {
        return response.map(|body| keeping(body, ongoing));
    }
    response
}

/// Applies the audit policy, and rejects a request that must be recorded and cannot be (upstream's
/// `WithAudit`).
pub(crate) async fn apply_policy(exchange: Box<Exchange>, next: Next) -> Response<Body> {
    let begun = base::clock::now();
    if let Some(trail) = audit::current()
        && !trail.received(&exchange.user, &exchange.info).await
    {
        return audit::not_stored(&exchange.info);
    }
    metrics::filtered("audit", begun);
    next.run(exchange).await
}
