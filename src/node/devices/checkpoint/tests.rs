//! Checkpoints as the kubelet 1.37.1 writes them.

use proto::deviceplugin::{CdiDevice, DeviceSpec, Mount};

use super::*;
use crate::devices::records::WITHOUT_TOPOLOGY;

/// Two containers, written by upstream's package with these devices.
const RECORDED: &str = concat!(
    r#"{"Data":{"PodDeviceEntries":[{"PodUID":"pod1","ContainerName":"con1","#,
    r#""ResourceName":"example.com/foo","#,
    r#""DeviceIDs":{"-1":["d3"],"0":["d1"],"1":["d1","d2"],"10":["d4"]},"#,
    r#""AllocResp":"CgwKA0ZPTxIFZDEsZDISCgoCL2MSAi9oGAEaFQoGL2Rldi9hEgYvZGV2L2IaA21ydyIGCgFrEgF2"#,
    r#"KhQKEmV4YW1wbGUuY29tL2Zvbz1kMQ=="},"#,
    r#"{"PodUID":"pod1","ContainerName":"con2","ResourceName":"example.com/foo","#,
    r#""DeviceIDs":{"-1":["d5"]},"AllocResp":""}],"#,
    r#""RegisteredDevices":{"example.com/bar":[],"example.com/foo":["d1","d2","d3"]}},"#,
    r#""Checksum":630511014}"#,
);
/// Without allocations.
const EMPTY: &str =
    r#"{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":3467439661}"#;

fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

/// The checkpoint that the recorded text describes.
fn recorded() -> Checkpoint {
    let response = ContainerAllocateResponse {
        envs: [("FOO".to_owned(), "d1,d2".to_owned())].into(),
        mounts: vec![Mount {
            container_path: "/c".to_owned(),
            host_path: "/h".to_owned(),
            read_only: true,
        }],
        devices: vec![DeviceSpec {
            container_path: "/dev/a".to_owned(),
            host_path: "/dev/b".to_owned(),
            permissions: "mrw".to_owned(),
        }],
        annotations: [("k".to_owned(), "v".to_owned())].into(),
        cdi_devices: vec![CdiDevice { name: "example.com/foo=d1".to_owned() }],
    };
    let ids_by_node = BTreeMap::from([
        (WITHOUT_TOPOLOGY, texts(&["d3"])),
        (0, texts(&["d1"])),
        (1, texts(&["d1", "d2"])),
        (10, texts(&["d4"])),
    ]);
    let mut devices = PodDevices::default();
    let resource = "example.com/foo";
    devices.insert("pod1", "con1", resource, Allocation { ids_by_node, response });
    let ids_by_node = BTreeMap::from([(WITHOUT_TOPOLOGY, texts(&["d5"]))]);
    devices.insert("pod1", "con2", resource, Allocation { ids_by_node, ..Allocation::default() });
    let registered = BTreeMap::from([
        ("example.com/bar".to_owned(), Vec::new()),
        (resource.to_owned(), texts(&["d1", "d2", "d3"])),
    ]);
    Checkpoint { devices, registered }
}

#[test]
fn a_checkpoint_of_the_kubelet_is_read_and_written_byte_for_byte() {
    assert_eq!(Checkpoint::parse(RECORDED.as_bytes()).unwrap(), recorded());
    assert_eq!(String::from_utf8(recorded().to_json().unwrap()).unwrap(), RECORDED);
    assert_eq!(Checkpoint::parse(EMPTY.as_bytes()).unwrap(), Checkpoint::default());
    assert_eq!(String::from_utf8(Checkpoint::default().to_json().unwrap()).unwrap(), EMPTY);
    let nil =
        r#"{"Data":{"PodDeviceEntries":null,"RegisteredDevices":null},"Checksum":1944006890}"#;
    assert_eq!(Checkpoint::parse(nil.as_bytes()).unwrap(), Checkpoint::default());
}

#[test]
fn a_changed_or_truncated_checkpoint_is_corrupt() {
    let changed = RECORDED.replace("\"d5\"", "\"d6\"");
    let error = Checkpoint::parse(changed.as_bytes()).unwrap_err();
    assert_eq!(error.to_string(), "checkpoint is corrupted");
    let truncated = RECORDED.as_bytes().get(..100).unwrap();
    assert!(matches!(Checkpoint::parse(truncated), Err(CheckpointError::Json(_))));
    assert!(matches!(Checkpoint::parse(b""), Err(CheckpointError::Json(_))));
}

#[test]
fn an_entry_whose_response_cannot_be_decoded_is_left_out() {
    let mut data = CheckpointData {
        entries: Some(recorded().devices.all().map(entry).collect()),
        registered: Some(BTreeMap::new()),
    };
    if let Some(first) = data.entries.as_mut().and_then(|entries| entries.first_mut()) {
        first.response = Some(STANDARD.encode([0xff, 0xff]));
    }
    let checksum = u64::from(checksum(&dump(&data)));
    let text = serde_json::to_vec(&CheckpointFile { data, checksum }).unwrap();
    let devices = Checkpoint::parse(&text).unwrap().devices;
    let left: Vec<&str> = devices.all().map(|(_, container, ..)| container).collect();
    assert_eq!(left, ["con2"]);
}
