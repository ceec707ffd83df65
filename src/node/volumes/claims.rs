//! PersistentVolumeClaims: bound to directories and block devices of this node, which are volumes
//! of the kinds `local` and `hostPath`, to servers of files and disks, or to volumes of CSI
//! drivers.

use api::k8s::api::core::v1 as core;
use api::{Quantity, csi_translation};
use std::io;
use std::path::{Path, PathBuf};

use super::csi::VolumeClaim;
use super::device;
use super::directory::{self, VolumePath};
use super::error::SetUpError;
use super::mounts;
use super::nfs;
use super::scsi::ScsiVolume;
use super::selinux::LabelledVolume;
use crate::config::Config;
use crate::context::Node;
use crate::csi::source::CsiVolume;
use crate::pods::pod::Pod;
use client::Client;

/// Directory in a pod's directory with a mark for each local volume that it uses; the file system
/// of a block device is mounted on the mark.
const MARKS: &str = "volumes/kubernetes.io~local-volume";
/// Directory in a pod's directory with a mark for each ReadWriteOncePod volume that it uses.
const ALONE_MARKS: &str = "plugins/kube-lite~read-write-once-pod";
/// Uses of one volume are serialized: the second pod waits for the first, which may format a device
/// or change files. A disk that does not answer holds back the volumes with the same lock.
static USING: [parking_lot::Mutex<()>; 64] = [const { parking_lot::const_mutex(()) }; 64];

fn lock_of(volume: &str) -> Option<&'static parking_lot::Mutex<()>> {
    let sum = volume.bytes().fold(0_usize, |sum, b| sum.wrapping_mul(31).wrapping_add(b.into()));
    USING.get(sum % USING.len())
}

/// How the containers of a pod use a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Use {
    /// Whether it is in a list `volumeMounts`.
    pub(super) mounted: bool,
    /// Whether it is in a list `volumeDevices`.
    pub(super) as_device: bool,
}

impl Use {
    /// Returns how the containers of a pod use the volume `name`.
    pub(super) fn of(pod: &Pod, name: &str) -> Self {
        let mut containers = pod.containers.iter().map(|member| &member.container);
        Self {
            mounted: containers
                .clone()
                .any(|c| c.volume_mounts.iter().flatten().any(|m| m.name == name)),
            as_device: containers
                .any(|c| c.volume_devices.iter().flatten().any(|d| d.name == name)),
        }
    }

    /// Checks the mode of the volume (`createVolumeSpec` of the volume manager).
    fn check_mode(self, volume: &str, mode: &str) -> Result<(), SetUpError> {
        let list = match mode {
            "Block" if self.mounted => "volumeMounts",
            "Filesystem" if self.as_device => "volumeDevices",
            _ => return Ok(()),
        };
        Err(SetUpError::Mode { volume: volume.to_owned(), mode: mode.to_owned(), list })
    }
}

/// Whether the directory of a pod other than `own` has the mark `below`.
fn other_pod_has(pods: &Path, own: &Path, below: &Path) -> io::Result<bool> {
    match std::fs::read_dir(pods) {
        Ok(entries) => {
            Ok(entries.flatten().any(|pod| pod.path() != own && pod.path().join(below).exists()))
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}

/// Marks a ReadWriteOncePod volume as used by a pod, unless another pod of this node uses it. The
/// scheduler prevents that, but not for pods that are created with a node.
fn use_alone(pods: &Path, own: &Path, volume: &str) -> Result<(), SetUpError> {
    let _one = lock_of(volume).map(parking_lot::Mutex::lock);
    let below = Path::new(ALONE_MARKS).join(volume);
    if own.join(&below).exists() {
        return Ok(());
    }
    if other_pod_has(pods, own, &below)? {
        return Err(SetUpError::UsedByOther);
    }
    Ok(std::fs::create_dir_all(own.join(below))?)
}

/// A local volume and the pod that uses it.
#[derive(Debug)]
struct LocalUse {
    /// The directories of all pods.
    pods: PathBuf,
    /// The directory of the pod.
    own: PathBuf,
    /// Name of the PersistentVolume.
    volume: String,
    /// The directory or block device.
    path: PathBuf,
    fs_type: String,
    read_only: bool,
    /// The group of the files, and whether only a mismatch changes them.
    group: Option<(u32, bool)>,
}

impl LocalUse {
    /// Marks a local volume as used by the pod, mounts it if it is a block device, and returns the
    /// directory. The first pod of a volume changes its group, unless `group` requires a mismatch
    /// and there is none; files of running pods are not changed.
    fn begin(&self) -> Result<PathBuf, SetUpError> {
        let _one = lock_of(&self.volume).map(parking_lot::Mutex::lock);
        let below = Path::new(MARKS).join(&self.volume);
        let own = self.own.join(&below);
        // The files to change are those behind a symbolic link, not the link.
        let path = self.path.canonicalize()?;
        let is_device = device::is_block_device(&path)?;
        let root = match (is_device, path.is_dir()) {
            (true, _) => own.clone(),
            (false, true) => path.clone(),
            (false, false) => return Err(SetUpError::NotDirectoryOrDevice(path)),
        };
        let is_begun = if is_device { mounts::is_mount_point(&own)? } else { own.exists() };
        if is_begun {
            return Ok(root);
        }
        // After a restart of the machine there are marks, but no mounts.
        let in_use = if is_device {
            mounts::is_device_mounted(&path)?
        } else {
            other_pod_has(&self.pods, &self.own, &below)?
        };
        if is_device {
            std::fs::create_dir_all(&own)?;
            let (fs_type, read_only) = (self.fs_type.as_str(), self.read_only);
            let options = device::MountOptions { fs_type, read_only, in_use };
            device::format_and_mount(&path, &own, options)?;
        }
        if let (Some((group, on_mismatch)), false) = (self.group, in_use || self.read_only)
            && !(on_mismatch && directory::is_of_group(&root, group))
            && let Err(source) = directory::give_to_group(&root, group)
        {
            if is_device {
                mounts::unmount_below(&own)?;
            }
            return Err(SetUpError::FsGroup { path: root, source });
        }
        if !is_device && !self.read_only {
            std::fs::create_dir_all(own)?;
        }
        Ok(root)
    }
}

/// The claim of a volume of a pod.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClaimUse<'a> {
    /// Name of the volume in the pod.
    pub(super) volume: &'a str,
    pub(super) claim: &'a str,
    pub(super) read_only: bool,
}

/// The volume to which a claim is bound.
struct BoundVolume {
    claim: core::PersistentVolumeClaim,
    /// Name of the PersistentVolume.
    name: String,
    /// The specification of the CSI driver if the volume is of an in-tree plugin.
    spec: core::PersistentVolumeSpec,
    is_migrated: bool,
}

/// Returns the volume of a claim of a pod.
async fn bound_volume(client: &Client, pod: &Pod, name: &str) -> Result<BoundVolume, SetUpError> {
    let claim: core::PersistentVolumeClaim = client.get(pod.namespace(), name).await?;
    let bound = claim.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Bound");
    let volume_name = claim.spec.as_ref().and_then(|s| s.volume_name.clone());
    let volume_name = volume_name.filter(|v| !v.is_empty());
    let (Some(volume_name), true) = (volume_name, bound) else {
        let namespace = pod.namespace().to_owned();
        return Err(SetUpError::NotBound { namespace, name: name.to_owned() });
    };
    let volume: core::PersistentVolume = client.get("", &volume_name).await?;
    let translated = csi_translation::persistent(&volume)?;
    let is_migrated = translated.is_some();
    let spec = translated.unwrap_or(volume).spec.unwrap_or_default();
    Ok(BoundVolume { claim, name: volume_name, spec, is_migrated })
}

/// The volume of a claim.
pub(super) enum ClaimedVolume {
    /// A directory or block device of this node, ready to use.
    OfNode(VolumePath),
    /// A disk that has to be attached.
    Scsi(Box<ScsiVolume>),
    /// A volume that its driver has to set up.
    Csi(Box<(CsiVolume, VolumeClaim)>),
}

/// Returns the volume of a claim.
pub(super) async fn claim_path(
    node: &Node,
    pod: &Pod,
    of: ClaimUse<'_>,
) -> Result<ClaimedVolume, SetUpError> {
    let config = &node.identity.config;
    let bound = bound_volume(&node.api.client, pod, of.claim).await?;
    let BoundVolume { claim, name: volume, spec, is_migrated } = bound;
    let mode = spec.volume_mode.as_deref().unwrap_or("Filesystem");
    Use::of(pod, of.volume).check_mode(of.volume, mode)?;
    if spec.access_modes.iter().flatten().any(|mode| mode == "ReadWriteOncePod") {
        let pods = config.root_dir.join("pods");
        let (own, volume) = (config.pod_dir(&pod.uid), volume.clone());
        base::tasks::blocking(move || use_alone(&pods, &own, &volume)).await??;
    }
    if let Some(volume) = CsiVolume::persistent(&volume, of.volume, &spec, of.read_only) {
        let size = spec.capacity.as_ref().and_then(|capacity| capacity.get("storage"));
        let volume_size = size.and_then(|size| Quantity::parse(&size.0).ok());
        let claim = VolumeClaim { object: claim, volume_size };
        let volume = CsiVolume { is_migrated, ..volume };
        return Ok(ClaimedVolume::Csi(Box::new((volume, claim))));
    }
    let names = (volume.as_str(), of.volume);
    if let Some(disk) = ScsiVolume::persistent(names, &spec, of.read_only, pod.namespace()) {
        return Ok(ClaimedVolume::Scsi(Box::new(disk?)));
    }
    let modes = spec.access_modes.as_deref().unwrap_or_default();
    node.selinux.check(pod, LabelledVolume::without_support(of.volume, &volume, modes))?;
    path_on_node(config, pod, of, volume, spec).await.map(ClaimedVolume::OfNode)
}

/// Returns the path of a volume that is a directory or block device of this node. `volume` is the
/// name of the PersistentVolume.
async fn path_on_node(
    config: &Config,
    pod: &Pod,
    of: ClaimUse<'_>,
    volume: String,
    spec: core::PersistentVolumeSpec,
) -> Result<VolumePath, SetUpError> {
    let mode = spec.volume_mode.as_deref().unwrap_or("Filesystem");
    let (read_only, pods) = (of.read_only, config.root_dir.join("pods"));
    if let Some(source) = &spec.host_path {
        if mode == "Block" {
            return Err(SetUpError::BlockNotSupported);
        }
        directory::host_path(source)?;
        return Ok(VolumePath::mounted(PathBuf::from(&source.path), read_only));
    }
    if let Some(source) = &spec.nfs {
        if mode == "Block" {
            return Err(SetUpError::BlockNotSupported);
        }
        let path = config.pod_dir(&pod.uid).join("volumes/kubernetes.io~nfs").join(&volume);
        let read_only = read_only || source.read_only == Some(true);
        let source = core::NFSVolumeSource { read_only: Some(read_only), ..source.clone() };
        nfs::set_up(&source, spec.mount_options.as_deref().unwrap_or_default(), &path).await?;
        return Ok(VolumePath::mounted(path, read_only));
    }
    let Some(source) = &spec.local else {
        return Err(SetUpError::DriverNotSupported(volume));
    };
    let path = PathBuf::from(&source.path);
    if !path.exists() {
        return Err(SetUpError::NoPath(source.path.clone()));
    }
    if mode == "Block" {
        if !device::is_block_device(&path)? {
            return Err(SetUpError::NotBlockDevice(path));
        }
        return Ok(VolumePath::device(path.canonicalize()?, read_only));
    }
    let security = pod.spec().security_context.as_ref();
    let on_mismatch =
        security.and_then(|s| s.fs_group_change_policy.as_deref()) == Some("OnRootMismatch");
    let fs_group = security.and_then(|s| s.fs_group).and_then(|g| u32::try_from(g).ok());
    let fs_type = source.fs_type.as_deref().filter(|name| !name.is_empty());
    let local = LocalUse {
        pods,
        own: config.pod_dir(&pod.uid),
        volume,
        path,
        fs_type: fs_type.unwrap_or(device::DEFAULT_FS_TYPE).to_owned(),
        read_only,
        group: fs_group.map(|group| (group, on_mismatch)),
    };
    let path = base::tasks::blocking(move || local.begin()).await??;
    Ok(VolumePath { is_relabelled: !read_only, ..VolumePath::mounted(path, read_only) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn the_first_pod_on_a_volume_changes_its_group() {
        let home = tempfile::tempdir().unwrap();
        let (pods, root) = (home.path().join("pods"), home.path().join("data"));
        std::fs::create_dir_all(root.join("db")).unwrap();
        let group = std::fs::metadata(&root).unwrap().gid();
        let private = || directory::chmod(&root.join("db"), 0o700).unwrap();
        let local = |pod: &str, on_mismatch| LocalUse {
            pods: pods.clone(),
            own: pods.join(pod),
            volume: "v".to_owned(),
            path: root.clone(),
            fs_type: "ext4".to_owned(),
            read_only: false,
            group: Some((group, on_mismatch)),
        };
        let used = |pod: &str, on_mismatch| {
            let path = local(pod, on_mismatch).begin().unwrap();
            assert_eq!(path, root.canonicalize().unwrap());
            mode(&root.join("db"))
        };
        private();
        assert_eq!(used("a", false), 0o2770, "the first pod's group may write");
        private();
        assert_eq!(used("a", false), 0o700, "a container starts again");
        assert_eq!(used("b", false), 0o700, "another pod comes beside it");
        for pod in ["a", "b"] {
            std::fs::remove_dir_all(pods.join(pod)).unwrap();
        }
        assert_eq!(used("c", true), 0o700, "the root is the group's already");
        std::fs::remove_dir_all(pods.join("c")).unwrap();
        assert_eq!(used("d", false), 0o2770, "the next pod, after all others");
    }
    #[test]
    fn the_group_of_a_volume_behind_a_link_is_changed() {
        let home = tempfile::tempdir().unwrap();
        let (root, path) = (home.path().join("data"), home.path().join("link"));
        std::fs::create_dir_all(&root).unwrap();
        std::os::unix::fs::symlink(&root, &path).unwrap();
        let group = Some((std::fs::metadata(&root).unwrap().gid(), false));
        let (pods, own) = (home.path().join("pods"), home.path().join("pods/a"));
        let (volume, fs_type) = ("v".to_owned(), "ext4".to_owned());
        let local = LocalUse { pods, own, volume, path, fs_type, read_only: false, group };
        assert_eq!(local.begin().unwrap(), root.canonicalize().unwrap());
        assert_eq!(mode(&root) & 0o2070, 0o2070);
    }

    #[test]
    fn a_local_volume_is_a_directory_or_a_block_device() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("file");
        std::fs::write(&path, "").unwrap();
        let (pods, own) = (home.path().join("pods"), home.path().join("pods/a"));
        let (volume, fs_type) = ("v".to_owned(), "ext4".to_owned());
        let local = LocalUse { pods, own, volume, path, fs_type, read_only: false, group: None };
        assert!(matches!(local.begin(), Err(SetUpError::NotDirectoryOrDevice(_))));
        assert!(!local.own.exists());
    }

    #[test]
    fn a_read_write_once_pod_volume_serves_one_pod_at_a_time() {
        let home = tempfile::tempdir().unwrap();
        let pods = home.path().join("pods");
        let used = |pod: &str, volume| use_alone(&pods, &pods.join(pod), volume);
        used("a", "v").unwrap();
        used("a", "v").unwrap();
        used("b", "w").unwrap();
        assert_eq!(
            used("b", "v").unwrap_err().to_string(),
            "volume uses the ReadWriteOncePod access mode and is already in use by another pod"
        );
        std::fs::remove_dir_all(pods.join("a")).unwrap();
        used("b", "v").unwrap();
    }

    #[test]
    fn the_mode_of_a_volume_must_fit_its_use() {
        let pod = crate::pods::pod::tests::pod(serde_json::json!({"containers": [
            {"name": "a", "volumeMounts": [{"name": "files", "mountPath": "/f"}]},
            {"name": "b", "volumeDevices": [{"name": "disk", "devicePath": "/dev/d"}]},
        ]}));
        let refused = |volume: &str, mode| {
            Use::of(&pod, volume).check_mode(volume, mode).map_err(|e| e.to_string()).err()
        };
        assert_eq!(refused("files", "Filesystem"), None);
        assert_eq!(refused("disk", "Block"), None);
        assert_eq!(
            refused("files", "Block").as_deref(),
            Some("volume files has volumeMode Block, but is specified in volumeMounts")
        );
        assert_eq!(
            refused("disk", "Filesystem").as_deref(),
            Some("volume disk has volumeMode Filesystem, but is specified in volumeDevices")
        );
        assert_eq!(Use::of(&pod, "unused"), Use { mounted: false, as_device: false });
    }
}
