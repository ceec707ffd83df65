//! The volumes of a pod: set up before its containers, kept up to date, torn down after them.

mod atomic;
mod claims;
mod content;
mod csi;
pub(crate) mod device;
mod device_map;
mod directory;
pub(crate) mod env_files;
mod error;
mod fibre_channel;
mod huge_pages;
mod iscsi;
pub(crate) mod mounts;
mod nfs;
pub(crate) mod scsi;
pub(crate) mod selinux;
pub(crate) mod shared_mount;
mod subpath;
mod tear_down;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::k8s::api::core::v1 as core;
use proto::runtime::v1 as cri;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::context::{Node, NodeIdentity};
use crate::credentials::pod_certificates::IssuedCredentials;
use crate::csi::source::{CsiVolume, may_be_attached};
use crate::pods::cri_config;
use crate::pods::cri_config::{InvalidPodSpec, expand, hosts};
use crate::pods::handle::DesiredPod;
use crate::pods::objects;
use crate::pods::objects::{CachedObject, ReferencedObjects};
use crate::pods::pod::{Pod, PodContainer};
use crate::runtime::RuntimeFeatures;
use claims::{ClaimUse, ClaimedVolume, Use};
use directory::VolumePath;
use error::SetUpError;
pub(crate) use error::VolumeError;
use scsi::ScsiVolume;
use selinux::{LabelledVolume, Selinux};
pub(crate) use tear_down::{
    TearDownError, has_csi_volumes, release, tear_down, tear_down_ended, unstage_left,
};

/// All volumes of a pod.
#[derive(Debug, Default)]
pub(crate) struct PodVolumes {
    pub(crate) paths: HashMap<String, VolumePath>,
    /// When a token or certificate in a volume has to be refreshed.
    pub(crate) refresh_at: Option<Instant>,
}

/// Whether the volumes can be set up without a wait: all objects are cached, and there is no claim
/// to look up, no driver to call, no server or disk to mount from and no certificate to wait for.
pub(crate) fn need_no_wait(objects: &ReferencedObjects, pod: &Pod) -> bool {
    let waits = |v: &core::Volume| may_be_attached(v) || v.nfs.is_some();
    !pod.spec().volumes.iter().flatten().any(waits)
        && !crate::credentials::pod_certificates::has_certificates(pod)
        && objects::references(pod)
            .iter()
            .all(|r| matches!(objects.get(r), CachedObject::Present(_)))
}

/// Sets up or updates all volumes that containers use; idempotent.
///
/// # Errors
///
/// The first volume that cannot be set up; the others are set up nevertheless, so that none waits
/// for another one.
pub(crate) async fn set_up(
    node: &Node,
    pod: &Pod,
    ips: &[String],
    desired: &watch::Receiver<DesiredPod>,
) -> Result<PodVolumes, VolumeError> {
    let mut out = PodVolumes::default();
    let mut outcome = Ok(());
    let certificates = node.api.pod_certificates.certificates(pod).await;
    // The runtime mounts image volumes itself.
    for volume in pod.spec().volumes.iter().flatten().filter(|v| v.image.is_none()) {
        let Use { mounted, as_device } = Use::of(pod, &volume.name);
        if !mounted && !as_device {
            continue;
        }
        let failed = |source| VolumeError { volume: volume.name.clone(), as_device, source };
        if !may_be_attached(volume) {
            let labelled = LabelledVolume::of_pod(&volume.name);
            if let Err(error) = node.selinux.check(pod, labelled) {
                outcome = outcome.and(Err(failed(error.into())));
                continue;
            }
        }
        let sources = VolumeSources { ips, certificates: &certificates, desired };
        match set_up_one(node, pod, volume, sources, &mut out.refresh_at).await {
            Ok(volume_path) => {
                out.paths.insert(volume.name.clone(), volume_path);
            }
            Err(error) => outcome = outcome.and(Err(failed(error))),
        }
    }
    outcome.map(|()| {
        node.csi.stop_waiting(&pod.uid);
        out
    })
}

/// The SELinux labels of this node's volumes. `root` is the directory of the kubelet.
pub(crate) async fn start_selinux(root: &Path) -> Arc<Selinux> {
    let root = root.to_owned();
    Selinux::start(move || {
        let mut held = crate::csi::record::labels_of_volumes(&root);
        held.extend(scsi::labels_of_volumes(&root));
        held
    })
    .await
}

/// What the volumes of a pod depend on beside its specification.
#[derive(Debug, Clone, Copy)]
struct VolumeSources<'a> {
    ips: &'a [String],
    certificates: &'a IssuedCredentials,
    /// The end of the pod interrupts the wait for a driver.
    desired: &'a watch::Receiver<DesiredPod>,
}

async fn set_up_one(
    node: &Node,
    pod: &Pod,
    volume: &core::Volume,
    VolumeSources { ips, certificates, desired }: VolumeSources<'_>,
    refresh_at: &mut Option<Instant>,
) -> Result<VolumePath, SetUpError> {
    let base = node.identity.config.pod_dir(&pod.uid).join("volumes");
    let folder = |plugin: &str| base.join(plugin).join(&volume.name);
    let fs_group = pod.spec().security_context.as_ref().and_then(|s| s.fs_group);
    if let Some(source) = &volume.empty_dir {
        let path = folder("kubernetes.io~empty-dir");
        let medium = source.medium.as_deref().unwrap_or_default();
        if huge_pages::is_medium(medium) {
            let group = fs_group.and_then(|g| u32::try_from(g).ok());
            huge_pages::set_up(pod, medium, &path, group)?;
            return Ok(VolumePath::relabelled(path, false));
        }
        directory::empty_dir(source, &path, fs_group, node.identity.machine.memory)?;
        return Ok(VolumePath::relabelled(path, false));
    }
    if let Some(source) = &volume.host_path {
        directory::host_path(source)?;
        return Ok(VolumePath::mounted(PathBuf::from(&source.path), false));
    }
    if let Some(source) = &volume.nfs {
        let path = folder("kubernetes.io~nfs");
        nfs::set_up(source, &[], &path).await?;
        return Ok(VolumePath::mounted(path, source.read_only == Some(true)));
    }
    let own_claim = format!("{}-{}", pod.name(), volume.name);
    let claim = match (&volume.persistent_volume_claim, &volume.ephemeral) {
        (Some(source), _) => Some((source.claim_name.as_str(), source.read_only == Some(true))),
        (None, Some(_)) => Some((own_claim.as_str(), false)),
        (None, None) => None,
    };
    if let Some((claim, read_only)) = claim {
        let of = ClaimUse { volume: &volume.name, claim, read_only };
        return set_up_claim(node, pod, of, desired, refresh_at).await;
    }
    if let Some(disk) = ScsiVolume::inline(volume, pod.namespace()) {
        return Ok(scsi::set_up(node, pod, disk?, desired).await?);
    }
    if let Some(volume) = CsiVolume::of_pod(pod, volume)? {
        return csi_path(csi::set_up(node, pod, volume, None, desired).await?, refresh_at);
    }
    let content = content::render(node, pod, volume, ips, certificates).await?;
    let content = content.ok_or(SetUpError::KindNotSupported)?;
    *refresh_at = [*refresh_at, content.refresh_at].into_iter().flatten().min();
    let path = folder(content.plugin);
    if content.in_memory {
        mounts::tmpfs(&path, 0, "mode=0755")?;
    }
    let group = fs_group.and_then(|g| u32::try_from(g).ok());
    let target = path.clone();
    base::tasks::blocking(move || atomic::write(&target, &content.files, group)).await??;
    Ok(VolumePath::relabelled(path, true))
}

/// Sets up the volume of a claim.
async fn set_up_claim(
    node: &Node,
    pod: &Pod,
    of: ClaimUse<'_>,
    desired: &watch::Receiver<DesiredPod>,
    refresh_at: &mut Option<Instant>,
) -> Result<VolumePath, SetUpError> {
    let path = match claims::claim_path(node, pod, of).await? {
        ClaimedVolume::OfNode(path) => path,
        ClaimedVolume::Scsi(disk) => scsi::set_up(node, pod, *disk, desired).await?,
        ClaimedVolume::Csi(csi) => {
            let (volume, claim) = *csi;
            let set_up = csi::set_up(node, pod, volume, Some(&claim), desired);
            return csi_path(set_up.await?, refresh_at);
        }
    };
    if path.is_device {
        node.caches.block_devices.insert(&pod.uid, of.volume, &path.path);
    }
    Ok(path)
}

/// Returns the path of a CSI volume that is set up.
fn csi_path(
    (path, again_at): (VolumePath, Option<Instant>),
    refresh_at: &mut Option<Instant>,
) -> Result<VolumePath, SetUpError> {
    *refresh_at = [*refresh_at, again_at].into_iter().flatten().min();
    Ok(path)
}

/// Returns the mounts of a container: its volumes, `/etc/hosts`, and the termination message.
/// `shown` are the images of image volumes.
///
/// # Errors
///
/// A missing volume, or a sub-path that leaves its volume.
pub(crate) fn container_mounts(
    identity: &NodeIdentity,
    pod: &Pod,
    member: &PodContainer,
    (volumes, images): (&PodVolumes, &HashMap<String, cri::ImageSpec>),
    env: &[(String, String)],
    ips: &[String],
) -> Result<Vec<cri::Mount>, InvalidPodSpec> {
    let mut out = Vec::new();
    let mut own_hosts = false;
    let pod_dir = identity.config.pod_dir(&pod.uid);
    for (index, mount) in member.container.volume_mounts.iter().flatten().enumerate() {
        own_hosts |= mount.mount_path == "/etc/hosts";
        let sub_path = match mount.sub_path_expr.as_deref().filter(|s| !s.is_empty()) {
            Some(expression) => expand_sub_path(expression, env)?,
            None => mount.sub_path.clone().unwrap_or_default(),
        };
        let target = Path::new("/").join(&mount.mount_path).to_string_lossy().into_owned();
        if let Some(image) = images.get(&mount.name) {
            out.push(cri::Mount {
                container_path: target,
                readonly: true,
                image: Some(image.clone()),
                image_sub_path: sub_path,
                ..cri::Mount::default()
            });
            continue;
        }
        let volume_path = volumes.paths.get(&mount.name).ok_or_else(|| {
            InvalidPodSpec(format!(
                "cannot find volume {:?} to mount into container {:?}",
                mount.name,
                member.name()
            ))
        })?;
        let path = if sub_path.is_empty() {
            volume_path.path.clone()
        } else {
            let target = pod_dir
                .join("volume-subpaths")
                .join(&mount.name)
                .join(member.name())
                .join(index.to_string());
            subpath::bind(&volume_path.path, &sub_path, &target).map_err(|why| {
                InvalidPodSpec(format!(
                    "failed to prepare subPath for volumeMount {:?} of container {:?}: {why}",
                    mount.name,
                    member.name()
                ))
            })?;
            target
        };
        let propagation = match mount.mount_propagation.as_deref() {
            Some("Bidirectional") => cri::MountPropagation::PropagationBidirectional,
            Some("HostToContainer") => cri::MountPropagation::PropagationHostToContainer,
            _ => cri::MountPropagation::PropagationPrivate,
        };
        out.push(cri::Mount {
            container_path: target,
            host_path: path.to_string_lossy().into_owned(),
            readonly: mount.read_only == Some(true) || volume_path.read_only,
            propagation: propagation.into(),
            recursive_read_only: recursive_read_only(mount, identity.features.runtime),
            selinux_relabel: volume_path.is_relabelled && identity.features.selinux,
            ..cri::Mount::default()
        });
    }
    let invalid = |error: std::io::Error| InvalidPodSpec(error.to_string());
    if !own_hosts && (pod.host_network() || !ips.is_empty()) {
        out.push(hosts_mount(identity, pod, &pod_dir, ips).map_err(invalid)?);
    }
    if let Some(path) =
        member.container.termination_message_path.as_deref().filter(|p| !p.is_empty())
    {
        out.push(message_mount(identity, &pod_dir, member, path).map_err(invalid)?);
    }
    Ok(out)
}

/// Returns the block devices of a container (`makeBlockVolumes`).
///
/// # Errors
///
/// A volume that is not set up as a device.
pub(crate) fn container_devices(
    member: &PodContainer,
    volumes: &PodVolumes,
) -> Result<Vec<cri::Device>, InvalidPodSpec> {
    let devices = member.container.volume_devices.iter().flatten();
    devices
        .map(|device| match volumes.paths.get(&device.name) {
            Some(volume) if volume.is_device => Ok(cri::Device {
                container_path: device.device_path.clone(),
                host_path: volume.path.to_string_lossy().into_owned(),
                permissions: if volume.read_only { "r" } else { "mrw" }.to_owned(),
            }),
            _ => Err(InvalidPodSpec(format!(
                "block volume cannot be satisfied for container {:?}, because volume {:?} is \
                 missing or is no block device",
                member.name(),
                device.name
            ))),
        })
        .collect()
}

/// Whether mounts below a read-only volume are read-only too; admission rejects `Enabled` if the
/// runtime does not support it.
fn recursive_read_only(mount: &core::VolumeMount, runtime: RuntimeFeatures) -> bool {
    mount.read_only == Some(true)
        && runtime.recursive_read_only
        && matches!(mount.recursive_read_only.as_deref(), Some("Enabled" | "IfPossible"))
}

fn expand_sub_path(expression: &str, env: &[(String, String)]) -> Result<String, InvalidPodSpec> {
    let missing = std::cell::RefCell::new(None);
    let out = expand::expand(expression, |name| {
        let value = env.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone());
        if value.is_none() {
            missing.replace(Some(name.to_owned()));
        }
        value
    });
    match missing.into_inner() {
        Some(name) => Err(InvalidPodSpec(format!("missing value for {name:?}"))),
        None => Ok(out),
    }
}

/// Returns the path of the pod's /etc/hosts on the host.
pub(crate) fn hosts_file(pod_dir: &Path) -> PathBuf {
    pod_dir.join("etc-hosts")
}

fn hosts_mount(
    identity: &NodeIdentity,
    pod: &Pod,
    pod_dir: &Path,
    ips: &[String],
) -> std::io::Result<cri::Mount> {
    let aliases = pod.spec().host_aliases.as_deref().unwrap_or_default();
    let content = if pod.host_network() {
        hosts::of_host(&std::fs::read_to_string("/etc/hosts").unwrap_or_default(), aliases)
    } else {
        let (name, domain) = cri_config::hostname(pod, &identity.config.cluster_domain);
        hosts::managed(ips, &name, &domain, aliases)
    };
    let path = hosts_file(pod_dir);
    // Containers may have written any amount to the file, so that it is not read if its length
    // differs.
    let length = u64::try_from(content.len()).ok();
    let same = std::fs::metadata(&path).is_ok_and(|m| Some(m.len()) == length);
    // Written in place, as running containers have this file mounted.
    if !same || std::fs::read_to_string(&path).unwrap_or_default() != content {
        std::fs::create_dir_all(pod_dir)?;
        std::fs::write(&path, content)?;
        directory::chmod(&path, 0o644)?;
    }
    Ok(cri::Mount {
        container_path: "/etc/hosts".to_owned(),
        host_path: path.to_string_lossy().into_owned(),
        selinux_relabel: identity.features.selinux,
        ..cri::Mount::default()
    })
}

/// Creates the termination message file, a new one for each container instance.
fn message_mount(
    identity: &NodeIdentity,
    pod_dir: &Path,
    member: &PodContainer,
    path: &str,
) -> std::io::Result<cri::Mount> {
    let folder = pod_dir.join("containers").join(member.name());
    std::fs::create_dir_all(&folder)?;
    let file = folder.join(base::clock::random_suffix(8));
    std::fs::File::create(&file)?;
    directory::chmod(&file, 0o666)?;
    Ok(cri::Mount {
        container_path: Path::new("/").join(path).to_string_lossy().into_owned(),
        host_path: file.to_string_lossy().into_owned(),
        selinux_relabel: identity.features.selinux,
        ..cri::Mount::default()
    })
}
