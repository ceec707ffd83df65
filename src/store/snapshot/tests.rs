//! Snapshots round-trip, and a restored snapshot starts a new cluster.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use base::{Shutdown, Tasks};
use bytes::Bytes;
use parking_lot::RwLock;

use super::save::STORAGE_VERSION;
use super::{Header, SnapshotError, inspect, inspect_bytes, load, save};
use crate::contract::{Backend, Durability, KeyRange, Op, RangeRequest, Revision, StoreError, Txn};
use crate::mvcc::{Command, State, Version};
use crate::open::Config;
use crate::{mvcc, open, reset};

fn put(key: &str, value: &str, lease: i64) -> Op {
    Op::Put { key: key.to_owned().into(), value: value.to_owned().into(), lease, prev_kv: false }
}

fn txn(success: Vec<Op>) -> Txn {
    Txn { success, durability: Durability::Synced, ..Txn::default() }
}

fn apply(state: &mut State, command: Command) {
    state.apply(&command, &mut Vec::new()).unwrap();
}

/// Two keys in revision 2, a lease, changes, deletions, and 60 further keys.
fn sample() -> State {
    let mut state = State::default();
    apply(&mut state, Command::LeaseGrant { id: 7, ttl: 60 });
    apply(&mut state, Command::LeaseGrant { id: -7, ttl: 600 });
    apply(&mut state, Command::Txn(txn(vec![put("b", "1", 0), put("a", "1", 7)])));
    apply(&mut state, Command::Txn(txn(vec![put("b", "2", 0)])));
    let delete = Op::Delete { range: KeyRange::key("a"), prev_kv: false };
    apply(&mut state, Command::Txn(txn(vec![delete])));
    apply(&mut state, Command::Txn(txn(vec![put("a", "3", 0)])));
    for n in 0..60 {
        apply(
            &mut state,
            Command::Txn(txn(vec![put(&format!("k{}", n % 50), &"x".repeat(n), -7)])),
        );
    }
    state
}

fn saved(state: State) -> (File, State) {
    let file = tempfile::tempfile().unwrap();
    let header = Header {
        revision: state.revision(),
        compacted: state.compacted(),
        leases: state.leases().collect(),
        index: 9,
        term: 3,
    };
    let state = RwLock::new(state);
    let saved = save(&file, &state, &header).unwrap();
    assert_eq!((saved.revision, saved.size), (header.revision, file.metadata().unwrap().len()));
    (file, state.into_inner())
}

fn bytes(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

#[test]
fn a_saved_state_is_read_again() {
    let (file, state) = saved(sample());
    let info = inspect(&file).unwrap();
    assert_eq!((info.revision, info.compacted, info.changes, info.leases), (65, 0, 65, 2));
    assert_eq!(info.storage_version.as_deref(), Some(STORAGE_VERSION));
    assert!(info.has_checksum && !info.auth && info.size % 512 == 32);
    let loaded = load(&file).unwrap();
    assert_eq!(loaded.leases, [(-7, 600), (7, 60)]);
    let expected: BTreeMap<Bytes, Bytes> =
        state.existing_keys().map(|(key, value)| (key, value.clone())).collect();
    let found: BTreeMap<Bytes, Bytes> =
        loaded.keys.iter().map(|(key, version)| (key.clone(), version.value.clone())).collect();
    assert_eq!((found.len(), found), (52, expected));
    let a = &loaded.keys[&Bytes::from("a")];
    assert_eq!((a.created, a.modified, a.version, a.lease), (5, 5, 1, 0));
    let k = &loaded.keys[&Bytes::from("k3")];
    assert_eq!((k.created, k.modified, k.version, k.lease), (9, 59, 2, -7));
}

#[test]
fn changes_of_a_revision_stand_in_the_order_in_which_they_were_made() {
    let places = |state| {
        let loaded = load(&saved(state).0).unwrap();
        loaded.keys.into_iter().map(|(key, version)| (key, version.sub)).collect::<Vec<_>>()
    };
    let mut state = State::default();
    apply(&mut state, Command::Txn(txn(vec![put("b", "1", 0), put("a", "1", 0)])));
    assert_eq!(places(state), [("a".into(), 1), ("b".into(), 0)]);
    // Checkpoints of older stores contain no sub-revisions; each change still gets a distinct one.
    let version = Version {
        value: "1".into(),
        created: 2,
        modified: 2,
        version: 1,
        lease: 0,
        sub: 0,
        sum: 0,
    };
    let keys = ["a", "b"].map(|key| (Bytes::from(key), vec![version.clone()]));
    let info = mvcc::ClusterData::default();
    let state = State::import(2, 0, Vec::new(), info, std::iter::empty(), keys.into_iter());
    assert_eq!(places(state), [("a".into(), 0), ("b".into(), 1)]);
}

#[test]
fn after_a_compaction_what_etcd_keeps_is_saved() {
    // b was changed at 3; a was deleted at 4.
    for (revision, changes) in [(2, 65), (3, 64), (4, 63), (5, 62), (65, 52)] {
        let mut state = sample();
        apply(&mut state, Command::Compact(revision));
        let info = inspect(&saved(state).0).unwrap();
        assert_eq!((info.revision, info.compacted, info.changes), (65, revision, changes));
    }
}

#[test]
fn a_revision_without_a_change_that_is_kept_is_saved_too() {
    for compacted in [None, Some(70)] {
        let mut state = sample();
        apply(&mut state, Command::Raise { revision: 70 });
        compacted.into_iter().for_each(|at| apply(&mut state, Command::Compact(at)));
        let (file, _) = saved(state);
        assert_eq!(inspect(&file).unwrap().revision, 70);
        assert!(!load(&file).unwrap().keys.contains_key(&Bytes::new()));
    }
    assert_eq!(inspect(&saved(State::default()).0).unwrap().revision, 1);
}

#[test]
fn no_changed_byte_and_no_cut_goes_unnoticed() {
    let good = bytes(&saved(sample()).0);
    assert!(inspect_bytes(&good).is_ok());
    for at in (0..good.len()).step_by(13) {
        let mut flipped = good.clone();
        flipped[at] ^= 4;
        assert!(inspect_bytes(&flipped).is_err(), "byte {at}");
    }
    for length in (0..good.len()).step_by(101) {
        assert!(inspect_bytes(&good[..length]).is_err(), "{length} bytes");
    }
    // Without the checksum it is the file of a data directory; its pages are still checked.
    let pages = &good[..good.len() - 32];
    assert!(!inspect_bytes(pages).unwrap().has_checksum);
    let mut changed = good.clone();
    changed[3 * 4096 + 2000] ^= 1;
    assert!(matches!(inspect_bytes(&changed), Err(SnapshotError::Checksum)));
    let text = inspect_bytes(b"PK\x03\x04").unwrap_err().to_string();
    assert!(text.starts_with("is not a snapshot of kube-lite, k3s or etcd"), "{text}");
}

async fn with_store<T>(dir: &std::path::Path, work: impl AsyncFnOnce(&dyn Backend) -> T) -> T {
    let tasks = Tasks::new(Shutdown::new());
    let store = open(Config::new(dir), &tasks).await.unwrap();
    let answer = work(store.as_ref()).await;
    drop(store);
    tasks.shutdown().request();
    assert!(tasks.drain(std::time::Duration::from_secs(5)).await.is_empty());
    answer
}

async fn value(
    store: &dyn Backend,
    key: &str,
    revision: Option<i64>,
) -> Result<Option<Bytes>, StoreError> {
    let range = KeyRange::key(key.to_owned());
    let request = RangeRequest { revision: revision.map(Revision), ..RangeRequest::new(range) };
    Ok(store.range(request).await?.kvs.first().map(|kv| kv.value.clone()))
}

#[tokio::test]
async fn a_reset_store_has_its_data_a_new_cluster_and_a_revision_that_nobody_has_seen() {
    let dir = tempfile::tempdir().unwrap();
    assert!(
        reset(dir.path(), None, &mut |_, _| Ok(()))
            .unwrap_err()
            .to_string()
            .contains("there is no store")
    );
    let snapshot = dir.path().join("snapshot");
    let before = with_store(dir.path(), async |store| {
        store.lease_grant(5, 500).await.unwrap();
        store.txn(txn(vec![put("a", "1", 5)])).await.unwrap();
        store
            .save(File::options().read(true).write(true).create_new(true).open(&snapshot).unwrap())
            .await
            .unwrap();
        store.txn(txn(vec![put("a", "2", 0), put("b", "2", 0)])).await.unwrap();
        store.revision().0
    })
    .await;
    let mut seen = Vec::new();
    let own = reset(dir.path(), None, &mut |key, _| {
        seen.push(key.to_vec());
        Ok(())
    })
    .unwrap();
    assert_eq!(
        (own.revision, own.keys, seen),
        (before + 1_000_000_000, 2, vec![b"a".to_vec(), b"b".to_vec()])
    );
    assert!(own.old.as_ref().unwrap().join("log-0000000000000001").exists());
    with_store(dir.path(), async |store| {
        assert_eq!(store.revision().0, own.revision);
        assert_eq!(value(store, "a", None).await.unwrap().unwrap(), "2");
        assert!(matches!(value(store, "a", Some(before)).await, Err(StoreError::Compacted { .. })));
        let watch = store.watch(KeyRange::key("a"), Some(Revision(before + 1))).await;
        assert!(matches!(watch, Err(StoreError::Compacted { .. })));
        let done = store.txn(txn(vec![put("a", "3", 0)])).await.unwrap();
        assert_eq!(done.revision.0, own.revision + 1);
    })
    .await;
    // The same after a restart, and from the snapshot.
    let file = File::open(&snapshot).unwrap();
    let unwanted = reset(dir.path(), Some((&file, &snapshot)), &mut |_, _| Err("no".into()));
    assert_eq!(unwanted.unwrap_err().to_string(), "no");
    let other = reset(dir.path(), Some((&file, &snapshot)), &mut |_, _| Ok(())).unwrap();
    assert!(other.cluster != own.cluster && other.snapshot.is_some() && other.old != own.old);
    with_store(dir.path(), async |store| {
        assert_eq!(value(store, "a", None).await.unwrap().unwrap(), "1");
        assert_eq!(value(store, "b", None).await.unwrap(), None);
        let (lease, keys) = store.lease(5).await.unwrap();
        assert_eq!((lease.granted_ttl, keys), (500, vec![Bytes::from("a")]));
    })
    .await;
    with_store(dir.path(), async |store| assert_eq!(store.revision().0, other.revision)).await;
}

#[test]
fn an_invalid_snapshot_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (bad, db) = (dir.path().join("bad"), dir.path().join("db"));
    std::fs::write(&bad, "nothing").unwrap();
    let file = File::open(&bad).unwrap();
    let error = reset(&db, Some((&file, &bad)), &mut |_, _| Ok(())).unwrap_err().to_string();
    assert!(error.starts_with(&format!("{} is not a snapshot", bad.display())), "{error}");
    assert_eq!(std::fs::read_dir(&db).unwrap().count(), 1, "the lock alone");
}

#[tokio::test]
async fn an_interrupted_reset_is_finished_by_the_next_start() {
    // Interrupted after every rename: the files are put back to that state.
    for moved in 0..3 {
        let dir = tempfile::tempdir().unwrap();
        with_store(dir.path(), async |store| store.txn(txn(vec![put("a", "1", 0)])).await.unwrap())
            .await;
        let done = reset(dir.path(), None, &mut |_, _| Ok(())).unwrap();
        let (folder, old) = (dir.path().join("reset"), done.old.unwrap());
        std::fs::create_dir(&folder).unwrap();
        let rename = |from: &std::path::Path, to: &std::path::Path, name: &str| {
            std::fs::rename(from.join(name), to.join(name)).unwrap()
        };
        let names = ["checkpoint-0000000000000001", "log-0000000000000001"];
        names.iter().skip(moved.min(2)).for_each(|name| rename(dir.path(), &folder, name));
        let state = if moved == 0 { "complete" } else { "moved" };
        std::fs::write(folder.join(state), old.file_name().unwrap().as_encoded_bytes()).unwrap();
        if moved == 0 {
            rename(&old, dir.path(), "log-0000000000000001");
        }
        with_store(dir.path(), async |store| {
            assert_eq!(store.revision().0, done.revision, "{moved}");
            assert_eq!(value(store, "a", None).await.unwrap().unwrap(), "1");
        })
        .await;
        assert!(!folder.exists() && old.join("log-0000000000000001").exists());
    }
}
