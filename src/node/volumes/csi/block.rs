//! Stages and publishes a block volume (`csi_block.go` and `MapBlockVolume` of upstream), and
//! undoes both.

use std::io;
use std::path::{Path, PathBuf};

use proto::csi::v1 as csi;

use super::mount::{StepOutcome, check_unmounted, create_dir, remove_empty};
use super::set_up::VolumeOperation;
use crate::csi::Csi;
use crate::csi::driver_client::{
    Access, Capabilities, CsiClient, access_mode, map, volume_capability,
};
use crate::csi::error::{CsiError, Doing};
use crate::csi::paths::{self, BlockPaths};
use crate::csi::record::{Progress, StagedVolume, VolumeData, VolumeRecord};
use crate::csi::source::CsiVolume;
use crate::volumes::directory::VolumePath;
use crate::volumes::mounts;
use crate::volumes::{device, device_map};

const NEW: &str = "MapVolume.NewBlockVolumeMapper initialization";
const STAGE: &str = "MapVolume.SetUpDevice";
const PUBLISH: &str = "MapVolume.MapPodDevice";
const MAP: &str = "MapVolume.MapBlockVolume";

/// The path at which the driver publishes the device for a pod.
fn publish_path(paths: &BlockPaths, pod_dir: &Path) -> PathBuf {
    paths.publish.join(pod_dir.file_name().unwrap_or_default())
}

/// Returns the device of a volume that is mapped for a pod. After a restart of the machine, nothing
/// is. Blocks.
pub(super) fn mapped(
    root: &Path,
    pod_dir: &Path,
    volume: &CsiVolume,
) -> io::Result<Option<VolumePath>> {
    let global_map = BlockPaths::new(root, &volume.spec_name).global_map;
    let link = paths::devices_dir(pod_dir).join(&volume.spec_name);
    let mapped = device_map::mapped(&global_map, pod_dir, &link)?;
    Ok(mapped.map(|path| VolumePath::device(path, volume.read_only)))
}

/// The messages of the events about a volume that was mapped for a pod.
pub(super) fn mapped_messages(root: &Path, pod_dir: &Path, volume: &CsiVolume) -> [String; 2] {
    let global_map = BlockPaths::new(root, &volume.spec_name).global_map;
    let link = paths::devices_dir(pod_dir).join(&volume.spec_name);
    device_map::mapped_messages(&volume.spec_name, &global_map, &link)
}

/// Stages the volume if the driver does that, publishes and maps it.
pub(super) async fn set_up(of: &VolumeOperation) -> StepOutcome<VolumePath> {
    let paths = BlockPaths::new(&of.csi.root, &of.volume.spec_name);
    if let Err(error) = begin(of, &paths).await {
        return (NEW, Err(error));
    }
    let (client, capabilities) = match connect(of).await {
        Ok(connected) => connected,
        Err(error) => return (STAGE, Err(error)),
    };
    if let Err(error) = stage(of, &paths, &client, &capabilities).await {
        return (STAGE, Err(error));
    }
    let device = match publish(of, &paths, &client, &capabilities).await {
        Ok(device) => device,
        Err(error) => return (PUBLISH, Err(error)),
    };
    (MAP, finish(of, paths, device).await)
}

/// Writes what is needed to tear the volume down.
async fn begin(of: &VolumeOperation, paths: &BlockPaths) -> Result<(), CsiError> {
    let volume = &of.volume;
    let data = VolumeData {
        attachment_id: paths::attachment_name(&volume.handle, &volume.driver, &of.csi.node_name),
        driver_name: volume.driver.clone(),
        node_name: of.csi.node_name.clone(),
        se_linux_mount_context: String::new(),
        spec_vol_id: volume.spec_name.clone(),
        volume_handle: volume.handle.clone(),
        volume_lifecycle_mode: String::new(),
    };
    of.begin().await?;
    let directory = paths.data.clone();
    Ok(base::tasks::blocking(move || data.save(&directory)).await??)
}

async fn connect(of: &VolumeOperation) -> Result<(CsiClient, Capabilities), CsiError> {
    let client = of.csi.drivers.client(&of.volume.driver);
    let client = client.doing("blockMapper.SetUpDevice failed to get CSI client")?;
    let client = client.about(of.volume.is_migrated);
    let capabilities = client
        .capabilities()
        .await
        .doing("blockMapper.stageVolumeForBlock failed to check STAGE_UNSTAGE_VOLUME capability")?;
    Ok((client, capabilities))
}

fn capability(of: &VolumeOperation, capabilities: &Capabilities) -> csi::VolumeCapability {
    volume_capability(access_mode(of.volume.access_mode(), capabilities), Access::Block)
}

/// Stages the volume for all pods of this node, if the driver stages volumes.
async fn stage(
    of: &VolumeOperation,
    paths: &BlockPaths,
    client: &CsiClient,
    capabilities: &Capabilities,
) -> Result<(), CsiError> {
    if !capabilities.stage() || of.csi.staged.lock().contains(&paths.staging) {
        return Ok(());
    }
    let doing = "kubernetes.io/csi: failed to get NodeStageSecretRef";
    let secrets = of.csi.secret(of.volume.stage_secret.as_ref(), doing).await?;
    let staging = paths.staging.clone();
    base::tasks::blocking(move || create_dir(&staging)).await??;
    let request = csi::NodeStageVolumeRequest {
        volume_id: of.volume.handle.clone(),
        publish_context: map(&of.publish_context),
        staging_target_path: paths.staging.to_string_lossy().into_owned(),
        volume_capability: Some(capability(of, capabilities)),
        secrets: map(&secrets),
        volume_context: map(&of.volume.attributes),
    };
    if let Err(error) = client.stage(request).await.map_err(CsiError::from) {
        if error.is_final() {
            let staging = paths.staging.clone();
            base::tasks::blocking(move || remove_empty(&staging)).await??;
        }
        return Err(error);
    }
    of.csi.staged.lock().insert(paths.staging.clone());
    Ok(())
}

/// Publishes the device for the pod; returns its path.
async fn publish(
    of: &VolumeOperation,
    paths: &BlockPaths,
    client: &CsiClient,
    capabilities: &Capabilities,
) -> Result<PathBuf, CsiError> {
    let doing =
        "kubernetes.io/csi: blockMapper.publishVolumeForBlock failed to get NodePublishSecretRef";
    let secrets = of.csi.secret(of.volume.publish_secret.as_ref(), doing).await?;
    let target = publish_path(paths, &of.pod_dir);
    let directory = paths.publish.clone();
    base::tasks::blocking(move || create_dir(&directory)).await??;
    if !of.is_remount {
        of.save_record(Progress::Publishing).await?;
    }
    let request = csi::NodePublishVolumeRequest {
        volume_id: of.volume.handle.clone(),
        publish_context: map(&of.publish_context),
        staging_target_path: paths.staging.to_string_lossy().into_owned(),
        target_path: target.to_string_lossy().into_owned(),
        volume_capability: Some(capability(of, capabilities)),
        readonly: of.volume.read_only,
        secrets: map(&secrets),
        volume_context: map(&of.attributes),
    };
    match client.publish(request).await.map_err(CsiError::from) {
        Ok(()) => Ok(target),
        Err(error) => {
            if error.is_final() && !of.is_remount {
                of.save_record(Progress::Begun).await?;
            }
            Err(error)
        }
    }
}

/// Maps the published device for the pod.
async fn finish(
    of: &VolumeOperation,
    paths: BlockPaths,
    published: PathBuf,
) -> Result<VolumePath, CsiError> {
    let (pod_dir, volume) = (of.pod_dir.clone(), of.volume.clone());
    let path =
        base::tasks::blocking(move || map_device(&paths, &pod_dir, &volume.spec_name, &published))
            .await??;
    if !of.is_remount {
        of.save_record(Progress::Published).await?;
    }
    of.csi.set_published(&of.pod_dir, &of.volume);
    Ok(VolumePath::device(path, of.volume.read_only))
}

/// Maps a published device for a pod. Blocks.
fn map_device(
    paths: &BlockPaths,
    pod_dir: &Path,
    spec_name: &str,
    published: &Path,
) -> Result<PathBuf, CsiError> {
    let device = published.canonicalize()?;
    if !device::is_block_device(&device)? {
        return Err(CsiError::NotBlockDevice(published.to_owned()));
    }
    let link = paths::devices_dir(pod_dir).join(spec_name);
    device_map::map(&paths.global_map, pod_dir, &link, &device)?;
    Ok(device)
}

/// Undoes [`map_device`]; idempotent. Blocks.
fn unmap_device(paths: &BlockPaths, pod_dir: &Path, spec_name: &str) -> Result<(), CsiError> {
    let link = paths::devices_dir(pod_dir).join(spec_name);
    Ok(device_map::unmap(&paths.global_map, pod_dir, &link)?)
}

/// Unmaps and unpublishes the device of a pod.
pub(super) async fn unpublish(
    csi: &Csi,
    pod_dir: &Path,
    record: &VolumeRecord,
) -> Result<(), CsiError> {
    let paths = BlockPaths::new(&csi.root, &record.spec_name);
    let target = publish_path(&paths, pod_dir);
    let (directory, name) = (pod_dir.to_owned(), record.spec_name.clone());
    base::tasks::blocking(move || unmap_device(&paths, &directory, &name)).await??;
    if record.progress != Progress::Begun {
        let client = csi.drivers.client(&record.driver);
        let client = client.doing("blockMapper.UnmapPodDevice failed to get CSI client")?;
        let unpublished = client.unpublish(&record.handle, &target).await;
        unpublished.doing("blockMapper.unpublishVolumeForBlock failed")?;
        check_unmounted(&target).await?;
    }
    let target = paths::devices_dir(pod_dir).join(&record.spec_name);
    csi.published.lock().remove(&target);
    Ok(())
}

/// Unstages the volume `spec_name` that no pod uses any longer, and removes what is kept about it.
pub(super) async fn unstage(
    csi: &Csi,
    volume: &StagedVolume,
    spec_name: &str,
) -> Result<(), CsiError> {
    let paths = BlockPaths::new(&csi.root, spec_name);
    if paths.staging.exists() {
        let client = csi.drivers.client(&volume.driver);
        let client = client.doing("blockMapper.TearDownDevice failed to get CSI client")?;
        let capabilities = client.capabilities().await.doing(
            "blockMapper.unstageVolumeForBlock failed to check STAGE_UNSTAGE_VOLUME capability",
        )?;
        csi.staged.lock().remove(&paths.staging);
        if capabilities.stage() {
            let unstaged = client.unstage(&volume.handle, &paths.staging).await;
            unstaged.doing("blockMapper.unstageVolumeForBlock failed")?;
        }
        check_unmounted(&paths.staging).await?;
    }
    let removed = base::tasks::blocking(move || -> io::Result<()> {
        // Nothing is removed below a mount that a driver left.
        for path in [&paths.staging, &paths.publish, &paths.volume] {
            if mounts::has_mounts(path)? {
                return Err(io::Error::other(format!(
                    "cannot remove {}: something is still mounted below it",
                    path.display()
                )));
            }
            base::fs::remove_dir(path)?;
        }
        Ok(())
    });
    Ok(removed.await??)
}
