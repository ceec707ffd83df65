//! Loop devices of the files of volumes. A device is found by its file, so that nothing is lost
//! with the process.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use super::error::LocalDriverError;
use super::sys;
use crate::volumes::device;
use crate::volumes::mounts;

/// Attempts to get a free loop device: another program may take it first.
const ATTEMPTS: usize = 16;
/// Gives out loop devices.
const CONTROL: &str = "/dev/loop-control";

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

/// Returns the loop device of a file; `None` if it has none.
pub(super) fn find(file: &Path) -> Result<Option<PathBuf>, LocalDriverError> {
    match device::loop_device(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        found => found.map_err(LocalDriverError::io("find the loop device of", file)),
    }
}

/// Returns the loop device of a file, which is attached if it has none.
pub(super) fn attach(file: &Path) -> Result<PathBuf, LocalDriverError> {
    if let Some(device) = find(file)? {
        return Ok(device);
    }
    let backing = open(file).map_err(LocalDriverError::io("open", file))?;
    let failed = || LocalDriverError::io("attach a loop device to", file);
    let control = open(Path::new(CONTROL)).map_err(LocalDriverError::io(
        "get a loop device (the kernel needs the module loop) from",
        CONTROL,
    ))?;
    let mut last = io::Error::from(io::ErrorKind::ResourceBusy);
    for _ in 0..ATTEMPTS {
        let number = sys::free_loop_device(&control).map_err(failed())?;
        let path = PathBuf::from(format!("/dev/loop{number}"));
        let device = open(&path).map_err(LocalDriverError::io("open", &path))?;
        match sys::configure_loop_device(&device, &backing, &file.to_string_lossy()) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => last = error,
            Err(error) => return Err(failed()(error)),
        }
    }
    Err(failed()(last))
}

/// Detaches the loop device of a file; idempotent.
pub(super) fn detach(file: &Path) -> Result<(), LocalDriverError> {
    let Some(path) = find(file)? else { return Ok(()) };
    let device = open(&path).map_err(LocalDriverError::io("open", &path))?;
    match sys::clear_loop_device(&device) {
        // It was detached meanwhile.
        Err(error) if error.raw_os_error() == Some(nix::libc::ENXIO) => Ok(()),
        done => done.map_err(LocalDriverError::io("detach", &path)),
    }
}

/// Gives the loop device the present size of its file.
pub(super) fn refresh(path: &Path) -> Result<(), LocalDriverError> {
    let device = open(path).map_err(LocalDriverError::io("open", path))?;
    sys::refresh_loop_device(&device).map_err(LocalDriverError::io("enlarge", path))
}

/// Returns a directory on which the file system of a device is mounted.
pub(super) fn mounted_at(device: &Path) -> Result<Option<PathBuf>, LocalDriverError> {
    mounts::of_device(device).map_err(LocalDriverError::io("read the mounts of", device))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_a_loop_device_has_none() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("disk");
        assert_eq!(find(&file).unwrap(), None);
        std::fs::write(&file, "x").unwrap();
        assert_eq!(find(&file).unwrap(), None);
        detach(&file).unwrap();
    }
}
