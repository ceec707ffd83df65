//! Names of attachable volumes and of the VolumeAttachments of CSI volumes, as `pkg/volume/csi` and
//! `pkg/volume/util` compose them.

use std::fmt;
use std::sync::Arc;

use api::k8s::api::core::v1::PersistentVolume;
use api::{Object, csi_translation};
use client::informer::decode;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::scsi::{self, FC, FcSource, ISCSI, IscsiSource};

/// The name of a node.
pub(super) type NodeName = Arc<str>;

/// The plugin of CSI volumes.
const PLUGIN: &str = "kubernetes.io/csi";

/// Between the driver and the handle in the name of a volume. Names of drivers are DNS names and
/// cannot contain it, so that a handle may.
const SEPARATOR: char = '^';

/// The unique name of a volume, `kubernetes.io/csi/<driver>^<volumeHandle>` or that of a disk such
/// as `kubernetes.io/iscsi/<portal>:<target>:<lun>`: the key of `status.volumesAttached` and
/// `status.volumesInUse` of nodes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct VolumeName(Arc<str>);

#[derive(Deserialize, Default)]
#[serde(default)]
struct Shape {
    spec: Spec,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    csi: Option<Source>,
    iscsi: Option<IscsiSource>,
    fc: Option<FcSource>,
    aws_elastic_block_store: Option<IgnoredAny>,
    azure_disk: Option<IgnoredAny>,
    azure_file: Option<IgnoredAny>,
    cinder: Option<IgnoredAny>,
    gce_persistent_disk: Option<IgnoredAny>,
    portworx_volume: Option<IgnoredAny>,
    vsphere_volume: Option<IgnoredAny>,
}

impl Spec {
    /// The volume is of a plugin that a CSI driver replaces.
    fn is_migrated(&self) -> bool {
        let sources = [
            &self.aws_elastic_block_store,
            &self.azure_disk,
            &self.azure_file,
            &self.cinder,
            &self.gce_persistent_disk,
            &self.portworx_volume,
            &self.vsphere_volume,
        ];
        sources.into_iter().any(Option::is_some)
    }
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Source {
    driver: String,
    volume_handle: String,
}

impl VolumeName {
    /// The name of the volume `handle` of `driver`.
    pub(super) fn new(driver: &str, handle: &str) -> Self {
        Self(format!("{PLUGIN}/{driver}{SEPARATOR}{handle}").into())
    }

    /// The name of a disk within its plugin.
    pub(super) fn disk(plugin: &str, volume: &str) -> Self {
        Self(format!("{plugin}/{volume}").into())
    }

    /// The plugin of a disk, which is attached without a VolumeAttachment; `None` for CSI.
    fn disk_plugin(name: &str) -> Option<&'static str> {
        let of = |plugin: &&str| {
            let rest = name.strip_prefix(*plugin).and_then(|rest| rest.strip_prefix('/'));
            rest.is_some_and(|volume| !volume.is_empty())
        };
        [ISCSI, FC].into_iter().find(of)
    }

    /// Whether it names a disk, which is attached without a VolumeAttachment.
    pub(super) fn is_disk(&self) -> bool {
        Self::disk_plugin(&self.0).is_some()
    }

    /// Reads a name in the status of a node; `None` for a volume of another plugin, which this
    /// controller neither attaches nor detaches.
    pub(super) fn parse(name: &str) -> Option<Self> {
        if Self::disk_plugin(name).is_some() {
            return Some(Self(name.into()));
        }
        let (driver, handle) =
            name.strip_prefix(PLUGIN)?.strip_prefix('/')?.split_once(SEPARATOR)?;
        (!driver.is_empty() && !handle.is_empty()).then(|| Self(name.into()))
    }

    /// The name of the volume behind a PersistentVolume, that of the driver for an in-tree plugin
    /// which CSI replaces; `None` if the volume is not attached.
    pub(super) fn of(volume: &Object) -> Option<Self> {
        let shape: Shape = serde_json::from_slice(volume.raw()).ok()?;
        if let Some(source) = shape.spec.csi {
            return Some(Self::new(&source.driver, &source.volume_handle));
        }
        if !shape.spec.is_migrated() {
            return scsi::volume_name(shape.spec.iscsi.as_ref(), shape.spec.fc.as_ref());
        }
        let volume = decode::<PersistentVolume>(volume)?;
        Self::of_translated(&csi_translation::persistent(&volume).ok()??)
    }

    /// The name of a volume with a CSI source.
    pub(super) fn of_translated(volume: &PersistentVolume) -> Option<Self> {
        let source = volume.spec.as_ref()?.csi.as_ref()?;
        Some(Self::new(&source.driver, &source.volume_handle))
    }

    /// The text of the name.
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// The driver and the handle; empty for a disk.
    fn parts(&self) -> (&str, &str) {
        // The constructors for CSI make sure of the form.
        let rest = self.0.strip_prefix(PLUGIN).and_then(|rest| rest.strip_prefix('/'));
        rest.and_then(|rest| rest.split_once(SEPARATOR)).unwrap_or_default()
    }

    /// The name of the CSI driver.
    pub(super) fn driver(&self) -> &str {
        self.parts().0
    }

    /// The handle by which the driver identifies the volume.
    pub(super) fn handle(&self) -> &str {
        self.parts().1
    }

    /// The name of the VolumeAttachment to a node (`getAttachmentName`).
    pub(super) fn attachment(&self, node: &str) -> String {
        let (driver, handle) = self.parts();
        let hash = base::pki::hex_sha256(format!("{handle}{driver}{node}").as_bytes());
        format!("csi-{hash}")
    }

    /// The plugin as metrics name it (`GetFullQualifiedPluginNameForVolume`).
    pub(super) fn plugin(&self) -> String {
        match Self::disk_plugin(&self.0) {
            Some(plugin) => plugin.to_owned(),
            None => format!("{PLUGIN}:{}", self.driver()),
        }
    }
}

impl fmt::Display for VolumeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_attachment_is_named_after_volume_driver_and_node() {
        let name = VolumeName::new("driver02", "vol02");
        assert_eq!(
            name.attachment("node02"),
            "csi-70fa8b122628ff5436f098759b79c93487b3894e2bff5637c618405a059b0b47"
        );
        assert_eq!(name.as_str(), "kubernetes.io/csi/driver02^vol02");
        assert_eq!(name.plugin(), "kubernetes.io/csi:driver02");
    }

    #[test]
    fn names_of_csi_are_parsed_and_others_are_not() {
        for (text, want) in [
            ("kubernetes.io/csi/d.example.com^v", Some(("d.example.com", "v"))),
            ("kubernetes.io/csi/d^/a/b", Some(("d", "/a/b"))),
            // Upstream attaches such a volume and cannot detach it.
            ("kubernetes.io/csi/d^a^b", Some(("d", "a^b"))),
            ("kubernetes.io/csi/d", None),
            ("kubernetes.io/csi/^v", None),
            ("kubernetes.io/csi/d^", None),
            ("kubernetes.io/gce-pd/d^v", None),
            ("csi/d^v", None),
        ] {
            let parsed = VolumeName::parse(text);
            assert_eq!(parsed.as_ref().map(VolumeName::parts), want, "{text}");
        }
    }

    #[test]
    fn a_persistent_volume_is_named_by_its_csi_source() {
        let volume = |spec: serde_json::Value| {
            Object::from_value(json!({"metadata": {"name": "pv"}, "spec": spec})).unwrap()
        };
        let csi = volume(json!({"csi": {"driver": "d", "volumeHandle": "h"}}));
        assert_eq!(VolumeName::of(&csi), Some(VolumeName::new("d", "h")));
        assert_eq!(VolumeName::of(&volume(json!({"nfs": {"server": "s", "path": "/"}}))), None);
        let in_tree = volume(json!({"cinder": {"volumeID": "h"}}));
        let name = VolumeName::new("cinder.csi.openstack.org", "h");
        assert_eq!(VolumeName::of(&in_tree), Some(name));
        let disk = volume(json!({"iscsi": {"targetPortal": "p", "iqn": "iqn.x", "lun": 1}}));
        let disk = VolumeName::of(&disk).unwrap();
        assert_eq!(disk.plugin(), "kubernetes.io/iscsi");
        assert_eq!(VolumeName::parse(disk.as_str()), Some(disk.clone()));
        assert!(disk.is_disk() && !VolumeName::new("d", "h").is_disk());
        assert_eq!(VolumeName::parse("kubernetes.io/fc/"), None);
    }
}
