//! SCSI disks, the volumes of the plugins `kubernetes.io/iscsi` and `kubernetes.io/fc`: their nodes
//! reach the disks themselves, so that an attachment is no more than a decision of this controller.
//! It keeps the volume of one node away from others, and `status.volumesAttached` of the node is
//! what a later process reads.

use std::collections::BTreeSet;

use parking_lot::Mutex;
use serde::Deserialize;

use super::names::{NodeName, VolumeName};
use super::volume_attachment::Attachment;

/// The plugins.
pub(super) const ISCSI: &str = "kubernetes.io/iscsi";
pub(super) const FC: &str = "kubernetes.io/fc";

/// The fields of an iSCSI volume that name its disk.
#[derive(Debug, Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct IscsiSource {
    target_portal: String,
    iqn: String,
    lun: i64,
}

/// The fields of a Fibre Channel volume that name its disk.
#[derive(Debug, Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct FcSource {
    #[serde(rename = "targetWWNs")]
    target_wwns: Option<Vec<String>>,
    lun: Option<i64>,
    wwids: Option<Vec<String>>,
}

/// The name of a disk (`GetUniqueVolumeNameFromSpec`); `None` if the volume is of another plugin or
/// names no disk.
pub(super) fn volume_name(
    iscsi: Option<&IscsiSource>,
    fc: Option<&FcSource>,
) -> Option<VolumeName> {
    if let Some(IscsiSource { target_portal, iqn, lun }) = iscsi {
        return Some(VolumeName::disk(ISCSI, &format!("{target_portal}:{iqn}:{lun}")));
    }
    let FcSource { target_wwns, lun, wwids } = fc?;
    let list = |names: &Option<Vec<String>>| {
        let names = names.as_deref().unwrap_or_default();
        (!names.is_empty()).then(|| names.join(" "))
    };
    let name = match (list(target_wwns), lun) {
        (Some(wwns), Some(lun)) => format!("[{wwns}]:{lun}"),
        _ => format!("[{}]", list(wwids)?),
    };
    Some(VolumeName::disk(FC, &name))
}

/// The attachments that this process has decided.
#[derive(Debug, Default)]
pub(super) struct DiskAttachments(Mutex<BTreeSet<(VolumeName, NodeName)>>);

impl DiskAttachments {
    /// Attaches a volume to a node, which needs nothing else.
    pub(super) fn attach(&self, volume: &VolumeName, node: &NodeName) {
        self.0.lock().insert((volume.clone(), NodeName::clone(node)));
    }

    /// Detaches a volume from a node.
    pub(super) fn detach(&self, volume: &VolumeName, node: &NodeName) {
        self.0.lock().remove(&(volume.clone(), NodeName::clone(node)));
    }

    /// The attachment of a volume to a node. A node that lists it was served by an earlier process.
    pub(super) fn get(
        &self,
        volume: &VolumeName,
        node: &NodeName,
        is_listed: bool,
    ) -> Option<Attachment> {
        let key = (volume.clone(), NodeName::clone(node));
        let is_attached = is_listed || self.0.lock().contains(&key);
        is_attached.then(|| Attachment { is_attached, ..Attachment::default() })
    }

    /// The nodes to which a volume is attached.
    pub(super) fn nodes(&self, volume: &VolumeName) -> Vec<NodeName> {
        let attached = self.0.lock();
        let nodes = attached.iter().filter(|(name, _)| name == volume);
        nodes.map(|(_, node)| NodeName::clone(node)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The texts of `GetVolumeName` of both plugins.
    #[test]
    fn disks_are_named_by_their_plugins() {
        let of = |value: serde_json::Value| {
            let iscsi = value.get("iscsi").map(|v| serde_json::from_value(v.clone()).unwrap());
            let fc = value.get("fc").map(|v| serde_json::from_value(v.clone()).unwrap());
            let name = volume_name(iscsi.as_ref(), fc.as_ref());
            name.map(|name| name.as_str().to_owned())
        };
        let iscsi =
            json!({"iscsi": {"targetPortal": "10.0.0.1", "iqn": "iqn.2014-12.a:d", "lun": 2}});
        assert_eq!(of(iscsi).as_deref(), Some("kubernetes.io/iscsi/10.0.0.1:iqn.2014-12.a:d:2"));
        let wwns = json!({"fc": {"targetWWNs": ["500a", "500b"], "lun": 0}});
        assert_eq!(of(wwns).as_deref(), Some("kubernetes.io/fc/[500a 500b]:0"));
        let wwids = json!({"fc": {"wwids": ["3600 a", "b"]}});
        assert_eq!(of(wwids).as_deref(), Some("kubernetes.io/fc/[3600 a b]"));
        assert_eq!(of(json!({"fc": {"targetWWNs": ["500a"]}})), None);
        assert_eq!(of(json!({"nfs": {"server": "s", "path": "/"}})), None);
    }

    #[test]
    fn an_attachment_lasts_until_it_is_undone_and_no_list_has_it() {
        let attachments = DiskAttachments::default();
        let (volume, node) = (VolumeName::disk(ISCSI, "p:iqn.x:0"), NodeName::from("n"));
        assert_eq!(attachments.get(&volume, &node, false), None);
        assert!(attachments.get(&volume, &node, true).is_some_and(|a| a.is_confirmed()));
        attachments.attach(&volume, &node);
        assert!(attachments.get(&volume, &node, false).is_some_and(|a| a.is_confirmed()));
        assert_eq!(attachments.nodes(&volume), [NodeName::clone(&node)]);
        attachments.detach(&volume, &node);
        assert_eq!(attachments.get(&volume, &node, false), None);
    }
}
