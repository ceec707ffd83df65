//! Waits until the attach/detach controller has attached a volume to this node.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::k8s::api::core::v1::Node;
use api::k8s::api::storage::v1::VolumeAttachment;

use super::error::{CsiError, CsiVolumeError};
use super::source::CsiVolume;
use super::{Csi, paths};

/// Upstream's texts (`GenerateVerifyControllerAttachedVolumeFunc`).
const NOT_REPORTED: &str =
    "Volume has not been added to the list of VolumesInUse in the node's volume status";
const NOT_ATTACHED: &str = "Volume not attached according to node status";

/// Returns the names of the volumes that are attached to a node.
pub(crate) fn attached(node: &Node) -> impl Iterator<Item = &str> {
    let volumes = node.status.as_ref().and_then(|s| s.volumes_attached.as_ref());
    volumes.into_iter().flatten().map(|volume| volume.name.as_str())
}

/// Checks a VolumeAttachment (`verifyAttachmentStatus`), and returns what the driver's attacher
/// says about the volume.
fn check(object: VolumeAttachment, handle: &str) -> Result<BTreeMap<String, String>, CsiError> {
    if object.metadata.deletion_timestamp.is_some() {
        return Err(CsiError::AttachmentDeleted);
    }
    let status = object.status.unwrap_or_default();
    if status.attached {
        return Ok(status.attachment_metadata.unwrap_or_default());
    }
    if let Some(error) = status.attach_error {
        return Err(CsiError::AttachFailed(error.message.unwrap_or_default()));
    }
    let name = object.metadata.name.unwrap_or_default();
    Err(CsiError::NotAttached { handle: handle.to_owned(), name })
}

impl Csi {
    /// Marks a volume as in use by a pod, and returns what the driver's attacher says about it,
    /// once it is attached. The node must list the volume as in use first, so that it is not
    /// detached meanwhile.
    pub(crate) async fn attachment(
        &self,
        pod_uid: &Arc<str>,
        volume: &CsiVolume,
    ) -> Result<BTreeMap<String, String>, CsiVolumeError> {
        self.hold(pod_uid, volume);
        self.check_attached(&volume.unique_name()).map_err(|what| {
            let spec_name = volume.spec_name.clone();
            CsiVolumeError::Waiting { what, spec_name }
        })?;
        self.attachment_metadata(volume).await.map_err(|source| {
            let step = if volume.is_block {
                "MapVolume.WaitForAttach"
            } else {
                "MountVolume.WaitForAttach"
            };
            CsiVolumeError::Failed { step, spec_name: volume.spec_name.clone(), source }
        })
    }

    /// Checks that the status of the Node lists a volume as in use and as attached
    /// (`VerifyControllerAttachedVolume`). `name` is its unique name, of any plugin.
    ///
    /// # Errors
    ///
    /// What the volume waits for, in upstream's words.
    pub(crate) fn check_attached(&self, name: &str) -> Result<(), &'static str> {
        if !self.in_use.is_reported(name) {
            return Err(NOT_REPORTED);
        }
        let node = self.own_node.get("", &self.node_name);
        if node.as_ref().is_some_and(|node| attached(node).any(|found| found == name)) {
            return Ok(());
        }
        Err(NOT_ATTACHED)
    }

    /// Marks a volume as in use by a pod.
    pub(crate) fn hold(&self, pod_uid: &Arc<str>, volume: &CsiVolume) {
        self.hold_name(pod_uid, &volume.unique_name());
    }

    /// Marks the volume with this unique name, of any plugin, as in use by a pod.
    pub(crate) fn hold_name(&self, pod_uid: &Arc<str>, name: &str) {
        if self.in_use.hold(name, pod_uid) {
            self.status_changed.notify_one();
        }
    }

    /// Ends all uses of volumes by a pod.
    pub(crate) fn release(&self, pod_uid: &str) {
        if self.in_use.release_pod(pod_uid) {
            self.status_changed.notify_one();
        }
    }

    async fn attachment_metadata(
        &self,
        volume: &CsiVolume,
    ) -> Result<BTreeMap<String, String>, CsiError> {
        let name = paths::attachment_name(&volume.handle, &volume.driver, &self.node_name);
        let found = self.client.get::<VolumeAttachment>("", &name).await;
        let handle = &volume.handle;
        let object = found.map_err(|source| CsiError::GetAttachment {
            handle: handle.clone(),
            name,
            source,
        })?;
        check(object, handle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// Cases of `TestAttacherWaitForAttach` and `TestAttacherWaitForVolumeAttachment`.
    #[test]
    fn a_volume_is_attached_by_the_word_of_its_attacher() {
        let text = |metadata: Value, status: Value| {
            let mut object = json!({"metadata": {"name": "csi-1"}, "spec": {"attacher": "d",
                "nodeName": "n", "source": {}}, "status": status});
            object["metadata"]["deletionTimestamp"] = metadata;
            let object = serde_json::from_value(object).unwrap();
            check(object, "h").map_err(|e| e.to_string())
        };
        let attached = json!({"attached": true, "attachmentMetadata": {"a": "b"}});
        assert_eq!(
            text(Value::Null, attached.clone()),
            Ok([("a".to_owned(), "b".to_owned())].into())
        );
        assert_eq!(
            text(json!("2026-01-01T00:00:00Z"), attached),
            Err("volume attachment is being deleted".to_owned())
        );
        let failed = json!({"attached": false, "attachError": {"message": "no such disk"}});
        assert_eq!(text(Value::Null, failed), Err("no such disk".to_owned()));
        assert_eq!(
            text(Value::Null, json!({"attached": false})),
            Err("volume h is not attached for volume attachment csi-1".to_owned())
        );
    }

    #[test]
    fn the_status_of_the_node_lists_attached_volumes() {
        let node: Node = serde_json::from_value(json!({"metadata": {}, "status":
            {"volumesAttached": [{"name": "kubernetes.io/csi/d^h", "devicePath": ""}]}}))
        .unwrap();
        assert_eq!(attached(&node).collect::<Vec<_>>(), ["kubernetes.io/csi/d^h"]);
        assert_eq!(attached(&Node::default()).count(), 0);
    }
}
