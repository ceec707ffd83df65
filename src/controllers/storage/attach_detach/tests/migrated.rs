//! Volumes of removed in-tree plugins, which CSI drivers attach.

use super::*;

const DRIVER: &str = "cinder.csi.openstack.org";

fn key(node: &str) -> String {
    format!("/{}", VolumeName::new(DRIVER, "c-1").attachment(node))
}

fn inline_pod(name: &str, node: &str) -> Value {
    let mut pod = pod(name, node);
    pod["spec"]["volumes"] = json!([{"name": "v", "cinder": {"volumeID": "c-1"}}]);
    pod
}

#[tokio::test(start_paused = true)]
async fn a_migrated_volume_is_attached_by_its_driver() {
    let mut in_tree = volume().1;
    in_tree["spec"]["csi"] = Value::Null;
    in_tree["spec"]["cinder"] = json!({"volumeID": "c-1"});
    let cluster = Cluster::start(base_objects());
    cluster.put("persistentvolumes", in_tree);
    cluster.put("pods", pod("p", "n1"));
    assert_eq!(cluster.requests().await, ["POST volumeattachments"]);
    assert_eq!(
        cluster.get("volumeattachments", &key("n1")).unwrap()["spec"],
        json!({"attacher": DRIVER, "nodeName": "n1", "source": {"persistentVolumeName": "pv"}})
    );
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_inline_volume_is_attached_with_its_translation_and_detached_after_its_pod() {
    let cluster = Cluster::start(vec![node("n1")]);
    cluster.put("pods", inline_pod("p", "n1"));
    assert_eq!(cluster.requests().await, ["POST volumeattachments"]);
    let attachment = cluster.get("volumeattachments", &key("n1")).unwrap();
    let source = &attachment["spec"]["source"];
    assert!(source["persistentVolumeName"].is_null());
    let spec = &source["inlineVolumeSpec"];
    assert_eq!(spec["csi"]["driver"], DRIVER);
    assert_eq!(spec["csi"]["volumeHandle"], "c-1");
    assert_eq!(spec["accessModes"], json!(["ReadWriteOnce"]));
    cluster.edit("volumeattachments", &key("n1"), |attachment| {
        attachment["status"] = json!({"attached": true});
    });
    assert_eq!(cluster.requests().await, ["PATCH nodes"]);
    let success = format!(
        "SuccessfulAttachVolume AttachVolume.Attach succeeded for volume \"{DRIVER}-c-1\" "
    );
    assert_eq!(cluster.events(), [success]);
    cluster.remove("pods", "a/p");
    let detach = ["PATCH nodes", "GET nodes", "DELETE volumeattachments"];
    assert_eq!(cluster.requests().await, detach);
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_attachment_of_an_inline_volume_without_pod_is_deleted_after_a_restart() {
    let attachment = json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
        "metadata": {"name": &key("n1")[1..], "uid": "a"},
        "spec": {"attacher": DRIVER, "nodeName": "n1", "source": {"inlineVolumeSpec":
            {"accessModes": ["ReadWriteOnce"], "csi": {"driver": DRIVER, "volumeHandle": "c-1"}}}},
        "status": {"attached": true}});
    let cluster = Cluster::start(vec![node("n1"), ("volumeattachments", attachment)]);
    let detach = ["PATCH nodes", "GET nodes", "DELETE volumeattachments"];
    assert_eq!(cluster.requests().await, detach);
    cluster.stop().await;
}
