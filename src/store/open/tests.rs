//! Real directories: reopening, locks, and the first released format.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{Shutdown, Tasks};

use super::{Config, MemberOptions, open, open_member};
use crate::contract::{Backend, Durability, KeyRange, Op, RangeRequest, Revision, StoreError, Txn};
use crate::{CallError, Lane, Members, OpenError, Peer, Role, Transport};

fn put(key: String, value: Vec<u8>, durability: Durability) -> Txn {
    let op = Op::Put { key: key.into(), value: value.into(), lease: 0, prev_kv: false };
    Txn { success: vec![op], durability, ..Txn::default() }
}

async fn start(dir: &Path) -> (Arc<dyn Backend>, Tasks) {
    let tasks = Tasks::new(Shutdown::new());
    (open(Config::new(dir), &tasks).await.unwrap(), tasks)
}

async fn stop(tasks: &Tasks) {
    tasks.shutdown().request();
    let left = tasks.drain(Duration::from_secs(60)).await;
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(tasks.fault(), None);
}

async fn contents(store: &Arc<dyn Backend>) -> Vec<(String, String)> {
    let all = KeyRange { start: [0][..].into(), end: [0][..].into() };
    let text = |bytes: &bytes::Bytes| String::from_utf8(bytes.to_vec()).unwrap();
    store
        .range(RangeRequest::new(all))
        .await
        .unwrap()
        .kvs
        .iter()
        .map(|kv| (text(&kv.key), text(&kv.value)))
        .collect()
}

#[tokio::test]
async fn a_store_stopped_and_started_again_goes_on_where_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let (store, tasks) = start(dir.path()).await;
    let lease = store.lease_grant(7, 600).await.unwrap();
    for n in 0..100 {
        let durability = if n % 2 == 0 { Durability::Lazy } else { Durability::Synced };
        store.txn(put(format!("k{n}"), vec![b'x'; n], durability)).await.unwrap();
    }
    store.compact(Revision(50)).await.unwrap();
    let before = contents(&store).await;
    stop(&tasks).await;
    let error = store.txn(put("late".into(), vec![], Durability::Synced)).await.unwrap_err();
    assert!(matches!(error, StoreError::Stopped(_)), "{error}");
    let (store, tasks) = start(dir.path()).await;
    assert_eq!(contents(&store).await, before);
    assert_eq!(store.revision(), Revision(101));
    assert!(matches!(store.lease_grant(lease.id, 1).await, Err(StoreError::LeaseExists)));
    let mut watcher = store.watch(KeyRange::prefix("k"), Some(Revision(51))).await.unwrap();
    assert_eq!(watcher.batches.recv().await.unwrap().unwrap().events.len(), 51);
    assert!(matches!(
        store.watch(KeyRange::prefix("k"), Some(Revision(49))).await,
        Err(StoreError::Compacted { .. })
    ));
    stop(&tasks).await;
}

#[tokio::test]
async fn a_directory_in_use_is_refused_with_the_pid_of_its_user() {
    let dir = tempfile::tempdir().unwrap();
    let (_store, tasks) = start(dir.path()).await;
    let error = open(Config::new(dir.path()), &tasks).await.unwrap_err();
    assert!(
        matches!(&error, OpenError::Locked { pid, .. } if *pid == std::process::id().to_string()),
        "{error}"
    );
    stop(&tasks).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_writers_and_checkpoints() {
    let dir = tempfile::tempdir().unwrap();
    let (store, tasks) = start(dir.path()).await;
    let writers = (0..16).map(|writer| {
        let store = Arc::clone(&store);
        async move {
            for n in 0..60 {
                store
                    .txn(put(format!("{writer}/{n}"), vec![b'y'; 3000], Durability::Synced))
                    .await
                    .unwrap();
            }
        }
    });
    futures::future::join_all(writers).await;
    stop(&tasks).await;
    let names = || {
        std::fs::read_dir(dir.path())
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect::<Vec<_>>()
    };
    assert!(names().iter().any(|name| name.starts_with("checkpoint-")), "{:?}", names());
    let (store, tasks) = start(dir.path()).await;
    assert_eq!((store.size().keys, store.revision()), (960, Revision(961)));
    stop(&tasks).await;
}

/// Real maps of real files, with concurrent readers, writers and checkpoints.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_are_read_from_files_as_they_were_written() {
    let dir = tempfile::tempdir().unwrap();
    let (store, tasks) = start(dir.path()).await;
    let value = |key: &str, round: usize| format!("{key}={round} ").repeat(300).into_bytes();
    let works = (0..8).map(|work| {
        let store = Arc::clone(&store);
        async move {
            for round in 0..12 {
                for n in 0..10 {
                    let key = format!("{work}/{n}");
                    let (written, durability) = (value(&key, round), Durability::Synced);
                    store.txn(put(key.clone(), written.clone(), durability)).await.unwrap();
                    let range = KeyRange::key(key.clone());
                    let found = store.range(RangeRequest::new(range)).await.unwrap();
                    assert!(found.kvs[0].value == written, "{key} of round {round}");
                }
                let range = RangeRequest::new(KeyRange::prefix(format!("{work}/")));
                for kv in store.range(range).await.unwrap().kvs {
                    let key = String::from_utf8(kv.key.to_vec()).unwrap();
                    assert!(kv.value == value(&key, round), "{key} of round {round}");
                }
            }
        }
    });
    futures::future::join_all(works).await;
    let before = contents(&store).await;
    let mapped = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let here = |line: &&str| line.contains(dir.path().to_str().unwrap());
        maps.lines().filter(here).count()
    };
    assert!(mapped() > 0);
    stop(&tasks).await;
    drop(store);
    let (store, tasks) = start(dir.path()).await;
    assert_eq!(contents(&store).await, before);
    assert_eq!(before.len(), 80);
    assert!(mapped() > 0);
    stop(&tasks).await;
}

fn first_format() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir("testdata/format-1").unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), dir.path().join(entry.file_name())).unwrap();
    }
    dir
}

/// A transport that reaches no member.
#[derive(Debug)]
struct Nowhere;

#[async_trait::async_trait]
impl Transport for Nowhere {
    async fn call(&self, _: &Peer, _: Lane, _: bytes::Bytes) -> Result<bytes::Bytes, CallError> {
        Err(CallError::NotSent("there is no network".to_owned()))
    }
}

/// Members without addresses are loaded, and the first one announces its address when another one
/// needs it.
#[tokio::test]
async fn a_member_of_the_first_format_gets_an_address_when_others_come() {
    let dir = first_format();
    let open = async || {
        let tasks = Tasks::new(Shutdown::new());
        let member_options =
            MemberOptions { address: "a:1".to_owned(), transport: Arc::new(Nowhere), join: false };
        let opened = open_member(Config::new(dir.path()), member_options, &tasks).await.unwrap();
        (opened.1, tasks)
    };
    let addresses = |members: &Members| {
        let list = members.list();
        let text = |member: &crate::Member| (member.address.clone(), member.role);
        let mut list: Vec<_> = list.iter().map(text).collect();
        list.sort_by(|a, b| a.0.cmp(&b.0));
        list
    };
    let (members, tasks) = open().await;
    assert_eq!(addresses(&members), [(String::new(), Role::Voter)]);
    members.add(5, "b:1").await.unwrap();
    let expected = [("a:1".to_owned(), Role::Voter), ("b:1".to_owned(), Role::Learner)];
    assert_eq!(addresses(&members), expected);
    stop(&tasks).await;
    let (members, tasks) = open().await;
    assert_eq!(addresses(&members), expected);
    members.remove(5).await.unwrap();
    stop(&tasks).await;
}

/// A directory in the first released format, which must always open.
#[tokio::test]
async fn the_first_format_opens() {
    let dir = first_format();
    let (store, tasks) = start(dir.path()).await;
    let expected = [
        ("/registry/a", "second"),
        ("/registry/c", "leased"),
        ("/registry/d", "behind the checkpoint"),
    ];
    assert_eq!(
        contents(&store).await,
        expected.map(|(key, value)| (key.to_owned(), value.to_owned()))
    );
    assert_eq!(store.revision(), Revision(7));
    let kv =
        store.range(RangeRequest::new(KeyRange::key("/registry/a"))).await.unwrap().kvs.remove(0);
    assert_eq!((kv.create_revision.0, kv.mod_revision.0, kv.version), (2, 4, 2));
    let old = RangeRequest {
        revision: Some(Revision(3)),
        ..RangeRequest::new(KeyRange::key("/registry/b"))
    };
    assert_eq!(store.range(old.clone()).await.unwrap().kvs[0].value, "gone");
    let older = RangeRequest { revision: Some(Revision(2)), ..old };
    assert!(matches!(store.range(older).await, Err(StoreError::Compacted { oldest: 3, .. })));
    assert_eq!(store.lease_revoke(42).await.unwrap(), Revision(8));
    assert_eq!(contents(&store).await.len(), 2);
    stop(&tasks).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn starts_fast_with_many_keys() {
    let dir = tempfile::tempdir().unwrap();
    let (store, tasks) = start(dir.path()).await;
    let ops = |from: usize| {
        (from..from + 500).map(|n| Op::Put {
            key: format!("/registry/configmaps/{n:06}").into(),
            value: vec![b'z'; 64].into(),
            lease: 0,
            prev_kv: false,
        })
    };
    for from in (0..20_000).step_by(500) {
        store.txn(Txn { success: ops(from).collect(), ..Txn::default() }).await.unwrap();
    }
    stop(&tasks).await;
    let begun = Instant::now();
    let (store, tasks) = start(dir.path()).await;
    assert_eq!(store.size().keys, 20_000);
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    stop(&tasks).await;
}
