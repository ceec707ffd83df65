//! A place for a request among those that are answered at once.

use std::sync::Arc;
use std::time::Duration;

use api::Status;
use http::Response;
use tokio::sync::OwnedSemaphorePermit;

use crate::priority_and_fairness;
use crate::request::body::Body;
use crate::request::user::User;
use crate::request::{Query, RequestInfo};
use crate::state::{ApiServer, Inner};

/// When a request came, and the time it has.
#[derive(Debug, Clone, Copy)]
pub(super) struct Time {
    pub(super) arrived: tokio::time::Instant,
    /// None when it lives long.
    pub(super) limit: Option<Duration>,
}

/// What a request holds while it is answered.
#[derive(Debug, Default)]
pub(super) struct Entered {
    /// What flow control took it for.
    class: Option<Arc<priority_and_fairness::Class>>,
    /// What a watch holds, until it has begun and then as long as it lasts.
    pub(super) watching: Option<priority_and_fairness::Watching>,
    _seat: Option<priority_and_fairness::Seat>,
    _place: Option<OwnedSemaphorePermit>,
}

impl Entered {
    /// The answer, with what its request was taken for; what was held is given back.
    pub(super) fn marked(self, mut response: Response<Body>) -> Response<Body> {
        if let Some(class) = &self.class {
            class.mark(&mut response);
        }
        response
    }
}

impl ApiServer {
    /// Holds requests against the flow schemas and priority levels that are stored, from now on, and keeps those that every
    /// cluster begins with. Nothing where flow control is off. Await this before serving, once these objects are written.
    ///
    /// # Errors
    /// When a cache does not load.
    pub async fn control_flow(&self) -> Result<(), Status> {
        match &self.inner.flow {
            Some(control) => priority_and_fairness::follow(self, control).await,
            None => Ok(()),
        }
    }

    /// A place for an authenticated request, perhaps after a while. What lives long needs none, but for a watch, which has one
    /// until it has begun.
    ///
    /// # Errors
    /// The answer to who has to come again.
    pub(super) async fn enter(
        inner: &Inner,
        user: &User,
        info: &RequestInfo,
        query: &Query,
        time: Time,
    ) -> Result<Entered, Response<Body>> {
        let watches = info.verb == "watch";
        if info.is_long_running() && !watches {
            return Ok(Entered::default());
        }
        let Some(control) = &inner.flow else {
            if watches {
                return Ok(Entered::default());
            }
            let place = inner
                .limits
                .enter(info, user)
                .ok_or_else(crate::priority_and_fairness::max_in_flight::refused)?;
            return Ok(Entered { _place: place, ..Entered::default() });
        };
        let asked = priority_and_fairness::Asked::of(info);
        let Time { arrived, limit } = time;
        let entering = priority_and_fairness::Entering { asked, user, query, arrived, limit };
        let seat = control.enter(&entering).await.map_err(|refused| refused.response())?;
        let class = Some(Arc::clone(seat.class()));
        if watches {
            let fields = query.get("fieldSelector").unwrap_or_default();
            let watching =
                Some(priority_and_fairness::Watching::new(control, seat, &asked, fields));
            return Ok(Entered { class, watching, ..Entered::default() });
        }
        Ok(Entered { class, _seat: Some(seat), ..Entered::default() })
    }
}
