//! Groups of watches with one reader: the events of all watches of a group share one queue, so that
//! a change that thousands of watches match wakes each reader once.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{Event, Revision, StoreError};

/// Maximum number of unread batches per watcher. A batch holds all revisions of one group commit
/// and its events share their bytes with the key space, so the bound limits the lag, not the number
/// of copies.
pub(crate) const WATCHER_BATCHES: usize = 1024;

/// Maximum number of unread batches of history: their values are decompressed for this watcher
/// alone.
pub(crate) const HISTORY_BATCHES: usize = 2;

/// As [`crate::WatchBatch`]; watches with the same changes share them.
#[derive(Debug, Clone)]
pub struct GroupBatch {
    /// Changes; empty for progress.
    pub events: Arc<[Event]>,
    /// All changes up to this revision are delivered.
    pub revision: Revision,
}

/// An item of one watch of a group.
#[derive(Debug)]
pub struct GroupItem {
    /// Id of the watch, as the caller chose it.
    pub watch: i64,
    /// Changes in order, or the error that ended the watch.
    pub batch: Result<GroupBatch, StoreError>,
    sequence: u64,
}

#[derive(Debug, Default)]
struct Queue {
    items: Vec<GroupItem>,
    /// Number of times the queue was emptied.
    taken: u64,
    /// Number of watches ever started.
    begun: u64,
}

#[derive(Debug, Default)]
struct GroupQueue {
    queue: Mutex<Queue>,
    /// Notified when the queue becomes non-empty.
    filled: Notify,
    /// Notified when the queue is emptied or a watch ends.
    taken: Notify,
}

/// Watches with one reader. Each is bounded as a [`crate::Watcher`] is and ends with
/// [`StoreError::Overrun`] beyond its bound.
#[derive(Debug, Default)]
pub struct WatchGroup {
    shared: Arc<GroupQueue>,
}

impl WatchGroup {
    /// Waits until the queue is non-empty and swaps it with `into`, whose content is dropped.
    /// Cancel safe.
    pub async fn take(&self, into: &mut Vec<GroupItem>) {
        into.clear();
        loop {
            {
                let mut queue = self.shared.queue.lock();
                if !queue.items.is_empty() {
                    queue.taken += 1;
                    std::mem::swap(&mut queue.items, into);
                    break;
                }
            }
            self.shared.filled.notified().await;
        }
        self.shared.taken.notify_waiters();
    }

    /// Both ends of a watch: the sender into the group, and the guard that ends the watch.
    pub(crate) fn begin(&self, watch: i64) -> (GroupSender, WatchGuard) {
        let mut queue = self.shared.queue.lock();
        queue.begun += 1;
        let (sequence, ended) = (queue.begun, Arc::new(AtomicBool::new(false)));
        let (shared, guard) = (Arc::clone(&self.shared), Arc::clone(&self.shared));
        let way = GroupSender {
            shared,
            watch,
            sequence,
            ended: Arc::clone(&ended),
            taken: queue.taken,
            left: 0,
        };
        drop(queue);
        (way, WatchGuard { shared: guard, sequence, ended })
    }
}

/// A watch of a group. Dropping it ends the watch and discards its unread items.
#[derive(Debug)]
#[must_use = "the watch ends when this is dropped"]
pub struct WatchGuard {
    shared: Arc<GroupQueue>,
    sequence: u64,
    ended: Arc<AtomicBool>,
}

impl Drop for WatchGuard {
    fn drop(&mut self) {
        self.ended.store(true, Relaxed);
        self.shared.queue.lock().items.retain(|item| item.sequence != self.sequence);
        self.shared.taken.notify_waiters();
    }
}

/// The reason why a batch was not queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SendError {
    /// The watcher has too many unread batches.
    Full,
    /// The watcher is gone.
    Closed,
}

/// Sends the events of one watch into its group.
#[derive(Debug)]
pub(crate) struct GroupSender {
    shared: Arc<GroupQueue>,
    watch: i64,
    sequence: u64,
    ended: Arc<AtomicBool>,
    /// Value of `Queue::taken` at the last offer, and the number of unread batches of this watch
    /// since.
    taken: u64,
    left: usize,
}

impl GroupSender {
    pub(crate) fn is_closed(&self) -> bool {
        self.ended.load(Relaxed)
    }

    /// Queues a batch, unless the watcher has `most` or more unread batches.
    pub(crate) fn offer(&mut self, batch: GroupBatch, most: usize) -> Result<(), SendError> {
        let mut queue = self.shared.queue.lock();
        // Checked under the lock, so that no item follows the end of the watch.
        if self.is_closed() {
            return Err(SendError::Closed);
        }
        if self.taken != queue.taken {
            (self.taken, self.left) = (queue.taken, 0);
        }
        if self.left >= most {
            return Err(SendError::Full);
        }
        self.left += 1;
        let first = queue.items.is_empty();
        queue.items.push(GroupItem {
            watch: self.watch,
            batch: Ok(batch),
            sequence: self.sequence,
        });
        drop(queue);
        if first {
            self.shared.filled.notify_one();
        }
        Ok(())
    }

    /// Queues a batch of history as soon as there is room; `false` when the watcher is gone.
    pub(crate) async fn send(&mut self, batch: GroupBatch) -> bool {
        let shared = Arc::clone(&self.shared);
        loop {
            // Registered before the check, so that no notification is missed.
            let mut taken = std::pin::pin!(shared.taken.notified());
            taken.as_mut().enable();
            match self.offer(batch.clone(), HISTORY_BATCHES) {
                Ok(()) => return true,
                Err(SendError::Closed) => return false,
                Err(SendError::Full) => taken.await,
            }
        }
    }

    /// Queues the error that ends the watch; it always fits.
    pub(crate) fn end(&self, error: StoreError) {
        let mut queue = self.shared.queue.lock();
        if !self.is_closed() {
            let (watch, sequence) = (self.watch, self.sequence);
            queue.items.push(GroupItem { watch, batch: Err(error), sequence });
            drop(queue);
            self.shared.filled.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(revision: i64) -> GroupBatch {
        GroupBatch { events: Arc::default(), revision: Revision(revision) }
    }

    fn revisions(items: &[GroupItem]) -> Vec<(i64, i64)> {
        let told = |item: &GroupItem| item.batch.as_ref().map_or(-1, |batch| batch.revision.0);
        items.iter().map(|item| (item.watch, told(item))).collect()
    }

    #[tokio::test]
    async fn all_watches_are_taken_together_and_what_was_ended_is_not_told() {
        let (group, mut items) = (WatchGroup::default(), Vec::new());
        let (mut first, one) = group.begin(7);
        // The same id again: a client may reuse it.
        let (mut second, two) = group.begin(7);
        let (mut third, three) = group.begin(8);
        for (way, revision) in [(&mut first, 1), (&mut second, 2), (&mut third, 3)] {
            way.offer(progress(revision), WATCHER_BATCHES).unwrap();
        }
        drop(one);
        assert_eq!(first.offer(progress(4), WATCHER_BATCHES), Err(SendError::Closed));
        first.end(StoreError::Overrun);
        third.end(StoreError::Overrun);
        group.take(&mut items).await;
        assert_eq!(revisions(&items), [(7, 2), (8, 3), (8, -1)]);
        drop((two, three));
    }

    #[tokio::test]
    async fn a_watch_that_is_not_read_is_full_and_others_are_not() {
        let (group, mut items) = (WatchGroup::default(), Vec::new());
        let ((mut slow, _slow), (mut other, _other)) = (group.begin(1), group.begin(2));
        for revision in 0..WATCHER_BATCHES as i64 {
            slow.offer(progress(revision), WATCHER_BATCHES).unwrap();
        }
        assert_eq!(slow.offer(progress(0), WATCHER_BATCHES), Err(SendError::Full));
        other.offer(progress(1), WATCHER_BATCHES).unwrap();
        let (more, ()) = tokio::join!(slow.send(progress(9)), group.take(&mut items));
        assert_eq!((more, items.len()), (true, WATCHER_BATCHES + 1));
        group.take(&mut items).await;
        assert_eq!(revisions(&items), [(1, 9)]);
    }

    #[tokio::test]
    async fn a_sender_waiting_for_capacity_learns_that_the_watcher_is_gone() {
        let group = WatchGroup::default();
        let (mut way, watching) = group.begin(1);
        while way.offer(progress(1), WATCHER_BATCHES).is_ok() {}
        let (sent, ()) = tokio::join!(way.send(progress(2)), async { drop(watching) });
        assert!(!sent);
    }
}
