//! The disk engine under power cuts, failing disks and damaged files.

mod full;
mod lazy;
mod values;

use std::collections::BTreeMap;
use std::sync::Arc;

use base::{Shutdown, Tasks};
use tokio::runtime::{Builder, Runtime};

use super::files::Disk;
use super::record::{FILE_HEADER, HEAD};
use super::recover::{Identity, recover};
use super::sim::{Rng, SimDisk};
use super::{DiskWork, OpenError};
use crate::contract::{Durability, KeyRange, Op, RangeRequest, Revision, StoreError, Txn, *};
use crate::local::engine::Engine;
use crate::local::shared::SharedState;
use crate::mvcc::{Command, Outcome};
use crate::raft;
use crate::raft::{Options, RaftEngine};

/// The whole store on a simulated disk: consensus, proposals and the log's writer run on one
/// thread.
#[derive(Debug)]
struct Node {
    runtime: Runtime,
    shared: Arc<SharedState>,
    engine: Arc<RaftEngine>,
    tasks: Tasks,
}

fn open(disk: &SimDisk) -> Result<Node, OpenError> {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let recovered = recover(&disk, None, Identity::First)?;
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    let tasks = Tasks::new(Shutdown::new());
    let options = Options { lazy: true, work: DiskWork::Here, member_options: None };
    let started = runtime.block_on(raft::start(recovered, options, None, &tasks))?;
    let raft::Started { shared, engine, .. } = started;
    Ok(Node { runtime, shared, engine, tasks })
}

impl Node {
    /// Submits all requests at once and waits for the responses.
    fn submit_all(&self, commands: Vec<(Command, Durability)>) -> Vec<Result<Outcome, StoreError>> {
        let submit = |(command, durability)| self.engine.submit(command, durability);
        self.runtime.block_on(futures::future::join_all(commands.into_iter().map(submit)))
    }

    /// Lets the tasks finish their current work.
    fn run_tasks(&self) {
        self.runtime.block_on(async {
            for _ in 0..200 {
                tokio::task::yield_now().await;
            }
        });
    }

    fn stop(self) -> Option<String> {
        self.runtime.block_on(async {
            self.tasks.shutdown().request();
            let left = self.tasks.drain(std::time::Duration::from_secs(60)).await;
            assert!(left.is_empty(), "{left:?}");
            self.tasks.fault()
        })
    }
}

fn put(key: &str, value: &str) -> Command {
    let op = Op::Put {
        key: key.to_owned().into(),
        value: value.to_owned().into(),
        lease: 0,
        prev_kv: false,
    };
    Command::Txn(Txn { success: vec![op], ..Txn::default() })
}

fn delete(key: &str) -> Command {
    Command::Txn(Txn {
        success: vec![Op::Delete { range: KeyRange::key(key.to_owned()), prev_kv: false }],
        ..Txn::default()
    })
}

fn submit(node: &Node, command: Command, durability: Durability) -> Result<i64, StoreError> {
    Ok(revision(&node.submit_all(vec![(command, durability)]).remove(0)?))
}

fn commit(node: &Node, command: Command) -> Result<i64, StoreError> {
    submit(node, command, Durability::Synced)
}

fn revision(outcome: &Outcome) -> i64 {
    match outcome {
        Outcome::Txn(response) => response.revision.0,
        Outcome::Done(revision) => revision.0,
    }
}

fn everything(node: &Node) -> BTreeMap<String, String> {
    let all = KeyRange { start: [0][..].into(), end: [0][..].into() };
    let found = node.shared.state.read().range(&RangeRequest::new(all)).unwrap();
    let text = |bytes: &bytes::Bytes| String::from_utf8(bytes.to_vec()).unwrap();
    found.kvs.iter().map(|kv| (text(&kv.key), text(&kv.value))).collect()
}

fn run_checkpoint(node: &Node) {
    // The disk fails in some of these tests.
    let _ = node.runtime.block_on(node.engine.write_checkpoint());
    node.run_tasks();
}

/// Invariants after a power loss: everything acknowledged as synced exists, and no revision is used
/// twice.
#[derive(Default)]
struct Expected {
    /// Newest revision acknowledged as synced.
    synced: i64,
    /// Newest acknowledged revision.
    seen: i64,
}

/// Key and value of a put, or key alone of a deletion, by revision.
type Effects = BTreeMap<i64, (String, Option<String>)>;

/// Submits a random batch and records what was acknowledged.
fn write_batch(
    node: &Node,
    rng: &mut Rng,
    expected: &mut Expected,
    by_revision: &mut Effects,
    seed: u64,
) {
    let mut batch = Vec::new();
    let mut effects = Vec::new();
    for _ in 0..=rng.below(5) {
        let key = format!("k{}", rng.below(12));
        let number = rng.next();
        let value = format!("{number}-{}", "x".repeat(usize::try_from(rng.below(1500)).unwrap()));
        let durability = if rng.chance(30) { Durability::Lazy } else { Durability::Synced };
        let (command, effect) = if rng.chance(20) {
            (delete(&key), (key, None))
        } else {
            (put(&key, &value), (key, Some(value)))
        };
        batch.push((command, durability));
        effects.push((durability, effect));
    }
    let mut last = node.shared.state.read().revision();
    for (outcome, (durability, effect)) in node.submit_all(batch).into_iter().zip(effects) {
        let Ok(outcome) = outcome else { continue };
        let revision = revision(&outcome);
        if revision > last {
            assert!(revision > expected.seen, "seed {seed}: revision {revision} was used before");
            by_revision.insert(revision, effect);
            expected.seen = revision;
        }
        last = revision;
        if durability == Durability::Synced {
            expected.synced = expected.synced.max(revision);
        }
    }
}

fn simulate(seed: u64) {
    let mut rng = Rng(seed);
    let mut disk = SimDisk::new();
    let mut expected = Expected::default();
    // The effect of each revision, as acknowledged; the newest acknowledgement of a revision wins.
    let mut by_revision: BTreeMap<i64, (String, Option<String>)> = BTreeMap::new();
    for round in 0..6 {
        let cut = disk.operations() + 1 + rng.below(120);
        disk.cut_power_at(cut);
        let opened = open(&disk);
        if let Ok(node) = opened {
            check(&node, &mut expected, &mut by_revision, seed, round);
            for _ in 0..60 {
                write_batch(&node, &mut rng, &mut expected, &mut by_revision, seed);
                if node.engine.stopped().is_some() {
                    break;
                }
                if rng.chance(5) {
                    run_checkpoint(&node);
                }
                if rng.chance(5) {
                    let revision = node.shared.state.read().revision();
                    let _ = commit(&node, Command::Compact(revision - 3))
                        .map(|r| expected.synced = expected.synced.max(r));
                }
                if rng.chance(2) {
                    let newest = node.shared.state.read().revision();
                    if node.stop().is_none() && disk.has_power() {
                        expected.synced = expected.synced.max(newest);
                    }
                    break;
                }
            }
        }
        disk = disk.after_power_cut(&mut rng);
    }
    let node = open(&disk).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    check(&node, &mut expected, &mut by_revision, seed, 99);
}

fn check(
    node: &Node,
    expected: &mut Expected,
    by_revision: &mut BTreeMap<i64, (String, Option<String>)>,
    seed: u64,
    round: u32,
) {
    let state = node.shared.state.read();
    let now = state.revision();
    assert!(
        now >= expected.synced,
        "seed {seed} round {round}: revision {now} after {} was acknowledged",
        expected.synced
    );
    // Revisions in a gap: they were lazy and are lost.
    let survives =
        |revision: i64| !state.gaps().iter().any(|gap| gap.from < revision && revision <= gap.to);
    for (revision, (key, value)) in &*by_revision {
        if *revision <= expected.synced {
            assert!(
                survives(*revision),
                "seed {seed} round {round}: synced revision {revision} is lost"
            );
        }
        if *revision < state.compacted() || *revision > now || !survives(*revision) {
            continue;
        }
        let request = RangeRequest {
            revision: Some(Revision(*revision)),
            ..RangeRequest::new(KeyRange::key(key.clone()))
        };
        let found =
            state.range(&request).unwrap_or_else(|e| panic!("seed {seed} round {round}: {e}"));
        let found = found.kvs.first().map(|kv| String::from_utf8(kv.value.to_vec()).unwrap());
        assert_eq!(&found, value, "seed {seed} round {round} revision {revision} key {key}");
    }
    // The watch history is consistent.
    let all = KeyRange { start: [0][..].into(), end: [0][..].into() };
    let start = state.gaps().last().map_or(0, |gap| gap.to + 1).max(state.compacted()).max(1);
    let (events, _) = state.events(start, &all, usize::MAX).unwrap();
    let revisions: Vec<i64> = events.iter().map(|e| e.kv.mod_revision.0).collect();
    assert!(revisions.is_sorted(), "seed {seed}");
    expected.seen = expected.seen.max(now);
    // A lazily acknowledged write may be lost, but must not reappear.
    by_revision.retain(|revision, _| survives(*revision));
}

#[test]
fn power_cuts_at_any_operation_lose_nothing_that_was_synced() {
    for seed in 0..80 {
        simulate(seed);
    }
}

fn sample() -> SimDisk {
    let disk = SimDisk::new();
    let node = open(&disk).unwrap();
    for n in 0..20 {
        commit(
            &node,
            put(
                &format!("k{n}"),
                &format!("value-{n}-{}", "y".repeat(if n == 19 { 1200 } else { 300 })),
            ),
        )
        .unwrap();
    }
    disk.copy()
}

/// The start of the first record in the first segment, and the end of the last.
fn offsets(content: &[u8]) -> (Vec<usize>, usize) {
    let mut at = FILE_HEADER;
    let mut offsets = Vec::new();
    while let Some(head) = content.get(at..).and_then(super::record::Head::parse) {
        offsets.push(at);
        at = (at + HEAD + head.length).next_multiple_of(8);
    }
    (offsets, at)
}

const LOG: &str = "log-0000000000000001";

#[test]
fn a_log_cut_at_any_byte_of_its_last_record_loses_only_that_record() {
    let disk = sample();
    let (records, end) = offsets(&disk.content(LOG));
    let last = *records.last().unwrap();
    for at in last..end {
        let cut = disk.copy();
        cut.edit(LOG, |content| content.truncate(at));
        let node = open(&cut).unwrap_or_else(|e| panic!("cut at {at}: {e}"));
        // The last bytes are padding without content.
        let keys = everything(&node).len();
        assert!(keys == 19 || keys == 20 && at + 8 > end, "cut at {at}: {keys} keys");
    }
}

#[test]
fn a_lost_sector_in_the_last_record_is_a_torn_end_and_garbage_behind_the_end_is_dropped() {
    let disk = sample();
    let (records, end) = offsets(&disk.content(LOG));
    let last = *records.last().unwrap();
    let torn = disk.copy();
    torn.edit(LOG, |content| content[last.next_multiple_of(512)..end].fill(0));
    assert_eq!(everything(&open(&torn).unwrap()).len(), 19);
    assert!(!torn.content("torn-tail").is_empty());
    let garbage = disk.copy();
    let mut rng = Rng(5);
    garbage.edit(LOG, |content| content[end..end + 4096].fill_with(|| (rng.next() & 0xff) as u8));
    let node = open(&garbage).unwrap();
    assert_eq!(everything(&node).len(), 20);
    commit(&node, put("after", "1")).unwrap();
    assert_eq!(everything(&open(&garbage.copy()).unwrap()).len(), 21);
}

#[test]
fn a_flipped_bit_in_acknowledged_data_is_an_error_that_names_the_place() {
    let disk = sample();
    let (records, end) = offsets(&disk.content(LOG));
    let mut rng = Rng(7);
    for _ in 0..400 {
        let at = usize::try_from(rng.below(end as u64)).unwrap();
        let bit = rng.below(8);
        let flipped = disk.copy();
        flipped.edit(LOG, |content| content[at] ^= 1 << bit);
        let before = flipped.content(LOG);
        let in_last = at >= *records.last().unwrap();
        match open(&flipped) {
            Err(OpenError::Corrupt { file, offset, .. }) => {
                assert_eq!(file, LOG);
                let expected =
                    records.iter().rev().find(|record| **record <= at).copied().unwrap_or(0);
                assert_eq!(offset, expected as u64, "flipped byte {at} bit {bit}");
                assert!(flipped.content(LOG) == before, "a refused file is not changed");
            }
            Err(other) => panic!("byte {at} bit {bit}: {other}"),
            // The padding after a record has no checksum and no content.
            Ok(node) => assert!(
                everything(&node).len() == 20 || in_last,
                "byte {at} bit {bit} went unnoticed"
            ),
        }
    }
}

#[test]
fn every_flipped_bit_of_a_checkpoint_is_found() {
    let disk = sample();
    let node = open(&disk).unwrap();
    run_checkpoint(&node);
    drop(node);
    let name =
        disk.list().unwrap().into_iter().find(|name| name.starts_with("checkpoint-")).unwrap();
    let size = disk.content(&name).len() as u64;
    assert_eq!(everything(&open(&disk.copy()).unwrap()).len(), 20);
    let mut rng = Rng(11);
    for _ in 0..300 {
        let (at, bit) = (usize::try_from(rng.below(size)).unwrap(), rng.below(8));
        let flipped = disk.copy();
        flipped.edit(&name, |content| content[at] ^= 1 << bit);
        match open(&flipped) {
            Err(OpenError::Corrupt { file, .. }) => assert_eq!(file, name),
            Err(other) => panic!("byte {at} bit {bit}: {other}"),
            Ok(node) => assert_eq!(
                everything(&node).len(),
                20,
                "only padding may differ: byte {at} bit {bit}"
            ),
        }
    }
    let short = disk.copy();
    short.edit(&name, |content| content.truncate(content.len() / 2));
    assert!(matches!(open(&short), Err(OpenError::Corrupt { .. })));
}

#[test]
fn newer_formats_and_foreign_clusters_are_refused() {
    let disk = sample();
    let newer = disk.copy();
    newer.edit(LOG, |content| {
        content[8..12].copy_from_slice(&2_u32.to_le_bytes());
        content[12..16].fill(0);
        let checksum = crc32c::crc32c(&content[..64]);
        content[12..16].copy_from_slice(&checksum.to_le_bytes());
    });
    let error = open(&newer).unwrap_err();
    assert!(matches!(error, OpenError::NewerFormat { found: 2, known: 1, .. }), "{error}");
    let shared: Arc<dyn Disk> = Arc::new(disk.copy());
    let error = recover(&shared, Some(ClusterId([7; 16])), Identity::First).unwrap_err();
    assert!(
        matches!(error, OpenError::ForeignCluster { expected: ClusterId([7, ..]), .. }),
        "{error}"
    );
}

#[test]
fn a_failed_sync_stops_the_store_for_good() {
    let disk = SimDisk::new();
    let node = open(&disk).unwrap();
    commit(&node, put("a", "1")).unwrap();
    disk.fail_sync_at(disk.syncs() + 1);
    assert!(matches!(commit(&node, put("a", "2")), Err(StoreError::Stopped(_))));
    assert_eq!(everything(&node)["a"], "1", "what was not acknowledged is not shown");
    let found = everything(&open(&disk.after_power_cut(&mut Rng(1))).unwrap());
    assert!(found["a"] == "1" || found["a"] == "2");
}

#[test]
fn a_full_disk_refuses_writes_lets_deletions_through_and_recovers() {
    let disk = SimDisk::new();
    let node = open(&disk).unwrap();
    disk.set_capacity(disk.used() + 1000);
    let value = "z".repeat(6_000);
    let mut written = 0;
    let error = loop {
        match commit(&node, put(&format!("k{written}"), &value)) {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, StoreError::NoSpace(_)), "{error}");
    assert!(written > 30);
    let before = node.shared.state.read().revision();
    assert!(matches!(commit(&node, put("k", &value)), Err(StoreError::NoSpace(_))));
    assert_eq!(node.shared.state.read().revision(), before);
    let [(key, problem)] = &node.tasks.problems().list()[..] else { panic!("not told") };
    assert_eq!(key, "store/room");
    assert!(problem.fix.contains("free space"), "{problem:?}");
    commit(&node, delete("k0")).unwrap();
    let newest = commit(&node, delete("k1")).unwrap();
    commit(&node, Command::Compact(newest)).unwrap();
    disk.set_capacity(u64::MAX);
    commit(&node, put("k", &value)).unwrap();
    assert!(node.tasks.problems().list().is_empty());
    assert_eq!(everything(&open(&disk.copy()).unwrap()).len(), written - 2 + 1);
}

#[test]
fn a_full_disk_takes_writes_again_once_enough_was_deleted() {
    let disk = SimDisk::new();
    let node = open(&disk).unwrap();
    disk.set_capacity(4 * super::SEGMENT_BYTES + 20_000);
    let value = "z".repeat(6_000);
    let mut written = 0;
    while commit(&node, put(&format!("k{written}"), &value)).is_ok() {
        written += 1;
    }
    assert!(written > 100, "{written}");
    node.run_tasks();
    let mut newest = 0;
    for n in 0..written {
        newest = commit(&node, delete(&format!("k{n}"))).unwrap();
    }
    commit(&node, Command::Compact(newest)).unwrap();
    node.run_tasks();
    commit(&node, put("again", &value)).unwrap();
    assert_eq!(everything(&open(&disk.copy()).unwrap()).len(), 1);
}

#[test]
fn checkpoints_replace_the_log_and_failing_ones_do_not() {
    let disk = SimDisk::new();
    let node = open(&disk).unwrap();
    let value = "v".repeat(6000);
    for n in 0..50 {
        commit(&node, put(&format!("k{}", n % 7), &format!("{n}{value}"))).unwrap();
    }
    assert!(disk.list().unwrap().contains(&LOG.to_owned()), "{:?}", disk.list());
    run_checkpoint(&node);
    assert!(!disk.list().unwrap().contains(&LOG.to_owned()), "{:?}", disk.list());
    commit(&node, put("after", "1")).unwrap();
    let reopened = open(&disk.copy()).unwrap();
    assert_eq!(everything(&reopened), everything(&node));
    assert!(reopened.engine.term() > node.engine.term(), "every start has a term of its own");
    disk.set_capacity(disk.used());
    run_checkpoint(&node);
    disk.set_capacity(u64::MAX);
    commit(&node, put("after", "2")).unwrap();
    let checkpoints = |disk: &SimDisk| {
        disk.list().unwrap().iter().filter(|name| name.starts_with("checkpoint")).count()
    };
    assert_eq!(checkpoints(&disk), 1);
    assert_eq!(everything(&open(&disk.copy()).unwrap()), everything(&node));
}

#[test]
fn members_elections_and_blank_entries_use_no_revision() {
    let disk = SimDisk::new();
    for start in 0..5 {
        let node = open(&disk).unwrap();
        assert_eq!(node.shared.state.read().revision(), 1 + start);
        assert_eq!(commit(&node, put("a", "1")).unwrap(), 2 + start);
        if start % 2 == 0 {
            node.stop();
        }
    }
}

#[test]
fn one_small_put_writes_less_than_a_page() {
    let disk = SimDisk::new();
    let node = open(&disk).unwrap();
    let before = node.engine.written();
    commit(&node, put("/registry/configmaps/default/one", &"v".repeat(500))).unwrap();
    let written = node.engine.written() - before;
    assert!((532..640).contains(&written), "{written} bytes");
}

#[test]
fn requests_queued_together_become_one_entry_with_one_sync() {
    let disk = SimDisk::new();
    let node = open(&disk).unwrap();
    let (syncs, written) = (disk.syncs(), node.engine.written());
    let commands = (0..50).map(|n| (put(&format!("k{n}"), "v"), Durability::Synced)).collect();
    assert!(node.submit_all(commands).iter().all(Result::is_ok));
    assert_eq!(disk.syncs() - syncs, 1);
    // 50 separate records would have 50 heads of 24 bytes.
    assert!(node.engine.written() - written < 50 * 24, "{} bytes", node.engine.written() - written);
}
