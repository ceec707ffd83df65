//! Tears the volumes of a pod down, and detaches those that no other pod of this node uses. The
//! pod does not wait for the latter, which is repeated until it succeeds or a pod uses the volume
//! again.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::{Backoff, Kind, Tasks};
use tokio::sync::Notify;

use super::error::{ScsiError, ScsiTearDownError};
use super::record::{self, UseRecord};
use super::volume::{GlobalVolume, plugin_dir};
use super::{Scsi, global};
use crate::csi::Csi;
use crate::volumes::fibre_channel::{self, FcDisk};
use crate::volumes::iscsi::{self, IscsiDisk};
use crate::volumes::{device_map, mounts};

/// First delay between two attempts (`initialDurationBeforeRetry`).
const DELAY: Duration = Duration::from_millis(500);
/// Longest delay between two attempts (`maxDurationBeforeRetry`).
const DELAY_MAX: Duration = Duration::from_secs(122);
/// Directory of a pod with the mounts of sub-paths.
const SUB_PATHS: &str = "volume-subpaths";

/// A volume that no pod uses any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LeftVolume {
    pub(crate) volume: GlobalVolume,
    /// Its names in the status of the Node, in which it stays until it is detached.
    pub(crate) names: Vec<String>,
}

/// Takes all volumes from a pod whose containers have ended, and starts to detach those that no
/// other pod uses. Does nothing for a pod without any.
///
/// # Errors
///
/// The first volume that failed; the others are taken nevertheless.
pub(in crate::volumes) async fn tear_down(
    scsi: &Arc<Scsi>,
    csi: &Arc<Csi>,
    tasks: &Tasks,
    (uid, pod_dir): (&str, &Path),
) -> Result<(), ScsiTearDownError> {
    // An operation of the pod may still be running.
    let _pod = scsi.lock_pod(uid).await;
    let first = |source| ScsiTearDownError {
        step: "UnmountVolume.NewUnmounter",
        spec_name: String::new(),
        source,
    };
    let records = scsi.records(pod_dir).await.map_err(first)?;
    let mut outcome = Ok(());
    for record in records {
        match scsi.tear_down_volume(pod_dir, &record).await {
            // The volume is in use all the time: its pod is released afterwards.
            Ok(Some(left)) => request(scsi, csi, tasks, left),
            Ok(None) => {}
            Err(source) => {
                let step = if record.is_block {
                    "UnmapVolume.UnmapPodDevice"
                } else {
                    "UnmountVolume.TearDown"
                };
                let spec_name = record.spec_name;
                outcome = outcome.and(Err(ScsiTearDownError { step, spec_name, source }));
            }
        }
    }
    outcome
}

impl Scsi {
    /// The volumes of a pod. Sub-paths are unmounted first: their mounts keep volumes busy.
    async fn records(&self, pod_dir: &Path) -> Result<Vec<UseRecord>, ScsiError> {
        let (root, pod_dir) = (self.root.clone(), pod_dir.to_owned());
        let found = base::tasks::blocking(move || -> std::io::Result<_> {
            let records = record::volumes_of_pod(&root, &pod_dir)?;
            if !records.is_empty() {
                mounts::unmount_below(&pod_dir.join(SUB_PATHS))?;
            }
            for record in &records {
                // A volume of another kubelet gets a record, which is the last thing to be removed.
                if !record.exists(&pod_dir) {
                    record.save(&pod_dir)?;
                }
            }
            Ok(records)
        });
        Ok(found.await??)
    }

    /// Unmounts or unmaps the volume of a pod; returns it if no other pod uses it.
    async fn tear_down_volume(
        &self,
        pod_dir: &Path,
        record: &UseRecord,
    ) -> Result<Option<LeftVolume>, ScsiError> {
        let _volume = self.lock_volume(&record.global).await;
        let (root, pod_dir, record) = (self.root.clone(), pod_dir.to_owned(), record.clone());
        let done = base::tasks::blocking(move || -> Result<Option<LeftVolume>, ScsiError> {
            let path = record.pod_path(&pod_dir);
            if record.is_block {
                device_map::unmap(&record.global, &pod_dir, &path)?;
            } else {
                mounts::unmount_unless_busy(&path)?;
                base::fs::remove_dir(&path)?;
            }
            record.remove(&pod_dir)?;
            let Some(volume) = GlobalVolume::at(&root, &record.global) else { return Ok(None) };
            if record::is_used(&root, &volume.path)? || !volume.path.exists() {
                return Ok(None);
            }
            let names = match record.unique_name {
                name if name.is_empty() => volume.unique_names(),
                name => vec![name],
            };
            Ok(Some(LeftVolume { volume, names }))
        });
        done.await?
    }

    /// Detaches a volume. A pod that begins to use it meanwhile waits for the attempt, and attaches
    /// the volume again.
    pub(super) async fn detach_unless_used(&self, volume: &GlobalVolume) -> Result<(), ScsiError> {
        let _volume = self.lock_volume(&volume.path).await;
        let (root, path) = (self.root.clone(), volume.path.clone());
        let is_left = base::tasks::blocking(move || -> std::io::Result<bool> {
            Ok(!record::is_used(&root, &path)? && path.exists())
        });
        if !is_left.await?? {
            return Ok(());
        }
        self.detach(volume).await
    }

    /// Detaches a volume that no other pod uses. The caller holds the lock of the volume.
    pub(super) async fn detach(&self, volume: &GlobalVolume) -> Result<(), ScsiError> {
        let detached = match (volume.is_iscsi, volume.is_block) {
            (true, _) => self.detach_iscsi(volume).await,
            (false, true) => self.detach_fc_device(volume).await,
            (false, false) => self.detach_fc(volume).await,
        };
        let path = volume.path.clone();
        let plugin = if volume.is_iscsi { "iscsi" } else { "fc" };
        detached.map_err(|source| ScsiError::DetachDisk { plugin, path, source: source.into() })
    }

    /// Unmounts the global path, removes the devices of the LUN, and closes the session of its
    /// target unless other volumes use it. The directory is removed last.
    async fn detach_iscsi(&self, volume: &GlobalVolume) -> Result<(), ScsiError> {
        let path = volume.path.clone();
        let loaded = base::tasks::blocking(move || {
            global::unmount(&path)?;
            // The mount has hidden the file.
            IscsiDisk::load(&path)
        });
        let disk = loaded.await??;
        if let Err(error) = iscsi::delete_devices(self, &disk).await {
            tracing::warn!(iqn = disk.iqn, %error, "node: cannot delete the devices of a LUN");
        }
        let _target = self.lock_target(&disk.iqn).await;
        let (plugin, of) = (plugin_dir(&self.root, iscsi::PLUGIN, false), disk.clone());
        if !base::tasks::blocking(move || iscsi::is_session_busy(&plugin, &of)).await? {
            iscsi::close_session(self, &disk).await?;
        }
        let path = volume.path.clone();
        Ok(base::tasks::blocking(move || global::remove(path)).await??)
    }

    /// Unmounts the global path and removes the device that was mounted there.
    async fn detach_fc(&self, volume: &GlobalVolume) -> Result<(), ScsiError> {
        let (path, files) = (volume.path.clone(), self.files.clone());
        let mounted = base::tasks::blocking(move || -> std::io::Result<Option<PathBuf>> {
            let number = global::mounted_device(&path)?;
            Ok(number.and_then(|number| files.device_with_number(&number)))
        });
        if let Some(device) = mounted.await?? {
            // Without the mount, another attempt would not find it.
            self.removing.lock().insert(volume.path.clone(), device);
        }
        let path = volume.path.clone();
        base::tasks::blocking(move || global::unmount(&path)).await??;
        let device = self.removing.lock().get(&volume.path).cloned();
        if let Some(device) = device {
            fibre_channel::detach(self, &device).await?;
            self.removing.lock().remove(&volume.path);
        }
        let path = volume.path.clone();
        Ok(base::tasks::blocking(move || global::remove(path)).await??)
    }

    /// Removes the device of a block volume that no pod has mapped.
    async fn detach_fc_device(&self, volume: &GlobalVolume) -> Result<(), ScsiError> {
        let disk = FcDisk::load(&volume.path)?;
        fibre_channel::detach_unless_used(self, &disk).await?;
        let path = volume.path.clone();
        Ok(base::tasks::blocking(move || global::remove(path)).await??)
    }
}

/// Returns the volumes that an earlier process left attached although no pod uses them. Blocks.
pub(super) fn left_volumes(root: &Path) -> Vec<LeftVolume> {
    let used = record::volumes_of_all_pods(root);
    let is_used = |volume: &GlobalVolume| {
        used.iter().flat_map(|(_, records)| records).any(|record| record.global == volume.path)
    };
    let left = record::all_global(root).into_iter().filter(|volume| !is_used(volume));
    left.map(|volume| LeftVolume { names: volume.unique_names(), volume }).collect()
}

/// Requests that a volume is detached. Until it is, it stays in `status.volumesInUse`.
pub(super) fn request(scsi: &Arc<Scsi>, csi: &Arc<Csi>, tasks: &Tasks, left: LeftVolume) {
    let holder = holder(&left.volume);
    for name in &left.names {
        csi.hold_name(&holder, name);
    }
    let Some(wake) = scsi.detaching.request(&left.volume, true) else { return };
    let (scsi, csi) = (Arc::clone(scsi), Arc::clone(csi));
    let detach = detach(scsi, csi, tasks.clone(), left.volume, wake);
    tasks.spawn(Kind::Request, "scsi-detach", detach);
}

/// Stands for the pod that uses a volume which is being detached.
fn holder(volume: &GlobalVolume) -> Arc<str> {
    format!("detach/{}", volume.path.display()).into()
}

/// Detaches a volume; ends when it is detached, when a pod uses it, or at shutdown.
async fn detach(
    scsi: Arc<Scsi>,
    csi: Arc<Csi>,
    tasks: Tasks,
    volume: GlobalVolume,
    wake: Arc<Notify>,
) -> Result<(), Infallible> {
    let (shutdown, problems) = (tasks.shutdown(), tasks.problems());
    let holder = holder(&volume);
    let mut backoff = Backoff::new(DELAY, DELAY_MAX);
    loop {
        if scsi.detaching.begin_attempt(&volume) {
            backoff.reset();
        }
        match scsi.detach_unless_used(&volume).await {
            Ok(()) => {
                if scsi.detaching.end(&volume) {
                    break;
                }
            }
            Err(error) => {
                let path = volume.path.display();
                tracing::warn!(%path, %error, "node: cannot detach volume");
                let what = format!("the volume at {path} is not detached: {error}");
                let fix = "release what the message names; kube-lite retries";
                problems.put(&holder, what, fix);
            }
        }
        // A request ends the delay.
        if !backoff.wait_or(shutdown, wake.notified()).await {
            return Ok(());
        }
    }
    problems.clear(&holder);
    csi.release(&holder);
    Ok(())
}
