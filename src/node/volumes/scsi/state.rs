//! What the parts of iSCSI and Fibre Channel volumes share: devices, programs, locks, and the
//! volumes that are being detached.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use client::Client;
use parking_lot::Mutex;

use super::device_files::DeviceFiles;
use super::programs::{MachinePrograms, Programs};
use super::volume::GlobalVolume;
use crate::config::Config;
use crate::csi::locks::OperationLocks;
use crate::csi::unstaging::UnstagingVolumes;

/// The volumes that are being detached.
pub(crate) type DetachingVolumes = UnstagingVolumes<GlobalVolume>;

/// iSCSI and Fibre Channel volumes of this node.
#[derive(Debug)]
pub(crate) struct Scsi {
    /// The directory of the kubelet.
    pub(crate) root: PathBuf,
    pub(crate) client: Client,
    /// `/sys` and `/dev`.
    pub(crate) files: DeviceFiles,
    /// `iscsiadm`, `mount` and others.
    pub(crate) programs: Arc<dyn Programs>,
    /// One operation at a time on each pod, volume and iSCSI target.
    pub(crate) locks: OperationLocks,
    pub(crate) detaching: DetachingVolumes,
    /// Devices that are unmounted and not removed yet, by the global path of their volume.
    pub(crate) removing: Mutex<HashMap<PathBuf, PathBuf>>,
}

impl Scsi {
    /// Uses the devices and programs of this machine.
    pub(crate) fn new(client: &Client, config: &Config) -> Arc<Self> {
        Arc::new(Self {
            root: config.root_dir.clone(),
            client: client.clone(),
            files: DeviceFiles::of_machine(),
            programs: Arc::new(MachinePrograms),
            locks: OperationLocks::default(),
            detaching: DetachingVolumes::default(),
            removing: Mutex::default(),
        })
    }

    /// Waits until no other operation works on an iSCSI target: a login must not race with the
    /// logout of another volume (`targetLocks`).
    pub(crate) async fn lock_target(&self, iqn: &str) -> tokio::sync::OwnedMutexGuard<()> {
        self.locks.lock(format!("target/{iqn}")).await
    }

    /// Waits until no other operation works on the volumes of a pod.
    pub(super) async fn lock_pod(&self, uid: &str) -> tokio::sync::OwnedMutexGuard<()> {
        self.locks.lock(format!("pod/{uid}")).await
    }

    /// Waits until no other operation works on the volume with this global path.
    pub(super) async fn lock_volume(&self, global: &Path) -> tokio::sync::OwnedMutexGuard<()> {
        self.locks.lock(format!("volume/{}", global.display())).await
    }
}
