//! The volumes and snapshots of this node on its disk.
//!
//! Each one is a directory with a record and the file `disk`. It is made below `unfinished/`,
//! synced, and renamed; a removal begins with the rename back. What is unfinished after a restart
//! is removed. All functions block.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use api::local_driver::{
    ContentSource, FsType, Stored, VolumeMode, VolumeRequest, is_name, rounded,
};
use base::Shutdown;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::copy::{self, Frozen};
use super::error::LocalDriverError;
use super::{file_system, loop_device};

/// Mode of directories: pods reach volumes by their mounts alone.
const DIR_MODE: u32 = 0o700;
/// Unit of the number of blocks of a file in bytes.
const BLOCK: u64 = 512;

/// What is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StoredKind {
    Volume,
    Snapshot,
}

impl StoredKind {
    fn folder(self) -> &'static str {
        match self {
            Self::Volume => "volumes",
            Self::Snapshot => "snapshots",
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Volume => "volume",
            Self::Snapshot => "snapshot",
        }
    }
}

/// The record of a volume or snapshot, in the file `volume.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LocalVolume {
    /// Size of the file in bytes.
    pub(super) size: u64,
    pub(super) mode: VolumeMode,
    /// The file system; `None` for a block volume.
    pub(super) fs_type: Option<FsType>,
    /// In nanoseconds since the epoch.
    pub(super) created_at: i64,
    pub(super) source: Option<ContentSource>,
    /// The root directory does not yet let every user write.
    pub(super) is_new: bool,
    /// The file system is smaller than the file.
    pub(super) must_grow: bool,
}

impl LocalVolume {
    pub(super) fn stored(&self) -> Stored {
        Stored { size: self.size, created_at: self.created_at }
    }
}

fn now() -> i64 {
    i64::try_from(base::clock::unix_time().as_nanos()).unwrap_or_default()
}

/// Whether `requested` bytes fit into the free space that other volumes cannot claim.
fn fits(requested: u64, available: u64, promised: u64) -> bool {
    promised.checked_add(requested).is_some_and(|total| total <= available)
}

/// Compares a request with the volume of the same name.
fn check_same(
    name: &str,
    found: LocalVolume,
    request: &VolumeRequest,
) -> Result<LocalVolume, LocalDriverError> {
    let what = if found.fs_type != request.fs_type {
        "file system"
    } else if found.mode != request.mode {
        "mode"
    } else if found.source != request.source {
        "source"
    } else {
        return Ok(found);
    };
    Err(LocalDriverError::Conflict { name: name.to_owned(), what })
}

/// What a copy is made of.
#[derive(Debug)]
struct Source {
    kind: StoredKind,
    name: String,
    record: LocalVolume,
}

/// The directory of the driver.
#[derive(Debug)]
pub(super) struct Store {
    root: PathBuf,
    /// Held from the check of the free space until the record counts.
    reserving: Mutex<()>,
}

impl Store {
    pub(super) fn new(root: PathBuf) -> Self {
        Self { root, reserving: Mutex::default() }
    }

    fn dir(&self, kind: StoredKind, name: &str) -> PathBuf {
        self.root.join(kind.folder()).join(name)
    }

    fn unfinished(&self, kind: StoredKind, name: &str) -> PathBuf {
        self.root.join("unfinished").join(format!("{}.{name}", kind.folder()))
    }

    /// The file with the content.
    pub(super) fn disk(&self, kind: StoredKind, name: &str) -> PathBuf {
        self.dir(kind, name).join("disk")
    }

    /// Whether this node has volumes.
    pub(super) fn has_volumes(&self) -> bool {
        let volumes = std::fs::read_dir(self.root.join(StoredKind::Volume.folder()));
        volumes.is_ok_and(|mut volumes| volumes.next().is_some())
    }

    /// Reads a record; `None` if there is none.
    fn find(&self, kind: StoredKind, name: &str) -> Result<Option<LocalVolume>, LocalDriverError> {
        if !is_name(name) {
            return Err(LocalDriverError::Name(name.to_owned()));
        }
        read_record(&self.dir(kind, name))
    }

    /// Reads a record.
    pub(super) fn load(
        &self,
        kind: StoredKind,
        name: &str,
    ) -> Result<LocalVolume, LocalDriverError> {
        self.find(kind, name)?
            .ok_or_else(|| LocalDriverError::NotFound { kind: kind.name(), name: name.to_owned() })
    }

    /// Replaces the record of a volume.
    pub(super) fn save(&self, name: &str, record: &LocalVolume) -> Result<(), LocalDriverError> {
        write_record(&self.dir(StoredKind::Volume, name), record)
    }

    /// Creates a volume; returns the one that exists.
    pub(super) fn create(
        &self,
        name: &str,
        request: &VolumeRequest,
        stop: &Shutdown,
    ) -> Result<LocalVolume, LocalDriverError> {
        let size = rounded(request.size).ok_or(LocalDriverError::Size(request.size))?;
        if let Some(found) = self.find(StoredKind::Volume, name)? {
            return check_same(name, found, request);
        }
        let source = request.source.as_ref().map(|source| self.source(source)).transpose()?;
        if let Some(source) = &source
            && source.record.fs_type != request.fs_type
        {
            let kind = source.record.fs_type.map_or("block volume", FsType::name);
            return Err(LocalDriverError::OtherKind(kind));
        }
        let copied = source.as_ref().map(|source| &source.record);
        let size = size.max(copied.map_or(0, |record| record.size));
        let is_smaller = copied.is_some_and(|record| record.size < size || record.must_grow);
        let record = LocalVolume {
            size,
            mode: request.mode,
            fs_type: request.fs_type,
            created_at: now(),
            source: request.source.clone(),
            is_new: request.fs_type.is_some() && copied.is_none_or(|record| record.is_new),
            must_grow: request.fs_type.is_some() && is_smaller,
        };
        self.make(StoredKind::Volume, name, record, source.as_ref(), stop)
    }

    /// Copies a volume to a snapshot; returns the one that exists.
    pub(super) fn snapshot(
        &self,
        name: &str,
        volume: &str,
        stop: &Shutdown,
    ) -> Result<LocalVolume, LocalDriverError> {
        let of = ContentSource::Volume(volume.to_owned());
        if let Some(found) = self.find(StoredKind::Snapshot, name)? {
            let name = name.to_owned();
            return match found.source.as_ref() == Some(&of) {
                true => Ok(found),
                false => Err(LocalDriverError::Conflict { name, what: "volume" }),
            };
        }
        let source = self.source(&of)?;
        let record = LocalVolume { created_at: now(), source: Some(of), ..source.record.clone() };
        self.make(StoredKind::Snapshot, name, record, Some(&source), stop)
    }

    fn source(&self, source: &ContentSource) -> Result<Source, LocalDriverError> {
        let (kind, name) = match source {
            ContentSource::Volume(name) => (StoredKind::Volume, name),
            ContentSource::Snapshot(name) => (StoredKind::Snapshot, name),
        };
        let record = self.load(kind, name)?;
        Ok(Source { kind, name: name.clone(), record })
    }

    /// Makes a directory below `unfinished/`, fills it and renames it.
    fn make(
        &self,
        kind: StoredKind,
        name: &str,
        record: LocalVolume,
        source: Option<&Source>,
        stop: &Shutdown,
    ) -> Result<LocalVolume, LocalDriverError> {
        let unfinished = self.unfinished(kind, name);
        let filled = self
            .reserve(kind, &unfinished, &record)
            .and_then(|()| self.fill(kind, &unfinished, &record, source, stop));
        if let Err(error) = filled {
            base::fs::remove_dir(&unfinished)?;
            return Err(error);
        }
        let target = self.dir(kind, name);
        std::fs::rename(&unfinished, &target).map_err(LocalDriverError::io("make", &target))?;
        for directory in [target.parent(), unfinished.parent()].into_iter().flatten() {
            sync(directory)?;
        }
        Ok(record)
    }

    /// Makes the unfinished directory with its record if there is room for a volume.
    fn reserve(
        &self,
        kind: StoredKind,
        unfinished: &Path,
        record: &LocalVolume,
    ) -> Result<(), LocalDriverError> {
        // The directory of local volumes comes first, as local-path volumes would create it.
        let storage = self.root.parent().unwrap_or(&self.root).to_owned();
        let own = ["", "unfinished", kind.folder()].map(|folder| self.root.join(folder));
        for path in std::iter::once(&storage).chain(&own).filter(|path| !path.is_dir()) {
            base::fs::create_dir(path, DIR_MODE)?;
        }
        sync(&self.root)?;
        base::fs::remove_dir(unfinished)?;
        let _reserving = self.reserving.lock();
        if kind == StoredKind::Volume {
            self.check_room(record.size)?;
        }
        base::fs::create_dir(unfinished, DIR_MODE)?;
        write_record(unfinished, record)
    }

    /// Bytes that volumes may still take of the free space.
    fn promised(&self) -> io::Result<u64> {
        let mut promised = 0_u64;
        for folder in [StoredKind::Volume.folder(), "unfinished"] {
            for entry in std::fs::read_dir(self.root.join(folder))?.flatten() {
                let path = entry.path();
                let is_snapshot = entry.file_name().to_string_lossy().starts_with("snapshots.");
                // What is being removed may have no record any longer.
                let Ok(Some(record)) = read_record(&path) else { continue };
                if !is_snapshot {
                    let taken = taken(&path.join("disk"))?;
                    promised = promised.saturating_add(record.size.saturating_sub(taken));
                }
            }
        }
        Ok(promised)
    }

    /// Fails if a volume that takes this many bytes more does not fit.
    fn check_room(&self, requested: u64) -> Result<(), LocalDriverError> {
        let failed = || LocalDriverError::io("read the free space of", &self.root);
        let disk = crate::machine::disk(&self.root);
        let available = disk.ok_or_else(|| failed()(io::Error::last_os_error()))?.free;
        let promised = self.promised().map_err(failed())?;
        if fits(requested, available, promised) {
            return Ok(());
        }
        let directory = self.root.clone();
        Err(LocalDriverError::NoRoom { requested, available, promised, directory })
    }

    /// Writes the file of a volume or snapshot.
    fn fill(
        &self,
        kind: StoredKind,
        unfinished: &Path,
        record: &LocalVolume,
        source: Option<&Source>,
        stop: &Shutdown,
    ) -> Result<(), LocalDriverError> {
        let path = unfinished.join("disk");
        let failed = || LocalDriverError::io("write", &path);
        let mut options = OpenOptions::new();
        let open = options.read(true).write(true).create_new(true).mode(0o600).open(&path);
        let file = open.map_err(failed())?;
        if let Some(source) = source {
            self.copy(kind, source, &file, stop)?;
        }
        file.set_len(record.size).map_err(failed())?;
        if let (Some(fs_type), None) = (record.fs_type, source) {
            file_system::create(fs_type, &path)?;
        }
        file.sync_all().map_err(failed())?;
        sync(unfinished)
    }

    /// Copies the content of a source at one moment.
    fn copy(
        &self,
        kind: StoredKind,
        source: &Source,
        to: &File,
        stop: &Shutdown,
    ) -> Result<(), LocalDriverError> {
        let path = self.disk(source.kind, &source.name);
        let from = File::open(&path).map_err(LocalDriverError::io("open", &path))?;
        let device = loop_device::find(&path)?;
        let mounted = device.as_deref().map(loop_device::mounted_at).transpose()?.flatten();
        let frozen = mounted.as_deref().map(Frozen::new).transpose()?;
        if let (Some(device), None) = (&device, &mounted) {
            // What was written to the device may not have reached the file.
            let synced = File::open(device).and_then(|device| device.sync_all());
            synced.map_err(LocalDriverError::io("sync", device))?;
        }
        from.sync_all().map_err(LocalDriverError::io("sync", &path))?;
        if copy::share(&from, to)? {
            return Ok(());
        }
        if device.is_some() && source.record.fs_type.is_none() {
            return Err(LocalDriverError::BusyBlock(source.name.clone()));
        }
        if kind == StoredKind::Snapshot {
            let taken = taken(&path).map_err(LocalDriverError::io("read", &path))?;
            self.check_room(taken)?;
        }
        copy::copy_data(&from, to, stop)?;
        drop(frozen);
        Ok(())
    }

    /// Enlarges a volume. The file system grows when it is mounted, or by the kubelet.
    pub(super) fn grow(&self, name: &str, size: u64) -> Result<LocalVolume, LocalDriverError> {
        let size = rounded(size).ok_or(LocalDriverError::Size(size))?;
        let mut record = self.load(StoredKind::Volume, name)?;
        if size > record.size {
            let _reserving = self.reserving.lock();
            self.check_room(size - record.size)?;
            record.size = size;
            record.must_grow = record.fs_type.is_some();
            self.save(name, &record)?;
        }
        self.apply_size(name, &record)?;
        Ok(record)
    }

    /// Gives the file the size of its record.
    pub(super) fn apply_size(
        &self,
        name: &str,
        record: &LocalVolume,
    ) -> Result<(), LocalDriverError> {
        let path = self.disk(StoredKind::Volume, name);
        let apply = || -> io::Result<()> {
            let file = OpenOptions::new().write(true).open(&path)?;
            // A file is never made smaller.
            if file.metadata()?.len() < record.size {
                file.set_len(record.size)?;
                file.sync_all()?;
            }
            Ok(())
        };
        apply().map_err(LocalDriverError::io("enlarge", &path))
    }

    /// Deletes a volume that is not in use, or a snapshot; one that does not exist is deleted.
    pub(super) fn delete(&self, kind: StoredKind, name: &str) -> Result<(), LocalDriverError> {
        if !is_name(name) {
            return Err(LocalDriverError::Name(name.to_owned()));
        }
        let (target, unfinished) = (self.dir(kind, name), self.unfinished(kind, name));
        if target.exists() {
            self.release(kind, name)?;
            base::fs::remove_dir(&unfinished)?;
            let failed = LocalDriverError::io("remove", &target);
            std::fs::rename(&target, &unfinished).map_err(failed)?;
            for directory in [unfinished.parent(), target.parent()].into_iter().flatten() {
                sync(directory)?;
            }
        }
        Ok(base::fs::remove_dir(&unfinished)?)
    }

    /// Detaches the loop device that a volume still has; fails if it is in use. A volume with a
    /// file system is in use while it is mounted, a block volume while it is attached.
    fn release(&self, kind: StoredKind, name: &str) -> Result<(), LocalDriverError> {
        let disk = self.disk(kind, name);
        let Some(device) = loop_device::find(&disk)? else { return Ok(()) };
        let is_block =
            read_record(&self.dir(kind, name))?.is_none_or(|record| record.fs_type.is_none());
        if is_block || loop_device::mounted_at(&device)?.is_some() {
            return Err(LocalDriverError::InUse(name.to_owned()));
        }
        loop_device::detach(&disk)
    }

    /// Thaws volumes that an earlier process left frozen, and removes what it left unfinished.
    pub(super) fn recover(&self) -> Result<(), LocalDriverError> {
        let names = |folder: &str| -> Vec<String> {
            let entries = std::fs::read_dir(self.root.join(folder)).into_iter().flatten();
            entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect()
        };
        for name in names(StoredKind::Volume.folder()) {
            let Some(device) = loop_device::find(&self.disk(StoredKind::Volume, &name))? else {
                continue;
            };
            if let Some(directory) = loop_device::mounted_at(&device)?
                && copy::thaw(&directory)?
            {
                tracing::warn!(volume = name, "local driver: thawed a volume");
            }
        }
        for name in names("unfinished") {
            base::fs::remove_dir(&self.root.join("unfinished").join(&name))?;
            tracing::info!(name, "local driver: removed what was unfinished");
        }
        Ok(())
    }
}

/// Bytes that a file takes; zero if it does not exist.
fn taken(file: &Path) -> io::Result<u64> {
    match std::fs::metadata(file) {
        Ok(metadata) => Ok(metadata.blocks().saturating_mul(BLOCK)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(error),
    }
}

fn sync(directory: &Path) -> Result<(), LocalDriverError> {
    let synced = File::open(directory).and_then(|directory| directory.sync_all());
    synced.map_err(LocalDriverError::io("sync", directory))
}

fn record_path(directory: &Path) -> PathBuf {
    directory.join("volume.json")
}

fn read_record(directory: &Path) -> Result<Option<LocalVolume>, LocalDriverError> {
    let path = record_path(directory);
    let text = match std::fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(LocalDriverError::io("read", &path)(error)),
    };
    let record = serde_json::from_slice(&text).map_err(io::Error::from);
    record.map(Some).map_err(LocalDriverError::io("read", &path))
}

fn write_record(directory: &Path, record: &LocalVolume) -> Result<(), LocalDriverError> {
    let path = record_path(directory);
    let text = serde_json::to_vec(record).map_err(io::Error::from);
    let written = text.and_then(|text| base::fs::write_atomic(&path, &text, 0o600));
    written.map_err(LocalDriverError::io("write", &path))
}

#[cfg(test)]
mod tests;
