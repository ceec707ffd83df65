//! Upstream's scenarios (`queueset_test.go`): clients whose threads send requests in simulated
//! time, and the average seats of each client.

use std::collections::BTreeMap;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// A client with several threads; upstream's `uniformClient`.
#[derive(Debug, Clone)]
struct Client {
    hash: u64,
    threads: usize,
    calls: usize,
    executes: Duration,
    /// The pause between calls in nanoseconds; with -1 a call starts just before the previous one
    /// ends.
    thinks: i64,
    work: Work,
    /// Only half of the threads run in the first half.
    split: bool,
}

fn client(hash: u64, threads: usize, calls: usize, executes: Duration, thinks: i64) -> Client {
    let work = Work { initial: 1, last: 1, additional: Duration::ZERO };
    Client { hash, threads, calls, executes, thinks, work, split: false }
}

impl Client {
    fn wide(mut self, seats: u64) -> Self {
        self.work.initial = seats;
        self
    }

    fn pad(mut self, last: u64, additional: Duration) -> Self {
        (self.work.last, self.work.additional) = (last, additional);
        self
    }

    fn split(mut self) -> Self {
        self.split = true;
        self
    }
}

#[derive(Debug, Clone, Copy)]
enum Event {
    Call { client: usize, left: usize },
    Finish { client: usize, id: u32 },
    Release,
    Half,
    End,
}

/// The average seats of each client, in the first and second half or over the whole run.
struct Outcome {
    halves: Vec<Vec<f64>>,
    rejected: u64,
    flows: Vec<Arc<Flow>>,
    totals: Totals,
    demand: f64,
}

struct Run<'a> {
    queues: Queues,
    clients: &'a [Client],
    flows: Vec<Arc<Flow>>,
    seats: Vec<Integrator>,
    using: Vec<u64>,
    events: BTreeMap<(Duration, u64), Event>,
    sequence: u64,
    waiting: Vec<(usize, usize, u32)>,
    rejected: u64,
}

impl Run<'_> {
    fn later(&mut self, at: Duration, event: Event) {
        self.sequence += 1;
        self.events.insert((at, self.sequence), event);
    }

    fn executes(&mut self, now: Duration, client: usize, left: usize, id: u32) {
        let of = &self.clients[client];
        let (executes, thinks, seats) = (of.executes, of.thinks, of.work.initial);
        self.using[client] += seats;
        self.seats[client].set(now, self.using[client] as f64);
        let end = now + executes;
        let next =
            Duration::from_nanos(end.as_nanos() as u64).as_nanos() as i128 + i128::from(thinks);
        if left > 1 {
            self.later(Duration::from_nanos(next as u64), Event::Call { client, left: left - 1 });
        }
        self.later(end, Event::Finish { client, id });
    }

    /// Starts the requests that got seats meanwhile.
    fn granted(&mut self, now: Duration) {
        let (granted, waiting) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|(.., id)| self.queues.is_executing(*id));
        self.waiting = waiting;
        let granted: Vec<(usize, usize, u32)> = granted;
        for (client, left, id) in granted {
            self.executes(now, client, left, id);
        }
    }

    fn step(&mut self, now: Duration, event: Event) {
        match event {
            Event::Call { client, left } => {
                let of = &self.clients[client];
                match self.queues.start(now, of.work, of.hash, &self.flows[client]) {
                    Start::Executes(id) => self.executes(now, client, left, id),
                    Start::Waits(id) => self.waiting.push((client, left, id)),
                    Start::Rejected(_) => self.rejected += 1,
                }
            }
            Event::Finish { client, id } => {
                self.using[client] -= self.clients[client].work.initial;
                self.seats[client].set(now, self.using[client] as f64);
                self.queues.finish(now, id);
                if let Some(at) = self.queues.next_release() {
                    self.later(at, Event::Release);
                }
            }
            Event::Release => {
                self.queues.sync(now);
                if let Some(at) = self.queues.next_release() {
                    self.later(at, Event::Release);
                }
            }
            Event::Half | Event::End => {}
        }
        self.granted(now);
    }
}

fn run(shape: Shape, limit: u64, clients: &[Client], lasts: Duration) -> Outcome {
    let flows: Vec<Arc<Flow>> =
        (0..clients.len()).map(|i| Arc::new(Flow::new(&format!("client{i}"), "test"))).collect();
    let mut run = Run {
        queues: Queues::new(Duration::ZERO, shape, limit),
        clients,
        flows,
        seats: vec![Integrator::new(Duration::ZERO); clients.len()],
        using: vec![0; clients.len()],
        events: BTreeMap::new(),
        sequence: 0,
        waiting: Vec::new(),
        rejected: 0,
    };
    for (i, of) in clients.iter().enumerate() {
        for j in 0..of.threads {
            let mut begin = Duration::from_nanos((90 * j + 20 * i) as u64);
            let mut calls = of.calls;
            if of.split && j >= of.threads / 2 {
                begin += lasts / 2;
                calls /= 2;
            }
            run.later(begin, Event::Call { client: i, left: calls });
        }
    }
    if clients.iter().any(|of| of.split) {
        run.later(lasts / 2, Event::Half);
    }
    run.later(lasts, Event::End);
    let (mut halves, mut demand) = (Vec::new(), 0.0);
    while let Some(((now, _), event)) = run.events.pop_first() {
        if matches!(event, Event::Half | Event::End) {
            halves.push(run.seats.iter_mut().map(|i| i.reset(now).average).collect());
            demand = run.queues.demand().reset(now).average;
        }
        run.step(now, event);
    }
    let totals = run.queues.totals();
    assert!(run.queues.is_idle() && run.waiting.is_empty());
    assert_eq!((totals.seats_in_use, totals.seats_waiting), (0, 0));
    assert_eq!((run.queues.queue_seats, run.queues.active), (0, 0));
    assert!(run.queues.queues.is_empty());
    Outcome { halves, rejected: run.rejected, flows: run.flows, totals, demand }
}

fn queue(queues: u32, length: u32, hand: u32) -> Shape {
    Shape::Queue { queues, hand, length }
}

#[track_caller]
fn fair(averages: &[f64], expected: &[f64], margin: f64) {
    for (average, expected) in averages.iter().zip(expected) {
        let off = (average - expected).abs() / expected;
        assert!(off <= margin, "{averages:?}, expected {expected}");
    }
}

#[test]
fn a_single_client_gets_the_single_seat() {
    let outcome = run(queue(9, 8, 3), 1, &[client(1_001_001_001, 1, 21, SECOND, 0)], SECOND * 20);
    fair(&outcome.halves[0], &[1.0], 1e-9);
    assert_eq!(outcome.rejected, 0);
    let flow = &outcome.flows[0];
    assert_eq!((flow.waiting.get(), flow.waiting_seats.get()), (0, 0));
    assert_eq!((flow.executing.get(), flow.executing_seats.get()), (0, 0));
    assert_eq!(flow.dispatched.get(), 21);
}

/// Upstream's `TestExampt`.
#[test]
fn exempt_requests_are_not_limited() {
    for limit in [0, 2] {
        let clients = [client(1_001_001_001, 5, 20, SECOND, 1_000_000_000).wide(3)];
        let outcome = run(Shape::Exempt, limit, &clients, SECOND * 40);
        fair(&outcome.halves[0], &[7.5], 1e-8);
        assert_eq!(outcome.rejected, 0);
        fair(&[outcome.demand], &[7.5], 1e-8);
    }
}

/// Upstream's `TestSeparations`: think, pad, last seats, limit, clients, what each gets.
#[test]
fn lingering_seats_are_not_available() {
    for (think, pad, last, limit, clients, expected) in [
        (1000, 0, 1, 1, 1, 0.5),
        (1000, 0, 1, 2, 1, 0.5),
        (1000, 0, 2, 2, 1, 0.5),
        (1000, 0, 1, 1, 2, 0.5),
        (1000, 0, 1, 2, 2, 0.5),
        (1000, 0, 2, 2, 2, 0.5),
        (0, 1000, 1, 1, 1, 0.5),
        (0, 1000, 1, 2, 1, 1.0),
        (0, 1000, 2, 2, 1, 0.5),
        (0, 1000, 1, 1, 2, 0.25),
        (0, 1000, 1, 2, 2, 0.5),
        (0, 1000, 2, 2, 2, 0.25),
        (1000, 500, 1, 1, 1, 0.5),
        (1000, 500, 1, 2, 1, 0.5),
        (1000, 500, 2, 2, 1, 0.5),
        (1000, 500, 1, 1, 2, 1.0 / 3.0),
        (1000, 500, 1, 2, 2, 0.5),
        (1000, 500, 2, 2, 2, 1.0 / 3.0),
        (500, 1000, 1, 1, 1, 0.5),
        (500, 1000, 1, 2, 1, 2.0 / 3.0),
        (500, 1000, 2, 2, 1, 0.5),
        (500, 1000, 1, 1, 2, 0.25),
        (500, 1000, 1, 2, 2, 0.5),
        (500, 1000, 2, 2, 2, 0.25),
    ] {
        let of = |hash| {
            client(hash, 1, 25, SECOND, think * 1_000_000).pad(last, Duration::from_millis(pad))
        };
        let all = [of(1_001_001_001), of(2_002_002_002)];
        let outcome = run(queue(9, 8, 3), limit, &all[..clients], SECOND * 24);
        // Threads start some nanoseconds apart.
        fair(&outcome.halves[0], &[expected; 2][..clients], 1e-7);
        assert_eq!(outcome.rejected, 0);
    }
}

/// Upstream's `TestUniformFlowsHandSize1` and `TestUniformFlowsHandSize3`.
#[test]
fn equal_flows_get_equal_shares() {
    let clients = [
        client(1_001_001_001, 8, 20, SECOND, 999_999_999),
        client(2_002_002_002, 8, 20, SECOND, 999_999_999),
    ];
    let outcome = run(queue(9, 8, 1), 4, &clients, SECOND * 50);
    fair(&outcome.halves[0], &[2.0, 2.0], 0.01);
    assert_eq!(outcome.rejected, 0);
    let clients = [
        client(400_900_100_100, 8, 30, SECOND, 999_999_999),
        client(300_900_200_200, 8, 30, SECOND, 999_999_999),
    ];
    let outcome = run(queue(8, 16, 3), 4, &clients, SECOND * 60);
    fair(&outcome.halves[0], &[2.0, 2.0], 0.03);
    assert_eq!(outcome.rejected, 0);
}

/// Upstream's `TestDifferentFlowsExpectEqual` and `TestDifferentFlowsExpectUnequal`.
#[test]
fn a_flow_gets_at_most_its_demand_and_the_other_gets_the_rest() {
    let clients = [
        client(1_001_001_001, 8, 20, SECOND, 1_000_000_000),
        client(2_002_002_002, 7, 30, SECOND, 500_000_000),
    ];
    let outcome = run(queue(9, 8, 1), 4, &clients, SECOND * 40);
    fair(&outcome.halves[0], &[2.0, 2.0], 0.01);
    assert_eq!(outcome.rejected, 0);
    let clients = [
        client(1_001_001_001, 4, 20, SECOND, 999_999_999),
        client(2_002_002_002, 2, 20, SECOND, 999_999_999),
    ];
    let outcome = run(queue(9, 6, 1), 3, &clients, SECOND * 20);
    fair(&outcome.halves[0], &[2.0, 1.0], 0.01);
    assert_eq!(outcome.rejected, 0);
}

/// Upstream's `TestSeatSecondsRollover`: ten years with 2000 seats, R is decremented eight times.
#[test]
fn decrementing_r_does_not_affect_fairness() {
    let quarter = SECOND * 91 * 24 * 3600;
    let nanos = quarter.as_nanos() as i64;
    let clients = [
        client(1_001_001_001, 8, 20, quarter, nanos).wide(500),
        client(2_002_002_002, 7, 30, quarter, nanos / 2).wide(500),
    ];
    let outcome = run(queue(9, 8, 1), 2000, &clients, quarter * 40);
    fair(&outcome.halves[0], &[1000.0, 1000.0], 0.01);
    assert_eq!((outcome.rejected, outcome.totals.epochs), (0, 8));
}

/// Upstream's `TestDifferentWidths` and `TestTooWide`.
#[test]
fn wide_requests_get_a_fair_share_of_seats() {
    let clients = [
        client(10_010_010_010_010, 13, 10, SECOND, 999_999_999),
        client(20_020_020_020_020, 7, 10, SECOND, 999_999_999).wide(2),
    ];
    let outcome = run(queue(64, 13, 7), 6, &clients, SECOND * 20);
    fair(&outcome.halves[0], &[3.0, 3.0], 0.155);
    assert_eq!(outcome.rejected, 0);
    let of = |hash, wide| client(hash, 15, 21, SECOND, 999_999_999).wide(wide);
    let clients = [
        of(40_040_040_040_040, 2),
        of(50_050_050_050_050, 2),
        of(60_060_060_060_060, 2),
        of(70_070_070_070_070, 2),
        of(90_090_090_090_090, 7),
    ];
    let outcome = run(queue(64, 35, 7), 6, &clients, SECOND * 400);
    fair(&outcome.halves[0], &[1.2; 5], 0.35);
    assert_eq!(outcome.rejected, 0);
}

/// Upstream's `TestWindup`: fair in the first half; unfair within bounds in the second.
#[test]
fn unused_seats_are_saved_up_within_bounds() {
    let clients = [
        client(1_001_001_001, 2, 40, SECOND, -1),
        client(2_002_002_002, 2, 40, SECOND, -1).split(),
    ];
    let outcome = run(queue(9, 6, 1), 3, &clients, SECOND * 40);
    fair(&outcome.halves[0], &[2.0, 1.0], 0.01);
    fair(&outcome.halves[1], &[1.5, 1.5], 0.26);
    let off = (outcome.halves[1][0] - 1.5).abs() / 1.5;
    assert!(off > 0.1, "{:?}", outcome.halves);
    assert_eq!(outcome.rejected, 0);
}

/// Upstream's `TestDifferentFlowsWithoutQueuing`.
#[test]
fn without_queues_requests_without_a_seat_are_rejected() {
    let clients = [
        client(1_001_001_001, 6, 10, SECOND, 57_000_000),
        client(2_002_002_002, 4, 15, SECOND, 750_000_000),
    ];
    let outcome = run(Shape::Reject, 4, &clients, SECOND * 13);
    assert!(outcome.rejected > 0);
    let counted: u64 =
        outcome.flows.iter().map(|flow| flow.rejected(Reason::ConcurrencyLimit).get()).sum();
    assert_eq!((outcome.totals.rejected, counted), (outcome.rejected, outcome.rejected));
}

/// Upstream's `TestContextCancel`, and a full queue.
#[test]
fn a_cancelled_request_leaves_the_queue() {
    let flow = Arc::new(Flow::new("f", "l"));
    let mut queues = Queues::new(Duration::ZERO, queue(1, 1, 1), 1);
    let at = Duration::from_millis;
    assert_eq!(queues.start(at(0), Work::of(1), 1, &flow), Start::Executes(0));
    assert_eq!(queues.start(at(1), Work::of(1), 2, &flow), Start::Waits(1));
    assert_eq!(queues.start(at(2), Work::of(1), 3, &flow), Start::Rejected(Reason::QueueFull));
    assert_eq!(flow.waiting.get(), 1);
    assert!(queues.cancel(at(1000), 1));
    assert_eq!((flow.waiting.get(), flow.rejected(Reason::TimeOut).get()), (0, 1));
    assert!(!queues.is_idle());
    assert_eq!(queues.start(at(1001), Work::of(1), 2, &flow), Start::Waits(1));
    let (waker, mut woken) = oneshot::channel();
    queues.wake(1, waker, Description::default());
    queues.finish(at(1002), 0);
    assert_eq!(woken.try_recv(), Ok(()));
    // It has its seat, so it must be finished instead.
    assert!(!queues.cancel(at(1003), 1));
    queues.finish(at(1003), 1);
    assert!(queues.is_idle() && queues.queues.is_empty());
}

/// More seats and fewer queues take effect at once; waiting requests are kept.
#[test]
fn a_changed_configuration_applies_to_waiting_requests() {
    let flow = Arc::new(Flow::new("f", "l"));
    let mut queues = Queues::new(Duration::ZERO, queue(8, 10, 1), 1);
    let at = Duration::from_millis;
    for hash in 0..4 {
        queues.start(at(0), Work::of(1), hash, &flow);
    }
    assert_eq!(queues.totals().waiting, 3);
    queues.configure(at(1), Shape::Reject, 3, 3);
    assert_eq!((queues.totals().waiting, queues.totals().executing), (1, 3));
    assert_eq!(
        queues.start(at(2), Work::of(1), 9, &flow),
        Start::Rejected(Reason::ConcurrencyLimit)
    );
    queues.finish(at(3), 0);
    assert_eq!((queues.totals().waiting, queues.totals().executing), (0, 3));
}
