//! Mounts below the pod directories.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
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
    file_system: FileSystem,
}

/// A mounted file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileSystem {
    /// Its type, such as `ext4`.
    pub(crate) fs_type: String,
    /// What was mounted, such as the path of a device.
    pub(crate) source: PathBuf,
    /// The options of all its mounts, separated by commas.
    pub(crate) options: String,
}

/// A file system of this machine and one of the directories where it is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LocalFileSystem {
    /// The device; of a tmpfs the directory, because all have the same source.
    pub(crate) device: String,
    /// `major:minor` of the device.
    pub(crate) number: String,
    pub(crate) point: PathBuf,
}

impl Mount {
    pub(super) fn parse(line: &str) -> Option<Self> {
        let (mount, file_system) = line.split_once(" - ")?;
        let mut fields = mount.split(' ');
        let id = fields.next()?.parse().ok()?;
        let parent = fields.next()?.parse().ok()?;
        let (device, root) = (fields.next()?.to_owned(), unescape(fields.next()?));
        let point = PathBuf::from(unescape(fields.next()?));
        // After the options of the mount, optional fields follow.
        let is_shared = fields.skip(1).any(|field| field.starts_with("shared:"));
        let file_system = FileSystem::parse(file_system)?;
        Some(Self { id, parent, device, root, point, is_shared, file_system })
    }

    /// `major:minor` of the device with the file system.
    pub(super) fn device_number(&self) -> &str {
        &self.device
    }

    /// The options of the file system, separated by commas.
    pub(super) fn options(&self) -> &str {
        &self.file_system.options
    }

    /// Whether both mounts have the same directory of the same file system.
    pub(super) fn is_same_file_system(&self, other: &Self) -> bool {
        self.device == other.device && self.root == other.root
    }
}

impl FileSystem {
    /// Parses the end of a line, after the dash.
    fn parse(text: &str) -> Option<Self> {
        let mut fields = text.split(' ');
        let (fs_type, source) = (fields.next()?.to_owned(), unescape(fields.next()?).into());
        Some(Self { fs_type, source, options: fields.next()?.to_owned() })
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

/// The file systems of disks, and those in memory outside of `pods`, each once. Network file
/// systems, which may not answer, are left out. Blocks.
pub(crate) fn local_file_systems(pods: &Path) -> io::Result<Vec<LocalFileSystem>> {
    Ok(local(table()?, pods))
}

fn local(table: Vec<Mount>, pods: &Path) -> Vec<LocalFileSystem> {
    let mut known = std::collections::BTreeSet::new();
    let mut out = Vec::new();
    for mount in table {
        let device = match mount.file_system.fs_type.as_str() {
            "tmpfs" if mount.point.starts_with(pods) => continue,
            "tmpfs" => mount.point.to_string_lossy().into_owned(),
            "ext2" | "ext3" | "ext4" | "xfs" | "btrfs" => {
                mount.file_system.source.to_string_lossy().into_owned()
            }
            _ => continue,
        };
        // A bind mount has the device of another mount.
        if known.insert(device.clone()) {
            out.push(LocalFileSystem { device, number: mount.device, point: mount.point });
        }
    }
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

/// The options of the file system that is mounted on `path`; `None` if nothing is.
pub(super) fn options_at(path: &Path) -> io::Result<Option<String>> {
    let Some(path) = resolve(path)? else { return Ok(None) };
    // The last one of several mounts hides the others.
    let table = table()?;
    let mount = table.iter().rev().find(|mount| mount.point == path);
    Ok(mount.map(|mount| mount.options().to_owned()))
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
    Ok(number_text(std::fs::metadata(device)?.rdev()))
}

fn number_text(number: u64) -> String {
    format!("{}:{}", major(number), minor(number))
}

/// The file system that contains a directory; `None` for one whose directories have other devices
/// than its mounts, such as Btrfs.
pub(crate) fn file_system(directory: &Path) -> io::Result<Option<FileSystem>> {
    let number = number_text(std::fs::metadata(directory)?.dev());
    let mut mounts = table()?.into_iter().filter(|mount| mount.device == number);
    Ok(mounts.next().map(|mount| mount.file_system))
}

/// A path of the block device with the file system of a directory.
pub(crate) fn device_of(directory: &Path) -> io::Result<PathBuf> {
    let number = std::fs::metadata(directory)?.dev();
    // What was mounted may be a name that does not exist, such as `/dev/root`.
    let mounted = file_system(directory)?.map(|file_system| file_system.source);
    let by_number = PathBuf::from(format!("/dev/block/{}", number_text(number)));
    let is_it = |path: &PathBuf| std::fs::metadata(path).is_ok_and(|file| file.rdev() == number);
    mounted.into_iter().chain([by_number]).find(is_it).ok_or_else(|| {
        let path = directory.display();
        io::Error::other(format!("no path leads to the device with the file system of {path}"))
    })
}

/// Whether a directory, or one below it, is mounted on a further directory.
pub(crate) fn is_bound(directory: &Path) -> io::Result<bool> {
    let metadata = match std::fs::metadata(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        found => found?,
    };
    Ok(is_bound_in(&table()?, &number_text(metadata.dev()), &directory.canonicalize()?))
}

fn is_bound_in(table: &[Mount], number: &str, directory: &Path) -> bool {
    let of_device = || table.iter().filter(|mount| mount.device == number);
    // The last one of several mounts on a directory hides the others.
    let above = of_device().filter(|mount| directory.starts_with(&mount.point));
    let Some(above) = above.max_by_key(|mount| mount.point.components().count()) else {
        return false;
    };
    let below = directory.strip_prefix(&above.point).unwrap_or(directory);
    let root = Path::new(&above.root).join(below);
    of_device().any(|mount| Path::new(&mount.root).starts_with(&root))
}

fn point_of_device(table: &[Mount], number: &str) -> Option<PathBuf> {
    let mount = table.iter().find(|mount| mount.device == number && mount.root == "/")?;
    Some(mount.point.clone())
}

/// Whether a table of mounts contains the device with this number.
fn has_device(table: &[Mount], number: &str) -> bool {
    table.iter().any(|mount| mount.device == number)
}

/// Whether the kernel may know the option `noswap` of tmpfs. It logs each mount with an option that
/// it does not know.
static HAS_NOSWAP: AtomicBool = AtomicBool::new(true);

/// Mounts a tmpfs on `path`, which is created if missing; `size` in bytes, zero for the kernel's
/// default. Its files do not move to swap, where the kernel supports that (from 6.4 on). Does
/// nothing if it is mounted already.
pub(crate) fn tmpfs(path: &Path, size: i64, options: &str) -> io::Result<()> {
    if is_mount_point(path)? {
        return Ok(());
    }
    std::fs::create_dir_all(path)?;
    let options = if size > 0 { format!("{options},size={size}") } else { options.to_owned() };
    let mount = |options: &str| {
        mount(Some("tmpfs"), path, Some("tmpfs"), MsFlags::MS_NOSUID, Some(options))
    };
    if HAS_NOSWAP.load(Ordering::Relaxed) {
        match mount(&format!("{options},noswap")) {
            Err(Errno::EINVAL) => HAS_NOSWAP.store(false, Ordering::Relaxed),
            result => return result.map_err(|e| named("mount tmpfs on", path, e)),
        }
    }
    mount(&options).map_err(|e| named("mount tmpfs on", path, e))
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

/// Unmounts everything at or below `folder`, unless files are in use: what was written is on the
/// device afterwards.
pub(super) fn unmount_unless_busy(folder: &Path) -> io::Result<()> {
    for path in below(folder)? {
        umount2(&path, MntFlags::UMOUNT_NOFOLLOW).map_err(|e| named("unmount", &path, e))?;
    }
    Ok(())
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

    #[test]
    fn a_directory_that_is_mounted_elsewhere_is_bound() {
        let table = "22 1 8:1 / / rw - ext4 /dev/sda1 rw,errors=remount-ro\n\
            23 22 8:2 /sub /srv rw shared:7 - xfs /dev/sda2 rw,prjquota\n\
            24 22 8:2 /sub/pvc-a/data /pods/a rw shared:7 - xfs /dev/sda2 rw,prjquota\n\
            25 22 8:2 /sub/pvc-b/data/in\\040it /pods/b rw - xfs /dev/sda2 rw,prjquota\n\
            26 22 8:1 /sub/pvc-c/data /pods/c rw - ext4 /dev/sda1 rw\n";
        let table: Vec<Mount> = table.lines().filter_map(Mount::parse).collect();
        let is_bound = |path: &str| is_bound_in(&table, "8:2", Path::new(path));
        assert!(is_bound("/srv/pvc-a/data"));
        assert!(is_bound("/srv/pvc-b/data"), "a part of it is mounted");
        assert!(!is_bound("/srv/pvc-b/dat"), "names are compared as a whole");
        assert!(!is_bound("/srv/pvc-c/data"), "the path of another file system");
        assert!(!is_bound_in(&table, "8:3", Path::new("/srv/pvc-a/data")));
        let home = tempfile::tempdir().unwrap();
        assert!(!super::is_bound(home.path()).unwrap());
        assert!(!super::is_bound(&home.path().join("missing")).unwrap());
    }

    #[test]
    fn a_line_has_the_file_system_and_its_options() {
        let line = "23 22 8:2 / /srv rw,noatime master:1 - ext4 /dev/disk/by\\040name rw,prjquota";
        let mount = Mount::parse(line).unwrap();
        let (source, options) = ("/dev/disk/by name".into(), "rw,prjquota".to_owned());
        assert_eq!(mount.file_system, FileSystem { fs_type: "ext4".into(), source, options });
        assert!(!mount.is_shared);
        assert_eq!(Mount::parse("23 22 8:2 / /srv rw"), None);
        let proc = file_system(Path::new("/proc")).unwrap().unwrap();
        assert_eq!(proc.fs_type, "proc");
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
