//! The volumes and snapshots of this node on its disk.
//!
//! Each one is a directory with a record and the file `disk`, or the directory `data` with a quota.
//! It is made below `unfinished/`, synced, and renamed; a removal begins with the rename back. What
//! is unfinished after a restart is removed. All functions block.

mod disk_file;
mod quota_directory;
mod record;
mod room;

use std::fs::File;
use std::path::{Path, PathBuf};

use api::local_driver::{ContentSource, FsType, VolumeMode, VolumeRequest, is_name, rounded};
use base::Shutdown;
use parking_lot::Mutex;

use super::error::LocalDriverError;
use super::quota::ProjectQuotas;
use super::{copy, loop_device};
pub(super) use record::LocalVolume;
use record::{check_same, now, read_record, write_record};

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
    quotas: Box<dyn ProjectQuotas>,
    /// Held from the check of the free space and the search for a project until the record counts.
    reserving: Mutex<()>,
}

impl Store {
    pub(super) fn new(root: PathBuf, quotas: Box<dyn ProjectQuotas>) -> Self {
        Self { root, quotas, reserving: Mutex::default() }
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
        let is_directory = request.mode == VolumeMode::Quota;
        if is_directory && (request.fs_type.is_some() || request.source.is_some()) {
            let text = "a volume with mode quota has neither a file system of its own nor a source";
            return Err(LocalDriverError::Request(text.to_owned()));
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
        let has_files = is_directory || request.fs_type.is_some();
        let record = LocalVolume {
            size,
            mode: request.mode,
            fs_type: request.fs_type,
            created_at: now(),
            source: request.source.clone(),
            is_new: has_files && copied.is_none_or(|record| record.is_new),
            must_grow: request.fs_type.is_some() && is_smaller,
            project_id: None,
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

    /// Finds the source of a copy.
    fn source(&self, source: &ContentSource) -> Result<Source, LocalDriverError> {
        let (kind, name) = match source {
            ContentSource::Volume(name) => (StoredKind::Volume, name),
            ContentSource::Snapshot(name) => (StoredKind::Snapshot, name),
        };
        let record = self.load(kind, name)?;
        if record.mode == VolumeMode::Quota {
            return Err(LocalDriverError::NoCopy(name.clone()));
        }
        Ok(Source { kind, name: name.clone(), record })
    }

    /// Makes a directory below `unfinished/`, fills it and renames it.
    fn make(
        &self,
        kind: StoredKind,
        name: &str,
        mut record: LocalVolume,
        source: Option<&Source>,
        stop: &Shutdown,
    ) -> Result<LocalVolume, LocalDriverError> {
        let unfinished = self.unfinished(kind, name);
        let reserved = self.reserve(kind, &unfinished, &mut record);
        let filled = reserved.and_then(|()| match record.mode {
            VolumeMode::Loop => self.fill_file(kind, &unfinished, &record, source, stop),
            VolumeMode::Quota => self.make_directory(&unfinished, &record),
        });
        if let Err(error) = filled {
            self.discard(&unfinished)?;
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

    /// Gives the content of a volume the size of its record; idempotent.
    pub(super) fn apply_size(
        &self,
        name: &str,
        record: &LocalVolume,
    ) -> Result<(), LocalDriverError> {
        match record.mode {
            VolumeMode::Loop => self.enlarge_file(name, record),
            VolumeMode::Quota => self.limit_directory(name, record),
        }
    }

    /// Fails if content that is to be deleted is in use.
    fn release(&self, kind: StoredKind, name: &str) -> Result<(), LocalDriverError> {
        match read_record(&self.dir(kind, name))?.map(|record| record.mode) {
            Some(VolumeMode::Quota) => self.check_unused(name),
            Some(VolumeMode::Loop) | None => self.release_file(kind, name),
        }
    }

    /// Deletes a volume that is not in use, or a snapshot; one that does not exist is deleted.
    pub(super) fn delete(&self, kind: StoredKind, name: &str) -> Result<(), LocalDriverError> {
        if !is_name(name) {
            return Err(LocalDriverError::Name(name.to_owned()));
        }
        let (target, unfinished) = (self.dir(kind, name), self.unfinished(kind, name));
        if target.exists() {
            self.release(kind, name)?;
            self.discard(&unfinished)?;
            let failed = LocalDriverError::io("remove", &target);
            std::fs::rename(&target, &unfinished).map_err(failed)?;
            for directory in [unfinished.parent(), target.parent()].into_iter().flatten() {
                sync(directory)?;
            }
        }
        self.discard(&unfinished)
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
            self.discard(&self.root.join("unfinished").join(&name))?;
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
