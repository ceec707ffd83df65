//! The watch hub: delivers each change to the watchers of its key, none lost or duplicated. A
//! watcher first receives the past changes from its start revision on (its caller replays them into
//! the [`Feed`]), then joins the [`Hub`] for the changes as they happen.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{OwnedPermit, Receiver, Sender};

use crate::contract::watch_group::{GroupSender, HISTORY_BATCHES, SendError, WATCHER_BATCHES};
use crate::contract::{
    Event, GroupBatch, KeyRange, Revision, StoreError, WatchBatch, WatchGroup, WatchGuard,
};

/// Items of a watcher's channel.
pub(crate) type Item = Result<WatchBatch, StoreError>;

/// Destination of a watcher's events.
#[derive(Debug)]
enum Sink {
    /// A channel whose reader reads this watcher only.
    Channel {
        sender: Sender<Item>,
        /// A slot reserved for the error that ends the watch, so that it fits into a full channel.
        error_slot: Option<OwnedPermit<Item>>,
    },
    /// The queue of a watch group.
    Group(GroupSender),
}

impl Sink {
    fn is_closed(&self) -> bool {
        match self {
            Self::Channel { sender, .. } => sender.is_closed(),
            Self::Group(sender) => sender.is_closed(),
        }
    }

    /// Sends the events that are `wanted`, without waiting. `shared` caches all of `events` as one
    /// allocation that all watchers of groups share that want every event.
    fn offer(
        &mut self,
        events: &[Event],
        wanted: impl Fn(&&Event) -> bool,
        shared: &mut Option<Arc<[Event]>>,
        revision: Revision,
    ) -> Result<(), SendError> {
        let chosen = || events.iter().filter(&wanted).cloned();
        match self {
            Self::Channel { sender, .. } => {
                let batch = WatchBatch { events: chosen().collect(), revision };
                sender.try_send(Ok(batch)).map_err(|error| match error {
                    TrySendError::Full(_) => SendError::Full,
                    TrySendError::Closed(_) => SendError::Closed,
                })
            }
            Self::Group(sender) => {
                let events = if events.iter().all(|event| wanted(&event)) {
                    Arc::clone(shared.get_or_insert_with(|| events.into()))
                } else {
                    chosen().collect()
                };
                sender.offer(GroupBatch { events, revision }, WATCHER_BATCHES)
            }
        }
    }

    /// Sends a batch of history once fewer than [`HISTORY_BATCHES`] are unread; `false` when the
    /// watcher has ended.
    async fn send(&mut self, events: Vec<Event>, revision: Revision) -> bool {
        match self {
            Self::Channel { sender, .. } => {
                // Waits for this many free slots, uses one and returns the others. The slot of the
                // final error is never free, so fewer than `HISTORY_BATCHES` batches are unread
                // then.
                let permits = sender.reserve_many(WATCHER_BATCHES - HISTORY_BATCHES).await;
                let Some(permit) = permits.ok().and_then(|mut permits| permits.next()) else {
                    return false;
                };
                permit.send(Ok(WatchBatch { events, revision }));
                true
            }
            Self::Group(sender) => {
                sender.send(GroupBatch { events: events.into(), revision }).await
            }
        }
    }

    /// Sends the error that ends the watch.
    fn end(&mut self, error: StoreError) {
        match self {
            Self::Channel { error_slot, .. } => {
                if let Some(permit) = error_slot.take() {
                    permit.send(Err(error));
                }
            }
            Self::Group(sender) => sender.end(error),
        }
    }
}

/// The sending half of a watcher: its key range, its position, and where its events go.
#[derive(Debug)]
pub(crate) struct Feed {
    range: KeyRange,
    /// First revision that is not delivered yet.
    next: i64,
    /// Newest revision that a batch to the watcher carried; 0 before the first batch.
    notified: i64,
    sink: Sink,
}

impl Feed {
    /// A feed of `range` from revision `next` on, and its receiver.
    pub(crate) fn new(range: KeyRange, next: i64) -> (Self, Receiver<Item>) {
        let (sender, receiver) = mpsc::channel(WATCHER_BATCHES);
        let error_slot = sender.clone().try_reserve_owned().ok();
        (Self { range, next, notified: 0, sink: Sink::Channel { sender, error_slot } }, receiver)
    }

    /// A feed of `range` from revision `next` on into a group, and the guard that ends it. The
    /// caller chooses the id `watch`, which each item of the group carries.
    pub(crate) fn grouped(
        group: &WatchGroup,
        watch: i64,
        range: KeyRange,
        next: i64,
    ) -> (Self, WatchGuard) {
        let (sender, guard) = group.begin(watch);
        (Self { range, next, notified: 0, sink: Sink::Group(sender) }, guard)
    }

    pub(crate) fn range(&self) -> &KeyRange {
        &self.range
    }

    pub(crate) fn next(&self) -> i64 {
        self.next
    }

    /// Delivers past changes, which are all before revision `next`, and waits for room; `false`
    /// when the watcher has ended.
    pub(crate) async fn replay(&mut self, events: Vec<Event>, next: i64) -> bool {
        if !events.is_empty() {
            if !self.sink.send(events, Revision(next - 1)).await {
                return false;
            }
            self.notified = next - 1;
        }
        self.next = next;
        !self.sink.is_closed()
    }

    /// Delivers the changes up to `revision` that the watcher wants, without waiting; `false` when
    /// the watch has ended, also because its reader is too slow. For `shared` see [`Sink::offer`].
    fn offer(
        &mut self,
        events: &[Event],
        shared: &mut Option<Arc<[Event]>>,
        revision: i64,
    ) -> bool {
        let (range, next) = (&self.range, self.next);
        let wanted =
            |event: &&Event| event.kv.mod_revision.0 >= next && range.contains(&event.kv.key);
        if !events.iter().any(|event| wanted(&event)) {
            return !self.sink.is_closed();
        }
        match self.sink.offer(events, wanted, shared, Revision(revision)) {
            Ok(()) => {
                self.next = revision + 1;
                self.notified = revision;
                true
            }
            Err(SendError::Full) => {
                self.sink.end(StoreError::Overrun);
                false
            }
            Err(SendError::Closed) => false,
        }
    }

    /// Sends progress, an empty batch that carries `revision`, unless the watcher has received that
    /// revision or starts later; `false` when there is no room.
    fn progress(&mut self, revision: i64) -> bool {
        if self.notified >= revision || self.next > revision + 1 {
            return true;
        }
        let sent = self.sink.offer(&[], |_| true, &mut None, Revision(revision)).is_ok();
        if sent {
            self.notified = revision;
            self.next = self.next.max(revision + 1);
        }
        sent
    }

    /// Ends the watch with `error`.
    pub(crate) fn end(&mut self, error: StoreError) {
        self.sink.end(error);
    }
}

/// The watchers that have received all past changes and receive each new one.
#[derive(Debug, Default)]
pub(crate) struct Hub {
    feeds: Vec<Feed>,
}

impl Hub {
    /// Adds a watcher that has received all changes up to `revision`, or starts later, and sends it
    /// progress.
    pub(crate) fn join(&mut self, mut feed: Feed, revision: i64) {
        feed.progress(revision);
        self.feeds.push(feed);
    }

    /// Delivers `events`, all changes of the revisions up to `revision` since the last call, to the
    /// watchers of their keys, and removes watchers that have ended.
    pub(crate) fn publish(&mut self, events: &[Event], revision: i64) {
        if !events.is_empty() {
            let mut shared = None;
            self.feeds.retain_mut(|feed| feed.offer(events, &mut shared, revision));
        }
    }

    /// Sends progress up to `revision` to the watchers of exactly `range`, or to all watchers.
    pub(crate) fn progress(&mut self, range: Option<&KeyRange>, revision: i64) {
        for feed in self.feeds.iter_mut().filter(|feed| range.is_none_or(|r| feed.range == *r)) {
            // A watcher without room has unread batches; the next one carries the revision.
            feed.progress(revision);
        }
    }

    /// Number of watches that have not ended.
    pub(crate) fn len(&self) -> usize {
        self.feeds.iter().filter(|feed| !feed.sink.is_closed()).count()
    }

    /// Ends every watch with `error`.
    pub(crate) fn end_all(&mut self, error: &StoreError) {
        self.feeds.drain(..).for_each(|mut feed| feed.end(error.clone()));
    }
}
