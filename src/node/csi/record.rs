//! What is kept on disk about CSI volumes: `vol_data.json`, in the form of the kubelet, and one
//! record for each volume of a pod. Both together describe everything that has to be torn down,
//! also after a restart.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::paths;
use crate::volumes::selinux::labels::{HeldLabels, VolumeLabels};

/// Name of the file with the data of a volume.
const FILE: &str = "vol_data.json";
/// Maximum size of a file in bytes: names of some hundred bytes.
const FILE_MAX: u64 = 64 << 10;

/// The content of `vol_data.json`; keys that are not set are missing in the file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct VolumeData {
    #[serde(rename = "attachmentID", default, skip_serializing_if = "String::is_empty")]
    pub(crate) attachment_id: String,
    pub(crate) driver_name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) node_name: String,
    /// The SELinux label with which the volume is mounted.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) se_linux_mount_context: String,
    #[serde(rename = "specVolID", default, skip_serializing_if = "String::is_empty")]
    pub(crate) spec_vol_id: String,
    pub(crate) volume_handle: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) volume_lifecycle_mode: String,
}

fn named(action: &str, path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(
        error.kind(),
        format!(
            "kubernetes.io/csi: failed to {action} volume data file [{}]: {error}",
            path.display()
        ),
    )
}

/// Reads a JSON file; `None` if it does not exist.
fn load<T: serde::de::DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    let length = match std::fs::metadata(path) {
        Ok(metadata) => metadata.len(),
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(named("open", path, &e)),
    };
    if length > FILE_MAX {
        let error = io::Error::new(io::ErrorKind::InvalidData, format!("{length} bytes"));
        return Err(named("parse", path, &error));
    }
    let text = std::fs::read(path).map_err(|e| named("open", path, &e))?;
    let parsed = serde_json::from_slice(&text).map_err(io::Error::from);
    parsed.map(Some).map_err(|e| named("parse", path, &e))
}

/// Writes a JSON file. It is replaced as a whole, so that a power cut leaves the old or the new
/// one.
fn save(path: &Path, content: &impl Serialize) -> io::Result<()> {
    let mut text = serde_json::to_vec(content).map_err(io::Error::from)?;
    text.push(b'\n');
    if let Some(directory) = path.parent() {
        base::fs::create_dir(directory, 0o750)?;
    }
    base::fs::write_atomic(path, &text, 0o644).map_err(|e| named("save", path, &e))
}

fn remove_file(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(named("delete", path, &e)),
        Ok(()) | Err(_) => Ok(()),
    }
}

impl VolumeData {
    /// Reads the file in `directory`; `None` if there is none.
    pub(crate) fn load(directory: &Path) -> io::Result<Option<Self>> {
        load(&directory.join(FILE))
    }

    /// Writes the file in `directory`, which is created if it is missing.
    pub(crate) fn save(&self, directory: &Path) -> io::Result<()> {
        save(&directory.join(FILE), self)
    }

    /// Removes the file in `directory`.
    pub(crate) fn remove(directory: &Path) -> io::Result<()> {
        remove_file(&directory.join(FILE))
    }
}

/// What the driver was asked to do with a volume for a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Progress {
    /// It may have been asked to stage the volume.
    Begun,
    /// It was asked to publish the volume.
    Publishing,
    /// The volume is published completely.
    Published,
}

/// A volume that is staged for the pods of this node, or was about to be.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct StagedVolume {
    pub(crate) driver: String,
    pub(crate) handle: String,
    /// Name of the PersistentVolume of a block device, by which its paths are named; `None` of a
    /// volume with files.
    pub(crate) device: Option<String>,
}

impl From<&VolumeRecord> for StagedVolume {
    fn from(record: &VolumeRecord) -> Self {
        Self {
            driver: record.driver.clone(),
            handle: record.handle.clone(),
            device: record.is_block.then(|| record.spec_name.clone()),
        }
    }
}

impl StagedVolume {
    /// Name of the volume in the status of the Node.
    pub(crate) fn unique_name(&self) -> String {
        paths::unique_name(&self.driver, &self.handle)
    }

    /// Whether something of the staged volume is on disk. Blocks.
    pub(crate) fn exists(&self, root: &Path) -> bool {
        match &self.device {
            Some(name) => {
                let paths = paths::BlockPaths::new(root, name);
                [&paths.volume, &paths.staging, &paths.publish].iter().any(|path| path.exists())
            }
            None => paths::staging_path(root, &self.driver, &self.handle)
                .parent()
                .is_some_and(|directory| directory.join(FILE).exists()),
        }
    }
}

/// A CSI volume of a pod. The record exists from before the first call to the driver for the pod
/// until after the volume is unpublished, and keeps the volume staged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct VolumeRecord {
    /// Name of the PersistentVolume, or of an inline volume in its pod.
    pub(crate) spec_name: String,
    /// Name of the volume in its pod; empty if it is not known.
    #[serde(default)]
    pub(crate) volume: String,
    pub(crate) driver: String,
    pub(crate) handle: String,
    /// Whether the volume is a block device for the pod.
    pub(crate) is_block: bool,
    pub(crate) progress: Progress,
    /// Its SELinux labels.
    #[serde(default, skip_serializing_if = "VolumeLabels::is_empty")]
    pub(crate) labels: VolumeLabels,
}

impl VolumeRecord {
    /// Reads the record of a volume; `None` if there is none.
    pub(crate) fn load(pod_dir: &Path, spec_name: &str) -> io::Result<Option<Self>> {
        load(&paths::record_path(pod_dir, spec_name))
    }

    /// Writes the record.
    pub(crate) fn save(&self, pod_dir: &Path) -> io::Result<()> {
        save(&paths::record_path(pod_dir, &self.spec_name), self)
    }

    /// Removes the record.
    pub(crate) fn remove(&self, pod_dir: &Path) -> io::Result<()> {
        remove_file(&paths::record_path(pod_dir, &self.spec_name))
    }
}

/// Returns the entries of a directory, none if it does not exist.
fn entries(directory: &Path) -> io::Result<Vec<PathBuf>> {
    match std::fs::read_dir(directory) {
        Ok(entries) => entries.map(|entry| entry.map(|e| e.path())).collect(),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(e),
    }
}

/// Returns the CSI volumes of a pod by their names: those with a record, and those that another
/// kubelet left in this directory. `root` is that of the kubelet.
pub(crate) fn volumes_of_pod(
    root: &Path,
    pod_dir: &Path,
) -> io::Result<BTreeMap<String, VolumeRecord>> {
    let mut out = BTreeMap::new();
    for path in entries(&paths::records_dir(pod_dir))? {
        let is_record = path.extension().is_some_and(|e| e == "json");
        if let Some(record) = if is_record { load::<VolumeRecord>(&path)? } else { None } {
            out.insert(record.spec_name.clone(), record);
        }
    }
    let mut add = |data: VolumeData, spec_name: String, is_block| {
        out.entry(spec_name.clone()).or_insert_with(|| VolumeRecord {
            spec_name,
            volume: String::new(),
            driver: data.driver_name,
            handle: data.volume_handle,
            is_block,
            progress: Progress::Publishing,
            labels: VolumeLabels {
                needed: data.se_linux_mount_context.clone(),
                mount: data.se_linux_mount_context,
            },
        });
    };
    for directory in entries(&paths::volumes_dir(pod_dir))? {
        if let Some(data) = VolumeData::load(&directory)? {
            let name = data.spec_vol_id.clone();
            add(data, name, false);
        }
    }
    for link in entries(&paths::devices_dir(pod_dir))? {
        let Some(name) = link.file_name().and_then(|n| n.to_str()).map(str::to_owned) else {
            continue;
        };
        if let Some(data) = VolumeData::load(&paths::BlockPaths::new(root, &name).data)? {
            add(data, name, true);
        }
    }
    Ok(out)
}

/// Whether a pod uses a staged volume.
pub(crate) fn is_used(root: &Path, staged: &StagedVolume) -> io::Result<bool> {
    for pod in entries(&root.join("pods"))? {
        if volumes_of_pod(root, &pod)?.values().any(|record| StagedVolume::from(record) == *staged)
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the volumes that an earlier process left staged although no pod uses them. What cannot
/// be read is left out.
pub(crate) fn unused_staged(root: &Path) -> Vec<StagedVolume> {
    let all = |directory: &Path| entries(directory).unwrap_or_default();
    let mut staged = BTreeSet::new();
    for directory in all(&paths::plugin_dir(root)).iter().flat_map(|driver| all(driver)) {
        let of_device = VolumeData::load(&directory.join("data")).ok().flatten();
        let of_files = VolumeData::load(&directory).ok().flatten();
        staged.extend(of_device.map(|data| StagedVolume {
            driver: data.driver_name,
            handle: data.volume_handle,
            device: Some(data.spec_vol_id),
        }));
        staged.extend(of_files.map(|data| StagedVolume {
            driver: data.driver_name,
            handle: data.volume_handle,
            device: None,
        }));
    }
    for pod in all(&root.join("pods")) {
        for record in volumes_of_pod(root, &pod).unwrap_or_default().values() {
            staged.remove(&StagedVolume::from(record));
        }
    }
    // Directories of other layouts do not have the paths of their volumes.
    staged.into_iter().filter(|volume| volume.exists(root)).collect()
}

/// Returns the CSI volumes of all pods: the uid of the pod, the unique name of the volume, and its
/// labels. Pods whose directories cannot be read are left out.
pub(crate) fn labels_of_volumes(root: &Path) -> Vec<HeldLabels> {
    let mut out = Vec::new();
    for pod in entries(&root.join("pods")).unwrap_or_default() {
        let Some(uid) = pod.file_name().and_then(|n| n.to_str()) else { continue };
        let uid: Arc<str> = uid.into();
        let volumes = volumes_of_pod(root, &pod).unwrap_or_default().into_values();
        let named = volumes.map(|v| (paths::unique_name(&v.driver, &v.handle), v.labels));
        out.extend(named.map(|(name, labels)| (Arc::clone(&uid), name, labels)));
    }
    out
}

/// Returns the CSI volumes of all pods: the uid of the pod and the unique name of the volume.
pub(crate) fn volumes_of_all_pods(root: &Path) -> Vec<(Arc<str>, String)> {
    labels_of_volumes(root).into_iter().map(|(uid, name, _)| (uid, name)).collect()
}

/// The labels with which pods other than that of `own` have mounted a volume.
pub(crate) fn labels_of_others(
    root: &Path,
    own: &Path,
    staged: &StagedVolume,
) -> io::Result<Vec<String>> {
    let mut out = Vec::new();
    for pod in entries(&root.join("pods"))?.into_iter().filter(|pod| pod != own) {
        let volumes = volumes_of_pod(root, &pod)?.into_values();
        let of_volume = volumes.filter(|record| StagedVolume::from(record) == *staged);
        out.extend(of_volume.map(|record| record.labels.mount));
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data() -> VolumeData {
        VolumeData {
            spec_vol_id: "pv".into(),
            volume_handle: "h".into(),
            driver_name: "d".into(),
            node_name: "n".into(),
            se_linux_mount_context: String::new(),
            attachment_id: "csi-1".into(),
            volume_lifecycle_mode: "Persistent".into(),
        }
    }

    fn record(spec_name: &str, handle: &str, is_block: bool) -> VolumeRecord {
        VolumeRecord {
            spec_name: spec_name.into(),
            volume: "v".into(),
            driver: "d".into(),
            handle: handle.into(),
            is_block,
            progress: Progress::Begun,
            labels: VolumeLabels::default(),
        }
    }

    #[test]
    fn volume_data_has_the_form_of_upstream() {
        let home = tempfile::tempdir().unwrap();
        let directory = home.path().join("v");
        assert_eq!(VolumeData::load(&directory).unwrap(), None);
        data().save(&directory).unwrap();
        assert_eq!(
            std::fs::read_to_string(directory.join("vol_data.json")).unwrap(),
            "{\"attachmentID\":\"csi-1\",\"driverName\":\"d\",\"nodeName\":\"n\",\"specVolID\":\
             \"pv\",\"volumeHandle\":\"h\",\"volumeLifecycleMode\":\"Persistent\"}\n"
        );
        assert_eq!(VolumeData::load(&directory).unwrap(), Some(data()));
        // That of a staged volume with a label, and one with a key of another kubelet.
        let staged =
            "{\"driverName\":\"d\",\"seLinuxMountContext\":\"x\",\"volumeHandle\":\"h\"}\n";
        let read = |text: &str| {
            std::fs::write(directory.join("vol_data.json"), text).unwrap();
            VolumeData::load(&directory).unwrap().unwrap()
        };
        let data = read(staged);
        assert_eq!((&*data.volume_handle, &*data.se_linux_mount_context), ("h", "x"));
        data.save(&directory).unwrap();
        let text = std::fs::read_to_string(directory.join("vol_data.json")).unwrap();
        assert_eq!(text, staged);
        let newer = staged.replace("seLinuxMountContext", "later");
        assert_eq!(read(&newer).se_linux_mount_context, "");
        std::fs::write(directory.join("vol_data.json"), "{").unwrap();
        assert!(VolumeData::load(&directory).is_err());
        VolumeData::remove(&directory).unwrap();
        VolumeData::remove(&directory).unwrap();
    }

    #[test]
    fn volumes_of_a_pod_are_found_with_and_without_a_record() {
        let home = tempfile::tempdir().unwrap();
        let (root, pod) = (home.path(), home.path().join("pods/u"));
        record("begun", "h0", false).save(&pod).unwrap();
        data().save(&paths::volume_dir(&pod, "pv")).unwrap();
        let device = VolumeData { spec_vol_id: "dev".into(), ..data() };
        device.save(&paths::BlockPaths::new(root, "dev").data).unwrap();
        std::fs::create_dir_all(paths::devices_dir(&pod)).unwrap();
        let link = paths::devices_dir(&pod).join("dev");
        std::os::unix::fs::symlink("/dev/missing", link).unwrap();
        let found = volumes_of_pod(root, &pod).unwrap();
        let short: Vec<_> =
            found.values().map(|r| (&*r.spec_name, &*r.handle, r.is_block)).collect();
        assert_eq!(short, [("begun", "h0", false), ("dev", "h", true), ("pv", "h", false)]);
        assert_eq!(volumes_of_pod(root, &root.join("pods/none")).unwrap(), BTreeMap::new());
        let uid: Arc<str> = "u".into();
        let names =
            ["h0", "h", "h"].map(|h| (Arc::clone(&uid), format!("kubernetes.io/csi/d^{h}")));
        assert_eq!(volumes_of_all_pods(root), names);
    }

    #[test]
    fn a_volume_is_staged_while_a_pod_has_it() {
        let home = tempfile::tempdir().unwrap();
        let (root, pod) = (home.path(), home.path().join("pods/b"));
        let volume = record("pv", "h", false);
        let is_used = |of: &VolumeRecord| is_used(root, &of.into()).unwrap();
        assert!(!is_used(&volume));
        record("pv-2", "h", false).save(&pod).unwrap();
        assert!(is_used(&volume), "two PersistentVolumes of one handle are staged once");
        assert!(!is_used(&record("pv", "h", true)));
        assert!(!is_used(&record("pv", "h2", false)));
        record("pv-2", "h", false).remove(&pod).unwrap();
        assert!(!is_used(&volume));
    }

    #[test]
    fn staged_volumes_without_a_pod_are_found() {
        let home = tempfile::tempdir().unwrap();
        let (root, pod) = (home.path(), home.path().join("pods/a"));
        assert!(unused_staged(root).is_empty());
        for handle in ["used", "left"] {
            let data = VolumeData { volume_handle: handle.into(), ..data() };
            data.save(paths::staging_path(root, "d", handle).parent().unwrap()).unwrap();
            let data = VolumeData { spec_vol_id: handle.into(), ..data };
            data.save(&paths::BlockPaths::new(root, handle).data).unwrap();
        }
        record("pv", "used", false).save(&pod).unwrap();
        record("used", "used", true).save(&pod).unwrap();
        // That of another layout, and a file.
        data().save(&paths::plugin_dir(root).join("pv/x")).unwrap();
        std::fs::write(paths::plugin_dir(root).join("d/file"), "").unwrap();
        let left = |device: Option<&str>| StagedVolume {
            driver: "d".into(),
            handle: "left".into(),
            device: device.map(str::to_owned),
        };
        assert_eq!(unused_staged(root), [left(None), left(Some("left"))]);
    }
}
