//! Disks of iSCSI and Fibre Channel: attached by the list of their node alone.

use super::*;

const DISK: &str = "kubernetes.io/iscsi/10.0.0.1:iqn.2014-12.com.example:d:0";

fn source() -> Value {
    json!({"targetPortal": "10.0.0.1", "iqn": "iqn.2014-12.com.example:d", "lun": 0})
}

fn disk_volume() -> (&'static str, Value) {
    let (resource, mut volume) = volume();
    volume["spec"]["csi"] = Value::Null;
    volume["spec"]["iscsi"] = source();
    (resource, volume)
}

fn disk_pod(name: &str, node: &str) -> Value {
    let mut pod = pod(name, node);
    pod["spec"]["volumes"] = json!([{"name": "d", "iscsi": source()}]);
    pod
}

impl Cluster {
    fn use_disk(&self, node: &str, is_used: bool) {
        self.edit("nodes", &format!("/{node}"), |node| {
            node["status"]["volumesInUse"] = if is_used { json!([DISK]) } else { json!([]) };
        });
    }
}

#[tokio::test(start_paused = true)]
async fn a_disk_is_attached_without_a_volume_attachment_to_one_node_at_a_time() {
    let cluster = Cluster::start(vec![node("n1"), node("n2"), claim(), disk_volume()]);
    cluster.put("pods", pod("p", "n1"));
    assert_eq!(cluster.requests().await, ["PATCH nodes"]);
    assert_eq!(cluster.listed("n1"), json!([{"name": DISK, "devicePath": ""}]));
    let success = "SuccessfulAttachVolume AttachVolume.Attach succeeded for volume \"pv\" ";
    assert_eq!(cluster.events(), [success]);
    // A second pod on another node.
    cluster.use_disk("n1", true);
    cluster.put("pods", pod("q", "n2"));
    assert!(cluster.requests().await.is_empty());
    assert_eq!(
        cluster.events(),
        ["FailedAttachVolume Waiting for detach for volume \"pv\" Volume is already used by \
          pod(s) p"]
    );
    // The first pod ends, and its node has unmounted the disk.
    cluster.remove("pods", "a/p");
    assert!(cluster.requests().await.is_empty());
    assert!(!cluster.listed("n1").is_null(), "it is mounted");
    cluster.use_disk("n1", false);
    assert_eq!(cluster.requests().await, ["PATCH nodes", "GET nodes", "PATCH nodes"]);
    assert!(cluster.listed("n1").is_null());
    assert_eq!(cluster.listed("n2"), json!([{"name": DISK, "devicePath": ""}]));
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn inline_disks_are_attached_to_all_nodes_of_their_pods() {
    let cluster = Cluster::start(vec![node("n1"), node("n2")]);
    for (name, node) in [("p", "n1"), ("q", "n2")] {
        cluster.put("pods", disk_pod(name, node));
        assert_eq!(cluster.requests().await, ["PATCH nodes"]);
        assert_eq!(cluster.listed(node), json!([{"name": DISK, "devicePath": ""}]));
    }
    cluster.events();
    cluster.remove("pods", "a/p");
    assert_eq!(cluster.requests().await, ["PATCH nodes", "GET nodes"]);
    assert!(cluster.listed("n1").is_null() && !cluster.listed("n2").is_null());
    assert!(cluster.events().is_empty());
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_list_of_a_node_is_what_another_leader_knows() {
    let (resource, mut first) = node("n1");
    first["status"]["volumesAttached"] = json!([{"name": DISK, "devicePath": ""}]);
    let objects = vec![(resource, first), node("n2"), claim(), disk_volume()];
    let cluster = Cluster::start(objects);
    // No pod needs it, and the node does not use it. The list is all that there is of it.
    assert_eq!(cluster.requests().await, ["PATCH nodes"]);
    assert!(cluster.listed("n1").is_null());
    cluster.stop().await;
}
