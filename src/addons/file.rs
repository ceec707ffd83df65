//! Reads a manifest from disk: bounded, and only while it does not change.

use std::fs::Metadata;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::error::ReadError;
use crate::limits::FILE_BYTES_MAX;

/// Flag of `open` that does not wait for the writer of a FIFO.
const O_NONBLOCK: i32 = 0o4000;

/// What tells one state of a file from another without reading it. Size and time alone do not on
/// file systems where every file has the same time, such as `/nix/store`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fingerprint {
    device_and_inode: (u64, u64),
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Fingerprint {
    /// The fingerprint of a file's metadata.
    pub(crate) fn of(metadata: &Metadata) -> Self {
        Self {
            device_and_inode: (metadata.dev(), metadata.ino()),
            size: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// Time since the content was written; the maximum if that is in the future.
    pub(crate) fn age(&self, now: SystemTime) -> Duration {
        let since_epoch = u64::try_from(self.modified.0).unwrap_or_default();
        let nanos = u32::try_from(self.modified.1).unwrap_or_default();
        let written = SystemTime::UNIX_EPOCH + Duration::new(since_epoch, nanos);
        // A time in the future says nothing: the clock was set.
        now.duration_since(written).unwrap_or(Duration::MAX)
    }
}

/// Reads the file. Blocks.
///
/// # Errors
/// It cannot be read, is not a regular file, is too large, or changes meanwhile.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, ReadError> {
    let mut file = std::fs::OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path)?;
    let before = file.metadata()?;
    if !before.is_file() {
        return Err(ReadError::NotRegular);
    }
    if before.len() > FILE_BYTES_MAX {
        return Err(ReadError::TooLarge(before.len()));
    }
    let mut content = Vec::new();
    Read::by_ref(&mut file).take(FILE_BYTES_MAX + 1).read_to_end(&mut content)?;
    let after = file.metadata()?;
    let length = u64::try_from(content.len()).unwrap_or(u64::MAX);
    if Fingerprint::of(&before) != Fingerprint::of(&after) || length != after.len() {
        return Err(ReadError::Changing);
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_up_to_the_maximum_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("a"), "x").unwrap();
        assert_eq!(read(&at("a")).unwrap(), b"x");
        assert!(matches!(read(folder.path()), Err(ReadError::NotRegular)));
        assert!(matches!(read(&at("none")), Err(ReadError::Io(_))));
        let large = std::fs::File::create(at("large")).unwrap();
        large.set_len(FILE_BYTES_MAX + 1).unwrap();
        assert!(matches!(read(&at("large")), Err(ReadError::TooLarge(_))));
    }

    #[test]
    fn the_age_of_a_file_is_that_of_its_content() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let metadata = file.as_file().metadata().unwrap();
        let (print, written) = (Fingerprint::of(&metadata), metadata.modified().unwrap());
        assert_eq!(print.age(written + Duration::from_secs(3)), Duration::from_secs(3));
        assert_eq!(print.age(written - Duration::from_secs(3)), Duration::MAX);
    }
}
