//! Directories with quotas: refusals, ids, sizes, and the order of calls, which a substitute of the
//! kernel checks at each call.

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use api::local_driver::{ContentSource, FsType, SIZE_UNIT, VolumeMode, VolumeRequest};
use base::Shutdown;
use parking_lot::Mutex;

use super::*;
use crate::local_driver::quota::ProjectQuotas;
use crate::local_driver::store::record::write_record;

#[derive(Debug, Default)]
struct Quotas {
    is_off: bool,
    /// Whether the next call to set a project fails.
    has_failure: bool,
    limits: HashMap<u32, u64>,
    used: HashMap<u32, u64>,
    /// Projects by the numbers of the directories.
    projects: HashMap<u64, u32>,
}

/// Quotas in memory of the store below a directory.
#[derive(Debug, Clone)]
struct FakeQuotas {
    root: PathBuf,
    quotas: Arc<Mutex<Quotas>>,
}

impl FakeQuotas {
    /// The directories that exist with this project.
    fn directories(&self, project: u32) -> Vec<PathBuf> {
        let folders = ["volumes", "unfinished"].map(|folder| self.root.join(folder));
        let volumes = folders.iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten();
        let data = volumes.map(|volume| volume.unwrap().path().join("data"));
        let quotas = self.quotas.lock();
        data.filter(|data| {
            let number = std::fs::metadata(data).map(|metadata| metadata.ino());
            number.is_ok_and(|number| quotas.projects.get(&number) == Some(&project))
        })
        .collect()
    }

    /// Whether a record names the project.
    fn is_recorded(&self, project: u32) -> bool {
        let folders = ["volumes", "unfinished"].map(|folder| self.root.join(folder));
        let volumes = folders.iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten();
        let mut records = volumes.filter_map(|v| read_record(&v.unwrap().path()).unwrap());
        records.any(|record| record.project_id == Some(project))
    }

    fn limits(&self) -> Vec<(u32, u64)> {
        self.quotas.lock().limits.iter().map(|(project, limit)| (*project, *limit)).collect()
    }
}

impl ProjectQuotas for FakeQuotas {
    fn check(&self, directory: &Path) -> Result<(), LocalDriverError> {
        match self.quotas.lock().is_off {
            true => {
                let (directory, found) = (directory.to_owned(), "ext4".to_owned());
                Err(LocalDriverError::NoQuota { directory, found })
            }
            false => Ok(()),
        }
    }

    fn usage(&self, _: &Path, project: u32) -> io::Result<ProjectUsage> {
        let quotas = self.quotas.lock();
        let of = |amounts: &HashMap<u32, u64>| amounts.get(&project).copied().unwrap_or_default();
        Ok(ProjectUsage { limit: of(&quotas.limits), used: of(&quotas.used), files: 0 })
    }

    fn set_limit(&self, _: &Path, project: u32, bytes: u64) -> io::Result<()> {
        if self.quotas.lock().is_off {
            return Err(io::ErrorKind::Unsupported.into());
        }
        assert!(self.is_recorded(project), "a crash would leave a limit that is not found");
        if bytes == 0 {
            assert_eq!(self.directories(project), [] as [PathBuf; 0], "unlimited files");
            self.quotas.lock().limits.remove(&project);
        } else {
            self.quotas.lock().limits.insert(project, bytes);
        }
        Ok(())
    }

    fn set_project(&self, directory: &Path, project: u32) -> io::Result<()> {
        let record = read_record(directory.parent().unwrap()).unwrap().unwrap();
        assert_eq!(record.project_id, Some(project));
        let mut quotas = self.quotas.lock();
        assert_eq!(quotas.limits.get(&project), Some(&record.size), "the limit comes first");
        if std::mem::take(&mut quotas.has_failure) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        quotas.projects.insert(std::fs::metadata(directory)?.ino(), project);
        Ok(())
    }
}

fn store(home: &Path) -> (Store, FakeQuotas) {
    let root = home.join("storage/local.kube-lite.io");
    let fake = FakeQuotas { root: root.clone(), quotas: Arc::default() };
    (Store::new(root, Box::new(fake.clone())), fake)
}

fn request(size: u64) -> VolumeRequest {
    VolumeRequest { size, mode: VolumeMode::Quota, fs_type: None, source: None }
}

fn create(store: &Store, name: &str, size: u64) -> Result<LocalVolume, LocalDriverError> {
    store.create(name, &request(size), &Shutdown::new())
}

fn is_empty(store: &Store, folder: &str) -> bool {
    std::fs::read_dir(store.root.join(folder)).unwrap().next().is_none()
}

#[test]
fn a_directory_has_a_project_and_the_limit_of_its_size() {
    let home = tempfile::tempdir().unwrap();
    let (store, fake) = store(home.path());
    let made = create(&store, "pvc-a", 1).unwrap();
    assert_eq!((made.size, made.project_id), (SIZE_UNIT, Some(FIRST_PROJECT)));
    assert!(made.is_new && !made.must_grow && !made.is_block());
    assert_eq!(fake.limits(), [(FIRST_PROJECT, SIZE_UNIT)]);
    assert_eq!(fake.directories(FIRST_PROJECT), [store.data("pvc-a")]);
    assert!(!store.disk(StoredKind::Volume, "pvc-a").exists());
    assert_eq!(store.load(StoredKind::Volume, "pvc-a").unwrap(), made);
    assert_eq!(create(&store, "pvc-a", 1).unwrap(), made);
    let file = VolumeRequest { mode: VolumeMode::Loop, ..request(1) };
    let conflict = store.create("pvc-a", &file, &Shutdown::new()).unwrap_err().to_string();
    assert_eq!(conflict, "volume pvc-a exists with another mode");
    for (size, expected) in [(3 * SIZE_UNIT, 3), (SIZE_UNIT, 3), (4 * SIZE_UNIT, 4)] {
        assert_eq!(store.grow("pvc-a", size).unwrap().size, expected * SIZE_UNIT);
        assert_eq!(fake.limits(), [(FIRST_PROJECT, expected * SIZE_UNIT)]);
    }
    assert!(!store.load(StoredKind::Volume, "pvc-a").unwrap().must_grow);
    std::fs::write(store.data("pvc-a").join("file"), "x").unwrap();
    store.delete(StoredKind::Volume, "pvc-a").unwrap();
    store.delete(StoredKind::Volume, "pvc-a").unwrap();
    assert!(fake.limits().is_empty());
    assert!(!store.has_volumes() && is_empty(&store, "unfinished"));
}

#[test]
fn the_lowest_id_is_used_that_neither_a_record_nor_the_file_system_has() {
    let home = tempfile::tempdir().unwrap();
    let (store, fake) = store(home.path());
    fake.quotas.lock().used.insert(FIRST_PROJECT + 1, 7);
    let id = |name: &str| create(&store, name, 1).unwrap().project_id.unwrap() - FIRST_PROJECT;
    assert_eq!([id("pvc-a"), id("pvc-b"), id("pvc-c")], [0, 2, 3]);
    store.delete(StoredKind::Volume, "pvc-b").unwrap();
    assert_eq!(id("pvc-d"), 2);
    // A record counts before its limit is set.
    let unfinished = store.unfinished(StoredKind::Volume, "pvc-e");
    std::fs::create_dir(&unfinished).unwrap();
    let mut record = store.load(StoredKind::Volume, "pvc-a").unwrap();
    record.project_id = Some(FIRST_PROJECT + 4);
    write_record(&unfinished, &record).unwrap();
    assert_eq!(id("pvc-f"), 5);
    let all = (FIRST_PROJECT..FIRST_PROJECT + PROJECTS).map(|id| (id, 1));
    fake.quotas.lock().used.extend(all);
    assert!(matches!(create(&store, "pvc-g", 1), Err(LocalDriverError::NoProject)));
    assert!(!unfinished.with_file_name("volumes.pvc-g").exists());
}

#[test]
fn what_a_directory_cannot_be_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let (store, fake) = store(home.path());
    let stop = Shutdown::new();
    let source = Some(ContentSource::Volume("pvc-a".into()));
    for refused in [
        VolumeRequest { fs_type: Some(FsType::Ext4), ..request(1) },
        VolumeRequest { source: source.clone(), ..request(1) },
    ] {
        let error = store.create("pvc-b", &refused, &stop).unwrap_err();
        assert!(matches!(error, LocalDriverError::Request(_)), "{error}");
    }
    create(&store, "pvc-a", 1).unwrap();
    let snapshot = store.snapshot("snapshot-s", "pvc-a", &stop).unwrap_err();
    assert_eq!(snapshot.status().code, 400);
    assert_eq!(
        snapshot.to_string(),
        "volume pvc-a has the mode quota: snapshots and copies of it are not supported, because \
         a directory cannot be copied at one moment"
    );
    let copy = VolumeRequest { source, mode: VolumeMode::Loop, ..request(1) };
    let copy = store.create("pvc-b", &copy, &stop);
    assert!(matches!(copy, Err(LocalDriverError::NoCopy(_))));
    fake.quotas.lock().is_off = true;
    let refused = create(&store, "pvc-b", 1);
    assert!(matches!(refused, Err(LocalDriverError::NoQuota { .. })));
    let volume = store.load(StoredKind::Volume, "pvc-a").unwrap();
    let staged = store.apply_size("pvc-a", &volume);
    assert!(matches!(staged, Err(LocalDriverError::NoQuota { .. })), "it would be unlimited");
    // Another mode needs no quotas, and a volume of a file system without them can be deleted.
    let file = VolumeRequest { mode: VolumeMode::Loop, ..request(1) };
    store.create("pvc-c", &file, &stop).unwrap();
    store.delete(StoredKind::Volume, "pvc-a").unwrap();
    assert!(!store.data("pvc-a").exists());
}

#[test]
fn a_directory_promises_what_its_project_does_not_use() {
    let home = tempfile::tempdir().unwrap();
    let (store, fake) = store(home.path());
    create(&store, "pvc-a", 4 * SIZE_UNIT).unwrap();
    assert_eq!(store.promised().unwrap(), 4 * SIZE_UNIT);
    fake.quotas.lock().used.insert(FIRST_PROJECT, 3 * SIZE_UNIT);
    assert_eq!(store.promised().unwrap(), SIZE_UNIT);
    assert!(matches!(store.grow("pvc-a", 1 << 60), Err(LocalDriverError::NoRoom { .. })));
    assert_eq!(fake.limits(), [(FIRST_PROJECT, 4 * SIZE_UNIT)]);
}

#[test]
fn a_failure_leaves_neither_a_directory_nor_a_limit() {
    let home = tempfile::tempdir().unwrap();
    let (store, fake) = store(home.path());
    fake.quotas.lock().has_failure = true;
    assert!(create(&store, "pvc-a", 1).is_err());
    assert!(fake.limits().is_empty());
    assert!(is_empty(&store, "unfinished") && is_empty(&store, "volumes"));
}

/// The states that a process leaves that ends between the steps of a creation or a removal.
#[test]
fn a_restart_removes_unfinished_directories_with_their_limits() {
    let home = tempfile::tempdir().unwrap();
    let (store, fake) = store(home.path());
    let kept = create(&store, "pvc-kept", 1).unwrap();
    let steps = ["record", "limit", "directory", "project", "removal", "files"];
    for (at, step) in steps.iter().enumerate() {
        let unfinished = store.unfinished(StoredKind::Volume, "pvc-a");
        std::fs::create_dir(&unfinished).unwrap();
        let project = store.free_project().unwrap();
        let record = LocalVolume { project_id: Some(project), ..kept.clone() };
        write_record(&unfinished, &record).unwrap();
        if at >= 1 {
            fake.set_limit(&store.root, project, record.size).unwrap();
        }
        if (2..5).contains(&at) {
            std::fs::create_dir(unfinished.join("data")).unwrap();
        }
        if at == 3 || at == 4 {
            fake.set_project(&unfinished.join("data"), project).unwrap();
            std::fs::write(unfinished.join("data/file"), "x").unwrap();
        }
        store.recover().unwrap();
        assert_eq!(fake.limits(), [(FIRST_PROJECT, kept.size)], "{step}");
        assert!(is_empty(&store, "unfinished"), "{step}");
    }
    assert_eq!(store.load(StoredKind::Volume, "pvc-kept").unwrap(), kept);
    // A growth that ended before the limit is completed at the next mount.
    let grown = LocalVolume { size: 2 * SIZE_UNIT, ..kept };
    store.save("pvc-kept", &grown).unwrap();
    store.apply_size("pvc-kept", &grown).unwrap();
    assert_eq!(fake.limits(), [(FIRST_PROJECT, 2 * SIZE_UNIT)]);
}
