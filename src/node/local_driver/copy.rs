//! Copies of the files of volumes: with shared blocks if the file system can, otherwise of the
//! data without the holes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use base::Shutdown;
use nix::unistd::{Whence, lseek};

use super::error::LocalDriverError;
use super::sys;

/// Bytes that are copied at a time.
const CHUNK: usize = 1 << 20;

/// Creates `to` with shared blocks of `from`; returns whether the file system can do so.
pub(super) fn share(from: &File, to: &File) -> Result<bool, LocalDriverError> {
    use nix::libc::{EINVAL, ENOTTY, EOPNOTSUPP, EXDEV};
    match sys::share_blocks(from, to) {
        Ok(()) => Ok(true),
        Err(error) => match error.raw_os_error() {
            Some(EINVAL | ENOTTY | EOPNOTSUPP | EXDEV) => Ok(false),
            _ => Err(LocalDriverError::Other(format!("cannot share blocks: {error}"))),
        },
    }
}

/// The next range with data from `at` on; `None` if only a hole follows.
fn data_from(file: &File, at: u64, end: u64) -> io::Result<Option<(u64, u64)>> {
    let offset = i64::try_from(at).map_err(io::Error::other)?;
    let begin = match lseek(file, offset, Whence::SeekData) {
        Ok(begin) => begin,
        Err(nix::Error::ENXIO) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let hole = lseek(file, begin, Whence::SeekHole)?;
    let (begin, hole) = (u64::try_from(begin), u64::try_from(hole));
    let (begin, hole) = (begin.map_err(io::Error::other)?, hole.map_err(io::Error::other)?);
    Ok((begin < end).then_some((begin, hole.min(end))))
}

/// Copies the data of `from` to the empty file `to`, which gets the same size. Ends early if
/// `stop` is requested.
pub(super) fn copy_data(from: &File, to: &File, stop: &Shutdown) -> Result<(), LocalDriverError> {
    let failed = |error: io::Error| LocalDriverError::Other(format!("cannot copy: {error}"));
    let end = from.metadata().map_err(failed)?.len();
    to.set_len(end).map_err(failed)?;
    let mut buffer = vec![0; CHUNK];
    let mut at = 0;
    while let Some((begin, hole)) = data_from(from, at, end).map_err(failed)? {
        at = begin;
        while at < hole {
            if stop.is_requested() {
                return Err(LocalDriverError::Stopped);
            }
            let length = usize::try_from(hole - at).unwrap_or(CHUNK).min(CHUNK);
            let part = buffer.get_mut(..length).unwrap_or_default();
            let read = from.read_at(part, at).map_err(failed)?;
            if read == 0 {
                return Err(failed(io::ErrorKind::UnexpectedEof.into()));
            }
            to.write_all_at(part.get(..read).unwrap_or_default(), at).map_err(failed)?;
            at += u64::try_from(read).unwrap_or_default();
        }
    }
    Ok(())
}

/// A file system that is not written until this is dropped.
#[derive(Debug)]
pub(super) struct Frozen(Option<File>);

impl Frozen {
    /// Freezes the file system mounted on a directory. One that is frozen already, by an
    /// administrator, stays frozen afterwards.
    pub(super) fn new(directory: &Path) -> Result<Self, LocalDriverError> {
        let file = File::open(directory).map_err(LocalDriverError::io("open", directory))?;
        match sys::freeze(&file) {
            Ok(()) => Ok(Self(Some(file))),
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Ok(Self(None)),
            Err(error) => Err(LocalDriverError::io("freeze", directory)(error)),
        }
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        if let Some(file) = &self.0
            && let Err(error) = sys::thaw(file)
        {
            tracing::error!(%error, "local driver: cannot thaw a volume");
        }
    }
}

/// Thaws what an earlier process left frozen; returns whether it was.
pub(super) fn thaw(directory: &Path) -> Result<bool, LocalDriverError> {
    let file = File::open(directory).map_err(LocalDriverError::io("open", directory))?;
    match sys::thaw(&file) {
        Ok(()) => Ok(true),
        // It is not frozen.
        Err(error) if error.raw_os_error() == Some(nix::libc::EINVAL) => Ok(false),
        Err(error) => Err(LocalDriverError::io("thaw", directory)(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    fn files(home: &Path) -> (File, File) {
        let open = |name: &str| {
            let mut options = File::options();
            options.read(true).write(true).create_new(true).open(home.join(name)).unwrap()
        };
        (open("from"), open("to"))
    }

    #[test]
    fn a_copy_has_the_data_and_the_holes() {
        let home = tempfile::tempdir().unwrap();
        let (from, to) = files(home.path());
        from.set_len(64 << 20).unwrap();
        from.write_all_at(b"first", 0).unwrap();
        from.write_all_at(&[7; 3 << 20], 32 << 20).unwrap();
        copy_data(&from, &to, &Shutdown::new()).unwrap();
        let (mut a, mut b) = (vec![0; 64 << 20], vec![1; 64 << 20]);
        from.read_exact_at(&mut a, 0).unwrap();
        to.read_exact_at(&mut b, 0).unwrap();
        assert!(a == b);
        assert!(to.metadata().unwrap().blocks() * 512 < 16 << 20, "holes stay holes");
    }

    #[test]
    fn a_copy_ends_with_the_process() {
        let home = tempfile::tempdir().unwrap();
        let (from, to) = files(home.path());
        from.write_all_at(b"x", 0).unwrap();
        let stop = Shutdown::new();
        stop.request();
        assert!(matches!(copy_data(&from, &to, &stop), Err(LocalDriverError::Stopped)));
    }

    #[test]
    fn an_empty_file_is_copied() {
        let home = tempfile::tempdir().unwrap();
        let (from, to) = files(home.path());
        from.set_len(1 << 20).unwrap();
        copy_data(&from, &to, &Shutdown::new()).unwrap();
        assert_eq!(to.metadata().unwrap().len(), 1 << 20);
    }
}
