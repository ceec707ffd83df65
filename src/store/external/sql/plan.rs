//! Plans the rows that a command writes to kine's table, and refuses what the schema cannot store.

use std::collections::HashSet;

use bytes::Bytes;

use crate::contract::{KeyRange, Op, StoreError, Txn};
use crate::mvcc::{Command, Preview, State, Write};

/// The row in which kine stores the compacted revision, as its `prev_revision`.
pub(super) const COMPACT_KEY: &str = "compact_rev_key";
/// kine's name prefix of rows for revisions without a change.
const GAP_PREFIX: &str = "gap-";
/// Revisions compacted per database transaction: kine's `--compact-batch-size`.
const COMPACT_STEP: i64 = 1000;

/// A row of kine's table: one change of one key; `id` is its revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) id: i64,
    pub(super) name: String,
    pub(super) created: bool,
    pub(super) deleted: bool,
    /// Creation revision of the key; 0 in the row that creates it.
    pub(super) create_revision: i64,
    /// Row of the previous change; 0 is none.
    pub(super) prev_revision: i64,
    /// Time to live in seconds, kine's meaning of a lease; 0 is none.
    pub(super) ttl: i64,
    /// Attached lease, which kine's schema does not store; 0 is none.
    pub(super) lease: i64,
    pub(super) value: Option<Bytes>,
}

/// Changes of leases, stored outside of kine's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LeaseChange {
    /// A granted lease with its seconds.
    Granted(i64, i64),
    /// A revoked lease.
    Revoked(i64),
}

/// Changes that become durable together.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    pub(super) rows: Vec<Row>,
    pub(super) leases: Vec<LeaseChange>,
}

impl Changes {
    /// Whether there is nothing to write.
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.leases.is_empty()
    }
}

/// The rows of a command, and equivalent commands for the state, one per revision.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) changes: Changes,
    pub(super) commands: Vec<Command>,
}

/// Keys that a database can store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KeyNames {
    /// Only ASCII.
    pub(super) ascii: bool,
    /// Maximum length in bytes.
    pub(super) max: usize,
}

impl KeyNames {
    /// The key as the name of a row.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] with the reason.
    fn of(self, key: &[u8]) -> Result<String, StoreError> {
        let shown = key.escape_ascii();
        let refuse = |why: &str| {
            StoreError::Invalid(format!(
                "the external datastore cannot store the key {shown}: {why}"
            ))
        };
        let Some(name) = std::str::from_utf8(key).ok().filter(|name| !name.contains('\0')) else {
            return Err(refuse("its keys are text, in UTF-8 and without zero bytes"));
        };
        if name == COMPACT_KEY || name.starts_with(GAP_PREFIX) {
            return Err(refuse("the name is reserved in kine's schema"));
        }
        if self.ascii && !name.is_ascii() {
            return Err(refuse("MySQL's column for names takes ASCII only"));
        }
        if name.len() > self.max {
            return Err(refuse(&format!("it is longer than the column's {} bytes", self.max)));
        }
        Ok(name.to_owned())
    }
}

/// Whether a row represents a revision without a change.
pub(super) fn is_gap(row: &Row) -> bool {
    let number = row.name.strip_prefix(GAP_PREFIX).and_then(|number| number.parse::<i64>().ok());
    row.deleted && row.prev_revision == 0 && number == Some(row.id)
}

fn row(state: &State, write: Write, id: i64, names: KeyNames) -> Result<Row, StoreError> {
    let name = names.of(&write.key)?;
    let ttl = match write.lease {
        0 => 0,
        lease => state.lease_ttl(lease).ok_or(StoreError::LeaseNotFound)?,
    };
    let created = write.created == 0;
    Ok(Row {
        id,
        name,
        created: created && write.value.is_some(),
        deleted: write.value.is_none(),
        create_revision: write.created,
        prev_revision: write.before,
        ttl,
        lease: write.lease,
        value: write.value,
    })
}

/// Plans `command` for `state`, whose next revision is `next`.
///
/// # Errors
/// The errors of applying the command, and [`StoreError::Invalid`] for what kine's schema cannot
/// store.
pub(super) fn plan(
    state: &State,
    command: Command,
    next: i64,
    names: KeyNames,
) -> Result<Planned, StoreError> {
    let mut changes = Changes::default();
    let commands = match command {
        Command::Txn(txn) => match state.preview(&txn)? {
            Preview::Nothing => vec![Command::Txn(txn)],
            Preview::One(write) => {
                changes.rows.push(row(state, write, next, names)?);
                vec![Command::Txn(txn)]
            }
            Preview::Several => {
                let mut commands = Vec::new();
                for (part, id) in parts(txn)?.into_iter().zip(next..) {
                    let Preview::One(write) = state.preview(&part)? else { return Err(several()) };
                    changes.rows.push(row(state, write, id, names)?);
                    commands.push(Command::Txn(part));
                }
                commands
            }
        },
        Command::LeaseGrant { id, ttl } => {
            if state.lease_ttl(id).is_some() {
                return Err(StoreError::LeaseExists);
            }
            changes.leases.push(LeaseChange::Granted(id, ttl));
            vec![Command::LeaseGrant { id, ttl }]
        }
        Command::LeaseRevoke { id } => {
            let keys = state.lease_keys(id).ok_or(StoreError::LeaseNotFound)?;
            let mut commands = Vec::new();
            // kine, too, deletes expired keys one by one, each with a revision of its own.
            for (key, id) in keys.zip(next..) {
                changes.rows.push(row(state, state.write(&key, None, 0), id, names)?);
                let range = KeyRange::key(key);
                let success = vec![Op::Delete { range, prev_kv: false }];
                commands.push(Command::Txn(Txn { success, ..Txn::default() }));
            }
            changes.leases.push(LeaseChange::Revoked(id));
            commands.push(Command::LeaseRevoke { id });
            commands
        }
        Command::Compact(revision) => {
            let (compacted, newest) = (state.compacted(), state.revision());
            if revision <= compacted {
                return Err(StoreError::Compacted { requested: revision, oldest: compacted });
            }
            if revision > newest {
                return Err(StoreError::Future { requested: revision, newest });
            }
            vec![Command::Compact(revision)]
        }
        Command::Raise { .. } | Command::Alarm { .. } | Command::SetProfile { .. } => {
            return Err(StoreError::Invalid(
                "an external datastore stores keys and leases only: alarms and members require the \
                 embedded store".to_owned(),
            ));
        }
    };
    Ok(Planned { changes, commands })
}

/// The puts of the branch that runs, each as a transaction of its own.
///
/// # Errors
/// The transaction is not separable, or does more than put distinct keys.
fn parts(txn: Txn) -> Result<Vec<Txn>, StoreError> {
    let mut keys = HashSet::new();
    let apart = txn.success.iter().all(|op| match op {
        Op::Put { key, prev_kv: false, .. } => keys.insert(key.clone()),
        _ => false,
    });
    if !txn.separable || !apart {
        return Err(several());
    }
    let part = |op| Txn { success: vec![op], durability: txn.durability, ..Txn::default() };
    Ok(txn.success.into_iter().map(part).collect())
}

fn several() -> StoreError {
    StoreError::Invalid(
        "an external datastore stores one change per revision (kine's schema): a request that \
         changes several keys at once requires the embedded store"
            .to_owned(),
    )
}

/// Ranges `[from, to)` of a compaction, one per database transaction.
pub(super) fn steps(from: i64, to: i64) -> impl Iterator<Item = (i64, i64)> {
    let begins = (from..to).step_by(usize::try_from(COMPACT_STEP).unwrap_or(1));
    begins.map(move |begin| (begin, begin.saturating_add(COMPACT_STEP).min(to)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::{Compare, Ordering, Target};

    const NAMES: KeyNames = KeyNames { ascii: true, max: 20 };

    fn txn(success: Vec<Op>) -> Command {
        Command::Txn(Txn { success, ..Txn::default() })
    }

    fn put(key: &str, lease: i64) -> Op {
        Op::Put { key: key.to_owned().into(), value: "v".into(), lease, prev_kv: false }
    }

    fn delete(range: KeyRange) -> Op {
        Op::Delete { range, prev_kv: false }
    }

    fn rows(state: &mut State, command: Command) -> Vec<(i64, String, bool, bool, i64, i64, i64)> {
        let planned = plan(state, command, state.revision() + 1, NAMES).unwrap();
        for command in &planned.commands {
            state.apply(command, &mut Vec::new()).unwrap();
        }
        let show = |r: Row| {
            (r.id, r.name, r.created, r.deleted, r.create_revision, r.prev_revision, r.ttl)
        };
        planned.changes.rows.into_iter().map(show).collect()
    }

    /// The columns are filled as by kine's `Create`, `Update` and `Delete`.
    #[test]
    fn rows_are_those_of_kine() {
        let mut state = State::default();
        let state = &mut state;
        let one = |id, created, deleted, create, prev| {
            vec![(id, "a".to_owned(), created, deleted, create, prev, 0)]
        };
        assert_eq!(rows(state, txn(vec![put("a", 0)])), one(2, true, false, 0, 0));
        assert_eq!(rows(state, txn(vec![put("a", 0)])), one(3, false, false, 2, 2));
        assert_eq!(rows(state, txn(vec![delete(KeyRange::key("a"))])), one(4, false, true, 2, 3));
        assert_eq!(rows(state, txn(vec![delete(KeyRange::key("a"))])), []);
        assert_eq!(rows(state, txn(vec![put("a", 0)])), one(5, true, false, 0, 4));
        assert_eq!(
            rows(state, txn(vec![delete(KeyRange::prefix("a"))])),
            one(6, false, true, 5, 5)
        );
        // A compacted version is not in the table: there is no previous row.
        state.apply(&txn(vec![put("b", 0)]), &mut Vec::new()).unwrap();
        state.apply(&Command::Compact(7), &mut Vec::new()).unwrap();
        assert_eq!(rows(state, txn(vec![put("a", 0)])), one(8, true, false, 0, 0));
    }

    #[test]
    fn a_lease_is_its_seconds_and_ends_key_by_key() {
        let mut state = State::default();
        let state = &mut state;
        rows(state, Command::LeaseGrant { id: 1 << 40, ttl: 3660 });
        let row = |id, name: &str, created, deleted, create, prev, ttl| {
            (id, name.to_owned(), created, deleted, create, prev, ttl)
        };
        assert_eq!(
            rows(state, txn(vec![put("a", 1 << 40)])),
            [row(2, "a", true, false, 0, 0, 3660)]
        );
        rows(state, txn(vec![put("b", 1 << 40)]));
        assert_eq!(
            rows(state, Command::LeaseRevoke { id: 1 << 40 }),
            [row(4, "a", false, true, 2, 2, 0), row(5, "b", false, true, 3, 3, 0)]
        );
        assert_eq!(state.revision(), 5);
    }

    #[test]
    fn separable_puts_get_a_row_each_or_none() {
        let mut state = State::default();
        let state = &mut state;
        let row = |id, name: &str, created, create, prev| {
            (id, name.to_owned(), created, false, create, prev, 0)
        };
        let guarded = |expected| {
            let compare = Compare {
                range: KeyRange::key("quota"),
                target: Target::ModRevision(expected),
                ordering: Ordering::Equal,
            };
            Txn {
                compare: vec![compare],
                success: vec![put("quota", 0), put("object", 0)],
                separable: true,
                ..Txn::default()
            }
        };
        assert_eq!(rows(state, txn(vec![put("quota", 0)])), [row(2, "quota", true, 0, 0)]);
        assert_eq!(
            rows(state, Command::Txn(guarded(2))),
            [row(3, "quota", false, 2, 2), row(4, "object", true, 0, 0)]
        );
        assert_eq!(rows(state, Command::Txn(guarded(2))), [], "the quota has changed");
        let twice = Txn { success: vec![put("a", 0), put("a", 0)], ..guarded(3) };
        assert!(plan(state, Command::Txn(twice), 5, NAMES).is_err(), "one key twice");
        assert_eq!(state.revision(), 4);
    }

    #[test]
    fn requests_beyond_the_schema_are_refused_by_name() {
        let state = State::default();
        let notified = |command| plan(&state, command, 2, NAMES).unwrap_err().to_string();
        let several = notified(txn(vec![put("a", 0), put("b", 0)]));
        assert!(several.contains("one change per revision (kine's schema)"), "{several}");
        let open_end = KeyRange { start: "a".into(), end: [0][..].into() };
        let both = notified(txn(vec![put("b", 0), delete(open_end)]));
        assert!(both.contains("one change per revision"), "{both}");
        for (key, why) in [
            (&b"compact_rev_key"[..], "reserved in kine's schema"),
            (b"gap-7", "reserved in kine's schema"),
            (b"\xff", "UTF-8"),
            (b"a\0", "zero bytes"),
            ("\u{e4}".as_bytes(), "ASCII only"),
            (&[b'a'; 21], "longer than the column's 20 bytes"),
        ] {
            let key = Bytes::copy_from_slice(key);
            let put = Op::Put { key, value: Bytes::new(), lease: 0, prev_kv: false };
            let refused = notified(txn(vec![put]));
            assert!(refused.contains("cannot store the key") && refused.contains(why), "{refused}");
        }
        assert!(notified(Command::Raise { revision: 9 }).contains("embedded store"));
    }

    #[test]
    fn a_compaction_goes_in_steps_of_kines_size() {
        assert_eq!(steps(0, 2500).collect::<Vec<_>>(), [(0, 1000), (1000, 2000), (2000, 2500)]);
        assert_eq!(steps(7, 8).collect::<Vec<_>>(), [(7, 8)]);
        assert_eq!(steps(8, 8).next(), None);
    }
}
