//! The contract of every store, independent of the engine: properties of etcd, one function each,
//! over an empty store.

use std::sync::Arc;

use futures::future::join_all;
use store::{
    Backend, Compare, KeyRange, KeyValue, Op, OpResponse, Ordering, RangeRequest, Revision,
    StoreError, Target, Txn, TxnResponse, WatchBatch, Watcher,
};

fn put(key: &str, value: &str, lease: i64) -> Op {
    Op::Put { key: key.to_owned().into(), value: value.to_owned().into(), lease, prev_kv: true }
}

fn delete(key: &str) -> Op {
    Op::Delete { range: KeyRange::key(key.to_owned()), prev_kv: true }
}

async fn one(store: &Arc<dyn Backend>, op: Op) -> TxnResponse {
    store.txn(Txn { success: vec![op], ..Txn::default() }).await.unwrap()
}

/// Writes as the API server does: if the key has this revision; otherwise returns the key.
async fn guarded(store: &Arc<dyn Backend>, key: &str, revision: i64, op: Op) -> TxnResponse {
    let range = KeyRange::key(key.to_owned());
    let compare = Compare {
        range: range.clone(),
        target: Target::ModRevision(revision),
        ordering: Ordering::Equal,
    };
    let failure = vec![Op::Range(RangeRequest::new(range))];
    let txn = Txn { compare: vec![compare], success: vec![op], failure, ..Txn::default() };
    store.txn(txn).await.unwrap()
}

async fn get(store: &Arc<dyn Backend>, key: &str) -> Option<KeyValue> {
    store.read_barrier().await.unwrap();
    let request = RangeRequest::new(KeyRange::key(key.to_owned()));
    store.range(request).await.unwrap().kvs.pop()
}

async fn next(watcher: &mut Watcher) -> WatchBatch {
    loop {
        let batch = watcher.batches.recv().await.unwrap().unwrap();
        if !batch.events.is_empty() {
            return batch;
        }
    }
}

fn numbers(kv: &KeyValue) -> (i64, i64, i64, i64) {
    (kv.create_revision.0, kv.mod_revision.0, kv.version, kv.lease)
}

/// The first write has revision 2, each further one the next; a recreated key starts at version 1.
pub(super) async fn revisions(store: Arc<dyn Backend>) {
    assert_eq!(store.revision(), Revision(1));
    assert_eq!(one(&store, put("a", "1", 0)).await.revision, Revision(2));
    assert_eq!(one(&store, put("b", "1", 0)).await.revision, Revision(3));
    let changed = one(&store, put("a", "2", 0)).await;
    assert!(matches!(&changed.responses[..], [OpResponse::Put(Some(prev))] if prev.value == "1"));
    assert_eq!(numbers(&get(&store, "a").await.unwrap()), (2, 4, 2, 0));
    let gone = one(&store, delete("a")).await;
    assert!(matches!(&gone.responses[..], [OpResponse::Delete(1, prev)] if prev[0].value == "2"));
    // A transaction without changes takes no revision.
    let nothing = one(&store, delete("a")).await;
    assert_eq!((gone.revision, nothing.revision), (Revision(5), Revision(5)));
    assert_eq!(one(&store, put("a", "3", 0)).await.revision, Revision(6));
    assert_eq!(numbers(&get(&store, "a").await.unwrap()), (6, 6, 1, 0));
}

/// Of writers that saw the same revision one wins; the others receive the current value.
pub(super) async fn guards(store: Arc<dyn Backend>) {
    assert!(guarded(&store, "k", 0, put("k", "first", 0)).await.succeeded);
    let second = guarded(&store, "k", 0, put("k", "second", 0)).await;
    let OpResponse::Range(found) = &second.responses[0] else { panic!("{second:?}") };
    assert!(!second.succeeded && found.kvs[0].value == "first" && second.revision == Revision(2));
    let store = &store;
    let write = |n: usize| async move {
        guarded(store, "k", 2, put("k", &n.to_string(), 0)).await.succeeded
    };
    let won = join_all((0..20).map(write)).await.into_iter().filter(|won| *won).count();
    assert_eq!((won, store.revision()), (1, Revision(3)));
    assert!(guarded(store, "k", 3, delete("k")).await.succeeded);
    assert!(!guarded(store, "k", 3, delete("k")).await.succeeded);
    assert!(get(store, "k").await.is_none());
}

/// Concurrent writes have separate revisions without gaps, and a watch delivers all of them in
/// order.
pub(super) async fn crowds(store: Arc<dyn Backend>) {
    let mut watcher = store.watch(KeyRange::prefix("n/"), Some(Revision(2))).await.unwrap();
    let store = &store;
    let write = |n: usize| async move { one(store, put(&format!("n/{n}"), "x", 0)).await };
    let written = join_all((0..300).map(write)).await;
    let mut given: Vec<i64> = written.iter().map(|answer| answer.revision.0).collect();
    given.sort_unstable();
    assert_eq!(given, (2..302).collect::<Vec<i64>>());
    let mut seen = Vec::new();
    while seen.len() < 300 {
        seen.extend(next(&mut watcher).await.events.iter().map(|e| e.kv.mod_revision.0));
    }
    assert_eq!(seen, (2..302).collect::<Vec<i64>>());
}

/// History is read and watched from any revision on, with the previous values.
pub(super) async fn history(store: Arc<dyn Backend>) {
    for op in [put("a", "1", 0), put("a", "2", 0), delete("a"), put("a", "3", 0)] {
        one(&store, op).await;
    }
    let at = |revision| {
        let range = KeyRange::key("a");
        store.range(RangeRequest { revision: Some(Revision(revision)), ..RangeRequest::new(range) })
    };
    assert_eq!(at(3).await.unwrap().kvs[0].value, "2");
    assert_eq!(at(4).await.unwrap().count, 0);
    assert!(matches!(at(6).await, Err(StoreError::Future { requested: 6, newest: 5 })));
    let mut watcher = store.watch(KeyRange::prefix("a"), Some(Revision(3))).await.unwrap();
    let mut events = Vec::new();
    while events.len() < 3 {
        events.extend(next(&mut watcher).await.events);
    }
    let shown: Vec<_> = events
        .iter()
        .map(|e| (e.kv.mod_revision.0, e.deleted, e.prev.as_ref().map(|kv| kv.value.clone())))
        .collect();
    assert_eq!(
        shown,
        [(3, false, Some("1".into())), (4, true, Some("2".into())), (5, false, None)]
    );
    for compacted in [3, 4] {
        store.compact(Revision(compacted)).await.unwrap();
        assert_eq!(store.compacted(), Revision(compacted));
    }
    let again = store.compact(Revision(4)).await;
    assert!(matches!(again, Err(StoreError::Compacted { requested: 4, oldest: 4 })));
    let future = store.compact(Revision(6)).await;
    assert!(matches!(future, Err(StoreError::Future { requested: 6, newest: 5 })));
    assert!(matches!(at(3).await, Err(StoreError::Compacted { requested: 3, oldest: 4 })));
    assert_eq!(at(5).await.unwrap().kvs[0].value, "3");
    let refused = store.watch(KeyRange::key("a"), Some(Revision(3))).await;
    assert!(matches!(refused, Err(StoreError::Compacted { .. })));
}

/// Keys are deleted with their lease, unless they were put again without it.
pub(super) async fn leases(store: Arc<dyn Backend>) {
    assert_eq!(store.lease_grant(7, 600).await.unwrap().granted_ttl, 600);
    assert!(matches!(store.lease_grant(7, 600).await, Err(StoreError::LeaseExists)));
    let none = Txn { success: vec![put("x", "", 9)], ..Txn::default() };
    assert!(matches!(store.txn(none).await, Err(StoreError::LeaseNotFound)));
    for (key, lease) in [("a", 7), ("b", 7), ("c", 7), ("b", 0)] {
        one(&store, put(key, "v", lease)).await;
    }
    let (lease, keys) = store.lease(7).await.unwrap();
    assert_eq!((lease.granted_ttl, keys), (600, vec!["a".into(), "c".into()]));
    assert_eq!(store.lease_keep_alive(7).await.unwrap().remaining_ttl, 600);
    store.lease_revoke(7).await.unwrap();
    assert!(matches!(store.lease_revoke(7).await, Err(StoreError::LeaseNotFound)));
    let left = store.range(RangeRequest::new(KeyRange::prefix(""))).await.unwrap();
    let left: Vec<_> = left.kvs.iter().map(|kv| kv.key.clone()).collect();
    assert_eq!(left, ["b"]);
    assert_eq!(store.leases().await.unwrap(), Vec::<i64>::new());
}

/// An update keeps unspecified fields and requires the key to exist.
pub(super) async fn updates(store: Arc<dyn Backend>) {
    let update = |key: &'static str| Op::Update {
        key: key.into(),
        value: None,
        lease: Some(0),
        prev_kv: false,
    };
    store.lease_grant(5, 600).await.unwrap();
    one(&store, put("a", "kept", 5)).await;
    one(&store, update("a")).await;
    let kv = get(&store, "a").await.unwrap();
    assert_eq!((kv.value.as_ref(), numbers(&kv)), (&b"kept"[..], (2, 3, 2, 0)));
    let absent = Txn { success: vec![update("b")], ..Txn::default() };
    assert!(matches!(store.txn(absent).await, Err(StoreError::KeyNotFound)));
}
