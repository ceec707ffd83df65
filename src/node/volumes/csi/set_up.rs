//! Sets up a CSI volume for a pod: waits for its attachment, then stages and publishes it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::k8s::api::core::v1::Secret;
use api::k8s::api::storage::v1::CSIDriverSpec;
use base::Kind;
use client::events::EventType;
use serde_json::json;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::expand::{Moment, VolumeClaim, expand_if_larger};
use super::{block, label, mount};
use crate::context::Node;
use crate::csi::error::{CsiError, CsiVolumeError, Doing};
use crate::csi::record::{Progress, VolumeRecord};
use crate::csi::source::{self, CsiVolume, SecretName};
use crate::csi::{Csi, paths};
use crate::events;
use crate::pods::handle::{DesiredPod, pod_must_end};
use crate::pods::pod::Pod;
use crate::volumes::directory::VolumePath;
use crate::volumes::mounts;
use crate::volumes::selinux::labels::VolumeLabels;

/// How often a volume is published again if its driver requires it. Upstream does so with each
/// sync of a pod, which is as often.
const REPUBLISH_INTERVAL: Duration = Duration::from_secs(60);
/// How often the size of a volume is compared with that of its PersistentVolume, which a node may
/// read and not watch. Upstream does so with each sync of a pod, which is as often.
const RESIZE_INTERVAL: Duration = Duration::from_secs(60);
/// Lifetime of a token whose CSIDriver names none (the default of TokenRequests).
const TOKEN_SECONDS: i64 = 3600;

/// Everything that an operation on a volume needs; it goes on if its pod is deleted meanwhile.
#[derive(Debug)]
pub(super) struct VolumeOperation {
    pub(super) csi: Arc<Csi>,
    pub(super) pod_dir: PathBuf,
    pub(super) pod_uid: Arc<str>,
    pub(super) volume: CsiVolume,
    /// The specification of the CSIDriver object.
    pub(super) object: Option<CSIDriverSpec>,
    /// What the attacher of the driver says about the volume.
    pub(super) publish_context: BTreeMap<String, String>,
    /// The attributes of the volume, and those of the pod if the driver needs them.
    pub(super) attributes: BTreeMap<String, String>,
    /// Tokens of the pod for the driver.
    pub(super) tokens: Option<String>,
    /// The group of the files, and whether only a mismatch changes them.
    pub(super) group: Option<(i64, bool)>,
    /// The volume is published already.
    pub(super) is_remount: bool,
    /// Its SELinux labels.
    pub(super) labels: VolumeLabels,
    /// Whether the kernel has SELinux.
    pub(super) has_selinux: bool,
}

/// Sets up a volume, and returns its path and when it has to be looked at again. `claim` is that of
/// a persistent volume.
///
/// # Errors
///
/// The volume waits for another component, or a step failed.
pub(in crate::volumes) async fn set_up(
    node: &Node,
    pod: &Pod,
    volume: CsiVolume,
    claim: Option<&VolumeClaim>,
    desired: &watch::Receiver<DesiredPod>,
) -> Result<(VolumePath, Option<Instant>), CsiVolumeError> {
    let csi = &node.csi;
    // Before the checks, so that nothing that happens after them is missed.
    csi.wait(&pod.uid, None);
    let (step, spec_name) = (last_step(&volume), volume.spec_name.clone());
    let failed = |source| CsiVolumeError::Failed { step, spec_name: spec_name.clone(), source };
    volume.check_names().map_err(failed)?;
    let pod_dir = node.identity.config.pod_dir(&pod.uid);
    let published = csi.published_path(&pod_dir, &volume).await.map_err(failed)?;
    let object = match csi.driver_object(&volume.driver).await {
        // A pod of an earlier process goes on while no server can be reached.
        Err(_) if published.is_some() => None,
        found => {
            let object = found.map_err(failed)?;
            if published.is_some() && volume.is_attachable(object.as_ref()) {
                // Also if the Node was created again meanwhile, whose status lists nothing.
                csi.hold(&pod.uid, &volume);
            }
            object
        }
    };
    let labels = if published.is_some() {
        node.selinux.labels(pod, &volume.unique_name())
    } else {
        label::admit(node, pod, &volume, object.as_ref())?
    };
    let republishes = object.as_ref().and_then(|spec| spec.requires_republish) == Some(true);
    let due = republishes.then(|| csi.republish_at(&pod_dir, &volume));
    let moment = if published.is_some() { Moment::InUse } else { Moment::SetUp };
    let path = match published {
        Some(path) if due.is_none_or(|at| at > base::clock::now()) => path,
        published => {
            let settings = (object, labels.clone());
            publish_now(node, pod, &volume, settings, published, desired).await?
        }
    };
    let path = label::with_relabel(node, path, &labels).await.map_err(failed)?;
    if let Some(claim) = claim {
        let expanded = expand_if_larger(node, pod, &volume, claim, (&path, moment), desired).await;
        if let Err(error) = expanded {
            // The pod must not start before another attempt.
            csi.set_incomplete(&pod_dir, &volume).await.map_err(failed)?;
            return Err(error);
        }
    }
    let republish_at = republishes.then(|| csi.republish_at(&pod_dir, &volume));
    let resize_at = claim.map(|_| base::clock::now() + RESIZE_INTERVAL);
    Ok((path, [republish_at, resize_at].into_iter().flatten().min()))
}

/// Publishes a volume, the first time or once more. `settings` are the specification of the
/// CSIDriver object and the labels of the volume.
async fn publish_now(
    node: &Node,
    pod: &Pod,
    volume: &CsiVolume,
    settings: (Option<CSIDriverSpec>, VolumeLabels),
    published: Option<VolumePath>,
    desired: &watch::Receiver<DesiredPod>,
) -> Result<VolumePath, CsiVolumeError> {
    let (events, is_remount) = (&node.api.events, published.is_some());
    let outcome = match prepare(node, pod, volume, settings, is_remount).await {
        Ok(operation) => {
            let run = operation.run();
            let done = detached(node, &volume.spec_name, desired.clone(), "csi-volume", run).await;
            done.and_then(|outcome| outcome)
        }
        Err(error) => Err(error),
    };
    match (outcome, published) {
        (Ok(path), published) => {
            if volume.is_block && published.is_none() {
                let root = &node.csi.root;
                for message in block::mapped_messages(root, &node.csi.pod_dir(pod), volume) {
                    let (kind, reason) = (EventType::Normal, events::SUCCESSFUL_MOUNT_VOLUME);
                    events.pod_event(pod, kind, reason, message);
                }
            }
            Ok(path)
        }
        // The pod keeps what was published before.
        (Err(error), Some(path)) => {
            if !error.is_waiting() {
                let (kind, reason) = (EventType::Warning, events::FAILED_MOUNT);
                events.pod_event(pod, kind, reason, error.to_string());
            }
            node.csi.set_published(&node.csi.pod_dir(pod), volume);
            Ok(path)
        }
        (Err(error), None) => Err(error),
    }
}

/// The step that makes a volume available to a pod.
fn last_step(volume: &CsiVolume) -> &'static str {
    if volume.is_block { "MapVolume.MapPodDevice" } else { "MountVolume.SetUp" }
}

/// Runs an operation to its end, and returns its outcome unless the pod has to end before. A driver
/// is not interrupted: what it did is undone afterwards.
pub(super) async fn detached<T: Send + 'static>(
    node: &Node,
    spec_name: &str,
    mut desired: watch::Receiver<DesiredPod>,
    name: &'static str,
    operation: impl Future<Output = T> + Send + 'static,
) -> Result<T, CsiVolumeError> {
    let (sender, receiver) = oneshot::channel();
    node.tasks.spawn(Kind::Request, name, async move {
        let _ = sender.send(operation.await);
        Ok::<(), std::convert::Infallible>(())
    });
    let what = tokio::select! {
        biased;
        outcome = receiver => match outcome {
            Ok(outcome) => return Ok(outcome),
            Err(_) => "The operation of the driver was interrupted",
        },
        () = pod_must_end(&mut desired) => "The pod ends before the driver has answered",
    };
    Err(CsiVolumeError::Waiting { what, spec_name: spec_name.to_owned() })
}

/// Collects what is needed to stage and publish a volume.
async fn prepare(
    node: &Node,
    pod: &Pod,
    volume: &CsiVolume,
    (object, labels): (Option<CSIDriverSpec>, VolumeLabels),
    is_remount: bool,
) -> Result<VolumeOperation, CsiVolumeError> {
    let (csi, spec_name) = (&node.csi, &volume.spec_name);
    let failed = |source| CsiVolumeError::Failed {
        step: last_step(volume),
        spec_name: spec_name.clone(),
        source,
    };
    volume
        .check_mode(object.as_ref())
        .doing("mounter.SetupAt failed to check volume lifecycle mode")
        .map_err(failed)?;
    let publish_context = if volume.is_attachable(object.as_ref()) {
        csi.attachment(&pod.uid, volume).await?
    } else {
        BTreeMap::new()
    };
    let security = pod.spec().security_context.as_ref();
    let on_mismatch =
        security.and_then(|s| s.fs_group_change_policy.as_deref()) == Some("OnRootMismatch");
    let mut attributes = volume.attributes.clone();
    if object.as_ref().and_then(|spec| spec.pod_info_on_mount) == Some(true) {
        attributes.extend(source::pod_attributes(pod, volume.is_inline));
    }
    let tokens = if volume.is_block {
        None
    } else {
        let doing = "mounter.SetUpAt failed to get service accoount token attributes";
        tokens(node, pod, object.as_ref()).await.doing(doing).map_err(failed)?
    };
    Ok(VolumeOperation {
        csi: Arc::clone(csi),
        pod_dir: node.identity.config.pod_dir(&pod.uid),
        pod_uid: Arc::clone(&pod.uid),
        volume: volume.clone(),
        object,
        publish_context,
        attributes,
        tokens,
        group: security.and_then(|s| s.fs_group).map(|group| (group, on_mismatch)),
        is_remount,
        labels,
        has_selinux: node.selinux.is_enabled(),
    })
}

/// Returns the tokens of a pod for a driver as JSON (`podServiceAccountTokenAttrs`); `None` if the
/// driver needs none.
async fn tokens(
    node: &Node,
    pod: &Pod,
    object: Option<&CSIDriverSpec>,
) -> Result<Option<String>, CsiError> {
    let requests = object.and_then(|spec| spec.token_requests.as_deref()).unwrap_or_default();
    if requests.is_empty() {
        return Ok(None);
    }
    let mut out = serde_json::Map::new();
    for request in requests {
        let seconds = request.expiration_seconds.unwrap_or(TOKEN_SECONDS);
        let token = node.api.tokens.get(pod, &request.audience, seconds).await;
        let token = token.map_err(CsiError::Token)?;
        let status = json!({"token": token.text, "expirationTimestamp": token.expires});
        out.insert(request.audience.clone(), status);
    }
    Ok(Some(serde_json::Value::Object(out).to_string()))
}

impl VolumeOperation {
    /// Stages and publishes the volume, unless another operation did so meanwhile.
    async fn run(self) -> Result<VolumePath, CsiVolumeError> {
        let _pod = self.csi.lock_pod(&self.pod_uid).await;
        let _volume = self.csi.locks.lock(self.volume.unique_name()).await;
        mount::unstage_other(&self).await?;
        let (step, outcome) = if self.volume.is_block {
            block::set_up(&self).await
        } else {
            mount::set_up(&self).await
        };
        outcome.map_err(|source| CsiVolumeError::Failed {
            step,
            spec_name: self.volume.spec_name.clone(),
            source,
        })
    }

    /// Returns the record of the volume with this progress.
    pub(super) fn record(&self, progress: Progress) -> VolumeRecord {
        VolumeRecord {
            spec_name: self.volume.spec_name.clone(),
            volume: self.volume.name.clone(),
            driver: self.volume.driver.clone(),
            handle: self.volume.handle.clone(),
            is_block: self.volume.is_block,
            progress,
            labels: self.labels.clone(),
        }
    }

    /// Writes the record of the volume with this progress.
    pub(super) async fn save_record(&self, progress: Progress) -> Result<(), CsiError> {
        let (record, pod_dir) = (self.record(progress), self.pod_dir.clone());
        Ok(base::tasks::blocking(move || record.save(&pod_dir)).await??)
    }

    /// Writes the record of the volume if there is none: from here on, it has to be torn down.
    pub(super) async fn begin(&self) -> Result<(), CsiError> {
        let (record, pod_dir) = (self.record(Progress::Begun), self.pod_dir.clone());
        let begun =
            base::tasks::blocking(move || match VolumeRecord::load(&pod_dir, &record.spec_name)? {
                Some(_) => Ok(()),
                None => record.save(&pod_dir),
            });
        Ok(begun.await??)
    }
}

impl Csi {
    /// Reads a Secret that the volume references; no entries without a reference. `doing` is the
    /// text of an error before the name.
    pub(super) async fn secret(
        &self,
        reference: Option<&SecretName>,
        doing: &'static str,
    ) -> Result<BTreeMap<String, String>, CsiError> {
        let Some(SecretName { namespace, name }) = reference else { return Ok(BTreeMap::new()) };
        let owned = || (namespace.clone(), name.clone());
        let found: Result<Secret, client::Error> = self.client.get(namespace, name).await;
        let secret = found.map_err(|source| {
            let (namespace, name) = owned();
            let secret = CsiError::Secret { namespace, name, source };
            let (namespace, name) = owned();
            CsiError::SecretReference { doing, namespace, name, source: Box::new(secret) }
        })?;
        let entries = secret.data.into_iter().flatten();
        Ok(entries.map(|(k, v)| (k, String::from_utf8_lossy(&v.0).into_owned())).collect())
    }

    /// Waits until no other operation works on the volumes of a pod.
    pub(super) async fn lock_pod(&self, uid: &str) -> tokio::sync::OwnedMutexGuard<()> {
        self.locks.lock(format!("pod/{uid}")).await
    }

    /// The directory of a pod.
    pub(super) fn pod_dir(&self, pod: &Pod) -> PathBuf {
        self.root.join("pods").join(&*pod.uid)
    }

    /// The path at which a volume is published.
    pub(super) fn target(&self, pod_dir: &Path, volume: &CsiVolume) -> PathBuf {
        if volume.is_block {
            paths::devices_dir(pod_dir).join(&volume.spec_name)
        } else {
            paths::mount_path(&paths::volume_dir(pod_dir, &volume.spec_name))
        }
    }

    /// Returns the path of a volume that is published completely. After a restart of the process,
    /// that is what is mounted; after a restart of the machine, nothing.
    async fn published_path(
        &self,
        pod_dir: &Path,
        volume: &CsiVolume,
    ) -> Result<Option<VolumePath>, CsiError> {
        let target = self.target(pod_dir, volume);
        let is_known = self.published.lock().contains_key(&target);
        let (directory, root, of) = (pod_dir.to_owned(), self.root.clone(), volume.clone());
        let found = base::tasks::blocking(move || -> std::io::Result<_> {
            let record = VolumeRecord::load(&directory, &of.spec_name)?;
            let is_complete = record.is_some_and(|r| {
                r.progress == Progress::Published && r.handle == of.handle && r.driver == of.driver
            });
            if !is_complete {
                return Ok(None);
            }
            if of.is_block {
                return block::mapped(&root, &directory, &of);
            }
            let is_mounted = is_known || mounts::is_mount_point(&target)?;
            Ok(is_mounted.then(|| VolumePath::mounted(target, of.read_only)))
        });
        Ok(found.await??)
    }

    /// Records that a volume was published now.
    pub(super) fn set_published(&self, pod_dir: &Path, volume: &CsiVolume) {
        let target = self.target(pod_dir, volume);
        self.published.lock().insert(target, base::clock::now());
    }

    /// Records that a published volume is not complete yet.
    async fn set_incomplete(&self, pod_dir: &Path, volume: &CsiVolume) -> Result<(), CsiError> {
        let target = self.target(pod_dir, volume);
        self.published.lock().remove(&target);
        let (directory, spec_name) = (pod_dir.to_owned(), volume.spec_name.clone());
        let changed =
            base::tasks::blocking(move || match VolumeRecord::load(&directory, &spec_name)? {
                Some(record) => {
                    VolumeRecord { progress: Progress::Publishing, ..record }.save(&directory)
                }
                None => Ok(()),
            });
        Ok(changed.await??)
    }

    /// Returns when a volume has to be published again if its driver requires it.
    fn republish_at(&self, pod_dir: &Path, volume: &CsiVolume) -> Instant {
        let target = self.target(pod_dir, volume);
        let last = self.published.lock().get(&target).copied();
        // After a restart of the process, at once.
        last.map_or_else(base::clock::now, |last| last + REPUBLISH_INTERVAL)
    }
}
