//! The bytes and inodes that files and directories use. As upstream's volume statistics, a path is
//! measured at most once a minute.

use std::collections::{HashMap, HashSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::volume_usage::{COLLECTION_DURATION, KEPT_FOR};

/// Maximum number of directory entries of a measured tree: a longer walk would take minutes.
const ENTRIES_MAX: usize = 1 << 20;
/// The unit of `st_blocks` (`stat(2)`), in bytes.
const BLOCK: u64 = 512;

/// The usage of a file, or of a directory with everything below it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Used {
    /// Allocated bytes, not the lengths of the files.
    pub(crate) bytes: u64,
    pub(crate) inodes: u64,
    /// Time of the measurement, in nanoseconds since the epoch.
    pub(super) at: i64,
}

/// The last measurement of each path with its time; `None` if the path could not be measured.
#[derive(Debug, Default)]
pub(super) struct DiskUsage(Mutex<HashMap<PathBuf, (Instant, Option<Used>)>>);

impl DiskUsage {
    /// Returns the usage of a file or directory, without following links or leaving its file
    /// system; `None` if it does not exist or is too large. Blocks during the walk.
    pub(super) fn of(&self, path: &Path, now: Instant) -> Option<Used> {
        if let Some((at, used)) = self.0.lock().get(path)
            && now.saturating_duration_since(*at) < KEPT_FOR
        {
            return *used;
        }
        // The lock is not held during the walk: a request for another path does not wait for it.
        let begun = base::clock::now();
        let used = walk(path, ENTRIES_MAX);
        COLLECTION_DURATION.took(&["du"], begun.elapsed());
        self.0.lock().insert(path.to_owned(), (now, used));
        used
    }

    /// Drops expired measurements, such as those of removed pods.
    pub(super) fn prune(&self, now: Instant) {
        self.0.lock().retain(|_, (at, _)| now.saturating_duration_since(*at) < KEPT_FOR);
    }
}

/// Measures a file or directory now, without following links or leaving its file system; `None` if
/// it does not exist. Blocks during the walk, however long it takes: a limit must not end with the
/// number of files.
pub(crate) fn measure_now(path: &Path) -> Option<Used> {
    walk(path, usize::MAX)
}

/// Measures a path; `None` if it does not exist or has more than `entries_left` entries below it.
fn walk(path: &Path, mut entries_left: usize) -> Option<Used> {
    let root = std::fs::symlink_metadata(path).ok()?;
    let at = i64::try_from(base::clock::unix_time().as_nanos()).unwrap_or_default();
    let mut used = Used { bytes: root.blocks().saturating_mul(BLOCK), inodes: 1, at };
    // A file with several hard links counts once.
    let mut counted = HashSet::new();
    let mut directories = if root.is_dir() { vec![path.to_owned()] } else { Vec::new() };
    while let Some(directory) = directories.pop() {
        // Files that are removed during the walk are skipped.
        for entry in std::fs::read_dir(&directory).into_iter().flatten().flatten() {
            entries_left = entries_left.checked_sub(1)?;
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.dev() != root.dev()
                || (metadata.nlink() > 1 && !metadata.is_dir() && !counted.insert(metadata.ino()))
            {
                continue;
            }
            used.bytes = used.bytes.saturating_add(metadata.blocks().saturating_mul(BLOCK));
            used.inodes = used.inodes.saturating_add(1);
            if metadata.is_dir() {
                directories.push(entry.path());
            }
        }
    }
    Some(used)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_tree_is_measured_once_a_minute() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("v");
        std::fs::create_dir_all(root.join("a")).unwrap();
        let (usage, now) = (DiskUsage::default(), Instant::now());
        let empty = usage.of(&root, now).unwrap();
        assert_eq!(empty.inodes, 2);
        std::fs::write(root.join("a/b"), vec![1; 100_000]).unwrap();
        std::fs::hard_link(root.join("a/b"), root.join("c")).unwrap();
        std::os::unix::fs::symlink("/", root.join("root")).unwrap();
        assert_eq!(usage.of(&root, now + Duration::from_secs(59)), Some(empty));
        let used = usage.of(&root, now + Duration::from_secs(60)).unwrap();
        assert_eq!(used.inodes, 4, "the file counts once, the link is not followed");
        let grown = used.bytes - empty.bytes;
        assert!((100_000..200_000).contains(&grown), "{grown}");
        assert_eq!(usage.of(&folder.path().join("none"), now), None);
        usage.prune(now + Duration::from_secs(200));
        assert!(usage.0.lock().is_empty());
    }

    #[test]
    fn a_tree_with_too_many_entries_is_not_measured() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a", "b", "c"] {
            std::fs::write(folder.path().join(name), name).unwrap();
        }
        assert!(walk(folder.path(), 3).is_some());
        assert_eq!(walk(folder.path(), 2), None);
    }
}
