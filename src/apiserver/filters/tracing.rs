//! The span of a request.

use http::Response;

use super::exchange::{Exchange, Next};
use crate::request::body::Body;
use crate::request::scope;

/// Begins the span of a sampled request (upstream's `WithTracing`). Does nothing when tracing is
/// off.
pub(crate) async fn begin_span(exchange: Box<Exchange>, next: Next) -> Response<Body> {
    if let (Some(tracer), Some(scope)) = (exchange.server.tracer.get(), scope::current()) {
        let Exchange { request, info, user, .. } = &*exchange;
        let since = base::clock::unix_time().saturating_sub(exchange.arrived().elapsed());
        scope.set_span(tracer.request(request, info, user, since));
    }
    next.run(exchange).await
}
