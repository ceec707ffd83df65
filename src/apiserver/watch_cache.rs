//! The watch cache: per stored resource one copy of all objects and a ring of their last changes, fed by the store's watch.
//!
//! Watchers hold a position in the ring instead of a queue of their own: nothing is dropped, and one that falls off the ring is ended.

mod interest;
mod state;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use api::{Object, Status};
use base::Tasks;
use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use store::Revision;
use store::kv::{Event as StoreEvent, KeyRange, RangeRequest, StoreError};
use tokio::sync::watch;

use interest::{Interest, Interests, Slot};
use state::State;
pub use state::{Entry, Event, EventType, Filter, Page};

use crate::registry::Resource;
use crate::registry::storage::Storage;
use crate::status;

/// How long a read waits for a revision that the cache has not reached (upstream's `blockTimeout`).
const CATCH_UP_MAX: Duration = Duration::from_secs(3);

/// Events handed to a watcher at once, so that one lock is not held for a whole ring.
const BATCH_MAX: usize = 256;

/// The cache of one stored resource.
pub struct Cache {
    row: Arc<Resource>,
    storage: Arc<Storage>,
    state: RwLock<State>,
    /// Revision reached; 0 until the first load.
    revision: watch::Sender<i64>,
    /// Who waits for changes. Locked after `state`.
    interests: Mutex<Interests>,
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cache({})", self.row.spec.prefix)
    }
}

/// All caches, started when first asked for.
#[derive(Debug)]
pub struct Caches {
    storage: Arc<Storage>,
    tasks: Tasks,
    running: Mutex<HashMap<Arc<str>, Arc<Cache>>>,
}

impl Caches {
    /// No cache runs yet.
    pub fn new(storage: Arc<Storage>, tasks: Tasks) -> Self {
        Self { storage, tasks, running: Mutex::new(HashMap::new()) }
    }

    /// The cache of a row's storage; `since` is a revision from which the first asker wants events, if it can be had.
    pub fn of(&self, row: &Arc<Resource>, since: Option<i64>) -> Arc<Cache> {
        let mut running = self.running.lock();
        if let Some(cache) = running.get(&row.spec.prefix) {
            return Arc::clone(cache);
        }
        let cache = Arc::new(Cache {
            row: Arc::clone(row),
            storage: Arc::clone(&self.storage),
            state: RwLock::new(State::default()),
            revision: watch::Sender::new(0),
            interests: Mutex::default(),
        });
        running.insert(Arc::clone(&row.spec.prefix), Arc::clone(&cache));
        let task = Arc::clone(&cache);
        let shutdown = self.tasks.shutdown().clone();
        self.tasks.spawn(base::tasks::Kind::Critical, "watch-cache", async move {
            tokio::select! {
                () = task.run(since) => {}
                () = shutdown.requested() => {}
            }
            Ok::<(), StoreError>(())
        });
        cache
    }

    /// The cache of a row's storage when it runs.
    pub fn running(&self, row: &Resource) -> Option<Arc<Cache>> {
        self.running.lock().get(&row.spec.prefix).cloned()
    }

    /// Number of objects per running cache, for metrics.
    pub fn counts(&self) -> Vec<(Arc<Resource>, usize, i64)> {
        let caches: Vec<Arc<Cache>> = self.running.lock().values().cloned().collect();
        caches
            .iter()
            .map(|c| (Arc::clone(&c.row), c.state.read().len(), *c.revision.borrow()))
            .collect()
    }
}

impl Cache {
    /// Feeds the cache for ever; after an error of the store it loads anew and ends all watches.
    async fn run(&self, mut since: Option<i64>) {
        let mut backoff = base::Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
        loop {
            match self.follow(since.take()).await {
                Ok(()) => backoff.reset(),
                Err(error) => {
                    tracing::warn!(resource = %self.row.spec.gvr, %error, "watch cache loads anew")
                }
            }
            base::clock::sleep(backoff.next_delay()).await;
        }
    }

    async fn follow(&self, since: Option<i64>) -> Result<(), StoreError> {
        let range = self.range();
        let loaded = match since {
            Some(since) if since > 0 => match self.load(&range, Some(Revision(since))).await {
                Err(StoreError::Compacted { .. } | StoreError::Future { .. }) => {
                    self.load(&range, None).await?
                }
                other => other?,
            },
            _ => self.load(&range, None).await?,
        };
        let mut watcher = self.storage.backend().watch(range, Some(Revision(loaded + 1))).await?;
        while let Some(batch) = watcher.batches.recv().await {
            let batch = batch?;
            let changes: Vec<_> = batch.events.iter().map(|e| self.change(e)).collect();
            self.apply(changes, batch.revision.0);
            self.revision.send_if_modified(|r| {
                let moved = batch.revision.0 > *r;
                *r = (*r).max(batch.revision.0);
                moved
            });
        }
        Ok(())
    }

    fn range(&self) -> KeyRange {
        KeyRange::prefix(Bytes::from(self.row.key_prefix("")))
    }

    fn apply(&self, changes: Vec<(Box<str>, Option<Object>, i64)>, revision: i64) {
        let mut state = self.state.write();
        let first = state.next_sequence();
        let events = state.apply(changes, revision);
        if events.is_empty() {
            return;
        }
        let interests = self.interests.lock();
        interests.tell(&self.row, first, &events);
        let all = interests.all();
        drop((interests, state));
        all.notify_waiters();
    }

    async fn load(&self, range: &KeyRange, revision: Option<Revision>) -> Result<i64, StoreError> {
        let mut request = RangeRequest::new(range.clone());
        request.revision = revision;
        let response = self.storage.backend().range(request).await?;
        let reached = revision.unwrap_or(response.revision).0;
        let objects = response.kvs.iter().filter_map(|kv| match self.storage.decode(&self.row, kv) {
            Ok(object) => Some((self.suffix(&kv.key), Entry::new(Arc::new(object)))),
            Err(error) => {
                tracing::error!(key = %String::from_utf8_lossy(&kv.key), %error, "stored object cannot be read");
                None
            }
        });
        let objects = objects.collect();
        let mut state = self.state.write();
        state.load(objects, reached);
        let interests = self.interests.lock();
        interests.tell_all();
        let all = interests.all();
        drop((interests, state));
        all.notify_waiters();
        self.revision.send_replace(reached);
        Ok(reached)
    }

    /// What stands behind the prefix: `namespace/name` or `name`.
    fn suffix(&self, key: &[u8]) -> Box<str> {
        let text = String::from_utf8_lossy(key);
        let prefix = self.row.key_prefix("");
        text.strip_prefix(prefix.as_str()).unwrap_or(&text).into()
    }

    fn change(&self, event: &StoreEvent) -> (Box<str>, Option<Object>, i64) {
        let object = if event.deleted {
            None
        } else {
            match self.storage.decode(&self.row, &event.kv) {
                Ok(object) => Some(object),
                Err(error) => {
                    tracing::error!(key = %String::from_utf8_lossy(&event.kv.key), %error, "stored object cannot be read");
                    None
                }
            }
        };
        (self.suffix(&event.kv.key), object, event.kv.mod_revision.0)
    }

    /// The row whose storage this is.
    pub fn row(&self) -> &Arc<Resource> {
        &self.row
    }

    /// Revision reached.
    pub fn revision(&self) -> i64 {
        *self.revision.borrow()
    }

    /// Waits until the cache has reached `revision` (0: any state).
    ///
    /// # Errors
    /// 504 with upstream's text when the revision is not reached in time.
    pub async fn wait_for(&self, revision: i64) -> Result<(), Status> {
        let mut seen = self.revision.subscribe();
        if *seen.borrow_and_update() < revision {
            // Writes of other resources move this cache only when somebody wants to know.
            self.storage.backend().tell_progress(&self.range());
        }
        let reached = seen.wait_for(|r| *r >= revision.max(1));
        let outcome = tokio::time::timeout(CATCH_UP_MAX, reached).await;
        match outcome {
            Ok(Ok(_)) => Ok(()),
            _ => Err(status::too_large_resource_version(revision, self.revision())),
        }
    }

    /// Objects of the filter in key order, from `start` on, at most `limit` (0: all).
    pub fn list(&self, filter: &Filter, start: Option<&str>, limit: usize) -> Page {
        self.state.read().list(&self.row, filter, start, limit)
    }

    /// One object.
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<Object>> {
        let state = self.state.read();
        let found = if namespace.is_empty() {
            state.get(name)
        } else {
            state.get(&format!("{namespace}/{name}"))
        };
        found.map(|entry| Arc::clone(&entry.object))
    }

    /// A position behind `revision`, from which the events of the filter follow, and others.
    ///
    /// # Errors
    /// The oldest revision from which one can watch, when `revision` is before it.
    pub fn watch_from(self: &Arc<Self>, revision: i64, filter: &Filter) -> Result<Position, i64> {
        let slot = self.slot(filter);
        // Also a refusal gives the slot back.
        let mut position =
            Position { cache: Arc::clone(self), next: state::Sequence::default(), slot };
        position.next = self.state.read().sequence_after(revision)?;
        position.slot.tell(position.next);
        Ok(position)
    }

    /// The objects of the filter now, and the position behind them.
    pub fn list_and_watch(self: &Arc<Self>, filter: &Filter) -> (Page, Position) {
        let slot = self.slot(filter);
        let state = self.state.read();
        let page = state.list(&self.row, filter, None, 0);
        let next = state.next_sequence();
        drop(state);
        (page, Position { cache: Arc::clone(self), next, slot })
    }

    /// A slot is taken before the place in the ring, so that no event falls between.
    fn slot(self: &Arc<Self>, filter: &Filter) -> Arc<Slot> {
        self.interests.lock().add(Interest::of(filter))
    }
}

/// A watcher's place in the ring.
#[derive(Debug)]
pub struct Position {
    cache: Arc<Cache>,
    next: state::Sequence,
    slot: Arc<Slot>,
}

impl Drop for Position {
    fn drop(&mut self) {
        self.cache.interests.lock().remove(&self.slot);
    }
}

/// The watcher fell off the ring, or the cache was loaded anew: it has to list again.
#[derive(Debug, Clone, Copy)]
pub struct Lagged;

impl Position {
    /// The next events (none: only progress) and the revision reached with them. Waits when there is nothing new.
    ///
    /// # Errors
    /// When the events were dropped from the ring before they were read.
    pub async fn next(&mut self) -> Result<(Vec<Arc<Event>>, i64), Lagged> {
        let slot = Arc::clone(&self.slot);
        loop {
            let told = slot.told();
            let (events, revision) = self.try_next()?;
            if !events.is_empty() {
                return Ok((events, revision));
            }
            told.await;
        }
    }

    /// The events that are there, without waiting.
    ///
    /// # Errors
    /// As [`Position::next`].
    pub fn try_next(&mut self) -> Result<(Vec<Arc<Event>>, i64), Lagged> {
        let state = self.cache.state.read();
        // What nobody told of is nothing that the filter sees.
        let from = self.slot.take(self.next, state.next_sequence());
        let (events, next, revision) = state.events_from(from, BATCH_MAX).ok_or(Lagged)?;
        self.next = next;
        if next != state.next_sequence() {
            self.slot.tell(next);
        }
        Ok((events, revision))
    }

    /// The row watched.
    pub fn row(&self) -> &Arc<Resource> {
        &self.cache.row
    }
}
