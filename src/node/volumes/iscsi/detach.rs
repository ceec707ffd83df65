//! Detaches a LUN: removes its devices, and logs out of the portals of its target unless other
//! volumes of this node use it (`DetachDisk`, `DetachBlockISCSIDisk`).

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use sorting::CollectOrdered as _;

use super::disk::IscsiDisk;
use super::iscsiadm;
use crate::volumes::mounts;
use crate::volumes::scsi::{Scsi, ScsiError};

/// Name of the directory of block volumes in that of the plugin.
const BLOCK_VOLUMES: &str = "volumeDevices";

/// Flushes multipath devices of a LUN and removes its devices. Errors are logged only: a logout may
/// remove what is left.
pub(crate) async fn delete_devices(scsi: &Scsi, disk: &IscsiDisk) -> Result<(), ScsiError> {
    let (files, iqn, lun) = (scsi.files.clone(), disk.iqn.clone(), disk.lun()?);
    let found = base::tasks::blocking(move || -> io::Result<_> {
        let names = files.devices_of_lun(&iqn, lun)?;
        let multipath = names.iter().filter_map(|name| files.multipath_of(&files.device(name)));
        let multipath: BTreeSet<PathBuf> = multipath.collect_set();
        let devices = names.iter().map(|name| files.device(name)).chain(multipath.iter().cloned());
        for device in devices {
            // Another PersistentVolume may name the same LUN.
            if device.exists() && mounts::is_device_mounted(&device)? {
                tracing::info!(device = %device.display(), "node: a device stays: it is mounted");
                return Ok((Vec::new(), BTreeSet::new()));
            }
        }
        Ok((names, multipath))
    });
    let (names, multipath) = found.await??;
    for device in &multipath {
        let arguments = ["-f".to_owned(), device.to_string_lossy().into_owned()];
        match scsi.programs.run("multipath", &arguments).await {
            Ok(output) if output.is_success() => {}
            Ok(output) => {
                let (device, output) = (device.display(), output.shown());
                tracing::warn!(%device, output, "node: cannot flush multipath device");
            }
            Err(error) => tracing::warn!(%error, "node: cannot flush multipath device"),
        }
    }
    let files = scsi.files.clone();
    let deleted = base::tasks::blocking(move || {
        for name in names {
            if let Err(error) = files.delete_device(&name) {
                tracing::warn!(device = name, %error, "node: cannot delete device");
            }
        }
    });
    Ok(deleted.await?)
}

/// Whether more than one volume of this node has the target of a volume behind its first portal
/// (`isSessionBusy`); also if that cannot be read. `plugin` is the directory of the plugin. Blocks.
pub(crate) fn is_session_busy(plugin: &Path, disk: &IscsiDisk) -> bool {
    let count = |directory: &Path| count_volumes(directory, disk);
    match (count(plugin), count(&plugin.join(BLOCK_VOLUMES))) {
        (Ok(files), Ok(devices)) => files + devices > 1,
        (Err(error), _) | (_, Err(error)) => {
            tracing::warn!(%error, "node: cannot count the volumes of an iSCSI target");
            true
        }
    }
}

fn entries(directory: &Path) -> io::Result<Vec<PathBuf>> {
    match std::fs::read_dir(directory) {
        Ok(entries) => entries.map(|entry| entry.map(|e| e.path())).collect(),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(e),
    }
}

/// Counts the volumes of a target in the directories of all interfaces (`getVolCount`).
fn count_volumes(directory: &Path, disk: &IscsiDisk) -> io::Result<usize> {
    let prefix = format!("{}-{}-lun-", disk.portal(), disk.iqn);
    let mut count = 0;
    for iface in entries(directory)? {
        let is_iface = iface.file_name().is_some_and(|name| name != BLOCK_VOLUMES);
        if !is_iface || !iface.is_dir() {
            continue;
        }
        let volumes = entries(&iface)?;
        let names = volumes.iter().filter_map(|path| path.file_name()?.to_str());
        count += names.filter(|name| name.starts_with(&prefix)).count();
    }
    Ok(count)
}

/// Logs out of the portals of a volume, and removes their records and the interface that was
/// created for it (`detachISCSIDisk`). The caller holds the lock of the target.
///
/// # Errors
///
/// `iscsiadm` refuses a step for another reason than that nothing is there.
pub(crate) async fn close_session(scsi: &Scsi, disk: &IscsiDisk) -> Result<(), ScsiError> {
    let mut done = BTreeSet::new();
    for portal in disk.portals.iter().filter(|portal| !portal.is_empty()) {
        if !done.insert(portal) {
            continue;
        }
        for (operation, doing) in
            [(&["--logout"][..], "log out"), (&["-o", "delete"][..], "delete node record")]
        {
            step(scsi, doing, &iscsiadm::node(disk, portal, operation)).await?;
        }
    }
    if disk.has_own_iface() {
        step(scsi, "delete iface", &iscsiadm::iface(&disk.iface, &["-o", "delete"])).await?;
    }
    Ok(())
}

async fn step(scsi: &Scsi, doing: &'static str, arguments: &[String]) -> Result<(), ScsiError> {
    let output = iscsiadm::run(&*scsi.programs, arguments).await?;
    if iscsiadm::is_gone(&output) {
        return Ok(());
    }
    Err(ScsiError::Detach { doing, status: output.status(), output: output.shown() })
}

impl IscsiDisk {
    /// Whether the interface was created for this volume.
    fn has_own_iface(&self) -> bool {
        let own = format!("{}:{}", self.portal(), self.vol_name);
        !self.initiator_name.is_empty() && self.iface == own
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(iqn: &str) -> IscsiDisk {
        IscsiDisk { portals: vec!["127.0.0.1:3260".into()], iqn: iqn.into(), ..Default::default() }
    }

    /// Cases of `TestGetVolCount` and `TestIsSessionBusy`.
    #[test]
    fn a_session_is_busy_while_other_volumes_have_its_target() {
        let home = tempfile::tempdir().unwrap();
        let plugin = home.path();
        let of = disk("iqn.2003-01.io.k8s:e2e.volume-1");
        assert!(!is_session_busy(plugin, &of));
        let create = |path: &str| std::fs::create_dir_all(plugin.join(path)).unwrap();
        create("iface-default/127.0.0.1:3260-iqn.2003-01.io.k8s:e2e.volume-1-lun-3");
        assert!(!is_session_busy(plugin, &of), "itself");
        create("iface-default/127.0.0.1:3260-iqn.2003-01.io.k8s:e2e.volume-10-lun-3");
        create("iface-default/127.0.0.2:3260-iqn.2003-01.io.k8s:e2e.volume-1-lun-3");
        assert!(!is_session_busy(plugin, &of), "another target, another portal");
        let block = "volumeDevices/iface-127.0.0.1:3260:pv0";
        create(&format!("{block}/127.0.0.1:3260-iqn.2003-01.io.k8s:e2e.volume-1-lun-2"));
        assert!(is_session_busy(plugin, &of), "a block volume of the same target");
    }

    #[test]
    fn only_an_interface_of_the_volume_is_removed() {
        let mut of = disk("iqn.x");
        of.vol_name = "pv".into();
        of.iface = "127.0.0.1:3260:pv".into();
        assert!(!of.has_own_iface(), "no initiator name");
        of.initiator_name = "iqn.init".into();
        assert!(of.has_own_iface());
        of.iface = "default".into();
        assert!(!of.has_own_iface());
    }
}
