//! openraft's test suite of the log and the state machine, and the log as followers use it.

mod facts;
mod members;
mod net;
mod simulation;

use std::collections::BTreeSet;
use std::sync::Arc;

use base::{Shutdown, Tasks};
use openraft::StorageError;
use openraft::storage::{
    RaftLogReader, RaftLogStorage, RaftLogStorageExt, RaftSnapshotBuilder, RaftStateMachine,
};
use openraft::testing::log::{StoreBuilder, Suite};

use super::log_store::LogStore;
use super::start::{RaftParts, assemble};
use super::state_machine::Machine;
use crate::contract::ClusterId;
use crate::log::sim::SimDisk;
use crate::log::{
    Batch, Disk, DiskWork, Identity, LogEntry, LogId, Membership, Payload, Types, Vote, recover,
};
use crate::mvcc::Command;

struct Simulated;

/// The parts over a disk, with tasks that end with the guard.
fn parts(disk: &SimDisk) -> (Guard, RaftParts) {
    let tasks = Tasks::new(Shutdown::new());
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let recovered = recover(&disk, Some(ClusterId(*b"openraft's suite")), Identity::First).unwrap();
    let parts = assemble(recovered, DiskWork::Here, &Arc::new(None), &tasks);
    (Guard(tasks), parts)
}

struct Guard(Tasks);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.shutdown().request();
    }
}

impl StoreBuilder<Types, LogStore, Machine, Guard> for Simulated {
    async fn build(&self) -> Result<(Guard, LogStore, Machine), StorageError<Types>> {
        let (guard, parts) = parts(&SimDisk::new());
        Ok((guard, parts.log, parts.machine))
    }
}

#[tokio::test]
async fn the_library_s_own_suite_passes() {
    Suite::test_all(Simulated).await.unwrap();
}

fn id(term: u64, index: u64) -> LogId {
    LogId::new_term_index(term, index)
}

fn entry(term: u64, index: u64) -> LogEntry {
    let command = Command::Compact(i64::try_from(term * 1000 + index).unwrap());
    let mut encoded = Vec::new();
    Batch::encode(&command, &mut Vec::new(), &mut encoded);
    let payload = Payload::Normal(Batch::new(vec![command], encoded, 0, true));
    LogEntry { log_id: id(term, index), payload }
}

async fn texts(log: &mut LogStore) -> Vec<String> {
    let mut reader = log.get_log_reader().await;
    let entries = reader.try_get_log_entries(..).await.unwrap();
    entries.iter().map(|entry| format!("{:?}", entry.payload)).collect()
}

#[tokio::test]
async fn a_replaced_end_of_the_log_a_vote_and_members_survive_a_start() {
    let disk = SimDisk::new();
    let (_guard, RaftParts { mut log, .. }) = parts(&disk);
    let members = Membership::new_with_defaults(vec![BTreeSet::from([1, 2, 3])], [4]);
    let first = LogEntry { log_id: id(0, 0), payload: Payload::Membership(members) };
    log.blocking_append([first]).await.unwrap();
    log.blocking_append((1..10).map(|index| entry(1, index))).await.unwrap();
    log.truncate_after(Some(id(1, 4))).await.unwrap();
    log.save_vote(&Vote::new_committed(3, 2)).await.unwrap();
    log.save_committed(Some(id(1, 2))).await.unwrap();
    log.blocking_append((5..8).map(|index| entry(3, index))).await.unwrap();
    let before = texts(&mut log).await;
    assert_eq!(before.len(), 8);
    assert!(before[5].contains("3005"), "{before:?}");

    let (_guard, RaftParts { mut log, mut machine, .. }) = parts(&disk.copy());
    assert_eq!(texts(&mut log).await, before, "from disk as from memory");
    let state = log.get_log_state().await.unwrap();
    assert_eq!((state.last_purged_log_id, state.last_log_id), (None, Some(id(3, 7))));
    assert_eq!(log.read_committed().await.unwrap(), Some(id(1, 2)));
    let vote = log.get_log_reader().await.read_vote().await.unwrap();
    assert_eq!(vote, Some(Vote::new_committed(3, 2)));
    let (applied, membership) = machine.applied_state().await.unwrap();
    assert_eq!(applied, Some(id(1, 2)), "only what is known to be committed is applied");
    assert_eq!(membership.voter_ids().collect::<Vec<_>>(), [1, 2, 3]);
}

#[tokio::test]
async fn an_end_that_was_replaced_before_a_checkpoint_does_not_hinder_a_start() {
    let disk = SimDisk::new();
    let (_guard, RaftParts { mut log, mut machine, .. }) = parts(&disk);
    let members = Membership::new_with_defaults(vec![BTreeSet::from([1, 2, 3])], []);
    let first = LogEntry { log_id: id(0, 0), payload: Payload::Membership(members) };
    log.blocking_append([first.clone()]).await.unwrap();
    log.blocking_append((1..10).map(|index| entry(1, index))).await.unwrap();
    log.truncate_after(Some(id(1, 4))).await.unwrap();
    log.blocking_append((5..8).map(|index| entry(3, index))).await.unwrap();
    // The checkpoint includes the start of the truncated entries, but not their end.
    log.save_committed(Some(id(3, 6))).await.unwrap();
    let entries = [first].into_iter().chain((1..5).map(|index| entry(1, index)));
    let entries = entries.chain((5..7).map(|index| entry(3, index)));
    let entries = entries.map(|entry| Ok((entry, None)));
    machine.apply(futures::stream::iter(entries)).await.unwrap();
    machine.get_snapshot_builder().await.build_snapshot().await.unwrap();

    let (_guard, RaftParts { mut log, mut machine, .. }) = parts(&disk.copy());
    assert_eq!(log.get_log_state().await.unwrap().last_log_id, Some(id(3, 7)));
    let left = log.get_log_reader().await.try_get_log_entries(7..).await.unwrap();
    assert_eq!(left.iter().map(|entry| entry.log_id).collect::<Vec<_>>(), [id(3, 7)]);
    assert_eq!(machine.applied_state().await.unwrap().0, Some(id(3, 6)));
}

#[tokio::test]
async fn applied_entries_are_read_from_disk_whatever_their_sizes_and_the_newest_stay_for_others() {
    for members in [vec![1], vec![1, 2, 3]] {
        let (_guard, RaftParts { mut log, mut machine, .. }) = parts(&SimDisk::new());
        let others = members.len() > 1;
        let members = Membership::new_with_defaults(vec![BTreeSet::from_iter(members)], []);
        let mut entries =
            vec![LogEntry { log_id: id(0, 0), payload: Payload::Membership(members) }];
        for (index, bytes) in (1..).zip([7, 300, 65_000, 4000, 200_000, 1].repeat(8)) {
            entries.push(sized(index, bytes));
        }
        log.blocking_append(entries.clone()).await.unwrap();
        log.save_committed(Some(id(1, 48))).await.unwrap();
        let applied = entries.iter().cloned().map(|entry| Ok((entry, None)));
        machine.apply(futures::stream::iter(applied)).await.unwrap();
        let mut reader = log.get_log_reader().await;
        for range in [0..49, 0..1, 1..3, 3..4, 5..6, 6..30, 40..49, 48..49] {
            let found = reader.try_get_log_entries(range.clone()).await.unwrap();
            let [start, end] = [range.start, range.end].map(|at| usize::try_from(at).unwrap());
            assert_eq!(format!("{found:?}"), format!("{:?}", &entries[start..end]), "{range:?}");
        }
        // The last but one has 200,000 bytes, more than the limit.
        assert_eq!(reader.entries.find(&(48..49)).on_disk(), !others);
        assert!(reader.entries.find(&(47..49)).on_disk());
    }
}

/// An entry that writes a value of this size.
fn sized(index: u64, bytes: usize) -> LogEntry {
    use crate::contract::{Op, Txn};
    let value = vec![b'v'; bytes].into();
    let op = Op::Put { key: "key".into(), value, lease: 0, prev_kv: false };
    let command = Command::Txn(Txn { success: vec![op], ..Txn::default() });
    let mut encoded = Vec::new();
    Batch::encode(&command, &mut Vec::new(), &mut encoded);
    let payload = Payload::Normal(Batch::new(vec![command], encoded, 0, true));
    LogEntry { log_id: id(1, index), payload }
}
