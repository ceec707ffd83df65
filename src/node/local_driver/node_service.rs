//! The node service of the driver: loop devices, mounts and sizes of volumes on this node. All
//! calls are idempotent.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::local_driver::{VolumeMode, is_name};
use proto::csi::v1 as csi;
use proto::csi::v1::node_service_capability::{Rpc, Type as CapabilityType, rpc};
use proto::csi::v1::volume_capability::AccessType;
use proto::csi::v1::volume_usage::Unit;
use tonic::Code;

use super::error::LocalDriverError;
use super::store::{LocalVolume, Store, StoredKind};
use super::{LocalDriver, file_system, loop_device};
use crate::csi::driver_client::RpcError;
use crate::volumes::{device, mounts};

/// Mode of the root of a new file system: the user of a pod is unknown, so that every user may
/// write, as in local-path volumes.
const ROOT_MODE: u32 = 0o777;
/// Mode of the directories on which volumes are mounted.
const TARGET_MODE: u32 = 0o750;
/// The optional parts of the service.
const CAPABILITIES: [rpc::Type; 3] =
    [rpc::Type::StageUnstageVolume, rpc::Type::GetVolumeStats, rpc::Type::ExpandVolume];

impl LocalDriver {
    /// Runs `act` with the store, as the only operation on a volume.
    async fn on_volume<T: Send + 'static>(
        &self,
        name: &str,
        act: impl FnOnce(&Store) -> Result<T, LocalDriverError> + Send + 'static,
    ) -> Result<T, RpcError> {
        // A PersistentVolume that a user wrote may have any handle.
        if !is_name(name) {
            return Err(LocalDriverError::Name(name.to_owned()).into());
        }
        let _volume = self.locks.lock(name.to_owned()).await;
        let store = Arc::clone(&self.store);
        Ok(super::blocking(move || act(&store)).await?)
    }

    pub(crate) async fn node_get_info(
        &self,
        _: csi::NodeGetInfoRequest,
    ) -> Result<csi::NodeGetInfoResponse, RpcError> {
        Ok(csi::NodeGetInfoResponse {
            node_id: self.node_name.clone(),
            max_volumes_per_node: 0,
            accessible_topology: None,
        })
    }

    pub(crate) async fn node_get_capabilities(
        &self,
        _: csi::NodeGetCapabilitiesRequest,
    ) -> Result<csi::NodeGetCapabilitiesResponse, RpcError> {
        let capabilities = CAPABILITIES.iter().map(|capability| csi::NodeServiceCapability {
            r#type: Some(CapabilityType::Rpc(Rpc { r#type: (*capability).into() })),
        });
        Ok(csi::NodeGetCapabilitiesResponse { capabilities: capabilities.collect() })
    }

    pub(crate) async fn node_stage_volume(
        &self,
        request: csi::NodeStageVolumeRequest,
    ) -> Result<csi::NodeStageVolumeResponse, RpcError> {
        let name = request.volume_id.clone();
        self.on_volume(&name, move |store| stage(store, &request)).await?;
        Ok(csi::NodeStageVolumeResponse {})
    }

    pub(crate) async fn node_unstage_volume(
        &self,
        request: csi::NodeUnstageVolumeRequest,
    ) -> Result<csi::NodeUnstageVolumeResponse, RpcError> {
        let name = request.volume_id;
        let handle = name.clone();
        let unstage = move |store: &Store| {
            mounts::unmount_below(Path::new(&request.staging_target_path))?;
            // A directory has no loop device.
            loop_device::detach(&store.disk(StoredKind::Volume, &handle))
        };
        self.on_volume(&name, unstage).await?;
        self.unstaged.notify_waiters();
        Ok(csi::NodeUnstageVolumeResponse {})
    }

    pub(crate) async fn node_publish_volume(
        &self,
        request: csi::NodePublishVolumeRequest,
    ) -> Result<csi::NodePublishVolumeResponse, RpcError> {
        let name = request.volume_id.clone();
        self.on_volume(&name, move |store| publish(store, &request)).await?;
        Ok(csi::NodePublishVolumeResponse {})
    }

    pub(crate) async fn node_unpublish_volume(
        &self,
        request: csi::NodeUnpublishVolumeRequest,
    ) -> Result<csi::NodeUnpublishVolumeResponse, RpcError> {
        let target = PathBuf::from(request.target_path);
        self.on_volume(&request.volume_id, move |_| unpublish(&target)).await?;
        Ok(csi::NodeUnpublishVolumeResponse {})
    }

    pub(crate) async fn node_get_volume_stats(
        &self,
        request: csi::NodeGetVolumeStatsRequest,
    ) -> Result<csi::NodeGetVolumeStatsResponse, RpcError> {
        let usage = super::blocking(move || usage(Path::new(&request.volume_path))).await?;
        Ok(csi::NodeGetVolumeStatsResponse { usage })
    }

    pub(crate) async fn node_expand_volume(
        &self,
        request: csi::NodeExpandVolumeRequest,
    ) -> Result<csi::NodeExpandVolumeResponse, RpcError> {
        let name = request.volume_id.clone();
        let capacity_bytes = self.on_volume(&name, move |store| expand(store, &request)).await?;
        Ok(csi::NodeExpandVolumeResponse { capacity_bytes })
    }
}

impl From<LocalDriverError> for RpcError {
    fn from(error: LocalDriverError) -> Self {
        let code = match &error {
            LocalDriverError::Name(_) | LocalDriverError::Request(_) => Code::InvalidArgument,
            LocalDriverError::Size(_) => Code::OutOfRange,
            LocalDriverError::NotFound { .. } => Code::NotFound,
            LocalDriverError::Stopped | LocalDriverError::InProgress(_) => Code::Aborted,
            _ => Code::Internal,
        };
        Self { code, message: error.to_string() }
    }
}

/// The options of a mounted volume; `None` for a block volume.
fn mount_options(capability: Option<&csi::VolumeCapability>) -> Option<&[String]> {
    match capability?.access_type.as_ref()? {
        AccessType::Mount(mount) => Some(&mount.mount_flags),
        AccessType::Block(_) => None,
    }
}

/// Attaches a loop device, and mounts it if the volume has a file system; binds a directory.
fn stage(store: &Store, request: &csi::NodeStageVolumeRequest) -> Result<(), LocalDriverError> {
    let name = &request.volume_id;
    let record = store.load(StoredKind::Volume, name)?;
    let options = mount_options(request.volume_capability.as_ref());
    if options.is_none() != record.is_block() {
        return Err(LocalDriverError::Request(format!(
            "volume {name} and its PersistentVolume differ in volumeMode"
        )));
    }
    store.apply_size(name, &record)?;
    if record.mode == VolumeMode::Quota {
        let staging = Path::new(&request.staging_target_path);
        return stage_directory(store, name, record, staging, options.unwrap_or_default());
    }
    let disk = store.disk(StoredKind::Volume, name);
    let device = loop_device::attach(&disk)?;
    let Some(options) = options else { return Ok(()) };
    let staged =
        mount_staged(store, name, &device, Path::new(&request.staging_target_path), options);
    if staged.is_err() && loop_device::mounted_at(&device)?.is_none() {
        loop_device::detach(&disk)?;
    }
    staged
}

/// Binds the directory of a volume with a quota to its staging path.
fn stage_directory(
    store: &Store,
    name: &str,
    mut record: LocalVolume,
    staging: &Path,
    options: &[String],
) -> Result<(), LocalDriverError> {
    if !options.is_empty() {
        return Err(LocalDriverError::Request(format!(
            "mountOptions of volume {name} are not supported with mode quota: the file system is \
             the node's"
        )));
    }
    if !mounts::is_mount_point(staging)? {
        std::fs::create_dir_all(staging).map_err(LocalDriverError::io("create", staging))?;
        mounts::bind(&store.data(name), staging)?;
    }
    if record.is_new {
        let_everyone_write(staging)?;
        record.is_new = false;
        store.save(name, &record)?;
    }
    Ok(())
}

/// Sets the mode of the root; synced, because the record says afterwards that it is set.
fn let_everyone_write(root: &Path) -> Result<(), LocalDriverError> {
    let set = || {
        let root = File::open(root)?;
        root.set_permissions(Permissions::from_mode(ROOT_MODE))?;
        root.sync_all()
    };
    set().map_err(LocalDriverError::io("set the permissions of", root))
}

fn mount_staged(
    store: &Store,
    name: &str,
    device: &Path,
    staging: &Path,
    options: &[String],
) -> Result<(), LocalDriverError> {
    let mut record = store.load(StoredKind::Volume, name)?;
    let Some(fs_type) = record.fs_type else { return Ok(()) };
    if !mounts::is_mount_point(staging)? {
        if loop_device::mounted_at(device)?.is_none() {
            device::check(device).map_err(|error| LocalDriverError::Other(error.to_string()))?;
        }
        std::fs::create_dir_all(staging).map_err(LocalDriverError::io("create", staging))?;
        file_system::mount_device(fs_type, device, staging, options)?;
    }
    if record.is_new || record.must_grow {
        if record.must_grow {
            loop_device::refresh(device)?;
            file_system::enlarge(fs_type, device, staging)?;
        }
        if record.is_new {
            let_everyone_write(staging)?;
        }
        (record.is_new, record.must_grow) = (false, false);
        store.save(name, &record)?;
    }
    Ok(())
}

/// Binds the staged file system, or the device, to the path of a pod.
fn publish(store: &Store, request: &csi::NodePublishVolumeRequest) -> Result<(), LocalDriverError> {
    let target = Path::new(&request.target_path);
    let failed = || LocalDriverError::io("create", target);
    let is_mounted = mounts::is_mount_point(target)?;
    if mount_options(request.volume_capability.as_ref()).is_none() {
        let disk = store.disk(StoredKind::Volume, &request.volume_id);
        let device = loop_device::find(&disk)?.ok_or_else(|| not_staged(&request.volume_id))?;
        if !is_mounted {
            OpenOptions::new().create(true).append(true).open(target).map_err(failed())?;
            mounts::bind(&device, target)?;
        }
        return Ok(());
    }
    let staging = PathBuf::from(&request.staging_target_path);
    if !mounts::is_mount_point(&staging)? {
        return Err(not_staged(&request.volume_id));
    }
    if !is_mounted {
        base::fs::create_dir(target, TARGET_MODE)?;
        mounts::bind(&staging, target)?;
    }
    if request.readonly {
        file_system::make_read_only(target)?;
    }
    Ok(())
}

fn not_staged(name: &str) -> LocalDriverError {
    LocalDriverError::Other(format!("volume {name} is not staged on this node"))
}

fn unpublish(target: &Path) -> Result<(), LocalDriverError> {
    mounts::unmount_below(target)?;
    let removed = match std::fs::symlink_metadata(target) {
        Ok(metadata) if metadata.is_dir() => std::fs::remove_dir(target),
        Ok(_) => std::fs::remove_file(target),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => Err(error),
    };
    removed.map_err(LocalDriverError::io("remove", target))
}

/// How full the volume at a path is; only the size of a device is known. For a directory whose
/// project has a limit, statfs of the kernel has the numbers of the project (`ext4_statfs`,
/// `xfs_fs_statfs`).
fn usage(path: &Path) -> Result<Vec<csi::VolumeUsage>, LocalDriverError> {
    let failed = || LocalDriverError::io("read the usage of", path);
    let amount = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let of = |available: u64, total: u64, used: u64, unit: Unit| csi::VolumeUsage {
        available: amount(available),
        total: amount(total),
        used: amount(used),
        unit: unit.into(),
    };
    if device::is_block_device(path).map_err(failed())? {
        let size = File::open(path).and_then(|mut device| device.seek(SeekFrom::End(0)));
        return Ok(vec![of(0, size.map_err(failed())?, 0, Unit::Bytes)]);
    }
    let disk = crate::machine::disk(path);
    let disk = disk.ok_or_else(|| failed()(std::io::Error::last_os_error()))?;
    let inodes = disk.inodes.saturating_sub(disk.inodes_free);
    Ok(vec![
        of(disk.free, disk.size, disk.used, Unit::Bytes),
        of(disk.inodes_free, disk.inodes, inodes, Unit::Inodes),
    ])
}

/// Gives the loop device and the mounted file system the size of the file, or the directory its
/// limit; returns the size in bytes.
fn expand(store: &Store, request: &csi::NodeExpandVolumeRequest) -> Result<i64, LocalDriverError> {
    let name = &request.volume_id;
    let mut record = store.load(StoredKind::Volume, name)?;
    let required = request.capacity_range.as_ref().map_or(0, |range| range.required_bytes);
    let required = u64::try_from(required).unwrap_or_default();
    if required > record.size {
        return Err(LocalDriverError::Size(required));
    }
    store.apply_size(name, &record)?;
    let size = i64::try_from(record.size).unwrap_or_default();
    if record.mode == VolumeMode::Quota {
        return Ok(size);
    }
    let disk = store.disk(StoredKind::Volume, name);
    let device = loop_device::find(&disk)?.ok_or_else(|| not_staged(name))?;
    loop_device::refresh(&device)?;
    if let Some(fs_type) = record.fs_type {
        let mounted = loop_device::mounted_at(&device)?.ok_or_else(|| not_staged(name))?;
        file_system::enlarge(fs_type, &device, &mounted)?;
    }
    record.must_grow = false;
    store.save(name, &record)?;
    Ok(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usage_of_a_file_system_has_bytes_and_inodes() {
        let home = tempfile::tempdir().unwrap();
        let usage = usage(home.path()).unwrap();
        let units: Vec<i32> = usage.iter().map(|usage| usage.unit).collect();
        assert_eq!(units, [i32::from(Unit::Bytes), i32::from(Unit::Inodes)]);
        assert!(usage.first().is_some_and(|bytes| bytes.total > 0 && bytes.available >= 0));
    }

    #[test]
    fn the_root_of_a_volume_lets_every_user_write() {
        let home = tempfile::tempdir().unwrap();
        let_everyone_write(home.path()).unwrap();
        let mode = home.path().metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, ROOT_MODE);
        let error = let_everyone_write(&home.path().join("missing")).unwrap_err().to_string();
        assert!(error.contains("set the permissions of"), "{error}");
    }

    #[test]
    fn a_path_that_is_not_published_is_unpublished() {
        let home = tempfile::tempdir().unwrap();
        unpublish(&home.path().join("missing")).unwrap();
        for name in ["file", "directory"] {
            let target = home.path().join(name);
            match name {
                "file" => std::fs::write(&target, "").unwrap(),
                _ => std::fs::create_dir(&target).unwrap(),
            }
            unpublish(&target).unwrap();
            assert!(!target.exists());
        }
    }
}
