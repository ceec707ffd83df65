//! Mounts below the pod directories.

use std::io;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};

fn named(action: &str, path: &Path, errno: nix::Error) -> io::Error {
    let error = io::Error::from(errno);
    io::Error::new(error.kind(), format!("cannot {action} {}: {error}", path.display()))
}

/// Returns the mount points at or below `folder`, deepest first.
pub(crate) fn below(folder: &Path) -> Vec<PathBuf> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut out: Vec<PathBuf> = table
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .map(|path| PathBuf::from(unescape(path)))
        .filter(|path| path.starts_with(folder))
        .collect();
    out.sort_by_key(|p| std::cmp::Reverse(p.components().count()));
    out
}

/// Replaces escapes such as `\040` in the mount table.
fn unescape(text: &str) -> String {
    let mut out = text.to_owned();
    for (code, plain) in [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")] {
        out = out.replace(code, plain);
    }
    out
}

fn is_mount_point(path: &Path) -> bool {
    below(path).iter().any(|p| p == path)
}

/// Mounts a tmpfs on `path`, which is created if missing; `size` in bytes, zero for the kernel's
/// default. Does nothing if it is mounted already.
pub(crate) fn tmpfs(path: &Path, size: i64, options: &str) -> io::Result<()> {
    if is_mount_point(path) {
        return Ok(());
    }
    std::fs::create_dir_all(path)?;
    let options = if size > 0 { format!("{options},size={size}") } else { options.to_owned() };
    mount(Some("tmpfs"), path, Some("tmpfs"), MsFlags::MS_NOSUID, Some(options.as_str()))
        .map_err(|e| named("mount tmpfs on", path, e))
}

/// Bind-mounts `source` on the existing `target`.
pub(crate) fn bind(source: &Path, target: &Path) -> io::Result<()> {
    mount(Some(source), target, None::<&str>, MsFlags::MS_BIND | MsFlags::MS_REC, None::<&str>)
        .map_err(|e| named("bind to", target, e))
}

/// Unmounts everything at or below `folder`.
pub(crate) fn unmount_below(folder: &Path) -> io::Result<()> {
    for path in below(folder) {
        umount2(&path, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW)
            .map_err(|e| named("unmount", &path, e))?;
    }
    match below(folder).first() {
        Some(left) => Err(io::Error::other(format!("{} is still mounted", left.display()))),
        None => Ok(()),
    }
}
