//! What a request holds while it is answered, and how it is told who it is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use api::Status;
use http::{HeaderName, HeaderValue, Response, header};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::control::Control;
use super::dropped::Dropped;
use super::matching::Asked;
use super::queues::{Queues, Shape};
use super::spec::{Distinguisher, SchemaSpec};
use super::width::Counted;
use crate::priority_and_fairness::level_counters::Flow;
use crate::request::Query;
use crate::request::body::Body;
use crate::request::user::User;

/// Upstream's `ResponseHeaderMatchedFlowSchemaUID` and
/// `ResponseHeaderMatchedPriorityLevelConfigurationUID`.
const SCHEMA_UID: HeaderName = HeaderName::from_static("x-kubernetes-pf-flowschema-uid");
const LEVEL_UID: HeaderName = HeaderName::from_static("x-kubernetes-pf-prioritylevel-uid");
/// Upstream's answer to who is refused.
pub(crate) const TOO_MANY: &str = "Too many requests, please try again later.";

/// A priority level. It outlives changes of its object while requests are in it.
#[derive(Debug)]
pub(crate) struct Level {
    pub(super) name: Box<str>,
    pub(super) queues: Mutex<Queues>,
    pub(super) dropped: Mutex<Dropped>,
    /// Its object is gone; it goes once nothing is in it.
    pub(super) quiescing: AtomicBool,
    /// A task does for those who wait what is due at a time.
    pub(super) watched: AtomicBool,
    /// Wakes that task.
    pub(super) bell: Notify,
}

impl Level {
    pub(super) fn new(name: &str, now: Duration, shape: Shape, seats: u64) -> Self {
        Self {
            name: name.into(),
            queues: Mutex::new(Queues::new(now, shape, seats)),
            dropped: Mutex::default(),
            quiescing: AtomicBool::new(false),
            watched: AtomicBool::new(false),
            bell: Notify::new(),
        }
    }
}

/// A flow schema with the level it leads to: what a request belongs to.
#[derive(Debug)]
pub(crate) struct Class {
    pub(super) spec: SchemaSpec,
    pub(super) level: Arc<Level>,
    pub(super) flow: Arc<Flow>,
    pub(super) uid: HeaderValue,
    pub(super) level_uid: HeaderValue,
    pub(super) exempt: bool,
    /// There are queues among which flows are spread.
    pub(super) spread: bool,
    /// The most seats of one request; 0 where nothing is said.
    pub(super) width: u64,
}

impl Class {
    /// What tells the flow of this request apart from others of the schema.
    pub(super) fn distinguisher<'a>(&self, asked: &Asked<'a>, user: &'a User) -> &'a str {
        match self.spec.distinguisher.filter(|_| self.spread) {
            Some(Distinguisher::User) => &user.name,
            Some(Distinguisher::Namespace) => asked.namespace,
            None => "",
        }
    }

    /// Says on an answer what the request was taken for.
    pub(crate) fn mark(&self, response: &mut Response<Body>) {
        let headers = response.headers_mut();
        headers.insert(LEVEL_UID, self.level_uid.clone());
        headers.insert(SCHEMA_UID, self.uid.clone());
    }
}

/// A request that comes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entering<'a> {
    pub(crate) asked: Asked<'a>,
    pub(crate) user: &'a User,
    pub(crate) query: &'a Query,
    /// When it came.
    pub(crate) arrived: Instant,
    /// The time it has; none when it lives long.
    pub(crate) limit: Option<Duration>,
}

/// A request that found no seat.
#[derive(Debug)]
pub(crate) struct Refused {
    class: Arc<Class>,
    /// Seconds after which it may come again.
    retry_after: i64,
}

impl Refused {
    pub(super) fn new(class: Arc<Class>) -> Self {
        let second = i64::try_from(base::clock::unix_time().as_secs()).unwrap_or(i64::MAX);
        let retry_after = class.level.dropped.lock().note(second);
        Self { class, retry_after }
    }

    /// The answer over HTTP.
    pub(crate) fn response(&self) -> Response<Body> {
        let mut response = crate::response::status::text(
            http::StatusCode::TOO_MANY_REQUESTS,
            format!("{TOO_MANY}\n"),
        );
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(self.retry_after));
        self.class.mark(&mut response);
        response
    }

    /// The answer to callers in this process.
    pub(crate) fn status(&self) -> Status {
        let mut status = Status::failure(429, "TooManyRequests", TOO_MANY);
        status.details = Some(api::status::Details {
            retry_after_seconds: i32::try_from(self.retry_after).unwrap_or(1),
            ..Default::default()
        });
        status
    }
}

/// The seats of a request, until this goes.
#[derive(Debug)]
pub(crate) struct Seat {
    control: Arc<Control>,
    class: Arc<Class>,
    id: u32,
    started: Duration,
    reads: bool,
    watches: bool,
}

impl Seat {
    pub(super) fn new(
        control: &Arc<Control>,
        class: Arc<Class>,
        id: u32,
        asked: &Asked<'_>,
        now: Duration,
    ) -> Self {
        let reads = asked.is_read();
        control.executing.add(now, reads, 1);
        let watches = asked.verb == "watch";
        Self { control: Arc::clone(control), class, id, started: now, reads, watches }
    }

    /// What the request was taken for.
    pub(crate) fn class(&self) -> &Arc<Class> {
        &self.class
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let control = &self.control;
        let now = control.now();
        control.tick(now);
        let level = &self.class.level;
        let (idle, later) = {
            let mut queues = level.queues.lock();
            queues.finish(now, self.id);
            (queues.is_idle(), queues.totals().waiting > 0 && queues.next_release().is_some())
        };
        control.executing.add(now, self.reads, -1);
        let flow = &self.class.flow;
        let times = if self.watches { &flow.watches } else { &flow.regular };
        times.time(now.saturating_sub(self.started));
        if later {
            level.bell.notify_one();
        }
        if idle && level.quiescing.load(Ordering::Relaxed) {
            control.changed.notify_one();
        }
    }
}

/// What a watch holds: its seat until its first objects are sent, and its place among those that
/// are told of changes.
#[derive(Debug)]
pub(crate) struct Watching {
    seat: Option<Seat>,
    _counted: Counted,
}

impl Watching {
    /// Of a watch of objects whose fields are selected so.
    pub(crate) fn new(control: &Control, seat: Seat, asked: &Asked<'_>, fields: &str) -> Self {
        Self { seat: Some(seat), _counted: control.watches.count(asked, fields) }
    }

    /// From now on only changes are sent.
    pub(crate) fn initialised(&mut self) {
        self.seat = None;
    }
}
