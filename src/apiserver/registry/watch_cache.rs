//! The watch cache: per stored resource one copy of all objects and a ring of their last changes,
//! fed by the store's watch.
//!
//! Watchers hold a position in the ring instead of a queue: no event is dropped, and a watcher
//! older than the ring reads the store's history until it has caught up.

mod interest;
mod nodes;
mod persistent;
mod position;
mod state;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use api::{Object, Status};
use base::tasks::Shutdown;
use base::{Kind, Tasks};
use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use store::Revision;
use store::{Event as StoreEvent, KeyRange, RangeRequest, StoreError};
use tokio::sync::watch;

use interest::{Interest, Interests, Slot};
pub use position::{Lagged, Position};
use state::State;
pub use state::{CachedObject, Event, EventType, Filter, Initial, Page};

use crate::metrics::storage as metrics;
use crate::registry::Resource;
use crate::registry::storage::Storage;
use crate::registry::unreadable::{self, Unreadable};
use crate::response::status;

/// How long a read waits for a revision that the cache has not reached (upstream's `blockTimeout`).
const CATCH_UP_MAX: Duration = Duration::from_secs(3);

/// Events that a watcher reads under one lock, which is not held for the whole ring.
const BATCH_MAX: usize = 256;

/// The cache of one stored resource.
pub struct Cache {
    row: Arc<Resource>,
    storage: Arc<Storage>,
    state: RwLock<State>,
    /// Revision reached; 0 until the first load.
    revision: watch::Sender<i64>,
    /// Watchers waiting for changes. Locked after `state`.
    interests: Mutex<Interests>,
    /// Requested when the resource is served in another form or not any more.
    stop: Shutdown,
    /// Why objects in the store cannot be read now; the cache serves nothing meanwhile.
    fault: watch::Sender<Option<Arc<Status>>>,
}

/// Key suffix, the new object (none: deleted), revision.
type Change = (Box<str>, Option<Object>, i64);

/// Why a cache has to relist.
#[derive(Debug, thiserror::Error)]
enum CacheError {
    #[error("{0}")]
    Store(#[from] StoreError),
    #[error("{0}")]
    Unreadable(Arc<Status>),
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cache({})", self.row.spec.prefix)
    }
}

/// All caches, each started on first use.
#[derive(Debug)]
pub struct Caches {
    storage: Arc<Storage>,
    tasks: Tasks,
    running: Mutex<HashMap<Arc<str>, Arc<Cache>>>,
}

impl Caches {
    /// No caches yet.
    pub fn new(storage: Arc<Storage>, tasks: Tasks) -> Self {
        Self { storage, tasks, running: Mutex::new(HashMap::new()) }
    }

    /// The cache of a row's storage, started if it is not running.
    pub fn of(&self, row: &Arc<Resource>) -> Arc<Cache> {
        let mut running = self.running.lock();
        if let Some(cache) = running.get(&row.cache_key) {
            return Arc::clone(cache);
        }
        // Caches that may stop before the server have a separate task set, so that their end is not
        // an error.
        let own = row.spec.custom.as_ref().map(|_| self.tasks.child());
        let tasks = own.as_ref().unwrap_or(&self.tasks);
        let cache = Arc::new(Cache {
            row: Arc::clone(row),
            storage: Arc::clone(&self.storage),
            state: RwLock::new(State::of(row)),
            revision: watch::Sender::new(0),
            interests: Mutex::default(),
            stop: own.as_ref().map(|own| own.shutdown().clone()).unwrap_or_default(),
            fault: watch::Sender::new(None),
        });
        if row.spec.custom.as_ref().is_some_and(|custom| custom.is_retired()) {
            // The request began before the row was removed, so nothing else would stop this cache.
            cache.stop.request();
            return cache;
        }
        running.insert(Arc::clone(&row.cache_key), Arc::clone(&cache));
        let task = Arc::clone(&cache);
        let shutdown = tasks.shutdown().clone();
        tasks.spawn(Kind::Critical, "watch-cache", async move {
            tokio::select! {
                () = task.run() => {}
                () = shutdown.requested() => {}
            }
            if task.stop.is_requested() {
                task.end();
            }
            Ok::<(), StoreError>(())
        });
        cache
    }

    /// The cache of a row's storage when it runs.
    pub fn running(&self, row: &Resource) -> Option<Arc<Cache>> {
        self.running.lock().get(&row.cache_key).cloned()
    }

    /// Running caches of the objects under this prefix.
    pub(crate) fn of_prefix(&self, prefix: &str) -> Vec<Arc<Cache>> {
        let running = self.running.lock();
        running.values().filter(|cache| *cache.row.spec.prefix == *prefix).cloned().collect()
    }

    /// Stops a cache: its watches end, and waiting requests get an error that asks clients to
    /// retry. Retire its rows first.
    pub(crate) fn stop(&self, key: &str) {
        if let Some(cache) = self.running.lock().remove(key) {
            cache.stop.request();
        }
    }

    /// Statistics of each running cache.
    pub fn stats(&self) -> Vec<(Arc<Resource>, CacheStats)> {
        let caches: Vec<Arc<Cache>> = self.running.lock().values().cloned().collect();
        let stats_of = |cache: &Arc<Cache>| {
            let revision = *cache.revision.borrow();
            let state = cache.state.read();
            let (objects, bytes, capacity) = (state.len(), state.bytes(), state::CAPACITY);
            (Arc::clone(&cache.row), CacheStats { objects, bytes, capacity, revision })
        };
        caches.iter().map(stats_of).collect()
    }
}

/// Statistics of a cache.
#[derive(Debug, Clone, Copy)]
pub struct CacheStats {
    /// Objects in the cache.
    pub objects: usize,
    /// Bytes of the objects.
    pub bytes: usize,
    /// Changes that the ring can keep.
    pub capacity: usize,
    /// Revision reached.
    pub revision: i64,
}

impl Cache {
    /// Feeds the cache until shutdown. After a store error it relists and ends all watches.
    async fn run(&self) {
        let mut backoff = base::Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
        loop {
            match self.follow().await {
                Ok(()) => backoff.reset(),
                Err(CacheError::Unreadable(refusal)) => {
                    let previous = self.fault.send_replace(Some(Arc::clone(&refusal)));
                    // Every attempt finds the same objects, which are logged once.
                    if previous.is_none_or(|previous| previous.message != refusal.message) {
                        tracing::error!(resource = %self.row.spec.gvr, error = %refusal, "objects in the store cannot be read, lists and watches of this resource fail");
                    }
                }
                Err(error) => {
                    tracing::warn!(resource = %self.row.spec.gvr, %error, "watch cache relists");
                }
            }
            base::clock::sleep(backoff.next_delay()).await;
        }
    }

    async fn follow(&self) -> Result<(), CacheError> {
        let range = self.range();
        let begun = base::clock::now();
        let loaded = self.load(&range).await;
        metrics::loaded(&self.row.spec.gvr, begun, loaded.is_ok());
        let loaded = loaded?;
        let mut watcher = self.storage.backend().watch(range, Some(Revision(loaded + 1))).await?;
        while let Some(batch) = watcher.batches.recv().await {
            let batch = batch?;
            metrics::told(&self.row.spec.gvr, batch.events.len());
            let changes = self.changes(&batch.events).await?;
            self.apply(changes, batch.revision.0);
            self.revision.send_if_modified(|r| {
                let moved = batch.revision.0 > *r;
                *r = (*r).max(batch.revision.0);
                moved
            });
        }
        Ok(())
    }

    /// Ends all watches.
    fn end(&self) {
        let mut state = self.state.write();
        let revision = self.revision();
        state.load(BTreeMap::new(), revision);
        let interests = self.interests.lock();
        interests.wake_all();
        let all = interests.all();
        drop((interests, state));
        all.notify_waiters();
    }

    fn range(&self) -> KeyRange {
        KeyRange::prefix(Bytes::from(self.row.key_prefix("")))
    }

    fn apply(&self, changes: Vec<Change>, revision: i64) {
        let mut state = self.state.write();
        let first = state.next_sequence();
        let events = state.apply(changes, revision);
        if events.is_empty() {
            return;
        }
        metrics::passed(&self.row.spec.gvr, events.len());
        let interests = self.interests.lock();
        interests.wake(&self.row, first, &events);
        let all = interests.all();
        drop((interests, state));
        all.notify_waiters();
    }

    async fn load(&self, range: &KeyRange) -> Result<i64, CacheError> {
        let mut response = self.storage.backend().range(RangeRequest::new(range.clone())).await?;
        // Values may be slices of the store's files; copies let the store delete the files while
        // the cache keeps the objects.
        for kv in &mut response.kvs {
            kv.value = Bytes::copy_from_slice(&kv.value);
        }
        let reached = response.revision.0;
        let kvs: Vec<_> = response.kvs.iter().collect();
        let read = self.storage.read_all(&self.row, &kvs).await;
        let mut objects = BTreeMap::new();
        for (kv, object) in kvs.iter().zip(self.readable(read)?) {
            objects.insert(self.suffix(&kv.key), CachedObject::new(Arc::new(object)));
        }
        self.fault.send_replace(None);
        let mut state = self.state.write();
        state.load(objects, reached);
        let interests = self.interests.lock();
        interests.wake_all();
        let all = interests.all();
        drop((interests, state));
        all.notify_waiters();
        self.revision.send_replace(reached);
        Ok(reached)
    }

    /// The key after the prefix: `namespace/name` or `name`.
    fn suffix(&self, key: &[u8]) -> Box<str> {
        let text = String::from_utf8_lossy(key);
        let prefix = self.row.key_prefix("");
        text.strip_prefix(prefix.as_str()).unwrap_or(&text).into()
    }

    /// The objects that were read.
    ///
    /// # Errors
    /// When one cannot be read: a cache without it would show it as deleted.
    fn readable(&self, read: Vec<Result<Object, Unreadable>>) -> Result<Vec<Object>, CacheError> {
        let (mut objects, mut failed) = (Vec::with_capacity(read.len()), Vec::new());
        for read in read {
            match read {
                Ok(object) => objects.push(object),
                Err(unreadable) => {
                    metrics::unreadable(&self.row.spec.gvr);
                    failed.push(unreadable);
                }
            }
        }
        match unreadable::list_error(&self.row.spec.gvr, &failed) {
            None => Ok(objects),
            Some(error) => Err(CacheError::Unreadable(Arc::new(error))),
        }
    }

    async fn changes(&self, events: &[StoreEvent]) -> Result<Vec<Change>, CacheError> {
        let put: Vec<_> = events.iter().filter(|e| !e.deleted).map(|e| &e.kv).collect();
        let read = self.storage.read_all(&self.row, &put).await;
        let mut read = self.readable(read)?.into_iter();
        let mut changes = Vec::with_capacity(events.len());
        for event in events {
            let object = if event.deleted { None } else { read.next() };
            changes.push((self.suffix(&event.kv.key), object, event.kv.mod_revision.0));
        }
        Ok(changes)
    }

    /// Events of the store's history.
    async fn history(&self, events: &[StoreEvent]) -> Result<Vec<Arc<Event>>, CacheError> {
        let kvs: Vec<_> = events
            .iter()
            .flat_map(|e| e.prev.iter().chain((!e.deleted).then_some(&e.kv)))
            .collect();
        let read = self.storage.read_all(&self.row, &kvs).await;
        let entries = self.readable(read)?.into_iter();
        let mut entries = entries.map(|object| CachedObject::new(Arc::new(object)));
        let mut made = Vec::with_capacity(events.len());
        for event in events {
            let revision = event.kv.mod_revision.0;
            let previous = event.prev.as_ref().and_then(|_| entries.next());
            let event = if event.deleted {
                previous.map(|previous| Event::deletion(previous, revision))
            } else {
                let entry = entries.next();
                entry.map(|entry| Event::new(entry, previous, false, revision))
            };
            made.extend(event.map(Arc::new));
        }
        Ok(made)
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
    /// 504 with upstream's text when the revision is not reached in time; 500 while objects cannot
    /// be read.
    pub async fn wait_for(&self, revision: i64) -> Result<(), Status> {
        let begun = base::clock::now();
        let mut seen = self.revision.subscribe();
        if *seen.borrow_and_update() < revision {
            // Writes of other resources advance this cache only when a request waits for that
            // revision.
            self.storage.backend().notify_progress(&self.range());
        }
        let reached = seen.wait_for(|r| *r >= revision.max(1));
        // The objects of an earlier load are outdated once objects cannot be read.
        let outcome = tokio::select! {
            biased;
            () = self.stop.requested() => return Err(status::initializing()),
            refusal = self.faulty() => return Err(refusal),
            outcome = tokio::time::timeout(CATCH_UP_MAX, reached) => outcome,
        };
        if revision > 0 {
            metrics::waited(&self.row.spec.gvr, begun);
        }
        match outcome {
            Ok(Ok(_)) if self.stop.is_requested() => Err(status::initializing()),
            Ok(Ok(_)) => Ok(()),
            _ => Err(status::too_large_resource_version(revision, self.revision())),
        }
    }

    /// Whether objects in the store cannot be read now.
    pub(crate) fn is_faulty(&self) -> bool {
        self.fault.borrow().is_some()
    }

    /// Completes with the reason while objects cannot be read.
    async fn faulty(&self) -> Status {
        let mut fault = self.fault.subscribe();
        match fault.wait_for(Option::is_some).await.ok().and_then(|found| found.clone()) {
            Some(refusal) => Status::clone(&refusal),
            // The sender lives as long as the cache.
            None => std::future::pending().await,
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

    /// A position after `revision`, followed by the filter's events among others.
    ///
    /// # Errors
    /// The oldest revision from which one can watch, when `revision` is before it.
    pub async fn watch_from(
        self: &Arc<Self>,
        revision: i64,
        filter: &Filter,
    ) -> Result<Position, i64> {
        Position::after(Arc::clone(self), self.slot(filter), revision).await
    }

    /// The current objects of the filter, and the position after them.
    pub fn list_and_watch(self: &Arc<Self>, filter: &Filter) -> (Page, Position) {
        let slot = self.slot(filter);
        let state = self.state.read();
        let page = state.list(&self.row, filter, None, 0);
        let next = state.next_sequence();
        drop(state);
        let position = Position::at(Arc::clone(self), slot, next, page.revision);
        (page, position)
    }

    /// As [`Cache::list_and_watch`], for sending the objects one after another, which share memory
    /// with the cache; also returns the revision of the objects.
    pub fn initial_and_watch(self: &Arc<Self>, filter: &Filter) -> (Initial, Position, i64) {
        let slot = self.slot(filter);
        let state = self.state.read();
        let (initial, next) = (state.initial(&self.row, filter), state.next_sequence());
        let revision = state.revision();
        drop(state);
        (initial, Position::at(Arc::clone(self), slot, next, revision), revision)
    }

    /// Adds a slot. It is added before the position in the ring is read, so that no event is
    /// missed.
    fn slot(self: &Arc<Self>, filter: &Filter) -> Arc<Slot> {
        self.interests.lock().add(Interest::of(filter))
    }
}
