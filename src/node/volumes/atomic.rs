//! Replaces a set of files atomically by switching a symbolic link.
//!
//! The layout is the kubelet's: `name -> ..data/name`, `..data -> ..<timestamp>.<random>`.

use std::collections::BTreeMap;
use std::io;
use std::path::{Component, Path, PathBuf};

use super::directory::chmod;

/// A file of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct VolumeFile {
    pub(super) data: Vec<u8>,
    pub(super) mode: u32,
    /// Owner, if it is not root.
    pub(super) user: Option<u32>,
}

/// Files by their path in the volume.
pub(super) type VolumeFiles = BTreeMap<String, VolumeFile>;

const DATA: &str = "..data";

fn check(path: &str) -> io::Result<()> {
    let plain = Path::new(path).components().all(|c| matches!(c, Component::Normal(_)));
    if path.is_empty() || !plain || path.starts_with("..") || path.len() > 4096 {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("invalid path {path:?} in a volume"),
        ));
    }
    Ok(())
}

fn first(path: &str) -> &str {
    path.split('/').next().unwrap_or(path)
}

/// Replaces the content of `folder` by `files`; writes nothing if it is equal.
pub(super) fn write(folder: &Path, files: &VolumeFiles, group: Option<u32>) -> io::Result<()> {
    for path in files.keys() {
        check(path)?;
    }
    std::fs::create_dir_all(folder)?;
    let link = folder.join(DATA);
    let old = std::fs::read_link(&link).ok().map(|name| folder.join(name));
    if let Some(old) = &old
        && is_same(old, files)
    {
        return Ok(());
    }
    chmod(folder, if group.is_some() { 0o2777 } else { 0o777 })?;
    if let Some(group) = group {
        std::os::unix::fs::chown(folder, None, Some(group))?;
    }
    let stamp = jiff::Timestamp::from_second(
        i64::try_from(base::clock::unix_time().as_secs()).unwrap_or_default(),
    )
    .map(|t| t.strftime("%Y_%m_%d_%H_%M_%S").to_string())
    .unwrap_or_default();
    let name = format!("..{stamp}.{}", base::clock::random_u64() % 1_000_000_000);
    let new = folder.join(&name);
    std::fs::create_dir(&new)?;
    chmod(&new, 0o755)?;
    if let Some(group) = group {
        std::os::unix::fs::chown(&new, None, Some(group))?;
        chmod(&new, 0o2755)?;
    }
    for (path, file) in files {
        write_file(&new, path, file, group)?;
    }
    let temporary = folder.join("..data_tmp");
    let _ = std::fs::remove_file(&temporary);
    std::os::unix::fs::symlink(&name, &temporary)?;
    std::fs::rename(&temporary, &link)?;
    for path in files.keys() {
        let visible = folder.join(first(path));
        if std::fs::symlink_metadata(&visible).is_err() {
            std::os::unix::fs::symlink(Path::new(DATA).join(first(path)), &visible)?;
        }
    }
    clean(folder, &name, files)
}

fn write_file(new: &Path, path: &str, file: &VolumeFile, group: Option<u32>) -> io::Result<()> {
    let target = new.join(path);
    let mut parent = new.to_owned();
    let components: Vec<&str> = path.split('/').collect();
    for part in &components[..components.len().saturating_sub(1)] {
        parent.push(part);
        if !parent.is_dir() {
            std::fs::create_dir(&parent)?;
            chmod(&parent, if group.is_some() { 0o2755 } else { 0o755 })?;
            if let Some(group) = group {
                std::os::unix::fs::chown(&parent, None, Some(group))?;
            }
        }
    }
    std::fs::write(&target, &file.data)?;
    if group.is_some() || file.user.is_some() {
        std::os::unix::fs::chown(&target, file.user, group)?;
    }
    // The group of the pod can read the file.
    chmod(&target, if group.is_some() { file.mode | 0o440 } else { file.mode })
}

fn is_same(old: &Path, files: &VolumeFiles) -> bool {
    let mut found = Vec::new();
    list(old, &mut found);
    found.len() == files.len()
        && files
            .iter()
            .all(|(path, file)| std::fs::read(old.join(path)).is_ok_and(|data| data == file.data))
}

fn list(folder: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            list(&entry.path(), out);
        } else {
            out.push(entry.path());
        }
    }
}

/// Removes previous versions and the links of removed names.
fn clean(folder: &Path, current: &str, files: &VolumeFiles) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name == DATA || name == current {
            continue;
        }
        if name.starts_with("..") {
            std::fs::remove_dir_all(entry.path())?;
        } else if !files.keys().any(|path| first(path) == name) {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn files(list: &[(&str, &str)]) -> VolumeFiles {
        list.iter()
            .map(|(p, d)| {
                (
                    (*p).to_owned(),
                    VolumeFile { data: d.as_bytes().to_vec(), mode: 0o640, user: None },
                )
            })
            .collect()
    }

    #[test]
    fn files_are_replaced_together_and_removed_names_disappear() {
        let directory = tempfile::tempdir().unwrap();
        let folder = directory.path().join("v");
        write(&folder, &files(&[("a", "1"), ("d/b", "2")]), None).unwrap();
        let first = std::fs::read_link(folder.join("..data")).unwrap();
        assert_eq!(std::fs::read_to_string(folder.join("d/b")).unwrap(), "2");
        assert_eq!(
            std::fs::metadata(folder.join("a")).unwrap().permissions().mode() & 0o777,
            0o640
        );
        write(&folder, &files(&[("a", "1"), ("d/b", "2")]), None).unwrap();
        assert_eq!(std::fs::read_link(folder.join("..data")).unwrap(), first);
        write(&folder, &files(&[("a", "3")]), None).unwrap();
        assert_eq!(std::fs::read_to_string(folder.join("a")).unwrap(), "3");
        assert!(
            std::fs::symlink_metadata(folder.join("d")).is_err() && !folder.join(first).exists()
        );
        assert!(write(&folder, &files(&[("../x", "")]), None).is_err());
    }
}
