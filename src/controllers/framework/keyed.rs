//! The shape most controllers share: informers wake keys, workers reconcile them once the caches
//! are complete.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use base::Tasks;
use client::{Action, Change, Error, Informer, Queue, run_workers};

use super::queue_names;

/// Namespace (empty when cluster-scoped) and name.
pub(crate) type Key = (String, String);

/// How long a controller of replicas waits for more changes of what it counts, before it writes a
/// status: each write costs the store as much as that of a pod.
pub(crate) const STATUS_BATCH: Duration = Duration::from_millis(20);

/// How long the reconcile of an object that changed may wait: [`STATUS_BATCH`] if neither its spec
/// nor its labels did, as after a write of the status by the controller itself.
pub(crate) fn own_delay(change: &Change) -> Duration {
    let Change::Updated { old, new } = change else { return Duration::ZERO };
    let of = |object| client::meta(object).map(|m| (m.generation, m.deletion_timestamp.clone()));
    let is_same = old.labels == new.labels && of(old) == of(new);
    if is_same { STATUS_BATCH } else { Duration::ZERO }
}

/// Resolves once one informer has its first list.
type Wait = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The key of the object that changed.
pub(crate) fn own_key(change: &Change) -> Key {
    let key = &change.object().key;
    (key.namespace.to_string(), key.name.to_string())
}

/// A queue whose reconciles wait for all informers that feed it.
pub(crate) struct Keyed {
    pub(crate) queue: Queue<Key>,
    synced: Vec<Box<dyn Fn() -> Wait + Send + Sync>>,
}

impl Keyed {
    pub(crate) fn new() -> Self {
        Self { queue: Queue::new(), synced: Vec::new() }
    }

    /// Waits for this informer before the first reconcile.
    pub(crate) fn waits_for_sync<K: 'static>(&mut self, informer: &Informer<K>) {
        let informer = informer.clone();
        self.synced.push(Box::new(move || {
            let informer = informer.clone();
            Box::pin(async move { informer.synced().await })
        }));
    }

    /// Every change of an object wakes the object's own key.
    pub(crate) fn watches_self<K: 'static>(&mut self, informer: &Informer<K>) {
        self.watches(informer, |change| vec![own_key(change)]);
    }

    /// Every change wakes the keys that `keys` names.
    pub(crate) fn watches<K: 'static>(
        &mut self,
        informer: &Informer<K>,
        keys: impl Fn(&Change) -> Vec<Key> + Send + Sync + 'static,
    ) {
        self.watches_after(informer, |_| Duration::ZERO, keys);
    }

    /// Every change wakes the keys that `keys` names after its `delay`: changes in the meantime are
    /// part of the same reconcile.
    pub(crate) fn watches_after<K: 'static>(
        &mut self,
        informer: &Informer<K>,
        delay: impl Fn(&Change) -> Duration + Send + Sync + 'static,
        keys: impl Fn(&Change) -> Vec<Key> + Send + Sync + 'static,
    ) {
        self.waits_for_sync(informer);
        let queue = self.queue.clone();
        informer.on_change(move |change| {
            for key in keys(change) {
                queue.add_after(key, delay(change));
            }
        });
    }

    /// Starts the workers.
    pub(crate) fn run<F, R, E>(
        self,
        tasks: &Tasks,
        name: &'static str,
        workers: usize,
        reconcile: F,
    ) where
        F: Fn(Key) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Action, E>> + Send + 'static,
        E: fmt::Display + Send + 'static,
    {
        self.queue.set_name(queue_names::of(name));
        let (synced, reconcile) = (Arc::new(self.synced), Arc::new(reconcile));
        run_workers(tasks, name, workers, &self.queue, move |key: Key| {
            let (synced, reconcile) = (Arc::clone(&synced), Arc::clone(&reconcile));
            async move {
                for wait in synced.iter() {
                    wait().await;
                }
                reconcile(key).await
            }
        });
    }
}

/// Ignores the error of a write to an object that has been deleted or changed: its event reconciles
/// the key again.
pub(crate) fn settled<T>(result: Result<T, Error>) -> Result<(), Error> {
    match result {
        Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
        other => other.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::Object;
    use serde_json::{Value, json};

    fn object(metadata: Value) -> Arc<Object> {
        let value = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": metadata});
        Arc::new(Object::from_value(value).unwrap())
    }

    #[test]
    fn only_a_change_of_the_status_may_wait() {
        let old = object(json!({"name": "r", "namespace": "n", "generation": 1}));
        let delay =
            |new: Value| own_delay(&Change::Updated { old: Arc::clone(&old), new: object(new) });
        let annotated = json!({"name": "r", "namespace": "n", "generation": 1,
            "annotations": {"a": "b"}});
        assert_eq!(delay(annotated), STATUS_BATCH);
        let spec = json!({"name": "r", "namespace": "n", "generation": 2});
        let labelled =
            json!({"name": "r", "namespace": "n", "generation": 1, "labels": {"a": "b"}});
        let deleted = json!({"name": "r", "namespace": "n", "generation": 1,
            "deletionTimestamp": "2026-01-01T00:00:00Z"});
        for new in [spec, labelled, deleted] {
            assert_eq!(delay(new), Duration::ZERO);
        }
        assert_eq!(own_delay(&Change::Added(Arc::clone(&old))), Duration::ZERO);
        assert_eq!(own_delay(&Change::Deleted(old)), Duration::ZERO);
    }
}
