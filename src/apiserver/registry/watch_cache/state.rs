//! The state of a watch cache, without I/O: objects in key order, the ring of changes, and the
//! event that a filter makes of a change.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use api::Object;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::nodes::{self, Nodes};
use super::persistent::{Map, Snapshot};
use crate::registry::Resource;
use crate::registry::selection::Selection;

/// Changes kept per resource, for watchers that keep up; others read the store's history, which is
/// compressed.
pub(super) const CAPACITY: usize = 512;

/// Minimum number of changes kept, regardless of age.
const RING_EVENTS_MIN: usize = 64;

/// Age up to which further changes are kept, so that the ring shrinks again after a burst.
const RING_AGE_MAX: Duration = Duration::from_secs(60);

/// Newest changes whose JSON lines are kept; the few watchers that lag more encode them again. A
/// line is as large as its object, whose bytes are shared with the store.
const LINES_MAX: usize = 256;

/// Bytes of object versions that the ring may keep alive.
const RING_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Selectable fields of one object that have a value.
type Fields = Box<[(Cow<'static, str>, Box<str>)]>;

/// An object in the cache, with its selectable fields once they were requested.
#[derive(Debug)]
pub struct CachedObject {
    /// The object.
    pub object: Arc<Object>,
    node: OnceLock<Box<str>>,
    fields: OnceLock<Fields>,
}

impl CachedObject {
    pub(crate) fn new(object: Arc<Object>) -> Arc<Self> {
        Arc::new(Self { object, node: OnceLock::new(), fields: OnceLock::new() })
    }

    /// The value of a declared selectable field; empty where the object has none.
    pub(crate) fn field(&self, row: &Resource, name: &str) -> &str {
        if name == nodes::FIELD && nodes::are_indexed(row) {
            return self.node();
        }
        let fields = self.fields.get_or_init(|| {
            let value = self.object.value().unwrap_or_default();
            let all = row.spec.strategy.selectable_fields(&value).into_iter();
            let set = all.filter(|(_, value)| !value.is_empty());
            set.map(|(name, value)| (name, value.into_boxed_str())).collect()
        });
        fields.iter().find(|(field, _)| *field == name).map_or("", |(_, value)| value)
    }

    /// The node of a pod; empty without one.
    pub(super) fn node(&self) -> &str {
        self.node.get_or_init(|| nodes::node_of(&self.object))
    }
}

/// What happened to an object, as one filter sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventType {
    /// The object entered the selection.
    Added,
    /// It changed inside the selection.
    Modified,
    /// It left the selection.
    Deleted,
}

/// One change of one object.
#[derive(Debug)]
pub struct Event {
    /// The new state; for a deletion the last state at the revision of the deletion.
    pub entry: Arc<CachedObject>,
    /// The state before.
    pub previous: Option<Arc<CachedObject>>,
    /// The object was deleted.
    pub deleted: bool,
    /// Revision of the change.
    pub revision: i64,
    /// When the cache received the change.
    at: Instant,
    /// See [`Event::json_line`].
    line: Mutex<Option<Bytes>>,
}

impl Event {
    /// A change that the cache receives now.
    pub(super) fn new(
        entry: Arc<CachedObject>,
        previous: Option<Arc<CachedObject>>,
        deleted: bool,
        revision: i64,
    ) -> Self {
        let (at, line) = (base::clock::now(), Mutex::default());
        Self { entry, previous, deleted, revision, at, line }
    }

    /// The deletion of an object.
    pub(super) fn deletion(previous: Arc<CachedObject>, revision: i64) -> Self {
        let mut last = Object::clone(&previous.object);
        last.resource_version = revision;
        Self::new(CachedObject::new(Arc::new(last)), Some(previous), true, revision)
    }

    /// The JSON line for watchers that see the change with its natural type, encoded once for all
    /// watchers that keep up.
    pub fn json_line(&self, make: impl FnOnce() -> Bytes) -> Bytes {
        self.line.lock().get_or_insert_with(make).clone()
    }

    /// The type of the event for a watcher without selectors.
    pub fn natural_type(&self) -> EventType {
        match (self.deleted, &self.previous) {
            (true, _) => EventType::Deleted,
            (false, None) => EventType::Added,
            (false, Some(_)) => EventType::Modified,
        }
    }

    /// The type and object that a watcher with this filter sees; `None` when it sees nothing.
    pub fn seen_by(&self, row: &Resource, filter: &Filter) -> Option<(EventType, Arc<Object>)> {
        let now = !self.deleted && filter.matches(row, &self.entry);
        let before = self.previous.as_ref().is_some_and(|entry| filter.matches(row, entry));
        match (before, now) {
            (false, true) => Some((EventType::Added, Arc::clone(&self.entry.object))),
            (true, true) => Some((EventType::Modified, Arc::clone(&self.entry.object))),
            (true, false) if self.deleted => {
                Some((EventType::Deleted, Arc::clone(&self.entry.object)))
            }
            (true, false) => {
                let mut last = Object::clone(&self.previous.as_ref()?.object);
                last.resource_version = self.revision;
                Some((EventType::Deleted, Arc::new(last)))
            }
            (false, false) => None,
        }
    }
}

/// Selects objects by key, labels and fields.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Only this namespace; empty is all.
    pub namespace: String,
    /// Only this name; empty is all.
    pub name: String,
    /// Label and field selectors.
    pub selection: Selection,
}

impl Filter {
    /// Whether the filter selects the object.
    pub fn matches(&self, row: &Resource, entry: &CachedObject) -> bool {
        let key = &entry.object.key;
        (self.namespace.is_empty() || *key.namespace == self.namespace)
            && (self.name.is_empty() || *key.name == self.name)
            && self.selection.matches(row, entry)
    }

    /// The prefix of the keys of its objects.
    fn prefix(&self) -> String {
        match &*self.namespace {
            "" => String::new(),
            namespace => format!("{namespace}/"),
        }
    }

    /// Whether only the namespace restricts the objects, so that counts are exact.
    pub fn is_unselective(&self) -> bool {
        self.name.is_empty() && self.selection.is_empty()
    }
}

/// Objects of a list, and its position.
#[derive(Debug, Clone)]
pub struct Page {
    /// Objects in key order.
    pub items: Vec<Arc<Object>>,
    /// Revision of the state listed.
    pub revision: i64,
    /// Key suffix of the last object of the page when the limit ended it.
    pub last: Option<String>,
    /// Objects that were read for the page.
    pub read: usize,
    /// Objects after the page, when only the namespace selects.
    pub remaining: Option<usize>,
}

/// The objects that a watch begins with.
#[derive(Debug)]
pub enum Initial {
    /// The objects of a name or of a node.
    Few(std::vec::IntoIter<Arc<Object>>),
    /// The objects among all that the filter selects.
    Any(Snapshot),
}

impl Initial {
    /// The next object; `filter` must be the one that this was created for.
    pub fn next(&mut self, row: &Resource, filter: &Filter) -> Option<Arc<Object>> {
        match self {
            Self::Few(objects) => objects.next(),
            Self::Any(snapshot) => snapshot.next(row, filter),
        }
    }
}

/// A position in the ring: load generation and sequence number of the event.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Sequence {
    pub(super) generation: u64,
    pub(super) number: u64,
}

/// The state protected by the cache's lock.
#[derive(Debug, Default)]
pub(super) struct State {
    objects: Map,
    ring: VecDeque<Arc<Event>>,
    ring_bytes: usize,
    /// Sequence number of the ring's first event.
    first: u64,
    /// Every event after this revision is in the ring.
    floor: i64,
    revision: i64,
    generation: u64,
    /// The index of pods by node; `None` for other resources.
    nodes: Option<Nodes>,
}

impl State {
    /// The empty state of a resource.
    pub(super) fn of(row: &Resource) -> Self {
        Self { nodes: nodes::are_indexed(row).then(Nodes::default), ..Self::default() }
    }

    pub(super) fn len(&self) -> usize {
        self.objects.len()
    }

    pub(super) fn revision(&self) -> i64 {
        self.revision
    }

    /// Bytes of the objects.
    pub(super) fn bytes(&self) -> usize {
        self.objects.values().map(|entry| entry.object.raw().len()).sum()
    }

    pub(super) fn get(&self, suffix: &str) -> Option<&Arc<CachedObject>> {
        self.objects.get(suffix)
    }

    /// Starts over from a snapshot; all positions become invalid.
    pub(super) fn load(&mut self, objects: BTreeMap<Box<str>, Arc<CachedObject>>, revision: i64) {
        if let Some(nodes) = &mut self.nodes {
            *nodes = Nodes::default();
            objects.iter().for_each(|(suffix, entry)| nodes.add(suffix, entry));
        }
        self.objects = Map::from(objects);
        self.ring.clear();
        self.ring_bytes = 0;
        self.floor = revision;
        self.revision = revision;
        self.generation += 1;
    }

    /// Applies changes in order and returns their events: key suffix, new object (`None`: deleted),
    /// revision.
    pub(super) fn apply(
        &mut self,
        changes: Vec<(Box<str>, Option<Object>, i64)>,
        revision: i64,
    ) -> Vec<Arc<Event>> {
        let mut events = Vec::with_capacity(changes.len());
        for (suffix, object, at) in changes {
            let event = match object {
                Some(object) => {
                    let entry = CachedObject::new(Arc::new(object));
                    if let Some(nodes) = &mut self.nodes {
                        nodes.change(&suffix, self.objects.get(&suffix), &entry);
                    }
                    let previous = self.objects.insert(suffix, Arc::clone(&entry));
                    Event::new(entry, previous, false, at)
                }
                None => {
                    let Some(previous) = self.objects.remove(&suffix) else { continue };
                    if let Some(nodes) = &mut self.nodes {
                        nodes.remove(&suffix, &previous);
                    }
                    Event::deletion(previous, at)
                }
            };
            let event = Arc::new(event);
            events.push(Arc::clone(&event));
            self.push(event);
        }
        self.revision = self.revision.max(revision);
        events
    }

    fn push(&mut self, event: Arc<Event>) {
        let now = event.at;
        self.ring_bytes += weight(&event);
        self.ring.push_back(event);
        let behind = self.ring.len().checked_sub(LINES_MAX + 1);
        if let Some(event) = behind.and_then(|index| self.ring.get(index)) {
            *event.line.lock() = None;
        }
        while self.ring.len() > CAPACITY
            || (self.ring_bytes > RING_BYTES_MAX && self.ring.len() > 1)
            || (self.ring.len() > RING_EVENTS_MIN && self.oldest_before(now))
        {
            let Some(old) = self.ring.pop_front() else { break };
            self.ring_bytes = self.ring_bytes.saturating_sub(weight(&old));
            self.first += 1;
            self.floor = old.revision;
        }
    }

    fn oldest_before(&self, now: Instant) -> bool {
        self.ring.front().is_some_and(|e| now.saturating_duration_since(e.at) > RING_AGE_MAX)
    }

    pub(super) fn list(
        &self,
        row: &Resource,
        filter: &Filter,
        start: Option<&str>,
        limit: usize,
    ) -> Page {
        let prefix = filter.prefix();
        let from = start.filter(|s| *s > prefix.as_str()).unwrap_or(&prefix);
        let mut page = Page {
            items: Vec::new(),
            revision: self.revision,
            last: None,
            read: 0,
            remaining: None,
        };
        let bounds = (std::ops::Bound::Included(from), std::ops::Bound::Unbounded);
        // The pods of one node are found without reading all others.
        let range: Box<dyn Iterator<Item = (&str, &Arc<CachedObject>)>> = match self.of_node(filter)
        {
            Some((nodes, node)) => {
                let keys = nodes.of(node).into_iter();
                let keys = keys.flat_map(move |keys| keys.range::<str, _>(bounds));
                Box::new(keys.filter_map(|key| self.objects.get_key_value(key)))
            }
            None => Box::new(self.objects.range(from)),
        };
        let mut range = range.take_while(|(key, _)| key.starts_with(prefix.as_str()));
        if !filter.name.is_empty() && (row.spec.namespaced != filter.namespace.is_empty()) {
            let found = self.objects.get(format!("{prefix}{}", filter.name).as_str());
            page.read = usize::from(found.is_some());
            page.items
                .extend(found.filter(|e| filter.matches(row, e)).map(|e| Arc::clone(&e.object)));
            return page;
        }
        let mut last = None;
        while let Some((key, entry)) = range.next() {
            page.read += 1;
            if !filter.matches(row, entry) {
                continue;
            }
            if limit > 0 && page.items.len() == limit {
                page.last = last.map(|k: &str| k.to_owned());
                page.remaining = filter.is_unselective().then(|| 1 + range.count());
                return page;
            }
            last = Some(key);
            page.items.push(Arc::clone(&entry.object));
        }
        page
    }

    /// The index and the node for a filter of one node's pods.
    fn of_node<'a>(&'a self, filter: &'a Filter) -> Option<(&'a Nodes, &'a str)> {
        let node = filter.selection.exact(nodes::FIELD).filter(|node| !node.is_empty())?;
        Some((self.nodes.as_ref()?, node))
    }

    /// The current objects of the filter, for sending one after another.
    pub(super) fn initial(&self, row: &Resource, filter: &Filter) -> Initial {
        if filter.name.is_empty() && self.of_node(filter).is_none() {
            return Initial::Any(self.objects.snapshot(filter.prefix()));
        }
        Initial::Few(self.list(row, filter, None, 0).items.into_iter())
    }

    pub(super) fn next_sequence(&self) -> Sequence {
        Sequence { generation: self.generation, number: self.first + self.ring.len() as u64 }
    }

    /// The sequence after `revision`.
    ///
    /// # Errors
    /// The oldest revision that has a sequence, when `revision` is older.
    pub(super) fn sequence_after(&self, revision: i64) -> Result<Sequence, i64> {
        if revision < self.floor {
            return Err(self.floor);
        }
        let index = self.ring.partition_point(|event| event.revision <= revision);
        Ok(Sequence { generation: self.generation, number: self.first + index as u64 })
    }

    /// At most `max` events from a sequence on, the sequence after them, and the revision reached;
    /// `None` when the events are not in the ring any more.
    pub(super) fn events_from(
        &self,
        from: Sequence,
        max: usize,
    ) -> Option<(Vec<Arc<Event>>, Sequence, i64)> {
        if from.generation != self.generation {
            return None;
        }
        let offset = usize::try_from(from.number.checked_sub(self.first)?).ok()?;
        let events: Vec<_> = self.ring.iter().skip(offset).take(max).cloned().collect();
        let number = from.number + events.len() as u64;
        let complete = number == self.next_sequence().number;
        let revision =
            if complete { self.revision } else { events.last().map_or(self.floor, |e| e.revision) };
        Some((events, Sequence { generation: self.generation, number }, revision))
    }
}

fn weight(event: &Event) -> usize {
    event.entry.object.raw().len() + 256
}

#[cfg(test)]
mod tests;
