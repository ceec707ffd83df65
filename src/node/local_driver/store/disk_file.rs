//! The file `disk` of a volume or snapshot, which a loop device shows as a block device.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use base::Shutdown;

use super::record::{LocalVolume, read_record};
use super::{Source, Store, StoredKind, sync};
use crate::local_driver::copy::{self, Frozen};
use crate::local_driver::error::LocalDriverError;
use crate::local_driver::{file_system, loop_device};

/// Unit of the number of blocks of a file in bytes.
const BLOCK: u64 = 512;

impl Store {
    /// Writes the file of a volume or snapshot.
    pub(super) fn fill_file(
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

    /// Gives the file the size of its record.
    pub(super) fn enlarge_file(
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

    /// Detaches the loop device that a volume still has; fails if it is in use. A volume with a
    /// file system is in use while it is mounted, a block volume while it is attached.
    pub(super) fn release_file(
        &self,
        kind: StoredKind,
        name: &str,
    ) -> Result<(), LocalDriverError> {
        let disk = self.disk(kind, name);
        let Some(device) = loop_device::find(&disk)? else { return Ok(()) };
        let is_block =
            read_record(&self.dir(kind, name))?.is_none_or(|record| record.fs_type.is_none());
        if is_block || loop_device::mounted_at(&device)?.is_some() {
            return Err(LocalDriverError::InUse(name.to_owned()));
        }
        loop_device::detach(&disk)
    }
}

/// Bytes that a file takes; zero if it does not exist.
pub(super) fn taken(file: &Path) -> io::Result<u64> {
    match std::fs::metadata(file) {
        Ok(metadata) => Ok(metadata.blocks().saturating_mul(BLOCK)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(error),
    }
}
