//! Lazy writes: where they wait, until when, and what remains after a crash.

use super::*;
use crate::contract::{Durability, KeyRange, StoreError};
use crate::log::writer::{BATCH_BYTES, LAZY_BYTES};

#[test]
fn lazy_writes_cost_no_sync_and_their_lost_revisions_are_never_used_again() {
    let disk = SimDisk::new();
    let node = open(&disk).unwrap();
    commit(&node, put("a", "1")).unwrap();
    let lazily = |value: &str| submit(&node, put("lazy", value), Durability::Lazy).unwrap();
    lazily("first");
    let syncs = disk.syncs();
    let mut newest = 0;
    for n in 0..100 {
        newest = lazily(&n.to_string());
    }
    assert_eq!(disk.syncs(), syncs);
    assert!(node.engine.has_lazy(), "the deadline runs");
    // Unsynced data is lost.
    let mut rng = (0..).map(Rng).find(|rng| {
        open(&disk.after_power_cut(&mut rng.clone()))
            .is_ok_and(|node| everything(&node)["lazy"] == "first")
    });
    let after = disk.after_power_cut(rng.as_mut().unwrap());
    let node = open(&after).unwrap();
    assert_eq!(everything(&node)["lazy"], "first");
    assert!(commit(&node, put("a", "2")).unwrap() > newest);
    let state = node.shared.state.read();
    assert!(matches!(
        state.events(newest, &KeyRange::key("a"), 10),
        Err(StoreError::Compacted { .. })
    ));
}

#[test]
fn lazy_writes_wait_in_memory_for_the_next_synced_one_and_go_out_with_it() {
    let disk = SimDisk::new();
    let node = open(&disk).unwrap();
    let lazily = |key: &str, value: &str| submit(&node, put(key, value), Durability::Lazy).unwrap();
    lazily("a", "first");
    let before = (disk.operations(), disk.syncs());
    for n in 0..50 {
        lazily("a", &n.to_string());
    }
    assert_eq!((disk.operations(), disk.syncs()), before, "nothing was written");
    assert_eq!(everything(&node)["a"], "49", "and they are read");
    // After a kill the earlier content remains, and their revisions are not used again.
    let newest = node.shared.state.read().revision();
    let killed = open(&disk.after_kill()).unwrap();
    assert_eq!(everything(&killed)["a"], "first");
    assert!(commit(&killed, put("a", "again")).unwrap() > newest);
    commit(&node, put("b", "1")).unwrap();
    let after = (disk.operations() - before.0, disk.syncs() - before.1);
    assert_eq!(after, (2, 1), "one write and one sync for all of them");
    let node = open(&disk.after_power_cut(&mut Rng(1))).unwrap();
    assert_eq!(
        everything(&node),
        [("a", "49"), ("b", "1")].map(|(k, v)| (k.into(), v.into())).into()
    );
}

#[test]
fn requests_waiting_in_memory_are_bounded() {
    let disk = SimDisk::new();
    let node = open(&disk).unwrap();
    submit(&node, put("a", "first"), Durability::Lazy).unwrap();
    let (syncs, written) = (disk.syncs(), node.engine.written());
    let value = "v".repeat(1000);
    let mut lazily = 0;
    while node.engine.written() == written {
        submit(&node, put(&format!("k{lazily}"), &value), Durability::Lazy).unwrap();
        lazily += 1;
    }
    // The bytes staged for one write are bounded, too, with a lower limit in tests.
    let bound = LAZY_BYTES.min(BATCH_BYTES) / 1000;
    assert!((bound..bound + 3).contains(&lazily), "{lazily} of 1 KB");
    assert_eq!(disk.syncs(), syncs, "written without a sync");
    assert!(node.engine.has_lazy(), "the deadline runs");
    // They survive the process, but not the machine.
    let killed = open(&disk.after_kill()).unwrap();
    assert!(everything(&killed).len() >= lazily);
}

#[test]
fn lazy_writes_are_on_disk_after_half_a_minute() {
    let disk = SimDisk::new();
    let node = open(&disk).unwrap();
    submit(&node, put("a", "first"), Durability::Lazy).unwrap();
    submit(&node, put("a", "second"), Durability::Lazy).unwrap();
    let durable = || everything(&open(&disk.after_power_cut(&mut Rng(1))).unwrap())["a"].clone();
    let pass = |seconds| {
        node.runtime.block_on(async {
            tokio::time::pause();
            tokio::time::sleep(std::time::Duration::from_secs(seconds)).await;
            tokio::time::resume();
        });
    };
    pass(29);
    assert_eq!(durable(), "first");
    pass(2);
    assert_eq!(durable(), "second");
    assert!(!node.engine.has_lazy());
}

#[test]
fn after_a_clean_stop_revisions_go_on_without_a_gap() {
    let disk = SimDisk::new();
    let node = open(&disk).unwrap();
    submit(&node, put("a", "1"), Durability::Lazy).unwrap();
    assert_eq!(node.stop(), None);
    let node = open(&disk.after_power_cut(&mut Rng(3))).unwrap();
    assert_eq!(everything(&node)["a"], "1");
    assert_eq!(commit(&node, put("a", "2")).unwrap(), 3);
}

#[test]
fn three_renewals_of_a_node_cost_one_page() {
    const PAGE: u64 = 4096;
    let disk = SimDisk::new();
    let node = open(&disk).unwrap();
    let end = || FILE_HEADER as u64 + node.engine.written();
    let renewal = "r".repeat(753);
    let mut ends = Vec::new();
    for cycle in 0..5 {
        for number in 0..3 {
            let key = format!("{cycle}/{number}");
            submit(&node, put(&key, &renewal), Durability::Lazy).unwrap();
        }
        node.runtime.block_on(async {
            tokio::time::pause();
            tokio::time::sleep(std::time::Duration::from_secs(31)).await;
            tokio::time::resume();
        });
        assert!(!node.engine.has_lazy());
        ends.push(end());
    }
    // The first one is written at once, with the ceiling of the revisions in use.
    assert_eq!(ends[0] % PAGE, 0, "{ends:?}");
    assert!(ends.windows(2).all(|pair| pair[1] == pair[0] + PAGE), "{ends:?}");
    commit(&node, put("after", "1")).unwrap();
    let node = open(&disk.after_power_cut(&mut Rng(1))).unwrap();
    let all = everything(&node);
    assert_eq!(all.len(), 16);
    assert!(all.iter().all(|(key, value)| key == "after" || *value == renewal));
}
