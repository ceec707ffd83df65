//! VolumeAttachments: the requests to external-attacher, and what it answers in their status.

use api::k8s::api::storage::v1::{
    VolumeAttachment, VolumeAttachmentSource, VolumeAttachmentSpec, VolumeError,
};
use api::k8s::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::desired::AttachSource;
use super::names::VolumeName;

/// What a VolumeAttachment says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Attachment {
    /// `status.attached`.
    pub(super) is_attached: bool,
    /// Its deletion was requested: the driver detaches the volume.
    pub(super) is_deleting: bool,
    /// The message of `status.attachError`.
    pub(super) attach_error: Option<String>,
    /// The message of `status.detachError`.
    pub(super) detach_error: Option<String>,
}

impl Attachment {
    /// Reads the object.
    pub(super) fn of(attachment: VolumeAttachment) -> Self {
        let status = attachment.status.unwrap_or_default();
        let message = |error: VolumeError| error.message.unwrap_or_default();
        Self {
            is_attached: status.attached,
            is_deleting: attachment.metadata.deletion_timestamp.is_some(),
            attach_error: status.attach_error.map(message),
            detach_error: status.detach_error.map(message),
        }
    }

    /// The volume is attached and stays so: the node may mount it, and it blocks other nodes.
    /// One that is being detached is uncertain, as in upstream.
    pub(super) fn is_confirmed(&self) -> bool {
        self.is_attached && !self.is_deleting
    }
}

/// The result of waiting for external-attacher.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// There is no answer yet.
    Waiting,
    /// It is done.
    Done,
    /// It failed with this text.
    Failed(String),
}

/// The progress of an attach operation (`verifyAttachmentStatus`).
pub(super) fn attach_progress(attachment: Option<&Attachment>) -> Progress {
    match attachment {
        Some(a) if a.is_deleting => Progress::Failed("volume attachment is being deleted".into()),
        Some(a) if a.is_attached => Progress::Done,
        Some(Attachment { attach_error: Some(message), .. }) => Progress::Failed(message.clone()),
        // The cache may not have the new object yet.
        Some(_) | None => Progress::Waiting,
    }
}

/// The progress of a detach operation (`verifyDetachmentStatus`).
pub(super) fn detach_progress(attachment: Option<&Attachment>) -> Progress {
    match attachment {
        None => Progress::Done,
        Some(Attachment { detach_error: Some(message), .. }) => Progress::Failed(message.clone()),
        Some(_) => Progress::Waiting,
    }
}

/// Why a volume is not attached; the texts are upstream's, which puts them into events.
#[derive(Debug, thiserror::Error)]
pub(super) enum AttachError {
    /// The API server refused the VolumeAttachment.
    #[error("kubernetes.io/csi: attacher.Attach failed: {0}")]
    Create(#[from] client::Error),
    /// external-attacher reported it.
    #[error("{0}")]
    Attacher(String),
    /// external-attacher did not answer within [`super::operations::TIMEOUT`].
    #[error(
        "timed out waiting for external-attacher of {driver} CSI driver to attach volume {handle}"
    )]
    TimedOut {
        /// Name of the driver.
        driver: String,
        /// Handle of the volume.
        handle: String,
    },
}

/// Why a volume is not detached; the texts are those in upstream's log.
#[derive(Debug, thiserror::Error)]
pub(super) enum DetachError {
    /// The node cannot be read, so that it is unknown whether it mounts the volume.
    #[error("DetachVolume failed fetching node from API server: {0}")]
    Node(client::Error),
    /// The kubelet mounts the volume.
    #[error("volume is still in use by node, according to Node status")]
    InUse,
    /// The API server refused the deletion of the VolumeAttachment.
    #[error(
        "kubernetes.io/csi: detacher.Detach failed to delete VolumeAttachment [{name}]: {source}"
    )]
    Delete {
        /// Name of the VolumeAttachment.
        name: String,
        /// The refusal.
        source: client::Error,
    },
    /// external-attacher reported it.
    #[error("{0}")]
    Attacher(String),
    /// external-attacher did not answer within [`super::operations::TIMEOUT`]. Upstream does not
    /// know the driver at this point.
    #[error("timed out waiting for external-attacher of unknown CSI driver to detach volume {0}")]
    TimedOut(String),
}

/// The object that asks external-attacher to attach a volume to a node.
pub(super) fn volume_attachment(
    volume: &VolumeName,
    source: AttachSource,
    node: &str,
) -> VolumeAttachment {
    let (persistent_volume_name, inline_volume_spec) = match source {
        AttachSource::PersistentVolume(name) => (Some(name), None),
        AttachSource::Inline { spec, .. } => (None, spec.map(|spec| *spec)),
    };
    VolumeAttachment {
        metadata: ObjectMeta { name: Some(volume.attachment(node)), ..ObjectMeta::default() },
        spec: VolumeAttachmentSpec {
            attacher: volume.driver().to_owned(),
            node_name: node.to_owned(),
            source: VolumeAttachmentSource { persistent_volume_name, inline_volume_spec },
        },
        status: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::Typed;
    use serde_json::json;

    fn attachment(deleting: bool, status: serde_json::Value) -> Attachment {
        let mut value = json!({"metadata": {"name": "csi-x"}, "status": status,
            "spec": {"attacher": "d", "nodeName": "n", "source": {}}});
        if deleting {
            value["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        }
        Attachment::of(VolumeAttachment::from_value(&value).unwrap())
    }

    #[test]
    fn the_status_is_read_in_upstreams_order() {
        let error = |text: &str| json!({"message": text, "time": "2026-01-01T00:00:00Z"});
        let failed = |text: &str| Progress::Failed(text.into());
        for (deleting, status, want) in [
            (false, json!({"attached": false}), Progress::Waiting),
            (false, json!({"attached": true}), Progress::Done),
            (false, json!({"attached": true, "attachError": error("old")}), Progress::Done),
            (false, json!({"attached": false, "attachError": error("no")}), failed("no")),
            (true, json!({"attached": true}), failed("volume attachment is being deleted")),
        ] {
            let attachment = attachment(deleting, status.clone());
            assert_eq!(attach_progress(Some(&attachment)), want, "{deleting} {status}");
            assert_eq!(attachment.is_confirmed(), want == Progress::Done);
        }
        assert_eq!(attach_progress(None), Progress::Waiting);
        let stuck = attachment(true, json!({"attached": true, "detachError": error("busy")}));
        assert_eq!(detach_progress(Some(&stuck)), failed("busy"));
        let going = attachment(true, json!({"attached": true}));
        assert_eq!(detach_progress(Some(&going)), Progress::Waiting);
        assert_eq!(detach_progress(None), Progress::Done);
    }

    #[test]
    fn the_object_names_driver_node_and_persistent_volume_alone() {
        let source = AttachSource::PersistentVolume("pv".into());
        let object = volume_attachment(&VolumeName::new("driver02", "vol02"), source, "node02");
        let name = "csi-70fa8b122628ff5436f098759b79c93487b3894e2bff5637c618405a059b0b47";
        let value: serde_json::Value = serde_json::from_slice(&object.to_json().unwrap()).unwrap();
        assert_eq!(value["metadata"], json!({"name": name}));
        assert_eq!(
            value["spec"],
            json!({"attacher": "driver02", "nodeName": "node02",
                "source": {"persistentVolumeName": "pv"}})
        );
        assert!(value["status"].is_null());
    }

    #[test]
    fn errors_have_upstreams_texts() {
        let timed_out = AttachError::TimedOut { driver: "d".into(), handle: "h".into() };
        assert_eq!(
            timed_out.to_string(),
            "timed out waiting for external-attacher of d CSI driver to attach volume h"
        );
        assert_eq!(
            DetachError::TimedOut("h".into()).to_string(),
            "timed out waiting for external-attacher of unknown CSI driver to detach volume h"
        );
    }
}
