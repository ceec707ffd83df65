//! Mounts below the pod directories.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::{major, minor};
use sorting::CompactSort as _;

/// The mounts that the calling thread sees.
pub(super) const TABLE: &str = "/proc/thread-self/mountinfo";

fn named(action: &str, path: &Path, errno: nix::Error) -> io::Error {
    let error = io::Error::from(errno);
    io::Error::new(error.kind(), format!("cannot {action} {}: {error}", path.display()))
}

/// Resolves symbolic links above `path`, as in the table of mounts; `None` if its directory does
/// not exist. What is mounted on `path` itself may not answer, so that it is not followed.
fn resolve(path: &Path) -> io::Result<Option<PathBuf>> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return path.canonicalize().map(Some);
    };
    match parent.canonicalize() {
        Ok(parent) => Ok(Some(parent.join(name))),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

/// A line of a table of mounts (`proc_pid_mountinfo(5)`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mount {
    pub(super) id: u64,
    pub(super) parent: u64,
    /// `major:minor` of the device.
    device: String,
    /// The directory of the file system that is mounted.
    root: String,
    pub(super) point: PathBuf,
    pub(super) is_shared: bool,
}

impl Mount {
    pub(super) fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split(' ');
        let id = fields.next()?.parse().ok()?;
        let parent = fields.next()?.parse().ok()?;
        let (device, root) = (fields.next()?.to_owned(), fields.next()?.to_owned());
        let point = PathBuf::from(unescape(fields.next()?));
        // After the options of the mount, optional fields follow up to a dash.
        let mut optional = fields.skip(1).take_while(|field| *field != "-");
        let is_shared = optional.any(|field| field.starts_with("shared:"));
        Some(Self { id, parent, device, root, point, is_shared })
    }
}

/// The mounts that the calling thread sees. Blocks.
pub(super) fn table() -> io::Result<Vec<Mount>> {
    Ok(std::fs::read_to_string(TABLE)?.lines().filter_map(Mount::parse).collect())
}

/// Returns the mount points at or below `folder`, deepest first.
fn below(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let table = table()?;
    Ok(resolve(folder)?.map_or_else(Vec::new, |folder| points(&table, &folder)))
}

/// Returns the mount points of a table that are at or below `folder`, deepest first.
fn points(table: &[Mount], folder: &Path) -> Vec<PathBuf> {
    let points = table.iter().map(|mount| &mount.point);
    let mut out: Vec<PathBuf> = points.filter(|path| path.starts_with(folder)).cloned().collect();
    out.compact_sort_by_key(|p| std::cmp::Reverse(p.components().count()));
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

/// Whether something is mounted on `path`.
pub(crate) fn is_mount_point(path: &Path) -> io::Result<bool> {
    let mounted = below(path)?;
    Ok(resolve(path)?.is_some_and(|path| mounted.contains(&path)))
}

/// Whether something is mounted at or below `folder`.
pub(super) fn has_mounts(folder: &Path) -> io::Result<bool> {
    Ok(!below(folder)?.is_empty())
}

/// Whether the file system of a block device is mounted anywhere.
pub(super) fn is_device_mounted(device: &Path) -> io::Result<bool> {
    Ok(has_device(&table()?, &number(device)?))
}

/// A directory on which the file system of a block device is mounted as a whole.
pub(crate) fn of_device(device: &Path) -> io::Result<Option<PathBuf>> {
    Ok(point_of_device(&table()?, &number(device)?))
}

fn number(device: &Path) -> io::Result<String> {
    let number = std::fs::metadata(device)?.rdev();
    Ok(format!("{}:{}", major(number), minor(number)))
}

fn point_of_device(table: &[Mount], number: &str) -> Option<PathBuf> {
    let mount = table.iter().find(|mount| mount.device == number && mount.root == "/")?;
    Some(mount.point.clone())
}

/// Whether a table of mounts contains the device with this number.
fn has_device(table: &[Mount], number: &str) -> bool {
    table.iter().any(|mount| mount.device == number)
}

/// Mounts a tmpfs on `path`, which is created if missing; `size` in bytes, zero for the kernel's
/// default. Does nothing if it is mounted already.
pub(crate) fn tmpfs(path: &Path, size: i64, options: &str) -> io::Result<()> {
    if is_mount_point(path)? {
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
    for path in below(folder)? {
        umount2(&path, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW)
            .map_err(|e| named("unmount", &path, e))?;
    }
    match below(folder)?.first() {
        Some(left) => Err(io::Error::other(format!("{} is still mounted", left.display()))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_below_a_directory_are_listed_deepest_first() {
        let table = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
            30 22 0:26 / /pods/a/volumes/x rw shared:1 - tmpfs tmpfs rw\n\
            31 30 7:0 / /pods/a/volumes/x/with\\040space rw - ext4 /dev/loop0 rw\n\
            32 22 0:27 / /pods/ab rw - tmpfs tmpfs rw\n";
        let table: Vec<Mount> = table.lines().filter_map(Mount::parse).collect();
        let listed = points(&table, Path::new("/pods/a"));
        let wanted = ["/pods/a/volumes/x/with space", "/pods/a/volumes/x"];
        assert_eq!(listed, wanted.map(PathBuf::from));
        assert!(has_device(&table, "7:0"));
        assert!(!has_device(&table, "7:1"));
        let point = point_of_device(&table, "7:0");
        assert_eq!(point, Some(PathBuf::from("/pods/a/volumes/x/with space")));
        assert_eq!(point_of_device(&table, "7:1"), None);
    }

    /// Otherwise the files of volumes mounted below it would be removed with a pod's directory.
    #[test]
    fn a_directory_behind_a_link_has_the_mounts_of_its_target() {
        let home = tempfile::tempdir().unwrap();
        let link = home.path().join("link");
        std::os::unix::fs::symlink("/", &link).unwrap();
        assert!(is_mount_point(&link.join("proc")).unwrap());
        assert!(below(&link.join("proc")).unwrap().contains(&PathBuf::from("/proc")));
        assert!(!is_mount_point(&home.path().join("missing/x")).unwrap());
    }
}
