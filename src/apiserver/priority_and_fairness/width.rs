//! Estimates the seats that a request needs (upstream's `flowcontrol/request`), and counts the
//! watches that receive a change.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::matching::FlowAttributes;
use super::seats::{SeatSeconds, Work};
use crate::request::Query;

/// The maximum seats of a list (upstream's `MaximumListSeatsLimit` with
/// `SizeBasedListCostEstimate`).
const LIST_SEATS_MAX: u64 = 100;
/// The maximum seats of a change.
const CHANGE_SEATS_MAX: u64 = 10;
/// The bytes of a list per seat.
const BYTES_PER_SEAT: u64 = 100_000;
/// The maximum memory of a list from the watch cache, which is streamed.
const CACHED_BYTES_MAX: u64 = 1_000_000;
/// The assumed size of an object if the average is unknown.
const OBJECT_BYTES_MAX: u64 = 1_500_000;
/// The number of watches per final seat of a change.
const WATCHES_PER_SEAT: u64 = 10;
/// The additional latency of a change per final seat.
const EVENT_LATENCY: Duration = Duration::from_millis(5);

/// The maximum seats of a request: the lower of `limit` and that of the level, unless it is 0.
fn seats_max(level: u64, limit: u64) -> u64 {
    if level == 0 || level > limit { limit } else { level }
}

/// The number and size of the objects of a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Objects {
    pub(crate) count: u64,
    /// The average size; 0 if it is unknown.
    pub(crate) bytes: u64,
}

/// The seats of a list, or of a watch that starts with one. `objects` is only called if the size of
/// the list has to be estimated.
pub(crate) fn of_list(
    attributes: &FlowAttributes<'_>,
    query: &Query,
    level_max: u64,
    objects: impl FnOnce() -> Option<Objects>,
) -> Work {
    let max = seats_max(level_max, LIST_SEATS_MAX);
    let text = |key| query.get(key).unwrap_or_default();
    let limit = match text("limit") {
        "" => 0,
        limit => match limit.parse::<i64>() {
            Ok(limit) => limit.max(0).unsigned_abs(),
            // The request will be rejected.
            Err(_) => return Work::of(max),
        },
    };
    let is_watch = attributes.verb == "watch";
    let version = text("resourceVersion");
    if is_watch {
        let initial =
            query.get("sendInitialEvents").is_some_and(|_| query.flag("sendInitialEvents"));
        if !initial && !matches!(version, "" | "0") {
            return Work::of(1);
        }
    }
    let Some(Objects { count, bytes }) = objects() else { return Work::of(1) };
    // Upstream reads exact revisions and pages after the first one from etcd.
    let is_from_store = match text("resourceVersionMatch") {
        "Exact" => true,
        "NotOlderThan" => false,
        "" => !text("continue").is_empty() || limit > 0 && !matches!(version, "" | "0"),
        _ => true,
    };
    let is_cached = is_watch || !is_from_store;
    let bytes = if bytes == 0 && count != 0 { OBJECT_BYTES_MAX } else { bytes };
    let limited = if limit > 0 { limit.min(count) } else { count };
    let has_selector = !text("fieldSelector").is_empty() || !text("labelSelector").is_empty();
    let loaded = if !attributes.name.is_empty() {
        1
    } else if !is_cached && has_selector {
        limited.max(count / 2)
    } else {
        limited
    };
    let mut memory = loaded.saturating_mul(bytes);
    if is_cached {
        memory = memory.min(CACHED_BYTES_MAX);
    }
    Work::of(memory.div_ceil(BYTES_PER_SEAT).clamp(1, max))
}

/// The seats of a change that so many watches receive.
pub(crate) fn of_change(watches: u64, level_max: u64) -> Work {
    if watches < WATCHES_PER_SEAT {
        return Work::of(1);
    }
    let seats = watches.div_ceil(WATCHES_PER_SEAT);
    let work = SeatSeconds::of(seats as f64, EVENT_LATENCY);
    let last = seats.min(seats_max(level_max, CHANGE_SEATS_MAX));
    Work { initial: 1, last, additional: work.per_seat(last as f64) }
}

/// The number of watches by group, resource, namespace and name. A change is sent to the watches of
/// its resource, of its namespace and of its name. The keys are hashes, so that a lookup does not
/// allocate.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    hasher: RandomState,
    counts: Mutex<HashMap<u64, u64>>,
}

/// A watch, counted until this is dropped.
#[derive(Debug)]
pub(crate) struct CountedWatch {
    watches: Arc<Watches>,
    key: Option<u64>,
}

impl Watches {
    fn key(&self, attributes: &FlowAttributes<'_>, namespace: &str, name: &str) -> u64 {
        self.hasher.hash_one((attributes.group, attributes.resource, namespace, name))
    }

    /// Counts a watch. Watches of the pods of one node are not counted, because a change of a pod
    /// is sent to at most one of them.
    pub(crate) fn count(
        self: &Arc<Self>,
        attributes: &FlowAttributes<'_>,
        fields: &str,
    ) -> CountedWatch {
        let is_of_node = attributes.resource == "pods"
            && fields.split(',').any(|term| {
                let value = term.trim().strip_prefix("spec.nodeName=");
                value.is_some_and(|value| !value.trim_start_matches('=').is_empty())
            });
        let key =
            (!is_of_node).then(|| self.key(attributes, attributes.namespace, attributes.name));
        if let Some(key) = key {
            *self.counts.lock().entry(key).or_default() += 1;
        }
        CountedWatch { watches: Arc::clone(self), key }
    }

    /// The number of watches that receive a change.
    pub(crate) fn interested(&self, attributes: &FlowAttributes<'_>) -> u64 {
        let mut keys = [Some(self.key(attributes, "", "")), None, None];
        if !attributes.namespace.is_empty() {
            keys[1] = Some(self.key(attributes, attributes.namespace, ""));
        }
        if !attributes.name.is_empty() {
            keys[2] = Some(self.key(attributes, attributes.namespace, attributes.name));
        }
        let counts = self.counts.lock();
        keys.iter().flatten().filter_map(|key| counts.get(key)).sum()
    }
}

impl Drop for CountedWatch {
    fn drop(&mut self) {
        let Some(key) = self.key else { return };
        let mut counts = self.watches.counts.lock();
        if let Some(count) = counts.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes(
        verb: &'static str,
        namespace: &'static str,
        name: &'static str,
    ) -> FlowAttributes<'static> {
        FlowAttributes {
            is_resource: true,
            verb,
            resource: "pods",
            namespace,
            name,
            ..FlowAttributes::default()
        }
    }

    fn list(
        verb: &'static str,
        name: &'static str,
        query: &str,
        level_max: u64,
        objects: Option<(u64, u64)>,
    ) -> u64 {
        let objects = objects.map(|(count, bytes)| Objects { count, bytes });
        of_list(&attributes(verb, "", name), &Query::parse(query), level_max, || objects).initial
    }

    /// Calculated with upstream's `seatsBasedOnObjectSize`; a level without a maximum has 100.
    #[test]
    fn lists_need_seats_by_size() {
        let objects = Some((799, 10_000));
        for (verb, name, query, objects, seats) in [
            // 8 MB, of which the cache streams a million.
            ("list", "", "", objects, 10),
            ("list", "", "resourceVersion=0", objects, 10),
            ("list", "", "limit=30", objects, 3),
            ("list", "", "limit=x", objects, 100),
            ("list", "x", "fieldSelector=metadata.name%3Dx", objects, 1),
            ("list", "", "resourceVersion=5&limit=499", objects, 50),
            ("list", "", "continue=token&limit=499", objects, 50),
            ("list", "", "continue=token", objects, 80),
            ("list", "", "continue=token&limit=10&labelSelector=a", objects, 40),
            (
                "list",
                "",
                "resourceVersionMatch=NotOlderThan&resourceVersion=5&limit=499",
                objects,
                10,
            ),
            ("list", "", "resourceVersionMatch=Exact&resourceVersion=5", objects, 80),
            ("list", "", "", Some((799, 0)), 10),
            ("list", "", "", Some((0, 0)), 1),
            ("list", "", "", None, 1),
            ("watch", "", "watch=1&resourceVersion=5", objects, 1),
            ("watch", "", "watch=1", objects, 10),
            ("watch", "", "watch=1&resourceVersion=5&sendInitialEvents=true", objects, 10),
        ] {
            assert_eq!(list(verb, name, query, 0, objects), seats, "{verb} {query}");
        }
        assert_eq!(list("list", "", "", 4, objects), 4);
    }

    /// The rows of upstream's `width_test.go` for changes: watches, final seats, additional latency
    /// in milliseconds.
    #[test]
    fn changes_need_seats_by_number_of_watches() {
        for (watches, last, millis) in
            [(0, 0, 0), (5, 0, 0), (29, 3, 5), (199, 10, 10), (1000, 10, 50)]
        {
            let work = of_change(watches, 0);
            assert_eq!((work.initial, work.last), (1, last), "{watches}");
            assert_eq!(work.additional, Duration::from_millis(millis), "{watches}");
        }
        assert_eq!(
            of_change(100, 5),
            Work { initial: 1, last: 5, additional: Duration::from_millis(10) }
        );
    }

    /// As upstream's `TestGetInterestedWatchCount`.
    #[test]
    fn watches_of_resource_namespace_and_name_are_interested() {
        let watches = Arc::new(Watches::default());
        let _all = watches.count(&attributes("watch", "", ""), "");
        let here = watches.count(&attributes("watch", "a", ""), "status.phase=Running");
        let _one = watches.count(&attributes("watch", "a", "x"), "metadata.name=x");
        let _node = watches.count(&attributes("watch", "", ""), "spec.nodeName=n");
        let _unbound = watches.count(&attributes("watch", "", ""), "spec.nodeName=");
        assert_eq!(watches.interested(&attributes("update", "a", "x")), 4);
        assert_eq!(watches.interested(&attributes("create", "a", "")), 3);
        assert_eq!(watches.interested(&attributes("update", "b", "x")), 2);
        let other = FlowAttributes { group: "g", ..attributes("update", "a", "x") };
        assert_eq!(watches.interested(&other), 0);
        drop(here);
        assert_eq!(watches.interested(&attributes("create", "a", "")), 2);
    }
}
