//! The room of volumes: their sizes are promised, so that what they may still take must be free.

use std::io;
use std::path::{Path, PathBuf};

use api::local_driver::VolumeMode;

use super::disk_file::taken;
use super::record::{LocalVolume, read_record, write_record};
use super::{DIR_MODE, Store, StoredKind, sync};
use crate::local_driver::error::LocalDriverError;

/// Whether `requested` bytes fit into the free space that other volumes cannot claim.
pub(super) fn fits(requested: u64, available: u64, promised: u64) -> bool {
    promised.checked_add(requested).is_some_and(|total| total <= available)
}

impl Store {
    /// Makes the unfinished directory with its record if there is room for a volume. The record of
    /// a volume with a quota gets its project.
    pub(super) fn reserve(
        &self,
        kind: StoredKind,
        unfinished: &Path,
        record: &mut LocalVolume,
    ) -> Result<(), LocalDriverError> {
        // The directory of local volumes comes first, as local-path volumes would create it.
        let storage = self.root.parent().unwrap_or(&self.root).to_owned();
        let own = ["", "unfinished", kind.folder()].map(|folder| self.root.join(folder));
        for path in std::iter::once(&storage).chain(&own).filter(|path| !path.is_dir()) {
            base::fs::create_dir(path, DIR_MODE)?;
        }
        sync(&self.root)?;
        self.discard(unfinished)?;
        let _reserving = self.reserving.lock();
        if kind == StoredKind::Volume {
            self.check_room(record.size)?;
        }
        if record.mode == VolumeMode::Quota {
            record.project_id = Some(self.free_project()?);
        }
        base::fs::create_dir(unfinished, DIR_MODE)?;
        write_record(unfinished, record)
    }

    /// The directories and records of volumes, also of those that are unfinished.
    pub(super) fn volumes(&self) -> io::Result<Vec<(PathBuf, LocalVolume)>> {
        let mut volumes = Vec::new();
        for folder in [StoredKind::Volume.folder(), "unfinished"] {
            for entry in std::fs::read_dir(self.root.join(folder))?.flatten() {
                let path = entry.path();
                let is_snapshot = entry.file_name().to_string_lossy().starts_with("snapshots.");
                // What is being removed may have no record any longer.
                if !is_snapshot && let Ok(Some(record)) = read_record(&path) {
                    volumes.push((path, record));
                }
            }
        }
        Ok(volumes)
    }

    /// Bytes that volumes may still take of the free space.
    pub(super) fn promised(&self) -> io::Result<u64> {
        let mut promised = 0_u64;
        for (path, record) in self.volumes()? {
            let taken = match record.project_id {
                Some(project) => self.taken_by_project(project),
                None => taken(&path.join("disk"))?,
            };
            promised = promised.saturating_add(record.size.saturating_sub(taken));
        }
        Ok(promised)
    }

    /// Fails if a volume that takes this many bytes more does not fit.
    pub(super) fn check_room(&self, requested: u64) -> Result<(), LocalDriverError> {
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
}
