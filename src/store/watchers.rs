//! The watch hub: delivers each change to the watchers of its key, first from history, then live,
//! none lost or duplicated.

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
    /// A channel with its own reader.
    Channel {
        sender: Sender<Item>,
        /// Reserved slot, so that the final error always fits.
        last_word: Option<OwnedPermit<Item>>,
    },
    /// The queue of a group.
    Group(GroupSender),
}

impl Sink {
    fn is_closed(&self) -> bool {
        match self {
            Self::Channel { sender, .. } => sender.is_closed(),
            Self::Group(way) => way.is_closed(),
        }
    }

    /// Sends those of `events` that match, without waiting. `whole` caches the shared slice of all
    /// events.
    fn offer(
        &mut self,
        events: &[Event],
        wanted: impl Fn(&&Event) -> bool,
        whole: &mut Option<Arc<[Event]>>,
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
            Self::Group(way) => {
                let events = if events.iter().all(|event| wanted(&event)) {
                    Arc::clone(whole.get_or_insert_with(|| events.into()))
                } else {
                    chosen().collect()
                };
                way.offer(GroupBatch { events, revision }, WATCHER_BATCHES)
            }
        }
    }

    /// Sends a batch of history as soon as there is room; `false` when the watcher is gone.
    async fn send(&mut self, events: Vec<Event>, revision: Revision) -> bool {
        match self {
            Self::Channel { sender, .. } => {
                // One slot is reserved for the final error.
                let room = sender.reserve_many(WATCHER_BATCHES - HISTORY_BATCHES).await;
                let Some(place) = room.ok().and_then(|mut places| places.next()) else {
                    return false;
                };
                place.send(Ok(WatchBatch { events, revision }));
                true
            }
            Self::Group(way) => way.send(GroupBatch { events: events.into(), revision }).await,
        }
    }

    fn end(&mut self, error: StoreError) {
        match self {
            Self::Channel { last_word, .. } => {
                if let Some(permit) = last_word.take() {
                    permit.send(Err(error));
                }
            }
            Self::Group(way) => way.end(error),
        }
    }
}

/// The sending half of a watcher.
#[derive(Debug)]
pub(crate) struct Feed {
    range: KeyRange,
    /// First revision that is not delivered yet.
    next: i64,
    /// Newest revision that the watcher was notified of.
    notified: i64,
    sink: Sink,
}

impl Feed {
    /// A feed of `range` from revision `next` on, and its receiver.
    pub(crate) fn new(range: KeyRange, next: i64) -> (Self, Receiver<Item>) {
        let (sender, receiver) = mpsc::channel(WATCHER_BATCHES);
        let last_word = sender.clone().try_reserve_owned().ok();
        (Self { range, next, notified: 0, sink: Sink::Channel { sender, last_word } }, receiver)
    }

    /// A feed of `range` from revision `next` on into a group, and its guard.
    pub(crate) fn grouped(
        group: &WatchGroup,
        watch: i64,
        range: KeyRange,
        next: i64,
    ) -> (Self, WatchGuard) {
        let (way, watching) = group.begin(watch);
        (Self { range, next, notified: 0, sink: Sink::Group(way) }, watching)
    }

    pub(crate) fn range(&self) -> &KeyRange {
        &self.range
    }

    pub(crate) fn next(&self) -> i64 {
        self.next
    }

    /// Delivers history before `next`, waiting for room; `false` when the watcher is gone.
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

    /// Delivers changes without waiting; `false` when the feed has ended.
    fn offer(&mut self, events: &[Event], whole: &mut Option<Arc<[Event]>>, revision: i64) -> bool {
        let (range, next) = (&self.range, self.next);
        let wanted =
            |event: &&Event| event.kv.mod_revision.0 >= next && range.contains(&event.kv.key);
        if !events.iter().any(|event| wanted(&event)) {
            return !self.sink.is_closed();
        }
        match self.sink.offer(events, wanted, whole, Revision(revision)) {
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

    /// Sends progress up to `revision`, unless the watcher knows it or starts later; `false` when
    /// there is no room.
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

/// All live watchers.
#[derive(Debug, Default)]
pub(crate) struct Hub {
    feeds: Vec<Feed>,
}

impl Hub {
    /// Adds a watcher that is up to date with `revision`, or starts later, and sends it progress.
    pub(crate) fn join(&mut self, mut feed: Feed, revision: i64) {
        feed.progress(revision);
        self.feeds.push(feed);
    }

    /// Delivers `events`, whole revisions up to `revision`, to the watchers that match.
    pub(crate) fn publish(&mut self, events: &[Event], revision: i64) {
        if !events.is_empty() {
            let mut whole = None;
            self.feeds.retain_mut(|feed| feed.offer(events, &mut whole, revision));
        }
    }

    /// Sends progress up to `revision` to the lagging watchers of `range`, or of all ranges.
    pub(crate) fn progress(&mut self, range: Option<&KeyRange>, revision: i64) {
        for feed in self.feeds.iter_mut().filter(|feed| range.is_none_or(|r| feed.range == *r)) {
            // A watcher without room has unread batches; the next one carries the revision.
            feed.progress(revision);
        }
    }

    /// Number of running watches.
    pub(crate) fn len(&self) -> usize {
        self.feeds.iter().filter(|feed| !feed.sink.is_closed()).count()
    }

    /// Ends every watch with `error`.
    pub(crate) fn end_all(&mut self, error: &StoreError) {
        self.feeds.drain(..).for_each(|mut feed| feed.end(error.clone()));
    }
}
