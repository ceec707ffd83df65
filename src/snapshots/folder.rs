//! The local folder of snapshots: list, create, delete and prune.

use std::fs::File;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{COMPRESSED, zip};

/// Suffix of incomplete files.
const TEMPORARY: &str = ".tmp";

/// A snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Snapshot {
    /// File name.
    pub(crate) name: String,
    /// `file://` and the path.
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
    own: bool,
}

impl Folder {
    /// The given folder, or the default one.
    pub(crate) fn new(asked: Option<&Path>, data_dir: &Path) -> Self {
        let default = super::default_dir(data_dir);
        let path = asked.map_or_else(|| default.clone(), Path::to_owned);
        Self { own: path == default, path }
    }

    fn told(&self, error: impl std::fmt::Display) -> String {
        format!("the snapshot directory {}: {error}", self.path.display())
    }

    /// An unused name with the prefix `base`, and the file to write to first.
    pub(crate) fn begin(&self, base: &str) -> Result<(String, PathBuf), String> {
        if self.own {
            base::fs::create_dir(&self.path, 0o700).map_err(|e| e.to_string())?;
        } else if !self.path.is_dir() {
            return Err(self.told("is not there; only the default one is made"));
        }
        let now = base::clock::unix_time().as_secs();
        let taken = |name: &str| {
            let exists = |name: String| self.path.join(name).exists();
            exists(name.to_owned()) || exists(format!("{name}{COMPRESSED}"))
        };
        let name = (now..).map(|second| format!("{base}-{second}")).find(|name| !taken(name));
        let name = name.ok_or_else(|| self.told("has no free name"))?;
        self.sweep(&format!(".{base}-"))?;
        let temporary = self.path.join(format!(".{name}{TEMPORARY}"));
        Ok((name, temporary))
    }

    /// Removes incomplete files of a killed process.
    fn sweep(&self, begin: &str) -> Result<(), String> {
        for entry in std::fs::read_dir(&self.path).map_err(|e| self.told(e))? {
            let name = entry.map_err(|e| self.told(e))?.file_name().to_string_lossy().into_owned();
            if name.starts_with(begin) && name.ends_with(TEMPORARY) {
                std::fs::remove_file(self.path.join(name)).map_err(|e| self.told(e))?;
            }
        }
        Ok(())
    }

    /// Gives a complete snapshot its final name, compressed if requested.
    pub(crate) fn end(
        &self,
        name: &str,
        temporary: &Path,
        compress: bool,
    ) -> Result<Snapshot, String> {
        let told = |e: std::io::Error| self.told(e);
        let mut name = name.to_owned();
        if compress {
            let zipped = self.path.join(format!(".{name}{COMPRESSED}{TEMPORARY}"));
            let packed = zip::pack(temporary, &zipped, &name).and_then(|()| zip::check(&zipped));
            let packed = packed.and_then(|()| std::fs::rename(&zipped, temporary));
            if let Err(error) = packed {
                // The first error counts.
                let _ = std::fs::remove_file(&zipped);
                return Err(told(error));
            }
            name.push_str(COMPRESSED);
        }
        let path = self.path.join(&name);
        std::fs::rename(temporary, &path).map_err(told)?;
        File::open(&self.path).and_then(|folder| folder.sync_all()).map_err(told)?;
        self.look(&name).ok_or_else(|| self.told("the snapshot is gone"))
    }

    fn look(&self, name: &str) -> Option<Snapshot> {
        let path = self.path.join(name);
        let about = std::fs::symlink_metadata(&path).ok().filter(std::fs::Metadata::is_file)?;
        let modified = || {
            let since = about.modified().ok()?.duration_since(std::time::UNIX_EPOCH).ok()?;
            i64::try_from(since.as_secs()).ok()
        };
        Some(Snapshot {
            created: stamp(name).or_else(modified).unwrap_or(0),
            location: format!("file://{}", path.display()),
            name: name.to_owned(),
            size: about.len(),
        })
    }

    /// All snapshots, oldest first.
    ///
    /// # Errors
    /// An error message.
    pub(crate) fn list(&self) -> Result<Vec<Snapshot>, String> {
        let entries = match std::fs::read_dir(&self.path) {
            Ok(entries) => entries,
            Err(e) if self.own && e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(self.told(error)),
        };
        let mut snapshots = Vec::new();
        for entry in entries {
            let name = entry.map_err(|e| self.told(e))?.file_name().to_string_lossy().into_owned();
            if !name.ends_with(TEMPORARY) {
                snapshots.extend(self.look(&name));
            }
        }
        Ok(oldest_first(snapshots))
    }

    /// Deletes snapshots; returns the names of those that existed.
    ///
    /// # Errors
    /// An error message.
    pub(crate) fn delete(&self, names: &[String]) -> Result<Vec<String>, String> {
        let known = self.list()?;
        let mut deleted = Vec::new();
        for name in names {
            if known.iter().any(|snapshot| snapshot.name == *name) {
                std::fs::remove_file(self.path.join(name)).map_err(|e| self.told(e))?;
                deleted.push(name.clone());
            }
        }
        Ok(deleted)
    }

    /// Deletes the oldest snapshots of this name and node beyond `keep`; returns their names.
    ///
    /// # Errors
    /// An error message.
    pub(crate) fn prune(&self, name: &str, node: &str, keep: usize) -> Result<Vec<String>, String> {
        self.delete(&too_many(&self.list()?, &format!("{name}-{node}-"), keep))
    }
}

/// Formats a snapshot for lists.
pub(crate) fn oldest_first(mut snapshots: Vec<Snapshot>) -> Vec<Snapshot> {
    snapshots.sort_by(|a, b| (a.created, &a.name).cmp(&(b.created, &b.name)));
    snapshots
}

/// Parses the time in a snapshot's name.
pub(crate) fn stamp(name: &str) -> Option<i64> {
    let base = name.strip_suffix(COMPRESSED).unwrap_or(name);
    base.rsplit('-').next()?.parse().ok()
}

/// The oldest snapshots with this prefix and a time suffix, beyond `keep`; `snapshots` are ordered
/// by age, oldest first.
pub(crate) fn too_many(snapshots: &[Snapshot], begin: &str, keep: usize) -> Vec<String> {
    if keep == 0 {
        return Vec::new();
    }
    let ours = |name: &&str| {
        let rest = name.strip_prefix(begin).unwrap_or_default();
        let rest = rest.strip_suffix(COMPRESSED).unwrap_or(rest);
        !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit())
    };
    let ours: Vec<&str> = snapshots.iter().map(|s| s.name.as_str()).filter(ours).collect();
    let excess = ours.len().saturating_sub(keep);
    ours.into_iter().take(excess).map(str::to_owned).collect()
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
    fn the_oldest_of_one_name_and_node_are_pruned_and_no_others() {
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
    fn only_what_is_listed_can_be_deleted() {
        let (data, folder) = folder(&["a-1"]);
        std::fs::write(data.path().join("server/db/lock"), "").unwrap();
        std::fs::create_dir(data.path().join("server/db/snapshots/a-2")).unwrap();
        let names = ["../lock", "a-2", "a-1", "a-1", "absent"].map(str::to_owned);
        assert_eq!(folder.delete(&names[..3]).unwrap(), ["a-1"]);
        assert_eq!(folder.delete(&names[3..]).unwrap(), [""; 0]);
        assert!(data.path().join("server/db/lock").exists());
    }

    #[test]
    fn names_are_free_and_only_the_default_folder_is_made() {
        let data = tempfile::tempdir().unwrap();
        let folder = Folder::new(None, data.path());
        assert!(folder.list().unwrap().is_empty());
        let (first, temporary) = folder.begin("on-demand-a").unwrap();
        std::fs::write(&temporary, "x").unwrap();
        let snapshot = folder.end(&first, &temporary, true).unwrap();
        assert_eq!(snapshot.name, format!("{first}.zip"));
        assert_eq!(Some(snapshot.created), stamp(&first));
        assert_ne!(folder.begin("on-demand-a").unwrap().0, first);
        let other = Folder::new(Some(&data.path().join("other")), data.path());
        assert!(other.begin("x").unwrap_err().contains("is not there"));
        assert!(other.list().is_err());
    }
}
