//! Block devices of pods: bound below the global map path of the volume, linked in the directory of
//! the pod, and kept open by a loop device, so that one is not silently replaced by another one
//! (`MapBlockVolume` of upstream).

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use super::device::{self, DeviceError};
use super::directory::create_dir;
use super::mounts;

/// The device of a pod below the global map path of its volume.
fn device_of(global_map: &Path, pod_dir: &Path) -> PathBuf {
    global_map.join(pod_dir.file_name().unwrap_or_default())
}

fn is_device(path: &Path) -> io::Result<bool> {
    match std::fs::symlink_metadata(path) {
        Ok(metadata) => Ok(metadata.file_type().is_block_device()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}

fn remove_file(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Returns the device that is mapped for a pod; `link` is the path in the directory of the pod.
/// After a restart of the machine, nothing is mapped. Blocks.
pub(super) fn mapped(
    global_map: &Path,
    pod_dir: &Path,
    link: &Path,
) -> io::Result<Option<PathBuf>> {
    if !is_device(&device_of(global_map, pod_dir))? {
        return Ok(None);
    }
    let Ok(path) = link.canonicalize() else { return Ok(None) };
    let is_mapped = device::is_block_device(&path)?;
    Ok(is_mapped.then_some(path))
}

/// The messages of the events about a volume that was mapped for a pod.
pub(super) fn mapped_messages(volume: &str, global_map: &Path, link: &Path) -> [String; 2] {
    let of_pod = link.parent().unwrap_or(link);
    [("globalMapPath", global_map), ("volumeMapPath", of_pod)].map(|(name, path)| {
        let path = path.display().to_string();
        format!("MapVolume.MapPodDevice succeeded for volume {volume:?} {name} {path:?}")
    })
}

/// Maps a device, which is no link, for a pod. Blocks.
///
/// # Errors
///
/// A directory cannot be created, or the device cannot be bound or kept open.
pub(super) fn map(
    global_map: &Path,
    pod_dir: &Path,
    link: &Path,
    device: &Path,
) -> Result<(), DeviceError> {
    let global = device_of(global_map, pod_dir);
    create_dir(global_map)?;
    if !is_device(&global)? {
        std::fs::OpenOptions::new().create(true).append(true).open(&global)?;
        mounts::bind(device, &global)?;
    }
    if let Some(links) = link.parent() {
        create_dir(links)?;
    }
    remove_file(link)?;
    std::os::unix::fs::symlink(device, link)?;
    device::hold_open(&global)
}

/// Undoes [`map`]; idempotent. Blocks.
///
/// # Errors
///
/// The device cannot be released or unmounted.
pub(super) fn unmap(global_map: &Path, pod_dir: &Path, link: &Path) -> Result<(), DeviceError> {
    let global = device_of(global_map, pod_dir);
    device::release(&global)?;
    remove_file(link)?;
    // The directory is shared with the other devices of the pod.
    if let Some(links) = link.parent() {
        let _ = std::fs::remove_dir(links);
    }
    mounts::unmount_below(&global)?;
    Ok(remove_file(&global)?)
}
