//! The volumes and snapshots of this node on its disk.
//!
//! Each one is a directory with a record and the file `disk`. It is made below `unfinished/`,
//! synced, and renamed; a removal begins with the rename back. What is unfinished after a restart
//! is removed. All functions block.

mod disk_file;
mod record;
mod room;

use std::fs::File;
use std::path::{Path, PathBuf};

use api::local_driver::{ContentSource, FsType, VolumeRequest, is_name, rounded};
use base::Shutdown;
use parking_lot::Mutex;

use super::error::LocalDriverError;
use super::{copy, loop_device};
use record::{LocalVolume, check_same, now, read_record, write_record};

/// Mode of directories: pods reach volumes by their mounts alone.
const DIR_MODE: u32 = 0o700;

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

fn sync(directory: &Path) -> Result<(), LocalDriverError> {
    let synced = File::open(directory).and_then(|directory| directory.sync_all());
    synced.map_err(LocalDriverError::io("sync", directory))
}

#[cfg(test)]
mod tests;
