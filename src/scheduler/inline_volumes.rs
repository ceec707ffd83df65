//! Volumes of in-tree plugins that pods contain themselves, without a claim.

use api::csi_translation::{self, Plugin};
use api::k8s::api::core::v1::Volume;

/// A volume that a CSI driver provides, by its translation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InlineVolume {
    pub(crate) driver: String,
    pub(crate) handle: String,
}

impl InlineVolume {
    /// The volume, if it counts towards the limits of nodes. One that cannot be translated counts
    /// nowhere; its node reports why.
    pub(crate) fn of(volume: &Volume, namespace: &str) -> Option<Self> {
        Plugin::of_inline(volume).filter(|plugin| plugin.is_scheduled())?;
        let source = csi_translation::inline(volume, namespace).ok()??.spec?.csi?;
        Some(Self { driver: source.driver, handle: source.volume_handle })
    }
}

/// A disk that nodes do not share, or only to read (`isVolumeConflict`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Disk {
    kind: DiskKind,
    id: String,
    /// Several pods may read it.
    is_shared: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DiskKind {
    Gce,
    Aws,
    /// Named by its target, whatever the number of the disk.
    Iscsi,
}

impl Disk {
    /// The disk of a volume; `None` for other volumes.
    pub(crate) fn of(volume: &Volume) -> Option<Self> {
        if let Some(disk) = &volume.gce_persistent_disk {
            let is_shared = disk.read_only == Some(true);
            return Some(Self { kind: DiskKind::Gce, id: disk.pd_name.clone(), is_shared });
        }
        if let Some(disk) = &volume.iscsi {
            let is_shared = disk.read_only == Some(true);
            return Some(Self { kind: DiskKind::Iscsi, id: disk.iqn.clone(), is_shared });
        }
        let disk = volume.aws_elastic_block_store.as_ref()?;
        Some(Self { kind: DiskKind::Aws, id: disk.volume_id.clone(), is_shared: false })
    }

    /// Whether two pods cannot use their disks on one node.
    pub(crate) fn conflicts_with(&self, other: &Self) -> bool {
        let is_same = self.kind == other.kind && self.id == other.id;
        is_same && !(self.is_shared && other.is_shared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn volume(source: Value) -> Volume {
        let mut source = source;
        source["name"] = "v".into();
        serde_json::from_value(source).unwrap()
    }

    #[test]
    fn only_volumes_of_plugins_that_the_scheduler_follows_count() {
        let of = |source| InlineVolume::of(&volume(source), "n").map(|v| (v.driver, v.handle));
        let aws = of(json!({"awsElasticBlockStore": {"volumeID": "vol-1"}}));
        assert_eq!(aws, Some(("ebs.csi.aws.com".into(), "vol-1".into())));
        assert_eq!(of(json!({"vsphereVolume": {"volumePath": "p"}})), None);
        assert_eq!(of(json!({"emptyDir": {}})), None);
    }

    /// The cases of upstream's `TestGCEDiskConflicts`, `TestAWSDiskConflicts` and
    /// `TestISCSIDiskConflicts`.
    #[test]
    fn a_disk_is_used_once_unless_all_read() {
        let gce = |name: &str, read_only: bool| {
            let source = json!({"pdName": name, "readOnly": read_only});
            Disk::of(&volume(json!({"gcePersistentDisk": source}))).unwrap()
        };
        let aws = |id: &str| {
            Disk::of(&volume(json!({"awsElasticBlockStore": {"volumeID": id, "readOnly": true}})))
                .unwrap()
        };
        assert!(gce("a", false).conflicts_with(&gce("a", true)));
        assert!(!gce("a", true).conflicts_with(&gce("a", true)));
        assert!(!gce("a", false).conflicts_with(&gce("b", false)));
        assert!(aws("a").conflicts_with(&aws("a")) && !aws("a").conflicts_with(&aws("b")));
        assert!(!aws("a").conflicts_with(&gce("a", false)));
        let iscsi = |iqn: &str, read_only: bool| {
            let source = json!({"targetPortal": "p", "iqn": iqn, "lun": 0, "readOnly": read_only});
            Disk::of(&volume(json!({"iscsi": source}))).unwrap()
        };
        assert!(iscsi("a", false).conflicts_with(&iscsi("a", true)));
        assert!(!iscsi("a", true).conflicts_with(&iscsi("a", true)));
        assert!(!iscsi("a", false).conflicts_with(&iscsi("b", false)));
    }
}
