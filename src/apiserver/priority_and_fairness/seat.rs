//! The seats of a request, and the response headers with its flow schema and priority level.

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
use super::matching::FlowAttributes;
use super::queues::{Queues, Shape};
use super::spec::{Distinguisher, SchemaSpec};
use super::width::CountedWatch;
use crate::priority_and_fairness::level_counters::Flow;
use crate::request::Query;
use crate::request::body::Body;
use crate::request::user::User;

/// Upstream's `ResponseHeaderMatchedFlowSchemaUID` and
/// `ResponseHeaderMatchedPriorityLevelConfigurationUID`.
const SCHEMA_UID: HeaderName = HeaderName::from_static("x-kubernetes-pf-flowschema-uid");
const LEVEL_UID: HeaderName = HeaderName::from_static("x-kubernetes-pf-prioritylevel-uid");
/// Upstream's response to rejected requests.
pub(crate) const TOO_MANY: &str = "Too many requests, please try again later.";

/// A priority level. It exists while its object or requests exist.
#[derive(Debug)]
pub(crate) struct Level {
    pub(super) name: Box<str>,
    pub(super) queues: Mutex<Queues>,
    pub(super) dropped: Mutex<Dropped>,
    /// Its object is deleted: the level is removed after its last request.
    pub(super) is_quiescing: AtomicBool,
    /// There is a task for waiting requests (`Control::serve_waiters`).
    pub(super) has_waiter_task: AtomicBool,
    /// Wakes that task.
    pub(super) waiter_task_wake: Notify,
}

impl Level {
    pub(super) fn new(name: &str, now: Duration, shape: Shape, seats: u64) -> Self {
        Self {
            name: name.into(),
            queues: Mutex::new(Queues::new(now, shape, seats)),
            dropped: Mutex::default(),
            is_quiescing: AtomicBool::new(false),
            has_waiter_task: AtomicBool::new(false),
            waiter_task_wake: Notify::new(),
        }
    }
}

/// A flow schema and its priority level: the classification of a request.
#[derive(Debug)]
pub(crate) struct Class {
    pub(super) spec: SchemaSpec,
    pub(super) level: Arc<Level>,
    pub(super) flow: Arc<Flow>,
    pub(super) uid: HeaderValue,
    pub(super) level_uid: HeaderValue,
    pub(super) exempt: bool,
    /// Whether the level has several queues.
    pub(super) spread: bool,
    /// The maximum seats of one request; 0 is no limit.
    pub(super) width: u64,
}

impl Class {
    /// The flow distinguisher of a request.
    pub(super) fn distinguisher<'a>(
        &self,
        attributes: &FlowAttributes<'a>,
        user: &'a User,
    ) -> &'a str {
        match self.spec.distinguisher.filter(|_| self.spread) {
            Some(Distinguisher::User) => &user.name,
            Some(Distinguisher::Namespace) => attributes.namespace,
            None => "",
        }
    }

    /// Sets the response headers with the UIDs of schema and level.
    pub(crate) fn mark(&self, response: &mut Response<Body>) {
        let headers = response.headers_mut();
        headers.insert(LEVEL_UID, self.level_uid.clone());
        headers.insert(SCHEMA_UID, self.uid.clone());
    }
}

/// A request that needs seats.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entering<'a> {
    pub(crate) attributes: FlowAttributes<'a>,
    pub(crate) user: &'a User,
    pub(crate) query: &'a Query,
    /// The time of its arrival.
    pub(crate) arrived: Instant,
    /// Its timeout; `None` for long-running requests.
    pub(crate) limit: Option<Duration>,
}

/// A request that was rejected because there was no seat.
#[derive(Debug)]
pub(crate) struct Rejected {
    class: Arc<Class>,
    /// Seconds after which the client can retry.
    retry_after: i64,
}

impl Rejected {
    pub(super) fn new(class: Arc<Class>) -> Self {
        let second = i64::try_from(base::clock::unix_time().as_secs()).unwrap_or(i64::MAX);
        let retry_after = class.level.dropped.lock().record(second);
        Self { class, retry_after }
    }

    /// The HTTP response.
    pub(crate) fn response(&self) -> Response<Body> {
        let mut response = crate::response::status::text(
            http::StatusCode::TOO_MANY_REQUESTS,
            format!("{TOO_MANY}\n"),
        );
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(self.retry_after));
        self.class.mark(&mut response);
        response
    }

    /// The error for callers in this process.
    pub(crate) fn status(&self) -> Status {
        let mut status = Status::failure(429, "TooManyRequests", TOO_MANY);
        status.details = Some(api::status::Details {
            retry_after_seconds: i32::try_from(self.retry_after).unwrap_or(1),
            ..Default::default()
        });
        status
    }
}

/// The seats of a request; they are released when this is dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    control: Arc<Control>,
    class: Arc<Class>,
    id: u32,
    started: Duration,
    is_read: bool,
    is_watch: bool,
}

impl Seat {
    pub(super) fn new(
        control: &Arc<Control>,
        class: Arc<Class>,
        id: u32,
        attributes: &FlowAttributes<'_>,
        now: Duration,
    ) -> Self {
        let is_read = attributes.is_read();
        control.executing.add(now, is_read, 1);
        let is_watch = attributes.verb == "watch";
        Self { control: Arc::clone(control), class, id, started: now, is_read, is_watch }
    }

    /// The classification of the request.
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
        let (is_idle, has_new_release) = {
            let mut queues = level.queues.lock();
            queues.finish(now, self.id);
            (queues.is_idle(), queues.totals().waiting > 0 && queues.next_release().is_some())
        };
        control.executing.add(now, self.is_read, -1);
        let flow = &self.class.flow;
        let times = if self.is_watch { &flow.watches } else { &flow.regular };
        times.time(now.saturating_sub(self.started));
        if has_new_release {
            level.waiter_task_wake.notify_one();
        }
        if is_idle && level.is_quiescing.load(Ordering::Relaxed) {
            control.changed.notify_one();
        }
    }
}

/// The flow control of a watch: its seats until the initial objects are sent, and its place in the
/// count of watches.
#[derive(Debug)]
pub(crate) struct Watching {
    seat: Option<Seat>,
    _counted: CountedWatch,
}

impl Watching {
    /// `fields` is the field selector of the watch.
    pub(crate) fn new(
        control: &Control,
        seat: Seat,
        attributes: &FlowAttributes<'_>,
        fields: &str,
    ) -> Self {
        Self { seat: Some(seat), _counted: control.watches.count(attributes, fields) }
    }

    /// Releases the seats: the initial objects are sent.
    pub(crate) fn initialised(&mut self) {
        self.seat = None;
    }
}
