//! A persistent map: the objects of a cache in key order, in leaves that snapshots share. A watch
//! that sends its initial objects slowly keeps only the leaves that it has not sent yet; a leaf is
//! copied only when it changes meanwhile.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::Object;

use super::state::{CachedObject, Filter};
use crate::registry::Resource;

/// Objects of a leaf at most; a larger one is split.
const LEAF_MAX: usize = 256;
/// Objects of a leaf after a load, which leaves room for most changes.
const LEAF_LOADED: usize = LEAF_MAX / 4 * 3;

type Leaf = Vec<(Arc<str>, Arc<CachedObject>)>;

/// A map by key suffix: `namespace/name` or `name`.
#[derive(Debug, Default)]
pub(super) struct Map {
    /// In key order; no leaf is empty.
    leaves: Vec<Arc<Leaf>>,
    len: usize,
}

impl From<BTreeMap<Box<str>, Arc<CachedObject>>> for Map {
    fn from(all: BTreeMap<Box<str>, Arc<CachedObject>>) -> Self {
        let len = all.len();
        let mut leaves = Vec::with_capacity(len.div_ceil(LEAF_LOADED));
        let mut all = all.into_iter().map(|(key, entry)| (Arc::from(key), entry));
        loop {
            let leaf: Leaf = all.by_ref().take(LEAF_LOADED).collect();
            if leaf.is_empty() {
                return Self { leaves, len };
            }
            leaves.push(Arc::new(leaf));
        }
    }
}

fn is_before(leaf: &Leaf, key: &str) -> bool {
    leaf.last().is_some_and(|(last, _)| **last < *key)
}

fn find(leaf: &Leaf, key: &str) -> Result<usize, usize> {
    leaf.binary_search_by(|(have, _)| (**have).cmp(key))
}

impl Map {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Index of the first leaf that does not end before the key.
    fn leaf_of(&self, key: &str) -> usize {
        self.leaves.partition_point(|leaf| is_before(leaf, key))
    }

    pub(super) fn get_key_value(&self, key: &str) -> Option<(&str, &Arc<CachedObject>)> {
        let leaf = self.leaves.get(self.leaf_of(key))?;
        let (key, entry) = leaf.get(find(leaf, key).ok()?)?;
        Some((key, entry))
    }

    pub(super) fn get(&self, key: &str) -> Option<&Arc<CachedObject>> {
        self.get_key_value(key).map(|(_, entry)| entry)
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &Arc<CachedObject>> {
        self.leaves.iter().flat_map(|leaf| leaf.iter()).map(|(_, entry)| entry)
    }

    /// The objects from this key on, in key order.
    pub(super) fn range(
        &self,
        from: &str,
    ) -> impl Iterator<Item = (&str, &Arc<CachedObject>)> + use<'_> {
        let leaves = self.leaves.get(self.leaf_of(from)..).unwrap_or_default();
        let skipped =
            leaves.first().map_or(0, |leaf| find(leaf, from).unwrap_or_else(|behind| behind));
        let all = leaves.iter().flat_map(|leaf| leaf.iter()).skip(skipped);
        all.map(|(key, entry)| (&**key, entry))
    }

    /// Adds or replaces an object; returns the replaced one.
    pub(super) fn insert(
        &mut self,
        key: Box<str>,
        entry: Arc<CachedObject>,
    ) -> Option<Arc<CachedObject>> {
        // A key after all others goes into the last leaf.
        let last = self.leaves.len().saturating_sub(1);
        let at = self.leaf_of(&key).min(last);
        let Some(leaf) = self.leaves.get_mut(at).map(Arc::make_mut) else {
            self.leaves.push(Arc::new(vec![(key.into(), entry)]));
            self.len = 1;
            return None;
        };
        let index = match find(leaf, &key) {
            Ok(index) => {
                return leaf.get_mut(index).map(|(_, have)| std::mem::replace(have, entry));
            }
            Err(index) => index,
        };
        leaf.insert(index, (key.into(), entry));
        self.len += 1;
        if leaf.len() > LEAF_MAX {
            // Ascending keys fill each leaf before the next one begins.
            let grows = at == last && index + 1 == leaf.len();
            let kept = if grows { LEAF_MAX } else { leaf.len() / 2 };
            let split = leaf.split_off(kept);
            self.leaves.insert(at + 1, Arc::new(split));
        }
        None
    }

    pub(super) fn remove(&mut self, key: &str) -> Option<Arc<CachedObject>> {
        let at = self.leaf_of(key);
        let leaf = self.leaves.get_mut(at)?;
        let index = find(leaf, key).ok()?;
        let (_, removed) = Arc::make_mut(leaf).remove(index);
        self.len -= 1;
        if !self.merge(at) && at > 0 {
            self.merge(at - 1);
        }
        if self.leaves.get(at).is_some_and(|leaf| leaf.is_empty()) {
            self.leaves.remove(at);
        }
        Some(removed)
    }

    /// Merges a leaf with the next one when both fill at most half a leaf.
    fn merge(&mut self, at: usize) -> bool {
        let Some([one, next]) = self.leaves.get_mut(at..at + 2) else { return false };
        if one.len() + next.len() > LEAF_MAX / 2 {
            return false;
        }
        Arc::make_mut(one).extend(next.iter().cloned());
        self.leaves.remove(at + 1);
        true
    }

    /// The current objects whose keys have this prefix.
    pub(super) fn snapshot(&self, prefix: String) -> Snapshot {
        let begins = |leaf: &&Arc<Leaf>| {
            leaf.first().is_some_and(|(key, _)| **key < *prefix || key.starts_with(&*prefix))
        };
        let leaves = self.leaves.get(self.leaf_of(&prefix)..).unwrap_or_default();
        let leaves: Vec<_> = leaves.iter().take_while(begins).cloned().collect();
        Snapshot { leaves: leaves.into_iter(), leaf: Arc::default(), next: 0, prefix }
    }
}

/// The objects of one moment; leaves are released as their objects are taken.
#[derive(Debug)]
pub struct Snapshot {
    leaves: std::vec::IntoIter<Arc<Leaf>>,
    leaf: Arc<Leaf>,
    next: usize,
    prefix: String,
}

impl Snapshot {
    /// The next object that the filter selects.
    pub(super) fn next(&mut self, row: &Resource, filter: &Filter) -> Option<Arc<Object>> {
        loop {
            while let Some((key, entry)) = self.leaf.get(self.next) {
                self.next += 1;
                if key.starts_with(&*self.prefix) && filter.matches(row, entry) {
                    return Some(Arc::clone(&entry.object));
                }
            }
            self.next = 0;
            self.leaf = Arc::default();
            self.leaf = self.leaves.next()?;
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entry(key: &str, revision: i64) -> Arc<CachedObject> {
        let (namespace, name) = key.split_once('/').unwrap();
        let value = json!({"metadata": {"namespace": namespace, "name": name, "resourceVersion": revision.to_string()}});
        CachedObject::new(Arc::new(Object::from_value(value).unwrap()))
    }

    fn keys(map: &Map, from: &str) -> Vec<String> {
        map.range(from).map(|(key, _)| key.to_owned()).collect()
    }

    fn rest(snapshot: &mut Snapshot, filter: &Filter) -> Vec<String> {
        let schema = api::schema::Schema::builtin();
        let registry = crate::registry::Registry::builtin(schema);
        let row = registry.row(&lookup::CONFIG_MAPS).unwrap();
        let object = |object: Arc<Object>| {
            let (key, revision) = (&object.key, object.resource_version);
            format!("{}/{}@{revision}", key.namespace, key.name)
        };
        std::iter::from_fn(|| snapshot.next(row, filter)).map(object).collect()
    }

    /// Compares thousands of pseudorandom changes with the standard library's map.
    #[test]
    fn it_behaves_like_a_btree_map() {
        let mut wanted: BTreeMap<Box<str>, Arc<CachedObject>> = BTreeMap::new();
        let mut map = Map::default();
        let mut seed = 1_u64;
        for step in 0..6000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let key: Box<str> = format!("ns-{}/o-{}", seed >> 62, (seed >> 33) % 900).into();
            // First it grows, then it shrinks.
            let removes = (seed >> 20) % 10 < if step < 3000 { 2 } else { 8 };
            let (old, new) = if removes {
                (wanted.remove(&key), map.remove(&key))
            } else {
                let entry = entry(&key, step);
                (wanted.insert(key.clone(), Arc::clone(&entry)), map.insert(key, entry))
            };
            let revision = |e: Option<Arc<CachedObject>>| e.map(|e| e.object.resource_version);
            assert_eq!(revision(old), revision(new));
            assert_eq!(map.len(), wanted.len());
            assert!(map.leaves.iter().all(|leaf| !leaf.is_empty() && leaf.len() <= LEAF_MAX));
        }
        assert_eq!(keys(&map, ""), wanted.keys().map(|key| key.to_string()).collect::<Vec<_>>());
        for from in ["ns-1/", "ns-1/o-5", "ns-2/o-899x", "z"] {
            let bounds = (std::ops::Bound::Included(from), std::ops::Bound::Unbounded);
            let wanted: Vec<_> =
                wanted.range::<str, _>(bounds).map(|(key, _)| key.to_string()).collect();
            assert_eq!(keys(&map, from), wanted, "{from}");
        }
        for (key, entry) in &wanted {
            let found = map.get(key).unwrap();
            assert!(Arc::ptr_eq(found, entry));
        }
        assert!(map.get("none").is_none());
        let loaded = Map::from(wanted.clone());
        assert_eq!(keys(&loaded, ""), keys(&map, ""));
        for key in wanted.keys() {
            assert!(map.remove(key).is_some());
        }
        assert_eq!((map.len(), map.leaves.len(), keys(&map, "").len()), (0, 0, 0));
    }

    #[test]
    fn a_snapshot_does_not_change_and_shares_unchanged_leaves() {
        let key = |n: usize| format!("a/o-{n:04}");
        let all: BTreeMap<Box<str>, _> =
            (0..2000).map(|n| (key(n).into(), entry(&key(n), 1))).collect();
        let mut map = Map::from(all);
        map.insert("a-b/x".into(), entry("a-b/x", 1));
        map.insert("b/x".into(), entry("b/x", 1));
        let all = Filter { namespace: "a".into(), ..Filter::default() };
        let mut snapshot = map.snapshot("a/".into());
        let leaf = |map: &Map, key: &str| Arc::clone(&map.leaves[map.leaf_of(key)]);
        let first = leaf(&map, &key(1));
        map.insert(key(1).into(), entry(&key(1), 2));
        map.remove(&key(2));
        map.insert("a/new".into(), entry("a/new", 2));
        // The leaf of the changes was copied, the others are shared.
        assert!(!Arc::ptr_eq(&first, &leaf(&map, &key(1))));
        let middle = key(1000);
        assert_eq!(Arc::strong_count(&map.leaves[map.leaf_of(&middle)]), 2);
        drop(first);
        let found = rest(&mut snapshot, &all);
        assert_eq!(found.len(), 2000);
        assert_eq!((&*found[1], &*found[2]), ("a/o-0001@1", "a/o-0002@1"));
        // The snapshot has released the leaves that it sent.
        assert_eq!(Arc::strong_count(&map.leaves[map.leaf_of(&middle)]), 1);
        let mut now = map.snapshot("a/".into());
        let found = rest(&mut now, &all);
        assert_eq!(found.len(), 2000);
        assert_eq!((&*found[2], &*found[3]), ("a/o-0001@2", "a/o-0003@1"));
        assert_eq!(rest(&mut map.snapshot(String::new()), &Filter::default()).len(), 2002);
        assert!(rest(&mut map.snapshot("c/".into()), &Filter::default()).is_empty());
    }
}
