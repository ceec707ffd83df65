//! Stages and publishes a volume with files (`csi_attacher.go` and `csi_mounter.go` of upstream),
//! and undoes both.

use std::io;
use std::path::{Path, PathBuf};

use proto::csi::v1 as csi;

use super::set_up::VolumeOperation;
use crate::csi::Csi;
use crate::csi::driver_client::{
    Access, Capabilities, CsiClient, access_mode, map, volume_capability,
};
use crate::csi::error::{CsiError, CsiVolumeError, Doing};
use crate::csi::paths;
use crate::csi::record::{self, Progress, StagedVolume, VolumeData, VolumeRecord};
pub(super) use crate::volumes::directory::create_dir;
use crate::volumes::directory::{self, VolumePath};
use crate::volumes::mounts;
use crate::volumes::selinux::SelinuxError;
use crate::volumes::selinux::labels::MountState;
use crate::volumes::selinux::mount_option::context_option;

const STAGE: &str = "MountVolume.MountDevice";
const PUBLISH: &str = "MountVolume.SetUp";
/// The attribute, or the entry of the Secret, with tokens of the pod.
const TOKENS: &str = "csi.storage.k8s.io/serviceAccount.tokens";

/// The outcome of a step, with its name.
pub(super) type StepOutcome<T> = (&'static str, Result<T, CsiError>);

/// Stages the volume if the driver does that, then publishes it.
pub(super) async fn set_up(of: &VolumeOperation) -> StepOutcome<VolumePath> {
    let first = if of.volume.is_inline { PUBLISH } else { STAGE };
    let (client, capabilities) = match connect(of).await {
        Ok(connected) => connected,
        Err(error) => return (first, Err(error)),
    };
    if let Err(error) = of.begin().await {
        return (first, Err(error));
    }
    let staging = match stage(of, &client, &capabilities).await {
        Ok(staging) => staging,
        Err(error) => return (STAGE, Err(error)),
    };
    (PUBLISH, publish(of, &client, &capabilities, staging).await)
}

async fn connect(of: &VolumeOperation) -> Result<(CsiClient, Capabilities), CsiError> {
    let doing = if of.volume.is_inline {
        "mounter.SetUpAt failed to get CSI client"
    } else {
        "attacher.MountDevice failed to create newCsiDriverClient"
    };
    let client = of.csi.drivers.client(&of.volume.driver).doing(doing)?;
    let client = client.about(of.volume.is_migrated);
    let capabilities = client.capabilities().await?;
    Ok((client, capabilities))
}

/// How the volume is mounted. The group is given to drivers that apply it themselves.
fn access(of: &VolumeOperation, capabilities: &Capabilities) -> csi::VolumeCapability {
    let group = of.group.map(|(group, _)| group).filter(|_| capabilities.mount_group());
    let volume = &of.volume;
    let mut options = volume.mount_options.clone();
    if !of.labels.mount.is_empty() {
        options.push(context_option(&of.labels.mount));
    }
    let access = Access::Mount { fs_type: volume.fs_type.clone(), options, group };
    volume_capability(access_mode(volume.access_mode(), capabilities), access)
}

/// Has the driver unstage a volume that is staged with another label for no other pod. The caller
/// holds the lock of the volume.
///
/// # Errors
///
/// Other pods have it with another label, or the driver does not unstage it.
pub(super) async fn unstage_other(of: &VolumeOperation) -> Result<(), CsiVolumeError> {
    if !of.has_selinux || of.is_remount || of.volume.is_block {
        return Ok(());
    }
    let (driver, handle) = (of.volume.driver.clone(), of.volume.handle.clone());
    let staged = StagedVolume { driver, handle, device: None };
    let failed = |source| CsiVolumeError::Failed {
        step: "MountVolume.MountDevice",
        spec_name: of.volume.spec_name.clone(),
        source,
    };
    match mount_state(of, staged.clone()).await.map_err(failed)? {
        MountState::Fits => Ok(()),
        MountState::InUse => Err(SelinuxError::Mounted(staged.unique_name()).into()),
        MountState::Stale => unstage(&of.csi, &staged).await.map_err(failed),
    }
}

/// Compares the label of the volume with those of what is mounted.
async fn mount_state(of: &VolumeOperation, staged: StagedVolume) -> Result<MountState, CsiError> {
    let (root, own, needed) = (of.csi.root.clone(), of.pod_dir.clone(), of.labels.mount.clone());
    let state = base::tasks::blocking(move || -> io::Result<MountState> {
        let others = record::labels_of_others(&root, &own, &staged)?;
        let staging = paths::staging_path(&root, &staged.driver, &staged.handle);
        let data = VolumeData::load(staging.parent().unwrap_or(&staging))?;
        let shared = data.map(|data| data.se_linux_mount_context);
        Ok(MountState::of(&needed, &others, shared.as_deref()))
    });
    Ok(state.await??)
}

/// Stages the volume for all pods of this node; returns where, if the driver stages volumes.
async fn stage(
    of: &VolumeOperation,
    client: &CsiClient,
    capabilities: &Capabilities,
) -> Result<Option<PathBuf>, CsiError> {
    let volume = &of.volume;
    if volume.is_inline || !capabilities.stage() {
        return Ok(None);
    }
    let staging = paths::staging_path(&of.csi.root, &volume.driver, &volume.handle);
    if of.csi.staged.lock().contains(&staging) {
        return Ok(Some(staging));
    }
    let stage_secret = "fetching NodeStageSecretRef";
    let secrets = of.csi.secret(volume.stage_secret.as_ref(), stage_secret).await?;
    let data = VolumeData {
        volume_handle: volume.handle.clone(),
        driver_name: volume.driver.clone(),
        se_linux_mount_context: of.labels.mount.clone(),
        ..VolumeData::default()
    };
    let path = staging.clone();
    base::tasks::blocking(move || {
        create_dir(&path)?;
        data.save(path.parent().unwrap_or(&path))
    })
    .await??;
    let request = csi::NodeStageVolumeRequest {
        volume_id: volume.handle.clone(),
        publish_context: map(&of.publish_context),
        staging_target_path: staging.to_string_lossy().into_owned(),
        volume_capability: Some(access(of, capabilities)),
        secrets: map(&secrets),
        volume_context: map(&volume.attributes),
    };
    if let Err(error) = client.stage(request).await.map_err(CsiError::from) {
        if error.is_final() {
            remove(staging).await?;
        }
        return Err(error);
    }
    of.csi.staged.lock().insert(staging.clone());
    Ok(Some(staging))
}

/// Publishes the volume for the pod, and gives its files to the group of the pod.
async fn publish(
    of: &VolumeOperation,
    client: &CsiClient,
    capabilities: &Capabilities,
    staging: Option<PathBuf>,
) -> Result<VolumePath, CsiError> {
    let volume = &of.volume;
    let directory = paths::volume_dir(&of.pod_dir, &volume.spec_name);
    let target = paths::mount_path(&directory);
    let publish_secret = "fetching NodePublishSecretRef";
    let mut secrets = of.csi.secret(volume.publish_secret.as_ref(), publish_secret).await?;
    let mut attributes = of.attributes.clone();
    if let Some(tokens) = of.tokens.clone() {
        let object = of.object.as_ref();
        let in_secrets = object.and_then(|s| s.service_account_token_in_secrets) == Some(true);
        let into = if in_secrets { &mut secrets } else { &mut attributes };
        into.insert(TOKENS.to_owned(), tokens);
    }
    let data = VolumeData {
        attachment_id: paths::attachment_name(&volume.handle, &volume.driver, &of.csi.node_name),
        driver_name: volume.driver.clone(),
        node_name: of.csi.node_name.clone(),
        se_linux_mount_context: of.labels.mount.clone(),
        spec_vol_id: volume.spec_name.clone(),
        volume_handle: volume.handle.clone(),
        volume_lifecycle_mode: volume.lifecycle_mode().to_owned(),
    };
    base::tasks::blocking(move || data.save(&directory)).await??;
    if !of.is_remount {
        of.save_record(Progress::Publishing).await?;
    }
    let request = csi::NodePublishVolumeRequest {
        volume_id: volume.handle.clone(),
        publish_context: map(&of.publish_context),
        staging_target_path: staging
            .map(|path| path.to_string_lossy().into_owned())
            .unwrap_or_default(),
        target_path: target.to_string_lossy().into_owned(),
        volume_capability: Some(access(of, capabilities)),
        readonly: volume.read_only,
        secrets: map(&secrets),
        volume_context: map(&attributes),
    };
    if let Err(error) = client.publish(request).await.map_err(CsiError::from) {
        // What is mounted for the pod since an earlier call stays.
        if error.is_final() && !of.is_remount {
            remove(target).await?;
            of.save_record(Progress::Begun).await?;
        }
        return Err(error);
    }
    if !capabilities.mount_group() {
        give_to_group(of, &target).await?;
    }
    if !of.is_remount {
        of.save_record(Progress::Published).await?;
    }
    of.csi.set_published(&of.pod_dir, volume);
    Ok(VolumePath::mounted(target, volume.read_only))
}

/// Gives the files to the group of the pod, if the policy of the driver says so.
async fn give_to_group(of: &VolumeOperation, target: &Path) -> Result<(), CsiError> {
    let group = of.group.map(|(group, _)| group);
    let Some((group, on_mismatch)) =
        of.group.filter(|_| of.volume.applies_group(of.object.as_ref(), group))
    else {
        return Ok(());
    };
    let failed = |source| CsiError::FsGroup { handle: of.volume.handle.clone(), source };
    let group =
        u32::try_from(group).map_err(|e| failed(io::Error::new(io::ErrorKind::InvalidInput, e)))?;
    let path = target.to_owned();
    let changed = base::tasks::blocking(move || {
        if on_mismatch && directory::is_of_group(&path, group) {
            return Ok(());
        }
        directory::give_to_group(&path, group)
    });
    changed.await?.map_err(failed)
}

/// Removes a path on which nothing is mounted, with the data file beside it and their directory
/// (`removeMountDir`).
async fn remove(path: PathBuf) -> Result<(), CsiError> {
    let removed = base::tasks::blocking(move || -> io::Result<()> {
        if mounts::is_mount_point(&path)? {
            return Ok(());
        }
        remove_empty(&path)?;
        if let Some(directory) = path.parent() {
            VolumeData::remove(directory)?;
            remove_empty(directory)?;
        }
        Ok(())
    });
    Ok(removed.await??)
}

/// Removes an empty directory; a missing one is no error.
pub(super) fn remove_empty(path: &Path) -> io::Result<()> {
    match std::fs::remove_dir(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(io::Error::new(
            e.kind(),
            format!("kubernetes.io/csi: failed to remove dir [{}]: {e}", path.display()),
        )),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Fails if something is still mounted on a path.
pub(super) async fn check_unmounted(path: &Path) -> Result<(), CsiError> {
    let owned = path.to_owned();
    if base::tasks::blocking(move || mounts::is_mount_point(&owned)).await?? {
        return Err(CsiError::StillMounted(path.to_owned()));
    }
    Ok(())
}

/// Unpublishes the volume of a pod; does nothing if the driver was not asked to publish it.
pub(super) async fn unpublish(
    csi: &Csi,
    pod_dir: &Path,
    record: &VolumeRecord,
) -> Result<(), CsiError> {
    let directory = paths::volume_dir(pod_dir, &record.spec_name);
    let target = paths::mount_path(&directory);
    let read = base::tasks::blocking(move || VolumeData::load(&directory)).await??;
    if read.is_some() || record.progress != Progress::Begun {
        let client = csi.drivers.client(&record.driver);
        let client = client.doing("Unmounter.TearDownAt failed to get CSI client")?;
        let unpublished = client.unpublish(&record.handle, &target).await;
        unpublished.doing("Unmounter.TearDownAt failed")?;
        check_unmounted(&target).await?;
        remove(target.clone()).await?;
    }
    csi.published.lock().remove(&target);
    Ok(())
}

/// Unstages a volume that no pod uses any longer; does nothing if it is not staged.
pub(super) async fn unstage(csi: &Csi, volume: &StagedVolume) -> Result<(), CsiError> {
    let staging = paths::staging_path(&csi.root, &volume.driver, &volume.handle);
    let directory = staging.parent().unwrap_or(&staging).to_owned();
    if base::tasks::blocking(move || VolumeData::load(&directory)).await??.is_none() {
        return Ok(());
    }
    let client = csi.drivers.client(&volume.driver);
    let client = client.doing("attacher.UnmountDevice failed to create newCsiDriverClient")?;
    let capabilities = client
        .capabilities()
        .await
        .doing("attacher.UnmountDevice failed to check whether STAGE_UNSTAGE_VOLUME set")?;
    // A failure leaves the volume in an unknown state: the next pod stages it again.
    csi.staged.lock().remove(&staging);
    if capabilities.stage() {
        let unstaged = client.unstage(&volume.handle, &staging).await;
        unstaged.doing("attacher.UnmountDevice failed")?;
        check_unmounted(&staging).await?;
    }
    remove(staging).await
}
