//! Watches that are read together: what comes for any of them waits in one place and is taken at once, so that a change
//! which thousands of watches want wakes each of their readers once.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{Event, Revision, StoreError};

/// Batches a watcher may leave unread. A batch holds all revisions of one group commit, and its events share their bytes
/// with the key space, so the bound is on a watcher's lag, not on copies.
pub(crate) const WATCHER_BATCHES: usize = 1024;

/// Batches of history that a watcher may leave unread: their values were unpacked for it alone.
pub(crate) const HISTORY_BATCHES: usize = 2;

/// As [`crate::WatchBatch`]; watches that want the same changes share them.
#[derive(Debug, Clone)]
pub struct GroupBatch {
    /// Changes; empty means progress only.
    pub events: Arc<[Event]>,
    /// Everything up to this revision was delivered.
    pub revision: Revision,
}

/// What came for one watch of a group.
#[derive(Debug)]
pub struct GroupItem {
    /// Its id, as it was given.
    pub watch: i64,
    /// Changes in order, or why there are no more.
    pub batch: Result<GroupBatch, StoreError>,
    sequence: u64,
}

#[derive(Debug, Default)]
struct Queue {
    items: Vec<GroupItem>,
    /// How often everything was taken.
    taken: u64,
    /// Watches that were begun.
    begun: u64,
}

#[derive(Debug, Default)]
struct GroupQueue {
    queue: Mutex<Queue>,
    /// Told when something is there.
    filled: Notify,
    /// Told when everything was taken, or a watch has ended.
    taken: Notify,
}

/// Watches that are read together by one reader. Bounded as a [`crate::Watcher`] is: each of them may leave as much unread, and is
/// ended with [`StoreError::Overrun`] when there is more.
#[derive(Debug, Default)]
pub struct WatchGroup {
    shared: Arc<GroupQueue>,
}

impl WatchGroup {
    /// Waits until something is there, and exchanges it for what `into` holds, which is lost. May be dropped while it waits.
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

    /// The two ends of a watch: what puts its changes into the group, and what ends it.
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

/// A watch of a group; when it is dropped the watch ends, and nothing of it is handed over any more.
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

/// Why a batch was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SendError {
    /// The watcher left too much unread.
    Full,
    /// The watcher is gone.
    Closed,
}

/// One watch's way into its group.
#[derive(Debug)]
pub(crate) struct GroupSender {
    shared: Arc<GroupQueue>,
    watch: i64,
    sequence: u64,
    ended: Arc<AtomicBool>,
    /// How often everything had been taken when something was put in last, and how much of this watch is there since.
    taken: u64,
    left: usize,
}

impl GroupSender {
    pub(crate) fn is_closed(&self) -> bool {
        self.ended.load(Relaxed)
    }

    /// Puts a batch in, unless the watcher left `most` or more unread.
    pub(crate) fn offer(&mut self, batch: GroupBatch, most: usize) -> Result<(), SendError> {
        let mut queue = self.shared.queue.lock();
        // Under the lock, so that nothing comes after the end.
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

    /// Puts a batch of history in as soon as there is room for it; `false` when the watcher is gone.
    pub(crate) async fn send(&mut self, batch: GroupBatch) -> bool {
        let shared = Arc::clone(&self.shared);
        loop {
            // Begun before the look, so that what is told meanwhile is not missed.
            let mut taken = std::pin::pin!(shared.taken.notified());
            taken.as_mut().enable();
            match self.offer(batch.clone(), HISTORY_BATCHES) {
                Ok(()) => return true,
                Err(SendError::Closed) => return false,
                Err(SendError::Full) => taken.await,
            }
        }
    }

    /// Says why there is no more; there is always room for that.
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
        // The same id again: a client may choose it anew.
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
    async fn who_waits_for_room_learns_that_the_watcher_has_gone() {
        let group = WatchGroup::default();
        let (mut way, watching) = group.begin(1);
        while way.offer(progress(1), WATCHER_BATCHES).is_ok() {}
        let (sent, ()) = tokio::join!(way.send(progress(2)), async { drop(watching) });
        assert!(!sent);
    }
}
