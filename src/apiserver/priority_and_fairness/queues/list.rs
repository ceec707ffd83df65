//! Stores the requests of a level in one slab and links them into its queues, so that a request
//! needs no allocation.

use super::{Request, SeatSeconds};

/// The number of slots that an empty slab keeps; after a burst its memory is freed.
const KEPT: usize = 64;

/// A non-empty queue.
#[derive(Debug)]
pub(crate) struct Queue {
    /// The index among the queues of the level.
    pub(crate) index: u32,
    pub(super) head: Option<u32>,
    tail: Option<u32>,
    /// The number of waiting requests.
    pub(crate) waiting: usize,
    /// The number of executing requests.
    pub(crate) executing: usize,
    /// Seats of executing requests, and lingering ones.
    pub(crate) seats_in_use: u64,
    /// The virtual start of the next request.
    pub(crate) next_r: SeatSeconds,
    /// The initial seats of waiting requests.
    pub(crate) initial_seats: u64,
    /// The maximum seats of waiting requests.
    pub(crate) seats: u64,
    /// The work of waiting requests.
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

/// The position of a queue in `queues`, which are ordered by index, or the position to insert it.
pub(super) fn find(queues: &[Queue], index: u32) -> Result<usize, usize> {
    queues.binary_search_by_key(&index, |queue| queue.index)
}

pub(super) fn get_mut(queues: &mut [Queue], index: u32) -> Option<&mut Queue> {
    find(queues, index).ok().and_then(|at| queues.get_mut(at))
}

/// Ensures that the virtual start of a queue is not before the arrival of its oldest request: a
/// queue cannot save up unused seats.
pub(super) fn bound(queue: &mut Queue, requests: &Requests) {
    if let Some(oldest) = queue.head.and_then(|id| requests.get(id)) {
        queue.next_r = queue.next_r.max(oldest.arrival_r);
    }
}

/// The requests of a level by id; ids are reused.
#[derive(Debug, Default)]
pub(super) struct Requests {
    slots: Vec<Option<Request>>,
    free: Vec<u32>,
}

impl Requests {
    pub(super) fn add(&mut self, request: Request) -> u32 {
        if let Some(id) = self.free.pop() {
            if let Some(slot) = self.slots.get_mut(id as usize) {
                *slot = Some(request);
            }
            return id;
        }
        self.slots.push(Some(request));
        // There are never 2^32 requests at once.
        (self.slots.len() - 1) as u32
    }

    pub(super) fn get(&self, id: u32) -> Option<&Request> {
        self.slots.get(id as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut Request> {
        self.slots.get_mut(id as usize)?.as_mut()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Request> {
        self.slots.iter().flatten()
    }

    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = &mut Request> {
        self.slots.iter_mut().flatten()
    }

    /// Removes a request that is not in a queue.
    pub(super) fn remove(&mut self, id: u32) -> Option<Request> {
        let request = self.slots.get_mut(id as usize)?.take()?;
        self.free.push(id);
        if self.free.len() == self.slots.len() && self.slots.len() > KEPT {
            *self = Self::default();
        }
        Some(request)
    }

    /// Removes a waiting request from its queue.
    pub(super) fn take(&mut self, queues: &mut [Queue], id: u32) -> Option<Request> {
        let index = self.get(id)?.queue;
        if let Some(queue) = index.and_then(|index| get_mut(queues, index)) {
            self.unlink(queue, id);
        }
        self.remove(id)
    }

    /// Appends a request to a queue.
    pub(super) fn append(&mut self, queue: &mut Queue, id: u32) {
        let tail = queue.tail.replace(id);
        match tail.and_then(|tail| self.get_mut(tail)) {
            Some(last) => last.next = Some(id),
            None => queue.head = Some(id),
        }
        let Some(request) = self.get_mut(id) else { return };
        request.previous = tail;
        queue.waiting += 1;
        queue.initial_seats += request.work.initial;
        queue.seats += request.work.seats();
        queue.work = queue.work.plus(request.total);
    }

    /// Unlinks a request from its queue.
    pub(super) fn unlink(&mut self, queue: &mut Queue, id: u32) {
        let Some(request) = self.get_mut(id) else { return };
        let (previous, next) = (request.previous.take(), request.next.take());
        queue.waiting -= 1;
        queue.initial_seats -= request.work.initial;
        queue.seats -= request.work.seats();
        queue.work = queue.work.minus(request.total);
        match previous.and_then(|previous| self.get_mut(previous)) {
            Some(other) => other.next = next,
            None => queue.head = next,
        }
        match next.and_then(|next| self.get_mut(next)) {
            Some(other) => other.previous = previous,
            None => queue.tail = previous,
        }
    }
}
