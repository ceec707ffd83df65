//! Finds the device of a Fibre Channel disk, and removes it from the kernel (`searchDisk`,
//! `DetachDisk`).

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::disk::FcDisk;
use crate::volumes::mounts;
use crate::volumes::scsi::{DeviceFiles, Scsi, ScsiError};

/// How long the links of new devices may take to appear after a scan. Upstream looks once, and the
/// next attempt of the pod finds what appeared meanwhile.
const DEVICE_TIMEOUT: Duration = Duration::from_secs(10);

/// A disk, and the multipath device above it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FoundDisk {
    device: PathBuf,
    multipath: Option<PathBuf>,
}

/// Whether a link in `/dev/disk/by-path` leads to a LUN of a target; links of older versions of
/// udev do not name the adapter.
fn is_link_of(name: &str, wwn: &str, lun: &str) -> bool {
    let link = format!("fc-0x{wwn}-lun-{lun}");
    let of_adapter = || {
        let rest = name.strip_prefix("pci-")?.strip_suffix(&link)?;
        Some(rest.ends_with('-'))
    };
    name == link || of_adapter() == Some(true)
}

/// Looks for a disk below `/dev/disk`: the first with a multipath device, or else the last one
/// (`findDisk`, `findDiskWWIDs`). Blocks.
fn find(files: &DeviceFiles, disk: &FcDisk) -> Option<FoundDisk> {
    let links: Vec<PathBuf> = match disk {
        FcDisk::Target { wwns, lun } => {
            let entries = std::fs::read_dir(files.by_path()).into_iter().flatten().flatten();
            let names: Vec<String> =
                entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
            let of = |wwn: &String| names.iter().find(|name| is_link_of(name, wwn, lun));
            wwns.iter().filter_map(of).map(|name| files.by_path().join(name)).collect()
        }
        FcDisk::Identifier { wwids } => {
            wwids.iter().map(|wwid| files.by_id().join(format!("scsi-{wwid}"))).collect()
        }
    };
    let mut found = None;
    for link in links {
        let Ok(device) = link.canonicalize() else { continue };
        let multipath = files.multipath_of(&device);
        let is_last = multipath.is_some();
        found = Some(FoundDisk { device, multipath });
        if is_last {
            break;
        }
    }
    found
}

/// Returns the device of a disk; has the SCSI hosts look for it unless its multipath device is
/// there.
///
/// # Errors
///
/// There is no such disk.
pub(crate) async fn attach(scsi: &Scsi, disk: &FcDisk) -> Result<PathBuf, ScsiError> {
    let (files, of) = (scsi.files.clone(), disk.clone());
    let known = base::tasks::blocking(move || {
        let known = find(&files, &of);
        if known.as_ref().is_none_or(|disk| disk.multipath.is_none()) {
            files.rescan_hosts();
        }
        known
    });
    if let Some(FoundDisk { multipath: Some(device), .. }) = known.await? {
        return Ok(device);
    }
    let (files, of) = (scsi.files.clone(), disk.clone());
    let directory = match disk {
        FcDisk::Target { .. } => files.by_path(),
        FcDisk::Identifier { .. } => files.by_id(),
    };
    let look = move || find(&files, &of);
    let found = scsi.files.wait_for(directory, DEVICE_TIMEOUT, look).await?;
    let FoundDisk { device, multipath } = found.ok_or(ScsiError::FcDiskNotFound)?;
    Ok(multipath.unwrap_or(device))
}

/// Removes a device, or a multipath device and its paths, from the kernel.
///
/// # Errors
///
/// The multipath device cannot be flushed; its paths stay.
pub(crate) async fn detach(scsi: &Scsi, device: &Path) -> Result<(), ScsiError> {
    let (files, path) = (scsi.files.clone(), device.to_owned());
    let looked = base::tasks::blocking(move || {
        let name = files.device_name(&path)?;
        let is_multipath = name.starts_with("dm-");
        let device = files.device(&name);
        let slaves = if is_multipath { files.slaves_of(&device) } else { vec![name] };
        Some((is_multipath.then_some(device), slaves))
    });
    // A device that is gone needs no removal.
    let Some((multipath, names)) = looked.await? else { return Ok(()) };
    if let Some(device) = multipath {
        let arguments = ["-f".to_owned(), device.to_string_lossy().into_owned()];
        let output = scsi.programs.run("multipath", &arguments).await?;
        if !output.is_success() {
            let (status, output) = (output.status(), output.shown());
            return Err(ScsiError::FlushMultipath { device, status, output });
        }
    }
    for name in names {
        let device = scsi.files.device(&name).to_string_lossy().into_owned();
        let flushed = scsi.programs.run("blockdev", &["--flushbufs".to_owned(), device]).await;
        match flushed {
            Ok(output) if output.is_success() => {}
            Ok(output) => {
                tracing::warn!(device = name, output = output.shown(), "node: cannot flush device");
            }
            Err(error) => tracing::warn!(device = name, %error, "node: cannot flush device"),
        }
        let files = scsi.files.clone();
        let deleted = base::tasks::blocking(move || {
            if let Err(error) = files.delete_device(&name) {
                tracing::warn!(device = name, %error, "node: cannot delete device");
            }
        });
        deleted.await?;
    }
    Ok(())
}

/// Removes the device of a disk from the kernel (`DetachBlockFCDisk`). Does nothing if there is
/// none, or if something of the machine has mounted it.
///
/// # Errors
///
/// As [`detach`].
pub(crate) async fn detach_unless_used(scsi: &Scsi, disk: &FcDisk) -> Result<(), ScsiError> {
    let (files, of) = (scsi.files.clone(), disk.clone());
    let found = base::tasks::blocking(move || -> std::io::Result<Option<PathBuf>> {
        let Some(FoundDisk { device, multipath }) = find(&files, &of) else { return Ok(None) };
        let device = multipath.unwrap_or(device);
        Ok((!mounts::is_device_mounted(&device)?).then_some(device))
    });
    match found.await?? {
        Some(device) => detach(scsi, &device).await,
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_recognized_by_target_and_lun() {
        let is = |name: &str| is_link_of(name, "500a0981891b8dc5", "0");
        assert!(is("pci-0000:41:00.0-fc-0x500a0981891b8dc5-lun-0"));
        assert!(is("fc-0x500a0981891b8dc5-lun-0"));
        for other in [
            "pci-0000:41:00.0-fc-0x500a0981891b8dc5-lun-01",
            "pci-0000:41:00.0-fc-0x500a0981891b8dc5-lun-0-part1",
            "pci-0000:41:00.0-xfc-0x500a0981891b8dc5-lun-0x",
            "xfc-0x500a0981891b8dc5-lun-0",
            "pci-fc-0x500a0981891b8dc50-lun-0",
        ] {
            assert!(!is(other), "{other}");
        }
    }
}
