//! Wakes the watches of a cache: a watch of one name, or of one node's pods, is woken only for
//! events of that name or node.
//!
//! Every agent watches its own node and pods. Without this, each change would wake all of them only
//! to be filtered out.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use super::nodes::FIELD;
use super::state::{Event, Filter, Sequence};
use crate::registry::Resource;

/// Value of [`Slot::first`] when no unread event concerns the watch.
const NONE: u64 = u64::MAX;

/// Which changes concern a watch; a superset of those that its filter selects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Interest {
    /// Every change.
    All,
    /// Changes of objects with this name, in any namespace.
    Name(Box<str>),
    /// Changes of objects that have, or had, this value of [`FIELD`].
    Field(Box<str>),
}

impl Interest {
    pub(super) fn of(filter: &Filter) -> Self {
        match filter.selection.exact(FIELD) {
            _ if !filter.name.is_empty() => Self::Name(filter.name.as_str().into()),
            Some(value) => Self::Field(value.into()),
            None => Self::All,
        }
    }
}

/// Notifies one watch of changes.
#[derive(Debug)]
pub(super) struct Slot {
    interest: Interest,
    /// Number of the first unread event that concerns the watch; not used with [`Interest::All`].
    first: AtomicU64,
    notify: Arc<Notify>,
}

impl Slot {
    /// Completes at the next notification. Create it before reading the ring.
    pub(super) fn notified(&self) -> Notified<'_> {
        self.notify.notified()
    }

    /// Notifies the watch of events from this sequence on.
    pub(super) fn wake(&self, from: Sequence) {
        if self.interest != Interest::All {
            self.first.fetch_min(from.number, Ordering::Relaxed);
            self.notify.notify_one();
        }
    }

    /// The sequence at which a watch that has read up to `next` continues, in a ring that ends
    /// before `end`. Call it with the state locked, because watches are notified under that lock.
    pub(super) fn take(&self, next: Sequence, end: Sequence) -> Sequence {
        if self.interest == Interest::All || next.generation != end.generation {
            return next;
        }
        let number = match self.first.swap(NONE, Ordering::Relaxed) {
            NONE => end.number,
            first => first.max(next.number),
        };
        Sequence { number, ..next }
    }
}

type Slots = HashMap<Box<str>, Vec<Arc<Slot>>>;

/// All slots of a cache.
#[derive(Debug, Default)]
pub(super) struct Interests {
    all: Arc<Notify>,
    names: Slots,
    fields: Slots,
}

impl Interests {
    /// The watches of every change; notify them after all locks are released.
    pub(super) fn all(&self) -> Arc<Notify> {
        Arc::clone(&self.all)
    }

    pub(super) fn add(&mut self, interest: Interest) -> Arc<Slot> {
        let notify = if interest == Interest::All { self.all() } else { Arc::default() };
        let slot = Arc::new(Slot { interest, first: AtomicU64::new(NONE), notify });
        match &slot.interest {
            Interest::All => {}
            Interest::Name(value) => add(&mut self.names, value, &slot),
            Interest::Field(value) => add(&mut self.fields, value, &slot),
        }
        slot
    }

    pub(super) fn remove(&mut self, slot: &Arc<Slot>) {
        match &slot.interest {
            Interest::All => {}
            Interest::Name(value) => remove(&mut self.names, value, slot),
            Interest::Field(value) => remove(&mut self.fields, value, slot),
        }
    }

    /// Notifies the watches that these events concern; `first` is the sequence of the first event.
    pub(super) fn wake(&self, row: &Resource, first: Sequence, events: &[Arc<Event>]) {
        for (number, event) in (first.number..).zip(events) {
            let place = Sequence { number, ..first };
            wake(&self.names, &event.entry.object.key.name, place);
            // The value of the field is decoded once per object.
            if self.fields.is_empty() {
                continue;
            }
            let now = event.entry.field(row, FIELD);
            wake(&self.fields, now, place);
            if let Some(before) = event.previous.as_ref().map(|p| p.field(row, FIELD))
                && before != now
            {
                wake(&self.fields, before, place);
            }
        }
    }

    /// Notifies every watch, after the cache was reloaded.
    pub(super) fn wake_all(&self) {
        for slot in self.names.values().chain(self.fields.values()).flatten() {
            slot.notify.notify_one();
        }
    }
}

fn wake(slots: &Slots, value: &str, place: Sequence) {
    for slot in slots.get(value).into_iter().flatten() {
        slot.wake(place);
    }
}

fn add(slots: &mut Slots, value: &str, slot: &Arc<Slot>) {
    slots.entry(value.into()).or_default().push(Arc::clone(slot));
}

fn remove(slots: &mut Slots, value: &str, slot: &Arc<Slot>) {
    if let Some(found) = slots.get_mut(value) {
        found.retain(|other| !Arc::ptr_eq(other, slot));
        if found.is_empty() {
            slots.remove(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::state::{Event as CacheEvent, State};
    use super::*;
    use crate::registry::Registry;
    use crate::registry::selection::Selection;
    use api::schema::Schema;
    use api::{Gvr, Object};
    use serde_json::json;

    fn row() -> Arc<Resource> {
        let registry = Registry::builtin(Arc::new(Schema::new()));
        Arc::clone(registry.row(&Gvr::new("", "v1", "pods")).unwrap())
    }

    fn pod(name: &str, node: &str) -> Object {
        let value = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": name, "namespace": "n"}, "spec": {"nodeName": node}});
        Object::from_value(value).unwrap()
    }

    /// A cache without a store.
    struct Pods {
        row: Arc<Resource>,
        state: State,
        interests: Interests,
        revision: i64,
    }

    impl Pods {
        fn put(&mut self, name: &str, object: Option<Object>) {
            self.revision += 1;
            let first = self.state.next_sequence();
            let change = (format!("n/{name}").into(), object, self.revision);
            let events: Vec<Arc<CacheEvent>> = self.state.apply(vec![change], self.revision);
            self.interests.wake(&self.row, first, &events);
        }

        fn slot(&mut self, fields: &str) -> (Arc<Slot>, Sequence) {
            let selection = Selection::parse(&self.row, "", fields).unwrap();
            let name = selection.exact_name().unwrap_or_default();
            let filter = Filter { selection, name, ..Filter::default() };
            (self.interests.add(Interest::of(&filter)), self.state.next_sequence())
        }

        /// Names of the objects of the events from `next` on, and the sequence after them; `None`
        /// when events were lost.
        fn read(&self, slot: &Slot, next: Sequence) -> Option<(Vec<String>, Sequence)> {
            let from = slot.take(next, self.state.next_sequence());
            let (events, next, _) = self.state.events_from(from, 9)?;
            Some((events.iter().map(|e| e.entry.object.key.name.to_string()).collect(), next))
        }
    }

    fn pods() -> Pods {
        let mut state = State::default();
        state.load(std::collections::BTreeMap::new(), 1);
        Pods { row: row(), state, interests: Interests::default(), revision: 1 }
    }

    #[test]
    fn a_watch_of_one_node_sees_its_pods_come_change_and_leave() {
        let mut pods = pods();
        let (slot, next) = pods.slot("spec.nodeName=a");
        pods.put("x", Some(pod("x", "")));
        assert_eq!(pods.read(&slot, next).unwrap().0, Vec::<String>::new());
        pods.put("x", Some(pod("x", "a")));
        pods.put("y", Some(pod("y", "b")));
        let (names, next) = pods.read(&slot, next).unwrap();
        assert_eq!(names, ["x", "y"]);
        assert_eq!(pods.read(&slot, next).unwrap().0, Vec::<String>::new());
        pods.put("x", Some(pod("x", "b")));
        assert_eq!(pods.read(&slot, next).unwrap().0, ["x"]);
        let (slot, next) = pods.slot("spec.nodeName=b");
        pods.put("y", None);
        assert_eq!(pods.read(&slot, next).unwrap().0, ["y"]);
    }

    #[test]
    fn only_a_watch_of_every_change_lags_when_other_objects_fill_the_ring() {
        let mut pods = pods();
        let ((one, one_next), (all, all_next)) = (pods.slot("metadata.name=x"), pods.slot(""));
        for n in 0..5000 {
            pods.put("y", Some(pod("y", &n.to_string())));
        }
        assert!(pods.read(&all, all_next).is_none());
        let (names, one_next) = pods.read(&one, one_next).unwrap();
        assert!(names.is_empty());
        pods.put("x", Some(pod("x", "")));
        for n in 0..5000 {
            pods.put("y", Some(pod("y", &n.to_string())));
        }
        assert!(pods.read(&one, one_next).is_none());
    }

    #[test]
    fn a_released_slot_leaves_nothing() {
        let mut pods = pods();
        for fields in ["metadata.name=x", "spec.nodeName=a", "status.phase=Running"] {
            let (slot, _) = pods.slot(fields);
            pods.interests.remove(&slot);
        }
        assert!(pods.interests.names.is_empty() && pods.interests.fields.is_empty());
    }
}
