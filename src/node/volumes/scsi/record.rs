//! What is kept on disk about the users of volumes: one record for each volume of a pod. Volumes of
//! another kubelet have none, and are found in the table of mounts and below the global map path.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sorting::CompactSort as _;

use super::volume::{GlobalVolume, ScsiVolume, plugin_dir, pod_path};
use crate::volumes::mounts::{self, Mount};
use crate::volumes::selinux::labels::{HeldLabels, VolumeLabels};
use crate::volumes::selinux::mount_option::mounted_label;
use crate::volumes::{fibre_channel, iscsi};

/// Directory of a pod with its records, which is kube-lite's own.
const RECORDS: &str = "plugins/kube-lite~scsi";
/// Maximum size of a record in bytes: some names and a path.
const RECORD_MAX: u64 = 64 << 10;

/// A volume that a pod uses, or is about to use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct UseRecord {
    pub(crate) plugin: String,
    /// Name of the PersistentVolume or of the inline volume.
    pub(crate) spec_name: String,
    pub(crate) is_block: bool,
    /// The path at which all pods share the volume.
    pub(crate) global: PathBuf,
    /// The name in the status of the Node; empty for a volume of another kubelet.
    pub(crate) unique_name: String,
    /// Its SELinux labels.
    #[serde(default, skip_serializing_if = "VolumeLabels::is_empty")]
    pub(crate) labels: VolumeLabels,
}

fn file_of(pod_dir: &Path, plugin: &str, spec_name: &str) -> PathBuf {
    let name = format!("{}~{spec_name}.json", plugin.replace('/', "~"));
    pod_dir.join(RECORDS).join(name)
}

impl UseRecord {
    /// The record of a volume with these labels.
    pub(crate) fn of(volume: &ScsiVolume, labels: &VolumeLabels, root: &Path) -> Self {
        Self {
            plugin: volume.plugin().to_owned(),
            spec_name: volume.spec_name.clone(),
            is_block: volume.is_block,
            global: volume.global_path(root),
            unique_name: volume.unique_name.clone(),
            labels: labels.clone(),
        }
    }

    /// Whether the pod has the record.
    pub(crate) fn exists(&self, pod_dir: &Path) -> bool {
        read(&file_of(pod_dir, &self.plugin, &self.spec_name)).is_some_and(|found| found == *self)
    }

    /// Writes the record.
    pub(crate) fn save(&self, pod_dir: &Path) -> io::Result<()> {
        let path = file_of(pod_dir, &self.plugin, &self.spec_name);
        base::fs::create_dir(&pod_dir.join(RECORDS), 0o750)?;
        let text = serde_json::to_vec(self).map_err(io::Error::from)?;
        base::fs::write_atomic(&path, &text, 0o644)
    }

    /// Removes the record.
    pub(crate) fn remove(&self, pod_dir: &Path) -> io::Result<()> {
        match std::fs::remove_file(file_of(pod_dir, &self.plugin, &self.spec_name)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// The path in the directory of the pod.
    pub(crate) fn pod_path(&self, pod_dir: &Path) -> PathBuf {
        pod_path(pod_dir, &self.plugin, &self.spec_name, self.is_block)
    }
}

/// Reads a record; one that is damaged counts as none, as the mounts are found without it.
fn read(path: &Path) -> Option<UseRecord> {
    let length = std::fs::metadata(path).ok()?.len();
    let text = (length <= RECORD_MAX).then(|| std::fs::read(path).ok()).flatten()?;
    serde_json::from_slice(&text).ok()
}

/// Returns the entries of a directory, none if it does not exist.
pub(super) fn entries(directory: &Path) -> io::Result<Vec<PathBuf>> {
    match std::fs::read_dir(directory) {
        Ok(entries) => entries.map(|entry| entry.map(|e| e.path())).collect(),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(e),
    }
}

/// The global path with the same file system as the volume of a pod, and the label with which it is
/// mounted.
fn global_of_mount<'a>(
    root: &Path,
    table: &'a [Mount],
    path: &Path,
) -> Option<(GlobalVolume, &'a str)> {
    let volume = table.iter().rev().find(|mount| mount.point == path)?;
    let shared = table.iter().filter(|mount| mount.is_same_file_system(volume));
    let global = shared.filter_map(|mount| GlobalVolume::at(root, &mount.point)).next()?;
    Some((global, mounted_label(volume.options())))
}

/// The global map path that has the device of a pod under the name of the pod.
fn global_of_device(root: &Path, plugin: &str, pod_dir: &Path, link: &Path) -> Option<PathBuf> {
    use std::os::unix::fs::MetadataExt as _;
    let (uid, device) = (pod_dir.file_name()?, std::fs::metadata(link).ok()?.rdev());
    let found = all_of_plugin(root, plugin, true).ok()?.into_iter();
    let is_it = |global: &PathBuf| {
        std::fs::metadata(global.join(uid)).is_ok_and(|file| file.rdev() == device)
    };
    found.map(|volume| volume.path).find(is_it)
}

/// Returns the volumes of a pod by plugin and name: those with a record, and those that another
/// kubelet left. `root` is the directory of the kubelet.
pub(super) fn volumes_of_pod(root: &Path, pod_dir: &Path) -> io::Result<Vec<UseRecord>> {
    let mut out = BTreeMap::new();
    for path in entries(&pod_dir.join(RECORDS))? {
        if let Some(record) = read(&path) {
            out.insert((record.plugin.clone(), record.spec_name.clone()), record);
        }
    }
    let mut table = None;
    for plugin in [iscsi::PLUGIN, fibre_channel::PLUGIN] {
        for is_block in [false, true] {
            let directory = pod_path(pod_dir, plugin, "", is_block);
            for path in entries(&directory)? {
                let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
                let key = (plugin.to_owned(), name.to_owned());
                if out.contains_key(&key) {
                    continue;
                }
                let global = if is_block {
                    let global = global_of_device(root, plugin, pod_dir, &path);
                    global.map(|global| (global, String::new()))
                } else {
                    let table = match &mut table {
                        Some(table) => table,
                        none => none.insert(mounts::table()?),
                    };
                    let found = global_of_mount(root, table, &path);
                    found.map(|(volume, label)| (volume.path, label.to_owned()))
                };
                let Some((global, label)) = global else { continue };
                let labels = VolumeLabels { needed: label.clone(), mount: label };
                let (spec_name, unique_name) = (name.to_owned(), String::new());
                let plugin = plugin.to_owned();
                let record = UseRecord { plugin, spec_name, is_block, global, unique_name, labels };
                out.insert(key, record);
            }
        }
    }
    Ok(out.into_values().collect())
}

/// Returns the users of volumes: the uid of a pod and its records. Pods whose directories cannot be
/// read are left out.
pub(super) fn volumes_of_all_pods(root: &Path) -> Vec<(Arc<str>, Vec<UseRecord>)> {
    let mut out = Vec::new();
    for pod in entries(&root.join("pods")).unwrap_or_default() {
        let Some(uid) = pod.file_name().and_then(|name| name.to_str()) else { continue };
        let volumes = volumes_of_pod(root, &pod).unwrap_or_default();
        if !volumes.is_empty() {
            out.push((uid.into(), volumes));
        }
    }
    out
}

/// The volumes of all pods with their labels; those of another kubelet have no name.
pub(crate) fn labels_of_volumes(root: &Path) -> Vec<HeldLabels> {
    let mut out = Vec::new();
    for (uid, records) in volumes_of_all_pods(root) {
        let named = records.into_iter().filter(|record| !record.unique_name.is_empty());
        out.extend(named.map(|record| (Arc::clone(&uid), record.unique_name, record.labels)));
    }
    out
}

/// The labels with which pods other than that of `own` have mounted the volume with this global
/// path.
pub(super) fn labels_of_others(root: &Path, own: &Path, global: &Path) -> io::Result<Vec<String>> {
    let mut out = Vec::new();
    for pod in entries(&root.join("pods"))?.into_iter().filter(|pod| pod != own) {
        let volumes = volumes_of_pod(root, &pod)?.into_iter();
        let of_volume = volumes.filter(|record| record.global == global);
        out.extend(of_volume.map(|record| record.labels.mount));
    }
    Ok(out)
}

/// Whether a pod uses the volume with this global path.
pub(super) fn is_used(root: &Path, global: &Path) -> io::Result<bool> {
    for pod in entries(&root.join("pods"))? {
        if volumes_of_pod(root, &pod)?.iter().any(|record| record.global == global) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The global paths of a plugin.
fn all_of_plugin(root: &Path, plugin: &str, is_block: bool) -> io::Result<Vec<GlobalVolume>> {
    let is_iscsi = plugin == iscsi::PLUGIN;
    let mut paths = Vec::new();
    for path in entries(&plugin_dir(root, plugin, is_block))? {
        if !path.is_dir() || path.file_name().is_some_and(|name| name == "volumeDevices") {
            continue;
        }
        // Volumes of iSCSI are in a directory for each interface.
        if is_iscsi { paths.extend(entries(&path)?) } else { paths.push(path) }
    }
    paths.compact_sort();
    Ok(paths.into_iter().map(|path| GlobalVolume { path, is_block, is_iscsi }).collect())
}

/// The global paths of all volumes that are attached, or were about to be. What cannot be read is
/// left out.
pub(super) fn all_global(root: &Path) -> Vec<GlobalVolume> {
    let mut out = Vec::new();
    for plugin in [iscsi::PLUGIN, fibre_channel::PLUGIN] {
        for is_block in [false, true] {
            out.extend(all_of_plugin(root, plugin, is_block).unwrap_or_default());
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(root: &Path, name: &str, is_block: bool) -> UseRecord {
        let plugin = fibre_channel::PLUGIN.to_owned();
        UseRecord {
            global: plugin_dir(root, &plugin, is_block).join("500a-lun-0"),
            plugin,
            spec_name: name.to_owned(),
            is_block,
            unique_name: "kubernetes.io/fc/[500a]:0".to_owned(),
            labels: VolumeLabels::default(),
        }
    }

    #[test]
    fn a_volume_is_used_while_a_pod_has_a_record() {
        let home = tempfile::tempdir().unwrap();
        let (root, pod) = (home.path(), home.path().join("pods/a"));
        let files = record(root, "pv", false);
        assert!(!is_used(root, &files.global).unwrap());
        files.save(&pod).unwrap();
        assert!(files.exists(&pod) && is_used(root, &files.global).unwrap());
        assert!(!is_used(root, &record(root, "pv", true).global).unwrap());
        let uid: Arc<str> = "a".into();
        assert_eq!(volumes_of_all_pods(root), [(uid, vec![files.clone()])]);
        std::fs::write(pod.join(RECORDS).join("damaged.json"), "{").unwrap();
        assert_eq!(volumes_of_pod(root, &pod).unwrap(), std::slice::from_ref(&files));
        files.remove(&pod).unwrap();
        files.remove(&pod).unwrap();
        assert!(volumes_of_pod(root, &pod).unwrap().is_empty());
    }

    #[test]
    fn mounts_of_another_kubelet_lead_to_their_global_path() {
        let global = "/k/plugins/kubernetes.io/iscsi/iface-default/10.0.0.1:3260-iqn.x-lun-0";
        let path = "/k/pods/u/volumes/kubernetes.io~iscsi/pv";
        let table = format!(
            "30 1 8:1 / {global} rw - ext4 /dev/sda1 rw\n31 1 8:1 / {path} rw - ext4 /dev/sda1 rw\n\
             32 1 8:2 / /k/pods/u/volumes/kubernetes.io~iscsi/x rw - ext4 /dev/sda2 rw"
        );
        let table: Vec<Mount> = table.lines().map(|line| Mount::parse(line).unwrap()).collect();
        let of = |path: &str| global_of_mount(Path::new("/k"), &table, Path::new(path));
        assert_eq!(of(path).unwrap().0.path, Path::new(global));
        assert_eq!(of("/k/pods/u/volumes/kubernetes.io~iscsi/x"), None);
        assert_eq!(of("/k/pods/u/volumes/kubernetes.io~iscsi/none"), None);
    }

    #[test]
    fn global_paths_are_found_in_the_directories_of_both_plugins() {
        let home = tempfile::tempdir().unwrap();
        let root = home.path();
        assert!(all_global(root).is_empty());
        for path in [
            "iscsi/iface-default/p:3260-iqn.x-lun-0",
            "iscsi/volumeDevices/iface-a/p:3260-iqn.x-lun-1",
            "fc/500a-lun-0",
            "fc/volumeDevices/3600",
        ] {
            std::fs::create_dir_all(root.join("plugins/kubernetes.io").join(path)).unwrap();
        }
        let found = all_global(root);
        let kinds: Vec<_> = found.iter().map(|v| (v.is_iscsi, v.is_block)).collect();
        assert_eq!(kinds, [(true, false), (true, true), (false, false), (false, true)]);
    }
}
