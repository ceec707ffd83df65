//! Makes the directory of the kubelet a shared mount (`MakeRShared` of upstream): what a driver
//! mounts in its container reaches the host, and what the node mounts reaches containers. With
//! systemd all mounts are shared; elsewhere they are private.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};

use super::mounts::{Mount, TABLE, table};

/// Why a directory is no shared mount.
#[derive(Debug, thiserror::Error)]
pub enum SharedMountError {
    /// The directory does not exist, or a link cannot be followed.
    #[error("cannot resolve {path}: {source}")]
    Resolve { path: PathBuf, source: io::Error },
    /// The table of mounts cannot be read.
    #[error("cannot read {TABLE}: {0}; mount /proc")]
    Table(#[source] io::Error),
    /// The table lists no mount that contains the directory.
    #[error("cannot find mount point for {0:?} in {TABLE}; mount /proc of this mount namespace")]
    NoMount(PathBuf),
    /// A system call failed.
    #[error(
        "cannot make {path} a shared mount: {step}: {source}; run kube-lite as root with \
         CAP_SYS_ADMIN, or make the directory a shared mount before (mount --make-rshared)"
    )]
    Mount { path: PathBuf, step: &'static str, source: io::Error },
}

/// Returns the mount that contains a directory: the last one of a table of mounts at or above it.
fn containing_mount<'a>(table: &'a [Mount], directory: &Path) -> Option<&'a Mount> {
    table.iter().rev().find(|mount| directory.starts_with(&mount.point))
}

/// Returns the mounts below a directory that one mount contains, newest first. Mounts that a later
/// mount above the directory hides are left out: no path reaches them.
fn mounts_below<'a>(table: &'a [Mount], container: &Mount, directory: &Path) -> Vec<&'a Mount> {
    let parents = table.iter().map(|mount| (mount.id, mount.parent)).collect::<BTreeMap<_, _>>();
    let is_contained = |mount: &Mount| {
        let ancestors = std::iter::successors(Some(mount.parent), |id| parents.get(id).copied());
        // A table that is not a tree ends the search.
        ancestors.take(table.len()).any(|id| id == container.id)
    };
    let newest_first = table.iter().rev();
    newest_first.filter(|mount| mount.point.starts_with(directory) && is_contained(mount)).collect()
}

/// Makes a directory a shared mount with everything below it, unless it is on one. Blocks.
///
/// # Errors
///
/// The table of mounts cannot be read, or the process may not mount.
pub(crate) fn make_shared(directory: &Path) -> Result<(), SharedMountError> {
    let path = directory.canonicalize();
    let path =
        path.map_err(|source| SharedMountError::Resolve { path: directory.into(), source })?;
    let table = table().map_err(SharedMountError::Table)?;
    let found = containing_mount(&table, &path);
    let found = found.ok_or_else(|| SharedMountError::NoMount(path.clone()))?;
    if found.is_shared {
        return Ok(());
    }
    let failed = |step| {
        let path = path.clone();
        move |source: io::Error| SharedMountError::Mount { path, step, source }
    };
    if found.point != path {
        let below = mounts_below(&table, found, &path);
        if below.is_empty() {
            bind(&path, &path).map_err(failed("bind it to itself"))?;
        } else {
            bind_with_mounts(&path, &below).map_err(failed("bind it to itself with its mounts"))?;
        }
    }
    let none = None::<&str>;
    mount(none, &path, none, MsFlags::MS_SHARED | MsFlags::MS_REC, none)
        .map_err(|errno| failed("change its propagation")(errno.into()))
}

fn bind(source: &Path, target: &Path) -> io::Result<()> {
    let none = None::<&str>;
    Ok(mount(Some(source), target, none, MsFlags::MS_BIND | MsFlags::MS_REC, none)?)
}

/// Binds a directory to itself that has mounts `below`, newest first: those of pods that an
/// earlier version started. A bind mount over them would hide them, and they could not be unmounted
/// any longer, so that they are moved into it. Containers keep their own copies meanwhile.
fn bind_with_mounts(path: &Path, below: &[&Mount]) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let mut temporary = std::ffi::OsString::from(".");
    temporary.push(name);
    temporary.push(".shared");
    let temporary = path.with_file_name(temporary);
    base::fs::create_dir(&temporary, 0o700)?;
    bind(path, &temporary)?;
    for mount in below {
        umount2(&mount.point, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW)?;
    }
    let none = None::<&str>;
    mount(Some(&temporary), path, none, MsFlags::MS_MOVE, none)?;
    std::fs::remove_dir(&temporary)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sched::{CloneFlags, unshare};

    /// Cases of `TestIsSharedSuccess` of upstream.
    #[test]
    fn the_last_mount_above_a_directory_decides_whether_it_is_shared() {
        let table = "\
62 0 253:0 / / rw,relatime shared:1 - ext4 /dev/sda rw
76 62 8:1 / /boot rw,relatime shared:29 - ext4 /dev/sda1 rw
78 62 0:41 / /tmp rw,nosuid,nodev shared:30 - tmpfs tmpfs rw
80 62 0:42 / /var/lib/nfs/rpc_pipefs rw,relatime shared:31 - rpc_pipefs sunrpc rw
82 62 0:43 / /var/lib/foo rw,relatime - tmpfs tmpfs rw
83 63 0:44 / /var/lib/bar rw,relatime - tmpfs tmpfs rw
227 62 253:0 /var/lib/docker/devicemapper /var/lib/docker/devicemapper rw - ext4 /dev/sda rw
224 62 253:0 /k /var/lib/docker/devicemapper/test/shared rw master:1 shared:44 - ext4 /dev/sda rw
230 62 0:45 / /mnt/with\\040space rw master:7 - tmpfs shared:1 rw
";
        let table = parsed(table);
        let of = |path: &str| {
            let found = containing_mount(&table, Path::new(path)).unwrap();
            (found.point == Path::new(path), found.is_shared)
        };
        assert_eq!(of("/"), (true, true));
        assert_eq!(of("/var/lib/kubelet"), (false, true));
        assert_eq!(of("/tmp"), (true, true));
        assert_eq!(of("/var/lib/foo"), (true, false));
        assert_eq!(of("/var/lib/foo/kubelet"), (false, false));
        assert_eq!(of("/var/lib/foobar"), (false, true));
        assert_eq!(of("/var/lib/docker/devicemapper/test/shared"), (true, true));
        assert_eq!(of("/mnt/with space/k"), (false, false), "a slave that is not shared");
        let private = "30 1 8:1 / / rw - ext4 /dev/sda rw\n31 30 8:1 /k /k rw shared:9 - ext4 - rw";
        assert!(containing_mount(&parsed(private), Path::new("/k/pods")).unwrap().is_shared);
        let elsewhere = parsed("31 30 8:1 / /k rw - ext4 - rw");
        assert_eq!(containing_mount(&elsewhere, Path::new("/x")), None);
    }

    #[test]
    fn mounts_that_a_later_one_hides_are_left_out() {
        let table = parsed(
            "\
30 1 8:1 / / rw - ext4 /dev/sda rw
31 30 8:1 /k /var/k rw shared:9 - ext4 /dev/sda rw
35 33 0:51 / /var/k/pods/b rw - tmpfs tmpfs rw
33 30 8:1 /lib /var rw - ext4 /dev/sda rw
34 33 0:50 / /var/k/pods/a rw - tmpfs tmpfs rw
36 34 0:52 / /var/k/pods/a/in rw - tmpfs tmpfs rw
37 33 0:53 / /var/other rw - tmpfs tmpfs rw
",
        );
        let directory = Path::new("/var/k");
        let found = containing_mount(&table, directory).unwrap();
        assert_eq!(found.id, 33);
        let below = mounts_below(&table, found, directory);
        assert_eq!(below.iter().map(|mount| mount.id).collect::<Vec<_>>(), [36, 34, 35]);
    }

    fn parsed(table: &str) -> Vec<Mount> {
        table.lines().map(|line| Mount::parse(line).unwrap()).collect()
    }

    /// Runs with private mounts, as on a machine without systemd; does nothing without root.
    fn with_private_mounts(test: impl FnOnce(&Path) + Send + 'static) {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        std::thread::spawn(|| {
            let none = None::<&str>;
            unshare(CloneFlags::CLONE_NEWNS).unwrap();
            mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
            let home = tempfile::tempdir().unwrap();
            test(&home.path().canonicalize().unwrap());
            umount2(&home.path().join("kubelet"), MntFlags::MNT_DETACH).unwrap();
        })
        .join()
        .unwrap();
    }

    fn listed(directory: &Path) -> Vec<PathBuf> {
        let mut below = table().unwrap();
        below.retain(|mount| mount.point.starts_with(directory));
        below.into_iter().rev().map(|mount| mount.point).collect()
    }

    #[test]
    fn a_private_directory_is_made_a_shared_mount_once() {
        with_private_mounts(|home| {
            let root = home.join("kubelet");
            std::fs::create_dir(&root).unwrap();
            std::fs::write(root.join("file"), "x").unwrap();
            std::os::unix::fs::symlink(&root, home.join("link")).unwrap();
            make_shared(&home.join("link")).unwrap();
            make_shared(&root).unwrap();
            assert_eq!(listed(home), std::slice::from_ref(&root));
            let table = table().unwrap();
            let found = containing_mount(&table, &root).unwrap();
            assert_eq!((&found.point, found.is_shared), (&root, true));
            assert_eq!(std::fs::read_to_string(root.join("file")).unwrap(), "x");
        });
    }

    #[test]
    fn mounts_of_pods_that_run_stay() {
        with_private_mounts(|home| {
            let root = home.join("kubelet");
            let volume = root.join("pods/v");
            std::fs::create_dir_all(&volume).unwrap();
            let none = None::<&str>;
            mount(Some("tmpfs"), &volume, Some("tmpfs"), MsFlags::empty(), none).unwrap();
            std::fs::write(volume.join("file"), "x").unwrap();
            make_shared(&root).unwrap();
            assert_eq!(std::fs::read_to_string(volume.join("file")).unwrap(), "x");
            assert_eq!(listed(home), [volume.clone(), root.clone()]);
            let table = table().unwrap();
            assert!(containing_mount(&table, &volume).unwrap().is_shared);
            umount2(&volume, MntFlags::empty()).unwrap();
            assert!(!volume.join("file").exists());
            assert!(!home.join(".kubelet.shared").exists());
        });
    }

    #[test]
    fn a_hidden_mount_at_the_directory_does_not_count() {
        with_private_mounts(|home| {
            let (root, other) = (home.join("kubelet"), home.join("other"));
            std::fs::create_dir_all(&root).unwrap();
            std::fs::create_dir_all(other.join("kubelet")).unwrap();
            make_shared(&root).unwrap();
            bind(&other, home).unwrap();
            std::fs::write(root.join("file"), "x").unwrap();
            make_shared(&root).unwrap();
            let table = table().unwrap();
            let found = containing_mount(&table, &root).unwrap();
            assert_eq!((&found.point, found.is_shared), (&root, true));
            assert_eq!(std::fs::read_to_string(root.join("file")).unwrap(), "x");
            umount2(&root, MntFlags::MNT_DETACH).unwrap();
            umount2(home, MntFlags::MNT_DETACH).unwrap();
        });
    }

    #[test]
    fn a_directory_that_is_missing_is_named() {
        let error = make_shared(Path::new("/none/such")).unwrap_err().to_string();
        assert_eq!(error, "cannot resolve /none/such: No such file or directory (os error 2)");
    }
}
