//! Shared informers: one reflector and one cache per scope, with many listeners.

use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use api::{Gvr, Object};
use base::tasks::Shutdown;
use base::{Kind as TaskKind, Tasks};
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use crate::cache::{Cache, IndexFn};
use crate::client::{Client, Kind, gvr_of};
use crate::reflector;
use crate::transport::Scope;

/// A change of a cache, delivered after the cache was updated.
#[derive(Debug, Clone)]
pub enum Change {
    /// An object was added.
    Added(Arc<Object>),
    /// An object changed; also after a relist with another version.
    Updated {
        /// The object before the change.
        old: Arc<Object>,
        /// The object after the change.
        new: Arc<Object>,
    },
    /// An object was removed; contains its last known state.
    Deleted(Arc<Object>),
}

impl Change {
    /// The newest known state.
    pub fn object(&self) -> &Arc<Object> {
        match self {
            Self::Added(object) | Self::Updated { new: object, .. } | Self::Deleted(object) => {
                object
            }
        }
    }
}

/// A listener: called by the reflector, in order. It must not block, only record work (enqueue a
/// key).
pub type Listener = Box<dyn Fn(&Change) + Send + Sync>;

/// State that reflector and informers share.
pub(crate) struct Shared {
    pub(crate) scope: Scope,
    pub(crate) cache: Cache,
    pub(crate) listeners: RwLock<Vec<Listener>>,
    pub(crate) synced: watch::Sender<bool>,
    /// Stops only this reflector; for resources that may be removed while the process runs.
    stop: Option<Shutdown>,
}

impl Shared {
    pub(crate) fn notify(&self, change: &Change) {
        for listener in self.listeners.read().iter() {
            listener(change);
        }
    }
}

/// A typed view of a shared cache. Objects are decoded on access.
pub struct Informer<K> {
    shared: Arc<Shared>,
    kind: PhantomData<fn() -> K>,
}

impl<K> Clone for Informer<K> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), kind: PhantomData }
    }
}

impl<K> fmt::Debug for Informer<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Informer({} {:?})", self.shared.scope.gvr, self.shared.cache)
    }
}

impl<K> Informer<K> {
    /// The untyped cache.
    pub fn cache(&self) -> &Cache {
        &self.shared.cache
    }

    /// Adds a listener. It first receives all cached objects as `Added`. No change is missed; an
    /// object that changes during this call may be delivered twice.
    pub fn on_change(&self, listener: impl Fn(&Change) + Send + Sync + 'static) {
        let mut listeners = self.shared.listeners.write();
        for object in self.shared.cache.list("") {
            listener(&Change::Added(object));
        }
        listeners.push(Box::new(listener));
    }

    /// Declares an index of the cache.
    pub fn add_index(&self, name: &'static str, function: IndexFn) {
        self.shared.cache.add_index(name, function);
    }

    /// Resolves when the first list is complete.
    pub async fn synced(&self) {
        let mut synced = self.shared.synced.subscribe();
        // The sender lives as long as `shared`, so this always ends with `true`.
        let _ = synced.wait_for(|done| *done).await;
    }

    /// Whether the first list is complete.
    pub fn is_synced(&self) -> bool {
        *self.shared.synced.borrow()
    }
}

impl<K: Kind> Informer<K> {
    /// The decoded object; `None` if it is missing or cannot be decoded, which is logged.
    pub fn get(&self, namespace: &str, name: &str) -> Option<K> {
        self.shared.cache.get(namespace, name).and_then(|o| decode(&o))
    }

    /// All objects of a namespace (all if empty), decoded on each call: use indexes on hot paths.
    pub fn list(&self, namespace: &str) -> Vec<K> {
        self.shared.cache.list(namespace).iter().filter_map(|o| decode(o)).collect()
    }

    /// The decoded objects with `value` in an index.
    pub fn by_index(&self, name: &'static str, value: &str) -> Vec<K> {
        let objects = self.shared.cache.by_index(name, value);
        objects.iter().filter_map(|object| decode(object)).collect()
    }
}

/// Decodes a cached object; a failure is a bug or an invalid object, which is logged and skipped.
pub fn decode<K: Kind>(object: &Object) -> Option<K> {
    match object.decode() {
        Ok(decoded) => Some(decoded),
        Err(error) => {
            tracing::warn!(object = %object.key, kind = K::KIND, %error, "cannot decode cached object");
            None
        }
    }
}

/// The informer factory: requests for the same scope share a cache. Uses the identity of the
/// client.
#[derive(Clone)]
pub struct Informers {
    client: Client,
    tasks: Tasks,
    running: Arc<Mutex<HashMap<Scope, Arc<Shared>>>>,
}

impl fmt::Debug for Informers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Informers({})", self.running.lock().len())
    }
}

impl Informers {
    /// Creates a factory whose reflectors run in `tasks`.
    pub fn new(client: Client, tasks: Tasks) -> Self {
        Self { client, tasks, running: Arc::default() }
    }

    /// The informer of all objects of a built-in kind; started on first use.
    pub fn of<K: Kind>(&self) -> Informer<K> {
        self.scoped(Scope::all(gvr_of::<K>()))
    }

    /// The informer of any resource, untyped (`Informer<()>` has the cache and listeners only).
    pub fn of_gvr(&self, gvr: Gvr) -> Informer<()> {
        self.begin(Scope::all(gvr), true)
    }

    /// Stops the informer of a resource that is no longer served. With `told`, its listeners
    /// receive the removal of all objects. An informer that was requested by type keeps running.
    pub fn forget(&self, gvr: &Gvr, told: bool) {
        let scope = Scope::all(gvr.clone());
        let mut running = self.running.lock();
        if running.get(&scope).is_none_or(|shared| shared.stop.is_none()) {
            return;
        }
        let gone = running.remove(&scope);
        drop(running);
        let Some(shared) = gone else { return };
        if let Some(stop) = &shared.stop {
            stop.request();
        }
        for object in shared.cache.list("").into_iter().filter(|_| told) {
            shared.notify(&Change::Deleted(object));
        }
    }

    /// The informer of a narrower scope, such as the pods of one node.
    pub fn scoped<K>(&self, scope: Scope) -> Informer<K> {
        self.begin(scope, false)
    }

    fn begin<K>(&self, scope: Scope, ends: bool) -> Informer<K> {
        let mut running = self.running.lock();
        let shared = running.entry(scope.clone()).or_insert_with(|| {
            // An informer that may end before the process has a separate set of tasks, so that its
            // end is not an error.
            let own = ends.then(|| self.tasks.child());
            let tasks = own.as_ref().unwrap_or(&self.tasks);
            let shared = Arc::new(Shared {
                scope,
                cache: Cache::default(),
                listeners: RwLock::default(),
                synced: watch::Sender::new(false),
                stop: own.as_ref().map(|own| own.shutdown().clone()),
            });
            let run =
                reflector::run(self.client.clone(), Arc::clone(&shared), tasks.shutdown().clone());
            tasks.spawn(TaskKind::Critical, "reflector", run);
            shared
        });
        Informer { shared: Arc::clone(shared), kind: PhantomData }
    }

    /// Resolves when all informers requested so far have their first list.
    pub async fn synced(&self) {
        let all: Vec<Arc<Shared>> = self.running.lock().values().cloned().collect();
        for shared in all {
            let _ = shared.synced.subscribe().wait_for(|done| *done).await;
        }
    }

    /// The client of the reflectors.
    pub fn client(&self) -> &Client {
        &self.client
    }
}
