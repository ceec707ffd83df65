//! Receives a checkpoint from another member in chunks; an interrupted transfer continues where it
//! stopped.

use std::io;
use std::sync::Arc;

use super::wire::Chunk;
use crate::log::{Applied, Disk, DiskFile, DiskWork, INCOMING};

/// A partially received checkpoint.
#[derive(Debug)]
struct Partial {
    applied: Applied,
    total: u64,
    have: u64,
    file: Box<dyn DiskFile>,
}

/// Receives checkpoints.
#[derive(Debug)]
pub(super) struct SnapshotReceiver {
    disk: Arc<dyn Disk>,
    work: DiskWork,
    partial: Option<Partial>,
}

impl SnapshotReceiver {
    pub(super) fn new(disk: Arc<dyn Disk>, work: DiskWork) -> Self {
        Self { disk, work, partial: None }
    }

    /// Takes a chunk; returns the size of the contiguous part received so far. A chunk that does
    /// not continue it, or was damaged, changes nothing. After the last one the file is on disk.
    ///
    /// # Errors
    /// Errors of the file system; the transfer then restarts.
    pub(super) async fn take(&mut self, chunk: &Chunk) -> io::Result<u64> {
        let same =
            |partial: &Partial| partial.applied == chunk.applied && partial.total == chunk.total;
        // Taken out: if this future is dropped, the next transfer restarts.
        let mut partial = match self.partial.take().filter(same) {
            Some(partial) => partial,
            None => {
                let disk = Arc::clone(&self.disk);
                let file = self.work.run(move || disk.create(INCOMING, 0)).await??;
                let (applied, total) = (chunk.applied.clone(), chunk.total);
                Partial { applied, total, have: 0, file }
            }
        };
        let length = chunk.data.len() as u64;
        let fits = chunk.offset == partial.have
            && partial.have.checked_add(length).is_some_and(|end| end <= partial.total);
        if length > 0 && fits && crc32c::crc32c(&chunk.data) == chunk.checksum {
            let data = chunk.data.clone();
            let write = move || -> io::Result<Partial> {
                partial.file.write_at(partial.have, &data)?;
                partial.have += data.len() as u64;
                if partial.have == partial.total {
                    partial.file.sync()?;
                }
                Ok(partial)
            };
            partial = self.work.run(write).await??;
        }
        let have = partial.have;
        self.partial = Some(partial);
        Ok(have)
    }

    /// Forgets the file after it was installed or rejected.
    pub(super) fn end(&mut self) {
        self.partial = None;
    }
}
