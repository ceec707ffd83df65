//! Calls of the kernel without a safe wrapper: loop devices, frozen file systems, shared blocks,
//! project quotas.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};

use nix::libc::{self, Ioctl};

/// Requests of `linux/loop.h`.
const LOOP_CLR_FD: Ioctl = 0x4C01;
const LOOP_SET_CAPACITY: Ioctl = 0x4C07;
const LOOP_CONFIGURE: Ioctl = 0x4C0A;
const LOOP_CTL_GET_FREE: Ioctl = 0x4C82;
/// Requests of `linux/fs.h`.
const FICLONE: Ioctl = 0x4004_9409;
const FIFREEZE: Ioctl = 0xC004_5877_u32 as Ioctl;
const FITHAW: Ioctl = 0xC004_5878_u32 as Ioctl;
const FS_IOC_FSGETXATTR: Ioctl = 0x801C_581F_u32 as Ioctl;
const FS_IOC_FSSETXATTR: Ioctl = 0x401C_5820;
/// Flag of a directory: what is created in it belongs to its project.
const FS_XFLAG_PROJINHERIT: u32 = 0x200;
/// Commands of `linux/quota.h`, for quotas of projects.
const Q_GETQUOTA: u32 = 0x80_0007;
const Q_SETQUOTA: u32 = 0x80_0008;
const PRJQUOTA: u32 = 2;
/// The limits of blocks of a quota are valid.
const QIF_BLIMITS: u32 = 1;
/// Unit of the limits of a quota in bytes.
const QUOTA_BLOCK: u64 = 1024;
/// Flag of a loop device that does not cache its file a second time. The kernel ignores it for
/// files that need the cache.
const LO_FLAGS_DIRECT_IO: u32 = 16;
/// Bytes of the name that the kernel keeps of a loop device's file (`LO_NAME_SIZE`).
const NAME_SIZE: usize = 64;

/// `struct loop_info64`.
#[repr(C)]
struct LoopInfo {
    numbers: [u64; 5],
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; NAME_SIZE],
    crypt_name: [u8; NAME_SIZE],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config`.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

/// `struct fsxattr`.
#[repr(C)]
#[derive(Default)]
struct FileAttributes {
    flags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    copy_extent_size: u32,
    padding: [u8; 8],
}

/// `struct if_dqblk`.
#[repr(C)]
#[derive(Default)]
struct DiskQuota {
    /// In units of [`QUOTA_BLOCK`].
    hard_limit: u64,
    soft_limit: u64,
    /// In bytes.
    used: u64,
    file_hard_limit: u64,
    file_soft_limit: u64,
    files: u64,
    times: [u64; 2],
    valid: u32,
}

/// The sizes of the structures in the kernel's interface.
const _: () = assert!(size_of::<LoopInfo>() == 232 && size_of::<LoopConfig>() == 304);
const _: () = assert!(size_of::<FileAttributes>() == 28);
#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<DiskQuota>() == 72);

fn outcome(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Makes a request that has a number or no argument.
#[expect(unsafe_code, reason = "no safe wrapper exists")]
fn request(file: &File, code: Ioctl, argument: RawFd) -> io::Result<libc::c_int> {
    // SAFETY: all requests that callers make take an integer by value or nothing; FIFREEZE and
    // FITHAW ignore the pointer that they are declared with.
    outcome(unsafe { libc::ioctl(file.as_raw_fd(), code, libc::c_long::from(argument)) })
}

/// Returns the number of a loop device without a file; `control` is `/dev/loop-control`.
pub(super) fn free_loop_device(control: &File) -> io::Result<libc::c_int> {
    request(control, LOOP_CTL_GET_FREE, 0)
}

/// Makes `device` a loop device of `file`. `name` is shown by `losetup`.
#[expect(unsafe_code, reason = "no safe wrapper exists")]
pub(super) fn configure_loop_device(device: &File, file: &File, name: &str) -> io::Result<()> {
    let mut file_name = [0; NAME_SIZE];
    // The last byte remains zero.
    for (to, from) in file_name.iter_mut().take(NAME_SIZE - 1).zip(name.bytes()) {
        *to = from;
    }
    let info = LoopInfo {
        numbers: [0; 5],
        number: 0,
        encrypt_type: 0,
        encrypt_key_size: 0,
        flags: LO_FLAGS_DIRECT_IO,
        file_name,
        crypt_name: [0; NAME_SIZE],
        encrypt_key: [0; 32],
        init: [0; 2],
    };
    let fd = u32::try_from(file.as_raw_fd()).map_err(io::Error::other)?;
    let config = LoopConfig { fd, block_size: 0, info, reserved: [0; 8] };
    // SAFETY: the pointer is to a `loop_config` of the kernel's size, which the call only reads.
    outcome(unsafe {
        libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, std::ptr::from_ref(&config))
    })?;
    Ok(())
}

/// Detaches a loop device from its file; a device in use is detached at its last close.
pub(super) fn clear_loop_device(device: &File) -> io::Result<()> {
    request(device, LOOP_CLR_FD, 0).map(drop)
}

/// Gives a loop device the present size of its file.
pub(super) fn refresh_loop_device(device: &File) -> io::Result<()> {
    request(device, LOOP_SET_CAPACITY, 0).map(drop)
}

/// Makes `to` share all blocks of `from`.
pub(super) fn share_blocks(from: &File, to: &File) -> io::Result<()> {
    request(to, FICLONE, from.as_raw_fd()).map(drop)
}

/// Writes everything of the file system of `directory` and stops further writes until [`thaw`].
pub(super) fn freeze(directory: &File) -> io::Result<()> {
    request(directory, FIFREEZE, 0).map(drop)
}

/// Lets a file system be written again.
pub(super) fn thaw(directory: &File) -> io::Result<()> {
    request(directory, FITHAW, 0).map(drop)
}

/// Gives a directory a project, which what is created in it inherits.
#[expect(unsafe_code, reason = "no safe wrapper exists")]
pub(super) fn set_project(directory: &File, project: u32) -> io::Result<()> {
    let mut attributes = FileAttributes::default();
    let directory = directory.as_raw_fd();
    // SAFETY: the pointer is to a `fsxattr` of the kernel's size, which the call writes.
    outcome(unsafe {
        libc::ioctl(directory, FS_IOC_FSGETXATTR, std::ptr::from_mut(&mut attributes))
    })?;
    attributes.flags |= FS_XFLAG_PROJINHERIT;
    attributes.project = project;
    // SAFETY: the pointer is to a `fsxattr` of the kernel's size, which the call only reads.
    outcome(unsafe { libc::ioctl(directory, FS_IOC_FSSETXATTR, std::ptr::from_ref(&attributes)) })?;
    Ok(())
}

/// The file system whose quotas are meant.
#[derive(Debug, Clone, Copy)]
pub(super) enum QuotaTarget<'a> {
    /// That of a directory; Linux 5.14 or later.
    Directory(&'a File),
    /// That of a block device.
    Device(&'a CStr),
}

#[expect(unsafe_code, reason = "no safe wrapper exists")]
fn quotactl(
    command: u32,
    target: QuotaTarget<'_>,
    project: u32,
    quota: &mut DiskQuota,
) -> io::Result<()> {
    let command = libc::c_ulong::from((command << 8) | PRJQUOTA);
    let (project, quota) = (libc::c_ulong::from(project), std::ptr::from_mut(quota));
    // SAFETY: `quota` is a `if_dqblk` of the kernel's size, which the calls read or write; the path
    // of a device ends with a zero.
    let result = unsafe {
        match target {
            QuotaTarget::Directory(directory) => {
                let directory = libc::c_long::from(directory.as_raw_fd());
                libc::syscall(libc::SYS_quotactl_fd, directory, command, project, quota)
            }
            QuotaTarget::Device(path) => {
                libc::syscall(libc::SYS_quotactl, command, path.as_ptr(), project, quota)
            }
        }
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A project in the quotas of a file system.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ProjectUsage {
    /// The hard limit in bytes; zero without one.
    pub(super) limit: u64,
    /// Used bytes.
    pub(super) used: u64,
    /// Files and directories.
    pub(super) files: u64,
}

/// Returns the limit and the usage of a project.
pub(super) fn project_usage(target: QuotaTarget<'_>, project: u32) -> io::Result<ProjectUsage> {
    let mut quota = DiskQuota::default();
    quotactl(Q_GETQUOTA, target, project, &mut quota)?;
    let limit = quota.hard_limit.saturating_mul(QUOTA_BLOCK);
    Ok(ProjectUsage { limit, used: quota.used, files: quota.files })
}

/// Limits the bytes of a project; zero removes the limit.
pub(super) fn limit_project(target: QuotaTarget<'_>, project: u32, bytes: u64) -> io::Result<()> {
    let hard_limit = bytes.div_ceil(QUOTA_BLOCK);
    let mut quota = DiskQuota { hard_limit, valid: QIF_BLIMITS, ..DiskQuota::default() };
    quotactl(Q_SETQUOTA, target, project, &mut quota)
}
