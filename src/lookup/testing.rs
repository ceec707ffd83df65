//! A `Lookup` over a map, for tests.

#![allow(clippy::unwrap_used, reason = "tests only")]

use std::collections::BTreeMap;
use std::sync::Arc;

use api::{Gvr, Object, Status};
use async_trait::async_trait;
use parking_lot::Mutex;
use serde_json::Value;

use crate::{Lookup, PODS};

type Key = (String, String, String);

/// Objects by resource, namespace and name.
#[derive(Default)]
pub struct Fixed {
    objects: Mutex<BTreeMap<Key, Arc<Object>>>,
    /// Resources that cannot be read.
    broken: Mutex<Vec<Gvr>>,
}

/// Message of the error for a resource that cannot be read.
pub const UNREADABLE: &str = "the store has no leader";

impl Fixed {
    /// A lookup over these objects, each with its resource.
    pub fn new(objects: &[(&Gvr, Value)]) -> Arc<Self> {
        let fixed = Self::default();
        for (gvr, value) in objects {
            fixed.put(gvr, value.clone());
        }
        Arc::new(fixed)
    }

    /// Makes reads of this resource fail.
    pub fn break_reads(&self, gvr: &Gvr) {
        self.broken.lock().push(gvr.clone());
    }

    /// Makes all reads succeed again.
    pub fn restore_reads(&self) {
        self.broken.lock().clear();
    }

    fn check(&self, gvr: &Gvr) -> Result<(), Status> {
        if self.broken.lock().contains(gvr) {
            return Err(Status::failure(503, "ServiceUnavailable", UNREADABLE));
        }
        Ok(())
    }

    /// Adds or replaces an object.
    pub fn put(&self, gvr: &Gvr, value: Value) -> Arc<Object> {
        let object = Arc::new(Object::from_value(value).unwrap());
        let key = (
            gvr.resource.to_string(),
            object.key.namespace.to_string(),
            object.key.name.to_string(),
        );
        self.objects.lock().insert(key, Arc::clone(&object));
        object
    }
}

#[async_trait]
impl Lookup for Fixed {
    async fn get(
        &self,
        gvr: &Gvr,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Arc<Object>>, Status> {
        self.check(gvr)?;
        let key = (gvr.resource.to_string(), namespace.to_owned(), name.to_owned());
        Ok(self.objects.lock().get(&key).cloned())
    }

    async fn get_live(
        &self,
        gvr: &Gvr,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Arc<Object>>, Status> {
        self.get(gvr, namespace, name).await
    }

    async fn list(&self, gvr: &Gvr, namespace: &str) -> Result<Vec<Arc<Object>>, Status> {
        self.check(gvr)?;
        let all = self.objects.lock();
        let found = all
            .iter()
            .filter(|((resource, ns, _), _)| {
                **resource == *gvr.resource && (namespace.is_empty() || ns == namespace)
            })
            .map(|(_, object)| Arc::clone(object));
        Ok(found.collect())
    }

    async fn pods_on_node(&self, node: &str) -> Result<Vec<Arc<Object>>, Status> {
        let mut pods = self.list(&PODS, "").await?;
        pods.retain(|pod| {
            pod.value().unwrap().pointer("/spec/nodeName").and_then(Value::as_str) == Some(node)
        });
        Ok(pods)
    }
}
