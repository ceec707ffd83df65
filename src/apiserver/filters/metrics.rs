//! Metrics of requests: while they are answered, and of their responses.

use std::sync::Arc;

use http::Response;

use super::exchange::{Exchange, Next};
use super::priority_and_fairness::RejectedByFlowControl;
use crate::metrics::requests as metrics;
use crate::request::body::{Body, keeping};
use crate::request::scope::{self, RequestScope};

/// Counts the response with its code, size and duration without waiting times (upstream's
/// `InstrumentRouteFunc` and `WithLatencyTrackers`).
pub(crate) async fn count_response(exchange: Box<Exchange>, next: Next) -> Response<Body> {
    let started = exchange.arrived();
    let server = Arc::clone(&exchange.server);
    let labels = Arc::clone(&exchange.labels);
    let is_own = exchange.is_in_process && exchange.user.name == "system:apiserver";
    let request_scope = Arc::new(RequestScope::default());
    let response = scope::scope(Some(Arc::clone(&request_scope)), next.run(exchange)).await;
    let size = http_body::Body::size_hint(response.body()).exact();
    let code = response.status().as_u16();
    server.metrics.observe(&labels, (code, size), (started.elapsed(), request_scope.waited()));
    if is_own {
        metrics::own(&labels.words());
    }
    match request_scope.finish(code, size) {
        // The span of a watch lasts as long as the watch.
        Some(span) if size.is_none() => response.map(|body| keeping(body, span)),
        _ => response,
    }
}

/// Counts long-running requests until their last byte, requests that flow control rejects, and the
/// requested field validation.
pub(crate) async fn count_request(mut exchange: Box<Exchange>, next: Next) -> Response<Body> {
    let arrived = exchange.arrived();
    let labels = Arc::clone(&exchange.labels);
    let validation = exchange
        .info
        .is_resource
        .then(|| exchange.query.get("fieldValidation").unwrap_or_default().to_owned());
    let long = exchange.info.is_long_running();
    let long = long.then(|| Arc::new(metrics::Long::begin(&labels.words())));
    if let Some(long) = &long {
        // An upgraded connection holds the guard until it ends.
        exchange.request.extensions_mut().insert(Arc::clone(long));
    }
    let mut response = next.run(exchange).await;
    if response.extensions_mut().remove::<RejectedByFlowControl>().is_some() {
        metrics::terminated(&labels.words(), 429);
    }
    if let Some(validation) = validation {
        metrics::validated(&validation, arrived.elapsed());
    }
    match long {
        Some(long) => response.map(|body| keeping(body, long)),
        None => response,
    }
}
