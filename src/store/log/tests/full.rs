//! A full device without reserved space: accepted writes wait, new ones are refused, and writing
//! resumes automatically.

use super::*;
use crate::contract::{Durability, StoreError};

/// A store whose device has no space for the next large write.
fn nearly_full() -> (SimDisk, Node) {
    let disk = SimDisk::new();
    disk.reserve_nothing();
    let node = open(&disk).unwrap();
    commit(&node, put("a", "1")).unwrap();
    disk.set_capacity(disk.used() + 500);
    (disk, node)
}

fn keys(node: &Node) -> Vec<String> {
    everything(node).into_keys().collect()
}

fn pass(node: &Node, seconds: u64) {
    node.runtime.block_on(async {
        tokio::time::pause();
        tokio::time::sleep(std::time::Duration::from_secs(seconds)).await;
        tokio::time::resume();
    });
}

#[test]
fn writes_are_refused_reads_go_on_and_space_is_noticed() {
    let (disk, node) = nearly_full();
    let large = "v".repeat(1000);
    let taken = commit(&node, put("b", &large)).unwrap_err();
    assert!(
        matches!(&taken, StoreError::Unavailable(text) if text.contains("takes effect")),
        "{taken}"
    );
    for _ in 0..3 {
        let refused = commit(&node, put("c", "1")).unwrap_err();
        assert!(matches!(refused, StoreError::NoSpace(_)), "{refused}");
    }
    assert_eq!(keys(&node), ["a"], "nothing is shown that is not on disk");
    let [(key, problem)] = &node.tasks.problems().list()[..] else { panic!("not told") };
    assert_eq!(key, "store/space");
    assert!(problem.fix.contains("free space"), "{problem:?}");
    pass(&node, 5);
    assert!(commit(&node, put("c", "1")).is_err(), "still full");
    assert_eq!(keys(&open(&disk.after_kill()).unwrap()), ["a"], "a start now finds a whole log");

    disk.set_capacity(u64::MAX);
    pass(&node, 2);
    assert_eq!(keys(&node), ["a", "b"], "what was taken took effect");
    assert!(node.tasks.problems().list().is_empty());
    commit(&node, put("c", "1")).unwrap();
    assert_eq!(node.stop(), None);
    assert_eq!(keys(&open(&disk.after_power_cut(&mut Rng(1))).unwrap()), ["a", "b", "c"]);
}

#[test]
fn stopping_refuses_writes_that_wait_for_space() {
    let (disk, node) = nearly_full();
    commit(&node, put("b", &"v".repeat(1000))).unwrap_err();
    node.stop();
    disk.set_capacity(u64::MAX);
    let node = open(&disk).unwrap();
    assert_eq!(keys(&node), ["a"]);
    commit(&node, put("c", "1")).unwrap();
}

#[test]
fn lazy_writes_that_find_no_space_are_kept_in_memory_until_there_is_some() {
    let (disk, node) = nearly_full();
    submit(&node, put("a", "first"), Durability::Lazy).unwrap();
    let mut lazily = 0;
    // Acknowledged before they are written: lazy writes do not report the missing space.
    while lazily < 10 && submit(&node, put("l", &"v".repeat(200)), Durability::Lazy).is_ok() {
        lazily += 1;
    }
    assert_eq!(lazily, 10);
    pass(&node, 31);
    let refused = submit(&node, put("l", "more"), Durability::Lazy).unwrap_err();
    assert!(matches!(refused, StoreError::NoSpace(_)), "{refused}");
    disk.set_capacity(u64::MAX);
    pass(&node, 2);
    assert!(!node.engine.has_lazy());
    let node = open(&disk.after_power_cut(&mut Rng(1))).unwrap();
    assert_eq!(everything(&node)["l"].len(), 200);
}

#[test]
fn a_start_that_finds_no_space_says_so_and_how_to_mend_it() {
    let (disk, node) = nearly_full();
    assert_eq!(node.stop(), None);
    disk.set_capacity(disk.used());
    for _ in 0..2 {
        let error = open(&disk).unwrap_err();
        assert!(matches!(error, OpenError::NoSpace { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("cannot write log-") && text.contains("free space"), "{text}");
    }
    disk.set_capacity(u64::MAX);
    assert_eq!(keys(&open(&disk).unwrap()), ["a"]);
}

#[test]
fn a_store_that_comes_into_being_finds_space_or_says_that_there_is_none() {
    let mut refused = 0;
    for capacity in (0..600).step_by(8) {
        let disk = SimDisk::new();
        disk.reserve_nothing();
        disk.set_capacity(capacity);
        match open(&disk) {
            Ok(node) => assert_eq!(keys(&node), [""; 0]),
            Err(error) => {
                assert!(matches!(error, OpenError::NoSpace { .. }), "{capacity}: {error}");
                refused += 1;
            }
        }
        disk.set_capacity(u64::MAX);
        let node = open(&disk).unwrap();
        commit(&node, put("a", "1")).unwrap();
    }
    assert!((20..75).contains(&refused), "{refused}");
}
