//! Volumes that are directories: emptyDir, on disk or in memory, and hostPath.

use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use api::Quantity;
use api::k8s::api::core::v1 as core;

use super::error::SetUpError;
use super::mounts;

/// The path of a volume on the host.
#[derive(Debug, Clone)]
pub(crate) struct VolumePath {
    pub(crate) path: PathBuf,
    pub(crate) read_only: bool,
    /// Whether the path is a block device for containers (`volumeMode: Block`).
    pub(crate) is_device: bool,
    /// Whether the runtime labels the files for the container, where the kernel has SELinux
    /// (`Managed` and `SELinuxRelabel` of the attributes of upstream's plugins).
    pub(crate) is_relabelled: bool,
}

impl VolumePath {
    /// Returns the path of a file or directory.
    pub(super) fn mounted(path: PathBuf, read_only: bool) -> Self {
        Self { path, read_only, is_device: false, is_relabelled: false }
    }

    /// Returns the path of a file or directory whose files the runtime labels.
    pub(super) fn relabelled(path: PathBuf, read_only: bool) -> Self {
        Self { is_relabelled: true, ..Self::mounted(path, read_only) }
    }

    /// Returns the path of a block device.
    pub(super) fn device(path: PathBuf, read_only: bool) -> Self {
        Self { is_device: true, ..Self::mounted(path, read_only) }
    }
}

/// Creates a directory with its parents, with upstream's mode; one that exists may be the mount of
/// a file system that does not answer.
pub(super) fn create_dir(path: &Path) -> io::Result<()> {
    match std::fs::DirBuilder::new().recursive(true).mode(0o750).create(path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        done => done,
    }
}

/// Sets permission bits independently of the umask.
pub(super) fn chmod(path: &Path, mode: u32) -> io::Result<()> {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
}

/// Permissions of the group for a directory; new files in it inherit the group.
const GROUP_FOLDER: u32 = 0o2770;
/// Permissions of the group for a file.
const GROUP_FILE: u32 = 0o660;

/// Changes the group of a directory tree to a pod's `fsGroup`: group-writable, new files inherit
/// the group. The directory itself is changed last, so that `is_of_group` detects an interrupted
/// change. Blocks during the walk of the files.
pub(super) fn give_to_group(path: &Path, group: u32) -> io::Result<()> {
    let meta = std::fs::symlink_metadata(path)?;
    if meta.is_dir() {
        for entry in std::fs::read_dir(path)? {
            match give_to_group(&entry?.path(), group) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                done => done?,
            }
        }
    }
    if meta.gid() != group {
        std::os::unix::fs::lchown(path, None, Some(group))?;
    }
    let wanted = if meta.is_dir() { GROUP_FOLDER } else { GROUP_FILE };
    // A change of the group clears the set-user-ID and set-group-ID bits, so restore them.
    if !meta.file_type().is_symlink() && (meta.gid() != group || meta.mode() & wanted != wanted) {
        chmod(path, (meta.mode() & 0o7777) | wanted)?;
    }
    Ok(())
}

/// Whether the directory already has the group, for `fsGroupChangePolicy: OnRootMismatch`.
pub(super) fn is_of_group(path: &Path, group: u32) -> bool {
    std::fs::metadata(path)
        .is_ok_and(|m| m.is_dir() && m.gid() == group && m.mode() & GROUP_FOLDER == GROUP_FOLDER)
}

/// Creates an emptyDir.
pub(super) fn empty_dir(
    source: &core::EmptyDirVolumeSource,
    path: &Path,
    fs_group: Option<i64>,
    memory: i64,
) -> Result<(), SetUpError> {
    let medium = source.medium.as_deref().unwrap_or_default();
    let fresh = !path.exists() || (medium == "Memory" && !mounts::is_mount_point(path)?);
    let make = || -> io::Result<()> {
        match medium {
            "" => std::fs::create_dir_all(path)?,
            _ => {
                let limit = source
                    .size_limit
                    .as_ref()
                    .and_then(|q| Quantity::parse(&q.0).ok())
                    .map_or(0, |q| q.value());
                let size = if limit > 0 { limit.min(memory) } else { 0 };
                // With the sticky bit, which is the kernel's default and stays in upstream.
                mounts::tmpfs(path, size, "mode=1777")?;
            }
        }
        if fresh {
            if medium != "Memory" {
                chmod(path, 0o777)?;
            }
            if let Some(group) = fs_group.and_then(|g| u32::try_from(g).ok()) {
                give_to_group(path, group)?;
            }
        }
        Ok(())
    };
    if !matches!(medium, "" | "Memory") {
        return Err(SetUpError::MediumNotSupported(medium.to_owned()));
    }
    Ok(make()?)
}

/// Checks or creates the path of a hostPath volume.
pub(super) fn host_path(source: &core::HostPathVolumeSource) -> Result<(), SetUpError> {
    let path = Path::new(&source.path);
    if path.components().any(|c| c == std::path::Component::ParentDir) {
        return Err(SetUpError::ParentInPath(source.path.clone()));
    }
    let wanted = source.type_.as_deref().unwrap_or_default();
    match wanted {
        "DirectoryOrCreate" if !path.exists() => {
            std::fs::create_dir_all(path).and_then(|()| chmod(path, 0o755))?;
        }
        "FileOrCreate" if !path.exists() => {
            std::fs::File::create(path).and_then(|_| chmod(path, 0o644))?;
        }
        _ => {}
    }
    let type_ = std::fs::metadata(path).map(|m| m.file_type());
    let is = |right: fn(&std::fs::FileType) -> bool| type_.as_ref().is_ok_and(right);
    let (is_expected, expected) = match wanted {
        "" => (true, ""),
        "Directory" | "DirectoryOrCreate" => (is(std::fs::FileType::is_dir), "directory"),
        "File" | "FileOrCreate" => (is(std::fs::FileType::is_file), "file"),
        "Socket" => (is(FileTypeExt::is_socket), "socket file"),
        "CharDevice" => (is(FileTypeExt::is_char_device), "character device"),
        "BlockDevice" => (is(FileTypeExt::is_block_device), "block device"),
        other => return Err(SetUpError::HostPathTypeNotSupported(other.to_owned())),
    };
    if is_expected {
        Ok(())
    } else {
        Err(SetUpError::HostPathType { path: source.path.clone(), expected })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The group of a directory that this process created, to which any user can change files.
    fn own_group(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().gid()
    }

    fn mode(path: &Path) -> u32 {
        std::fs::symlink_metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn fs_group_changes_the_directory_tree_and_nothing_outside() {
        let home = tempfile::tempdir().unwrap();
        let (volume, outside) = (home.path().join("volume"), home.path().join("outside"));
        std::fs::create_dir_all(volume.join("sub")).unwrap();
        std::fs::write(volume.join("sub/file"), "").unwrap();
        std::fs::write(&outside, "").unwrap();
        for (path, mode) in [(&volume, 0o755), (&volume.join("sub"), 0o700), (&outside, 0o600)] {
            chmod(path, mode).unwrap();
        }
        chmod(&volume.join("sub/file"), 0o400).unwrap();
        std::os::unix::fs::symlink(&outside, volume.join("link")).unwrap();
        let group = own_group(&volume);
        assert!(!is_of_group(&volume, group));
        give_to_group(&volume, group).unwrap();
        assert_eq!([mode(&volume), mode(&volume.join("sub"))], [0o2775, 0o2770]);
        assert_eq!([mode(&volume.join("sub/file")), mode(&outside)], [0o660, 0o600]);
        assert!(is_of_group(&volume, group));
        assert!(!is_of_group(&volume, group + 1));
    }
}
