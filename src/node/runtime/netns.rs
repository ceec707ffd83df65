//! Removes network namespaces of pods that a later mount hides, which prevents their sandboxes from
//! being stopped.
//!
//! `ip netns add` mounts `/run/netns` over itself if it is no mount point yet. Each namespace file
//! below it is then mounted twice: the runtime unmounts the upper mount and cannot unlink the file
//! because of the lower one.

use std::io;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::statfs::{FsType, statfs};

use super::RuntimeError;

/// Magic number of the namespace file system (`NSFS_MAGIC` of linux/magic.h).
const NSFS_MAGIC: FsType = FsType(0x6e73_6673);
/// Prefix of namespace files of the CNI library in containerd and CRI-O.
const PREFIX: &str = "cni-";
/// Maximum number of mounts to undo above one file.
const LAYERS_MAX: usize = 64;

/// Returns the namespace files whose mount is hidden by another: they are listed in `mountinfo`,
/// but `is_namespace` is false for their path.
fn hidden(mountinfo: &str, is_namespace: impl Fn(&Path) -> bool) -> Vec<PathBuf> {
    let mut out = Vec::new();
    for line in mountinfo.lines() {
        let Some((mount, source)) = line.split_once(" - ") else { continue };
        let Some(path) = mount.split(' ').nth(4).map(PathBuf::from) else { continue };
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        let of_runtime = source.starts_with("nsfs ") && name.starts_with(PREFIX);
        if of_runtime && !out.contains(&path) && !is_namespace(&path) {
            out.push(path);
        }
    }
    out
}

/// Calls the runtime about a sandbox. If the call fails and a mount hides network namespaces,
/// releases them and repeats the call.
///
/// # Errors
///
/// The error of the call.
pub(crate) async fn retry<T, F>(call: impl Fn() -> F) -> Result<T, RuntimeError>
where
    F: Future<Output = Result<T, RuntimeError>>,
{
    let error = match call().await {
        Err(error) if !error.is_unavailable() => error,
        outcome => return outcome,
    };
    match base::tasks::blocking(release_hidden).await {
        Ok(Ok(0)) | Err(_) => Err(error),
        Ok(Ok(released)) => {
            tracing::info!(released, "removed hidden network namespaces");
            call().await
        }
        Ok(Err(why)) => {
            tracing::warn!(error = %why, "cannot remove hidden network namespaces");
            Err(error)
        }
    }
}

/// Removes the namespace files whose mounts are hidden, and returns their number. The hiding mounts
/// remain.
///
/// # Errors
///
/// The mount table cannot be read, or a file cannot be unlinked.
fn release_hidden() -> io::Result<usize> {
    let mountinfo = std::fs::read_to_string("/proc/self/mountinfo")?;
    let is_namespace = |path: &Path| statfs(path).is_ok_and(|s| s.filesystem_type() == NSFS_MAGIC);
    let paths = hidden(&mountinfo, is_namespace);
    if paths.is_empty() {
        return Ok(0);
    }
    // A thread can get its own mount namespace, but cannot return to that of the process, so it
    // ends afterwards.
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("hidden-netns".to_owned());
        let worker = thread.spawn_scoped(scope, || unlink(&paths))?;
        worker.join().unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
    })?;
    Ok(paths.len())
}

/// Unlinks the files in a mount namespace that has no mounts on them. The kernel then detaches
/// their mounts in other namespaces (`detach_mounts`).
fn unlink(paths: &[PathBuf]) -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    for path in paths {
        for _ in 0..LAYERS_MAX {
            let detach =
                |path: &Path| umount2(path, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW);
            let listed = std::fs::read_to_string("/proc/thread-self/mountinfo")?;
            if hidden(&listed, |_| false).iter().all(|p| p != path) {
                break;
            }
            if detach(path).is_err() {
                detach(path.parent().unwrap_or(Path::new("/")))?;
            }
        }
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                let text = format!("cannot unlink {}: {error}", path.display());
                return Err(io::Error::new(error.kind(), text));
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_namespaces_of_the_runtime_below_another_mount_are_hidden() {
        let mountinfo = "\
30 20 0:25 / /run rw - tmpfs tmpfs rw
31 30 0:4 net:[4026532001] /run/netns/cni-a rw - nsfs nsfs rw
32 30 0:4 net:[4026532002] /run/netns/cni-b rw - nsfs nsfs rw
33 30 0:25 /netns /run/netns rw shared:1 - tmpfs tmpfs rw
34 33 0:4 net:[4026532001] /run/netns/cni-a rw shared:2 - nsfs nsfs rw
35 33 0:4 net:[4026532003] /run/netns/mine rw shared:3 - nsfs nsfs rw
36 30 0:26 / /run/netns/cni-disk rw - tmpfs tmpfs rw
";
        let stays = |path: &Path| path == Path::new("/run/netns/cni-a");
        assert_eq!(hidden(mountinfo, stays), [PathBuf::from("/run/netns/cni-b")]);
        assert!(hidden(mountinfo, |_| true).is_empty());
    }

    /// The state after `ip netns add`, in a separate mount namespace. Needs root.
    #[test]
    fn a_file_below_a_bind_mount_is_unlinked_and_the_mount_stays() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        std::thread::spawn(|| {
            let none = None::<&str>;
            unshare(CloneFlags::CLONE_NEWNS).unwrap();
            mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
            let home = tempfile::tempdir().unwrap();
            let bind = |from: &Path, to: &Path| {
                mount(Some(from), to, none, MsFlags::MS_BIND | MsFlags::MS_REC, none).unwrap();
            };
            let file = home.path().join("cni-x");
            std::fs::write(&file, "").unwrap();
            bind(Path::new("/proc/self/ns/net"), &file);
            bind(home.path(), home.path());
            // The runtime unmounts the visible mount, and cannot unlink the file.
            umount2(&file, MntFlags::MNT_DETACH).unwrap();
            let busy = std::fs::remove_file(&file).unwrap_err();
            assert_eq!(busy.raw_os_error(), Some(nix::libc::EBUSY));
            let table = || std::fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
            assert_eq!(hidden(&table(), |_| false), std::slice::from_ref(&file));
            std::thread::scope(|s| s.spawn(|| unlink(std::slice::from_ref(&file))).join().unwrap())
                .unwrap();
            assert!(!file.exists() && hidden(&table(), |_| false).is_empty());
            let top = home.path().to_string_lossy().into_owned();
            assert!(table().lines().any(|l| l.split(' ').nth(4) == Some(top.as_str())));
            umount2(home.path(), MntFlags::MNT_DETACH).unwrap();
        })
        .join()
        .unwrap();
    }
}
