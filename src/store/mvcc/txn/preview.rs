//! Previews of transactions, for engines that must know the writes before they are applied.

use bytes::Bytes;

use super::{Plan, branch};
use crate::contract::{KeyRange, Op, StoreError, Txn};
use crate::mvcc::state::State;

/// A change of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Write {
    /// Key.
    pub(crate) key: Bytes,
    /// New value; `None` deletes the key.
    pub(crate) value: Option<Bytes>,
    /// Lease; 0 is none.
    pub(crate) lease: i64,
    /// Creation revision of the version that is replaced; 0 if the key is absent.
    pub(crate) created: i64,
    /// Revision of the previous version, including deletions; 0 if none is kept.
    pub(crate) before: i64,
}

/// The writes of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Preview {
    /// The transaction writes nothing.
    Nothing,
    /// The transaction writes one key.
    One(Write),
    /// The transaction writes several keys at one revision, or one key twice.
    Several,
}

impl State {
    /// The writes of `txn` if it were applied now.
    ///
    /// # Errors
    /// As [`State::apply`].
    pub(crate) fn preview(&self, txn: &Txn) -> Result<Preview, StoreError> {
        let plan = self.plan(txn);
        self.check_plan(txn, &plan)?;
        let mut steps = Vec::new();
        leaves(txn, &plan, &mut steps);
        let mut writes = Vec::new();
        for step in &steps {
            match step {
                Op::Put { key, value, lease, .. } => {
                    writes.push(self.write(key, Some(value.clone()), *lease));
                }
                Op::Update { key, value, lease, .. } => {
                    let there = self.keys.get(key.as_ref()).and_then(|history| history.live());
                    let there = there.map(|v| (v.value.clone(), v.lease)).unwrap_or_default();
                    let value = value.clone().unwrap_or(there.0);
                    writes.push(self.write(key, Some(value), lease.unwrap_or(there.1)));
                }
                Op::Delete { range, .. } => {
                    // Two are enough to know that there are several.
                    let keys = self.existing(range).map(|(key, _)| key).take(2);
                    writes.extend(keys.map(|key| self.write(&key.shared(), None, 0)));
                }
                Op::Range(_) | Op::Txn(_) => {}
            }
        }
        match writes.len() {
            0 => Ok(Preview::Nothing),
            // A deletion up to the open end may include a key that another operation puts.
            1 if !deletes_what_it_puts(&steps) => {
                Ok(writes.pop().map_or(Preview::Nothing, Preview::One))
            }
            _ => Ok(Preview::Several),
        }
    }

    /// The change of a key that is put or deleted now.
    pub(crate) fn write(&self, key: &Bytes, value: Option<Bytes>, lease: i64) -> Write {
        let history = self.keys.get(key.as_ref());
        let created = history.and_then(|h| h.live()).map_or(0, |version| version.created);
        // A compacted version may still be held for a slow reader, but is stored nowhere else.
        let before = history.map(|h| h.latest());
        let kept = before.filter(|v| !v.is_tombstone() || v.modified >= self.compacted());
        Write { key: key.clone(), value, lease, created, before: kept.map_or(0, |v| v.modified) }
    }
}

/// Operations that would run, including those of nested transactions.
fn leaves<'a>(txn: &'a Txn, plan: &Plan, steps: &mut Vec<&'a Op>) {
    let mut nested = plan.nested.iter();
    for op in branch(txn, plan.succeeded) {
        match op {
            Op::Txn(txn) => nested.next().into_iter().for_each(|plan| leaves(txn, plan, steps)),
            op => steps.push(op),
        }
    }
}

fn deletes_what_it_puts(steps: &[&Op]) -> bool {
    let taken = |key: &[u8]| {
        steps.iter().any(|op| matches!(op, Op::Delete { range, .. } if range.contains(key)))
    };
    steps
        .iter()
        .any(|op| matches!(op, Op::Put { key, .. } | Op::Update { key, .. } if taken(key.as_ref())))
}

/// Whether the effect or the response of `txn` may depend on one of these keys.
pub(crate) fn reads_any(txn: &Txn, keys: &mut dyn FnMut(&KeyRange) -> bool) -> bool {
    txn.compare.iter().any(|compare| keys(&compare.range))
        || txn.success.iter().chain(&txn.failure).any(|op| match op {
            Op::Range(_) => false,
            Op::Put { key, .. } | Op::Update { key, .. } => keys(&KeyRange::key(key.clone())),
            Op::Delete { range, .. } => keys(range),
            Op::Txn(txn) => reads_any(txn, keys),
        })
}
