//! Random operations against a naive model: a whole copy of the key space per revision.

use std::collections::BTreeMap;

use bytes::Bytes;
use sorting::CompactSort as _;

use super::{Command, *};
use crate::contract::{KeyRange, KeyValue, Op, RangeRequest, Revision, StoreError, Txn};

type Snapshot = BTreeMap<Vec<u8>, KeyValue>;

/// A small generator (xorshift), for tests only.
struct Rng(u64);

impl Rng {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

fn key(rng: &mut Rng) -> Vec<u8> {
    let length = 1 + rng.below(3);
    (0..length).map(|_| b"ab\x00\xff"[usize::try_from(rng.below(4)).unwrap()]).collect()
}

/// Half of them are so large and so like each other that older versions are packed.
fn value(rng: &mut Rng, step: u64) -> Bytes {
    let like: String = (0..rng.below(2) * 300).map(|n| format!("{n} ")).collect();
    format!("{step} {like}{step}").into()
}

/// Some values lie in a file now, also those of another one before, and some findings are of other
/// values.
fn in_files(state: State, rng: &mut Rng) -> State {
    let mut findings = Vec::new();
    for (key, versions) in state.export(None, state.revision(), usize::MAX) {
        for version in versions {
            let mut read = version.value.to_vec();
            match rng.below(4) {
                0 => continue,
                1 => read.iter_mut().for_each(|byte| *byte ^= 1),
                _ => {}
            }
            let read = Bytes::from(read);
            let source = Source::new(read.clone(), Bytes::copy_from_slice(&read)).unwrap();
            let stored = source.find(&read);
            let at = (version.modified, version.sub);
            findings
                .extend(stored.map(|stored| (FileValue { key: key.clone(), read, stored }, at)));
        }
    }
    let state = parking_lot::RwLock::new(state);
    if rng.below(2) == 0 {
        replace_all_values(&state, &findings);
    } else {
        // As in a log: by revisions, and some without effect.
        findings.compact_sort_by_key(|(_, at)| *at);
        let findings: Vec<FileValue> = findings.into_iter().map(|(found, _)| found).collect();
        replace_written_values(&state, &findings, &mut 0);
    }
    state.into_inner()
}

fn range(rng: &mut Rng) -> KeyRange {
    match rng.below(4) {
        0 => KeyRange::key(key(rng)),
        1 => KeyRange::prefix(key(rng)),
        2 => KeyRange { start: key(rng).into(), end: [0][..].into() },
        _ => KeyRange { start: key(rng).into(), end: key(rng).into() },
    }
}

/// The rule of the contract, written out.
fn within(range: &KeyRange, key: &[u8]) -> bool {
    if range.end.is_empty() {
        return key == range.start;
    }
    key >= &range.start[..] && (range.end == [0][..] || key < &range.end[..])
}

fn write(model: &mut BTreeMap<i64, Snapshot>, ops: &[Op]) -> i64 {
    let (&newest, snapshot) = model.last_key_value().unwrap();
    let (mut next, mut changed) = (snapshot.clone(), false);
    let revision = Revision(newest + 1);
    for op in ops {
        match op {
            Op::Put { key, value, .. } => {
                let before = next.get(&key[..]);
                let create_revision = before.map_or(revision, |kv| kv.create_revision);
                let version = before.map_or(1, |kv| kv.version + 1);
                let kv = KeyValue {
                    key: key.clone(),
                    value: value.clone(),
                    create_revision,
                    mod_revision: revision,
                    version,
                    lease: 0,
                };
                next.insert(key.to_vec(), kv);
                changed = true;
            }
            Op::Delete { range, .. } => {
                let before = next.len();
                next.retain(|key, _| !within(range, key));
                changed |= next.len() < before;
            }
            Op::Update { key, value, .. } => {
                // A step before may have deleted it.
                let before = next.get(&key[..]).cloned();
                let kept = before.as_ref().map(|kv| kv.value.clone()).unwrap_or_default();
                let kv = KeyValue {
                    key: key.clone(),
                    value: value.clone().unwrap_or(kept),
                    create_revision: before.as_ref().map_or(revision, |kv| kv.create_revision),
                    mod_revision: revision,
                    version: before.map_or(1, |kv| kv.version + 1),
                    lease: 0,
                };
                next.insert(key.to_vec(), kv);
                changed = true;
            }
            Op::Range(_) | Op::Txn(_) => {}
        }
    }
    if changed {
        model.insert(revision.0, next);
        return revision.0;
    }
    newest
}

/// What a watcher of `range` must be told of one revision, in key order.
fn changes(
    before: &Snapshot,
    after: &Snapshot,
    range: &KeyRange,
) -> Vec<(Vec<u8>, bool, Option<KeyValue>)> {
    let keys: std::collections::BTreeSet<_> =
        before.keys().chain(after.keys()).filter(|key| within(range, key)).collect();
    let changed = keys.into_iter().filter(|key| before.get(*key) != after.get(*key));
    let prev = |key: &Vec<u8>| {
        let created = after.get(key).map(|kv| (kv.create_revision, kv.mod_revision));
        // Deleted and created again in one revision: a creation.
        before.get(key).filter(|_| created.is_none_or(|(made, at)| made != at)).cloned()
    };
    changed.map(|key| (key.clone(), !after.contains_key(key), prev(key))).collect()
}

fn compare_all(
    state: &State,
    model: &BTreeMap<i64, Snapshot>,
    compacted: i64,
    rng: &mut Rng,
    seed: u64,
) {
    let range = range(rng);
    let limit = usize::try_from(rng.below(4)).unwrap();
    for (revision, snapshot) in model {
        let request = RangeRequest {
            revision: Some(Revision(*revision)),
            limit,
            ..RangeRequest::new(range.clone())
        };
        let found = state.range(&request);
        if *revision < compacted {
            assert!(matches!(found, Err(StoreError::Compacted { .. })), "seed {seed}");
            continue;
        }
        let found = found.unwrap();
        let expected: Vec<&KeyValue> =
            snapshot.iter().filter(|(key, _)| within(&range, key)).map(|(_, kv)| kv).collect();
        assert_eq!(found.count, expected.len(), "seed {seed} at {revision} {range:?}");
        let shown = if limit == 0 { expected.len() } else { limit.min(expected.len()) };
        assert!(
            found.kvs.iter().eq(expected[..shown].iter().copied()),
            "seed {seed} at {revision} {range:?}"
        );
        assert_eq!(found.more, shown < expected.len());
    }
    let from = compacted.max(2);
    let (events, _) = state.events(from, &range, usize::MAX).unwrap();
    for (revision, after) in model.range(from..) {
        let Some(before) = model.get(&(revision - 1)) else { continue };
        let of_revision = events.iter().filter(|event| event.kv.mod_revision.0 == *revision);
        // Of a key that a transaction wrote and deleted the last event counts, and none where
        // nothing came of it.
        let mut told = BTreeMap::new();
        for event in of_revision {
            told.insert(event.kv.key.to_vec(), (event.deleted, event.prev.clone()));
        }
        told.retain(|_, (deleted, prev)| !*deleted || prev.is_some());
        let told: Vec<_> = told.into_iter().map(|(key, (gone, prev))| (key, gone, prev)).collect();
        assert_eq!(told, changes(before, after, &range), "seed {seed} revision {revision}");
    }
}

#[test]
fn random_operations_agree_with_a_copy_per_revision() {
    for seed in 1..=200 {
        let mut rng = Rng(seed * 0x9e37_79b9);
        let mut state = State::default();
        let mut model: BTreeMap<i64, Snapshot> = BTreeMap::from([(1, Snapshot::new())]);
        let mut compacted = 0;
        for step in 0..60_u64 {
            let op = |rng: &mut Rng| match rng.below(4) {
                0 => Op::Delete { range: range(rng), prev_kv: false },
                1 => Op::Update {
                    key: key(rng).into(),
                    value: (rng.below(2) == 0).then(|| value(rng, step)),
                    lease: None,
                    prev_kv: false,
                },
                _ => Op::Put {
                    key: key(rng).into(),
                    value: value(rng, step),
                    lease: 0,
                    prev_kv: false,
                },
            };
            let ops: Vec<Op> = (0..=rng.below(3)).map(|_| op(&mut rng)).collect();
            let txn = Txn { success: ops, ..Txn::default() };
            if check_conflicts(&txn).is_ok() {
                let there = &model.last_key_value().unwrap().1;
                let misses =
                    |op: &Op| matches!(op, Op::Update { key, .. } if !there.contains_key(&key[..]));
                let misses = txn.success.iter().any(misses);
                match state.apply(&Command::Txn(txn.clone()), &mut Vec::new()) {
                    Err(StoreError::KeyNotFound) => assert!(misses, "seed {seed}"),
                    // A deletion sees what the transaction wrote before; the model applies in the
                    // same order.
                    Ok(Outcome::Txn(response)) if !misses => {
                        let written = write(&mut model, &txn.success);
                        assert_eq!(response.revision.0, written, "seed {seed}");
                    }
                    other => panic!("seed {seed}: {other:?}"),
                }
            }
            if rng.below(10) == 0 {
                let revision =
                    1 + i64::try_from(rng.below(state.revision().unsigned_abs())).unwrap();
                if state.apply(&Command::Compact(revision), &mut Vec::new()).is_ok() {
                    compacted = revision;
                }
            }
            if rng.below(8) == 0 {
                state = in_files(state, &mut rng);
            }
            if rng.below(8) == 0 {
                let parts = state.export(None, state.revision(), usize::MAX);
                let back = State::import(
                    state.revision(),
                    state.compacted(),
                    Vec::new(),
                    ClusterData::default(),
                    state.leases(),
                    parts.into_iter(),
                );
                assert_eq!(back.size().memory, state.size().memory, "seed {seed}");
                state = back;
            }
        }
        compare_all(&state, &model, compacted, &mut rng, seed);
        let live: usize = model.last_key_value().map_or(0, |(_, snapshot)| snapshot.len());
        assert_eq!(state.size().keys, live, "seed {seed}");
    }
}
