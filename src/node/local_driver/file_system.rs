//! File systems of volumes: programs of the machine create and enlarge them, the kernel mounts
//! them.

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use api::local_driver::FsType;
use nix::mount::{MsFlags, mount};

use super::error::LocalDriverError;

/// Bytes of the output of a program that are reported.
const OUTPUT_MAX: usize = 1000;

/// Options of `mount` that are flags of the call; the others are text for the file system.
const FLAGS: [(&str, MsFlags); 12] = [
    ("ro", MsFlags::MS_RDONLY),
    ("nosuid", MsFlags::MS_NOSUID),
    ("nodev", MsFlags::MS_NODEV),
    ("noexec", MsFlags::MS_NOEXEC),
    ("sync", MsFlags::MS_SYNCHRONOUS),
    ("dirsync", MsFlags::MS_DIRSYNC),
    ("noatime", MsFlags::MS_NOATIME),
    ("nodiratime", MsFlags::MS_NODIRATIME),
    ("relatime", MsFlags::MS_RELATIME),
    ("strictatime", MsFlags::MS_STRICTATIME),
    ("lazytime", MsFlags::MS_LAZYTIME),
    ("defaults", MsFlags::empty()),
];

/// The package with the programs of a file system, by Debian's names.
fn package(fs_type: FsType) -> &'static str {
    match fs_type {
        FsType::Ext4 => "e2fsprogs",
        FsType::Xfs => "xfsprogs",
    }
}

fn run(
    fs_type: FsType,
    program: &'static str,
    arguments: &[&str],
    path: &Path,
) -> Result<(), LocalDriverError> {
    let output = Command::new(program).args(arguments).arg(path).stdin(Stdio::null()).output();
    let output = output.map_err(|error| LocalDriverError::Program {
        program,
        package: package(fs_type),
        error: error.to_string(),
    })?;
    if output.status.success() {
        return Ok(());
    }
    let mut text = String::from_utf8_lossy(&output.stderr).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stdout));
    let output_text = text.trim().chars().take(OUTPUT_MAX).collect();
    Err(LocalDriverError::Failed { program, status: output.status, output: output_text })
}

/// Creates a file system in a file.
pub(super) fn create(fs_type: FsType, file: &Path) -> Result<(), LocalDriverError> {
    match fs_type {
        // Without a reserve for root, and without a discard of a file of holes.
        FsType::Ext4 => run(fs_type, "mkfs.ext4", &["-q", "-F", "-m0", "-Enodiscard"], file),
        FsType::Xfs => run(fs_type, "mkfs.xfs", &["-q", "-f", "-K"], file),
    }
}

/// Gives a mounted file system the size of its device; idempotent.
pub(super) fn enlarge(
    fs_type: FsType,
    device: &Path,
    mounted_at: &Path,
) -> Result<(), LocalDriverError> {
    match fs_type {
        FsType::Ext4 => run(fs_type, "resize2fs", &[], device),
        FsType::Xfs => run(fs_type, "xfs_growfs", &["-d"], mounted_at),
    }
}

/// The flags and the text of mount options.
fn parse(fs_type: FsType, options: &[String]) -> (MsFlags, String) {
    let (mut flags, mut text) = (MsFlags::empty(), Vec::new());
    if fs_type == FsType::Xfs {
        // A copy of a volume has its UUID.
        text.push("nouuid");
    }
    for option in options.iter().flat_map(|o| o.split(',')).filter(|o| !o.is_empty()) {
        match FLAGS.iter().find(|(name, _)| *name == option) {
            Some((_, flag)) => flags |= *flag,
            None => text.push(option),
        }
    }
    (flags, text.join(","))
}

/// Mounts a device on an existing directory.
pub(super) fn mount_device(
    fs_type: FsType,
    device: &Path,
    directory: &Path,
    options: &[String],
) -> Result<(), LocalDriverError> {
    let (flags, text) = parse(fs_type, options);
    let text = (!text.is_empty()).then_some(text.as_str());
    mount(Some(device), directory, Some(fs_type.name()), flags, text).map_err(|errno| {
        let error = io::Error::from(errno);
        let path = device.display();
        let options = text.unwrap_or_default();
        LocalDriverError::Other(format!(
            "cannot mount {path} ({}, options {options:?}): {error}",
            fs_type.name()
        ))
    })
}

/// Lets no one write through the bind mount on `target`.
pub(super) fn make_read_only(target: &Path) -> Result<(), LocalDriverError> {
    let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
    mount(None::<&str>, target, None::<&str>, flags, None::<&str>)
        .map_err(|errno| LocalDriverError::io("mount read-only", target)(errno.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_options_are_flags_or_texts_of_the_file_system() {
        let options = ["noatime".to_owned(), "commit=30,discard".to_owned(), String::new()];
        let (flags, text) = parse(FsType::Ext4, &options);
        assert_eq!((flags, text.as_str()), (MsFlags::MS_NOATIME, "commit=30,discard"));
        assert_eq!(parse(FsType::Xfs, &["ro".into()]), (MsFlags::MS_RDONLY, "nouuid".into()));
    }

    #[test]
    fn a_missing_program_names_its_package() {
        let error = run(FsType::Xfs, "mkfs.missing", &[], Path::new("/")).unwrap_err().to_string();
        assert!(error.ends_with("install the package xfsprogs on the node"), "{error}");
    }
}
