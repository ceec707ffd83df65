//! Block devices: those of `local` volumes are formatted if they are empty, checked, and mounted,
//! as `SafeFormatAndMount` of `k8s.io/mount-utils` does; those of block volumes are kept open.

use std::ffi::OsStr;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use nix::mount::{MsFlags, mount};

/// The file system of a volume that names none (`defaultFSType` of the plugin).
pub(super) const DEFAULT_FS_TYPE: &str = "ext4";
/// Status of blkid for a device without a file system and without partitions.
const BLKID_FOUND_NOTHING: i32 = 2;
/// Statuses of fsck: errors were corrected; errors were left.
const FSCK_CORRECTED: i32 = 1;
const FSCK_UNCORRECTED: i32 = 4;
/// Bytes of the output of a program that are reported.
const MAX_OUTPUT: usize = 1000;

/// Why a block device cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DeviceError {
    #[error("cannot run {program}: {source}; install it on the node")]
    Program { program: String, source: io::Error },
    #[error("{program} of {device:?} failed: {status}: {output}")]
    Failed { program: String, device: PathBuf, status: ExitStatus, output: String },
    #[error("blkid returns invalid output: {0}")]
    InvalidOutput(String),
    #[error("invalid fsType {0:?}")]
    InvalidType(String),
    #[error("cannot mount unformatted disk {0:?} as we are manipulating it in read-only mode")]
    UnformattedReadOnly(PathBuf),
    #[error("'fsck' found errors on device {device:?} but could not correct them: {output}")]
    Errors { device: PathBuf, output: String },
    /// `existing` describes the content of the device if it differs from `fs_type`.
    #[error("failed to mount device {device:?} (fstype: {fs_type}{existing}), error {source}")]
    Mount { device: PathBuf, fs_type: String, existing: String, source: io::Error },
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// How a block device is mounted.
#[derive(Debug, Clone, Copy)]
pub(super) struct MountOptions<'a> {
    pub(super) fs_type: &'a str,
    /// An empty device is not formatted.
    pub(super) read_only: bool,
    /// It is mounted, by another pod of this node for example, so that it is not checked.
    pub(super) in_use: bool,
}

/// Whether the path is a block device; follows symbolic links.
pub(crate) fn is_block_device(path: &Path) -> io::Result<bool> {
    Ok(std::fs::metadata(path)?.file_type().is_block_device())
}

/// Creates the file system of a block device if it is empty, and checks one that is not mounted;
/// returns what the device contained. Blocks while programs of the machine run.
pub(super) fn prepare(
    device: &Path,
    options: MountOptions<'_>,
) -> Result<Option<String>, DeviceError> {
    let fs_type = options.fs_type;
    // The type is part of the name of a program.
    if fs_type.is_empty() || !fs_type.bytes().all(|b| b.is_ascii_alphanumeric()) {
        return Err(DeviceError::InvalidType(fs_type.to_owned()));
    }
    let found = content(device)?;
    match (&found, options.read_only) {
        (None, true) => return Err(DeviceError::UnformattedReadOnly(device.to_owned())),
        (None, false) => {
            let program = format!("mkfs.{fs_type}");
            let (status, output) = run(&program, &format_arguments(fs_type), device)?;
            if !status.success() {
                let device = device.to_owned();
                return Err(DeviceError::Failed { program, device, status, output });
            }
            tracing::info!(device = %device.display(), fs_type, "node: device formatted");
        }
        (Some(_), false) if !options.in_use => check(device)?,
        (Some(_), _) => {}
    }
    Ok(found)
}

/// Mounts a block device on the existing directory `target`; creates its file system if the device
/// is empty. Blocks while programs of the machine run.
pub(super) fn format_and_mount(
    device: &Path,
    target: &Path,
    options: MountOptions<'_>,
) -> Result<(), DeviceError> {
    let fs_type = options.fs_type;
    let existing = match prepare(device, options)? {
        Some(found) if found != fs_type => format!(", current format: {found}"),
        _ => String::new(),
    };
    let try_mount = |flags| mount(Some(device), target, Some(fs_type), flags, None::<&str>);
    let mounted = match try_mount(MsFlags::empty()) {
        // Pods of one device share its file system. Only a device that is write-protected itself is
        // mounted read-only; otherwise the mount of the container is.
        Err(nix::Error::EROFS | nix::Error::EACCES) if options.read_only => {
            try_mount(MsFlags::MS_RDONLY)
        }
        done => done,
    };
    mounted.map_err(|errno| DeviceError::Mount {
        device: device.to_owned(),
        fs_type: fs_type.to_owned(),
        existing,
        source: errno.into(),
    })
}

/// The arguments of mkfs before the device.
fn format_arguments(fs_type: &str) -> Vec<&'static str> {
    match fs_type {
        // Without a reserve for root.
        "ext3" | "ext4" => vec!["-F", "-m0"],
        "xfs" => vec!["-f"],
        _ => Vec::new(),
    }
}

/// Returns what a device contains; `None` if it is empty.
fn content(device: &Path) -> Result<Option<String>, DeviceError> {
    let arguments = ["-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export"];
    let (status, output) = run("blkid", &arguments, device)?;
    match status.code() {
        Some(0) => parse_blkid(&output),
        Some(BLKID_FOUND_NOTHING) => Ok(None),
        _ => Err(DeviceError::Failed {
            program: "blkid".to_owned(),
            device: device.to_owned(),
            status,
            output,
        }),
    }
}

/// Returns the content that blkid reports (`getDiskFormat`).
fn parse_blkid(output: &str) -> Result<Option<String>, DeviceError> {
    let mut fs_type = None;
    for line in output.lines().filter(|line| !line.is_empty()) {
        match line.split_once('=') {
            Some(("TYPE", value)) => fs_type = Some(value.to_owned()),
            // A disk with partitions must not be formatted.
            Some(("PTTYPE", value)) if !value.is_empty() => {
                return Ok(Some("unknown data, probably partitions".to_owned()));
            }
            Some((_, value)) if !value.contains('=') => {}
            _ => return Err(DeviceError::InvalidOutput(cut(output))),
        }
    }
    Ok(fs_type.filter(|value| !value.is_empty()))
}

/// Checks the file system of a device, and corrects what can be corrected without a question.
pub(crate) fn check(device: &Path) -> Result<(), DeviceError> {
    match run("fsck", &["-a"], device) {
        Err(error) => {
            tracing::warn!(device = %device.display(), %error, "node: device not checked");
            Ok(())
        }
        Ok((status, output)) => match status.code() {
            Some(FSCK_UNCORRECTED) => {
                Err(DeviceError::Errors { device: device.to_owned(), output })
            }
            Some(FSCK_CORRECTED) => {
                tracing::info!(device = %device.display(), "node: fsck corrected errors");
                Ok(())
            }
            Some(0) => Ok(()),
            _ => {
                tracing::info!(device = %device.display(), %status, output, "node: fsck failed");
                Ok(())
            }
        },
    }
}

/// Runs a program of the machine for a device; returns its status and both outputs.
fn run(
    program: &str,
    arguments: &[&str],
    device: &Path,
) -> Result<(ExitStatus, String), DeviceError> {
    let output = Command::new(program)
        .args(arguments.iter().map(OsStr::new).chain([device.as_os_str()]))
        .stdin(Stdio::null())
        .output()
        .map_err(|source| DeviceError::Program { program: program.to_owned(), source })?;
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    Ok((output.status, cut(text.trim())))
}

/// Returns the loop device of a file or device; `None` if it has none.
pub(crate) fn loop_device(path: &Path) -> io::Result<Option<PathBuf>> {
    let real = path.canonicalize()?;
    for entry in std::fs::read_dir("/sys/block")?.flatten() {
        let name = entry.file_name();
        if !name.to_string_lossy().starts_with("loop") {
            continue;
        }
        let Ok(backing) = std::fs::read_to_string(entry.path().join("loop/backing_file")) else {
            continue;
        };
        let backing = Path::new(backing_path(&backing));
        if backing == path || backing == real {
            return Ok(Some(Path::new("/dev").join(name)));
        }
    }
    Ok(None)
}

/// The path in the file `backing_file` of a loop device; the kernel marks removed files.
fn backing_path(text: &str) -> &str {
    let text = text.trim();
    text.strip_suffix("(deleted)").unwrap_or(text).trim()
}

/// Keeps a device open by a loop device, so that the kernel does not give its number to another one
/// while a container uses it (`AttachFileDevice`). Blocks.
pub(super) fn hold_open(path: &Path) -> Result<(), DeviceError> {
    if loop_device(path)?.is_some() {
        return Ok(());
    }
    losetup("-f", path)
}

/// Undoes [`hold_open`]; idempotent. Blocks.
pub(super) fn release(path: &Path) -> Result<(), DeviceError> {
    match loop_device(path) {
        Ok(Some(device)) => losetup("-d", &device),
        Ok(None) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e.into()),
    }
}

fn losetup(argument: &str, path: &Path) -> Result<(), DeviceError> {
    let (status, output) = run("losetup", &[argument], path)?;
    if status.success() {
        return Ok(());
    }
    let program = "losetup".to_owned();
    Err(DeviceError::Failed { program, device: path.to_owned(), status, output })
}

fn cut(text: &str) -> String {
    text.chars().take(MAX_OUTPUT).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blkid_reports_a_file_system_partitions_or_nothing() {
        let parsed = |text| parse_blkid(text).unwrap();
        assert_eq!(parsed("DEVNAME=/dev/loop0\nTYPE=ext4\n").as_deref(), Some("ext4"));
        let partitions = Some("unknown data, probably partitions");
        assert_eq!(parsed("DEVNAME=/dev/sda\nPTTYPE=dos\n").as_deref(), partitions);
        assert_eq!(parsed("TYPE=ext4\nPTTYPE=dos\n").as_deref(), partitions);
        assert_eq!(parsed(""), None);
        assert_eq!(parsed("DEVNAME=/dev/loop0\n\n"), None);
        for invalid in ["ext4", "A=b=c", "TYPE=ext4\nrubbish"] {
            assert!(
                matches!(parse_blkid(invalid), Err(DeviceError::InvalidOutput(_))),
                "{invalid}"
            );
        }
    }

    #[test]
    fn a_removed_file_of_a_loop_device_is_recognized() {
        assert_eq!(backing_path("/dev/sda\n"), "/dev/sda");
        assert_eq!(backing_path("/a b (deleted)\n"), "/a b");
    }

    #[test]
    fn a_device_that_is_gone_is_released() {
        release(Path::new("/nowhere/device")).unwrap();
        release(Path::new("/dev/null")).unwrap();
    }

    #[test]
    fn a_type_that_is_no_plain_name_runs_no_program() {
        for fs_type in ["", "../ext4", "ext4 -x", "ext4/x"] {
            let options = MountOptions { fs_type, read_only: false, in_use: false };
            let refused = format_and_mount(Path::new("/nowhere"), Path::new("/nowhere"), options);
            assert!(matches!(refused, Err(DeviceError::InvalidType(_))), "{fs_type}");
        }
    }

    /// `mkfs.ext4` accepts a regular file as a device.
    #[test]
    fn an_empty_device_is_formatted_only_for_writers() {
        if run("blkid", &["--version"], Path::new("/dev/null")).is_err() {
            return;
        }
        let home = tempfile::tempdir().unwrap();
        let (file, target) = (home.path().join("disk"), home.path().join("target"));
        std::fs::File::create(&file).unwrap().set_len(4 << 20).unwrap();
        let mounted = |fs_type, read_only| {
            let options = MountOptions { fs_type, read_only, in_use: false };
            format_and_mount(&file, &target, options).unwrap_err()
        };
        assert!(matches!(mounted("ext4", true), DeviceError::UnformattedReadOnly(_)));
        assert_eq!(content(&file).unwrap(), None);
        // The directory does not exist, so that the mount fails after the format.
        if matches!(mounted("ext4", false), DeviceError::Mount { .. }) {
            assert_eq!(content(&file).unwrap().as_deref(), Some("ext4"));
            let other = mounted("xfs", false).to_string();
            assert!(other.contains("(fstype: xfs, current format: ext4)"), "{other}");
        }
    }
}
