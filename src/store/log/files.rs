//! The file system interface: one flat directory of files. This file has the real one, `sim.rs` the
//! simulated one.

use std::fmt::Debug;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use nix::fcntl::{FallocateFlags, fallocate};

use super::direct::{Direct, Queues};

/// A directory.
pub(crate) trait Disk: Send + Sync + Debug + 'static {
    /// Names of all files.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Creates or replaces a file with `size` bytes of zeros, reserved if the file system can.
    fn create(&self, name: &str, size: u64) -> io::Result<Box<dyn DiskFile>>;
    /// Opens a file for reading and writing.
    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;
    /// Renames a file, replacing the target.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes creations, renames and removals durable.
    fn sync(&self) -> io::Result<()>;
    /// Duration of the next batch of the log; where time is simulated, a sync takes as long as
    /// configured.
    #[cfg(test)]
    fn latency(&self) -> std::time::Duration {
        std::time::Duration::ZERO
    }
}

/// A file of a [`Disk`].
pub(crate) trait DiskFile: Send + Debug {
    /// Length in bytes.
    fn size(&self) -> io::Result<u64>;
    /// Reads from `offset` until the buffer is full or the file ends; returns the number of bytes.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;
    /// Writes all of `data`.
    fn write_at(&mut self, offset: u64, data: &[u8]) -> io::Result<()>;
    /// Makes the content durable (`fdatasync`).
    fn sync(&mut self) -> io::Result<()>;
    /// Writes all of `data` and makes it durable; everything before it is durable, and nothing
    /// follows it.
    fn write_durable(&mut self, offset: u64, data: &[u8]) -> Result<(), NotDurable> {
        write_then_sync(self, offset, data)
    }
    /// Fills everything after `length` with zeros, so that no old data can be read, and reserves up
    /// to `size`. The file is never shorter than `size` meanwhile, so that a shorter one was
    /// truncated by something else.
    fn cut(&mut self, length: u64, size: u64) -> io::Result<()>;
    /// Maps the whole file; the mapping stays valid when the file is removed. Only for files that
    /// are never written or truncated again. An error means that files cannot be mapped, and is
    /// harmless.
    fn map(&self) -> io::Result<Bytes>;
}

/// The error of [`DiskFile::write_durable`].
#[derive(Debug)]
pub(crate) enum NotDurable {
    /// The written part must be truncated; then the file is as before.
    Unwritten(io::Error),
    /// The content on disk is unknown.
    Unsynced(io::Error),
}

/// A durable write in two steps.
fn write_then_sync<F: DiskFile + ?Sized>(
    file: &mut F,
    offset: u64,
    data: &[u8],
) -> Result<(), NotDurable> {
    file.write_at(offset, data).map_err(NotDurable::Unwritten)?;
    file.sync().map_err(NotDurable::Unsynced)
}

/// Whether the device or the quota is full.
pub(crate) fn is_no_space(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Reads a whole file into a buffer, replacing its content.
pub(crate) fn read_all(file: &dyn DiskFile, into: &mut BytesMut) -> io::Result<()> {
    let size =
        usize::try_from(file.size()?).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
    into.resize(size, 0);
    let read = file.read_at(0, into)?;
    into.truncate(read);
    Ok(())
}

/// A real directory.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    queues: Arc<Queues>,
}

impl Directory {
    /// The directory `path`.
    pub(crate) fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), queues: Arc::default() }
    }

    fn file(&self, cached: File) -> Box<dyn DiskFile> {
        Box::new(RealFile { cached, direct: None, queues: Arc::clone(&self.queues) })
    }
}

impl Disk for Directory {
    fn list(&self) -> io::Result<Vec<String>> {
        let name = |entry: io::Result<std::fs::DirEntry>| {
            Ok(entry?.file_name().to_string_lossy().into_owned())
        };
        std::fs::read_dir(&self.path)?.map(name).collect()
    }

    fn create(&self, name: &str, size: u64) -> io::Result<Box<dyn DiskFile>> {
        let path = self.path.join(name);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&path)?;
        if let Err(error) = reserve(&file, size) {
            // The first error counts; the file is useless, and a later start removes it.
            let _ = std::fs::remove_file(&path);
            return Err(error);
        }
        Ok(self.file(file))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        Ok(self.file(OpenOptions::new().read(true).write(true).open(self.path.join(name))?))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.path.join(from), self.path.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.path.join(name))
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }
}

/// Reserves space, so that appending neither changes the file size nor runs out of space; writes
/// zeros if the file system cannot reserve.
fn reserve(file: &File, size: u64) -> io::Result<()> {
    if size == 0 {
        return Ok(());
    }
    let length = i64::try_from(size).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
    match fallocate(file, FallocateFlags::empty(), 0, length) {
        Ok(()) => Ok(()),
        Err(nix::Error::EOPNOTSUPP | nix::Error::ENOSYS) => fill(file, size),
        Err(error) => Err(error.into()),
    }
}

/// Zeroes the bytes from `from` to `to` without shrinking the file, if the file system can.
fn clear(file: &File, from: u64, to: u64) -> io::Result<()> {
    let too_large = |_| io::Error::from(io::ErrorKind::FileTooLarge);
    let length = i64::try_from(to.saturating_sub(from)).map_err(too_large)?;
    if length == 0 {
        return Ok(());
    }
    let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    match fallocate(file, flags, i64::try_from(from).map_err(too_large)?, length) {
        Ok(()) => Ok(()),
        Err(nix::Error::EOPNOTSUPP | nix::Error::ENOSYS) => file.set_len(from),
        Err(error) => Err(error.into()),
    }
}

/// Writes zeros from the end of a file up to `size`.
fn fill(file: &File, size: u64) -> io::Result<()> {
    let zeros = vec![0; 64 * 1024];
    let mut at = file.metadata()?.len();
    while at < size {
        let count = usize::try_from(size - at).unwrap_or(zeros.len()).min(zeros.len());
        file.write_all_at(zeros.get(..count).unwrap_or_default(), at)?;
        at += count as u64;
    }
    Ok(())
}

#[derive(Debug)]
struct RealFile {
    cached: File,
    /// The direct writer of the file, from the first durable write on; `None` inside if there is
    /// none.
    direct: Option<Option<Direct>>,
    queues: Arc<Queues>,
}

impl DiskFile for RealFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.cached.metadata()?.len())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while let Some(rest) = buffer.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match self.cached.read_at(rest, offset + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn write_at(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.cached.write_all_at(data, offset)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.cached.sync_data()
    }

    fn write_durable(&mut self, offset: u64, data: &[u8]) -> Result<(), NotDurable> {
        let direct = self.direct.get_or_insert_with(|| Direct::open(&self.queues, &self.cached));
        match direct.as_mut().and_then(|direct| direct.write(&self.cached, offset, data)) {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) if is_no_space(&error) => Err(NotDurable::Unwritten(error)),
            Some(Err(error)) => Err(NotDurable::Unsynced(error)),
            None => write_then_sync(self, offset, data),
        }
    }

    fn cut(&mut self, length: u64, size: u64) -> io::Result<()> {
        let end = self.cached.metadata()?.len().max(size);
        clear(&self.cached, length, end)?;
        if self.cached.metadata()?.len() < end {
            self.cached.set_len(end)?;
        }
        // Without a reservation the file has a hole; a full device is then noticed at the write.
        match reserve(&self.cached, size) {
            Err(error) if is_no_space(&error) => Ok(()),
            other => other,
        }
    }

    fn map(&self) -> io::Result<Bytes> {
        super::sys::map(&self.cached)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_are_a_reservation_where_there_is_no_other_and_harm_nothing_before_them() {
        let path = std::env::temp_dir().join(format!("kube-lite-fill-{}", std::process::id()));
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)
            .unwrap();
        file.write_all_at(b"before", 0).unwrap();
        fill(&file, 200_001).unwrap();
        fill(&file, 100).unwrap();
        let content = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!((content.len(), &content[..7]), (200_001, &b"before\0"[..]));
    }

    #[test]
    fn a_map_is_the_file_and_outlives_its_name() {
        let directory = tempfile::tempdir().unwrap();
        let disk = Directory::new(directory.path());
        let mut file = disk.create("a", 0).unwrap();
        let content: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
        file.write_at(0, &content).unwrap();
        let map = file.map().unwrap();
        let slice = map.slice(4097..70_001);
        drop((file, map));
        disk.remove("a").unwrap();
        assert_eq!(slice, content[4097..70_001]);
        // Files that cannot be mapped are no error.
        drop(disk.create("empty", 0).unwrap().map());
    }
}
