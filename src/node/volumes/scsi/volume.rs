//! An iSCSI or Fibre Channel volume as a pod uses it, and its paths.

use std::path::{Path, PathBuf};

use api::k8s::api::core::v1 as core;

use super::error::ScsiError;
use crate::csi::paths::is_path_safe;
use crate::volumes::fibre_channel::{FcDisk, PLUGIN as FC};
use crate::volumes::iscsi::{IscsiDisk, IscsiSource, PLUGIN as ISCSI};

/// Where a volume is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ScsiDisk {
    Iscsi(Box<IscsiSource>),
    FibreChannel(FcDisk),
}

/// A volume of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ScsiVolume {
    /// Name of the PersistentVolume, or of an inline volume in its pod.
    pub(crate) spec_name: String,
    /// Name of the volume in its pod.
    pub(crate) name: String,
    pub(crate) is_block: bool,
    pub(crate) read_only: bool,
    /// Empty if the volume names none.
    pub(crate) fs_type: String,
    pub(crate) mount_options: Vec<String>,
    /// Those of the PersistentVolume; `None` of a volume of a pod.
    pub(crate) access_modes: Option<Vec<String>>,
    pub(crate) disk: ScsiDisk,
    /// The name that is unique on a node, as in the status of Nodes.
    pub(crate) unique_name: String,
}

fn unique_name(plugin: &str, volume: &str) -> String {
    format!("{plugin}/{volume}")
}

impl ScsiVolume {
    /// Returns the inline volume of a pod in `namespace`; `None` if it is of another kind.
    ///
    /// # Errors
    ///
    /// The volume names no disk.
    pub(crate) fn inline(
        volume: &core::Volume,
        namespace: &str,
    ) -> Option<Result<Self, ScsiError>> {
        let (disk, fs_type, read_only, name) = match (&volume.iscsi, &volume.fc) {
            (Some(source), _) => {
                let disk = IscsiSource::inline(&volume.name, source, namespace);
                let name = unique_name(ISCSI, &disk.volume_name());
                (Ok(ScsiDisk::Iscsi(Box::new(disk))), &source.fs_type, source.read_only, name)
            }
            (None, Some(source)) => {
                let name = unique_name(FC, &FcDisk::volume_name(source));
                let disk = FcDisk::new(source).map(ScsiDisk::FibreChannel);
                (disk, &source.fs_type, source.read_only, name)
            }
            (None, None) => return None,
        };
        Some(disk.map(|disk| Self {
            spec_name: volume.name.clone(),
            name: volume.name.clone(),
            is_block: false,
            read_only: read_only == Some(true),
            fs_type: fs_type.clone().unwrap_or_default(),
            mount_options: Vec::new(),
            access_modes: None,
            disk,
            unique_name: name,
        }))
    }

    /// Returns the volume of the PersistentVolume `spec_name`, which is `name` in a pod in
    /// `namespace`; `None` if it is of another kind. `read_only` is that of the claim in the pod.
    ///
    /// # Errors
    ///
    /// The volume names no disk.
    pub(crate) fn persistent(
        (spec_name, name): (&str, &str),
        spec: &core::PersistentVolumeSpec,
        read_only: bool,
        namespace: &str,
    ) -> Option<Result<Self, ScsiError>> {
        let (disk, fs_type, unique_name) = match (&spec.iscsi, &spec.fc) {
            (Some(source), _) => {
                let disk = IscsiSource::persistent(spec_name, source, namespace);
                let name = unique_name(ISCSI, &disk.volume_name());
                (Ok(ScsiDisk::Iscsi(Box::new(disk))), &source.fs_type, name)
            }
            (None, Some(source)) => {
                let name = unique_name(FC, &FcDisk::volume_name(source));
                (FcDisk::new(source).map(ScsiDisk::FibreChannel), &source.fs_type, name)
            }
            (None, None) => return None,
        };
        Some(disk.map(|disk| Self {
            spec_name: spec_name.to_owned(),
            name: name.to_owned(),
            is_block: spec.volume_mode.as_deref() == Some("Block"),
            read_only,
            fs_type: fs_type.clone().unwrap_or_default(),
            mount_options: spec.mount_options.clone().unwrap_or_default(),
            access_modes: Some(spec.access_modes.clone().unwrap_or_default()),
            disk,
            unique_name,
        }))
    }

    /// Whether the volume is one of iSCSI.
    pub(crate) fn is_iscsi(&self) -> bool {
        matches!(self.disk, ScsiDisk::Iscsi(_))
    }

    /// The name of the plugin.
    pub(crate) fn plugin(&self) -> &'static str {
        match self.disk {
            ScsiDisk::Iscsi(_) => ISCSI,
            ScsiDisk::FibreChannel(_) => FC,
        }
    }

    /// The path at which all pods of the node share the volume; `root` is the directory of the
    /// kubelet.
    pub(crate) fn global_path(&self, root: &Path) -> PathBuf {
        let name = match &self.disk {
            ScsiDisk::Iscsi(source) => source.disk.global_name(),
            ScsiDisk::FibreChannel(disk) => disk.global_name(),
        };
        plugin_dir(root, self.plugin(), self.is_block).join(name)
    }

    /// The path of the volume in the directory of a pod.
    pub(crate) fn pod_path(&self, pod_dir: &Path) -> PathBuf {
        pod_path(pod_dir, self.plugin(), &self.spec_name, self.is_block)
    }

    /// Checks that names of the API are names of files.
    pub(crate) fn check_names(&self) -> Result<(), ScsiError> {
        if !is_path_safe(&self.spec_name) {
            return Err(ScsiError::InvalidName { what: "volume", name: self.spec_name.clone() });
        }
        match &self.disk {
            ScsiDisk::Iscsi(source) => source.disk.check_names(),
            ScsiDisk::FibreChannel(disk) => disk.check_names(),
        }
    }
}

/// The directory of a plugin, for file systems or for block devices.
pub(crate) fn plugin_dir(root: &Path, plugin: &str, is_block: bool) -> PathBuf {
    let directory = root.join("plugins").join(plugin);
    if is_block { directory.join("volumeDevices") } else { directory }
}

/// The path of a volume in the directory of a pod: a mount, or a link to a device.
pub(crate) fn pod_path(pod_dir: &Path, plugin: &str, name: &str, is_block: bool) -> PathBuf {
    let kind = if is_block { "volumeDevices" } else { "volumes" };
    pod_dir.join(kind).join(plugin.replace('/', "~")).join(name)
}

/// A volume of which only the global path is known.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct GlobalVolume {
    pub(crate) path: PathBuf,
    pub(crate) is_block: bool,
    pub(crate) is_iscsi: bool,
}

impl GlobalVolume {
    /// The volume at a global path; `None` if the path is in the directory of no plugin.
    pub(crate) fn at(root: &Path, path: &Path) -> Option<Self> {
        for (plugin, is_iscsi) in [(ISCSI, true), (FC, false)] {
            for is_block in [true, false] {
                if path.starts_with(plugin_dir(root, plugin, is_block)) {
                    return Some(Self { path: path.to_owned(), is_block, is_iscsi });
                }
            }
        }
        None
    }

    /// The name of the plugin.
    pub(crate) fn plugin(&self) -> &'static str {
        if self.is_iscsi { ISCSI } else { FC }
    }

    /// The unique names that the volume may have, if its path says enough. Blocks.
    pub(crate) fn unique_names(&self) -> Vec<String> {
        let names = if self.is_iscsi {
            IscsiDisk::load(&self.path).map(|disk| disk.volume_names())
        } else {
            FcDisk::load(&self.path).map(|disk| disk.volume_names())
        };
        let names = names.unwrap_or_default().into_iter();
        names.map(|name| unique_name(self.plugin(), &name)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn persistent(spec: serde_json::Value) -> ScsiVolume {
        let spec = serde_json::from_value(spec).unwrap();
        ScsiVolume::persistent(("pv", "v"), &spec, false, "d").unwrap().unwrap()
    }

    /// The paths in the comments of upstream's plugins.
    #[test]
    fn paths_and_names_are_those_of_upstream() {
        let root = Path::new("/var/lib/kubelet");
        let iscsi =
            json!({"targetPortal": "10.0.0.1", "lun": 2, "iqn": "iqn.2014-12.com.example:d"});
        let files = persistent(json!({"iscsi": iscsi}));
        let at = "iface-default/10.0.0.1:3260-iqn.2014-12.com.example:d-lun-2";
        assert_eq!(files.global_path(root), root.join("plugins/kubernetes.io/iscsi").join(at));
        assert_eq!(files.unique_name, "kubernetes.io/iscsi/10.0.0.1:iqn.2014-12.com.example:d:2");
        let pod = root.join("pods/u");
        assert_eq!(files.pod_path(&pod), pod.join("volumes/kubernetes.io~iscsi/pv"));
        let block = persistent(json!({"iscsi": iscsi, "volumeMode": "Block"}));
        let devices = root.join("plugins/kubernetes.io/iscsi/volumeDevices");
        assert_eq!(block.global_path(root), devices.join(at));
        assert_eq!(block.pod_path(&pod), pod.join("volumeDevices/kubernetes.io~iscsi/pv"));
        let fc = persistent(json!({"fc": {"targetWWNs": ["500a", "500b"], "lun": 0}}));
        let plugin = root.join("plugins/kubernetes.io/fc");
        assert_eq!(fc.global_path(root), plugin.join("500a-500b-lun-0"));
        assert_eq!(fc.unique_name, "kubernetes.io/fc/[500a 500b]:0");
        let wwids = persistent(json!({"fc": {"wwids": ["a b", "c"]}, "volumeMode": "Block"}));
        assert_eq!(wwids.global_path(root), plugin.join("volumeDevices/a_b-c"));
        assert_eq!(wwids.unique_name, "kubernetes.io/fc/[a b c]");
        let none = serde_json::from_value(json!({"fc": {"lun": 0}})).unwrap();
        let none = ScsiVolume::persistent(("pv", "v"), &none, false, "d").unwrap().unwrap_err();
        let text = "fc: no fc disk information found. failed to make a new mounter";
        assert_eq!(none.to_string(), text);
        let nfs = serde_json::from_value(json!({"nfs": {"server": "s", "path": "/"}})).unwrap();
        assert!(ScsiVolume::persistent(("pv", "v"), &nfs, false, "d").is_none());
    }

    #[test]
    fn a_global_path_names_its_volume() {
        let root = Path::new("/k");
        for spec in [
            json!({"iscsi": {"targetPortal": "p", "lun": 2, "iqn": "iqn.2014-12.com.example:d"}}),
            json!({"iscsi": {"targetPortal": "p:3260", "lun": 2, "iqn": "eui.02004567A425678D"},
                "volumeMode": "Block"}),
            json!({"fc": {"targetWWNs": ["500a", "500b"], "lun": 0}}),
            json!({"fc": {"wwids": ["a b"]}, "volumeMode": "Block"}),
        ] {
            let volume = persistent(spec.clone());
            let global = GlobalVolume::at(root, &volume.global_path(root)).unwrap();
            assert_eq!((global.is_block, global.plugin()), (volume.is_block, volume.plugin()));
            assert!(global.unique_names().contains(&volume.unique_name), "{spec}");
        }
        assert_eq!(GlobalVolume::at(root, Path::new("/k/plugins/kubernetes.io/csi/x")), None);
    }

    #[test]
    fn names_that_lead_out_of_a_directory_are_refused() {
        let fc = persistent(json!({"fc": {"targetWWNs": ["../x"], "lun": 0}}));
        assert!(fc.check_names().is_err());
        persistent(json!({"fc": {"targetWWNs": ["500a"], "lun": 0}})).check_names().unwrap();
    }
}
