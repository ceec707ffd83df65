//! What a transaction would write now, for an engine that has to know before it is applied.

use bytes::Bytes;

use super::{Plan, branch};
use crate::contract::{KeyRange, Op, StoreError, Txn};
use crate::mvcc::state::State;

/// One change of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Write {
    /// Key.
    pub(crate) key: Bytes,
    /// New value; `None` deletes the key.
    pub(crate) value: Option<Bytes>,
    /// Lease; 0 is none.
    pub(crate) lease: i64,
    /// Revision that created what the change replaces; 0 where the key is absent.
    pub(crate) created: i64,
    /// Revision of what came before, the deletion of the key included; 0 where nothing of it is kept.
    pub(crate) before: i64,
}

/// What a transaction would write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Preview {
    /// Nothing: it only answers.
    Nothing,
    /// One key.
    One(Write),
    /// Several keys at one revision, or one key twice.
    Several,
}

impl State {
    /// What `txn` would write if it was applied now.
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
            // A deletion up to the open end may take what another step put.
            1 if !deletes_what_it_puts(&steps) => {
                Ok(writes.pop().map_or(Preview::Nothing, Preview::One))
            }
            _ => Ok(Preview::Several),
        }
    }

    /// The change of one key that is put or deleted now.
    pub(crate) fn write(&self, key: &Bytes, value: Option<Bytes>, lease: i64) -> Write {
        let history = self.keys.get(key.as_ref());
        let created = history.and_then(|h| h.live()).map_or(0, |version| version.created);
        // What is compacted may still be held for a slow reader, but is kept nowhere else.
        let before = history.map(|h| h.latest());
        let kept = before.filter(|v| !v.is_tombstone() || v.modified >= self.compacted());
        Write { key: key.clone(), value, lease, created, before: kept.map_or(0, |v| v.modified) }
    }
}

/// Steps that would run, those of nested transactions included.
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

/// Whether what `txn` does, or answers, may depend on one of these keys.
pub(crate) fn reads_any(txn: &Txn, keys: &mut dyn FnMut(&KeyRange) -> bool) -> bool {
    txn.compare.iter().any(|compare| keys(&compare.range))
        || txn.success.iter().chain(&txn.failure).any(|op| match op {
            Op::Range(_) => false,
            Op::Put { key, .. } | Op::Update { key, .. } => keys(&KeyRange::key(key.clone())),
            Op::Delete { range, .. } => keys(range),
            Op::Txn(txn) => reads_any(txn, keys),
        })
}
