//! How many seats a request takes (upstream's `flowcontrol/request`), and the watches that a change
//! is told to.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::matching::Asked;
use super::seats::{SeatSeconds, Work};
use crate::request::Query;

/// Most seats of a list (upstream's `MaximumListSeatsLimit` with `SizeBasedListCostEstimate`).
const LIST_SEATS_MAX: u64 = 100;
/// Most seats of a change.
const CHANGE_SEATS_MAX: u64 = 10;
/// Bytes of a list for each seat.
const BYTES_PER_SEAT: u64 = 100_000;
/// What a list from the watch cache holds in memory at once.
const CACHED_BYTES_MAX: u64 = 1_000_000;
/// What an object counts whose size is not known.
const OBJECT_BYTES_MAX: u64 = 1_500_000;
/// Watches for each seat that a change takes behind its answer.
const WATCHES_PER_SEAT: u64 = 10;
/// How long it takes it.
const TELLING: Duration = Duration::from_millis(5);

/// The most seats that a level allows, where it says any (0 does not).
fn most(level: u64, limit: u64) -> u64 {
    if level == 0 || level > limit { limit } else { level }
}

/// What is known of the objects of a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Objects {
    pub(crate) count: u64,
    /// Average size; 0 when it is not known.
    pub(crate) bytes: u64,
}

/// Seats of a list, or of a watch that begins with one. `objects` is asked once the list has to be
/// estimated.
pub(crate) fn of_list(
    asked: &Asked<'_>,
    query: &Query,
    level_most: u64,
    objects: impl FnOnce() -> Option<Objects>,
) -> Work {
    let most = most(level_most, LIST_SEATS_MAX);
    let text = |key| query.get(key).unwrap_or_default();
    let limit = match text("limit") {
        "" => 0,
        limit => match limit.parse::<i64>() {
            Ok(limit) => limit.max(0).unsigned_abs(),
            // It will be refused.
            Err(_) => return Work::of(most),
        },
    };
    let watches = asked.verb == "watch";
    let version = text("resourceVersion");
    if watches {
        let initial =
            query.get("sendInitialEvents").is_some_and(|_| query.flag("sendInitialEvents"));
        if !initial && !matches!(version, "" | "0") {
            return Work::of(1);
        }
    }
    let Some(Objects { count, bytes }) = objects() else { return Work::of(1) };
    // What upstream reads from etcd: exact revisions, and pages behind the first one.
    let stored = match text("resourceVersionMatch") {
        "Exact" => true,
        "NotOlderThan" => false,
        "" => !text("continue").is_empty() || limit > 0 && !matches!(version, "" | "0"),
        _ => true,
    };
    let cached = watches || !stored;
    let bytes = if bytes == 0 && count != 0 { OBJECT_BYTES_MAX } else { bytes };
    let limited = if limit > 0 { limit.min(count) } else { count };
    let selects = !text("fieldSelector").is_empty() || !text("labelSelector").is_empty();
    let loaded = if !asked.name.is_empty() {
        1
    } else if !cached && selects {
        limited.max(count / 2)
    } else {
        limited
    };
    let mut memory = loaded.saturating_mul(bytes);
    if cached {
        memory = memory.min(CACHED_BYTES_MAX);
    }
    Work::of(memory.div_ceil(BYTES_PER_SEAT).clamp(1, most))
}

/// Seats of a change that so many watches are told of.
pub(crate) fn of_change(watches: u64, level_most: u64) -> Work {
    if watches < WATCHES_PER_SEAT {
        return Work::of(1);
    }
    let seats = watches.div_ceil(WATCHES_PER_SEAT);
    let work = SeatSeconds::of(seats as f64, TELLING);
    let last = seats.min(most(level_most, CHANGE_SEATS_MAX));
    Work { initial: 1, last, additional: work.per_seat(last as f64) }
}

/// How many watches there are of what: a change is told to those of its resource, of its namespace
/// and of its name. Kept by a keyed hash of all four, so that nothing is allocated to look one up.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    hasher: RandomState,
    counts: Mutex<HashMap<u64, u64>>,
}

/// A watch that is counted until this goes.
#[derive(Debug)]
pub(crate) struct Counted {
    watches: Arc<Watches>,
    key: Option<u64>,
}

impl Watches {
    fn key(&self, asked: &Asked<'_>, namespace: &str, name: &str) -> u64 {
        self.hasher.hash_one((asked.group, asked.resource, namespace, name))
    }

    /// Counts a watch. Those of pods of one node are not counted: of those that are told of a pod's
    /// change they are the fewest.
    pub(crate) fn count(self: &Arc<Self>, asked: &Asked<'_>, fields: &str) -> Counted {
        let of_a_node = asked.resource == "pods"
            && fields.split(',').any(|term| {
                let value = term.trim().strip_prefix("spec.nodeName=");
                value.is_some_and(|value| !value.trim_start_matches('=').is_empty())
            });
        let key = (!of_a_node).then(|| self.key(asked, asked.namespace, asked.name));
        if let Some(key) = key {
            *self.counts.lock().entry(key).or_default() += 1;
        }
        Counted { watches: Arc::clone(self), key }
    }

    /// The number of watches that a change is told to.
    pub(crate) fn interested(&self, asked: &Asked<'_>) -> u64 {
        let mut keys = [Some(self.key(asked, "", "")), None, None];
        if !asked.namespace.is_empty() {
            keys[1] = Some(self.key(asked, asked.namespace, ""));
        }
        if !asked.name.is_empty() {
            keys[2] = Some(self.key(asked, asked.namespace, asked.name));
        }
        let counts = self.counts.lock();
        keys.iter().flatten().filter_map(|key| counts.get(key)).sum()
    }
}

impl Drop for Counted {
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

    fn asked(verb: &'static str, namespace: &'static str, name: &'static str) -> Asked<'static> {
        Asked { is_resource: true, verb, resource: "pods", namespace, name, ..Asked::default() }
    }

    fn list(
        verb: &'static str,
        name: &'static str,
        query: &str,
        most: u64,
        objects: Option<(u64, u64)>,
    ) -> u64 {
        let objects = objects.map(|(count, bytes)| Objects { count, bytes });
        of_list(&asked(verb, "", name), &Query::parse(query), most, || objects).initial
    }

    /// Worked out from upstream's `seatsBasedOnObjectSize`; a level without a maximum has 100.
    #[test]
    fn lists_take_seats_by_the_bytes_they_hold() {
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

    /// The rows of upstream's `width_test.go` about changes: watches, seats behind the answer, and
    /// for how long.
    #[test]
    fn changes_take_seats_by_those_who_are_told() {
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
        let _all = watches.count(&asked("watch", "", ""), "");
        let here = watches.count(&asked("watch", "a", ""), "status.phase=Running");
        let _one = watches.count(&asked("watch", "a", "x"), "metadata.name=x");
        let _node = watches.count(&asked("watch", "", ""), "spec.nodeName=n");
        let _unbound = watches.count(&asked("watch", "", ""), "spec.nodeName=");
        assert_eq!(watches.interested(&asked("update", "a", "x")), 4);
        assert_eq!(watches.interested(&asked("create", "a", "")), 3);
        assert_eq!(watches.interested(&asked("update", "b", "x")), 2);
        let other = Asked { group: "g", ..asked("update", "a", "x") };
        assert_eq!(watches.interested(&other), 0);
        drop(here);
        assert_eq!(watches.interested(&asked("create", "a", "")), 2);
    }
}
