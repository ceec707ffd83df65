//! API Priority and Fairness: a request waits for a seat of its priority level.

use std::sync::Arc;

use api::Status;
use http::Response;
use tokio::sync::OwnedSemaphorePermit;

use super::exchange::{Deadline, Exchange, Next};
use crate::metrics::requests as metrics;
use crate::priority_and_fairness::{
    self, Class, Entering, FlowAttributes, Seat, Watching, max_in_flight,
};
use crate::request::body::Body;
use crate::request::user::User;
use crate::request::{Query, RequestInfo};
use crate::request_tracing;
use crate::state::{ApiServer, ServerState};

/// Marks the response to a request that flow control rejected.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RejectedByFlowControl;

/// Waits for a seat and holds it while the request is answered; rejects the request with 429 when
/// there is none (upstream's `WithPriorityAndFairness`, or `WithMaxInFlightLimit` when it is off).
pub(crate) async fn enter(mut exchange: Box<Exchange>, next: Next) -> Response<Body> {
    let begun = base::clock::now();
    let Exchange { server, user, info, query, deadline, .. } = &*exchange;
    let seating = seat(server, user, info, query, *deadline);
    let seating = request_tracing::run("priorityandfairness", Vec::new, seating).await;
    let (held, watching) = match seating {
        Ok(held) => held,
        Err(mut rejection) => {
            rejection.extensions_mut().insert(RejectedByFlowControl);
            return rejection;
        }
    };
    metrics::filtered("priorityandfairness", begun);
    exchange.watching = watching;
    let mut response = next.run(exchange).await;
    if let Some(class) = &held.class {
        class.mark(&mut response);
    }
    response
}

/// The seat of a request, held until the response is sent.
#[derive(Debug, Default)]
struct Held {
    /// Flow schema and priority level of the request.
    class: Option<Arc<Class>>,
    _seat: Option<Seat>,
    _permit: Option<OwnedSemaphorePermit>,
}

/// Acquires the seat of an authenticated request. Of long-running requests only a watch needs one,
/// until it has begun.
///
/// # Errors
/// The 429 of a rejected request.
async fn seat(
    server: &ServerState,
    user: &User,
    info: &RequestInfo,
    query: &Query,
    deadline: Deadline,
) -> Result<(Held, Option<Watching>), Response<Body>> {
    let is_watch = info.verb == "watch";
    if info.is_long_running() && !is_watch {
        return Ok((Held::default(), None));
    }
    let Some(control) = &server.flow else {
        if is_watch {
            return Ok((Held::default(), None));
        }
        let permit = server.limits.enter(info, user).ok_or_else(max_in_flight::refused)?;
        return Ok((Held { _permit: permit, ..Held::default() }, None));
    };
    let attributes = FlowAttributes::of(info);
    let (arrived, limit) = (deadline.arrived, deadline.limit);
    let entering = Entering { attributes, user, query, arrived, limit };
    let seat = control.enter(&entering).await.map_err(|rejected| rejected.response())?;
    let class = Some(Arc::clone(seat.class()));
    if is_watch {
        let fields = query.get("fieldSelector").unwrap_or_default();
        let watching = Watching::new(control, seat, &attributes, fields);
        return Ok((Held { class, ..Held::default() }, Some(watching)));
    }
    Ok((Held { class, _seat: Some(seat), ..Held::default() }, None))
}

impl ApiServer {
    /// Applies the stored flow schemas and priority levels and maintains the mandatory ones. Does
    /// nothing when flow control is off. Await it before serving, after these objects are written.
    ///
    /// # Errors
    /// When a cache does not load.
    pub async fn control_flow(&self) -> Result<(), Status> {
        match &self.inner.flow {
            Some(control) => priority_and_fairness::follow(self, control).await,
            None => Ok(()),
        }
    }
}
