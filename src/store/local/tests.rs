//! The contract over the volatile engine: watches and leases.

use std::time::Duration;

use crate::contract::{KeyRange, Op, Revision, StoreError, Txn, WatchBatch, Watcher};
use crate::open_memory;

fn put(key: &str, value: &str) -> Txn {
    let op = Op::Put {
        key: key.to_owned().into(),
        value: value.to_owned().into(),
        lease: 0,
        prev_kv: false,
    };
    Txn { success: vec![op], ..Txn::default() }
}

async fn next(watcher: &mut Watcher) -> WatchBatch {
    watcher.batches.recv().await.unwrap().unwrap()
}

#[tokio::test]
async fn history_then_live_without_loss_or_double() {
    let store = open_memory();
    for n in 0..3000 {
        store.txn(put(&format!("a/{n}"), "x")).await.unwrap();
    }
    let mut watcher = store.watch(KeyRange::prefix("a/"), Some(Revision(2))).await.unwrap();
    let writer = std::sync::Arc::clone(&store);
    let write = async move {
        for n in 3000..4000 {
            writer.txn(put(&format!("a/{n}"), "x")).await.unwrap();
            tokio::task::yield_now().await;
        }
    };
    let read = async move {
        let mut revisions = Vec::new();
        while revisions.len() < 4000 {
            let batch = next(&mut watcher).await;
            revisions.extend(batch.events.iter().map(|e| e.kv.mod_revision.0));
            assert!(revisions.last().is_none_or(|last| *last <= batch.revision.0));
        }
        revisions
    };
    let ((), revisions) = tokio::join!(write, read);
    assert_eq!(revisions, (2..4002).collect::<Vec<i64>>());
}

#[tokio::test]
async fn a_progress_request_notifies_only_watchers_of_its_range() {
    let store = open_memory();
    let range = KeyRange::prefix("b/");
    let mut watcher = store.watch(range.clone(), None).await.unwrap();
    let mut other = store.watch(KeyRange::prefix("c/"), None).await.unwrap();
    assert_eq!(next(&mut other).await.revision, Revision(1));
    assert_eq!(next(&mut watcher).await.revision, Revision(1));
    store.txn(put("a", "1")).await.unwrap();
    assert_eq!(store.read_index().await.unwrap(), Revision(2));
    store.notify_progress(&range);
    let batch = next(&mut watcher).await;
    assert!(batch.events.is_empty() && batch.revision == Revision(2));
    store.notify_progress(&range);
    store.txn(put("b/1", "1")).await.unwrap();
    assert_eq!(next(&mut watcher).await.events.len(), 1);
    assert!(other.batches.try_recv().is_err());
    assert_eq!(store.read_barrier().await.unwrap(), Revision(3));
    assert_eq!(next(&mut other).await.revision, Revision(3));
}

#[tokio::test]
async fn a_watch_of_the_future_is_silent_until_then() {
    let store = open_memory();
    let mut watcher = store.watch(KeyRange::prefix(""), Some(Revision(4))).await.unwrap();
    for n in 0..3 {
        store.txn(put("a", &n.to_string())).await.unwrap();
        if n == 0 {
            store.notify_progress(&KeyRange::prefix(""));
        }
    }
    let batch = next(&mut watcher).await;
    assert_eq!((batch.events[0].kv.mod_revision, batch.revision), (Revision(4), Revision(4)));
    assert_eq!(batch.events[0].prev.as_ref().unwrap().value, "1");
}

#[tokio::test]
async fn a_watcher_that_never_reads_is_ended_with_overrun() {
    let store = open_memory();
    let mut watcher = store.watch(KeyRange::prefix(""), None).await.unwrap();
    for n in 0..2000 {
        store.txn(put("a", &n.to_string())).await.unwrap();
    }
    let mut expected = 2;
    loop {
        match watcher.batches.recv().await {
            Some(Ok(batch)) => {
                for event in batch.events {
                    assert_eq!(
                        event.kv.mod_revision.0, expected,
                        "nothing is skipped before the end"
                    );
                    expected += 1;
                }
            }
            Some(Err(error)) => {
                assert!(matches!(error, StoreError::Overrun));
                break;
            }
            None => panic!("closed without a reason"),
        }
    }
    assert!(watcher.batches.recv().await.is_none());
}

#[tokio::test]
async fn a_watch_from_a_compacted_revision_is_refused() {
    let store = open_memory();
    for n in 0..5 {
        store.txn(put("a", &n.to_string())).await.unwrap();
    }
    store.compact(Revision(4)).await.unwrap();
    let error = store.watch(KeyRange::key("a"), Some(Revision(3))).await.unwrap_err();
    assert!(matches!(error, StoreError::Compacted { requested: 3, oldest: 4 }), "{error}");
    assert!(store.watch(KeyRange::key("a"), Some(Revision(4))).await.is_ok());
}

#[tokio::test]
async fn a_lease_that_runs_out_deletes_its_keys() {
    let store = open_memory();
    assert!(matches!(store.lease_grant(1, 9_000_000_001).await, Err(StoreError::LeaseTtlTooLarge)));
    let lease = store.lease_grant(0, 1).await.unwrap();
    assert!(lease.id > 0 && lease.granted_ttl == 2, "2 s are etcd's smallest");
    let op = Op::Put { key: "k".into(), value: "v".into(), lease: lease.id, prev_kv: false };
    store.txn(Txn { success: vec![op], ..Txn::default() }).await.unwrap();
    let begun = std::time::Instant::now();
    assert_eq!(store.lease_keep_alive(lease.id).await.unwrap().remaining_ttl, 2);
    let mut watcher = store.watch(KeyRange::key("k"), Some(Revision(3))).await.unwrap();
    let first = next(&mut watcher).await;
    let batch = if first.events.is_empty() { next(&mut watcher).await } else { first };
    assert!(batch.events[0].deleted && begun.elapsed() > Duration::from_millis(1900));
    assert!(matches!(store.lease_keep_alive(lease.id).await, Err(StoreError::LeaseNotFound)));
}

#[tokio::test]
async fn too_large_requests_are_refused() {
    let store = open_memory();
    let error = store.txn(put("k", &"x".repeat(1_572_864))).await.unwrap_err();
    assert!(matches!(error, StoreError::TooLarge { size: 1_572_865, limit: 1_572_864 }), "{error}");
}
