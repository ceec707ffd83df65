//! Volumes of pods on a fake machine. What mounts is tested by the suite `45-scsi-volumes`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::json;

use super::fake::FakeMachine;
use super::record::{self, UseRecord};
use super::set_up::SetUp;
use super::volume::{GlobalVolume, ScsiVolume};
use crate::volumes::selinux::labels::VolumeLabels;

const IQN: &str = "iqn.2014-12.com.example:d";

fn volume(name: &str, fields: serde_json::Value) -> ScsiVolume {
    let mut spec = fields;
    spec["iscsi"]["targetPortal"] = "10.0.0.1".into();
    spec["iscsi"]["iqn"] = IQN.into();
    if spec["iscsi"]["lun"].is_null() {
        spec["iscsi"]["lun"] = 0.into();
    }
    let spec = serde_json::from_value(spec).unwrap();
    ScsiVolume::persistent((name, "v"), &spec, false, "default").unwrap().unwrap()
}

fn none() -> VolumeLabels {
    VolumeLabels::default()
}

impl FakeMachine {
    fn pod_dir(&self, uid: &str) -> PathBuf {
        self.scsi.root.join("pods").join(uid)
    }

    async fn set_up(&self, uid: &str, volume: ScsiVolume) -> Result<(), String> {
        self.operation(uid, volume).run().await.map(drop).map_err(|error| error.to_string())
    }

    fn operation(&self, uid: &str, volume: ScsiVolume) -> SetUp {
        SetUp {
            scsi: Arc::clone(&self.scsi),
            pod_uid: uid.into(),
            pod_dir: self.pod_dir(uid),
            volume,
            group: None,
            labels: VolumeLabels::default(),
            has_selinux: false,
        }
    }

    fn at(&self, path: &Path) -> GlobalVolume {
        GlobalVolume::at(&self.scsi.root, path).unwrap()
    }
}

#[tokio::test]
async fn a_volume_that_is_not_set_up_has_a_record_before_it_is_attached() {
    let machine = FakeMachine::new();
    machine.programs.behaviour.lock().is_missing = true;
    let volume = volume("pv", json!({}));
    let record = UseRecord::of(&volume, &none(), &machine.scsi.root);
    let error = machine.set_up("u", volume.clone()).await.unwrap_err();
    let start = "MountVolume.WaitForAttach failed for volume \"pv\" : cannot run iscsiadm";
    assert!(error.starts_with(start), "{error}");
    assert!(record.exists(&machine.pod_dir("u")));
}

#[tokio::test]
async fn a_missing_secret_is_named_before_anything_is_attached() {
    let machine = FakeMachine::new();
    let chap = json!({"iscsi": {"chapAuthSession": true, "secretRef": {"name": "chap"}}});
    let error = machine.set_up("u", volume("pv", chap)).await.unwrap_err();
    let start = "MountVolume.NewMounter initialization failed for volume \"pv\" : couldn't get \
        secret default/chap error: ";
    assert!(error.starts_with(start), "{error}");
    assert!(machine.programs.take_calls().is_empty());
}

/// The fake device is a file, which is no block device.
#[tokio::test]
async fn a_volume_stays_while_a_pod_uses_it_and_the_session_while_a_volume_does() {
    let machine = FakeMachine::new();
    let block =
        |name: &str, lun: u32| volume(name, json!({"volumeMode": "Block", "iscsi": {"lun": lun}}));
    let first = block("pv", 0);
    let path = first.global_path(&machine.scsi.root);
    let error = machine.set_up("a", first.clone()).await.unwrap_err();
    let start = "MapVolume.MapBlockVolume failed for volume \"pv\" : ";
    assert!(error.starts_with(start) && error.ends_with("is not a block device"), "{error}");
    assert!(path.join("iscsi.json").exists());
    let record = UseRecord::of(&first, &none(), &machine.scsi.root);
    record.save(&machine.pod_dir("b")).unwrap();
    machine.programs.take_calls();
    // Two pods have it.
    record.remove(&machine.pod_dir("a")).unwrap();
    machine.scsi.detach_unless_used(&machine.at(&path)).await.unwrap();
    assert!(machine.programs.take_calls().is_empty() && path.exists());
    // Another LUN of the target.
    let second = block("pv-2", 1).global_path(&machine.scsi.root);
    std::fs::create_dir_all(&second).unwrap();
    record.remove(&machine.pod_dir("b")).unwrap();
    machine.scsi.detach_unless_used(&machine.at(&path)).await.unwrap();
    assert!(machine.programs.take_calls().is_empty(), "the session is in use");
    assert!(!path.exists());
    assert_eq!(machine.read("sys/block/sd1/device/delete"), "1");
    // The last one: without a file, its path says what to do.
    machine.scsi.detach_unless_used(&machine.at(&second)).await.unwrap();
    let node = format!("iscsiadm -m node -p 10.0.0.1:3260 -T {IQN} -I default");
    let want = [format!("{node} --logout"), format!("{node} -o delete")];
    assert_eq!(machine.programs.take_calls(), want);
    assert!(!second.exists());
}

#[tokio::test]
async fn a_pod_waits_until_another_one_has_unmounted_the_volume_with_its_label() {
    let machine = FakeMachine::new();
    machine.programs.behaviour.lock().is_missing = true;
    let (volume, root) = (volume("pv", json!({})), &machine.scsi.root);
    let labels = |label: &str| VolumeLabels { mount: label.into(), needed: label.into() };
    UseRecord::of(&volume, &labels("one"), root).save(&machine.pod_dir("a")).unwrap();
    let run = async |label: &str, has_selinux| {
        let operation = machine.operation("b", volume.clone());
        let operation = SetUp { labels: labels(label), has_selinux, ..operation };
        operation.run().await.unwrap_err().to_string()
    };
    let waits = "waiting for unmount of volume \
        \"kubernetes.io/iscsi/10.0.0.1:iqn.2014-12.com.example:d:0\", because it is already \
        mounted to a different pod with a different SELinux label";
    assert_eq!(run("two", true).await, waits);
    assert!(machine.programs.take_calls().is_empty());
    assert!(!UseRecord::of(&volume, &labels("two"), root).exists(&machine.pod_dir("b")));
    // The same label, and a kernel without SELinux.
    for (label, has_selinux) in [("one", true), ("two", false)] {
        let error = run(label, has_selinux).await;
        assert!(error.contains("cannot run iscsiadm"), "{error}");
    }
    let held = record::labels_of_volumes(root);
    assert!(held.iter().any(|(uid, _, held)| &**uid == "a" && *held == labels("one")), "{held:?}");
}

#[tokio::test]
async fn what_an_earlier_process_left_is_found() {
    let machine = FakeMachine::new();
    let root = &machine.scsi.root;
    let used = volume("pv", json!({"iscsi": {"lun": 1}}));
    let left = volume("pv", json!({"iscsi": {"lun": 2}}));
    for volume in [&used, &left] {
        std::fs::create_dir_all(volume.global_path(root)).unwrap();
    }
    UseRecord::of(&used, &none(), root).save(&machine.pod_dir("u")).unwrap();
    let found = super::detach::left_volumes(root);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].volume.path, left.global_path(root));
    assert!(found[0].names.contains(&left.unique_name));
    assert!(record::is_used(root, &used.global_path(root)).unwrap());
}

#[tokio::test]
async fn a_fibre_channel_volume_that_is_not_mounted_leaves_only_its_directory() {
    let machine = FakeMachine::new();
    let path = machine.scsi.root.join("plugins/kubernetes.io/fc/500a-lun-0");
    std::fs::create_dir_all(&path).unwrap();
    machine.scsi.detach_unless_used(&machine.at(&path)).await.unwrap();
    assert!(!path.exists());
    assert!(machine.programs.take_calls().is_empty());
}
