//! Sub-paths of volumes, opened by the kernel strictly beneath the volume: no symlink of a container leads out.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::{Mode, fchmod, fstatat, mkdirat};

use super::mounts;

/// Binds `sub_path` of `volume` to `target`, making folders that are missing with the volume's own permission bits.
pub(super) fn bind(volume: &Path, sub_path: &str, target: &Path) -> Result<(), String> {
    let parts: Vec<&std::ffi::OsStr> = Path::new(sub_path)
        .components()
        .filter(|c| *c != Component::CurDir)
        .map(|c| match c {
            Component::Normal(part) => Ok(part),
            Component::RootDir | Component::Prefix(_) => {
                Err(format!("error SubPath `{sub_path}` must not be an absolute path"))
            }
            _ => Err(format!("unable to provision SubPath `{sub_path}`: must not contain '..'")),
        })
        .collect::<Result<_, _>>()?;
    let text = |e: nix::Error| e.to_string();
    let root = std::fs::File::open(volume).map_err(|e| e.to_string())?;
    let mode = root.metadata().map_err(|e| e.to_string())?.permissions().mode() & 0o7777;
    let mode = Mode::from_bits_truncate(mode);
    let beneath = |path: &Path, flags: OFlag| -> nix::Result<OwnedFd> {
        let how = OpenHow::new()
            .flags(flags | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        openat2(&root, path, how)
    };
    let mut path = PathBuf::new();
    let mut parent: Option<OwnedFd> = None;
    for part in parts {
        path.push(part);
        match beneath(&path, OFlag::O_PATH) {
            Ok(fd) => parent = Some(fd),
            Err(nix::Error::ENOENT) => {
                match &parent {
                    Some(fd) => mkdirat(fd, part, mode).map_err(text)?,
                    None => mkdirat(&root, part, mode).map_err(text)?,
                }
                let made = beneath(&path, OFlag::O_RDONLY | OFlag::O_DIRECTORY).map_err(text)?;
                fchmod(&made, mode).map_err(text)?;
                parent = Some(made);
            }
            Err(error) => return Err(text(error)),
        }
    }
    let fd = parent.ok_or_else(|| "the sub-path is empty".to_owned())?;
    let stat = fstatat(&fd, "", AtFlags::AT_EMPTY_PATH).map_err(text)?;
    let is_dir = stat.st_mode & 0o170_000 == 0o040_000;
    mounts::unmount_below(target).map_err(|e| e.to_string())?;
    place(target, is_dir).map_err(|e| e.to_string())?;
    mounts::bind(Path::new(&format!("/proc/self/fd/{}", fd.as_raw_fd())), target)
        .map_err(|e| e.to_string())
}

/// Makes the empty file or folder that is bound over.
fn place(target: &Path, is_dir: bool) -> std::io::Result<()> {
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
