//! The last known objects of one resource, with indexes. The objects share their bytes with the
//! server's watch cache.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use api::{Object, ObjectKey};
use parking_lot::RwLock;

/// The index values of an object.
pub type IndexFn = fn(&Object) -> Vec<String>;

struct Index {
    function: IndexFn,
    /// The objects of each value. They are here besides `Inner::objects`, because a search of
    /// thousands of keys there costs more than all else that a controller does with their objects.
    objects: HashMap<String, HashMap<ObjectKey, Arc<Object>>>,
}

impl Index {
    fn insert(&mut self, object: &Arc<Object>) {
        for value in (self.function)(object) {
            let of_value = self.objects.entry(value).or_default();
            of_value.insert(object.key.clone(), Arc::clone(object));
        }
    }

    fn remove(&mut self, object: &Object) {
        for value in (self.function)(object) {
            if let Some(of_value) = self.objects.get_mut(&value) {
                of_value.remove(&object.key);
                if of_value.is_empty() {
                    self.objects.remove(&value);
                }
            }
        }
    }
}

#[derive(Default)]
struct Inner {
    objects: BTreeMap<ObjectKey, Arc<Object>>,
    indexes: HashMap<&'static str, Index>,
}

/// A cache of one resource. Reads never wait for the network.
#[derive(Default)]
pub struct Cache {
    inner: RwLock<Inner>,
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cache({} objects)", self.inner.read().objects.len())
    }
}

impl Cache {
    /// The object with this key.
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<Object>> {
        self.inner.read().objects.get(&ObjectKey::new(namespace, name)).cloned()
    }

    /// All objects, in key order; a non-empty namespace filters.
    pub fn list(&self, namespace: &str) -> Vec<Arc<Object>> {
        let inner = self.inner.read();
        if namespace.is_empty() {
            return inner.objects.values().cloned().collect();
        }
        let start = ObjectKey::new(namespace, "");
        inner
            .objects
            .range(start..)
            .take_while(|(k, _)| *k.namespace == *namespace)
            .map(|(_, o)| Arc::clone(o))
            .collect()
    }

    /// The number of objects.
    pub fn len(&self) -> usize {
        self.inner.read().objects.len()
    }

    /// Whether the cache is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Declares an index; a second declaration with the same name has no effect.
    pub fn add_index(&self, name: &'static str, function: IndexFn) {
        let mut inner = self.inner.write();
        if inner.indexes.contains_key(name) {
            return;
        }
        let mut index = Index { function, objects: HashMap::new() };
        for object in inner.objects.values() {
            index.insert(object);
        }
        inner.indexes.insert(name, index);
    }

    /// The objects with `value` in an index; none if the index is not declared.
    pub fn by_index(&self, name: &'static str, value: &str) -> Vec<Arc<Object>> {
        let inner = self.inner.read();
        let found = inner.indexes.get(name).and_then(|index| index.objects.get(value));
        found.into_iter().flat_map(HashMap::values).cloned().collect()
    }

    /// Stores an object and returns the previous one.
    pub(crate) fn put(&self, object: Arc<Object>) -> Option<Arc<Object>> {
        let mut guard = self.inner.write();
        let inner = &mut *guard;
        let old = inner.objects.insert(object.key.clone(), Arc::clone(&object));
        for index in inner.indexes.values_mut() {
            if let Some(old) = &old {
                index.remove(old);
            }
            index.insert(&object);
        }
        old
    }

    /// Removes an object and returns it.
    pub(crate) fn remove(&self, key: &ObjectKey) -> Option<Arc<Object>> {
        let mut guard = self.inner.write();
        let inner = &mut *guard;
        let old = inner.objects.remove(key)?;
        for index in inner.indexes.values_mut() {
            index.remove(&old);
        }
        Some(old)
    }

    /// The keys of all objects, for the end of a relist.
    pub(crate) fn keys(&self) -> Vec<ObjectKey> {
        self.inner.read().objects.keys().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(namespace: &str, name: &str, app: &str) -> Arc<Object> {
        Arc::new(
            Object::from_value(
                json!({"metadata":{"name":name,"namespace":namespace,"labels":{"app":app}}}),
            )
            .unwrap(),
        )
    }

    #[test]
    fn an_index_is_updated_by_changes_and_deletions() {
        let cache = Cache::default();
        cache.put(object("n", "a", "x"));
        cache.add_index("app", |o| o.label("app").map(str::to_owned).into_iter().collect());
        cache.put(object("n", "b", "x"));
        cache.put(object("n", "a", "y"));
        assert_eq!(cache.by_index("app", "x").len(), 1);
        cache.remove(&ObjectKey::new("n", "b"));
        assert!(cache.by_index("app", "x").is_empty());
        assert_eq!(cache.by_index("app", "y")[0].key.to_string(), "n/a");
    }

    #[test]
    fn listing_a_namespace_filters_other_objects() {
        let cache = Cache::default();
        for (namespace, name) in [("a", "z"), ("ab", "b"), ("b", "a")] {
            cache.put(object(namespace, name, ""));
        }
        let keys: Vec<String> = cache.list("ab").iter().map(|o| o.key.to_string()).collect();
        assert_eq!(keys, ["ab/b"]);
    }
}
