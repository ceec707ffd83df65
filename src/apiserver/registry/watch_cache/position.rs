//! The position of a watcher: in the ring, or in the store's history while it is older than the
//! ring.

use std::sync::Arc;

use store::Revision;
use store::{StoreError, WatchBatch, Watcher};

use super::interest::Slot;
use super::state::Sequence;
use super::{BATCH_MAX, Cache, Event};
use crate::registry::Resource;

/// A watcher's place.
#[derive(Debug)]
pub struct Position {
    cache: Arc<Cache>,
    slot: Arc<Slot>,
    /// Everything up to this revision was handed over.
    reached: i64,
    place: Place,
}

#[derive(Debug)]
enum Place {
    /// In the ring.
    Ring(Sequence),
    /// The next event is no longer in the ring.
    Behind,
    /// In the store's history.
    History(History),
}

/// The store's events after a revision.
struct History {
    watcher: Watcher,
    /// Taken, and not read yet.
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
    /// A place in the ring, up to which everything is known, which is the state at `reached`.
    pub(super) fn at(cache: Arc<Cache>, slot: Arc<Slot>, place: Sequence, reached: i64) -> Self {
        Self { cache, slot, reached, place: Place::Ring(place) }
    }

    /// The position after `revision`.
    ///
    /// # Errors
    /// The oldest revision that has one.
    pub(super) async fn after(
        cache: Arc<Cache>,
        slot: Arc<Slot>,
        revision: i64,
    ) -> Result<Self, i64> {
        // Also a refusal gives the slot back.
        let mut position = Self { cache, slot, reached: revision, place: Place::Behind };
        let oldest = match position.enter_ring() {
            Ok(()) => return Ok(position),
            Err(oldest) => oldest,
        };
        match position.history().await {
            Ok(history) => {
                position.place = Place::History(history);
                Ok(position)
            }
            Err(StoreError::Compacted { oldest, .. }) => Err(oldest),
            Err(_) => Err(oldest),
        }
    }

    /// Goes on in the ring, if what comes next is there; the oldest revision behind which that is
    /// so otherwise.
    fn enter_ring(&mut self) -> Result<(), i64> {
        let next = self.cache.state.read().sequence_after(self.reached)?;
        self.place = Place::Ring(next);
        self.slot.tell(next);
        Ok(())
    }

    async fn history(&self) -> Result<History, StoreError> {
        let (cache, next) = (&self.cache, Revision(self.reached + 1));
        let watcher = cache.storage.backend().watch(cache.range(), Some(next)).await?;
        Ok(History { watcher, batch: None })
    }

    /// The next events (none: only progress) and the revision reached with them. Waits when there
    /// is nothing new. Nothing is lost when the wait is given up.
    ///
    /// # Errors
    /// When what comes next cannot be had.
    pub async fn next(&mut self) -> Result<(Vec<Arc<Event>>, i64), Lagged> {
        let slot = Arc::clone(&self.slot);
        loop {
            let told = slot.told();
            match self.place {
                Place::Ring(next) => {
                    let events = self.read_ring(next);
                    if !events.is_empty() {
                        return Ok((events, self.reached));
                    }
                    if matches!(self.place, Place::Ring(_)) {
                        tokio::select! {
                            () = told => {}
                            _ = self.cache.faulty() => return Err(Lagged),
                        }
                    }
                }
                Place::Behind if self.cache.stop.is_requested() => return Err(Lagged),
                Place::Behind => {
                    if self.enter_ring().is_err() {
                        self.place = Place::History(self.history().await.map_err(|_| Lagged)?);
                    }
                }
                Place::History(_) => {
                    let events = self.read_history().await?;
                    if !events.is_empty() {
                        return Ok((events, self.reached));
                    }
                }
            }
        }
    }

    /// The events that are there and the revision reached with them, without waiting.
    pub fn try_next(&mut self) -> (Vec<Arc<Event>>, i64) {
        let events = match self.place {
            Place::Ring(next) => self.read_ring(next),
            Place::Behind | Place::History(_) => Vec::new(),
        };
        (events, self.reached)
    }

    fn read_ring(&mut self, next: Sequence) -> Vec<Arc<Event>> {
        let state = self.cache.state.read();
        // What nobody told of is nothing that the filter sees.
        let from = self.slot.take(next, state.next_sequence());
        let Some((mut events, next, revision)) = state.events_from(from, BATCH_MAX) else {
            self.place = Place::Behind;
            return Vec::new();
        };
        self.place = Place::Ring(next);
        if next != state.next_sequence() {
            self.slot.tell(next);
        }
        // The store's history may have been ahead of the cache.
        events.retain(|event| event.revision > self.reached);
        self.reached = self.reached.max(revision);
        events
    }

    async fn read_history(&mut self) -> Result<Vec<Arc<Event>>, Lagged> {
        let Place::History(history) = &mut self.place else { return Ok(Vec::new()) };
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
        // Until then history goes on.
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
