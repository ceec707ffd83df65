//! Names and paths of CSI volumes, which are the kubelet's: drivers mount and look for files there.

use std::path::{Path, PathBuf};

use crate::digest::sha256;

/// Name of the volume plugin in messages and in names of volumes.
pub(crate) const PLUGIN: &str = "kubernetes.io/csi";
/// That name as a directory.
const ESCAPED_PLUGIN: &str = "kubernetes.io~csi";
/// Directory of a pod with a record of each of its CSI volumes, which is kube-lite's own.
const RECORDS: &str = "plugins/kube-lite~csi";

fn hex_sha256(text: &str) -> String {
    sha256(text.as_bytes()).trim_start_matches("sha256:").to_owned()
}

/// Name of a volume that is unique on a node, as in the status of Nodes.
pub(crate) fn unique_name(driver: &str, handle: &str) -> String {
    format!("{PLUGIN}/{driver}^{handle}")
}

/// The driver in the [`unique_name`] of a volume.
pub(crate) fn driver_of(unique_name: &str) -> Option<&str> {
    let name = unique_name.strip_prefix(PLUGIN)?.strip_prefix('/')?;
    name.split_once('^').map(|(driver, _)| driver)
}

/// Handle of an inline volume (`makeVolumeHandle`).
pub(crate) fn inline_handle(pod_uid: &str, volume: &str) -> String {
    format!("csi-{}", hex_sha256(&format!("{pod_uid}{volume}")))
}

/// Name of the VolumeAttachment of a volume on a node (`getAttachmentName`).
pub(crate) fn attachment_name(handle: &str, driver: &str, node: &str) -> String {
    format!("csi-{}", hex_sha256(&format!("{handle}{driver}{node}")))
}

/// The name as a file name (`EscapeQualifiedName`).
pub(crate) fn escaped(name: &str) -> String {
    name.replace('/', "~")
}

/// Whether a name stands for one element of a path. The API validates names of drivers and volumes;
/// this protects the host from objects that were stored otherwise.
pub(crate) fn is_path_safe(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\0'])
}

/// The directory of a volume in the directory of a pod; contains `vol_data.json` and `mount`.
pub(crate) fn volume_dir(pod_dir: &Path, spec_name: &str) -> PathBuf {
    volumes_dir(pod_dir).join(escaped(spec_name))
}

/// The directory of all CSI volumes of a pod.
pub(crate) fn volumes_dir(pod_dir: &Path) -> PathBuf {
    pod_dir.join("volumes").join(ESCAPED_PLUGIN)
}

/// The path at which a volume is published, given its directory.
pub(crate) fn mount_path(volume_dir: &Path) -> PathBuf {
    volume_dir.join("mount")
}

/// The directory with links to all CSI block devices of a pod.
pub(crate) fn devices_dir(pod_dir: &Path) -> PathBuf {
    pod_dir.join("volumeDevices").join(ESCAPED_PLUGIN)
}

/// The directory with the records of the CSI volumes of a pod.
pub(crate) fn records_dir(pod_dir: &Path) -> PathBuf {
    pod_dir.join(RECORDS)
}

/// The record of a CSI volume of a pod.
pub(crate) fn record_path(pod_dir: &Path, spec_name: &str) -> PathBuf {
    records_dir(pod_dir).join(format!("{}.json", escaped(spec_name)))
}

/// The directory of all staged volumes: those with files in a directory for each driver, the block
/// devices in `volumeDevices`.
pub(crate) fn plugin_dir(root: &Path) -> PathBuf {
    root.join("plugins").join(PLUGIN)
}

/// The path at which a volume with files is staged for all pods of the node
/// (`makeDeviceMountPath`); its parent has the `vol_data.json` of the staged volume.
pub(crate) fn staging_path(root: &Path, driver: &str, handle: &str) -> PathBuf {
    plugin_dir(root).join(driver).join(hex_sha256(handle)).join("globalmount")
}

/// The paths of one block volume that all pods of the node share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BlockPaths {
    /// Contains `data` and `dev`.
    pub(crate) volume: PathBuf,
    /// Contains `vol_data.json`.
    pub(crate) data: PathBuf,
    /// Contains a bind mount of the device for each pod.
    pub(crate) global_map: PathBuf,
    pub(crate) staging: PathBuf,
    /// Contains the published device of each pod.
    pub(crate) publish: PathBuf,
}

impl BlockPaths {
    /// Returns the paths of the volume `spec_name`; `root` is that of the kubelet.
    pub(crate) fn new(root: &Path, spec_name: &str) -> Self {
        let all = plugin_dir(root).join("volumeDevices");
        let volume = all.join(escaped(spec_name));
        Self {
            data: volume.join("data"),
            global_map: volume.join("dev"),
            staging: all.join("staging").join(spec_name),
            publish: all.join("publish").join(spec_name),
            volume,
        }
    }

    /// The device of a pod below the global map path.
    pub(crate) fn device_of(&self, pod_dir: &Path) -> PathBuf {
        self.global_map.join(pod_dir.file_name().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_upstream() {
        assert_eq!(unique_name("d.example.com", "v-1"), "kubernetes.io/csi/d.example.com^v-1");
        assert_eq!(driver_of("kubernetes.io/csi/d.example.com^v-1^x"), Some("d.example.com"));
        assert_eq!(driver_of("kubernetes.io/csi/d"), None);
        assert_eq!(driver_of("kubernetes.io/nfs/d^v"), None);
        // Computed with sha256sum.
        let of_text = |text: &str| format!("csi-{}", hex_sha256(text));
        assert_eq!(
            of_text("abc"),
            "csi-ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert_eq!(inline_handle("uid", "vol"), of_text("uidvol"));
        assert_eq!(attachment_name("handle", "driver", "node"), of_text("handledrivernode"));
    }

    #[test]
    fn paths_are_those_of_upstream() {
        let root = Path::new("/var/lib/kubelet");
        let pod = root.join("pods/u");
        let volume = volume_dir(&pod, "pv/a");
        assert_eq!(volume, pod.join("volumes/kubernetes.io~csi/pv~a"));
        assert_eq!(mount_path(&volume), pod.join("volumes/kubernetes.io~csi/pv~a/mount"));
        assert_eq!(
            staging_path(root, "d", "abc"),
            root.join(
                "plugins/kubernetes.io/csi/d/\
                 ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad/globalmount"
            )
        );
        let block = BlockPaths::new(root, "pv");
        let devices = root.join("plugins/kubernetes.io/csi/volumeDevices");
        assert_eq!(block.data, devices.join("pv/data"));
        assert_eq!(block.global_map, devices.join("pv/dev"));
        assert_eq!(block.staging, devices.join("staging/pv"));
        assert_eq!(block.publish, devices.join("publish/pv"));
        assert_eq!(devices_dir(&pod), pod.join("volumeDevices/kubernetes.io~csi"));
    }

    #[test]
    fn a_name_with_several_elements_is_no_file_name() {
        for name in ["", ".", "..", "a/b", "../x"] {
            assert!(!is_path_safe(name), "{name}");
        }
        assert!(is_path_safe("d.example.com"));
    }
}
