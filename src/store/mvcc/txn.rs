//! Transactions: validation, selection of the branch, and execution.

use std::collections::HashSet;

pub(crate) use self::preview::{Preview, Write, reads_any};
use super::history::Version;
use super::key::Key;
use super::state::{Put, State};
use crate::contract::{
    Compare, Event, KeyRange, MAX_REQUEST_BYTES, Op, OpResponse, Ordering, Revision, StoreError,
    Target, Txn, TxnResponse,
};

mod preview;

/// Maximum nesting of transactions; the protobuf decoder of the etcd interface has the same limit.
pub(crate) const MAX_DEPTH: usize = 100;

/// Bytes of keys and values in the request.
pub(crate) fn request_size(txn: &Txn) -> usize {
    let range = |range: &KeyRange| range.start.len() + range.end.len();
    let compare = |compare: &Compare| {
        range(&compare.range)
            + if let Target::Value(value) = &compare.target { value.len() } else { 8 }
    };
    let op = |op: &Op| match op {
        Op::Range(request) => range(&request.range),
        Op::Put { key, value, .. } => key.len() + value.len(),
        Op::Update { key, value, .. } => key.len() + value.as_ref().map_or(0, |v| v.len()),
        Op::Delete { range: r, .. } => range(r),
        Op::Txn(txn) => request_size(txn),
    };
    let ops = txn.success.iter().chain(&txn.failure);
    txn.compare.iter().map(compare).sum::<usize>() + ops.map(op).sum::<usize>()
}

/// Checks a request independently of the state and returns its size in bytes.
///
/// # Errors
/// [`StoreError::TooLarge`], [`StoreError::DuplicateKey`], [`StoreError::Invalid`].
pub(crate) fn check_txn(txn: &Txn) -> Result<usize, StoreError> {
    let size = request_size(txn);
    if size > MAX_REQUEST_BYTES {
        return Err(StoreError::TooLarge { size, limit: MAX_REQUEST_BYTES });
    }
    check_conflicts(txn)?;
    Ok(size)
}

/// Whether no branch contains an operation that could write; nested transactions count as writes,
/// as in etcd.
pub(crate) fn only_reads(txn: &Txn) -> bool {
    txn.success.iter().chain(&txn.failure).all(|op| matches!(op, Op::Range(_)))
}

/// Refuses a key that is put twice, or put and deleted, in branches that run together. Deletions up
/// to the open end `[0]` are ignored, as in etcd: they run in order.
///
/// # Errors
/// [`StoreError::DuplicateKey`], [`StoreError::Invalid`].
pub(super) fn check_conflicts(txn: &Txn) -> Result<(), StoreError> {
    writes_of(&txn.success, 1)?;
    writes_of(&txn.failure, 1)?;
    Ok(())
}

#[derive(Default)]
struct Writes<'a> {
    puts: HashSet<&'a [u8]>,
    deletes: Vec<&'a KeyRange>,
}

impl Writes<'_> {
    fn conflicts(&self, key: &[u8]) -> bool {
        self.puts.contains(key) || self.deletes.iter().any(|range| range.contains(key))
    }
}

fn writes_of(ops: &[Op], depth: usize) -> Result<Writes<'_>, StoreError> {
    if depth > MAX_DEPTH {
        return Err(StoreError::Invalid(format!("transactions nest deeper than {MAX_DEPTH}")));
    }
    let mut all = Writes::default();
    for op in ops {
        if let Op::Delete { range, .. } = op
            && *range.end != [0]
        {
            all.deletes.push(range);
        }
    }
    for op in ops {
        let Op::Txn(txn) = op else { continue };
        let (then, otherwise) =
            (writes_of(&txn.success, depth + 1)?, writes_of(&txn.failure, depth + 1)?);
        let nested: HashSet<&[u8]> = then.puts.union(&otherwise.puts).copied().collect();
        if nested.iter().any(|key| all.conflicts(key)) {
            return Err(StoreError::DuplicateKey);
        }
        all.puts.extend(nested);
        all.deletes.extend(then.deletes);
        all.deletes.extend(otherwise.deletes);
    }
    for op in ops {
        if let Op::Put { key, .. } | Op::Update { key, .. } = op
            && (all.conflicts(key) || !all.puts.insert(key))
        {
            return Err(StoreError::DuplicateKey);
        }
    }
    Ok(all)
}

/// The branches that run; nested comparisons see the state before the whole transaction, as in
/// etcd.
struct Plan {
    succeeded: bool,
    nested: Vec<Plan>,
}

fn branch(txn: &Txn, succeeded: bool) -> &[Op] {
    if succeeded { &txn.success } else { &txn.failure }
}

fn writes(txn: &Txn, plan: &Plan) -> bool {
    let mut nested = plan.nested.iter();
    branch(txn, plan.succeeded).iter().any(|op| match op {
        Op::Range(_) => false,
        Op::Put { .. } | Op::Update { .. } | Op::Delete { .. } => true,
        Op::Txn(txn) => nested.next().is_some_and(|plan| writes(txn, plan)),
    })
}

fn run(txn: &Txn, plan: &Plan, step: &mut dyn FnMut(&Op) -> OpResponse) -> TxnResponse {
    let mut nested = plan.nested.iter();
    let mut responses = Vec::with_capacity(branch(txn, plan.succeeded).len());
    for op in branch(txn, plan.succeeded) {
        match (op, op_plan(op, &mut nested)) {
            (Op::Txn(txn), Some(plan)) => responses.push(OpResponse::Txn(run(txn, plan, step))),
            (op, _) => responses.push(step(op)),
        }
    }
    TxnResponse { succeeded: plan.succeeded, responses, revision: Revision(0) }
}

fn op_plan<'a>(op: &Op, nested: &mut std::slice::Iter<'a, Plan>) -> Option<&'a Plan> {
    if let Op::Txn(_) = op { nested.next() } else { None }
}

fn stamp(response: &mut TxnResponse, revision: i64) {
    response.revision = Revision(revision);
    for inner in &mut response.responses {
        if let OpResponse::Txn(inner) = inner {
            stamp(inner, revision);
        }
    }
}

fn relation<T: Ord + ?Sized>(key: &T, ordering: Ordering, target: &T) -> bool {
    match ordering {
        Ordering::Equal => key == target,
        Ordering::NotEqual => key != target,
        Ordering::Greater => key > target,
        Ordering::Less => key < target,
    }
}

fn version_holds(version: Option<&Version>, compare: &Compare) -> bool {
    let number = |of: fn(&Version) -> i64, target: &i64| {
        relation(&version.map_or(0, of), compare.ordering, target)
    };
    match &compare.target {
        Target::ModRevision(target) => number(|v| v.modified, target),
        Target::CreateRevision(target) => number(|v| v.created, target),
        Target::Version(target) => number(|v| v.version, target),
        Target::Lease(target) => number(|v| v.lease, target),
        // An absent key has no value, not an empty one: every comparison fails.
        Target::Value(target) => {
            version.is_some_and(|v| relation(v.value.as_ref(), compare.ordering, target.as_ref()))
        }
    }
}

impl State {
    fn holds(&self, compare: &Compare) -> bool {
        let mut found = self.existing(&compare.range).peekable();
        if found.peek().is_none() {
            return version_holds(None, compare);
        }
        found.all(|(_, version)| version_holds(Some(version), compare))
    }

    fn live(&self, key: &[u8]) -> Option<&Version> {
        self.keys.get(key)?.live()
    }

    fn plan(&self, txn: &Txn) -> Plan {
        let succeeded = txn.compare.iter().all(|compare| self.holds(compare));
        let nested = |op: &Op| if let Op::Txn(txn) = op { Some(self.plan(txn)) } else { None };
        Plan { succeeded, nested: branch(txn, succeeded).iter().filter_map(nested).collect() }
    }

    fn check_plan(&self, txn: &Txn, plan: &Plan) -> Result<(), StoreError> {
        let mut nested = plan.nested.iter();
        for op in branch(txn, plan.succeeded) {
            match op {
                Op::Range(request) => self.check_revision(request.revision, self.revision)?,
                Op::Put { lease, .. } | Op::Update { lease: Some(lease), .. }
                    if *lease != 0 && !self.leases.contains_key(lease) =>
                {
                    return Err(StoreError::LeaseNotFound);
                }
                Op::Update { key, .. } if self.live(key).is_none() => {
                    return Err(StoreError::KeyNotFound);
                }
                Op::Put { .. } | Op::Update { .. } | Op::Delete { .. } => {}
                Op::Txn(txn) => nested.next().map_or(Ok(()), |plan| self.check_plan(txn, plan))?,
            }
        }
        Ok(())
    }

    /// Runs a transaction that would write nothing now; `None` if it would write.
    ///
    /// # Errors
    /// As [`State::apply`].
    pub(crate) fn read_txn(&self, txn: &Txn) -> Result<Option<TxnResponse>, StoreError> {
        let plan = self.plan(txn);
        self.check_plan(txn, &plan)?;
        if writes(txn, &plan) {
            return Ok(None);
        }
        let mut response = run(txn, &plan, &mut |op| match op {
            Op::Range(request) => OpResponse::Range(self.range_unchecked(request, self.revision)),
            // Unreachable: `writes` returned false.
            _ => OpResponse::Delete(0, Vec::new()),
        });
        stamp(&mut response, self.revision);
        Ok(Some(response))
    }

    pub(super) fn apply_txn(
        &mut self,
        txn: &Txn,
        events: &mut Vec<Event>,
    ) -> Result<TxnResponse, StoreError> {
        let plan = self.plan(txn);
        self.check_plan(txn, &plan)?;
        let (before, first) = (self.revision, events.len());
        self.count(txn, &plan);
        let mut response = run(txn, &plan, &mut |op| self.step(op, before, first, events));
        if events.len() > first {
            self.revision = before + 1;
        }
        stamp(&mut response, self.revision);
        Ok(response)
    }

    fn count(&mut self, txn: &Txn, plan: &Plan) {
        let mut nested = plan.nested.iter();
        let branch = branch(txn, plan.succeeded);
        self.counts.txns += u64::from(branch.len() > 1);
        for op in branch {
            match op {
                Op::Range(_) => self.counts.ranges += 1,
                Op::Put { .. } | Op::Update { .. } => self.counts.puts += 1,
                Op::Delete { .. } => self.counts.deletes += 1,
                Op::Txn(txn) => nested.next().into_iter().for_each(|plan| self.count(txn, plan)),
            }
        }
    }

    fn step(&mut self, op: &Op, before: i64, first: usize, events: &mut Vec<Event>) -> OpResponse {
        match op {
            Op::Put { key, value, lease, prev_kv } => {
                let prev = self.put(Put { key, value, lease: *lease }, before + 1, first, events);
                OpResponse::Put(prev.filter(|_| *prev_kv))
            }
            Op::Update { key, value, lease, prev_kv } => {
                // The key existed before the transaction; if an operation of the same transaction
                // deleted it, nothing is kept.
                let there = self.live(key).map(|v| (v.value.clone(), v.lease)).unwrap_or_default();
                let value = value.clone().unwrap_or(there.0);
                let lease = lease.unwrap_or(there.1);
                let prev = self.put(Put { key, value: &value, lease }, before + 1, first, events);
                OpResponse::Put(prev.filter(|_| *prev_kv))
            }
            Op::Delete { range, prev_kv } => {
                let keys: Vec<Key> = self.existing(range).map(|(key, _)| key.clone()).collect();
                let delete = |key| self.delete(key, before + 1, first, events);
                let prev: Vec<_> = keys.iter().filter_map(delete).collect();
                OpResponse::Delete(prev.len(), if *prev_kv { prev } else { Vec::new() })
            }
            Op::Range(request) => {
                let newest = before + i64::from(events.len() > first);
                OpResponse::Range(self.range_unchecked(request, newest))
            }
            // Unreachable: `run` descends into nested transactions itself.
            Op::Txn(_) => OpResponse::Delete(0, Vec::new()),
        }
    }
}
