//! Damage that checksums alone cannot see: files that are gone, blank, short or older than what was
//! acknowledged.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::{Shutdown, Tasks};
use sorting::CompactSort as _;

use super::{Config, open};
use crate::contract::ClusterId;
use crate::contract::{Op, Txn};
use crate::{OpenError, StoreRecord, StoreRecordFile};

struct Fixture {
    dir: tempfile::TempDir,
}

impl Fixture {
    /// A store with a record, and `values` of 4 KiB each in it, stopped in order.
    async fn with(values: usize) -> Self {
        let fixture = Self { dir: tempfile::tempdir().unwrap() };
        fixture.put(0..values).await;
        fixture
    }

    fn db(&self) -> PathBuf {
        self.dir.path().join("db")
    }

    fn config(&self) -> Config {
        let path = self.dir.path().join("store.json");
        let file = match StoreRecordFile::read(&path).unwrap() {
            Some(record) => StoreRecordFile::open(&path, record),
            None => {
                let record = StoreRecord::new(ClusterId([5; 16]), 0);
                StoreRecordFile::create(&path, record).unwrap()
            }
        };
        let store = file.record().store;
        Config { cluster: Some(store), record: Some(Arc::new(file)), ..Config::new(self.db()) }
    }

    async fn put(&self, values: std::ops::Range<usize>) {
        let tasks = Tasks::new(Shutdown::new());
        let store = open(self.config(), &tasks).await.unwrap();
        for n in values {
            let op = Op::Put {
                key: format!("k{n}").into(),
                value: vec![b'x'; 4096].into(),
                lease: 0,
                prev_kv: false,
            };
            store.txn(Txn { success: vec![op], ..Txn::default() }).await.unwrap();
        }
        stop(&tasks).await;
    }

    async fn opened(&self) -> Result<i64, OpenError> {
        let tasks = Tasks::new(Shutdown::new());
        let opened = open(self.config(), &tasks).await;
        let revision = opened.map(|store| store.revision().0);
        stop(&tasks).await;
        revision
    }

    fn newest(&self) -> PathBuf {
        let mut logs: Vec<PathBuf> = std::fs::read_dir(self.db())
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("log-"))
            .filter(|path| std::fs::read(path).unwrap()[64..].iter().any(|byte| *byte != 0))
            .collect();
        logs.compact_sort();
        logs.pop().unwrap()
    }
}

async fn stop(tasks: &Tasks) {
    tasks.shutdown().request();
    let left = tasks.drain(Duration::from_secs(60)).await;
    assert!(left.is_empty(), "{left:?}");
}

/// Damages the newest log with records, and expects a refusal; with the log as it was the store
/// opens again.
async fn refused(fixture: &Fixture, name: &str, damage: impl FnOnce(&Path, &[u8])) -> OpenError {
    let newest = fixture.newest();
    let whole = std::fs::read(&newest).unwrap();
    let revision = fixture.opened().await.unwrap();
    let current = std::fs::read(&newest).unwrap();
    damage(&newest, &whole);
    let error = fixture.opened().await.expect_err(name);
    std::fs::write(&newest, current).unwrap();
    assert_eq!(fixture.opened().await.unwrap(), revision, "{name}: the refusal changed something");
    error
}

async fn blank_newest_log(fixture: &Fixture) {
    let write = |bytes: Vec<u8>| move |path: &Path, _: &[u8]| std::fs::write(path, bytes).unwrap();
    refused(fixture, "absent", |path, _| std::fs::remove_file(path).unwrap()).await;
    refused(fixture, "empty", write(Vec::new())).await;
    refused(fixture, "zeros", |path, whole| std::fs::write(path, vec![0; whole.len()]).unwrap())
        .await;
    for length in [32, 64, 100] {
        refused(fixture, "header", |path, whole| std::fs::write(path, &whole[..length]).unwrap())
            .await;
    }
    refused(fixture, "header and zeros", |path, whole| {
        let mut bytes = whole.to_vec();
        bytes[64..].fill(0);
        std::fs::write(path, bytes).unwrap();
    })
    .await;
    refused(fixture, "middle", |path, whole| {
        let used = whole.iter().rposition(|byte| *byte != 0).unwrap();
        std::fs::write(path, &whole[..used / 2]).unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_blank_or_short_newest_log_is_refused_where_it_is_the_only_one() {
    let fixture = Fixture::with(3).await;
    blank_newest_log(&fixture).await;
}

#[tokio::test]
async fn a_blank_or_short_newest_log_is_refused_behind_others_and_a_checkpoint() {
    // Segments are small in tests, and a checkpoint is written when the log has outgrown the state.
    let fixture = Fixture::with(200).await;
    let logs = std::fs::read_dir(fixture.db()).unwrap().count();
    assert!(logs > 3, "several segments");
    blank_newest_log(&fixture).await;
}

#[tokio::test]
async fn an_older_copy_of_a_log_is_refused() {
    let fixture = Fixture::with(3).await;
    let newest = fixture.newest();
    let older = std::fs::read(&newest).unwrap();
    fixture.put(3..6).await;
    let error = refused(&fixture, "older", |path, _| std::fs::write(path, &older).unwrap()).await;
    assert!(matches!(error, OpenError::Older { .. }), "{error}");
}

#[tokio::test]
async fn a_store_of_another_cluster_or_member_is_refused() {
    let fixture = Fixture::with(3).await;
    let change = |change: fn(&mut StoreRecord)| {
        let path = fixture.dir.path().join("store.json");
        let mut record = StoreRecordFile::read(&path).unwrap().unwrap();
        change(&mut record);
        StoreRecordFile::create(&path, record).unwrap();
    };
    change(|record| record.member = Some("000000000000000f".to_owned()));
    let error = fixture.opened().await.unwrap_err();
    assert!(matches!(error, OpenError::ForeignMember { .. }), "{error}");
    change(|record| (record.member, record.store) = (None, ClusterId([6; 16])));
    let error = fixture.opened().await.unwrap_err();
    assert!(matches!(error, OpenError::ForeignCluster { .. }), "{error}");
}

#[tokio::test]
async fn a_first_start_that_ended_early_goes_on_and_a_store_without_a_record_is_adopted() {
    let fixture = Fixture::with(1).await;
    let newest = fixture.newest();
    let whole = std::fs::read(&newest).unwrap();
    let record = fixture.dir.path().join("store.json");
    // Begun, but nothing recorded: the log has its header at most.
    for length in [0, 64] {
        std::fs::remove_file(&record).unwrap();
        std::fs::write(&newest, &whole[..length]).unwrap();
        assert_eq!(fixture.opened().await.unwrap(), 1);
    }
    std::fs::remove_file(&record).unwrap();
    std::fs::write(&newest, &whole).unwrap();
    assert_eq!(fixture.opened().await.unwrap(), 2);
    assert!(StoreRecordFile::read(&record).unwrap().unwrap().begun);
    // Without a record, and yet known to exist.
    std::fs::remove_file(&record).unwrap();
    std::fs::write(&newest, &whole[..64]).unwrap();
    let tasks = Tasks::new(Shutdown::new());
    let opened = open(Config { exists: true, ..fixture.config() }, &tasks).await;
    assert!(matches!(opened.unwrap_err(), OpenError::Lost { .. }));
}

#[tokio::test]
async fn a_log_that_was_extended_by_zeros_alone_is_whole() {
    let fixture = Fixture::with(3).await;
    let newest = fixture.newest();
    let whole = std::fs::read(&newest).unwrap();
    let used = whole.iter().rposition(|byte| *byte != 0).unwrap();
    std::fs::write(&newest, &whole[..used + 4096]).unwrap();
    assert_eq!(fixture.opened().await.unwrap(), 4);
    assert_eq!(std::fs::metadata(&newest).unwrap().len(), whole.len() as u64);
}
