//! The seats and queues of one priority level: fair queuing by virtual time (upstream's
//! `fairqueuing/queueset`).
//!
//! Without I/O except that it wakes waiting requests; callers pass the time since some origin.
//! Unlike upstream, a queue exists only while it has waiting or executing requests or lingering
//! seats. That is equivalent, because the first request of an idle queue resets its virtual start.
//! Lingering seats (those with additional latency) are released by the next call, with the time at
//! which they were due, so that no timer is needed while no request waits.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::integrator::Integrator;
use super::seats::{SeatSeconds, Work};
use super::timing::Timings;
use crate::priority_and_fairness::level_counters::{Flow, Reason};
use crate::priority_and_fairness::shuffle_sharding;

mod list;

use list::{Queue, Requests};

/// The estimated duration of a request (upstream's `estimatedServiceDuration`).
const SERVICE: Duration = Duration::from_millis(3);
/// The amount by which the progress meter R is decremented before it overflows.
const R_DECREMENT: u64 = u64::MAX / 2;
/// The value of R from which it is decremented.
const R_HIGH: u64 = R_DECREMENT + R_DECREMENT / 2;

/// The handling of requests that exceed the seats of a level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// The seats are unlimited.
    Exempt,
    /// They are rejected.
    Reject,
    /// They wait.
    Queue {
        /// The number of queues.
        queues: u32,
        /// The number of candidate queues of a flow (`handSize`).
        hand: u32,
        /// The maximum number of waiting requests per queue.
        length: u32,
    },
}

/// The outcome of [`Queues::start`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// The request with this id has its seats.
    Executes(u32),
    /// The request with this id waits; [`Queues::wake`] sets the receiver of its seats.
    Waits(u32),
    /// The request is rejected.
    Rejected(Reason),
}

/// A request that has seats or waits for them.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) flow: Arc<Flow>,
    /// The index of the queue; `None` if the level has no queues.
    pub(crate) queue: Option<u32>,
    pub(crate) work: Work,
    total: SeatSeconds,
    last: SeatSeconds,
    pub(crate) arrived: Duration,
    arrival_r: SeatSeconds,
    pub(crate) started: Option<Duration>,
    waker: Option<oneshot::Sender<()>>,
    /// The description of a request that had to wait.
    pub(crate) description: Option<Box<Description>>,
    /// The previous request in the queue.
    previous: Option<u32>,
    /// The next request in the queue.
    next: Option<u32>,
}

/// The description of a request in `dump_requests`.
#[derive(Debug, Default)]
pub(crate) struct Description {
    /// The flow distinguisher.
    pub(crate) distinguisher: String,
    /// User, verb, path, namespace, name, group and version, resource, subresource.
    pub(crate) details: [String; 8],
}

/// Seats that stay occupied after the response, for the additional latency of a request.
#[derive(Debug)]
struct Lingering {
    until: Duration,
    queue: Option<u32>,
    seats: u64,
    flow: Arc<Flow>,
}

impl PartialEq for Lingering {
    fn eq(&self, other: &Self) -> bool {
        self.until == other.until
    }
}

impl Eq for Lingering {}

impl PartialOrd for Lingering {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Lingering {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.until.cmp(&other.until)
    }
}

/// The totals of a level.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) waiting: usize,
    pub(crate) executing: usize,
    pub(crate) seats_in_use: u64,
    pub(crate) seats_waiting: u64,
    pub(crate) dispatched: u64,
    pub(crate) rejected: u64,
    pub(crate) cancelled: u64,
    pub(crate) epochs: u64,
}

/// The last dispatch from a queue, for metrics: R, S, and the minimum and maximum of S over queues.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Dispatched {
    pub(crate) r: SeatSeconds,
    pub(crate) s: SeatSeconds,
    pub(crate) bounds: (SeatSeconds, SeatSeconds),
    pub(crate) discounted: (SeatSeconds, SeatSeconds),
}

/// The seats and queues of one priority level.
#[derive(Debug)]
pub(crate) struct Queues {
    shape: Shape,
    limit: u64,
    queues: Vec<Queue>,
    requests: Requests,
    lingering: BinaryHeap<Reverse<Lingering>>,
    current_r: SeatSeconds,
    last: Duration,
    /// The index of the queue of the last dispatch, for round robin.
    robin: u32,
    enqueues: usize,
    totals: Totals,
    /// The seats of queued and executing requests that went through a queue.
    queue_seats: u64,
    active: usize,
    demand: Integrator,
    dispatched: Dispatched,
    timings: Timings,
}

impl Queues {
    /// Creates an idle level.
    pub(crate) fn new(now: Duration, shape: Shape, limit: u64) -> Self {
        Self {
            shape,
            limit,
            queues: Vec::new(),
            requests: Requests::default(),
            lingering: BinaryHeap::new(),
            current_r: SeatSeconds::default(),
            last: now,
            robin: 0,
            enqueues: 0,
            totals: Totals::default(),
            queue_seats: 0,
            active: 0,
            demand: Integrator::new(now),
            dispatched: Dispatched::default(),
            timings: Timings::new(now),
        }
    }

    /// Changes shape and seats; `divisor` is the denominator of utilization metrics. Waiting
    /// requests stay in their queues.
    pub(crate) fn configure(&mut self, now: Duration, shape: Shape, limit: u64, divisor: u64) {
        self.sync(now);
        self.timings.set_denominator(now, shape, divisor);
        self.shape = shape;
        self.limit = limit;
        self.dispatch_all(now);
    }

    /// Starts or queues a request; `hash` is the hash of its flow.
    pub(crate) fn start(
        &mut self,
        now: Duration,
        work: Work,
        hash: u64,
        flow: &Arc<Flow>,
    ) -> Start {
        self.sync(now);
        let Shape::Queue { queues, hand, length } = self.shape else {
            if !self.accommodates(work.seats()) {
                return self.reject(flow, Reason::ConcurrencyLimit);
            }
            let id = self.requests.add(self.request(now, work, None, flow));
            self.execute(now, id);
            return Start::Executes(id);
        };
        let index = self.choose_queue(queues, hand, hash);
        let found = list::find(&self.queues, index);
        let waiting = found.ok().and_then(|at| self.queues.get(at)).map_or(0, |q| q.waiting);
        if self.totals.seats_in_use >= self.limit && waiting >= length as usize {
            return self.reject(flow, Reason::QueueFull);
        }
        let id = self.requests.add(self.request(now, work, Some(index), flow));
        self.enqueue(now, index, id);
        self.dispatch_all(now);
        if self.requests.get(id).is_some_and(|request| request.started.is_some()) {
            return Start::Executes(id);
        }
        Start::Waits(id)
    }

    /// Sets the channel that is notified when a waiting request gets its seats.
    pub(crate) fn wake(&mut self, id: u32, waker: oneshot::Sender<()>, description: Description) {
        if let Some(request) = self.requests.get_mut(id) {
            request.waker = Some(waker);
            request.description = Some(Box::new(description));
        }
    }

    /// Whether the request has its seats.
    pub(crate) fn is_executing(&self, id: u32) -> bool {
        self.requests.get(id).is_some_and(|request| request.started.is_some())
    }

    /// Removes a waiting request from its queue; returns `false` if it has its seats already.
    pub(crate) fn cancel(&mut self, now: Duration, id: u32) -> bool {
        self.sync(now);
        if self.is_executing(id) {
            return false;
        }
        let Some(request) = self.requests.take(&mut self.queues, id) else { return true };
        self.leave_queue(now, &request);
        self.totals.rejected += 1;
        self.totals.cancelled += 1;
        request.flow.rejected(Reason::TimeOut).add();
        self.queue_changed(request.queue);
        true
    }

    /// Ends a request; its seats are released now or after its additional latency.
    pub(crate) fn finish(&mut self, now: Duration, id: u32) {
        self.sync(now);
        let Some(request) = self.requests.remove(id) else { return };
        self.totals.executing -= 1;
        self.timings.update(now, &self.totals);
        request.flow.executing.add(-1);
        let served = now.saturating_sub(request.started.unwrap_or(now));
        if let Some(queue) = request.queue.and_then(|index| list::get_mut(&mut self.queues, index))
        {
            queue.executing -= 1;
            if queue.executing == 0 && queue.waiting == 0 {
                self.active -= 1;
            }
            // Correct the virtual start, which assumed the estimated duration.
            let seats = request.work.initial as f64;
            let start = queue.next_r.minus(SeatSeconds::of(seats, SERVICE));
            queue.next_r = start.plus(SeatSeconds::of(seats, served));
            list::bound(queue, &self.requests);
        }
        let lingering = Lingering {
            until: now + request.work.additional,
            queue: request.queue,
            seats: request.work.seats(),
            flow: request.flow,
        };
        if request.work.additional.is_zero() {
            self.release(now, &lingering);
        } else {
            self.lingering.push(Reverse(lingering));
        }
        self.dispatch_all(now);
    }

    /// The time at which the next lingering seats are released.
    pub(crate) fn next_release(&self) -> Option<Duration> {
        self.lingering.peek().map(|Reverse(lingering)| lingering.until)
    }

    /// Advances the state to `now`: releases lingering seats that are due, and dispatches requests.
    pub(crate) fn sync(&mut self, now: Duration) {
        while self.lingering.peek().is_some_and(|Reverse(lingering)| lingering.until <= now) {
            let Some(Reverse(due)) = self.lingering.pop() else { break };
            self.advance(due.until);
            self.release(due.until, &due);
            self.dispatch_all(due.until);
        }
        self.advance(now);
    }

    /// Whether no request waits or executes.
    pub(crate) fn is_idle(&self) -> bool {
        self.totals.waiting == 0 && self.totals.executing == 0
    }

    pub(crate) fn totals(&self) -> Totals {
        self.totals
    }

    /// The demand for seats over time.
    pub(crate) fn demand(&mut self) -> &mut Integrator {
        &mut self.demand
    }

    /// The utilization histograms until `now`.
    pub(crate) fn timings(&mut self, now: Duration) -> &Timings {
        self.timings.advance(now);
        &self.timings
    }

    /// The progress meter R and the last dispatch.
    pub(crate) fn progress(&self) -> (SeatSeconds, Dispatched) {
        (self.current_r, self.dispatched)
    }

    /// The number of queues, and the non-empty ones in the order of their index.
    pub(crate) fn queues(&self) -> (u32, &[Queue]) {
        let count = match self.shape {
            Shape::Queue { queues, .. } => queues,
            Shape::Exempt | Shape::Reject => 0,
        };
        (count, &self.queues)
    }

    /// The waiting requests of a queue, the oldest first.
    pub(crate) fn waiting<'a>(&'a self, queue: &Queue) -> impl Iterator<Item = &'a Request> {
        let mut next = queue.head;
        std::iter::from_fn(move || {
            let request = self.requests.get(next?)?;
            next = request.next;
            Some(request)
        })
    }

    /// The executing requests.
    pub(crate) fn executing(&self) -> impl Iterator<Item = &Request> {
        self.requests.all().filter(|request| request.started.is_some())
    }

    fn reject(&mut self, flow: &Flow, reason: Reason) -> Start {
        self.totals.rejected += 1;
        flow.rejected(reason).add();
        Start::Rejected(reason)
    }

    fn request(&self, now: Duration, work: Work, queue: Option<u32>, flow: &Arc<Flow>) -> Request {
        let last = SeatSeconds::of(work.last as f64, work.additional);
        Request {
            flow: Arc::clone(flow),
            queue,
            work,
            total: SeatSeconds::of(work.initial as f64, SERVICE).plus(last),
            last,
            arrived: now,
            arrival_r: self.current_r,
            started: None,
            waker: None,
            description: None,
            previous: None,
            next: None,
        }
    }

    /// The queue with the least waiting work among those of the flow's hand. Each call starts at
    /// another queue of the hand, so that ties do not favor the first one.
    fn choose_queue(&mut self, queues: u32, hand: u32, hash: u64) -> u32 {
        let hand = shuffle_sharding::deal(queues, hand, hash);
        let cards = hand.cards();
        let offset = self.enqueues % cards.len().max(1);
        self.enqueues = self.enqueues.wrapping_add(1);
        let (mut best, mut least) = (0, SeatSeconds::MAX);
        for card in cards.iter().cycle().skip(offset).take(cards.len()) {
            let found = list::find(&self.queues, *card).ok().and_then(|at| self.queues.get(at));
            let work = found.map_or(SeatSeconds(0), |queue| queue.work);
            if work < least {
                (best, least) = (*card, work);
            }
        }
        best
    }

    fn enqueue(&mut self, now: Duration, index: u32, id: u32) {
        let at = list::find(&self.queues, index).unwrap_or_else(|at| {
            self.queues.insert(at, Queue::new(index));
            at
        });
        let Some(queue) = self.queues.get_mut(at) else { return };
        if queue.waiting == 0 && queue.executing == 0 {
            queue.next_r = self.current_r;
            self.active += 1;
        }
        self.requests.append(queue, id);
        list::bound(queue, &self.requests);
        let length = queue.waiting as u64;
        let Some(request) = self.requests.get(id) else { return };
        let seats = request.work.seats();
        request.flow.waiting.add(1);
        request.flow.waiting_seats.add(seats.cast_signed());
        request.flow.queue_length.number(length);
        self.totals.waiting += 1;
        self.totals.seats_waiting += seats;
        self.queue_seats += seats;
        self.demand_changed(now);
    }

    /// Updates the totals after a request has left its queue.
    fn leave_queue(&mut self, now: Duration, request: &Request) {
        let seats = request.work.seats();
        self.totals.waiting -= 1;
        self.totals.seats_waiting -= seats;
        self.queue_seats -= seats;
        request.flow.waiting.add(-1);
        request.flow.waiting_seats.add(-seats.cast_signed());
        self.demand_changed(now);
    }

    /// Updates a queue after a request has left it without being dispatched.
    fn queue_changed(&mut self, index: Option<u32>) {
        let Some(at) = index.and_then(|index| list::find(&self.queues, index).ok()) else { return };
        let Some(queue) = self.queues.get_mut(at) else { return };
        list::bound(queue, &self.requests);
        if queue.waiting == 0 && queue.executing == 0 {
            self.active -= 1;
            if queue.seats_in_use == 0 {
                self.queues.remove(at);
            }
        }
    }

    fn dispatch_all(&mut self, now: Duration) {
        while self.totals.waiting > 0 && self.totals.seats_in_use < self.limit && self.dispatch(now)
        {
        }
    }

    /// Dispatches the oldest request of the queue with the earliest virtual finish; returns `false`
    /// if there are not enough seats for it.
    fn dispatch(&mut self, now: Duration) -> bool {
        let Some((at, id)) = self.next_request() else { return false };
        let Some(queue) = self.queues.get_mut(at) else { return false };
        self.requests.unlink(queue, id);
        let Some(request) = self.requests.get_mut(id) else { return false };
        let requested = request.work.seats();
        // A request that is wider than the level gets all seats, for a longer time.
        if request.work.last > self.limit {
            request.work.last = self.limit;
            request.work.additional = request.last.per_seat(self.limit as f64);
        }
        let seats = request.work.seats();
        request.flow.waiting.add(-1);
        request.flow.waiting_seats.add(-requested.cast_signed());
        self.totals.waiting -= 1;
        self.totals.seats_waiting -= requested;
        self.queue_seats = self.queue_seats + seats - requested;
        let start = queue.next_r;
        queue.executing += 1;
        queue.seats_in_use += seats;
        queue.next_r = start.plus(request.total);
        self.robin = queue.index;
        list::bound(queue, &self.requests);
        self.dispatched.r = self.current_r;
        self.dispatched.s = start;
        self.execute(now, id);
        true
    }

    /// Assigns its seats to a request.
    fn execute(&mut self, now: Duration, id: u32) {
        let Some(request) = self.requests.get_mut(id) else { return };
        request.started = Some(now);
        let seats = request.work.seats();
        request.flow.executing.add(1);
        request.flow.executing_seats.add(seats.cast_signed());
        request.flow.dispatched.add();
        if let Some(waker) = request.waker.take() {
            // If the client has disconnected meanwhile, its guard releases the seats.
            let _ = waker.send(());
        }
        self.totals.executing += 1;
        self.totals.seats_in_use += seats;
        self.totals.dispatched += 1;
        self.demand_changed(now);
    }

    /// The queue to dispatch from and its oldest request; `None` if there are not enough seats.
    fn next_request(&mut self) -> Option<(usize, u32)> {
        let first = self.queues.partition_point(|queue| queue.index <= self.robin);
        let order = (first..self.queues.len()).chain(0..first);
        let mut best: Option<(SeatSeconds, usize, u32)> = None;
        let (mut low, mut high) = (SeatSeconds::MAX, SeatSeconds(0));
        let (mut low_less, mut high_less) = (SeatSeconds::MAX, SeatSeconds(0));
        for at in order {
            let Some(queue) = self.queues.get(at) else { continue };
            let Some((id, oldest)) = queue.head.and_then(|id| Some((id, self.requests.get(id)?)))
            else {
                continue;
            };
            let start = queue.next_r;
            let less = start.minus(SeatSeconds::of(queue.seats_in_use as f64, SERVICE));
            (low, high) = (low.min(start), high.max(start));
            (low_less, high_less) = (low_less.min(less), high_less.max(less));
            let finish = start.plus(oldest.total);
            if best.is_none_or(|(least, ..)| finish < least) {
                best = Some((finish, at, id));
            }
        }
        let (_, at, id) = best?;
        let oldest = self.requests.get(id)?;
        if !self.accommodates(oldest.work.seats()) {
            oldest.flow.no_accommodation.add();
            return None;
        }
        self.dispatched.bounds = (low, high);
        self.dispatched.discounted = (low_less, high_less);
        Some((at, id))
    }

    /// Whether so many seats are free. A request that is wider than the level executes alone.
    fn accommodates(&self, seats: u64) -> bool {
        if self.shape == Shape::Exempt {
            return true;
        }
        if seats > self.limit {
            return self.totals.executing == 0;
        }
        self.totals.seats_in_use + seats <= self.limit
    }

    fn release(&mut self, now: Duration, seats: &Lingering) {
        self.totals.seats_in_use -= seats.seats;
        seats.flow.executing_seats.add(-seats.seats.cast_signed());
        self.demand_changed(now);
        let Some(index) = seats.queue else { return };
        self.queue_seats -= seats.seats;
        let Ok(at) = list::find(&self.queues, index) else { return };
        let Some(queue) = self.queues.get_mut(at) else { return };
        queue.seats_in_use -= seats.seats;
        if queue.waiting == 0 && queue.executing == 0 && queue.seats_in_use == 0 {
            self.queues.remove(at);
        }
    }

    fn demand_changed(&mut self, now: Duration) {
        let seats = self.totals.seats_in_use + self.totals.seats_waiting;
        self.demand.set(now, seats as f64);
        self.timings.update(now, &self.totals);
    }

    /// Advances virtual time at the rate of seats per active queue.
    fn advance(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.last);
        self.last = self.last.max(now);
        if self.active == 0 || passed.is_zero() {
            return;
        }
        let ratio = self.queue_seats.min(self.limit) as f64 / self.active as f64;
        self.current_r = self.current_r.plus(SeatSeconds::of(ratio, passed));
        if self.current_r.0 >= R_HIGH {
            self.decrement_r();
        }
    }

    /// Decrements R and all values derived from it, to prevent an overflow.
    fn decrement_r(&mut self) {
        let decrement = SeatSeconds(R_DECREMENT);
        self.current_r = self.current_r.minus(decrement);
        self.totals.epochs += 1;
        for queue in &mut self.queues {
            queue.next_r = queue.next_r.minus(decrement);
        }
        for request in self.requests.all_mut() {
            request.arrival_r = request.arrival_r.minus(decrement);
        }
    }
}

#[cfg(test)]
mod tests;
