//! Registry, storage and caches, without HTTP. Built before the server, because authorizers and
//! admission plugins read through it.

use std::sync::Arc;

use api::schema::Schema;
use api::{Gvr, Object, Status};
use arc_swap::ArcSwap;
use async_trait::async_trait;
use base::Tasks;
use serde_json::Value;
use store::Backend;

use crate::registry::convert;
use crate::registry::selection::Selection;
use crate::registry::storage::{Storage, Transformer, Written};
use crate::registry::watch_cache::{Cache, Caches, Filter};
use crate::registry::{Registry, Resource};
use crate::response::status;
use lookup::Lookup;

/// Registry, storage and caches.
#[derive(Debug)]
pub struct Objects {
    registry: ArcSwap<Registry>,
    storage: Arc<Storage>,
    caches: Caches,
    /// Serializes changes of the registry.
    swap: parking_lot::Mutex<()>,
}

impl Objects {
    /// Serves the built-in resources from a store.
    pub fn new(
        store: Arc<dyn Backend>,
        transformer: Option<Arc<dyn Transformer>>,
        schema: Arc<Schema>,
        tasks: &Tasks,
    ) -> Arc<Self> {
        let storage = Arc::new(Storage::new(store, transformer));
        Arc::new(Self {
            registry: ArcSwap::from_pointee(Registry::builtin(schema)),
            caches: Caches::new(Arc::clone(&storage), tasks.clone()),
            storage,
            swap: parking_lot::Mutex::new(()),
        })
    }

    /// The resources that are currently served.
    pub fn registry(&self) -> Arc<Registry> {
        self.registry.load_full()
    }

    /// Replaces the registry with a changed copy.
    pub(crate) fn update_registry(&self, change: impl Fn(&mut Registry)) {
        let _one = self.swap.lock();
        let mut registry = Registry::clone(&self.registry.load());
        change(&mut registry);
        self.registry.store(Arc::new(registry));
    }

    /// The storage of the objects.
    pub fn storage(&self) -> &Arc<Storage> {
        &self.storage
    }

    /// All running caches.
    pub fn caches(&self) -> &Caches {
        &self.caches
    }

    /// The cache of a row, which may not be loaded.
    pub fn cache(&self, row: &Arc<Resource>) -> Arc<Cache> {
        self.caches.of(row)
    }

    /// The cache of a row once it has every write that was acknowledged before the call.
    ///
    /// # Errors
    /// When the store has no leader, or the cache does not catch up.
    pub async fn fresh_cache(&self, row: &Arc<Resource>) -> Result<Arc<Cache>, Status> {
        let revision =
            self.storage.backend().read_index().await.map_err(|e| status::of_store(&e))?;
        let cache = self.caches.of(row);
        let outcome = cache.wait_for(revision.0).await;
        crate::metrics::storage::read(&row.spec.gvr, outcome.is_ok());
        outcome.map(|()| cache)
    }

    /// The cache of a row, once it is loaded and contains this server's writes.
    ///
    /// # Errors
    /// When it does not load in time.
    pub async fn loaded_cache(&self, row: &Arc<Resource>) -> Result<Arc<Cache>, Status> {
        let cache = self.caches.of(row);
        cache.wait_for(row.written.load(std::sync::atomic::Ordering::Relaxed)).await?;
        Ok(cache)
    }

    /// The row of a resource.
    ///
    /// # Errors
    /// 404 when it is not served.
    pub fn row(&self, gvr: &Gvr) -> Result<Arc<Resource>, Status> {
        self.registry.load().row(gvr).cloned().ok_or_else(status::no_resource)
    }

    /// Writes the `status` of an object; the value carries the resource version that it was read
    /// at.
    ///
    /// # Errors
    /// The error of the write; 409 `Conflict` when the object has changed.
    pub(crate) async fn update_status(
        &self,
        gvr: &Gvr,
        object: Value,
    ) -> Result<Arc<Object>, Status> {
        let row = self.row(gvr)?;
        let name = crate::registry::metadata::text(&object, "name").to_owned();
        let namespace = crate::registry::metadata::text(&object, "namespace").to_owned();
        let version =
            crate::registry::metadata::text(&object, "resourceVersion").parse().unwrap_or(0);
        let Some(current) = self.storage.get(&row, &namespace, &name).await? else {
            return Err(Status::not_found(&gvr.group, &gvr.resource, &name));
        };
        let mut value = current.value().map_err(|e| Status::internal(&e.to_string()))?;
        if let (Some(map), Some(new)) = (value.as_object_mut(), object.get("status")) {
            map.insert("status".into(), new.clone());
        }
        match self.storage.write(&row, &value, version).await? {
            Written::Done(object) => Ok(Arc::new(object)),
            Written::Changed(_) => {
                Err(Status::conflict(&gvr.group, &gvr.resource, &name, status::MODIFIED))
            }
        }
    }

    async fn cached(&self, gvr: &Gvr) -> Result<(Arc<Resource>, Arc<Cache>), Status> {
        let row = self.row(gvr)?;
        let cache = self.loaded_cache(&row).await?;
        Ok((row, cache))
    }
}

#[async_trait]
impl Lookup for Objects {
    async fn get(
        &self,
        gvr: &Gvr,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Arc<Object>>, Status> {
        let Ok((row, cache)) = self.cached(gvr).await else {
            // The cache fails when any object of the resource is unreadable.
            return self.get_live(gvr, namespace, name).await;
        };
        Ok(cache.get(namespace, name).map(|object| convert::object(&row, &object)))
    }

    async fn get_live(
        &self,
        gvr: &Gvr,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Arc<Object>>, Status> {
        // A resource that is not served has no objects.
        let Ok(row) = self.row(gvr) else { return Ok(None) };
        let found = self.storage.get(&row, namespace, name).await?;
        Ok(found.map(|object| convert::object(&row, &Arc::new(object))))
    }

    async fn list(&self, gvr: &Gvr, namespace: &str) -> Result<Vec<Arc<Object>>, Status> {
        // A resource that is not served has no objects.
        if self.row(gvr).is_err() {
            return Ok(Vec::new());
        }
        let (row, cache) = self.cached(gvr).await?;
        let filter = Filter { namespace: namespace.to_owned(), ..Filter::default() };
        let items = cache.list(&filter, None, 0).items;
        Ok(items.iter().map(|object| convert::object(&row, object)).collect())
    }

    async fn pods_on_node(&self, node: &str) -> Result<Vec<Arc<Object>>, Status> {
        let (row, cache) = self.cached(&Gvr::new("", "v1", "pods")).await?;
        let selection = Selection::parse(&row, "", &format!("spec.nodeName={node}"))?;
        Ok(cache.list(&Filter { selection, ..Filter::default() }, None, 0).items)
    }
}

#[cfg(test)]
mod tests {
    use store::{Op, Txn};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_unreadable_object_is_distinguished_from_a_missing_one() {
        let tasks = Tasks::default();
        let store = store::open_memory_with(&tasks);
        let objects = Objects::new(Arc::clone(&store), None, Schema::builtin(), &tasks);
        let (nodes, unknown) = (&lookup::NODES, Gvr::new("example.com", "v1", "widgets"));
        for gvr in [nodes, &unknown] {
            assert!(objects.get_live(gvr, "", "n").await.unwrap().is_none());
            assert!(objects.find(gvr, "", "n").await.unwrap().is_none());
        }
        let put = |name: &str, value: &'static str| Op::Put {
            key: format!("/registry/minions/{name}").into(),
            value: value.into(),
            lease: 0,
            prev_kv: false,
        };
        let good = r#"{"kind":"Node","apiVersion":"v1","metadata":{"name":"good","uid":"u"}}"#;
        let success = vec![put("n", "k8s:enc:aescbc:v1:lost:damaged"), put("good", good)];
        store.txn(Txn { success, ..Txn::default() }).await.unwrap();
        for found in [
            objects.get_live(nodes, "", "n").await,
            objects.find(nodes, "", "n").await,
            objects.wait_for(nodes, "", "n", std::time::Duration::from_secs(60)).await,
        ] {
            let refused = found.unwrap_err();
            assert_eq!(refused.code, 500);
            assert!(refused.message.contains("/minions/n"), "{}", refused.message);
        }
        // The cache has all objects or none; readable objects are found in the store.
        for name in ["good", "none"] {
            let found = objects.find(nodes, "", name).await.unwrap();
            assert_eq!(found.is_some(), name == "good");
        }
    }
}
