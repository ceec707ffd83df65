//! Assigns seats to requests and releases them.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use api::Gvr;
use arc_swap::ArcSwap;
use base::{Kind, Tasks};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::borrowing::PERIOD;
use super::digest::{Classifier, State};
use super::matching::FlowAttributes;
use super::queues::{Description, Start};
use super::seat::{Class, Entering, Level, Rejected, Seat};
use super::seats::Work;
use super::timing::Phase;
use super::width::{self, Watches};
use crate::registry::objects::Objects;
use crate::registry::watch_cache::Filter;
use crate::request::user::User;

/// The maximum time in a queue.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// The maximum time in a queue of a long-running request (a quarter of upstream's request timeout).
const WAIT_LONG_RUNNING: Duration = Duration::from_secs(15);
/// The maximum age of a cached size of a resource (that of upstream's object counts).
const SIZES_AGE_MAX: Duration = Duration::from_secs(60);
/// The maximum number of cached sizes, more than there are resources.
const SIZES_MAX: usize = 4096;
/// The number of objects for an estimate of their average size.
const SAMPLE: usize = 16;
/// The maximum length of each text in the description of a waiting request, in characters.
const DESCRIPTION_MAX: usize = 256;

/// The flow control of a server.
#[derive(Debug)]
pub(crate) struct Control {
    origin: Instant,
    /// Unix time of `origin`.
    pub(super) began: Duration,
    /// The total number of seats.
    pub(super) seats: i64,
    classifier: ArcSwap<Classifier>,
    pub(super) state: Mutex<State>,
    /// The time of the next borrowing adjustment, in nanoseconds since `origin`.
    pub(super) due: AtomicU64,
    /// Notified when the objects have to be reconciled.
    pub(super) changed: Notify,
    pub(super) watches: Arc<Watches>,
    sizes: Mutex<HashMap<u64, (width::Objects, Duration)>>,
    hasher: RandomState,
    pub(super) executing: Phase,
    pub(super) waiting: Phase,
    objects: Arc<Objects>,
    tasks: Tasks,
}

impl Control {
    /// Creates the flow control with only the mandatory objects; `seats` is the total number.
    pub(crate) fn new(seats: usize, objects: Arc<Objects>, tasks: Tasks) -> Arc<Self> {
        let period = u64::try_from(PERIOD.as_nanos()).unwrap_or(u64::MAX);
        let control = Self {
            origin: base::clock::now(),
            began: base::clock::unix_time(),
            seats: i64::try_from(seats).unwrap_or(i64::MAX),
            classifier: ArcSwap::from_pointee(Classifier::default()),
            state: Mutex::default(),
            due: AtomicU64::new(period),
            changed: Notify::new(),
            watches: Arc::default(),
            sizes: Mutex::default(),
            hasher: RandomState::new(),
            executing: Phase::new(),
            waiting: Phase::new(),
            objects,
            tasks,
        };
        control.digest(&[], &[]);
        Arc::new(control)
    }

    /// Applies the current objects.
    pub(super) fn digest(&self, levels: &[serde_json::Value], schemas: &[serde_json::Value]) {
        let mut state = self.state.lock();
        let now = self.now();
        let classifier = state.digest(now, self.seats, levels, schemas);
        let (executing, waiting) = state.capacity();
        self.executing.set_denominator(now, executing);
        self.waiting.set_denominator(now, waiting);
        self.classifier.store(Arc::new(classifier));
    }

    /// The time since the server started.
    pub(super) fn now(&self) -> Duration {
        base::clock::now().saturating_duration_since(self.origin)
    }

    /// The number of executing requests: reads, and the others.
    #[cfg(test)]
    pub(crate) fn in_flight(&self) -> (i64, i64) {
        self.executing.now()
    }

    /// The maximum number of executing and of waiting requests in the last second.
    pub(crate) fn maxima(&self) -> [(i64, i64); 2] {
        let now = self.now();
        [self.executing.maximum(now), self.waiting.maximum(now)]
    }

    /// The number of waiting requests: reads, and the others.
    #[cfg(test)]
    pub(crate) fn in_queue(&self) -> (i64, i64) {
        self.waiting.now()
    }

    /// Adjusts the borrowing of seats if that is due.
    pub(super) fn tick(&self, now: Duration) {
        let nanos = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        let due = self.due.load(Ordering::Relaxed);
        if nanos < due {
            return;
        }
        // The holder of the lock adjusts the seats, or replaces them all.
        let Some(mut state) = self.state.try_lock() else { return };
        if self.due.load(Ordering::Relaxed) != due {
            return;
        }
        let period = u64::try_from(PERIOD.as_nanos()).unwrap_or(u64::MAX);
        let until = due + (nanos - due) / period * period;
        state.adjust(Duration::from_nanos(due - period), Duration::from_nanos(until), now);
        self.due.store(until + period, Ordering::Relaxed);
    }

    /// Returns the seats of a request, after waiting if necessary.
    ///
    /// # Errors
    /// If there are no seats and the request cannot wait, or its wait times out.
    pub(crate) async fn enter(self: &Arc<Self>, request: &Entering<'_>) -> Result<Seat, Rejected> {
        let now = self.now();
        self.tick(now);
        let Entering { attributes, user, .. } = request;
        let class = self.classifier.load().class_of(attributes, user);
        let work = self.work(&class, request, now);
        class.flow.seats.number(work.seats());
        let hash = if class.spread {
            self.hasher.hash_one((&*class.spec.name, class.distinguisher(attributes, user)))
        } else {
            0
        };
        let (id, waiting) = {
            let mut queues = class.level.queues.lock();
            match queues.start(now, work, hash, &class.flow) {
                Start::Executes(id) => (id, None),
                Start::Waits(id) => {
                    let (waker, woken) = oneshot::channel();
                    queues.wake(id, waker, describe(&class, attributes, user));
                    (id, Some(woken))
                }
                Start::Rejected(_) => {
                    drop(queues);
                    if !class.exempt {
                        class.flow.rejected_wait.time(Duration::ZERO);
                    }
                    return Err(Rejected::new(class));
                }
            }
        };
        match waiting {
            None => {
                if !class.exempt {
                    class.flow.waited.time(Duration::ZERO);
                }
                Ok(Seat::new(self, class, id, attributes, now))
            }
            // Boxed to keep the future of requests that do not wait small.
            Some(woken) => Box::pin(self.wait(class, id, woken, request, now)).await,
        }
    }

    async fn wait(
        self: &Arc<Self>,
        class: Arc<Class>,
        id: u32,
        woken: oneshot::Receiver<()>,
        request: &Entering<'_>,
        since: Duration,
    ) -> Result<Seat, Rejected> {
        let is_read = request.attributes.is_read();
        self.waiting.add(since, is_read, 1);
        let level = Arc::clone(&class.level);
        let mut queued =
            QueuedRequest { control: self, class, id, is_read, since, has_left: false };
        self.serve_waiters(&level);
        let timeout = request.limit.map_or(WAIT_LONG_RUNNING, |limit| limit / 4).min(WAIT_MAX);
        let is_granted = tokio::time::timeout_at(request.arrived + timeout, woken).await.is_ok();
        if !is_granted && queued.leave() {
            return Err(Rejected::new(Arc::clone(&queued.class)));
        }
        queued.has_left = true;
        let now = self.now();
        queued.class.flow.waited.time(now.saturating_sub(since));
        crate::request::scope::add_wait(
            crate::request::scope::WaitReason::Queue,
            now.saturating_sub(since),
        );
        Ok(Seat::new(self, Arc::clone(&queued.class), id, &request.attributes, now))
    }

    /// Starts a task that adjusts borrowing and releases lingering seats when they are due, as long
    /// as requests of the level wait. There is at most one such task per level.
    fn serve_waiters(self: &Arc<Self>, level: &Arc<Level>) {
        if level.has_waiter_task.swap(true, Ordering::AcqRel) {
            return;
        }
        let (control, level) = (Arc::clone(self), Arc::clone(level));
        let shutdown = self.tasks.shutdown().clone();
        self.tasks.spawn(Kind::Request, "flow-queue", async move {
            loop {
                control.tick(control.now());
                let due = Duration::from_nanos(control.due.load(Ordering::Relaxed));
                let next = {
                    let mut queues = level.queues.lock();
                    queues.sync(control.now());
                    if queues.totals().waiting == 0 {
                        level.has_waiter_task.store(false, Ordering::Release);
                        return Ok::<(), std::convert::Infallible>(());
                    }
                    queues.next_release().map_or(due, |release| release.min(due))
                };
                tokio::select! {
                    () = tokio::time::sleep_until(control.origin + next) => {}
                    () = level.waiter_task_wake.notified() => {}
                    () = shutdown.requested() => return Ok(()),
                }
            }
        });
    }

    /// The seats that a request needs.
    fn work(&self, class: &Class, request: &Entering<'_>, now: Duration) -> Work {
        let attributes = &request.attributes;
        if !attributes.is_resource {
            return Work::of(1);
        }
        match attributes.verb {
            "list" | "watch" => width::of_list(attributes, request.query, class.width, || {
                self.size(attributes, now)
            }),
            // Issuing a token changes no object, so watchers of service accounts do not count.
            "create"
                if attributes.resource == "serviceaccounts"
                    && attributes.subresource == "token" =>
            {
                Work::of(1)
            }
            "create" | "update" | "patch" | "delete" => {
                let watches = self.watches.interested(attributes);
                class.flow.watchers.number(watches);
                width::of_change(watches, class.width)
            }
            _ => Work::of(1),
        }
    }

    /// The number and average size of a resource's objects; `None` if they are not cached.
    fn size(&self, attributes: &FlowAttributes<'_>, now: Duration) -> Option<width::Objects> {
        let key = self.hasher.hash_one((attributes.group, attributes.version, attributes.resource));
        let cached = self.sizes.lock().get(&key).copied();
        if let Some((objects, time)) = cached
            && now.saturating_sub(time) < SIZES_AGE_MAX
        {
            return Some(objects);
        }
        let row = self
            .objects
            .row(&Gvr::new(attributes.group, attributes.version, attributes.resource))
            .ok()?;
        let cache = self.objects.caches().running(&row)?;
        let count =
            self.objects.caches().stats().into_iter().find_map(|(of, figures)| {
                (of.cache_key == row.cache_key).then_some(figures.objects)
            })?;
        let sample = cache.list(&Filter::default(), None, SAMPLE).items;
        let bytes: usize = sample.iter().map(|object| object.raw().len()).sum();
        let bytes = bytes.checked_div(sample.len()).unwrap_or_default();
        let objects = width::Objects { count: count as u64, bytes: bytes as u64 };
        let mut sizes = self.sizes.lock();
        if sizes.len() >= SIZES_MAX {
            sizes.clear();
        }
        sizes.insert(key, (objects, now));
        Some(objects)
    }
}

/// A waiting request; it leaves the queue when this is dropped.
struct QueuedRequest<'a> {
    control: &'a Arc<Control>,
    class: Arc<Class>,
    id: u32,
    is_read: bool,
    since: Duration,
    has_left: bool,
}

impl QueuedRequest<'_> {
    /// Leaves the queue; returns `false` if the request has its seats already.
    fn leave(&mut self) -> bool {
        let now = self.control.now();
        let has_left = self.class.level.queues.lock().cancel(now, self.id);
        if has_left {
            self.has_left = true;
            self.class.flow.rejected_wait.time(now.saturating_sub(self.since));
        }
        has_left
    }
}

impl Drop for QueuedRequest<'_> {
    fn drop(&mut self) {
        self.control.waiting.add(self.control.now(), self.is_read, -1);
        if self.has_left || self.leave() {
            return;
        }
        // The client has disconnected just when the request got its seats.
        let now = self.control.now();
        self.class.level.queues.lock().finish(now, self.id);
    }
}

/// The description of a waiting request for `dump_requests`.
fn describe(class: &Class, attributes: &FlowAttributes<'_>, user: &User) -> Description {
    let short = |text: &str| {
        let end = text.char_indices().nth(DESCRIPTION_MAX).map_or(text.len(), |(at, _)| at);
        text.get(..end).unwrap_or_default().to_owned()
    };
    let group_version = match attributes.group {
        "" => attributes.version.to_owned(),
        group => format!("{group}/{}", attributes.version),
    };
    let FlowAttributes { verb, path, namespace, name, resource, subresource, .. } = attributes;
    let details: [&str; 8] =
        [&user.name, verb, path, namespace, name, &*group_version, resource, subresource];
    Description {
        distinguisher: short(class.distinguisher(attributes, user)),
        details: details.map(short),
    }
}

#[cfg(test)]
mod tests;
