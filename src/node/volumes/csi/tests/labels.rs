//! SELinux labels of CSI volumes.

use std::collections::HashMap;
use std::sync::Arc;

use proto::csi::v1 as csi;
use proto::csi::v1::node_service_capability::rpc;
use proto::csi::v1::volume_capability::AccessType;
use serde_json::{Value, json};
use tonic::Code;

use super::{Fixture, until};
use crate::context::NodeIdentity;
use crate::csi::record::{VolumeData, labels_of_volumes};
use crate::machine::Machine;
use crate::pods::admission::supported_fields::{NodeFeatures, SelinuxFeatures};
use crate::pods::pod::{Pod, PodOrigin};
use crate::runtime::RuntimeFeatures;
use crate::volumes;
use crate::volumes::selinux::Selinux;

const CONTEXTS: &str = "process = \"system_u:system_r:container_t:s0\"\n\
    file = \"system_u:object_r:container_file_t:s0\"\n";
const ONE: &str = "system_u:object_r:container_file_t:s0:c1,c2";
const TWO: &str = "system_u:object_r:container_file_t:s0:c3,c4";

/// A pod whose only container has these options.
fn labelled(uid: &str, options: Value) -> Arc<Pod> {
    let object = json!({"metadata": {"name": format!("pod-{uid}"), "namespace": "d", "uid": uid},
        "spec": {"containers": [{"name": "c", "securityContext": {"seLinuxOptions": options},
                "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]}});
    Arc::new(Pod::new(serde_json::from_value(object).unwrap(), PodOrigin::Api).unwrap())
}

fn with_level(uid: &str, level: &str) -> Arc<Pod> {
    labelled(uid, json!({"level": level}))
}

/// A node with a kernel that has SELinux, and a driver that mounts with labels or does not.
async fn fixture(mounts_with_labels: bool) -> Fixture {
    let spec = json!({"attachRequired": false, "volumeLifecycleModes": ["Persistent"],
        "seLinuxMount": mounts_with_labels});
    let selinux = Selinux::with_contexts(CONTEXTS);
    let capabilities = [rpc::Type::StageUnstageVolume];
    let fixture = Fixture::with_selinux(&capabilities, spec, selinux).await;
    fixture.put_volume(json!({"accessModes": ["ReadWriteOncePod"], "mountOptions": ["noatime"]}));
    fixture
}

fn flags(capability: Option<csi::VolumeCapability>) -> Vec<String> {
    match capability.and_then(|c| c.access_type) {
        Some(AccessType::Mount(mount)) => mount.mount_flags,
        _ => panic!("not mounted"),
    }
}

#[tokio::test]
async fn a_volume_is_staged_and_published_with_the_label_of_its_pod() {
    let fixture = fixture(true).await;
    fixture.set_up(&with_level("a", "s0:c1,c2")).await.unwrap();
    let calls = fixture.driver.take_calls();
    let want = ["noatime".to_owned(), format!("context=\"{ONE}\"")];
    let staged: csi::NodeStageVolumeRequest = calls[0].decode();
    assert_eq!(flags(staged.volume_capability), want);
    let published: csi::NodePublishVolumeRequest = calls[1].decode();
    assert_eq!(flags(published.volume_capability), want);
    let volume = fixture.pod_dir("a").join("volumes/kubernetes.io~csi/pv");
    for directory in [fixture.staging_dir(), volume] {
        let data = VolumeData::load(&directory).unwrap().unwrap();
        assert_eq!(data.se_linux_mount_context, ONE);
    }
    let held = labels_of_volumes(&fixture.node.csi.root);
    let [(uid, name, labels)] = &held[..] else { panic!("{held:?}") };
    assert_eq!((&**uid, &**name), ("a", "kubernetes.io/csi/d.example.com^handle"));
    assert_eq!((&*labels.mount, &*labels.needed), (ONE, ONE));
}

#[tokio::test]
async fn volumes_of_other_drivers_pods_and_kernels_have_no_label() {
    let kernel_without = async {
        let spec = json!({"attachRequired": false, "volumeLifecycleModes": ["Persistent"],
            "seLinuxMount": true});
        let fixture = Fixture::new(&[rpc::Type::StageUnstageVolume], spec).await;
        fixture.put_volume(json!({"accessModes": ["ReadWriteOncePod"],
            "mountOptions": ["noatime"]}));
        fixture
    };
    for (fixture, pod) in [
        (fixture(false).await, with_level("a", "s0:c1,c2")),
        (fixture(true).await, labelled("a", Value::Null)),
        (kernel_without.await, with_level("a", "s0:c1,c2")),
    ] {
        fixture.set_up(&pod).await.unwrap();
        let staged: csi::NodeStageVolumeRequest = fixture.driver.take_calls()[0].decode();
        assert_eq!(flags(staged.volume_capability), ["noatime"]);
        let data = VolumeData::load(&fixture.staging_dir()).unwrap().unwrap();
        assert_eq!(data.se_linux_mount_context, "");
    }
}

#[tokio::test]
async fn a_pod_with_another_label_waits_until_the_volume_is_unmounted() {
    let fixture = fixture(true).await;
    // The claim is of one pod alone otherwise.
    fixture.put_volume(json!({"accessModes": ["ReadWriteOnce"]}));
    let (first, second) = (with_level("a", "s0:c1,c2"), with_level("b", "s0:c3,c4"));
    fixture.set_up(&first).await.unwrap();
    fixture.set_up(&with_level("same", "s0:c1,c2")).await.unwrap();
    volumes::tear_down(&fixture.node, "same").await.unwrap();
    let error = fixture.set_up(&second).await.unwrap_err();
    assert_eq!(error.reason(), Some("FailedMount"));
    assert_eq!(
        error.to_string(),
        format!(
            "Unable to attach or mount volumes: unmounted volumes=[v], unattached volumes=[], \
             failed to process volumes=[v]: conflicting SELinux labels of volume pv: {ONE:?} and \
             {TWO:?}"
        )
    );
    assert!(labels_of_volumes(&fixture.node.csi.root).iter().all(|(uid, ..)| &**uid != "b"));
    // The containers of the first pod have ended, and its volume cannot be unmounted.
    fixture.driver.fail("NodeUnpublishVolume", Some(Code::Internal));
    volumes::tear_down(&fixture.node, "a").await.unwrap_err();
    let error = fixture.set_up(&second).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "Unable to attach or mount volumes: unmounted volumes=[v], unattached volumes=[], failed \
         to process volumes=[]: waiting for unmount of volume \
         \"kubernetes.io/csi/d.example.com^handle\", because it is already mounted to a different \
         pod with a different SELinux label"
    );
    fixture.driver.fail("NodeUnpublishVolume", None);
    fixture.driver.take_calls();
    volumes::tear_down(&fixture.node, "a").await.unwrap();
    fixture.set_up(&second).await.unwrap();
    let calls = fixture.driver.take_calls();
    let methods: Vec<&str> = calls.iter().map(|call| call.method.as_str()).collect();
    let want = ["NodeUnpublishVolume", "NodeUnstageVolume", "NodeStageVolume", "NodePublishVolume"];
    assert_eq!(methods, want);
    let staged: csi::NodeStageVolumeRequest = calls[2].decode();
    assert_eq!(flags(staged.volume_capability), [format!("context=\"{TWO}\"")]);
    volumes::tear_down(&fixture.node, "b").await.unwrap();
    until(|| !fixture.staging_dir().exists()).await;
}

#[tokio::test]
async fn containers_with_several_labels_are_refused_for_volumes_of_every_kind() {
    let fixture = Fixture::with_selinux(&[], Value::Null, Selinux::with_contexts(CONTEXTS)).await;
    fixture.put_volume(json!({"accessModes": ["ReadWriteOnce"]}));
    let mut volume = fixture.api.get("/api/v1/persistentvolumes/pv").unwrap();
    volume["spec"]["csi"] = Value::Null;
    volume["spec"]["hostPath"] = json!({"path": fixture.home.path()});
    fixture.api.put("/api/v1/persistentvolumes/pv", volume);
    let container = |name: &str, level: &str| {
        json!({"name": name, "volumeMounts": [{"name": "v", "mountPath": "/v"}],
            "securityContext": {"seLinuxOptions": {"level": level}}})
    };
    let object = json!({"metadata": {"name": "p", "namespace": "d", "uid": "u"}, "spec": {
        "containers": [container("a", "s0:c1,c2"), container("b", "s0:c3,c4")],
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]}});
    let pod = Pod::new(serde_json::from_value(object).unwrap(), PodOrigin::Api).unwrap();
    let error = fixture.set_up(&Arc::new(pod)).await.unwrap_err();
    let end = format!("to process volumes=[v]: multiple SELinux labels found: {ONE},{TWO}");
    assert!(error.to_string().ends_with(&end), "{error}");
}

#[tokio::test]
async fn the_runtime_labels_volumes_of_the_pod_and_no_mounts_with_a_label() {
    let fixture = fixture(true).await;
    let mounts = ["v", "dir", "host", "config"]
        .map(|name| json!({"name": name, "mountPath": format!("/{name}")}));
    let object = json!({"metadata": {"name": "p", "namespace": "d", "uid": "u"}, "spec": {
        "hostNetwork": true,
        "containers": [{"name": "c", "terminationMessagePath": "/message", "volumeMounts": mounts,
            "securityContext": {"seLinuxOptions": {"level": "s0:c1,c2"}}}],
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "dir", "emptyDir": {}},
            {"name": "host", "hostPath": {"path": fixture.home.path()}},
            {"name": "config", "downwardAPI": {"items": []}}]}});
    let pod = Pod::new(serde_json::from_value(object).unwrap(), PodOrigin::Api).unwrap();
    let pod = Arc::new(pod);
    let set_up = fixture.set_up(&pod).await.unwrap();
    for has_selinux in [true, false] {
        let labels = SelinuxFeatures::new(has_selinux, &fixture.node.identity.config.runtime);
        let identity = NodeIdentity {
            config: fixture.node.identity.config.clone(),
            machine: Machine::read(),
            features: NodeFeatures::new(RuntimeFeatures::default(), labels),
        };
        let images = HashMap::new();
        let container = &pod.containers[0];
        let mounts =
            volumes::container_mounts(&identity, &pod, container, (&set_up, &images), &[], &[]);
        let mounts = mounts.unwrap();
        let labelled = mounts.iter().filter(|mount| mount.selinux_relabel);
        let paths: Vec<&str> = labelled.map(|mount| mount.container_path.as_str()).collect();
        let want = ["/dir", "/config", "/etc/hosts", "/message"];
        assert_eq!(paths, if has_selinux { &want[..] } else { &[] });
    }
}
