//! What iSCSI and Fibre Channel volumes have in common: the machine's devices and programs, the
//! global mount or map path of a volume that all pods of the node share, the records of its users,
//! and how it is set up and detached (`pkg/volume/iscsi`, `pkg/volume/fc`, `pkg/volume/util`).
//!
//! What has to be torn down is on disk: a record for each volume of a pod, written before the
//! volume is attached and removed after the pod no longer has it, and the global path, which exists
//! until the device is detached.

mod controller;
mod detach;
mod device_files;
mod error;
#[cfg(test)]
pub(super) mod fake;
mod global;
mod programs;
mod record;
mod set_up;
#[cfg(test)]
mod tests;
mod volume;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use client::Client;
use parking_lot::Mutex;

use crate::config::Config;
use crate::csi::locks::OperationLocks;

pub(crate) use controller::take_over;
pub(super) use detach::tear_down;
pub(super) use device_files::DeviceFiles;
pub(crate) use error::{ScsiError, ScsiTearDownError, ScsiVolumeError};
pub(super) use programs::{ProgramError, ProgramOutput, Programs};
pub(super) use set_up::set_up;
pub(super) use volume::{ScsiDisk, ScsiVolume};

use detach::DetachingVolumes;
use programs::MachinePrograms;

/// iSCSI and Fibre Channel volumes of this node.
#[derive(Debug)]
pub(crate) struct Scsi {
    /// The directory of the kubelet.
    pub(super) root: PathBuf,
    pub(super) client: Client,
    /// `/sys` and `/dev`.
    pub(super) files: DeviceFiles,
    /// `iscsiadm`, `mount` and others.
    pub(super) programs: Arc<dyn Programs>,
    /// One operation at a time on each pod, volume and iSCSI target.
    pub(super) locks: OperationLocks,
    pub(super) detaching: DetachingVolumes,
    /// Devices that are unmounted and not removed yet, by the global path of their volume.
    pub(super) removing: Mutex<HashMap<PathBuf, PathBuf>>,
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
    pub(super) async fn lock_target(&self, iqn: &str) -> tokio::sync::OwnedMutexGuard<()> {
        self.locks.lock(format!("target/{iqn}")).await
    }

    /// Waits until no other operation works on the volumes of a pod.
    async fn lock_pod(&self, uid: &str) -> tokio::sync::OwnedMutexGuard<()> {
        self.locks.lock(format!("pod/{uid}")).await
    }

    /// Waits until no other operation works on the volume with this global path.
    async fn lock_volume(&self, global: &Path) -> tokio::sync::OwnedMutexGuard<()> {
        self.locks.lock(format!("volume/{}", global.display())).await
    }
}
