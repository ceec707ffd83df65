//! A CSI volume as a pod uses it, from a PersistentVolume or from the pod itself, and the decisions
//! that depend on it and on the CSIDriver object.

use std::collections::BTreeMap;

use api::csi_translation::{self, Plugin, TranslationError};
use api::k8s::api::core::v1 as core;
use api::k8s::api::storage::v1::CSIDriverSpec;

use super::error::CsiError;
use super::paths;
use crate::pods::pod::Pod;

/// Access mode of a volume that names none.
const DEFAULT_ACCESS_MODE: &str = "ReadWriteOnce";

/// A reference to a Secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SecretName {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl SecretName {
    fn of(reference: Option<&core::SecretReference>) -> Option<Self> {
        let reference = reference?;
        Some(Self {
            namespace: reference.namespace.clone().unwrap_or_default(),
            name: reference.name.clone().unwrap_or_default(),
        })
    }
}

/// Whether a volume of a pod without a claim is one of a CSI driver, by itself or in place of an
/// in-tree plugin.
pub(crate) fn is_inline(volume: &core::Volume) -> bool {
    volume.csi.is_some() || Plugin::of_inline(volume).is_some()
}

/// Whether a volume may be one that is attached to nodes: that of a claim or of a CSI driver, or a
/// disk of iSCSI or Fibre Channel.
pub(crate) fn may_be_attached(volume: &core::Volume) -> bool {
    let has_claim = volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some();
    has_claim || is_inline(volume) || volume.iscsi.is_some() || volume.fc.is_some()
}

/// A CSI volume of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CsiVolume {
    /// Name of the PersistentVolume, or of an inline volume in its pod.
    pub(crate) spec_name: String,
    /// Name of the volume in its pod.
    pub(crate) name: String,
    pub(crate) driver: String,
    pub(crate) handle: String,
    /// Whether the volume is part of the pod and lives as long as it.
    pub(crate) is_inline: bool,
    /// Whether the volume is of an in-tree plugin that the driver replaces.
    pub(crate) is_migrated: bool,
    pub(crate) is_block: bool,
    pub(crate) read_only: bool,
    pub(crate) fs_type: String,
    pub(crate) access_modes: Option<Vec<String>>,
    pub(crate) mount_options: Vec<String>,
    pub(crate) attributes: BTreeMap<String, String>,
    pub(crate) stage_secret: Option<SecretName>,
    pub(crate) publish_secret: Option<SecretName>,
    pub(crate) expand_secret: Option<SecretName>,
}

impl CsiVolume {
    /// Returns the volume of the PersistentVolume `spec_name`, which is `name` in the pod; `None`
    /// if it is of another kind. `read_only` is that of the claim in the pod.
    pub(crate) fn persistent(
        spec_name: &str,
        name: &str,
        spec: &core::PersistentVolumeSpec,
        read_only: bool,
    ) -> Option<Self> {
        let source = spec.csi.as_ref()?;
        Some(Self {
            spec_name: spec_name.to_owned(),
            name: name.to_owned(),
            driver: source.driver.clone(),
            handle: source.volume_handle.clone(),
            is_inline: false,
            is_migrated: false,
            is_block: spec.volume_mode.as_deref() == Some("Block"),
            read_only,
            fs_type: source.fs_type.clone().unwrap_or_default(),
            access_modes: spec.access_modes.clone().filter(|modes| !modes.is_empty()),
            mount_options: spec.mount_options.clone().unwrap_or_default(),
            attributes: source.volume_attributes.clone().unwrap_or_default(),
            stage_secret: SecretName::of(source.node_stage_secret_ref.as_ref()),
            publish_secret: SecretName::of(source.node_publish_secret_ref.as_ref()),
            expand_secret: SecretName::of(source.node_expand_secret_ref.as_ref()),
        })
    }

    /// Returns the volume of an inline source; `None` if it is of another kind.
    fn inline(pod: &Pod, volume: &core::Volume) -> Option<Self> {
        let source = volume.csi.as_ref()?;
        let secret = source.node_publish_secret_ref.as_ref().map(|reference| SecretName {
            namespace: pod.namespace().to_owned(),
            name: reference.name.clone(),
        });
        let uid = pod.object.metadata.uid.as_deref().unwrap_or(&pod.uid);
        Some(Self {
            spec_name: volume.name.clone(),
            name: volume.name.clone(),
            driver: source.driver.clone(),
            handle: paths::inline_handle(uid, &volume.name),
            is_inline: true,
            is_migrated: false,
            is_block: false,
            read_only: source.read_only == Some(true),
            fs_type: source.fs_type.clone().unwrap_or_default(),
            access_modes: None,
            mount_options: Vec::new(),
            attributes: source.volume_attributes.clone().unwrap_or_default(),
            stage_secret: None,
            publish_secret: secret,
            expand_secret: None,
        })
    }

    /// Returns the volume of a source in the pod; `None` if no CSI driver provides it.
    ///
    /// # Errors
    /// The source is of an in-tree plugin, and cannot be translated.
    pub(crate) fn of_pod(
        pod: &Pod,
        volume: &core::Volume,
    ) -> Result<Option<Self>, TranslationError> {
        match Self::inline(pod, volume) {
            None => Self::migrated(pod, volume),
            inline @ Some(_) => Ok(inline),
        }
    }

    /// Returns the volume of a source of an in-tree plugin, which is a persistent one for its
    /// driver; `None` if it is of another kind.
    ///
    /// # Errors
    /// The source cannot be translated.
    fn migrated(pod: &Pod, volume: &core::Volume) -> Result<Option<Self>, TranslationError> {
        let translated = csi_translation::inline(volume, pod.namespace())?;
        Ok(translated.and_then(|persistent| {
            let spec_name = persistent.metadata.name.unwrap_or_default();
            let spec = persistent.spec.as_ref()?;
            let volume = Self::persistent(&spec_name, &volume.name, spec, false)?;
            Some(Self { is_migrated: true, ..volume })
        }))
    }

    /// The mode as CSIDriver objects and `vol_data.json` name it.
    pub(crate) fn lifecycle_mode(&self) -> &'static str {
        if self.is_inline { "Ephemeral" } else { "Persistent" }
    }

    /// The name that is unique on a node.
    pub(crate) fn unique_name(&self) -> String {
        paths::unique_name(&self.driver, &self.handle)
    }

    /// The access modes of a PersistentVolume; `None` of an inline volume.
    pub(crate) fn persistent_modes(&self) -> Option<&[String]> {
        (!self.is_inline).then(|| self.access_modes.as_deref().unwrap_or_default())
    }

    /// The access mode in calls: the first one of the volume.
    pub(crate) fn access_mode(&self) -> &str {
        let modes = self.access_modes.as_deref().unwrap_or_default();
        modes.first().map_or(DEFAULT_ACCESS_MODE, String::as_str)
    }

    /// Checks that the names can be used in paths.
    pub(crate) fn check_names(&self) -> Result<(), CsiError> {
        // The translation of a disk of Azure is named by its path; only names of devices are used
        // in paths as they are.
        let spec_name =
            if self.is_block { self.spec_name.clone() } else { paths::escaped(&self.spec_name) };
        for (what, name) in [("driver", &self.driver), ("volume", &spec_name)] {
            if !paths::is_path_safe(name) {
                return Err(CsiError::InvalidName { what, name: name.clone() });
            }
        }
        Ok(())
    }

    /// Checks that the driver supports the mode of the volume (`supportsVolumeLifecycleMode`).
    /// Without an object, a driver supports persistent volumes only.
    pub(crate) fn check_mode(&self, object: Option<&CSIDriverSpec>) -> Result<(), CsiError> {
        let (mode, driver) = (self.lifecycle_mode(), &self.driver);
        let Some(spec) = object else {
            if self.is_inline {
                return Err(CsiError::ModeWithoutObject { mode, driver: driver.clone() });
            }
            return Ok(());
        };
        let supported = spec.volume_lifecycle_modes.as_deref().unwrap_or_default();
        if supported.iter().any(|supported| supported == mode) {
            return Ok(());
        }
        let (driver, supported) = (driver.clone(), supported.to_vec());
        Err(CsiError::Mode { mode, driver, supported })
    }

    /// Whether the volume has to be attached to the node first (`CanAttach`). Drivers without an
    /// object attach volumes.
    pub(crate) fn is_attachable(&self, object: Option<&CSIDriverSpec>) -> bool {
        !self.is_inline && object.and_then(|spec| spec.attach_required) != Some(false)
    }

    /// Whether the node changes the group of the files (`supportsFSGroup`).
    pub(crate) fn applies_group(&self, object: Option<&CSIDriverSpec>, group: Option<i64>) -> bool {
        let policy = object.and_then(|spec| spec.fs_group_policy.as_deref());
        if group.is_none() || self.read_only {
            return false;
        }
        match policy {
            Some("None") => false,
            Some("File") => true,
            // The default: `ReadWriteOnceWithFSType`.
            _ => !self.fs_type.is_empty() && (self.is_inline || self.has_read_write_once()),
        }
    }

    fn has_read_write_once(&self) -> bool {
        let mut modes = self.access_modes.iter().flatten();
        modes.any(|mode| mode == "ReadWriteOnce" || mode == "ReadWriteOncePod")
    }
}

/// Attributes of a pod for its driver (`getPodInfoAttrs`).
pub(crate) fn pod_attributes(pod: &Pod, is_inline: bool) -> BTreeMap<String, String> {
    let account = pod.spec().service_account_name.clone().unwrap_or_default();
    let uid = pod.object.metadata.uid.clone().unwrap_or_else(|| pod.uid.to_string());
    BTreeMap::from([
        ("csi.storage.k8s.io/pod.name".to_owned(), pod.name().to_owned()),
        ("csi.storage.k8s.io/pod.namespace".to_owned(), pod.namespace().to_owned()),
        ("csi.storage.k8s.io/pod.uid".to_owned(), uid),
        ("csi.storage.k8s.io/serviceAccount.name".to_owned(), account),
        ("csi.storage.k8s.io/ephemeral".to_owned(), is_inline.to_string()),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn persistent(spec: Value, read_only: bool) -> CsiVolume {
        let mut spec = spec;
        spec["csi"]["driver"] = "d".into();
        spec["csi"]["volumeHandle"] = "h".into();
        let spec = serde_json::from_value(spec).unwrap();
        CsiVolume::persistent("pv", "v", &spec, read_only).unwrap()
    }

    fn inline(source: Value) -> (Pod, CsiVolume) {
        let mut source = source;
        source["driver"] = "d".into();
        let pod = crate::pods::pod::tests::pod(json!({"containers": [],
            "serviceAccountName": "robot", "volumes": [{"name": "v", "csi": source}]}));
        let volume = CsiVolume::inline(&pod, &pod.spec().volumes.clone().unwrap()[0]).unwrap();
        (pod, volume)
    }

    fn object(spec: Value) -> CSIDriverSpec {
        serde_json::from_value(spec).unwrap()
    }

    #[test]
    fn both_sources_are_converted() {
        let volume = persistent(
            json!({"csi": {"fsType": "xfs", "volumeAttributes": {"a": "b"},
                "nodeStageSecretRef": {"namespace": "s", "name": "n"}},
                "accessModes": ["ReadOnlyMany", "ReadWriteOnce"], "mountOptions": ["noatime"]}),
            true,
        );
        assert_eq!(volume.access_mode(), "ReadOnlyMany");
        assert_eq!(volume.unique_name(), "kubernetes.io/csi/d^h");
        assert!(volume.read_only && !volume.is_block && !volume.is_inline);
        assert_eq!(
            volume.stage_secret,
            Some(SecretName { namespace: "s".into(), name: "n".into() })
        );
        assert_eq!(persistent(json!({}), false).access_mode(), "ReadWriteOnce");
        let (pod, volume) =
            inline(json!({"nodePublishSecretRef": {"name": "n"}, "readOnly": true}));
        assert_eq!(volume.handle, paths::inline_handle("u", "v"));
        assert_eq!(
            volume.publish_secret,
            Some(SecretName { namespace: "d".into(), name: "n".into() })
        );
        assert!(volume.read_only && volume.is_inline);
        assert_eq!(
            json!(pod_attributes(&pod, true)),
            json!({"csi.storage.k8s.io/pod.name": "p", "csi.storage.k8s.io/pod.namespace": "d",
                "csi.storage.k8s.io/pod.uid": "u", "csi.storage.k8s.io/ephemeral": "true",
                "csi.storage.k8s.io/serviceAccount.name": "robot"})
        );
    }

    /// Cases of `TestMounterSetUpWithFSGroup` and `TestSupportsFSGroup`.
    #[test]
    fn the_group_is_applied_by_policy_file_system_and_access_mode() {
        let of = |fs_type: &str, modes: &[&str], read_only, policy: Option<&str>, group| {
            let volume =
                persistent(json!({"csi": {"fsType": fs_type}, "accessModes": modes}), read_only);
            let object = policy.map(|policy| object(json!({"fsGroupPolicy": policy})));
            volume.applies_group(object.as_ref(), group)
        };
        let (rwo, group) = (["ReadWriteOnce"], Some(3000));
        assert!(!of("", &rwo, false, None, None));
        assert!(!of("", &rwo, false, None, group), "no file system type");
        assert!(!of("ext4", &["ReadWriteMany", "ReadOnlyMany"], false, None, group));
        assert!(!of("ext4", &rwo, true, None, group), "read-only");
        assert!(!of("ext4", &[], false, None, group), "no access modes");
        assert!(of("ext4", &rwo, false, None, group));
        assert!(of("ext4", &["ReadWriteOncePod"], false, None, group));
        let default = Some("ReadWriteOnceWithFSType");
        assert!(of("ext4", &rwo, false, default, group));
        assert!(!of("", &rwo, false, default, group));
        assert!(!of("ext4", &["ReadWriteMany"], false, default, group));
        assert!(!of("ext4", &rwo, false, Some("None"), group));
        assert!(of("", &["ReadWriteMany"], false, Some("File"), group));
        assert!(!of("ext4", &rwo, true, Some("File"), group));
        let (_, inline) = inline(json!({"fsType": "ext4"}));
        assert!(inline.applies_group(None, group));
    }

    #[test]
    fn inline_volumes_need_a_driver_that_declares_them() {
        let (_, inline) = inline(json!({}));
        let text = |volume: &CsiVolume, object: Option<&CSIDriverSpec>| {
            volume.check_mode(object).map_err(|e| e.to_string()).err()
        };
        assert_eq!(
            text(&inline, None).as_deref(),
            Some("volume mode \"Ephemeral\" not supported by driver d (no CSIDriver object)")
        );
        let other = object(json!({"volumeLifecycleModes": ["Persistent"]}));
        assert_eq!(
            text(&inline, Some(&other)).as_deref(),
            Some(
                "volume mode \"Ephemeral\" not supported by driver d (only supports \
                 [\"Persistent\"])"
            )
        );
        let both = object(json!({"volumeLifecycleModes": ["Persistent", "Ephemeral"]}));
        assert_eq!(text(&inline, Some(&both)), None);
        let volume = persistent(json!({}), false);
        assert_eq!(text(&volume, None), None);
        assert_eq!(text(&volume, Some(&other)), None);
    }

    /// Cases of `TestPluginCanAttach` and `TestPluginSkipAttach`.
    #[test]
    fn persistent_volumes_are_attached_unless_the_driver_declares_otherwise() {
        let volume = persistent(json!({}), false);
        assert!(volume.is_attachable(None));
        assert!(volume.is_attachable(Some(&object(json!({})))));
        assert!(volume.is_attachable(Some(&object(json!({"attachRequired": true})))));
        assert!(!volume.is_attachable(Some(&object(json!({"attachRequired": false})))));
        assert!(!inline(json!({})).1.is_attachable(None));
    }

    #[test]
    fn an_in_tree_volume_of_a_pod_is_a_persistent_one() {
        let pod = crate::pods::pod::tests::pod(json!({"containers": [], "volumes": [
            {"name": "v", "azureDisk": {"diskName": "d", "diskURI": "/s/d", "kind": "Managed"}},
            {"name": "w", "awsElasticBlockStore": {"volumeID": "aws://z/x"}},
            {"name": "e", "emptyDir": {}}]}));
        let volumes = pod.spec().volumes.clone().unwrap();
        let volume = CsiVolume::migrated(&pod, &volumes[0]).unwrap().unwrap();
        assert_eq!((&*volume.spec_name, &*volume.name), ("/s/d", "v"));
        assert_eq!(volume.unique_name(), "kubernetes.io/csi/disk.csi.azure.com^/s/d");
        assert!(!volume.is_inline && volume.is_migrated && volume.is_attachable(None));
        volume.check_names().unwrap();
        assert!(CsiVolume::migrated(&pod, &volumes[1]).is_err());
        assert_eq!(CsiVolume::migrated(&pod, &volumes[2]), Ok(None));
        assert!(is_inline(&volumes[0]) && !is_inline(&volumes[2]));
    }

    #[test]
    fn names_that_lead_out_of_a_directory_are_refused() {
        let mut volume = persistent(json!({}), false);
        volume.check_names().unwrap();
        volume.driver = "..".into();
        assert!(volume.check_names().is_err());
    }
}
