//! A request on its way through the filter chain.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use http::{Request, Response};
use tokio::time::Instant;

use crate::metrics::request_totals::{Labels, Served};
use crate::priority_and_fairness::Watching;
use crate::request::body::Body;
use crate::request::user::User;
use crate::request::{self, BadPath, Query, RequestInfo};
use crate::response::status;
use crate::state::ServerState;

/// Responds to the request or passes it to the rest of the chain.
pub(super) type Filter = fn(Box<Exchange>, Next) -> BoxFuture<'static, Response<Body>>;

/// Arrival time and deadline of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline {
    pub(crate) arrived: Instant,
    /// `None` for a long-running request.
    pub(crate) limit: Option<Duration>,
}

impl Deadline {
    /// No limit yet.
    pub(crate) fn since(arrived: Instant) -> Self {
        Self { arrived, limit: None }
    }
}

/// A request in the filter chain, with the results of earlier filters.
pub(crate) struct Exchange {
    pub(crate) server: Arc<ServerState>,
    pub(crate) request: Request<Body>,
    /// The user: of a component in this process from the start, otherwise anonymous until the
    /// authentication filter has run.
    pub(crate) user: User,
    /// Whether a component in this process sent the request, whose user needs no credentials.
    pub(crate) is_in_process: bool,
    pub(crate) query: Query,
    /// The parsed URL; the default when it could not be parsed.
    pub(crate) info: RequestInfo,
    /// Why the URL could not be parsed.
    pub(crate) invalid: Option<BadPath>,
    pub(crate) labels: Arc<Labels>,
    pub(crate) deadline: Deadline,
    /// The flow-control seat of a watch until it has begun.
    pub(crate) watching: Option<Watching>,
}

impl Exchange {
    pub(super) fn new(
        server: Arc<ServerState>,
        user: Option<User>,
        request: Request<Body>,
    ) -> Self {
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
            deadline: Deadline::since(base::clock::now()),
            watching: None,
        }
    }

    /// Arrival time of the request.
    pub(crate) fn arrived(&self) -> Instant {
        self.deadline.arrived
    }
}

/// The rest of the chain.
pub(crate) struct Next(&'static [Filter]);

impl Next {
    /// The whole chain.
    pub(super) fn new(filters: &'static [Filter]) -> Self {
        Self(filters)
    }

    /// Runs the rest of the chain.
    pub(crate) fn run(self, exchange: Box<Exchange>) -> BoxFuture<'static, Response<Body>> {
        match self.0.split_first() {
            Some((filter, rest)) => filter(exchange, Self(rest)),
            // The last filter of the chain answers every request.
            None => Box::pin(std::future::ready(status::page_not_found())),
        }
    }
}
