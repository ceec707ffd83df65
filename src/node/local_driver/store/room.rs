//! The room of volumes: their sizes are promised, so that what they may still take must be free.

use std::io;
use std::path::Path;

use super::disk_file::taken;
use super::record::{LocalVolume, read_record, write_record};
use super::{DIR_MODE, Store, StoredKind, sync};
use crate::local_driver::error::LocalDriverError;

/// Whether `requested` bytes fit into the free space that other volumes cannot claim.
pub(super) fn fits(requested: u64, available: u64, promised: u64) -> bool {
    promised.checked_add(requested).is_some_and(|total| total <= available)
}

impl Store {
    /// Makes the unfinished directory with its record if there is room for a volume.
    pub(super) fn reserve(
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
    pub(super) fn promised(&self) -> io::Result<u64> {
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
