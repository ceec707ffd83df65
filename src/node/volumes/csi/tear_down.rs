//! Tears the CSI volumes of a pod down: unpublishes them, and has those unstaged that no other pod
//! of this node uses. The pod does not wait for the latter.

use std::path::Path;
use std::sync::Arc;

use base::Tasks;

use super::{block, mount, unstage};
use crate::csi::error::{CsiError, CsiTearDownError};
use crate::csi::record::{self, StagedVolume, VolumeRecord};
use crate::csi::{Csi, paths};
use crate::volumes::mounts;

/// Directory of a pod with the mounts of sub-paths.
const SUB_PATHS: &str = "volume-subpaths";

/// Unpublishes all CSI volumes of a pod, starts to unstage those that no other pod uses, and
/// removes the pod from the users of its volumes. Everything it needs is on disk; it does nothing
/// if there is nothing to tear down. Its containers must have ended.
///
/// # Errors
///
/// The first volume that failed; the others are torn down nevertheless.
pub(in crate::volumes) async fn tear_down(
    csi: &Arc<Csi>,
    tasks: &Tasks,
    (uid, pod_dir): (&str, &Path),
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
        match torn_down {
            Ok(Some(left)) => {
                // The volume is in use all the time: its pod is released afterwards.
                let is_in_use = csi.in_use.is_held(&left.unique_name());
                unstage::request(csi, tasks, left, is_in_use);
            }
            Ok(None) => {}
            Err(source) => {
                let spec_name = record.spec_name;
                tracing::debug!(volume = spec_name, %source, "cannot tear down CSI volume");
                outcome = outcome.and(Err(CsiTearDownError { step, spec_name, source }));
            }
        }
    }
    outcome?;
    csi.release(uid);
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
    /// Unpublishes a volume; returns the name of the last step, and the volume if it is staged for
    /// no pod any more.
    async fn tear_down_volume(
        &self,
        pod_dir: &Path,
        record: &VolumeRecord,
    ) -> (&'static str, Result<Option<StagedVolume>, CsiError>) {
        let unique_name = paths::unique_name(&record.driver, &record.handle);
        let _volume = self.locks.lock(unique_name).await;
        let (step, unpublished) = if record.is_block {
            ("UnmapVolume.UnmapPodDevice", block::unpublish(self, pod_dir, record).await)
        } else {
            ("UnmountVolume.TearDown", mount::unpublish(self, pod_dir, record).await)
        };
        match unpublished {
            Ok(()) => (step, self.remove_record(pod_dir, record).await),
            Err(error) => (step, Err(error)),
        }
    }

    /// Removes the record of a volume that is unpublished. What is on disk about a staged volume
    /// stays until it is unstaged, also after a restart.
    async fn remove_record(
        &self,
        pod_dir: &Path,
        record: &VolumeRecord,
    ) -> Result<Option<StagedVolume>, CsiError> {
        let (root, pod_dir, record) = (self.root.clone(), pod_dir.to_owned(), record.clone());
        let removed = base::tasks::blocking(move || -> std::io::Result<_> {
            record.remove(&pod_dir)?;
            let staged = StagedVolume::from(&record);
            let (is_used, exists) = (record::is_used(&root, &staged)?, staged.exists(&root));
            Ok((staged, is_used, exists))
        });
        let (staged, is_used, exists) = removed.await??;
        if !is_used {
            self.sizes.lock().remove(&staged.unique_name());
        }
        Ok((!is_used && exists).then_some(staged))
    }
}
