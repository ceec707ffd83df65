//! Sets up a volume for a pod: waits for the attach/detach controller, attaches the disk, mounts it
//! at the global path and binds that for the pod, or maps the device for the pod
//! (`GenerateMountVolumeFunc`, `GenerateMapVolumeFunc`).

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::k8s::api::core::v1::Secret;
use base::Kind;
use client::events::EventType;
use sorting::CollectOrdered as _;
use tokio::sync::{oneshot, watch};

use super::error::{ScsiError, ScsiVolumeError};
use super::record::{self, UseRecord};
use super::volume::{GlobalVolume, ScsiDisk, ScsiVolume};
use super::{Scsi, global, label};
use crate::context::Node;
use crate::events;
use crate::pods::handle::{DesiredPod, pod_must_end};
use crate::pods::pod::Pod;
use crate::volumes::directory::{self, VolumePath, create_dir};
use crate::volumes::selinux::SelinuxError;
use crate::volumes::selinux::labels::{MountState, VolumeLabels};
use crate::volumes::selinux::mount_option::mounted_label;
use crate::volumes::{device, device_map, fibre_channel, iscsi, mounts};

/// Everything that the operation needs; it goes on if its pod is deleted meanwhile.
#[derive(Debug)]
pub(super) struct SetUp {
    pub(super) scsi: Arc<Scsi>,
    pub(super) pod_uid: Arc<str>,
    pub(super) pod_dir: PathBuf,
    pub(super) volume: ScsiVolume,
    /// The group of the files, and whether only a mismatch changes them.
    pub(super) group: Option<(u32, bool)>,
    /// The SELinux labels of the volume.
    pub(super) labels: VolumeLabels,
    /// Whether the kernel has SELinux.
    pub(super) has_selinux: bool,
}

/// A result with the name of the last step.
type StepOutcome<T> = (&'static str, Result<T, ScsiError>);

/// Sets up a volume and returns its path.
///
/// # Errors
///
/// The volume waits for another component, or a step failed.
pub(in crate::volumes) async fn set_up(
    node: &Node,
    pod: &Pod,
    volume: ScsiVolume,
    desired: &watch::Receiver<DesiredPod>,
) -> Result<VolumePath, ScsiVolumeError> {
    // Before the checks, so that nothing that happens after them is missed.
    node.csi.wait(&pod.uid, None);
    let (spec_name, is_block) = (volume.spec_name.clone(), volume.is_block);
    let first = first_step(is_block);
    let failed =
        |source| ScsiVolumeError::Failed { step: first, spec_name: spec_name.clone(), source };
    volume.check_names().map_err(failed)?;
    let name = volume.unique_name.clone();
    let mut operation = SetUp::new(node, pod, volume);
    node.csi.hold_name(&pod.uid, &name);
    if let Some(path) = operation.existing().await.map_err(failed)? {
        return Ok(path);
    }
    operation.labels = label::admit(node, pod, &operation.volume)?;
    node.csi
        .check_attached(&name)
        .map_err(|what| ScsiVolumeError::Waiting { what, spec_name: spec_name.clone() })?;
    let messages = operation.mapped_messages();
    let path = detached(node, &spec_name, desired.clone(), operation.run()).await?;
    if is_block {
        for message in messages {
            let (kind, reason) = (EventType::Normal, events::SUCCESSFUL_MOUNT_VOLUME);
            node.api.events.pod_event(pod, kind, reason, message);
        }
    }
    Ok(path)
}

/// The step before a volume is attached.
fn first_step(is_block: bool) -> &'static str {
    if is_block {
        "MapVolume.NewBlockVolumeMapper initialization"
    } else {
        "MountVolume.NewMounter initialization"
    }
}

/// Runs an operation to its end, and returns its outcome unless the pod has to end before: a login
/// that is interrupted would leave a session of which nothing is known.
async fn detached(
    node: &Node,
    spec_name: &str,
    mut desired: watch::Receiver<DesiredPod>,
    operation: impl Future<Output = Result<VolumePath, ScsiVolumeError>> + Send + 'static,
) -> Result<VolumePath, ScsiVolumeError> {
    let (sender, receiver) = oneshot::channel();
    node.tasks.spawn(Kind::Request, "scsi-volume", async move {
        let _ = sender.send(operation.await);
        Ok::<(), std::convert::Infallible>(())
    });
    let what = tokio::select! {
        biased;
        outcome = receiver => match outcome {
            Ok(outcome) => return outcome,
            Err(_) => "The operation was interrupted",
        },
        () = pod_must_end(&mut desired) => "The pod ends before the volume is set up",
    };
    Err(ScsiVolumeError::Waiting { what, spec_name: spec_name.to_owned() })
}

impl SetUp {
    fn new(node: &Node, pod: &Pod, volume: ScsiVolume) -> Self {
        let security = pod.spec().security_context.as_ref();
        let on_mismatch =
            security.and_then(|s| s.fs_group_change_policy.as_deref()) == Some("OnRootMismatch");
        let group = security.and_then(|s| s.fs_group).and_then(|g| u32::try_from(g).ok());
        Self {
            scsi: Arc::clone(&node.scsi),
            pod_uid: Arc::clone(&pod.uid),
            pod_dir: node.identity.config.pod_dir(&pod.uid),
            group: group.map(|group| (group, on_mismatch)),
            labels: node.selinux.labels(pod, &volume.unique_name),
            has_selinux: node.selinux.is_enabled(),
            volume,
        }
    }

    fn global(&self) -> PathBuf {
        self.volume.global_path(&self.scsi.root)
    }

    fn mapped_messages(&self) -> [String; 2] {
        let link = self.volume.pod_path(&self.pod_dir);
        device_map::mapped_messages(&self.volume.spec_name, &self.global(), &link)
    }

    fn volume_path(&self, path: PathBuf) -> VolumePath {
        let ScsiVolume { read_only, is_block, .. } = self.volume;
        // Upstream's plugins do not look whether the file system has labels.
        let is_relabelled = !read_only && !is_block && self.labels.mount.is_empty();
        VolumePath { path, read_only, is_device: is_block, is_relabelled }
    }

    /// Returns the path of a volume that is set up. After a restart of the process, that is what is
    /// mounted or mapped; after a restart of the machine, nothing.
    async fn existing(&self) -> Result<Option<VolumePath>, ScsiError> {
        let record = UseRecord::of(&self.volume, &self.labels, &self.scsi.root);
        let (pod_dir, path) = (self.pod_dir.clone(), self.volume.pod_path(&self.pod_dir));
        let found = base::tasks::blocking(move || -> io::Result<Option<PathBuf>> {
            if !record.exists(&pod_dir) {
                return Ok(None);
            }
            if record.is_block {
                return device_map::mapped(&record.global, &pod_dir, &path);
            }
            Ok(mounts::is_mount_point(&path)?.then_some(path))
        });
        Ok(found.await??.map(|path| self.volume_path(path)))
    }

    /// Sets the volume up, unless another operation did so meanwhile.
    pub(super) async fn run(self) -> Result<VolumePath, ScsiVolumeError> {
        let _pod = self.scsi.lock_pod(&self.pod_uid).await;
        let _volume = self.scsi.lock_volume(&self.global()).await;
        self.detach_other().await?;
        let (step, outcome) = match self.begin().await {
            Err(error) => (first_step(self.volume.is_block), Err(error)),
            Ok(credentials) if self.volume.is_block => self.map(&credentials).await,
            Ok(credentials) => self.mount(&credentials).await,
        };
        outcome.map_err(|source| ScsiVolumeError::Failed {
            step,
            spec_name: self.volume.spec_name.clone(),
            source,
        })
    }

    /// Detaches a volume that is mounted with another SELinux label for no other pod; it is
    /// attached again afterwards.
    async fn detach_other(&self) -> Result<(), ScsiVolumeError> {
        if !self.has_selinux || self.volume.is_block {
            return Ok(());
        }
        let failed = |source| ScsiVolumeError::Failed {
            step: "MountVolume.MountDevice",
            spec_name: self.volume.spec_name.clone(),
            source,
        };
        match self.mount_state().await.map_err(failed)? {
            MountState::Fits => Ok(()),
            MountState::InUse => Err(SelinuxError::Mounted(self.volume.unique_name.clone()).into()),
            MountState::Stale => {
                let (path, is_iscsi) = (self.global(), self.volume.is_iscsi());
                let left = GlobalVolume { path, is_block: false, is_iscsi };
                self.scsi.detach(&left).await.map_err(failed)
            }
        }
    }

    /// Compares the label of the volume with those of what is mounted.
    async fn mount_state(&self) -> Result<MountState, ScsiError> {
        let (root, own, global) = (self.scsi.root.clone(), self.pod_dir.clone(), self.global());
        let needed = self.labels.mount.clone();
        let state = base::tasks::blocking(move || -> io::Result<MountState> {
            let others = record::labels_of_others(&root, &own, &global)?;
            let options = mounts::options_at(&global)?;
            let shared = options.as_deref().map(mounted_label);
            Ok(MountState::of(&needed, &others, shared))
        });
        Ok(state.await??)
    }

    /// Reads the Secret and writes the record: from here on, the volume has to be torn down.
    async fn begin(&self) -> Result<iscsi::Credentials, ScsiError> {
        let credentials = self.credentials().await?;
        let record = UseRecord::of(&self.volume, &self.labels, &self.scsi.root);
        let pod_dir = self.pod_dir.clone();
        base::tasks::blocking(move || record.save(&pod_dir)).await??;
        Ok(credentials)
    }

    /// Reads the values for CHAP (`createSecretMap`).
    async fn credentials(&self) -> Result<iscsi::Credentials, ScsiError> {
        let ScsiDisk::Iscsi(source) = &self.volume.disk else {
            return Ok(iscsi::Credentials::new());
        };
        let Some(reference) = source.secret.as_ref().filter(|_| source.needs_secret()) else {
            return Ok(iscsi::Credentials::new());
        };
        let (namespace, name) = (&reference.namespace, &reference.name);
        let found: Result<Secret, client::Error> = self.scsi.client.get(namespace, name).await;
        let secret = found.map_err(|source| ScsiError::Secret {
            namespace: namespace.clone(),
            name: name.clone(),
            source,
        })?;
        let entries = secret.data.into_iter().flatten();
        Ok(entries.map(|(k, v)| (k, String::from_utf8_lossy(&v.0).into_owned())).collect_map())
    }

    /// Attaches the disk; returns its device.
    async fn attach(&self, credentials: &iscsi::Credentials) -> Result<PathBuf, ScsiError> {
        match &self.volume.disk {
            ScsiDisk::Iscsi(source) => {
                iscsi::attach(&self.scsi, source, credentials, &self.global()).await
            }
            ScsiDisk::FibreChannel(disk) => {
                self.scsi.removing.lock().remove(&self.global());
                fibre_channel::attach(&self.scsi, disk).await
            }
        }
    }

    /// Mounts the file system at the global path, unless it is, and binds it for the pod.
    async fn mount(&self, credentials: &iscsi::Credentials) -> StepOutcome<VolumePath> {
        const WAIT: &str = "MountVolume.WaitForAttach";
        const STAGE: &str = "MountVolume.MountDevice";
        let path = self.global();
        let mounted = base::tasks::blocking(move || mounts::is_mount_point(&path)).await;
        let is_mounted = match mounted.map_err(ScsiError::from) {
            Ok(Ok(is_mounted)) => is_mounted,
            Ok(Err(error)) => return (STAGE, Err(error.into())),
            Err(error) => return (STAGE, Err(error)),
        };
        if !is_mounted {
            let device = match self.attach(credentials).await {
                Ok(device) => device,
                Err(error) => return (WAIT, Err(error)),
            };
            if let Err(error) = self.mount_device(&device).await {
                return (STAGE, Err(error));
            }
        }
        ("MountVolume.SetUp", self.bind().await)
    }

    async fn mount_device(&self, device: &Path) -> Result<(), ScsiError> {
        global::mount(&self.scsi, (&self.volume, &self.labels.mount), device).await
    }

    /// Binds the global mount for the pod, and gives its files to the group of the pod.
    async fn bind(&self) -> Result<VolumePath, ScsiError> {
        let (global, path) = (self.global(), self.volume.pod_path(&self.pod_dir));
        let (group, target) = (self.group.filter(|_| !self.volume.read_only), path.clone());
        let bound = base::tasks::blocking(move || -> io::Result<()> {
            if mounts::is_mount_point(&target)? {
                return Ok(());
            }
            create_dir(&target)?;
            if let Err(error) = mounts::bind(&global, &target) {
                let _ = std::fs::remove_dir(&target);
                return Err(error);
            }
            give_to_group(&target, group);
            Ok(())
        });
        bound.await??;
        Ok(self.volume_path(path))
    }

    /// Attaches the disk and maps its device for the pod.
    async fn map(&self, credentials: &iscsi::Credentials) -> StepOutcome<VolumePath> {
        let device = match self.attach(credentials).await {
            Ok(device) => device,
            Err(error) => return ("MapVolume.WaitForAttach", Err(error)),
        };
        ("MapVolume.MapBlockVolume", self.map_device(device).await)
    }

    async fn map_device(&self, device: PathBuf) -> Result<VolumePath, ScsiError> {
        let (global, pod_dir) = (self.global(), self.pod_dir.clone());
        let link = self.volume.pod_path(&self.pod_dir);
        let mapped = base::tasks::blocking(move || -> Result<PathBuf, ScsiError> {
            let path = device.canonicalize()?;
            if !device::is_block_device(&path)? {
                return Err(ScsiError::NotBlockDevice(device));
            }
            device_map::map(&global, &pod_dir, &link, &path)?;
            Ok(path)
        });
        Ok(self.volume_path(mapped.await??))
    }
}

/// Changes the group of the files. As in upstream, the pod starts also if that fails.
fn give_to_group(path: &Path, group: Option<(u32, bool)>) {
    let Some((group, on_mismatch)) = group else { return };
    if on_mismatch && directory::is_of_group(path, group) {
        return;
    }
    if let Err(error) = directory::give_to_group(path, group) {
        tracing::warn!(path = %path.display(), %error, "node: cannot change files to fsGroup");
    }
}
