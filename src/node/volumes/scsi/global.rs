//! The mount at the global path of a volume, which all pods of the node share.

use std::io;
use std::path::{Path, PathBuf};

use super::Scsi;
use super::error::ScsiError;
use super::volume::ScsiVolume;
use crate::volumes::device::{self, DEFAULT_FS_TYPE};
use crate::volumes::directory::create_dir;
use crate::volumes::mounts;
use crate::volumes::selinux::mount_option::context_option;

/// The arguments of `mount`: the options of the PersistentVolume, then `ro`, the SELinux label
/// unless it is empty, and `defaults`, as `SafeFormatAndMount` of `k8s.io/mount-utils` has them.
fn arguments(
    (volume, label): (&ScsiVolume, &str),
    fs_type: &str,
    device: &Path,
    target: &Path,
) -> Vec<String> {
    let context = context_option(label);
    let mut options: Vec<&str> = volume.mount_options.iter().map(String::as_str).collect();
    if volume.read_only && !options.contains(&"ro") {
        options.push("ro");
    }
    if !label.is_empty() {
        options.push(&context);
    }
    options.push("defaults");
    let path = |path: &Path| path.to_string_lossy().into_owned();
    let mut out: Vec<String> =
        ["-t", fs_type, "-o"].iter().map(|text| (*text).to_owned()).collect();
    out.extend([options.join(","), path(device), path(target)]);
    out
}

/// Formats the device of a volume if it is empty, and mounts it at the global path (`MountDevice`).
/// The volume of a reader is mounted read-only: other nodes may have it, too. All its files have
/// the label unless that is empty.
///
/// # Errors
///
/// The device cannot be formatted, checked or mounted.
pub(super) async fn mount(
    scsi: &Scsi,
    (volume, label): (&ScsiVolume, &str),
    device: &Path,
) -> Result<(), ScsiError> {
    let target = volume.global_path(&scsi.root);
    let fs_type = if volume.fs_type.is_empty() { DEFAULT_FS_TYPE } else { volume.fs_type.as_str() };
    let read_only = volume.read_only || volume.mount_options.iter().any(|option| option == "ro");
    let (of, path, owned) = (device.to_owned(), target.clone(), fs_type.to_owned());
    let prepared = base::tasks::blocking(move || -> Result<(), ScsiError> {
        create_dir(&path)?;
        let in_use = mounts::is_device_mounted(&of)?;
        let options = device::MountOptions { fs_type: &owned, read_only, in_use };
        device::prepare(&of, options)?;
        Ok(())
    });
    let outcome = match prepared.await {
        Ok(Ok(())) => {
            let arguments = arguments((volume, label), fs_type, device, &target);
            run_mount(scsi, &arguments).await
        }
        Ok(Err(error)) => Err(error),
        Err(error) => Err(error.into()),
    };
    if outcome.is_err() {
        // The directory of an iSCSI volume has a file and stays.
        let _ = base::tasks::blocking(move || std::fs::remove_dir(&target)).await;
    }
    outcome
}

async fn run_mount(scsi: &Scsi, arguments: &[String]) -> Result<(), ScsiError> {
    let output = scsi.programs.run("mount", arguments).await?;
    if output.is_success() {
        return Ok(());
    }
    Err(ScsiError::Mount {
        arguments: arguments.join(" "),
        status: output.status(),
        output: output.shown(),
    })
}

/// Unmounts a global path, unless the file system is mounted elsewhere, too: its device is removed
/// afterwards. Blocks.
///
/// # Errors
///
/// The file system is in use.
pub(super) fn unmount(global: &Path) -> Result<(), ScsiError> {
    let table = mounts::table()?;
    if let Some(own) = table.iter().rev().find(|mount| mount.point == global) {
        let other = table.iter().find(|m| m.point != global && m.is_same_file_system(own));
        if let Some(other) = other {
            let (path, other) = (global.to_owned(), other.point.clone());
            return Err(ScsiError::StillMounted { path, other });
        }
    }
    Ok(mounts::unmount_unless_busy(global)?)
}

/// The number of the device that is mounted at a global path; `None` if nothing is. Blocks.
pub(super) fn mounted_device(global: &Path) -> io::Result<Option<String>> {
    let table = mounts::table()?;
    let own = table.iter().rev().find(|mount| mount.point == global);
    Ok(own.map(|mount| mount.device_number().to_owned()))
}

/// Removes a global path on which nothing is mounted, with what is in it. Blocks.
pub(super) fn remove(global: PathBuf) -> io::Result<()> {
    if mounts::has_mounts(&global)? {
        let path = global.display();
        return Err(io::Error::other(format!(
            "cannot remove {path}: something is still mounted below it"
        )));
    }
    base::fs::remove_dir(&global)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn options_of_the_volume_come_before_read_only_and_defaults() {
        let of = |read_only, options: &[&str], label| {
            let spec = json!({"fc": {"wwids": ["w"]}, "mountOptions": options});
            let spec = serde_json::from_value(spec).unwrap();
            let volume =
                ScsiVolume::persistent(("pv", "v"), &spec, read_only, "d").unwrap().unwrap();
            let (device, target) = (Path::new("/dev/sdx"), Path::new("/t"));
            arguments((&volume, label), "ext4", device, target).join(" ")
        };
        assert_eq!(of(false, &[], ""), "-t ext4 -o defaults /dev/sdx /t");
        assert_eq!(of(true, &["noatime"], ""), "-t ext4 -o noatime,ro,defaults /dev/sdx /t");
        assert_eq!(of(true, &["ro"], ""), "-t ext4 -o ro,defaults /dev/sdx /t");
        let labelled = of(true, &[], "u:object_r:f_t:s0:c1,c2");
        let want = "-t ext4 -o ro,context=\"u:object_r:f_t:s0:c1,c2\",defaults /dev/sdx /t";
        assert_eq!(labelled, want);
    }
}
