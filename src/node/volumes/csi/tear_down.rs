//! Tears the CSI volumes of a pod down: unpublishes them, and unstages those that no other pod of
//! this node uses.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{block, mount};
use crate::csi::error::{CsiError, CsiTearDownError};
use crate::csi::record::{self, VolumeRecord};
use crate::csi::{Csi, paths};
use crate::volumes::mounts;

/// Directory of a pod with the mounts of sub-paths.
const SUB_PATHS: &str = "volume-subpaths";

/// Unpublishes all CSI volumes of a pod, unstages those that no other pod uses, and removes the pod
/// from the users of its volumes. Everything it needs is on disk; it does nothing if there is
/// nothing to tear down. Its containers must have ended.
///
/// # Errors
///
/// The first volume that failed; the others are torn down nevertheless.
pub(in crate::volumes) async fn tear_down(
    csi: &Arc<Csi>,
    uid: &str,
    pod_dir: &Path,
) -> Result<(), CsiTearDownError> {
    // An operation of the pod may still be running.
    let _pod = csi.lock_pod(uid).await;
    let first = |source| CsiTearDownError {
        step: "UnmountVolume.NewUnmounter",
        spec_name: String::new(),
        source,
    };
    let volumes = volumes(csi, pod_dir).await.map_err(first)?;
    let mut outcome = Ok(());
    for record in volumes {
        let (step, torn_down) = csi.tear_down_volume(pod_dir, &record).await;
        if let Err(source) = torn_down {
            let spec_name = record.spec_name;
            tracing::debug!(volume = spec_name, %source, "cannot tear down CSI volume");
            outcome = outcome.and(Err(CsiTearDownError { step, spec_name, source }));
        }
    }
    outcome?;
    if csi.in_use.release_pod(uid) {
        csi.status_changed.notify_one();
    }
    Ok(())
}

/// Whether a pod has CSI volumes to tear down; also if its directory cannot be read. Blocks.
pub(in crate::volumes) fn has_volumes(root: &Path, pod_dir: &Path) -> bool {
    record::volumes_of_pod(root, pod_dir).map_or(true, |volumes| !volumes.is_empty())
}

/// Returns the volumes to tear down. Sub-paths are unmounted first: their mounts keep volumes busy.
async fn volumes(csi: &Csi, pod_dir: &Path) -> Result<Vec<VolumeRecord>, CsiError> {
    let (root, pod_dir) = (csi.root.clone(), pod_dir.to_owned());
    let found = base::tasks::blocking(move || -> std::io::Result<Vec<VolumeRecord>> {
        let volumes = record::volumes_of_pod(&root, &pod_dir)?;
        if !volumes.is_empty() {
            mounts::unmount_below(&pod_dir.join(SUB_PATHS))?;
        }
        for record in volumes.values() {
            // A volume of another kubelet gets a record, which is the last thing to be removed.
            if !paths::record_path(&pod_dir, &record.spec_name).exists() {
                record.save(&pod_dir)?;
            }
        }
        Ok(volumes.into_values().collect())
    });
    Ok(found.await??)
}

impl Csi {
    /// Tears one volume down; returns the name of the last step.
    async fn tear_down_volume(
        &self,
        pod_dir: &Path,
        record: &VolumeRecord,
    ) -> (&'static str, Result<(), CsiError>) {
        let unique_name = paths::unique_name(&record.driver, &record.handle);
        let _volume = self.locks.lock(unique_name).await;
        let (step, unpublished) = if record.is_block {
            ("UnmapVolume.UnmapPodDevice", block::unpublish(self, pod_dir, record).await)
        } else {
            ("UnmountVolume.TearDown", mount::unpublish(self, pod_dir, record).await)
        };
        if unpublished.is_err() {
            return (step, unpublished);
        }
        let step = if record.is_block { "UnmapDevice.TearDownDevice" } else { "UnmountDevice" };
        (step, self.unstage_unless_used(pod_dir.to_owned(), record.clone()).await)
    }

    async fn unstage_unless_used(
        &self,
        pod_dir: PathBuf,
        record: VolumeRecord,
    ) -> Result<(), CsiError> {
        let (root, own, of) = (self.root.clone(), pod_dir.clone(), record.clone());
        let is_used =
            base::tasks::blocking(move || record::other_pod_uses(&root, &own, &of)).await??;
        if !is_used {
            self.sizes.lock().remove(&paths::unique_name(&record.driver, &record.handle));
            if record.is_block {
                block::unstage(self, &record).await?;
            } else {
                mount::unstage(self, &record).await?;
            }
        }
        Ok(base::tasks::blocking(move || record.remove(&pod_dir)).await??)
    }
}
