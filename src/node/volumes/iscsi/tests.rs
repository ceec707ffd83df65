//! Attach and detach on a fake machine.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::{Credentials, IscsiDisk, IscsiSource, attach, close_session, delete_devices};
use crate::volumes::scsi::fake::FakeMachine;

const IQN: &str = "iqn.2014-12.com.example:d";

fn source(fields: Value) -> IscsiSource {
    let mut fields = fields;
    fields["iqn"] = IQN.into();
    fields["lun"] = 0.into();
    let source = serde_json::from_value(fields).unwrap();
    IscsiSource::persistent("pv", &source, "default")
}

fn global(machine: &FakeMachine, disk: &IscsiDisk) -> PathBuf {
    machine.scsi.root.join("plugins/kubernetes.io/iscsi").join(disk.global_name())
}

async fn attach_with(
    machine: &FakeMachine,
    source: &IscsiSource,
    credentials: &Credentials,
) -> Result<PathBuf, String> {
    let global = global(machine, &source.disk);
    attach(&machine.scsi, source, credentials, &global).await.map_err(|e| e.to_string())
}

#[tokio::test]
async fn a_login_has_the_calls_of_upstream_and_leaves_a_file() {
    let machine = FakeMachine::new();
    let source = source(json!({"targetPortal": "10.0.0.1"}));
    let device = attach_with(&machine, &source, &Credentials::new()).await.unwrap();
    let link = format!("disk/by-path/ip-10.0.0.1:3260-iscsi-{IQN}-lun-0");
    assert_eq!(device, machine.scsi.files.device(&link));
    let (discovery, node) = (
        "iscsiadm -m discoverydb -t sendtargets -p 10.0.0.1:3260 -I default",
        format!("iscsiadm -m node -p 10.0.0.1:3260 -T {IQN}"),
    );
    assert_eq!(
        machine.programs.take_calls(),
        [
            "iscsiadm -m iface -I default -o show".to_owned(),
            format!("{discovery} -o new"),
            format!("{discovery} --discover"),
            format!("{node} -I default -o update -n node.session.scan -v manual"),
            format!("{node} -I default --login"),
            format!("{node} -o update -n node.startup -v manual"),
        ]
    );
    assert_eq!(machine.read("sys/class/scsi_host/host1/scan"), "0 0 0");
    let loaded = IscsiDisk::load(&global(&machine, &source.disk)).unwrap();
    assert_eq!(loaded, source.disk);
    // The session exists: nothing but a scan.
    attach_with(&machine, &source, &Credentials::new()).await.unwrap();
    assert_eq!(machine.programs.take_calls(), ["iscsiadm -m iface -I default -o show"]);
}

#[tokio::test]
async fn credentials_are_set_before_discovery_and_login_and_not_shown() {
    let machine = FakeMachine::new();
    let source = source(json!({"targetPortal": "10.0.0.1", "chapAuthDiscovery": true,
        "chapAuthSession": true, "secretRef": {"name": "chap"}}));
    let credentials: Credentials = [
        ("discovery.sendtargets.auth.username", "demo"),
        ("node.session.auth.password", "hidden"),
        ("node.session.auth.username_in", ""),
        ("other", "x"),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into();
    attach_with(&machine, &source, &credentials).await.unwrap();
    let calls = machine.programs.take_calls();
    let at = |text: &str| calls.iter().position(|call| call.ends_with(text)).expect(text);
    let order = [
        at("-o new"),
        at("-n discovery.sendtargets.auth.authmethod -v CHAP"),
        at("-n discovery.sendtargets.auth.username -v demo"),
        at("--discover"),
        at("-n node.session.auth.authmethod -v CHAP"),
        at("-n node.session.auth.password -v hidden"),
        at("--login"),
    ];
    assert!(order.is_sorted(), "{calls:?}");
    assert!(!calls.iter().any(|call| call.contains("username_in") || call.contains("other")));
    let machine = FakeMachine::new();
    let failing = ("-n node.session.auth.password -v hidden", 7);
    machine.programs.behaviour.lock().failing = vec![failing];
    let error = attach_with(&machine, &source, &credentials).await.unwrap_err();
    assert_eq!(
        error,
        "failed to get any path for iscsi disk, last err seen:\niscsi: failed to update iscsi node \
         of portal 10.0.0.1:3260 with CHAP, key \"node.session.auth.password\""
    );
}

#[tokio::test]
async fn a_target_that_does_not_answer_is_forgotten() {
    let machine = FakeMachine::new();
    machine.programs.behaviour.lock().unreachable = vec!["10.0.0.1:3260".into()];
    let source = source(json!({"targetPortal": "10.0.0.1"}));
    assert_eq!(
        attach_with(&machine, &source, &Credentials::new()).await.unwrap_err(),
        "failed to get any path for iscsi disk, last err seen:\niscsi: failed to sendtargets to \
         portal 10.0.0.1:3260 output: no answer, err exit status 8"
    );
    let calls = machine.programs.take_calls();
    assert!(calls.last().unwrap().ends_with("-p 10.0.0.1:3260 -I default -o delete"));
    assert!(!global(&machine, &source.disk).exists());
}

#[tokio::test(start_paused = true)]
async fn a_device_that_does_not_appear_is_named() {
    let machine = FakeMachine::new();
    machine.programs.behaviour.lock().without_device = vec!["10.0.0.1:3260".into()];
    let source = source(json!({"targetPortal": "10.0.0.1"}));
    let error = attach_with(&machine, &source, &Credentials::new()).await.unwrap_err();
    let link = format!("disk/by-path/ip-10.0.0.1:3260-iscsi-{IQN}-lun-0");
    let path = machine.scsi.files.device(&link);
    let want = format!("Timed out waiting for device at path {} after 30s", path.display());
    assert!(error.ends_with(&want), "{error}");
}

#[tokio::test]
async fn several_portals_lead_to_the_multipath_device() {
    let machine = FakeMachine::new();
    machine.write("sys/block/dm-0/slaves/sd2", "");
    machine.write("dev/dm-0", "");
    let source = source(json!({"targetPortal": "10.0.0.1", "portals": ["10.0.0.2", "10.0.0.3"]}));
    machine.programs.behaviour.lock().unreachable = vec!["10.0.0.3:3260".into()];
    let device = attach_with(&machine, &source, &Credentials::new()).await.unwrap();
    assert_eq!(device, machine.scsi.files.device("dm-0"));
    let calls = machine.programs.take_calls();
    let discovered = calls.iter().filter(|call| call.ends_with("--discover")).count();
    assert_eq!(discovered, 4, "two paths are enough after the second attempt");
}

#[tokio::test]
async fn an_initiator_name_gets_an_interface_of_its_own() {
    let machine = FakeMachine::new();
    let source = source(json!({"targetPortal": "10.0.0.1",
        "initiatorName": "iqn.2015-02.example.com:init"}));
    attach_with(&machine, &source, &Credentials::new()).await.unwrap();
    let calls = machine.programs.take_calls();
    let iface = "iscsiadm -m iface -I 10.0.0.1:3260:pv";
    for call in [
        format!("{iface} -o new"),
        format!("{iface} -o update -n iface.initiatorname -v iqn.2015-02.example.com:init"),
        format!("{iface} -o update -n iface.mtu -v 0"),
        format!("{iface} -o update -n iface.transport_name -v tcp"),
    ] {
        assert!(calls.contains(&call), "{call} in {calls:?}");
    }
    close_session(&machine.scsi, &source.disk).await.unwrap();
    assert_eq!(machine.programs.take_calls().last().unwrap(), &format!("{iface} -o delete"));
}

#[tokio::test(start_paused = true)]
async fn devices_are_removed_and_sessions_closed_once_per_portal() {
    let machine = FakeMachine::new();
    let source = source(json!({"targetPortal": "10.0.0.1", "portals": ["10.0.0.1:3260"]}));
    attach_with(&machine, &source, &Credentials::new()).await.unwrap();
    machine.write("sys/block/dm-0/slaves/sd1", "");
    machine.programs.take_calls();
    delete_devices(&machine.scsi, &source.disk).await.unwrap();
    let multipath = machine.scsi.files.device("dm-0");
    let flush = format!("multipath -f {}", multipath.display());
    assert_eq!(machine.programs.take_calls(), [flush]);
    assert_eq!(machine.read("sys/block/sd1/device/delete"), "1");
    close_session(&machine.scsi, &source.disk).await.unwrap();
    let node = format!("iscsiadm -m node -p 10.0.0.1:3260 -T {IQN} -I default");
    let want = [format!("{node} --logout"), format!("{node} -o delete")];
    assert_eq!(machine.programs.take_calls(), want);
    // Nothing is left: `iscsiadm` reports that with a status.
    close_session(&machine.scsi, &source.disk).await.unwrap();
    machine.programs.behaviour.lock().failing = vec![("--logout", 7)];
    let error = close_session(&machine.scsi, &source.disk).await.unwrap_err();
    assert_eq!(error.to_string(), "iscsi: failed to log out:  (exit status 7)");
}

#[tokio::test]
async fn a_missing_program_ends_the_attempt() {
    let machine = FakeMachine::new();
    machine.programs.behaviour.lock().is_missing = true;
    let source = source(json!({"targetPortal": "10.0.0.1"}));
    let error = attach_with(&machine, &source, &Credentials::new()).await.unwrap_err();
    assert!(error.contains("install open-iscsi on the node"), "{error}");
    assert_eq!(machine.programs.take_calls().len(), 1);
}
