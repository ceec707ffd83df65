//! The filter chain: what every request passes on its way to a handler, in this order.

use std::sync::Arc;

use futures::future::BoxFuture;
use http::{Request, Response};
use tokio::time::Instant;

use super::{
    aggregation, audit, authentication, authorization, cache_control, impersonation, metrics,
    panic, priority_and_fairness, request_info, routing, timeout, tracing,
};
use crate::metrics::request_totals::{Labels, Served};
use crate::priority_and_fairness::Watching;
use crate::request::body::Body;
use crate::request::user::User;
use crate::request::{self, BadPath, Query, RequestInfo};
use crate::state::{ApiServer, ServerState};

/// Answers the request, or hands it to the rest of the chain.
type Filter = fn(Box<Exchange>, Next) -> BoxFuture<'static, Response<Body>>;

/// The filters, outermost first (upstream's `DefaultBuildHandlerChain`, which builds from the inside).
const FILTERS: &[Filter] = &[
    // Gives the request its ID before anything reads it.
    |exchange, next| Box::pin(audit::assign_id(exchange, next)),
    // Collects the audit event. Outside of panic recovery, so that a panic is recorded, too.
    |exchange, next| Box::pin(audit::record(exchange, next)),
    // Counts the response that the client gets, also after a panic.
    |exchange, next| Box::pin(metrics::count_response(exchange, next)),
    // No response is for a shared cache.
    |exchange, next| Box::pin(cache_control::forbid_shared_caches(exchange, next)),
    // One request that panics ends with 500, not the process.
    |exchange, next| Box::pin(panic::recover(exchange, next)),
    // Refuses a URL that names no valid request.
    |exchange, next| Box::pin(request_info::require(exchange, next)),
    // Bounds the time of all further filters and of the handler.
    |exchange, next| Box::pin(timeout::limit(exchange, next)),
    // Counts requests while they are answered, outside of the queue of flow control.
    |exchange, next| Box::pin(metrics::count_request(exchange, next)),
    // Finds the user. Everything before it runs for anonymous clients.
    |exchange, next| Box::pin(authentication::authenticate(exchange, next)),
    // Begins the span of the request: whether a client may ask for sampling depends on its user.
    |exchange, next| Box::pin(tracing::begin_span(exchange, next)),
    // Lets the audit policy decide, which needs the user that authenticated, not the impersonated one.
    |exchange, next| Box::pin(audit::apply_policy(exchange, next)),
    // Replaces the user before flow control and authorization look at it.
    |exchange, next| Box::pin(impersonation::impersonate(exchange, next)),
    // Waits for a seat. Before authorization, whose webhooks may be slow.
    |exchange, next| Box::pin(priority_and_fairness::enter(exchange, next)),
    // Refuses what the user may not do.
    |exchange, next| Box::pin(authorization::authorize(exchange, next)),
    // Hands group versions of other API servers over.
    |exchange, next| Box::pin(aggregation::delegate(exchange, next)),
    // Answers by the handler of the resource and verb.
    |exchange, _| Box::pin(routing::route(exchange)),
];

/// A request on its way through the chain, with what the filters found out about it.
pub(crate) struct Exchange {
    pub(crate) server: Arc<ServerState>,
    pub(crate) request: Request<Body>,
    /// The user: of a component in this process from the start, otherwise anonymous until the
    /// authentication filter has run.
    pub(crate) user: User,
    /// A component in this process sent the request: its user needs no credentials.
    pub(crate) is_in_process: bool,
    pub(crate) query: Query,
    /// What the URL names; default where it could not be parsed.
    pub(crate) info: RequestInfo,
    /// Why the URL could not be parsed.
    pub(crate) invalid: Option<BadPath>,
    pub(crate) labels: Arc<Labels>,
    pub(crate) deadline: timeout::Deadline,
    /// What a watch holds of flow control until it has begun.
    pub(crate) watching: Option<Watching>,
}

impl Exchange {
    fn new(server: Arc<ServerState>, user: Option<User>, request: Request<Body>) -> Self {
        let query = Query::parse(request.uri().query().unwrap_or(""));
        let mut labels = Labels::default();
        let (info, invalid) = match request::parse(request.method(), request.uri().path(), &query) {
            Ok(info) => {
                let served = Served::of(&server.objects.registry(), &info);
                labels.fill(&request, &info, &query, served);
                (info, None)
            }
            Err(error) => (RequestInfo::default(), Some(error)),
        };
        Self {
            server,
            request,
            is_in_process: user.is_some(),
            user: user.unwrap_or_else(User::anonymous),
            query,
            info,
            invalid,
            labels: Arc::new(labels),
            deadline: timeout::Deadline::since(base::clock::now()),
            watching: None,
        }
    }

    /// When the request came.
    pub(crate) fn arrived(&self) -> Instant {
        self.deadline.arrived
    }
}

/// The rest of the chain.
pub(crate) struct Next(&'static [Filter]);

impl Next {
    /// Runs the rest of the chain.
    pub(crate) fn run(self, exchange: Box<Exchange>) -> BoxFuture<'static, Response<Body>> {
        match self.0.split_first() {
            Some((filter, rest)) => filter(exchange, Self(rest)),
            // The last filter answers every request.
            None => Box::pin(routing::route(exchange)),
        }
    }
}

impl ApiServer {
    /// Answers one request. `user` is the user of a component in this process; `None` means that the
    /// credentials of the request decide.
    pub async fn call(&self, user: Option<User>, request: Request<Body>) -> Response<Body> {
        let exchange = Exchange::new(Arc::clone(&self.inner), user, request);
        Next(FILTERS).run(Box::new(exchange)).await
    }
}
