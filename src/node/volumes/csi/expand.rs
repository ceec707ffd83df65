//! Has the driver enlarge a published volume on this node (`expander.go` and `node_expander.go` of
//! upstream).

use std::sync::Arc;

use api::Quantity;
use api::k8s::api::core::v1::PersistentVolumeClaim;
use client::Patch;
use client::events::EventType;
use proto::csi::v1 as csi;
use serde_json::Value;
use tokio::sync::watch;
use tonic::Code;

use super::resize::{self, Resize};
use super::set_up::detached;
use crate::context::Node;
use crate::csi::driver_client::{Access, RpcError, access_mode, map, volume_capability};
use crate::csi::error::{CsiError, CsiVolumeError};
use crate::csi::source::CsiVolume;
use crate::csi::{Csi, VolumeSize, paths};
use crate::events;
use crate::pods::handle::DesiredPod;
use crate::pods::pod::Pod;
use crate::volumes::directory::VolumePath;

/// The claim of a volume, with the size of its PersistentVolume.
#[derive(Debug, Clone)]
pub(in crate::volumes) struct VolumeClaim {
    pub(in crate::volumes) object: PersistentVolumeClaim,
    pub(in crate::volumes) volume_size: Option<Quantity>,
}

/// When a volume is enlarged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Moment {
    /// While it is set up: the pod must not start with the old size.
    SetUp,
    /// While the pod uses it.
    InUse,
}

/// Enlarges a volume if its PersistentVolume is larger than the volume on this node.
///
/// # Errors
///
/// A volume that is being set up cannot be enlarged. While it is in use, an event says so.
pub(super) async fn expand_if_larger(
    node: &Node,
    pod: &Pod,
    volume: &CsiVolume,
    claim: &VolumeClaim,
    (path, moment): (&VolumePath, Moment),
    desired: &watch::Receiver<DesiredPod>,
) -> Result<(), CsiVolumeError> {
    let known = node.csi.known_size(volume, claim);
    let (Some(size), Some(wanted)) = (known.size, claim.volume_size) else { return Ok(()) };
    if known.is_blocked || size >= wanted {
        return Ok(());
    }
    if volume.read_only {
        if moment == Moment::SetUp {
            let message = format!(
                "MountVolume.NodeExpandVolume failed for volume {:?} requested read-only file \
                 system",
                volume.spec_name
            );
            let (kind, reason) = (EventType::Warning, events::FILE_SYSTEM_RESIZE_FAILED);
            node.api.events.pod_event(pod, kind, reason, message.clone());
            node.api.events.claim_event(&claim.object, kind, reason, message);
        }
        return Ok(());
    }
    let outcome = match resize::decide(&claim.object, wanted, known.has_failed) {
        Resize::Wait => return Ok(()),
        Resize::Done => {
            node.csi.set_size(volume, wanted);
            return Ok(());
        }
        Resize::Expand { size, updates_claim, has_recovery, is_infeasible_on_failure } => {
            let operation = Expansion {
                csi: Arc::clone(&node.csi),
                pod_uid: Arc::clone(&pod.uid),
                volume: volume.clone(),
                claim: claim.object.clone(),
                path: path.path.to_string_lossy().into_owned(),
                size,
                updates_claim,
                has_recovery,
                is_infeasible_on_failure,
            };
            let run = operation.run();
            detached(node, &volume.spec_name, desired.clone(), "csi-volume-resize", run).await?
        }
    };
    report(node, pod, volume, claim, moment, outcome)
}

/// Records the events of an expansion.
fn report(
    node: &Node,
    pod: &Pod,
    volume: &CsiVolume,
    claim: &VolumeClaim,
    moment: Moment,
    outcome: Result<bool, CsiError>,
) -> Result<(), CsiVolumeError> {
    let spec_name = volume.spec_name.clone();
    match (outcome, moment) {
        (Ok(false), _) => Ok(()),
        (Ok(true), _) => {
            let message = format!(
                "MountVolume.NodeExpandVolume succeeded for volume {spec_name:?} {}",
                node.identity.config.node_name
            );
            let (kind, reason) = (EventType::Normal, events::FILE_SYSTEM_RESIZE_SUCCESS);
            node.api.events.pod_event(pod, kind, reason, message.clone());
            node.api.events.claim_event(&claim.object, kind, reason, message);
            Ok(())
        }
        (Err(source), Moment::SetUp) => {
            let step = if volume.is_block {
                "MapVolume.MarkVolumeAsMounted failed while expanding volume"
            } else {
                "MountVolume.Setup failed while expanding volume"
            };
            Err(CsiVolumeError::Expansion { step, spec_name, source })
        }
        (Err(source), Moment::InUse) => {
            let step = "NodeExpandVolume.NodeExpandVolume";
            let error = CsiVolumeError::Failed { step, spec_name, source };
            let (kind, reason) = (EventType::Warning, events::VOLUME_RESIZE_FAILED);
            node.api.events.pod_event(pod, kind, reason, error.to_string());
            Ok(())
        }
    }
}

/// An expansion of one volume.
struct Expansion {
    csi: Arc<Csi>,
    pod_uid: Arc<str>,
    volume: CsiVolume,
    claim: PersistentVolumeClaim,
    /// Where the volume is published.
    path: String,
    size: Quantity,
    updates_claim: bool,
    has_recovery: bool,
    is_infeasible_on_failure: bool,
}

impl Expansion {
    /// Enlarges the volume; returns whether the driver did so.
    async fn run(mut self) -> Result<bool, CsiError> {
        let csi = Arc::clone(&self.csi);
        let _pod = csi.lock_pod(&self.pod_uid).await;
        let _volume = csi.locks.lock(self.volume.unique_name()).await;
        if self.has_recovery && self.updates_claim {
            let patch = resize::in_progress(&self.claim);
            self.claim = self.patch(&patch).await?;
        }
        match self.call().await {
            Ok(()) => {
                if self.updates_claim {
                    let patch = resize::finished(&self.claim, &self.size.to_string());
                    self.patch(&patch).await?;
                }
                self.csi.set_size(&self.volume, self.size);
                Ok(true)
            }
            Err(error) => self.on_failure(error).await,
        }
    }

    async fn patch(&self, patch: &Value) -> Result<PersistentVolumeClaim, CsiError> {
        let meta = &self.claim.metadata;
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        let name = meta.name.as_deref().unwrap_or_default();
        let patched = self.csi.client.patch(namespace, name, "status", &Patch::Merge(patch)).await;
        patched.map_err(|source| CsiError::PatchClaim { name: name.to_owned(), source })
    }

    /// Asks the driver to enlarge the volume.
    async fn call(&self) -> Result<(), CsiError> {
        let volume = &self.volume;
        let client = self.csi.drivers.client(&volume.driver)?.about(volume.is_migrated);
        let capabilities = client.capabilities().await?;
        if !capabilities.expand() {
            return Err(CsiError::CannotExpand(volume.driver.clone()));
        }
        let doing = "expander.NodeExpand failed to get NodeExpandSecretRef";
        let secrets = self.csi.secret(volume.expand_secret.as_ref(), doing).await?;
        let root = &self.csi.root;
        let (access, staging) = if volume.is_block {
            (Access::Block, paths::BlockPaths::new(root, &volume.spec_name).staging)
        } else {
            let (fs_type, options) = (volume.fs_type.clone(), volume.mount_options.clone());
            let access = Access::Mount { fs_type, options, group: None };
            (access, paths::staging_path(root, &volume.driver, &volume.handle))
        };
        let mode = access_mode(volume.access_mode(), &capabilities);
        let request = csi::NodeExpandVolumeRequest {
            volume_id: volume.handle.clone(),
            volume_path: self.path.clone(),
            capacity_range: Some(csi::CapacityRange {
                required_bytes: self.size.value(),
                limit_bytes: 0,
            }),
            staging_target_path: staging.to_string_lossy().into_owned(),
            volume_capability: Some(volume_capability(mode, access)),
            secrets: map(&secrets),
        };
        client.expand(request).await.map_err(CsiError::Expand)
    }

    /// Records that the driver did not enlarge the volume; returns an error if it is attempted
    /// again.
    async fn on_failure(&self, error: CsiError) -> Result<bool, CsiError> {
        let is_unsupported = matches!(error, CsiError::CannotExpand(_));
        if is_unsupported && !(self.has_recovery && self.updates_claim) {
            self.csi.set_size(&self.volume, self.size);
            return Ok(false);
        }
        let code = match &error {
            CsiError::Expand(RpcError { code, .. }) => Some(*code),
            // The driver may register soon.
            CsiError::NotRegistered(_) => return Err(error),
            _ => None,
        };
        let is_blocked = code == Some(Code::FailedPrecondition);
        if self.has_recovery {
            self.csi.change_size(&self.volume, |known| known.has_failed = true);
            let is_infeasible = self.is_infeasible_on_failure
                || matches!(code, Some(Code::InvalidArgument | Code::OutOfRange | Code::NotFound));
            let now = base::clock::unix_time().as_secs();
            let now = jiff::Timestamp::from_second(i64::try_from(now).unwrap_or_default());
            let now = now.map(|t| t.to_string()).unwrap_or_default();
            let patch = resize::failed(&self.claim, &error.to_string(), is_infeasible, &now);
            if let Err(error) = self.patch(&patch).await {
                tracing::debug!(%error, "cannot write a failed expansion into the claim");
            }
        }
        if is_blocked {
            self.csi.change_size(&self.volume, |known| known.is_blocked = true);
            return Ok(false);
        }
        Err(error)
    }
}

impl Csi {
    /// Returns what is known about the size of a volume; a volume that is new to this process has
    /// the size that its claim shows.
    fn known_size(&self, volume: &CsiVolume, claim: &VolumeClaim) -> VolumeSize {
        let mut sizes = self.sizes.lock();
        let known = sizes.entry(volume.unique_name()).or_default();
        if known.size.is_none() {
            known.size = resize::claim_size(&claim.object);
        }
        *known
    }

    fn set_size(&self, volume: &CsiVolume, size: Quantity) {
        self.change_size(volume, |known| {
            *known = VolumeSize { size: Some(size), ..VolumeSize::default() };
        });
    }

    fn change_size(&self, volume: &CsiVolume, change: impl FnOnce(&mut VolumeSize)) {
        change(self.sizes.lock().entry(volume.unique_name()).or_default());
    }
}
