//! Request timeout: 60 s by default, or less when the request sets one; long-running requests have
//! none.

use std::sync::Arc;
use std::time::Duration;

use api::Status;
use base::Tasks;
use http::Response;

use super::exchange::{Exchange, Next};
use crate::audit;
use crate::metrics::requests as metrics;
use crate::request::body::Body;
use crate::request::{Query, RequestInfo, scope};
use crate::response::status;

/// Ends a request with 504 when its time is over (upstream's `WithRequestDeadline` and
/// `WithTimeoutForNonLongRunningRequests`).
pub(crate) async fn limit(mut exchange: Box<Exchange>, next: Next) -> Response<Body> {
    let limit = match of(&exchange.info, &exchange.query, exchange.server.config.request_timeout) {
        Ok(limit) => limit,
        Err(refusal) => {
            audit::with(|trail| trail.refused(&exchange.info));
            return status::response(&refusal);
        }
    };
    exchange.deadline.limit = limit;
    let labels = Arc::clone(&exchange.labels);
    let tasks = exchange.server.tasks.clone();
    let info = &exchange.info;
    // Addresses and ports of a Service are allocated before it is written and released after: such
    // a write must not be cut off.
    let is_detached = info.resource == "services" && info.group.is_empty() && !info.is_read();
    let answer = next.run(exchange);
    let answer =
        async move { if is_detached { detached(&tasks, answer).await } else { answer.await } };
    let Some(limit) = limit else { return answer.await };
    // A write that is cut off may or may not have taken effect, as when the client disconnects.
    tokio::time::timeout(limit, answer).await.unwrap_or_else(|_| {
        metrics::terminated(&labels.words(), 504);
        status::response(&exceeded())
    })
}

/// Runs to the end even when the client does not wait for the response any more.
async fn detached(
    tasks: &Tasks,
    answer: impl Future<Output = Response<Body>> + Send + 'static,
) -> Response<Body> {
    let answer = audit::scope(audit::current(), scope::scope(scope::current(), answer));
    let (done, answered) = tokio::sync::oneshot::channel();
    tasks.spawn(base::tasks::Kind::Request, "service write", async move {
        // The caller may be gone.
        let _ = done.send(answer.await);
        Ok::<(), std::convert::Infallible>(())
    });
    answered.await.unwrap_or_else(|_| {
        status::response(&Status::internal("the write ended without an answer"))
    })
}

/// The time limit of a request, at most `longest`; `None` for a long-running one.
///
/// # Errors
/// 400 with upstream's text for a `timeout` that is not a Go duration.
pub(crate) fn of(
    info: &RequestInfo,
    query: &Query,
    longest: Duration,
) -> Result<Option<Duration>, Status> {
    if info.is_long_running() {
        return Ok(None);
    }
    let Some(text) = query.get("timeout").filter(|text| !text.is_empty()) else {
        return Ok(Some(longest));
    };
    let nanos = api::codec::time::parse_duration(text).map_err(|why| {
        Status::bad_request(format!("invalid timeout specified in the request URL - {why}"))
    })?;
    // Zero and negative values mean that the client sets no limit.
    let requested = u64::try_from(nanos).ok().filter(|nanos| *nanos > 0).map(Duration::from_nanos);
    Ok(Some(requested.map_or(longest, |limit| limit.min(longest))))
}

/// 504 when the deadline passes.
pub(crate) fn exceeded() -> Status {
    let text = "Timeout: request did not complete within the allotted timeout";
    let mut status = Status::failure(504, "Timeout", text);
    status.details = Some(api::status::Details::default());
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(verb: &'static str, query: &str) -> Result<Option<Duration>, String> {
        let info = RequestInfo { verb, is_resource: true, ..RequestInfo::default() };
        of(&info, &Query::parse(query), Duration::from_secs(60)).map_err(|status| status.message)
    }

    #[test]
    fn a_request_may_set_a_limit_of_less_than_a_minute() {
        assert_eq!(limit("list", ""), Ok(Some(Duration::from_secs(60))));
        assert_eq!(limit("list", "timeout=1.5s"), Ok(Some(Duration::from_millis(1500))));
        assert_eq!(limit("list", "timeout=2h"), Ok(Some(Duration::from_secs(60))));
        assert_eq!(limit("list", "timeout=0"), Ok(Some(Duration::from_secs(60))));
        assert_eq!(limit("watch", "timeout=x"), Ok(None));
        assert_eq!(
            limit("get", "timeout=7"),
            Err("invalid timeout specified in the request URL - time: missing unit in duration \"7\""
                .to_owned())
        );
    }
}
