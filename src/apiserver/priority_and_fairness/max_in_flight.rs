//! Limits concurrent requests if flow control is disabled: further requests are rejected with 429.

use std::sync::Arc;

use http::{HeaderValue, Response, StatusCode, header};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::request::RequestInfo;
use crate::request::body::Body;
use crate::request::user::User;
use crate::response::status;

/// Counts the reading and mutating requests in flight.
#[derive(Debug)]
pub(crate) struct Limits {
    reads: Option<Arc<Semaphore>>,
    writes: Option<Arc<Semaphore>>,
    reads_max: usize,
    writes_max: usize,
}

impl Limits {
    /// 0 is no limit.
    pub(crate) fn new(reads_max: usize, writes_max: usize) -> Self {
        let semaphore = |max: usize| (max > 0).then(|| Arc::new(Semaphore::new(max)));
        Self { reads: semaphore(reads_max), writes: semaphore(writes_max), reads_max, writes_max }
    }

    /// Admits a request until the permit is dropped; `None` if the limit is reached. Cluster
    /// administrators are always admitted, as in upstream.
    pub(crate) fn enter(
        &self,
        info: &RequestInfo,
        user: &User,
    ) -> Option<Option<OwnedSemaphorePermit>> {
        let permits = if info.is_read() { &self.reads } else { &self.writes };
        let Some(permits) = permits else { return Some(None) };
        match Arc::clone(permits).try_acquire_owned() {
            Ok(permit) => Some(Some(permit)),
            Err(_) if user.in_group("system:masters") => Some(None),
            Err(_) => None,
        }
    }

    /// The numbers of reading and mutating requests in flight.
    pub(crate) fn in_flight(&self) -> (usize, usize) {
        let taken = |permits: &Option<Arc<Semaphore>>, max: usize| {
            permits.as_ref().map_or(0, |permits| max - permits.available_permits())
        };
        (taken(&self.reads, self.reads_max), taken(&self.writes, self.writes_max))
    }
}

/// Upstream's response 429.
pub(crate) fn refused() -> Response<Body> {
    let mut response =
        status::text(StatusCode::TOO_MANY_REQUESTS, "Too many requests, please try again later.\n");
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_does_not_apply_to_administrators() {
        let limits = Limits::new(1, 1);
        let info = RequestInfo { verb: "list", ..RequestInfo::default() };
        let held = limits.enter(&info, &User::anonymous());
        assert!(held.is_some());
        assert!(limits.enter(&info, &User::anonymous()).is_none());
        assert!(limits.enter(&info, &User::authenticated("a", &["system:masters"])).is_some());
        assert_eq!(limits.in_flight(), (1, 0));
        drop(held);
        assert!(limits.enter(&info, &User::anonymous()).is_some());
        assert!(matches!(Limits::new(0, 1).enter(&info, &User::anonymous()), Some(None)));
    }
}
