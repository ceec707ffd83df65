//! Sub-paths and files of volumes, which the kernel resolves in the volume: no symbolic link of a
//! container leads out.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::{Mode, fchmod, fstatat, mkdirat};

use super::error::SubPathError;
use super::mounts;

/// Bind-mounts `sub_path` of `volume` on `target`; creates missing directories with the volume's
/// permission bits.
pub(super) fn bind(volume: &Path, sub_path: &str, target: &Path) -> Result<(), SubPathError> {
    let parts: Vec<&std::ffi::OsStr> = Path::new(sub_path)
        .components()
        .filter(|c| *c != Component::CurDir)
        .map(|c| match c {
            Component::Normal(part) => Ok(part),
            Component::RootDir | Component::Prefix(_) => {
                Err(SubPathError::Absolute(sub_path.to_owned()))
            }
            _ => Err(SubPathError::Parent(sub_path.to_owned())),
        })
        .collect::<Result<_, _>>()?;
    let fd = open(volume, &parts)?;
    let stat = fstatat(&fd, "", AtFlags::AT_EMPTY_PATH)?;
    let is_dir = stat.st_mode & 0o170_000 == 0o040_000;
    mounts::unmount_below(target)?;
    create_target(target, is_dir)?;
    Ok(mounts::bind(&of_descriptor(&fd), target)?)
}

/// The link of an open file below `/proc`.
fn of_descriptor(fd: &impl AsRawFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

/// Opens a regular file of a volume for reading, and returns it with its path below `volume`. The
/// volume is the root directory of the path and of symbolic links, as in upstream's `SecureJoin`.
///
/// # Errors
///
/// The file is missing or not a regular one, which is not opened: a pipe would block.
pub(super) fn open_file(volume: &Path, path: &str) -> Result<(File, PathBuf), SubPathError> {
    let root = File::open(volume)?;
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    let fd = openat2(&root, path, how)?;
    let stat = fstatat(&fd, "", AtFlags::AT_EMPTY_PATH)?;
    if stat.st_mode & 0o170_000 != 0o100_000 {
        return Err(SubPathError::NotRegularFile(path.to_owned()));
    }
    let (link, resolved_root) = (of_descriptor(&fd), std::fs::read_link(of_descriptor(&root))?);
    let resolved = std::fs::read_link(&link)?;
    let below = resolved.strip_prefix(&resolved_root).unwrap_or(Path::new(path));
    Ok((File::open(link)?, volume.join(below)))
}

/// Opens a sub-path of a volume and creates missing directories. The kernel resolves the path
/// beneath the volume, whatever other processes do to it meanwhile.
fn open(volume: &Path, parts: &[&std::ffi::OsStr]) -> Result<OwnedFd, SubPathError> {
    let root = File::open(volume)?;
    let mode = root.metadata()?.permissions().mode() & 0o7777;
    let mode = Mode::from_bits_truncate(mode);
    let beneath = |path: &Path, flags: OFlag| -> nix::Result<OwnedFd> {
        let how = OpenHow::new()
            .flags(flags | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        openat2(&root, path, how)
    };
    let mut path = PathBuf::new();
    let mut parent: Option<OwnedFd> = None;
    for part in parts.iter().copied() {
        path.push(part);
        match beneath(&path, OFlag::O_PATH) {
            Ok(fd) => parent = Some(fd),
            Err(nix::Error::ENOENT) => {
                match &parent {
                    Some(fd) => mkdirat(fd, part, mode)?,
                    None => mkdirat(&root, part, mode)?,
                }
                let made = beneath(&path, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?;
                fchmod(&made, mode)?;
                parent = Some(made);
            }
            Err(error) => return Err(error.into()),
        }
    }
    parent.ok_or(SubPathError::Empty)
}

/// Creates the empty file or directory on which the sub-path is mounted.
fn create_target(target: &Path, is_dir: bool) -> std::io::Result<()> {
    if let Some(parent) = target.parent() {
        std::fs::create_dir_all(parent)?;
    }
    match (std::fs::symlink_metadata(target).map(|m| m.is_dir()), is_dir) {
        (Ok(true), true) | (Ok(false), false) => Ok(()),
        (Ok(true), false) => {
            std::fs::remove_dir(target).and_then(|()| std::fs::File::create(target).map(drop))
        }
        (Ok(false), true) => {
            std::fs::remove_file(target).and_then(|()| std::fs::create_dir(target))
        }
        (Err(_), true) => std::fs::create_dir(target),
        (Err(_), false) => std::fs::File::create(target).map(drop),
    }
}

// renameat2 is only available with glibc, which the tests use.
#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::fs::MetadataExt;
    use std::sync::atomic::{AtomicBool, Ordering};

    use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};

    use super::*;

    /// CVE-2017-1002101 and CVE-2021-25741: a directory and a link that leads out of the volume are
    /// swapped while sub-paths through them are opened ten thousand times. What is opened and
    /// created must always be in the volume.
    #[test]
    fn sub_paths_stay_in_the_volume_while_a_directory_and_a_link_are_swapped() {
        const TIMES: usize = 10_000;
        let home = tempfile::tempdir().unwrap();
        let (volume, outside) = (home.path().join("volume"), home.path().join("outside"));
        for folder in ["a/b", "spare"] {
            std::fs::create_dir_all(volume.join(folder)).unwrap();
        }
        std::fs::create_dir_all(outside.join("b")).unwrap();
        std::os::unix::fs::symlink(&outside, volume.join("link")).unwrap();
        let identity = |path: &Path| std::fs::metadata(path).unwrap().ino();
        let forbidden = [identity(&outside), identity(&outside.join("b"))];
        let (folder, link) = (volume.join("a"), volume.join("link"));
        let over = AtomicBool::new(false);
        let (mut opened, mut refused, mut swaps) = (0, 0, 0);
        std::thread::scope(|scope| {
            let swapper = scope.spawn(|| {
                let mut swaps = 0;
                while !over.load(Ordering::Relaxed) {
                    renameat2(AT_FDCWD, &folder, AT_FDCWD, &link, RenameFlags::RENAME_EXCHANGE)
                        .unwrap();
                    swaps += 1;
                }
                swaps
            });
            for at in 0..TIMES {
                // Every second time also a directory that has to be created.
                let last = if at % 2 == 0 { "b".to_owned() } else { format!("made-{}", at % 50) };
                match open(&volume, &[OsStr::new("a"), OsStr::new(&last)]) {
                    Ok(fd) => {
                        let file = std::fs::File::from(fd);
                        assert!(!forbidden.contains(&file.metadata().unwrap().ino()));
                        opened += 1;
                    }
                    Err(_) => refused += 1,
                }
            }
            over.store(true, Ordering::Relaxed);
            swaps = swapper.join().unwrap();
        });
        let names = std::fs::read_dir(&outside).unwrap().flatten().map(|entry| entry.file_name());
        assert_eq!(names.collect::<Vec<_>>(), ["b"]);
        assert_eq!(std::fs::read_dir(outside.join("b")).unwrap().count(), 0);
        // Both outcomes occurred, so that there was a race.
        assert!(opened > 0 && refused > 0 && swaps > TIMES / 10, "{opened} {refused} {swaps}");
    }
}
