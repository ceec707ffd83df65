//! Properties of an external etcd only, one function each, over an empty etcd.

use std::sync::Arc;
use std::time::Duration;

use base::{Shutdown, Tasks};
use store::{
    Alarm, Backend, Compare, DatastoreError, Endpoint, Holder, KeyRange, Op, OpResponse, Ordering,
    RangeRequest, Revision, StoreError, Target, Txn, copy_etcd, open_external,
};

fn put(key: &str, value: impl Into<bytes::Bytes>) -> Op {
    Op::Put { key: key.to_owned().into(), value: value.into(), lease: 0, prev_kv: true }
}

fn one(op: Op) -> Txn {
    Txn { success: vec![op], ..Txn::default() }
}

async fn open(
    endpoint: &Endpoint,
    holder: Option<(u64, &str)>,
) -> Result<(Arc<dyn Backend>, Tasks), DatastoreError> {
    let tasks = Tasks::new(Shutdown::new());
    let holder = holder.map(|(id, name)| Holder { id, name: name.to_owned() });
    Ok((open_external(endpoint.clone(), holder, &tasks).await?, tasks))
}

async fn end(tasks: Tasks) {
    tasks.shutdown().request();
    assert!(tasks.drain(Duration::from_secs(10)).await.is_empty());
    assert_eq!(tasks.fault(), None);
}

/// One server writes at a time, and refusals name it. It takes over from a former process of its
/// own, which then cannot write.
pub(super) async fn held(endpoint: &Endpoint) {
    let (first, former) = open(endpoint, Some((1, "edge-1"))).await.unwrap();
    let refused = open(endpoint, Some((2, "edge-2"))).await.unwrap_err().to_string();
    let holder = format!("is in use by kube-lite on edge-1, process {}", std::process::id());
    assert!(refused.contains(&holder), "{refused}");

    // Requests with the condition on the lock key are answered as without it.
    let written = first.txn(one(put("a", "1"))).await.unwrap();
    let revision = written.revision.0;
    assert!(written.succeeded && matches!(&written.responses[..], [OpResponse::Put(None)]));
    let changed = first.txn(one(put("a", "2"))).await.unwrap();
    assert!(matches!(&changed.responses[..], [OpResponse::Put(Some(prev))] if prev.value == "1"));
    assert_eq!(changed.revision.0, revision + 1);
    let guarded = Txn {
        compare: vec![Compare {
            range: KeyRange::key("a"),
            target: Target::ModRevision(revision),
            ordering: Ordering::Equal,
        }],
        success: vec![put("a", "3")],
        failure: vec![Op::Range(RangeRequest::new(KeyRange::key("a")))],
        ..Txn::default()
    };
    let lost = first.txn(guarded).await.unwrap();
    assert_eq!((lost.succeeded, lost.revision.0), (false, revision + 1));
    assert!(matches!(&lost.responses[..], [OpResponse::Range(found)] if found.kvs[0].value == "2"));
    let absent = Op::Update { key: "b".into(), value: None, lease: Some(0), prev_kv: false };
    assert!(matches!(first.txn(one(absent)).await, Err(StoreError::KeyNotFound)));
    let both = Txn { success: vec![put("c", "1"), put("d", "1")], ..Txn::default() };
    assert_eq!(first.txn(both).await.unwrap().revision.0, revision + 2);
    let gone = Op::Delete { range: KeyRange::prefix("c"), prev_kv: true };
    let gone = first.txn(one(gone)).await.unwrap();
    assert!(matches!(&gone.responses[..], [OpResponse::Delete(1, prev)] if prev[0].value == "1"));

    let (second, tasks) = open(endpoint, Some((1, "edge-1"))).await.unwrap();
    let refused = first.txn(one(put("a", "4"))).await.unwrap_err();
    assert!(matches!(refused, StoreError::Unavailable(_)), "{refused}");
    second.txn(one(put("a", "5"))).await.unwrap();
    former.shutdown().request();
    former.drain(Duration::from_secs(10)).await;
    second.txn(one(put("a", "6"))).await.unwrap();
    end(tasks).await;
    // The lock was released.
    let (third, tasks) = open(endpoint, Some((2, "edge-2"))).await.unwrap();
    let found = third.range(RangeRequest::new(KeyRange::key("a"))).await.unwrap();
    assert_eq!(found.kvs[0].value, "6");
    end(tasks).await;
}

/// Lists longer than a page have one revision, and changes larger than etcd's message limit arrive
/// completely.
pub(super) async fn pages(endpoint: &Endpoint) {
    let (store, tasks) = open(endpoint, None).await.unwrap();
    for hundred in 0..41 {
        let name = |n: i32| format!("p/{:05}", hundred * 100 + n);
        let success = (0..100).map(|n| put(&name(n), "x")).collect();
        store.txn(Txn { success, ..Txn::default() }).await.unwrap();
    }
    let all = store.range(RangeRequest::new(KeyRange::prefix("p/"))).await.unwrap();
    assert_eq!(
        (all.kvs.len(), all.count, all.more, all.revision),
        (4100, 4100, false, Revision(42))
    );
    assert!(all.kvs.is_sorted_by(|a, b| a.key < b.key));
    let some = RangeRequest { limit: 3000, ..RangeRequest::new(KeyRange::prefix("p/")) };
    let some = store.range(some).await.unwrap();
    assert_eq!((some.kvs.len(), some.count, some.more), (3000, 4100, true));
    assert_eq!(some.kvs.last().unwrap().key, "p/02999");
    let exact = RangeRequest { limit: 4100, ..RangeRequest::new(KeyRange::prefix("p/")) };
    assert!(!store.range(exact).await.unwrap().more);

    for n in 0..6_u8 {
        store.txn(one(put("large", vec![n; 1 << 20]))).await.unwrap();
    }
    let mut watcher = store.watch(KeyRange::key("large"), Some(Revision(43))).await.unwrap();
    let mut seen = Vec::new();
    while seen.len() < 6 {
        let batch = watcher.batches.recv().await.unwrap().unwrap();
        seen.extend(
            batch.events.iter().map(|e| (e.kv.mod_revision.0, e.kv.value.len(), e.kv.value[0])),
        );
    }
    assert_eq!(seen, (0..6).map(|n| (43 + i64::from(n), 1 << 20, n)).collect::<Vec<_>>());
    // A watch that starts in the past continues with new events.
    store.txn(one(put("large", "small"))).await.unwrap();
    let mut last = Vec::new();
    while last.is_empty() {
        last = watcher.batches.recv().await.unwrap().unwrap().events;
    }
    assert_eq!(
        (last[0].kv.mod_revision.0, last[0].prev.as_ref().unwrap().value.len()),
        (49, 1 << 20)
    );
    end(tasks).await;
}

/// Snapshots, checksums, alarms and defragmentation are etcd's.
pub(super) async fn whole(endpoint: &Endpoint) {
    let (store, tasks) = open(endpoint, None).await.unwrap();
    store.txn(one(put("a", "1"))).await.unwrap();
    store.txn(one(put("a", "2"))).await.unwrap();
    let (mut copy, mut saved) = (tempfile(), tempfile());
    let copied = copy_etcd(endpoint, copy.try_clone().unwrap()).await.unwrap();
    assert_eq!((copied.revision, copied.changes), (3, 2));
    let kept = store.save(saved.try_clone().unwrap()).await.unwrap();
    assert_eq!((kept.revision, kept.changes), (3, 2));
    for file in [&mut copy, &mut saved] {
        assert!(store::inspect(file).unwrap().has_checksum);
    }
    let hash = store.hash(Revision(0)).await.unwrap();
    assert_eq!(
        (hash.revision, hash.compacted, hash.newest),
        (Revision(3), Revision(0), Revision(3))
    );
    assert_eq!(store.hash(Revision(3)).await.unwrap().keys, hash.keys);
    store.defragment().await.unwrap();
    assert!(store.size().disk > 0 && store.term() > 0);
    assert_eq!(store.alarms(), []);
    assert!(store.set_alarm(7, Alarm::NOSPACE, true).await.unwrap());
    assert_eq!(store.alarms(), [(7, Alarm::NOSPACE)]);
    let refused = store.txn(one(put("a", "3"))).await.unwrap_err();
    assert!(matches!(refused, StoreError::NoSpace(_)), "{refused}");
    assert!(store.set_alarm(7, Alarm::NOSPACE, false).await.unwrap());
    assert_eq!(store.alarms(), []);
    store.txn(one(put("a", "3"))).await.unwrap();
    end(tasks).await;
}

fn tempfile() -> std::fs::File {
    tempfile::tempfile().unwrap()
}
