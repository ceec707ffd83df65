//! Disks on a fake machine, with the cases of upstream's tests.

use std::os::unix::fs::symlink;
use std::path::Path;

use api::k8s::api::core::v1::FCVolumeSource;
use serde_json::{Value, json};

use super::{FcDisk, attach, detach, detach_unless_used};
use crate::volumes::scsi::fake::FakeMachine;

const WWN: &str = "500a0981891b8dc5";
const WWID: &str = "3600508b400105e210000900000490000";

fn disk(source: Value) -> FcDisk {
    let source: FCVolumeSource = serde_json::from_value(source).unwrap();
    FcDisk::new(&source).unwrap()
}

/// A machine with the device `sda` behind both links, and `sdb` without a link.
fn machine() -> FakeMachine {
    let machine = FakeMachine::new();
    for path in ["dev/sda", "dev/sdb", "sys/class/scsi_host/host0/scan"] {
        machine.write(path, "");
    }
    for name in ["sda", "sdb"] {
        machine.write(&format!("sys/block/{name}/device/delete"), "");
    }
    for link in [
        machine.scsi.files.by_path().join(format!("pci-0000:41:00.0-fc-0x{WWN}-lun-0")),
        machine.scsi.files.by_id().join(format!("scsi-{WWID}")),
        machine.scsi.files.by_id().join("scsi-0_QEMU_HARDDISK"),
    ] {
        std::fs::create_dir_all(link.parent().unwrap()).unwrap();
        symlink(machine.device("sda"), link).unwrap();
    }
    machine
}

/// Cases of `TestSearchDisk`.
#[tokio::test(start_paused = true)]
async fn a_disk_is_found_by_target_or_identifier() {
    let machine = machine();
    for source in [
        json!({"targetWWNs": [WWN], "lun": 0}),
        json!({"targetWWNs": ["500a0981891b8dc6", WWN], "lun": 0}),
        json!({"wwids": [WWID]}),
        json!({"wwids": ["0 QEMU HARDDISK"]}),
    ] {
        let found = attach(&machine.scsi, &disk(source.clone())).await.unwrap();
        assert_eq!(found, machine.device("sda"), "{source}");
    }
    assert_eq!(machine.read("sys/class/scsi_host/host0/scan"), "- - -");
    for source in [json!({"targetWWNs": [WWN], "lun": 1}), json!({"wwids": ["none"]})] {
        let error = attach(&machine.scsi, &disk(source)).await.unwrap_err();
        assert_eq!(error.to_string(), "no fc disk found");
    }
}

#[tokio::test]
async fn a_multipath_device_is_used_and_flushed_with_its_paths() {
    let machine = machine();
    machine.write("dev/dm-1", "");
    for path in ["sda", "sdb"] {
        machine.write(&format!("sys/block/dm-1/slaves/{path}"), "");
    }
    let of = disk(json!({"targetWWNs": [WWN], "lun": 0}));
    let device = attach(&machine.scsi, &of).await.unwrap();
    assert_eq!(device, machine.scsi.files.device("dm-1"));
    assert_eq!(machine.read("sys/class/scsi_host/host0/scan"), "", "no scan is needed");
    detach(&machine.scsi, &device).await.unwrap();
    let dev = |name: &str| machine.scsi.files.device(name).display().to_string();
    assert_eq!(
        machine.programs.take_calls(),
        [
            format!("multipath -f {}", dev("dm-1")),
            format!("blockdev --flushbufs {}", dev("sda")),
            format!("blockdev --flushbufs {}", dev("sdb")),
        ]
    );
    for name in ["sda", "sdb"] {
        assert_eq!(machine.read(&format!("sys/block/{name}/device/delete")), "1");
    }
}

#[tokio::test]
async fn paths_stay_when_a_multipath_device_cannot_be_flushed() {
    let machine = machine();
    machine.write("dev/dm-1", "");
    machine.write("sys/block/dm-1/slaves/sda", "");
    machine.programs.behaviour.lock().failing = vec![("dm-1", 1)];
    let device = machine.scsi.files.device("dm-1");
    let error = detach(&machine.scsi, &device).await.unwrap_err().to_string();
    assert!(error.starts_with("failed to flush multipath device"), "{error}");
    assert_eq!(machine.read("sys/block/sda/device/delete"), "");
}

#[tokio::test]
async fn the_device_of_a_block_volume_is_found_again_and_removed() {
    let machine = machine();
    let of = disk(json!({"wwids": [WWID]}));
    detach_unless_used(&machine.scsi, &of).await.unwrap();
    assert_eq!(machine.read("sys/block/sda/device/delete"), "1");
    machine.programs.take_calls();
    detach_unless_used(&machine.scsi, &disk(json!({"wwids": ["none"]}))).await.unwrap();
    assert!(machine.programs.take_calls().is_empty());
}

/// Cases of `TestParsePDName`.
#[test]
fn a_global_path_names_the_disk() {
    let of = |name: &str| FcDisk::load(&Path::new("/k/plugins/kubernetes.io/fc").join(name));
    let target = |wwns: &[&str], lun: &str| FcDisk::Target {
        wwns: wwns.iter().map(|wwn| (*wwn).to_owned()).collect(),
        lun: lun.to_owned(),
    };
    let identifier = |wwids: &[&str]| FcDisk::Identifier {
        wwids: wwids.iter().map(|wwid| (*wwid).to_owned()).collect(),
    };
    assert_eq!(of("50050768030539b6-lun-0").unwrap(), target(&["50050768030539b6"], "0"));
    assert_eq!(of("a-b-lun-0").unwrap(), target(&["a", "b"], "0"));
    assert_eq!(of(WWID).unwrap(), identifier(&[WWID]));
    assert_eq!(of("a-b").unwrap(), identifier(&["a", "b"]));
    assert!(of("lun-0").is_err(), "no name of a target");
    assert!(of("a-lun-b").is_err(), "no number");
}

/// Cases of `Test_getWwnsLunWwids`.
#[test]
fn a_source_without_a_disk_is_refused() {
    for source in [json!({}), json!({"lun": 0}), json!({"targetWWNs": [WWN]})] {
        let parsed = FcDisk::new(&serde_json::from_value(source.clone()).unwrap());
        assert!(parsed.is_err(), "{source}");
    }
    let both = disk(json!({"targetWWNs": [WWN], "lun": 0, "wwids": [WWID]}));
    assert_eq!(both.global_name(), format!("{WWN}-lun-0"));
}
