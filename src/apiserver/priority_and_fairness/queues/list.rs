//! Where requests stand: one slab for all of a level, linked into its queues, so that a request
//! costs no allocation.

use super::{Request, SeatSeconds};

/// Places that are kept when nothing is there: a burst leaves no room behind.
const KEPT: usize = 64;

/// One queue that has something in it.
#[derive(Debug)]
pub(crate) struct Queue {
    /// Its number among those of the level.
    pub(crate) index: u32,
    pub(super) head: Option<u32>,
    tail: Option<u32>,
    /// Requests that wait.
    pub(crate) waiting: usize,
    /// Requests that execute.
    pub(crate) executing: usize,
    /// Seats of what executes and lingers.
    pub(crate) seats_in_use: u64,
    /// Reading of the progress meter at which the next request is dispatched.
    pub(crate) next_r: SeatSeconds,
    /// Seats for the answers that are waited for.
    pub(crate) initial_seats: u64,
    /// Seats that are waited for.
    pub(crate) seats: u64,
    /// Work that waits.
    pub(crate) work: SeatSeconds,
}

impl Queue {
    pub(super) fn new(index: u32) -> Self {
        Self {
            index,
            head: None,
            tail: None,
            waiting: 0,
            executing: 0,
            seats_in_use: 0,
            next_r: SeatSeconds::default(),
            initial_seats: 0,
            seats: 0,
            work: SeatSeconds::default(),
        }
    }
}

/// The place of a queue among `queues`, which are in order of their index, or where it would be.
pub(super) fn find(queues: &[Queue], index: u32) -> Result<usize, usize> {
    queues.binary_search_by_key(&index, |queue| queue.index)
}

pub(super) fn get_mut(queues: &mut [Queue], index: u32) -> Option<&mut Queue> {
    find(queues, index).ok().and_then(|at| queues.get_mut(at))
}

/// A queue that could not use all that it was given does not start before its oldest request came.
pub(super) fn bound(queue: &mut Queue, requests: &Requests) {
    if let Some(oldest) = queue.head.and_then(|id| requests.get(id)) {
        queue.next_r = queue.next_r.max(oldest.arrival_r);
    }
}

/// All requests of a level by their id. Places are used again.
#[derive(Debug, Default)]
pub(super) struct Requests {
    places: Vec<Option<Request>>,
    free: Vec<u32>,
}

impl Requests {
    pub(super) fn add(&mut self, request: Request) -> u32 {
        if let Some(id) = self.free.pop() {
            if let Some(place) = self.places.get_mut(id as usize) {
                *place = Some(request);
            }
            return id;
        }
        self.places.push(Some(request));
        // There are fewer requests at once than four billion.
        (self.places.len() - 1) as u32
    }

    pub(super) fn get(&self, id: u32) -> Option<&Request> {
        self.places.get(id as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut Request> {
        self.places.get_mut(id as usize)?.as_mut()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Request> {
        self.places.iter().flatten()
    }

    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = &mut Request> {
        self.places.iter_mut().flatten()
    }

    /// A request that waits in no queue goes.
    pub(super) fn remove(&mut self, id: u32) -> Option<Request> {
        let request = self.places.get_mut(id as usize)?.take()?;
        self.free.push(id);
        if self.free.len() == self.places.len() && self.places.len() > KEPT {
            *self = Self::default();
        }
        Some(request)
    }

    /// A request that waits goes, out of its queue.
    pub(super) fn take(&mut self, queues: &mut [Queue], id: u32) -> Option<Request> {
        let index = self.get(id)?.queue;
        if let Some(queue) = index.and_then(|index| get_mut(queues, index)) {
            self.unlink(queue, id);
        }
        self.remove(id)
    }

    /// Puts a request at the end of a queue.
    pub(super) fn append(&mut self, queue: &mut Queue, id: u32) {
        let tail = queue.tail.replace(id);
        match tail.and_then(|tail| self.get_mut(tail)) {
            Some(last) => last.behind = Some(id),
            None => queue.head = Some(id),
        }
        let Some(request) = self.get_mut(id) else { return };
        request.before = tail;
        queue.waiting += 1;
        queue.initial_seats += request.work.initial;
        queue.seats += request.work.seats();
        queue.work = queue.work.plus(request.total);
    }

    /// Takes a request out of the order of its queue.
    pub(super) fn unlink(&mut self, queue: &mut Queue, id: u32) {
        let Some(request) = self.get_mut(id) else { return };
        let (before, behind) = (request.before.take(), request.behind.take());
        queue.waiting -= 1;
        queue.initial_seats -= request.work.initial;
        queue.seats -= request.work.seats();
        queue.work = queue.work.minus(request.total);
        match before.and_then(|before| self.get_mut(before)) {
            Some(other) => other.behind = behind,
            None => queue.head = behind,
        }
        match behind.and_then(|behind| self.get_mut(behind)) {
            Some(other) => other.before = before,
            None => queue.tail = before,
        }
    }
}
