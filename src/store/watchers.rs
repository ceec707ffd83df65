//! The watch hub: hands each change to the watchers of its key, from history first and live afterwards, none lost or doubled.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{OwnedPermit, Receiver, Sender};

use crate::contract::watch_group::{GroupSender, HISTORY_BATCHES, SendError, WATCHER_BATCHES};
use crate::contract::{
    Event, GroupBatch, KeyRange, Revision, StoreError, WatchBatch, WatchGroup, WatchGuard,
};

/// What a watcher's channel carries.
pub(crate) type Item = Result<WatchBatch, StoreError>;

/// Where a watcher's changes go.
#[derive(Debug)]
enum Sink {
    /// To a reader of its own.
    Channel {
        sender: Sender<Item>,
        /// A place kept free so that the reason of the end always fits.
        last_word: Option<OwnedPermit<Item>>,
    },
    /// To the reader of a group.
    Group(GroupSender),
}

impl Sink {
    fn is_closed(&self) -> bool {
        match self {
            Self::Channel { sender, .. } => sender.is_closed(),
            Self::Group(way) => way.is_closed(),
        }
    }

    /// Hands over those of `events` that are wanted, without waiting. `whole` are all of them once somebody shares them.
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

    /// Hands over a batch of history as soon as there is room for it; `false` when the watcher is gone.
    async fn send(&mut self, events: Vec<Event>, revision: Revision) -> bool {
        match self {
            Self::Channel { sender, .. } => {
                // Of all places one is kept for the reason of the end.
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

/// The sending half of one watcher.
#[derive(Debug)]
pub(crate) struct Feed {
    range: KeyRange,
    /// First revision not handed over yet.
    next: i64,
    /// Newest revision the watcher was told of.
    notified: i64,
    sink: Sink,
}

impl Feed {
    /// A feed of `range` from revision `next` on, and the receiver.
    pub(crate) fn new(range: KeyRange, next: i64) -> (Self, Receiver<Item>) {
        let (sender, receiver) = mpsc::channel(WATCHER_BATCHES);
        let last_word = sender.clone().try_reserve_owned().ok();
        (Self { range, next, notified: 0, sink: Sink::Channel { sender, last_word } }, receiver)
    }

    /// A feed of `range` from revision `next` on into a group, and what ends it.
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

    /// Hands over history before `next`, waiting for room; `false` when the watcher is gone.
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

    /// Hands over changes without waiting; the feed, unless it ended.
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

    /// Tells the watcher that it has everything up to `revision`, unless it knows or starts later; `false` without room.
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
    /// Adds a watcher that has everything up to `revision`, or starts later, and tells it so.
    pub(crate) fn join(&mut self, mut feed: Feed, revision: i64) {
        feed.progress(revision);
        self.feeds.push(feed);
    }

    /// Hands `events`, whole revisions up to `revision`, to whom they concern.
    pub(crate) fn publish(&mut self, events: &[Event], revision: i64) {
        if !events.is_empty() {
            let mut whole = None;
            self.feeds.retain_mut(|feed| feed.offer(events, &mut whole, revision));
        }
    }

    /// Tells the watchers of `range` (none: of all ranges) that lag that nothing else happened up to `revision`.
    pub(crate) fn progress(&mut self, range: Option<&KeyRange>, revision: i64) {
        for feed in self.feeds.iter_mut().filter(|feed| range.is_none_or(|r| feed.range == *r)) {
            // Without room the watcher has enough to read, and is told with what comes next.
            feed.progress(revision);
        }
    }

    /// How many watches run.
    pub(crate) fn len(&self) -> usize {
        self.feeds.iter().filter(|feed| !feed.sink.is_closed()).count()
    }

    /// Ends every watch with `error`.
    pub(crate) fn end_all(&mut self, error: &StoreError) {
        self.feeds.drain(..).for_each(|mut feed| feed.end(error.clone()));
    }
}
