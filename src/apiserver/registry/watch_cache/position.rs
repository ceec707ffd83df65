//! The position of a watcher: in the ring of changes, or in the store's history while the position
//! is older than the ring.

use std::sync::Arc;

use store::Revision;
use store::{StoreError, WatchBatch, Watcher};

use super::interest::Slot;
use super::state::Sequence;
use super::{BATCH_MAX, Cache, Event};
use crate::registry::Resource;

/// The position of a watcher.
#[derive(Debug)]
pub struct Position {
    cache: Arc<Cache>,
    slot: Arc<Slot>,
    /// Every event up to this revision was returned.
    reached: i64,
    source: Source,
}

/// Where the next events come from.
#[derive(Debug)]
enum Source {
    /// In the ring.
    Ring(Sequence),
    /// Neither: the next event is no longer in the ring and history is not open yet.
    None,
    /// In the store's history.
    History(History),
}

/// The store's events after a revision.
struct History {
    watcher: Watcher,
    /// Received, but not decoded yet.
    batch: Option<WatchBatch>,
}

impl std::fmt::Debug for History {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("History")
    }
}

/// The next event was compacted, or the resource is served in another form: the watcher has to
/// relist.
#[derive(Debug, Clone, Copy)]
pub struct Lagged;

impl Drop for Position {
    fn drop(&mut self) {
        self.cache.interests.lock().remove(&self.slot);
    }
}

impl Position {
    /// A position in the ring; every event before it is known, which is the state at `reached`.
    pub(super) fn at(cache: Arc<Cache>, slot: Arc<Slot>, sequence: Sequence, reached: i64) -> Self {
        Self { cache, slot, reached, source: Source::Ring(sequence) }
    }

    /// The position after `revision`.
    ///
    /// # Errors
    /// The oldest revision that has a position.
    pub(super) async fn after(
        cache: Arc<Cache>,
        slot: Arc<Slot>,
        revision: i64,
    ) -> Result<Self, i64> {
        // Dropping the position after an error releases the slot, too.
        let mut position = Self { cache, slot, reached: revision, source: Source::None };
        let oldest = match position.enter_ring() {
            Ok(()) => return Ok(position),
            Err(oldest) => oldest,
        };
        match position.history().await {
            Ok(history) => {
                position.source = Source::History(history);
                Ok(position)
            }
            Err(StoreError::Compacted { oldest, .. }) => Err(oldest),
            Err(_) => Err(oldest),
        }
    }

    /// Continues in the ring if it contains the next event.
    ///
    /// # Errors
    /// The oldest revision from which the ring can be read.
    fn enter_ring(&mut self) -> Result<(), i64> {
        let next = self.cache.state.read().sequence_after(self.reached)?;
        self.source = Source::Ring(next);
        self.slot.wake(next);
        Ok(())
    }

    async fn history(&self) -> Result<History, StoreError> {
        let (cache, next) = (&self.cache, Revision(self.reached + 1));
        let watcher = cache.storage.backend().watch(cache.range(), Some(next)).await?;
        Ok(History { watcher, batch: None })
    }

    /// The next events (none: only progress) and the revision reached with them. Waits for new
    /// events; cancelling the wait loses none.
    ///
    /// # Errors
    /// When the next events are not available any more.
    pub async fn next(&mut self) -> Result<(Vec<Arc<Event>>, i64), Lagged> {
        let slot = Arc::clone(&self.slot);
        loop {
            let notified = slot.notified();
            match self.source {
                Source::Ring(next) => {
                    let events = self.read_ring(next);
                    if !events.is_empty() {
                        return Ok((events, self.reached));
                    }
                    if matches!(self.source, Source::Ring(_)) {
                        tokio::select! {
                            () = notified => {}
                            _ = self.cache.faulty() => return Err(Lagged),
                        }
                    }
                }
                Source::None if self.cache.stop.is_requested() => return Err(Lagged),
                Source::None => {
                    if self.enter_ring().is_err() {
                        self.source = Source::History(self.history().await.map_err(|_| Lagged)?);
                    }
                }
                Source::History(_) => {
                    let events = self.read_history().await?;
                    if !events.is_empty() {
                        return Ok((events, self.reached));
                    }
                }
            }
        }
    }

    /// The events in the ring and the revision reached with them, without waiting.
    pub fn try_next(&mut self) -> (Vec<Arc<Event>>, i64) {
        let events = match self.source {
            Source::Ring(next) => self.read_ring(next),
            Source::None | Source::History(_) => Vec::new(),
        };
        (events, self.reached)
    }

    fn read_ring(&mut self, next: Sequence) -> Vec<Arc<Event>> {
        let state = self.cache.state.read();
        // Events of which the slot was not notified do not concern the filter.
        let from = self.slot.take(next, state.next_sequence());
        let Some((mut events, next, revision)) = state.events_from(from, BATCH_MAX) else {
            self.source = Source::None;
            return Vec::new();
        };
        self.source = Source::Ring(next);
        if next != state.next_sequence() {
            self.slot.wake(next);
        }
        // The store's history may have been ahead of the cache.
        events.retain(|event| event.revision > self.reached);
        self.reached = self.reached.max(revision);
        events
    }

    async fn read_history(&mut self) -> Result<Vec<Arc<Event>>, Lagged> {
        let Source::History(history) = &mut self.source else { return Ok(Vec::new()) };
        if history.batch.is_none() {
            let batch = tokio::select! {
                batch = history.watcher.batches.recv() => batch,
                () = self.cache.stop.requested() => None,
                _ = self.cache.faulty() => None,
            };
            history.batch = Some(batch.ok_or(Lagged)?.map_err(|_| Lagged)?);
        }
        let Some(batch) = &history.batch else { return Ok(Vec::new()) };
        let revision = batch.revision.0;
        let events = self.cache.history(&batch.events).await.map_err(|_| Lagged)?;
        history.batch = None;
        self.reached = self.reached.max(revision);
        // On failure the position continues with history.
        let _ = self.enter_ring();
        Ok(events)
    }

    /// The row watched.
    pub fn row(&self) -> &Arc<Resource> {
        &self.cache.row
    }
}

#[cfg(test)]
mod tests;
