//! The watch hub: hands each change to the watchers of its key, from history first and live afterwards, none lost or doubled.

use tokio::sync::mpsc::{self, OwnedPermit, Receiver, Sender, error::TrySendError};

use crate::kv::{Event, KeyRange, Revision, StoreError, WatchBatch};
use crate::mvcc::contains;

/// Batches a watcher may leave unread. A batch holds all revisions of one group commit, and its events share their bytes
/// with the key space, so the bound is on a watcher's lag, not on copies.
const WATCHER_BATCHES: usize = 1024;

/// What a watcher's channel carries.
pub(crate) type Item = Result<WatchBatch, StoreError>;

/// The sending half of one watcher.
#[derive(Debug)]
pub(crate) struct Feed {
    range: KeyRange,
    /// First revision not handed over yet.
    next: i64,
    /// Newest revision the watcher was told of.
    told: i64,
    sender: Sender<Item>,
    /// A place kept free so that the reason of the end always fits.
    last_word: Option<OwnedPermit<Item>>,
}

impl Feed {
    /// A feed of `range` from revision `next` on, and the receiver.
    pub(crate) fn new(range: KeyRange, next: i64) -> (Self, Receiver<Item>) {
        let (sender, receiver) = mpsc::channel(WATCHER_BATCHES);
        let last_word = sender.clone().try_reserve_owned().ok();
        (Self { range, next, told: 0, sender, last_word }, receiver)
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
            let batch = WatchBatch { events, revision: Revision(next - 1) };
            if self.sender.send(Ok(batch)).await.is_err() {
                return false;
            }
            self.told = next - 1;
        }
        self.next = next;
        !self.sender.is_closed()
    }

    /// Hands over changes without waiting; the feed, unless it ended.
    fn offer(&mut self, events: &[Event], revision: i64) -> bool {
        let wanted = |event: &&Event| {
            event.kv.mod_revision.0 >= self.next && contains(&self.range, &event.kv.key)
        };
        let events: Vec<Event> = events.iter().filter(wanted).cloned().collect();
        if events.is_empty() {
            return !self.sender.is_closed();
        }
        match self.sender.try_send(Ok(WatchBatch { events, revision: Revision(revision) })) {
            Ok(()) => {
                self.next = revision + 1;
                self.told = revision;
                true
            }
            Err(TrySendError::Full(_)) => {
                self.end(StoreError::Overrun);
                false
            }
            Err(TrySendError::Closed(_)) => false,
        }
    }

    /// Tells the watcher that it has everything up to `revision`, unless it knows or starts later; `false` without room.
    fn progress(&mut self, revision: i64) -> bool {
        if self.told >= revision || self.next > revision + 1 {
            return true;
        }
        let sent = self
            .sender
            .try_send(Ok(WatchBatch { events: Vec::new(), revision: Revision(revision) }))
            .is_ok();
        if sent {
            self.told = revision;
            self.next = self.next.max(revision + 1);
        }
        sent
    }

    /// Ends the watch with `error`.
    pub(crate) fn end(&mut self, error: StoreError) {
        if let Some(permit) = self.last_word.take() {
            permit.send(Err(error));
        }
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
            self.feeds.retain_mut(|feed| feed.offer(events, revision));
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
        self.feeds.iter().filter(|feed| !feed.sender.is_closed()).count()
    }

    /// Ends every watch with `error`.
    pub(crate) fn end_all(&mut self, error: &StoreError) {
        self.feeds.drain(..).for_each(|mut feed| feed.end(error.clone()));
    }
}
