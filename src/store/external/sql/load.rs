//! Builds the key space from the rows of kine's table.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;

use super::plan::{COMPACT_KEY, Row, is_gap};
use crate::mvcc::{ClusterData, State, Version};

/// Leases, stored outside of kine's table: attachments of rows, and the seconds of each lease.
#[derive(Debug, Default)]
pub(super) struct Leases {
    pub(super) attached: HashMap<i64, i64>,
    pub(super) granted: BTreeMap<i64, i64>,
}

/// Loads rows in id order.
#[derive(Debug, Default)]
pub(super) struct Loader {
    keys: BTreeMap<Bytes, Vec<Version>>,
    leases: Leases,
    newest: i64,
    compacted: i64,
    /// The change at the compacted revision itself exists.
    compacted_is_there: bool,
}

impl Loader {
    /// A loader with the known leases and the compacted revision.
    pub(super) fn new(leases: Leases, compacted: i64) -> Self {
        Self { leases, compacted, ..Self::default() }
    }

    /// Adds the next row.
    pub(super) fn take(&mut self, row: Row) {
        self.newest = self.newest.max(row.id);
        self.compacted_is_there |= row.id == self.compacted;
        if row.name == COMPACT_KEY || is_gap(&row) {
            return;
        }
        let lease = self.lease_of(&row);
        let versions = self.keys.entry(row.name.into()).or_default();
        let before = versions.last().filter(|version| !version.is_tombstone());
        if row.deleted {
            // A deletion of a version that is not kept has no effect.
            if before.is_some() {
                versions.push(Version::tombstone(row.id, 0));
            }
            return;
        }
        // kine does not count versions: a key whose first rows were compacted has had more than
        // one.
        let version = match before {
            _ if row.created => 1,
            Some(before) => before.version.saturating_add(1),
            None => 2,
        };
        let created = match row.create_revision {
            _ if row.created => row.id,
            0 => before.map_or(row.id, |before| before.created),
            created => created,
        };
        let value = row.value.unwrap_or_default();
        versions.push(Version { value, created, modified: row.id, version, lease, sub: 0, sum: 0 });
    }

    /// The lease of a row. For a row of kine it is the time to live, which kine reports as the
    /// lease id.
    fn lease_of(&self, row: &Row) -> i64 {
        let attached = self.leases.attached.get(&row.id);
        let known = attached.filter(|lease| self.leases.granted.contains_key(lease));
        known.copied().unwrap_or(row.ttl.max(0))
    }

    /// Finishes the key space.
    pub(super) fn finish(mut self) -> State {
        let mut compacted = self.compacted;
        let newest = self.newest.max(compacted).max(1);
        // kine drops a deletion at the compacted revision itself: a watch from there would miss it.
        if compacted > 0 && !self.compacted_is_there && compacted < newest {
            compacted += 1;
        }
        for versions in self.keys.values_mut() {
            let older = versions.iter().take_while(|v| v.modified < compacted).count();
            let last = older.saturating_sub(1);
            let gone =
                versions.get(last).is_some_and(|v| v.modified < compacted && v.is_tombstone());
            versions.drain(..last + usize::from(gone));
            if let Some(live) = versions.last().filter(|v| v.lease != 0) {
                self.leases.granted.entry(live.lease).or_insert(live.lease);
            }
        }
        let leases = self.leases.granted.into_iter();
        let keys = self.keys.into_iter().filter(|(_, versions)| !versions.is_empty());
        State::import(newest, compacted, Vec::new(), ClusterData::default(), leases, keys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::{KeyRange, RangeRequest, Revision};

    fn row(id: i64, name: &str, kind: &str, create: i64, prev: i64, ttl: i64) -> Row {
        Row {
            id,
            name: name.to_owned(),
            created: kind == "create",
            deleted: kind == "delete",
            create_revision: create,
            prev_revision: prev,
            ttl,
            lease: 0,
            value: (kind != "delete").then(|| format!("{name}{id}").into()),
        }
    }

    fn all() -> KeyRange {
        KeyRange { start: [0][..].into(), end: [0][..].into() }
    }

    fn keys_at(state: &State, revision: i64) -> Vec<(String, i64, i64, i64, i64)> {
        let request =
            RangeRequest { revision: Some(Revision(revision)), ..RangeRequest::new(all()) };
        let found = state.range(&request).unwrap();
        let show = |kv: &crate::contract::KeyValue| {
            let value = String::from_utf8(kv.value.to_vec()).unwrap();
            (value, kv.create_revision.0, kv.mod_revision.0, kv.version, kv.lease)
        };
        found.kvs.iter().map(show).collect()
    }

    fn loaded(leases: Leases, compacted: i64, rows: Vec<Row>) -> State {
        let mut loader = Loader::new(leases, compacted);
        rows.into_iter().for_each(|row| loader.take(row));
        loader.finish()
    }

    /// The rows that kine's `Create`, `Update`, `Delete`, `Fill` and `compactStart` write; older
    /// kines write 0 where newer ones leave `create_revision` empty.
    #[test]
    fn a_table_of_kine_is_a_key_space() {
        let rows = vec![
            row(1, COMPACT_KEY, "create", 0, 0, 0),
            row(2, "a", "create", 0, 0, 0),
            row(3, "b", "create", 0, 0, 3600),
            row(4, "gap-4", "delete", 0, 0, 0),
            row(5, "a", "update", 2, 2, 0),
            row(6, "a", "delete", 2, 5, 0),
            row(7, "a", "create", 0, 6, 0),
            row(9, "b", "update", 3, 3, 3600),
        ];
        let mut state = loaded(Leases::default(), 0, rows);
        assert_eq!((state.revision(), state.compacted()), (9, 0));
        assert_eq!(
            keys_at(&state, 9),
            [("a7".to_owned(), 7, 7, 1, 0), ("b9".to_owned(), 3, 9, 2, 3600)]
        );
        assert_eq!(
            keys_at(&state, 5),
            [("a5".to_owned(), 2, 5, 2, 0), ("b3".to_owned(), 3, 3, 1, 3600)]
        );
        assert_eq!(keys_at(&state, 6).len(), 1);
        assert_eq!(state.leases().collect::<Vec<_>>(), [(3600, 3600)]);
        assert_eq!(state.lease_keys(3600).unwrap().collect::<Vec<_>>(), ["b"]);
        let deletions = state.events(2, &all(), 99).unwrap().0;
        assert_eq!(deletions.iter().filter(|event| event.deleted).count(), 1);
        state.apply(&crate::mvcc::Command::Compact(8), &mut Vec::new()).unwrap();
        assert_eq!(state.size().keys, 2);
    }

    #[test]
    fn rows_left_by_kines_compaction_are_read_and_leftovers_are_not() {
        let rows = vec![
            row(1, COMPACT_KEY, "create", 0, 6, 0),
            // Superseded before the compacted revision, but never deleted.
            row(2, "a", "create", 0, 0, 0),
            row(5, "a", "update", 2, 2, 0),
            row(7, "a", "update", 2, 5, 0),
            // Its first version is compacted.
            row(8, "c", "update", 4, 4, 0),
            // A deletion of a compacted version.
            row(9, "d", "delete", 3, 6, 0),
        ];
        let state = loaded(Leases::default(), 6, rows);
        // There was a deletion at 6 itself: from 7 on everything is known.
        assert_eq!((state.revision(), state.compacted()), (9, 7));
        assert_eq!(
            keys_at(&state, 9),
            [("a7".to_owned(), 2, 7, 3, 0), ("c8".to_owned(), 4, 8, 2, 0)]
        );
        let events = state.events(7, &all(), 99).unwrap().0;
        assert_eq!(events[0].prev.as_ref().unwrap().value, "a5");
        assert_eq!(events.len(), 2);
    }

    #[test]
    fn leases_of_ours_are_found_again_and_others_are_their_seconds() {
        let leases = Leases {
            attached: HashMap::from([(2, 77), (3, 88)]),
            granted: BTreeMap::from([(77, 60), (99, 10)]),
        };
        let rows = vec![
            row(2, "a", "create", 0, 0, 60),
            row(3, "b", "create", 0, 0, 30),
            row(4, "c", "create", 0, 0, 60),
        ];
        let state = loaded(leases, 0, rows);
        assert_eq!(state.leases().collect::<Vec<_>>(), [(30, 30), (60, 60), (77, 60), (99, 10)]);
        assert_eq!(state.lease_keys(77).unwrap().collect::<Vec<_>>(), ["a"]);
        assert_eq!(state.lease_keys(60).unwrap().collect::<Vec<_>>(), ["c"]);
        assert_eq!(loaded(Leases::default(), 0, Vec::new()).revision(), 1);
    }
}
