//! Tests of volume binding on a cluster in memory.

use super::*;
use serde_json::json;
use std::sync::Arc;

struct Fake {
    claim: serde_json::Value,
    volumes: Vec<serde_json::Value>,
    class: serde_json::Value,
}

impl Listers for Fake {
    fn claim(&self, _: &str, _: &str) -> Option<PersistentVolumeClaim> {
        serde_json::from_value(self.claim.clone()).ok()
    }
    fn volume(&self, name: &str) -> Option<PersistentVolume> {
        self.volumes().into_iter().find(|v| v.metadata.name.as_deref() == Some(name))
    }
    fn volumes(&self) -> Vec<PersistentVolume> {
        self.volumes.iter().map(|v| serde_json::from_value(v.clone()).unwrap()).collect()
    }
    fn storage_class(&self, _: &str) -> Option<StorageClass> {
        serde_json::from_value(self.class.clone()).ok()
    }
    fn csi_driver(&self, name: &str) -> Option<CSIDriver> {
        let reports = match name {
            "reports" => json!({"storageCapacity": true}),
            "silent" => json!({}),
            _ => return None,
        };
        serde_json::from_value(json!({"metadata": {"name": name}, "spec": reports})).ok()
    }
    fn csi_storage_capacities(&self) -> Vec<CSIStorageCapacity> {
        let at = |node: &str| json!({"matchLabels": {"kubernetes.io/hostname": node}});
        [
            json!({"storageClassName": "s", "nodeTopology": at("a"), "capacity": "5Gi"}),
            json!({"storageClassName": "s", "nodeTopology": at("small"), "capacity": "5Gi",
                "maximumVolumeSize": "512Mi"}),
            json!({"storageClassName": "other", "nodeTopology": at("class"), "capacity": "5Gi"}),
            json!({"storageClassName": "s", "capacity": "5Gi"}),
            json!({"storageClassName": "s", "nodeTopology": at("unknown")}),
        ]
        .into_iter()
        .map(|v| serde_json::from_value(v).unwrap())
        .collect()
    }
}

fn node(name: &str) -> NodeInfo {
    NodeInfo {
        name: name.into(),
        labels: [("kubernetes.io/hostname".to_owned(), name.to_owned())].into(),
        ..NodeInfo::default()
    }
}

fn volume(name: &str, size: &str, host: &str) -> serde_json::Value {
    let requirement = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [host]});
    let terms = json!([{"matchExpressions": [requirement]}]);
    json!({
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"],
            "storageClassName": "s", "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
        },
        "status": {"phase": "Available"},
    })
}

fn class(provisioner: &str, mode: &str) -> serde_json::Value {
    json!({
        "metadata": {"name": "s"}, "provisioner": provisioner, "volumeBindingMode": mode,
    })
}

/// The plugin for a pod with one claim for 1 GiB.
fn plugin(class: serde_json::Value, volumes: Vec<serde_json::Value>) -> VolumeBinding {
    let claim = json!({
        "metadata": {"name": "c", "namespace": "n"},
        "spec": {
            "storageClassName": "s", "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    });
    let pod = PodInfo { namespace: "n".into(), claims: vec!["c".into()], ..PodInfo::default() };
    let listers = Fake { claim, volumes, class };
    let pod = Arc::new(pod);
    let snapshot = Snapshot::with(&pod, &[], &listers);
    VolumeBinding::pre_filter(&snapshot).unwrap()
}

fn reasons(plugin: &VolumeBinding, node: &NodeInfo) -> Vec<Cow<'static, str>> {
    let pod = Arc::new(PodInfo::default());
    let snapshot = Snapshot::with(&pod, &[], &crate::listers::NoObjects);
    let outcome = plugin.verdict().and_then(|()| plugin.filter(&snapshot, node));
    outcome.unwrap_err().reasons
}

#[test]
fn smallest_sufficient_volume_on_the_node_is_bound() {
    let volumes = vec![
        volume("big", "9Gi", "a"),
        volume("fit", "2Gi", "a"),
        volume("small", "500Mi", "a"),
        volume("far", "1Gi", "b"),
    ];
    let class = class("kubernetes.io/no-provisioner", "WaitForFirstConsumer");
    let plugin = plugin(class, volumes);
    assert_eq!(
        plugin.plan(&node("a")).unwrap(),
        [PreBind::BindVolume { claim: "c".into(), volume: "fit".into() }]
    );
    assert_eq!(
        reasons(&plugin, &node("z")),
        ["node(s) didn't find available persistent volumes to bind"]
    );
}

#[test]
fn a_volume_of_another_attributes_class_is_not_bound() {
    let mut gold = volume("gold", "2Gi", "a");
    gold["spec"]["volumeAttributesClassName"] = "gold".into();
    let class = class("kubernetes.io/no-provisioner", "WaitForFirstConsumer");
    let plugin = plugin(class, vec![gold]);
    assert_eq!(
        reasons(&plugin, &node("a")),
        ["node(s) didn't find available persistent volumes to bind"]
    );
}

// Cases of upstream's `TestFindPodVolumesWithProvisioning` with capacities, and of
// `TestCapacity`.
#[test]
fn a_driver_that_reports_its_space_provisions_where_enough_is_left() {
    let with = |driver: &str| plugin(class(driver, "WaitForFirstConsumer"), vec![]);
    assert!(with("reports").plan(&node("a")).is_ok());
    for name in ["small", "class", "unknown", "z"] {
        let reasons = reasons(&with("reports"), &node(name));
        assert_eq!(reasons, ["node(s) did not have enough free storage"], "{name}");
        assert!(with("silent").plan(&node(name)).is_ok(), "{name}");
    }
}

#[test]
fn capacities_and_drivers_queue_pods_that_they_may_fit() {
    let capacity = |spec: serde_json::Value| -> CSIStorageCapacity {
        let mut spec = spec;
        spec["storageClassName"] = "s".into();
        serde_json::from_value(spec).unwrap()
    };
    let (none, small) = (capacity(json!({})), capacity(json!({"capacity": "1Gi"})));
    let bounded = capacity(json!({"capacity": "9Gi", "maximumVolumeSize": "1Gi"}));
    let large = capacity(json!({"capacity": "2Gi"}));
    for (old, new, queues) in [
        (None, &none, true),
        (Some(&none), &small, true),
        (Some(&small), &large, true),
        (Some(&small), &bounded, false),
        (Some(&large), &small, false),
        (Some(&small), &none, false),
    ] {
        let event = Event::CsiStorageCapacity { old, new };
        let queued = VolumeBinding::queueing_hint(&event, &PodInfo::default());
        assert_eq!(queued, queues, "{old:?} {new:?}");
    }
    let driver = |reports: bool| -> CSIDriver {
        serde_json::from_value(json!({"spec": {"storageCapacity": reports}})).unwrap()
    };
    for (old, new, queues) in [(true, false, true), (false, true, false), (true, true, false)] {
        let (old, new) = (driver(old), driver(new));
        let event = Event::CsiDriverUpdate { old: &old, new: &new };
        assert_eq!(VolumeBinding::queueing_hint(&event, &PodInfo::default()), queues);
    }
}

#[test]
fn delayed_claim_of_a_provisioner_needs_no_volume() {
    assert_eq!(
        plugin(class("x/y", "WaitForFirstConsumer"), vec![]).plan(&node("a")).unwrap(),
        [PreBind::ProvisionVolume { claim: "c".into() }]
    );
}

#[test]
fn immediate_claim_must_be_bound() {
    assert_eq!(
        reasons(&plugin(class("x/y", "Immediate"), vec![]), &node("a")),
        ["pod has unbound immediate PersistentVolumeClaims"]
    );
}
