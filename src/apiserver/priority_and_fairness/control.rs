//! Gives seats to requests and takes them back.

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
use super::digest::{Plan, State};
use super::matching::Asked;
use super::queues::{Description, Start};
use super::seat::{Class, Entering, Level, Refused, Seat};
use super::seats::Work;
use super::timing::Phase;
use super::width::{self, Watches};
use crate::registry::objects::Objects;
use crate::registry::watch_cache::Filter;
use crate::request::user::User;

/// The longest time in a queue.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// That of a request that lives long (a quarter of upstream's request timeout).
const WAIT_LONG_LIVED: Duration = Duration::from_secs(15);
/// How long the size of a resource's objects is believed (upstream's count of objects is as old).
const SIZES_AGE_MAX: Duration = Duration::from_secs(60);
/// Resources whose sizes are kept; more than there are served.
const SIZES_MAX: usize = 4096;
/// Objects whose size is looked at.
const SAMPLE: usize = 16;
/// Bytes of a text that is kept of a request that waits.
const DESCRIBED_MAX: usize = 256;

/// The flow control of a server.
#[derive(Debug)]
pub(crate) struct Control {
    origin: Instant,
    /// Unix time of `origin`.
    pub(super) began: Duration,
    /// Seats of the server.
    pub(super) seats: i64,
    plan: ArcSwap<Plan>,
    pub(super) state: Mutex<State>,
    /// When seats are lent next, in nanoseconds since `origin`.
    pub(super) due: AtomicU64,
    /// Objects have to be looked at again.
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
    /// With the objects that are always there alone; `seats` are those of the server.
    pub(crate) fn new(seats: usize, objects: Arc<Objects>, tasks: Tasks) -> Arc<Self> {
        let period = u64::try_from(PERIOD.as_nanos()).unwrap_or(u64::MAX);
        let control = Self {
            origin: base::clock::now(),
            began: base::clock::unix_time(),
            seats: i64::try_from(seats).unwrap_or(i64::MAX),
            plan: ArcSwap::from_pointee(Plan::default()),
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

    /// Looks at the objects again.
    pub(super) fn digest(&self, levels: &[serde_json::Value], schemas: &[serde_json::Value]) {
        let mut state = self.state.lock();
        let now = self.now();
        let plan = state.digest(now, self.seats, levels, schemas);
        let (execute, wait) = state.room();
        self.executing.divide(now, execute);
        self.waiting.divide(now, wait);
        self.plan.store(Arc::new(plan));
    }

    /// Time since the server began.
    pub(super) fn now(&self) -> Duration {
        base::clock::now().saturating_duration_since(self.origin)
    }

    /// Requests that execute now: those that read, and the others.
    #[cfg(test)]
    pub(crate) fn in_flight(&self) -> (i64, i64) {
        self.executing.now()
    }

    /// The most requests that executed and that waited at once in the last second.
    pub(crate) fn most(&self) -> [(i64, i64); 2] {
        let now = self.now();
        [self.executing.most(now), self.waiting.most(now)]
    }

    /// Requests that wait now, likewise.
    #[cfg(test)]
    pub(crate) fn in_queue(&self) -> (i64, i64) {
        self.waiting.now()
    }

    /// Seats are lent and given back when that is due.
    pub(super) fn tick(&self, now: Duration) {
        let nanos = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        let due = self.due.load(Ordering::Relaxed);
        if nanos < due {
            return;
        }
        // Whoever holds it does it, or changes everything anyway.
        let Some(mut state) = self.state.try_lock() else { return };
        if self.due.load(Ordering::Relaxed) != due {
            return;
        }
        let period = u64::try_from(PERIOD.as_nanos()).unwrap_or(u64::MAX);
        let until = due + (nanos - due) / period * period;
        state.adjust(Duration::from_nanos(due - period), Duration::from_nanos(until), now);
        self.due.store(until + period, Ordering::Relaxed);
    }

    /// Seats for a request, perhaps after a while.
    ///
    /// # Errors
    /// There are none, and it may not or did not want to wait long enough.
    pub(crate) async fn enter(self: &Arc<Self>, request: &Entering<'_>) -> Result<Seat, Refused> {
        let now = self.now();
        self.tick(now);
        let Entering { asked, user, .. } = request;
        let class = self.plan.load().class_of(asked, user);
        let work = self.work(&class, request, now);
        class.flow.seats.number(work.seats());
        let hash = if class.spread {
            self.hasher.hash_one((&*class.spec.name, class.distinguisher(asked, user)))
        } else {
            0
        };
        let (id, waits) = {
            let mut queues = class.level.queues.lock();
            match queues.start(now, work, hash, &class.flow) {
                Start::Executes(id) => (id, None),
                Start::Waits(id) => {
                    let (waker, woken) = oneshot::channel();
                    queues.wake(id, waker, describe(&class, asked, user));
                    (id, Some(woken))
                }
                Start::Refused(_) => {
                    drop(queues);
                    if !class.exempt {
                        class.flow.waited_in_vain.time(Duration::ZERO);
                    }
                    return Err(Refused::new(class));
                }
            }
        };
        match waits {
            None => {
                if !class.exempt {
                    class.flow.waited.time(Duration::ZERO);
                }
                Ok(Seat::new(self, class, id, asked, now))
            }
            // Boxed, so that a request that need not wait is no larger.
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
    ) -> Result<Seat, Refused> {
        let reads = request.asked.is_read();
        self.waiting.add(since, reads, 1);
        let level = Arc::clone(&class.level);
        let mut place = Place { control: self, class, id, reads, since, left: false };
        self.look_after(&level);
        let most = request.limit.map_or(WAIT_LONG_LIVED, |limit| limit / 4).min(WAIT_MAX);
        let granted = tokio::time::timeout_at(request.arrived + most, woken).await.is_ok();
        if !granted && place.leave() {
            return Err(Refused::new(Arc::clone(&place.class)));
        }
        place.left = true;
        let now = self.now();
        place.class.flow.waited.time(now.saturating_sub(since));
        crate::request::scope::add_wait(
            crate::request::scope::WaitReason::Queue,
            now.saturating_sub(since),
        );
        Ok(Seat::new(self, Arc::clone(&place.class), id, &request.asked, now))
    }

    /// Does for those who wait at a level what is due at a time, as long as somebody waits.
    fn look_after(self: &Arc<Self>, level: &Arc<Level>) {
        if level.watched.swap(true, Ordering::AcqRel) {
            return;
        }
        let (control, level) = (Arc::clone(self), Arc::clone(level));
        let shutdown = self.tasks.shutdown().clone();
        self.tasks.spawn(Kind::Request, "flow-queue", async move {
            loop {
                control.tick(control.now());
                let lent = Duration::from_nanos(control.due.load(Ordering::Relaxed));
                let next = {
                    let mut queues = level.queues.lock();
                    queues.sync(control.now());
                    if queues.totals().waiting == 0 {
                        level.watched.store(false, Ordering::Release);
                        return Ok::<(), std::convert::Infallible>(());
                    }
                    queues.next_release().map_or(lent, |release| release.min(lent))
                };
                tokio::select! {
                    () = tokio::time::sleep_until(control.origin + next) => {}
                    () = level.bell.notified() => {}
                    () = shutdown.requested() => return Ok(()),
                }
            }
        });
    }

    /// How many seats a request takes.
    fn work(&self, class: &Class, request: &Entering<'_>, now: Duration) -> Work {
        let asked = &request.asked;
        if !asked.is_resource {
            return Work::of(1);
        }
        match asked.verb {
            "list" | "watch" => {
                width::of_list(asked, request.query, class.width, || self.size(asked, now))
            }
            // A token is no event, however many watch accounts.
            "create" if asked.resource == "serviceaccounts" && asked.subresource == "token" => {
                Work::of(1)
            }
            "create" | "update" | "patch" | "delete" => {
                let watches = self.watches.interested(asked);
                class.flow.watchers.number(watches);
                width::of_change(watches, class.width)
            }
            _ => Work::of(1),
        }
    }

    /// Number and size of a resource's objects, when they are in the watch cache.
    fn size(&self, asked: &Asked<'_>, now: Duration) -> Option<width::Objects> {
        let key = self.hasher.hash_one((asked.group, asked.version, asked.resource));
        let known = self.sizes.lock().get(&key).copied();
        if let Some((found, at)) = known
            && now.saturating_sub(at) < SIZES_AGE_MAX
        {
            return Some(found);
        }
        let row = self.objects.row(&Gvr::new(asked.group, asked.version, asked.resource)).ok()?;
        let cache = self.objects.caches().running(&row)?;
        let count =
            self.objects.caches().stats().into_iter().find_map(|(of, figures)| {
                (of.cache_key == row.cache_key).then_some(figures.objects)
            })?;
        let sample = cache.list(&Filter::default(), None, SAMPLE).items;
        let bytes: usize = sample.iter().map(|object| object.raw().len()).sum();
        let bytes = bytes.checked_div(sample.len()).unwrap_or_default();
        let found = width::Objects { count: count as u64, bytes: bytes as u64 };
        let mut sizes = self.sizes.lock();
        if sizes.len() >= SIZES_MAX {
            sizes.clear();
        }
        sizes.insert(key, (found, now));
        Some(found)
    }
}

/// A place in a queue, left when its request does not wait any longer.
struct Place<'a> {
    control: &'a Arc<Control>,
    class: Arc<Class>,
    id: u32,
    reads: bool,
    since: Duration,
    left: bool,
}

impl Place<'_> {
    /// Leaves the queue; false when it has its seats already.
    fn leave(&mut self) -> bool {
        let now = self.control.now();
        let left = self.class.level.queues.lock().cancel(now, self.id);
        if left {
            self.left = true;
            self.class.flow.waited_in_vain.time(now.saturating_sub(self.since));
        }
        left
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.control.waiting.add(self.control.now(), self.reads, -1);
        if self.left || self.leave() {
            return;
        }
        // The client has gone just when its seats came.
        let now = self.control.now();
        self.class.level.queues.lock().finish(now, self.id);
    }
}

/// What `dump_requests` says of a request that waits.
fn describe(class: &Class, asked: &Asked<'_>, user: &User) -> Description {
    let short = |text: &str| {
        let end = text.char_indices().nth(DESCRIBED_MAX).map_or(text.len(), |(at, _)| at);
        text.get(..end).unwrap_or_default().to_owned()
    };
    let version = match asked.group {
        "" => asked.version.to_owned(),
        group => format!("{group}/{}", asked.version),
    };
    let Asked { verb, path, namespace, name, resource, subresource, .. } = asked;
    let details: [&str; 8] =
        [&user.name, verb, path, namespace, name, &*version, resource, subresource];
    Description {
        distinguisher: short(class.distinguisher(asked, user)),
        details: details.map(short),
    }
}

#[cfg(test)]
mod tests;
