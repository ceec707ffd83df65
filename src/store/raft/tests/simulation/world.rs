//! State that clients share: the doors to the running machines, and the book of all calls,
//! responses and events.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use base::tasks::{Kind, Shutdown, Tasks};
use futures::FutureExt;
use parking_lot::Mutex;

use super::model::{Call, Reply};
use super::trace::Trace;
use crate::contract::{Backend, Event, KeyRange, StoreError};
use crate::log::sim::Rng;

/// Access to a running machine; ends with it.
#[derive(Debug, Clone)]
pub(super) struct Door {
    pub(super) machine: usize,
    /// The number of the machine's start.
    pub(super) life: u64,
    pub(super) store: Arc<dyn Backend>,
    pub(super) gone: Shutdown,
}

/// Outcome of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    /// A response was received.
    Reply(Reply),
    /// The call was refused and changed nothing.
    Refused(String),
    /// The outcome is unknown.
    Unknown(String),
}

/// A call.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) client: usize,
    pub(super) machine: usize,
    pub(super) life: u64,
    /// Positions in the order of all events.
    pub(super) begun: u64,
    pub(super) ended: u64,
    /// Start time in microseconds.
    pub(super) begun_at: u64,
    pub(super) call: Call,
    pub(super) outcome: Outcome,
}

/// A change of one key, as a watch delivered it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WatchedEvent {
    pub(super) key: u8,
    pub(super) revision: i64,
    pub(super) deleted: bool,
    pub(super) value: u64,
    pub(super) create: i64,
    pub(super) version: i64,
    pub(super) lease: i64,
    /// Revision of the previous version; 0 if there is none.
    pub(super) before: i64,
}

pub(super) fn key(number: u8) -> String {
    format!("k{number}")
}

pub(super) fn key_range(keys: &std::ops::Range<u8>) -> KeyRange {
    if keys.len() == 1 {
        return KeyRange::key(key(keys.start));
    }
    KeyRange { start: key(keys.start).into(), end: key(keys.end).into() }
}

pub(super) fn number(text: &[u8]) -> u64 {
    std::str::from_utf8(text).unwrap().trim_start_matches('k').parse().unwrap()
}

/// The value with this number: every second one is so large that segments of the log fill and
/// values are read from files.
pub(super) fn value(number: u64) -> String {
    let times =
        if number.is_multiple_of(2) { 200 + usize::try_from(number % 7).unwrap() * 500 } else { 1 };
    format!("{number} ").repeat(times)
}

/// The number of a complete and correct value.
pub(super) fn value_number(text: &[u8]) -> u64 {
    let first = text.split(|byte| *byte == b' ').next().unwrap_or_default();
    let found = number(first);
    assert!(value(found).as_bytes() == text, "not the value {found}");
    found
}

impl WatchedEvent {
    pub(super) fn of(event: &Event) -> Self {
        let kv = &event.kv;
        Self {
            key: u8::try_from(number(&kv.key)).unwrap(),
            revision: kv.mod_revision.0,
            deleted: event.deleted,
            value: if event.deleted { 0 } else { value_number(&kv.value) },
            create: kv.create_revision.0,
            version: kv.version,
            lease: kv.lease,
            before: event.prev.as_ref().map_or(0, |kv| kv.mod_revision.0),
        }
    }
}

/// A revision as it was first seen on any machine.
#[derive(Debug)]
pub(super) struct Witnessed {
    pub(super) events: Vec<WatchedEvent>,
    /// Position in the order of all events, and the time in microseconds.
    pub(super) applied_state: u64,
    pub(super) at: u64,
}

/// The events that one watcher received, over all machines.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) keys: std::ops::Range<u8>,
    /// The requested start revision.
    pub(super) first: i64,
    /// The revision of the last progress notification.
    pub(super) told: i64,
    pub(super) events: Vec<WatchedEvent>,
    /// Whether a compaction cancelled it.
    pub(super) ended: bool,
}

/// All calls, responses and events.
#[derive(Debug, Default)]
pub(super) struct Book {
    applied_state: u64,
    pub(super) records: Vec<Record>,
    pub(super) seen: BTreeMap<i64, Witnessed>,
    pub(super) streams: Vec<Stream>,
    /// Granted leases: seconds, and the start of the last answered renewal in microseconds.
    pub(super) leases: BTreeMap<i64, (i64, u64)>,
    /// The first violation.
    pub(super) wrong: Option<String>,
    values: u64,
}

impl Book {
    pub(super) fn next_place(&mut self) -> u64 {
        self.applied_state += 1;
        self.applied_state
    }

    pub(super) fn next_value(&mut self) -> u64 {
        self.values += 1;
        self.values
    }

    /// Newest revision seen on any machine.
    pub(super) fn newest(&self) -> i64 {
        self.seen.last_key_value().map_or(1, |(revision, _)| *revision)
    }

    pub(super) fn blame(&mut self, wrong: String) {
        self.wrong.get_or_insert(wrong);
    }
}

#[derive(Debug)]
struct Inner {
    trace: Trace,
    book: Mutex<Book>,
    doors: Mutex<BTreeMap<usize, Door>>,
    clients: Tasks,
    watchers: Tasks,
}

/// Shared state of a run; clones share it.
#[derive(Debug, Clone)]
pub(super) struct World(Arc<Inner>);

impl World {
    pub(super) fn new(trace: Trace) -> Self {
        let (clients, watchers) = (Tasks::new(Shutdown::new()), Tasks::new(Shutdown::new()));
        let (book, doors) = (Mutex::default(), Mutex::default());
        Self(Arc::new(Inner { trace, book, doors, clients, watchers }))
    }

    pub(super) fn trace(&self) -> &Trace {
        &self.0.trace
    }

    pub(super) fn book(&self) -> parking_lot::MutexGuard<'_, Book> {
        self.0.book.lock()
    }

    pub(super) fn clients(&self) -> &Tasks {
        &self.0.clients
    }

    pub(super) fn watchers(&self) -> &Tasks {
        &self.0.watchers
    }

    /// Runs a task of the clients or watchers; a panic fails the run.
    pub(super) fn spawn(&self, tasks: &Tasks, future: impl Future<Output = ()> + Send + 'static) {
        let world = self.clone();
        tasks.spawn(Kind::Request, "client", async move {
            if AssertUnwindSafe(future).catch_unwind().await.is_err() {
                world.book().blame("a client panicked".to_owned());
            }
            Ok::<(), StoreError>(())
        });
    }

    pub(super) fn open(&self, machine: usize, life: u64, store: &Arc<dyn Backend>) {
        let door = Door { machine, life, store: Arc::clone(store), gone: Shutdown::new() };
        self.0.doors.lock().insert(machine, door.clone());
        super::watchers::witness(self, door);
    }

    pub(super) fn close(&self, machine: usize) {
        if let Some(door) = self.0.doors.lock().remove(&machine) {
            door.gone.request();
        }
    }

    /// The door of this machine if it runs, otherwise of any.
    pub(super) fn door(&self, machine: usize, rng: &mut Rng) -> Option<Door> {
        let doors = self.0.doors.lock();
        if let Some(door) = doors.get(&machine) {
            return Some(door.clone());
        }
        let any = rng.below(doors.len().max(1) as u64) as usize;
        doors.values().nth(any).cloned()
    }

    /// As [`World::door`], but waits for one.
    pub(super) async fn some_door(&self, machine: usize, rng: &mut Rng) -> Door {
        loop {
            if let Some(door) = self.door(machine, rng) {
                return door;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    }

    pub(super) fn begin(&self, client: usize, door: &Door, call: &Call) -> usize {
        self.trace().record(format_args!("client {client} at {}: {call:?}", door.machine));
        let begun_at = self.trace().now();
        let mut book = self.book();
        let begun = book.next_place();
        book.records.push(Record {
            client,
            machine: door.machine,
            life: door.life,
            begun,
            ended: u64::MAX,
            begun_at,
            call: call.clone(),
            outcome: Outcome::Unknown("it was not answered".to_owned()),
        });
        book.records.len() - 1
    }

    pub(super) fn end(&self, record: usize, outcome: Outcome) {
        let mut book = self.book();
        let ended = book.next_place();
        let record = &mut book.records[record];
        self.trace().record(format_args!("client {}: {outcome:?}", record.client));
        record.ended = ended;
        record.outcome = outcome;
        if let (Call::Grant { lease, ttl }, Outcome::Reply(_)) = (&record.call, &record.outcome) {
            let (lease, granted) = (*lease, (*ttl, record.begun_at));
            book.leases.insert(lease, granted);
        } else if let (Call::Renew { lease }, Outcome::Reply(_)) = (&record.call, &record.outcome) {
            let (lease, begun_at) = (*lease, record.begun_at);
            if let Some((_, renewed)) = book.leases.get_mut(&lease) {
                *renewed = begun_at.max(*renewed);
            }
        }
    }
}
