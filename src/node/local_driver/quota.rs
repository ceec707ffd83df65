//! Project quotas of the node's file system, which limit volumes that are directories.

use std::ffi::CString;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::libc::{ENOENT, ENOSYS};

use super::error::LocalDriverError;
use super::sys::{self, QuotaTarget};
use crate::volumes::mounts;

pub(super) use super::sys::ProjectUsage;

/// Options of mounts with which a file system enforces the limits of projects. The kernel shows the
/// first one in the table of mounts.
const OPTIONS: [&str; 2] = ["prjquota", "pquota"];

/// The quotas of the projects of a file system, which is named by one of its directories.
pub(super) trait ProjectQuotas: fmt::Debug + Send + Sync {
    /// Fails unless the file system enforces the limits of projects.
    fn check(&self, directory: &Path) -> Result<(), LocalDriverError>;

    /// The limit and the usage of a project, also of one that does not exist.
    fn usage(&self, directory: &Path, project: u32) -> io::Result<ProjectUsage>;

    /// Limits the bytes of a project; zero removes the limit.
    fn set_limit(&self, directory: &Path, project: u32, bytes: u64) -> io::Result<()>;

    /// Gives a directory a project, which what is created in it inherits.
    fn set_project(&self, directory: &Path, project: u32) -> io::Result<()>;
}

/// The quotas of the kernel.
#[derive(Debug, Clone, Copy)]
pub(super) struct KernelQuotas;

/// Whether a mounted file system enforces the limits of projects.
fn is_enforced(fs_type: &str, options: &str) -> bool {
    let mut options = options.split(',');
    matches!(fs_type, "ext4" | "xfs") && options.any(|option| OPTIONS.contains(&option))
}

/// Calls the kernel by a directory, or by the device if the kernel is older than Linux 5.14.
fn with_target<T>(
    directory: &Path,
    call: impl Fn(QuotaTarget<'_>) -> io::Result<T>,
) -> io::Result<T> {
    let file = File::open(directory)?;
    match call(QuotaTarget::Directory(&file)) {
        Err(error) if error.raw_os_error() == Some(ENOSYS) => {
            let device = mounts::device_of(directory)?;
            let device = CString::new(device.as_os_str().as_bytes()).map_err(io::Error::other)?;
            call(QuotaTarget::Device(&device))
        }
        done => done,
    }
}

impl ProjectQuotas for KernelQuotas {
    fn check(&self, directory: &Path) -> Result<(), LocalDriverError> {
        let failed = LocalDriverError::io("find the file system of", directory);
        let found = match mounts::file_system(directory).map_err(failed)? {
            None => "another file system".to_owned(),
            Some(found) if is_enforced(&found.fs_type, &found.options) => return Ok(()),
            Some(found) => format!("{} with the options {}", found.fs_type, found.options),
        };
        Err(LocalDriverError::NoQuota { directory: directory.to_owned(), found })
    }

    fn usage(&self, directory: &Path, project: u32) -> io::Result<ProjectUsage> {
        match with_target(directory, |target| sys::project_usage(target, project)) {
            // XFS has no quota of a project that was never used.
            Err(error) if error.raw_os_error() == Some(ENOENT) => Ok(ProjectUsage::default()),
            found => found,
        }
    }

    fn set_limit(&self, directory: &Path, project: u32, bytes: u64) -> io::Result<()> {
        with_target(directory, |target| sys::limit_project(target, project, bytes))
    }

    fn set_project(&self, directory: &Path, project: u32) -> io::Result<()> {
        sys::set_project(&File::open(directory)?, project)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_projects_need_an_option_of_ext4_or_xfs() {
        for (fs_type, options, expected) in [
            ("ext4", "rw,relatime,prjquota", true),
            ("xfs", "rw,attr2,inode64,prjquota", true),
            ("xfs", "rw,pquota", true),
            ("ext4", "rw,relatime", false),
            ("xfs", "rw,attr2,inode64,noquota", false),
            ("xfs", "rw,pqnoenforce", false),
            ("ext4", "rw,usrquota,grpquota", false),
            ("tmpfs", "rw,prjquota", false),
            ("btrfs", "rw,prjquota", false),
        ] {
            assert_eq!(is_enforced(fs_type, options), expected, "{fs_type} {options}");
        }
    }

    #[test]
    fn a_file_system_without_quotas_is_refused_with_what_is_needed() {
        let error = KernelQuotas.check(Path::new("/proc")).unwrap_err();
        let text = error.to_string();
        for part in ["prjquota", "mkfs.ext4 -O project,quota", "XFS", "\"/proc\" is on proc"] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn calls_without_quotas_fail() {
        // `/proc` has no quotas and no projects, also where the kernel has them.
        let proc = Path::new("/proc");
        assert!(KernelQuotas.usage(proc, 1).is_err());
        assert!(KernelQuotas.set_limit(proc, 1, 0).is_err());
        assert!(KernelQuotas.set_project(proc, 1).is_err());
    }
}
