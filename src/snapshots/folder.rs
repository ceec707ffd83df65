//! The local folder of snapshots: list, create, delete and prune.

use std::fs::File;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sorting::CompactSort as _;

use super::error::Error;
use super::zip;

/// Extension of a compressed snapshot.
pub(super) const COMPRESSED: &str = ".zip";

/// Suffix of incomplete files.
const TEMPORARY: &str = ".tmp";

/// A snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Snapshot {
    /// File name.
    pub(crate) name: String,
    /// `file://` and the path, or the URL of the object in the bucket.
    pub(crate) location: String,
    /// Size in bytes.
    pub(crate) size: u64,
    /// Creation time in seconds since 1970, from its name, or else from its file.
    pub(crate) created: i64,
}

impl Snapshot {
    /// Whether it is a local file; otherwise it is in a bucket.
    pub(crate) fn is_local(&self) -> bool {
        self.location.starts_with("file://")
    }
}

/// A folder of snapshots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Folder {
    path: PathBuf,
    /// Whether it is the default folder, which is created if missing.
    is_default: bool,
}

impl Folder {
    /// The given folder, or the default one.
    pub(crate) fn new(given: Option<&Path>, data_dir: &Path) -> Self {
        let default = default_dir(data_dir);
        let path = given.map_or_else(|| default.clone(), Path::to_owned);
        Self { is_default: path == default, path }
    }

    fn failed(&self, source: std::io::Error) -> Error {
        Error::Directory { path: self.path.clone(), source }
    }

    /// An unused name with the prefix `base`, and the file to write to first.
    pub(crate) fn start_file(&self, base: &str) -> Result<(String, PathBuf), Error> {
        if self.is_default {
            base::fs::create_dir(&self.path, 0o700).map_err(Error::CreateDirectory)?;
        } else if !self.path.is_dir() {
            return Err(Error::MissingDirectory(self.path.clone()));
        }
        let now = base::clock::unix_time().as_secs();
        let taken = |name: &str| {
            let exists = |name: String| self.path.join(name).exists();
            exists(name.to_owned()) || exists(format!("{name}{COMPRESSED}"))
        };
        let name = (now..).map(|second| format!("{base}-{second}")).find(|name| !taken(name));
        let name = name.ok_or_else(|| Error::NoFreeName(self.path.clone()))?;
        self.remove_incomplete(&format!(".{base}-"))?;
        let temporary = self.path.join(format!(".{name}{TEMPORARY}"));
        Ok((name, temporary))
    }

    /// Removes incomplete files of a killed process.
    fn remove_incomplete(&self, prefix: &str) -> Result<(), Error> {
        for entry in std::fs::read_dir(&self.path).map_err(|e| self.failed(e))? {
            let name =
                entry.map_err(|e| self.failed(e))?.file_name().to_string_lossy().into_owned();
            if name.starts_with(prefix) && name.ends_with(TEMPORARY) {
                std::fs::remove_file(self.path.join(name)).map_err(|e| self.failed(e))?;
            }
        }
        Ok(())
    }

    /// Gives a complete snapshot its final name, compressed if requested.
    pub(crate) fn finish_file(
        &self,
        name: &str,
        temporary: &Path,
        compress: bool,
    ) -> Result<Snapshot, Error> {
        let failed = |e: std::io::Error| self.failed(e);
        let mut name = name.to_owned();
        if compress {
            let zipped = self.path.join(format!(".{name}{COMPRESSED}{TEMPORARY}"));
            let packed = zip::pack(temporary, &zipped, &name).and_then(|()| zip::check(&zipped));
            let packed = packed.and_then(|()| std::fs::rename(&zipped, temporary));
            if let Err(error) = packed {
                // Only the first error is reported.
                let _ = std::fs::remove_file(&zipped);
                return Err(failed(error));
            }
            name.push_str(COMPRESSED);
        }
        let path = self.path.join(&name);
        std::fs::rename(temporary, &path).map_err(failed)?;
        File::open(&self.path).and_then(|folder| folder.sync_all()).map_err(failed)?;
        self.describe(&name).ok_or_else(|| Error::Vanished(self.path.clone()))
    }

    fn describe(&self, name: &str) -> Option<Snapshot> {
        let path = self.path.join(name);
        let about = std::fs::symlink_metadata(&path).ok().filter(std::fs::Metadata::is_file)?;
        let modified = || {
            let since = about.modified().ok()?.duration_since(std::time::UNIX_EPOCH).ok()?;
            i64::try_from(since.as_secs()).ok()
        };
        Some(Snapshot {
            created: timestamp(name).or_else(modified).unwrap_or(0),
            location: format!("file://{}", path.display()),
            name: name.to_owned(),
            size: about.len(),
        })
    }

    /// All snapshots, oldest first.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub(crate) fn list(&self) -> Result<Vec<Snapshot>, Error> {
        let entries = match std::fs::read_dir(&self.path) {
            Ok(entries) => entries,
            Err(e) if self.is_default && e.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Vec::new());
            }
            Err(error) => return Err(self.failed(error)),
        };
        let mut snapshots = Vec::new();
        for entry in entries {
            let name =
                entry.map_err(|e| self.failed(e))?.file_name().to_string_lossy().into_owned();
            if !name.ends_with(TEMPORARY) {
                snapshots.extend(self.describe(&name));
            }
        }
        Ok(oldest_first(snapshots))
    }

    /// Deletes snapshots; returns the names of existing ones.
    ///
    /// # Errors
    /// The folder cannot be read, or a file cannot be removed.
    pub(crate) fn delete(&self, names: &[String]) -> Result<Vec<String>, Error> {
        let known = self.list()?;
        let mut deleted = Vec::new();
        for name in names {
            if known.iter().any(|snapshot| snapshot.name == *name) {
                std::fs::remove_file(self.path.join(name)).map_err(|e| self.failed(e))?;
                deleted.push(name.clone());
            }
        }
        Ok(deleted)
    }

    /// Deletes the oldest snapshots of this name and node beyond `keep`; returns their names.
    ///
    /// # Errors
    /// The folder cannot be read, or a file cannot be removed.
    pub(crate) fn prune(&self, name: &str, node: &str, keep: usize) -> Result<Vec<String>, Error> {
        self.delete(&excess(&self.list()?, &format!("{name}-{node}-"), keep))
    }
}

/// Sorts snapshots by age, oldest first.
pub(crate) fn oldest_first(mut snapshots: Vec<Snapshot>) -> Vec<Snapshot> {
    snapshots.compact_sort_by(|a, b| (a.created, &a.name).cmp(&(b.created, &b.name)));
    snapshots
}

/// Parses the time in a snapshot's name.
pub(crate) fn timestamp(name: &str) -> Option<i64> {
    let base = name.strip_suffix(COMPRESSED).unwrap_or(name);
    base.rsplit('-').next()?.parse().ok()
}

/// The oldest snapshots with this prefix and a time suffix, beyond `keep`; `snapshots` are ordered
/// by age, oldest first.
pub(crate) fn excess(snapshots: &[Snapshot], prefix: &str, keep: usize) -> Vec<String> {
    if keep == 0 {
        return Vec::new();
    }
    let has_prefix = |name: &&str| {
        let rest = name.strip_prefix(prefix).unwrap_or_default();
        let rest = rest.strip_suffix(COMPRESSED).unwrap_or(rest);
        !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit())
    };
    let matching: Vec<&str> =
        snapshots.iter().map(|s| s.name.as_str()).filter(has_prefix).collect();
    let excess = matching.len().saturating_sub(keep);
    matching.into_iter().take(excess).map(str::to_owned).collect()
}

/// Whether a text can be (part of) the file name of a snapshot.
pub(super) fn is_valid_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    !name.is_empty() && name.len() <= 128 && !name.starts_with('.') && name.chars().all(is_plain)
}

/// The default folder of a data directory.
pub(crate) fn default_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("server/db/snapshots")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(names: &[&str]) -> (tempfile::TempDir, Folder) {
        let data = tempfile::tempdir().unwrap();
        let dir = data.path().join("server/db/snapshots");
        std::fs::create_dir_all(&dir).unwrap();
        names.iter().for_each(|name| std::fs::write(dir.join(name), name).unwrap());
        let folder = Folder::new(None, data.path());
        (data, folder)
    }

    #[test]
    fn prune_deletes_only_the_oldest_of_one_name_and_node() {
        let names = [
            "etcd-snapshot-a-30",
            "etcd-snapshot-a-9.zip",
            "etcd-snapshot-a-100",
            "etcd-snapshot-a-b-1",
            "on-demand-a-1",
            "etcd-snapshot-a-5x",
            ".etcd-snapshot-a-7.tmp",
        ];
        let (_data, folder) = folder(&names);
        assert_eq!(folder.prune("etcd-snapshot", "a", 0).unwrap(), [""; 0]);
        assert_eq!(folder.prune("etcd-snapshot", "a", 3).unwrap(), [""; 0]);
        assert_eq!(
            folder.prune("etcd-snapshot", "a", 1).unwrap(),
            ["etcd-snapshot-a-9.zip", "etcd-snapshot-a-30"]
        );
        let mut left: Vec<String> = folder.list().unwrap().into_iter().map(|s| s.name).collect();
        left.sort();
        assert_eq!(
            left,
            ["etcd-snapshot-a-100", "etcd-snapshot-a-5x", "etcd-snapshot-a-b-1", "on-demand-a-1"]
        );
    }

    #[test]
    fn only_listed_snapshots_can_be_deleted() {
        let (data, folder) = folder(&["a-1"]);
        std::fs::write(data.path().join("server/db/lock"), "").unwrap();
        std::fs::create_dir(data.path().join("server/db/snapshots/a-2")).unwrap();
        let names = ["../lock", "a-2", "a-1", "a-1", "absent"].map(str::to_owned);
        assert_eq!(folder.delete(&names[..3]).unwrap(), ["a-1"]);
        assert_eq!(folder.delete(&names[3..]).unwrap(), [""; 0]);
        assert!(data.path().join("server/db/lock").exists());
    }

    #[test]
    fn names_are_unused_and_only_the_default_folder_is_created() {
        let data = tempfile::tempdir().unwrap();
        let folder = Folder::new(None, data.path());
        assert!(folder.list().unwrap().is_empty());
        let (first, temporary) = folder.start_file("on-demand-a").unwrap();
        std::fs::write(&temporary, "x").unwrap();
        let snapshot = folder.finish_file(&first, &temporary, true).unwrap();
        assert_eq!(snapshot.name, format!("{first}.zip"));
        assert_eq!(Some(snapshot.created), timestamp(&first));
        assert_ne!(folder.start_file("on-demand-a").unwrap().0, first);
        let other = Folder::new(Some(&data.path().join("other")), data.path());
        assert!(matches!(other.start_file("x"), Err(Error::MissingDirectory(_))));
        assert!(other.list().is_err());
    }
}
