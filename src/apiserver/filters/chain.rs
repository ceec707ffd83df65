//! The filter chain that every request passes on its way to a handler.

use std::sync::Arc;

use http::{Request, Response};

use super::exchange::{Exchange, Filter, Next};
use super::{
    aggregation, audit, authentication, authorization, cache_control, impersonation, metrics,
    panic, priority_and_fairness, request_info, routing, timeout, tracing,
};
use crate::request::body::Body;
use crate::request::user::User;
use crate::state::ApiServer;

/// The filters, outermost first (upstream's `DefaultBuildHandlerChain`, which builds from the
/// inside).
const FILTERS: &[Filter] = &[
    // Gives the request its ID before anything reads it.
    |exchange, next| Box::pin(audit::assign_id(exchange, next)),
    // Collects the audit event. Outside of panic recovery, so that a panic is recorded, too.
    |exchange, next| Box::pin(audit::record(exchange, next)),
    // Counts the response that the client gets, also after a panic.
    |exchange, next| Box::pin(metrics::count_response(exchange, next)),
    // Forbids shared caches to store the response.
    |exchange, next| Box::pin(cache_control::forbid_shared_caches(exchange, next)),
    // One request that panics ends with 500, not the process.
    |exchange, next| Box::pin(panic::recover(exchange, next)),
    // Rejects a URL that cannot be parsed.
    |exchange, next| Box::pin(request_info::require(exchange, next)),
    // Limits the time of all further filters and of the handler.
    |exchange, next| Box::pin(timeout::limit(exchange, next)),
    // Counts requests while they are answered, outside of the queue of flow control.
    |exchange, next| Box::pin(metrics::count_request(exchange, next)),
    // Finds the user. Everything before it runs for anonymous clients.
    |exchange, next| Box::pin(authentication::authenticate(exchange, next)),
    // Begins the span of the request: whether a client may ask for sampling depends on its user.
    |exchange, next| Box::pin(tracing::begin_span(exchange, next)),
    // Lets the audit policy decide, which needs the user that authenticated, not the impersonated
    // one.
    |exchange, next| Box::pin(audit::apply_policy(exchange, next)),
    // Replaces the user before flow control and authorization.
    |exchange, next| Box::pin(impersonation::impersonate(exchange, next)),
    // Waits for a seat. Before authorization, whose webhooks may be slow.
    |exchange, next| Box::pin(priority_and_fairness::enter(exchange, next)),
    // Rejects requests that the user is not allowed to send.
    |exchange, next| Box::pin(authorization::authorize(exchange, next)),
    // Proxies group versions of other API servers.
    |exchange, next| Box::pin(aggregation::delegate(exchange, next)),
    // Answers by the handler of the resource and verb.
    |exchange, _| Box::pin(routing::route(exchange)),
];

impl ApiServer {
    /// Answers one request. `user` is the user of a component in this process; `None` means that
    /// the credentials of the request decide.
    pub async fn call(&self, user: Option<User>, request: Request<Body>) -> Response<Body> {
        let exchange = Exchange::new(Arc::clone(&self.inner), user, request);
        Next::new(FILTERS).run(Box::new(exchange)).await
    }
}
