//! Volumes on a disk, without loop devices. Block volumes need no program of the machine.

use std::os::unix::fs::{FileExt, MetadataExt};

use api::local_driver::{SIZE_UNIT, VolumeMode};

use super::room::fits;
use super::*;
use crate::local_driver::quota::KernelQuotas;

fn block(size: u64, source: Option<ContentSource>) -> VolumeRequest {
    VolumeRequest { size, mode: VolumeMode::Loop, fs_type: None, source }
}

fn store(home: &Path) -> Store {
    Store::new(home.join("storage/local.kube-lite.io"), Box::new(KernelQuotas))
}

fn stop() -> Shutdown {
    Shutdown::new()
}

fn write(store: &Store, name: &str, text: &[u8]) {
    let disk = store.disk(StoredKind::Volume, name);
    File::options().write(true).open(disk).unwrap().write_all_at(text, 0).unwrap();
}

fn read(store: &Store, kind: StoredKind, name: &str) -> Vec<u8> {
    let mut text = vec![0; 4];
    File::open(store.disk(kind, name)).unwrap().read_exact_at(&mut text, 0).unwrap();
    text
}

#[test]
fn a_volume_is_made_once_and_grows() {
    let home = tempfile::tempdir().unwrap();
    let store = store(home.path());
    assert!(!store.has_volumes());
    store.recover().unwrap();
    let made = store.create("pvc-a", &block(1, None), &stop()).unwrap();
    assert_eq!(made.size, SIZE_UNIT);
    let mode = std::fs::metadata(home.path().join("storage")).unwrap().mode();
    assert_eq!(mode & 0o777, 0o700, "other users do not reach local-path volumes");
    assert!(store.has_volumes());
    let again = store.create("pvc-a", &block(2 * SIZE_UNIT, None), &stop()).unwrap();
    assert_eq!(again, made);
    let mut other = block(1, None);
    other.fs_type = Some(FsType::Ext4);
    let conflict = store.create("pvc-a", &other, &stop()).unwrap_err().to_string();
    assert_eq!(conflict, "volume pvc-a exists with another file system");
    let length = || std::fs::metadata(store.disk(StoredKind::Volume, "pvc-a")).unwrap().len();
    for (size, expected) in [(3 * SIZE_UNIT, 3), (SIZE_UNIT, 3), (3 * SIZE_UNIT + 1, 4)] {
        assert_eq!(store.grow("pvc-a", size).unwrap().size, expected * SIZE_UNIT);
        assert_eq!(length(), expected * SIZE_UNIT);
    }
    assert_eq!(store.grow("pvc-b", SIZE_UNIT).unwrap_err().status().code, 404);
    for name in ["../pvc-a", "a", ""] {
        let refused = store.create(name, &block(1, None), &stop());
        assert!(matches!(refused, Err(LocalDriverError::Name(_))), "{name}");
    }
}

/// A process that ends between the record and the file leaves a file that is too small.
#[test]
fn a_growth_that_was_interrupted_is_completed() {
    let home = tempfile::tempdir().unwrap();
    let store = store(home.path());
    let mut record = store.create("pvc-a", &block(1, None), &stop()).unwrap();
    record.size = 2 * SIZE_UNIT;
    store.save("pvc-a", &record).unwrap();
    store.apply_size("pvc-a", &record).unwrap();
    let length = std::fs::metadata(store.disk(StoredKind::Volume, "pvc-a")).unwrap().len();
    assert_eq!(length, 2 * SIZE_UNIT);
}

#[test]
fn a_volume_without_room_is_refused_with_the_numbers() {
    assert!(fits(1, 2, 1));
    assert!(!fits(2, 2, 1));
    assert!(!fits(u64::MAX, u64::MAX, 1));
    let home = tempfile::tempdir().unwrap();
    let store = store(home.path());
    let huge = 1 << 60;
    let refused = store.create("pvc-a", &block(huge, None), &stop()).unwrap_err();
    assert_eq!(refused.status().code, 507, "{refused}");
    assert!(std::fs::read_dir(store.root.join("unfinished")).unwrap().next().is_none());
    store.create("pvc-a", &block(4 * SIZE_UNIT, None), &stop()).unwrap();
    let promised = store.promised().unwrap();
    assert_eq!(promised, 4 * SIZE_UNIT, "nothing is written yet");
    write(&store, "pvc-a", &[1; 1 << 20]);
    assert!(store.promised().unwrap() < promised);
    assert!(matches!(store.grow("pvc-a", huge), Err(LocalDriverError::NoRoom { .. })));
    assert_eq!(store.load(StoredKind::Volume, "pvc-a").unwrap().size, 4 * SIZE_UNIT);
}

#[test]
fn snapshots_and_copies_keep_the_content() {
    let home = tempfile::tempdir().unwrap();
    let store = store(home.path());
    store.create("pvc-a", &block(SIZE_UNIT, None), &stop()).unwrap();
    write(&store, "pvc-a", b"old.");
    let snapshot = store.snapshot("snapshot-s", "pvc-a", &stop()).unwrap();
    write(&store, "pvc-a", b"new.");
    assert_eq!(store.snapshot("snapshot-s", "pvc-a", &stop()).unwrap(), snapshot);
    let missing = store.snapshot("snapshot-t", "pvc-x", &stop()).unwrap_err();
    assert_eq!(missing.status().code, 404);
    let restored = Some(ContentSource::Snapshot("snapshot-s".into()));
    let request = block(3 * SIZE_UNIT, restored);
    assert_eq!(store.create("pvc-r", &request, &stop()).unwrap().size, 3 * SIZE_UNIT);
    let copied = Some(ContentSource::Volume("pvc-a".into()));
    let copy = store.create("pvc-c", &block(1, copied.clone()), &stop()).unwrap();
    assert_eq!(copy.size, SIZE_UNIT, "at least the size of the source");
    assert_eq!(read(&store, StoredKind::Volume, "pvc-r"), b"old.");
    assert_eq!(read(&store, StoredKind::Volume, "pvc-c"), b"new.");
    store.delete(StoredKind::Snapshot, "snapshot-s").unwrap();
    assert_eq!(read(&store, StoredKind::Volume, "pvc-r"), b"old.");
    let other = VolumeRequest { fs_type: Some(FsType::Ext4), ..block(1, copied) };
    let refused = store.create("pvc-e", &other, &stop()).unwrap_err().to_string();
    assert_eq!(refused, "the source is a block volume, the volume is not");
}

#[test]
fn what_is_deleted_or_unfinished_leaves_nothing() {
    let home = tempfile::tempdir().unwrap();
    let store = store(home.path());
    store.create("pvc-a", &block(1, None), &stop()).unwrap();
    store.delete(StoredKind::Volume, "pvc-a").unwrap();
    store.delete(StoredKind::Volume, "pvc-a").unwrap();
    assert!(!store.has_volumes());
    // An earlier process ended during a copy, and during a removal.
    for name in ["volumes.pvc-b", "snapshots.snapshot-c"] {
        let path = store.root.join("unfinished").join(name);
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("disk"), "part").unwrap();
    }
    let stopped = stop();
    stopped.request();
    store.create("pvc-s", &block(1, None), &stop()).unwrap();
    write(&store, "pvc-s", b"data");
    // A file system that shares blocks needs no copy.
    let copied = store.snapshot("snapshot-b", "pvc-s", &stopped);
    assert!(matches!(copied, Err(LocalDriverError::Stopped) | Ok(_)));
    store.recover().unwrap();
    assert!(std::fs::read_dir(store.root.join("unfinished")).unwrap().next().is_none());
    assert!(store.load(StoredKind::Volume, "pvc-s").is_ok());
}

#[test]
fn a_file_system_is_made_before_the_volume_exists() {
    let home = tempfile::tempdir().unwrap();
    let store = store(home.path());
    let request = VolumeRequest { fs_type: Some(FsType::Ext4), ..block(16 << 20, None) };
    match store.create("pvc-a", &request, &stop()) {
        Ok(made) => {
            assert!(made.is_new && !made.must_grow);
            let grown = store.grow("pvc-a", 32 << 20).unwrap();
            assert!(grown.must_grow);
            let source = Some(ContentSource::Volume("pvc-a".into()));
            let copy = VolumeRequest { source, ..request };
            assert!(store.create("pvc-c", &copy, &stop()).unwrap().must_grow);
        }
        // The machine has no mkfs.ext4.
        Err(LocalDriverError::Program { .. }) => assert!(!store.has_volumes()),
        Err(error) => panic!("{error}"),
    }
}
