//! Whole translations, with the cases of upstream's tests.

use super::*;

fn volume(value: Value) -> PersistentVolume {
    serde_json::from_value(value).unwrap()
}

fn translated(value: Value) -> Value {
    let translated = persistent(&volume(value)).unwrap().unwrap();
    serde_json::to_value(translated).unwrap()
}

/// The affinity of a translated volume, as keys and values of each term.
fn affinity(value: Value) -> Value {
    let translated = translated(value);
    let terms = translated.pointer("/spec/nodeAffinity/required/nodeSelectorTerms");
    let term = |term: &Value| -> Value {
        let expressions = term["matchExpressions"].as_array().unwrap().iter();
        expressions.map(|e| json!([e["key"], e["values"]])).collect()
    };
    terms.and_then(Value::as_array).map_or(Value::Null, |terms| terms.iter().map(term).collect())
}

fn selector(expressions: &[(&str, &[&str])]) -> Value {
    let expression =
        |(key, values): &(&str, &[&str])| json!({"key": key, "operator": "In", "values": values});
    let expressions: Vec<Value> = expressions.iter().map(expression).collect();
    json!({"required": {"nodeSelectorTerms": [{"matchExpressions": expressions}]}})
}

#[test]
fn every_plugin_has_a_name_and_a_driver() {
    for plugin in Plugin::ALL {
        assert_eq!(Plugin::of_name(plugin.name()), Some(plugin));
        assert_eq!(driver_of(plugin.name()), plugin.driver());
    }
    assert_eq!(driver_of("kubernetes.io/no-provisioner"), "kubernetes.io/no-provisioner");
    let migrated = Some("kubernetes.io/aws-ebs,kubernetes.io/cinder");
    assert!(Plugin::Cinder.is_in(migrated) && !Plugin::GcePd.is_in(migrated));
    assert!(!Plugin::Cinder.is_in(None));
}

#[test]
fn drivers_of_volumes_as_json_are_found() {
    let volume = json!({"metadata": {}, "spec": {"cinder": {"volumeID": "c"}}});
    assert_eq!(persistent_driver(&volume).unwrap(), cinder::DRIVER);
    let volume = json!({"name": "v", "portworxVolume": {"volumeID": "w"}});
    assert_eq!(inline_driver(&volume, "n").unwrap(), portworx::DRIVER);
    assert_eq!(inline_driver(&json!({"name": "v", "emptyDir": {}}), "n").unwrap(), "");
    let bad = json!({"name": "v", "awsElasticBlockStore": {"volumeID": "aws://z/x"}});
    assert!(inline_driver(&bad, "n").is_err());
}

#[test]
fn other_volumes_are_not_translated() {
    let nfs = volume(json!({"metadata": {}, "spec": {"nfs": {"server": "s", "path": "/"}}}));
    assert_eq!(persistent(&nfs), Ok(None));
    let pod_volume = serde_json::from_value(json!({"name": "v", "emptyDir": {}})).unwrap();
    assert_eq!(inline(&pod_volume, "n"), Ok(None));
}

/// The cases of upstream's `TestTopologyTranslation`.
#[test]
fn zones_become_topologies_of_the_driver() {
    const ZONE: &str = "topology.kubernetes.io/zone";
    const BETA: &str = "failure-domain.beta.kubernetes.io/zone";
    const GCE: &str = "topology.gke.io/zone";
    let disk = |labels: Value, affinity: Value| {
        let mut volume = json!({"metadata": {"name": "pv", "labels": labels},
            "spec": {"gcePersistentDisk": {"pdName": "d"}}});
        if !affinity.is_null() {
            volume["spec"]["nodeAffinity"] = affinity;
        }
        volume
    };
    for (labels, selected, want) in [
        (json!({}), Value::Null, Value::Null),
        (json!({BETA: "us-east1-a"}), Value::Null, json!([[[GCE, ["us-east1-a"]]]])),
        (json!({ZONE: "us-east1-a"}), Value::Null, json!([[[GCE, ["us-east1-a"]]]])),
        (
            json!({ZONE: "europe-west1-b__europe-west1-c"}),
            Value::Null,
            json!([[[GCE, ["europe-west1-b", "europe-west1-c"]]]]),
        ),
        (
            json!({ZONE: "us-east1-a"}),
            selector(&[(ZONE, &["us-east1-c"])]),
            json!([[[GCE, ["us-east1-c"]]]]),
        ),
        (
            json!({BETA: "us-east1-a"}),
            selector(&[(GCE, &["us-east1-a"])]),
            json!([[[GCE, ["us-east1-a"]], [GCE, ["us-east1-a"]]]]),
        ),
        (
            json!({}),
            selector(&[
                (BETA, &["us-east1-a"]),
                ("failure-domain.beta.kubernetes.io/region", &["us-east1"]),
            ]),
            json!([[[GCE, ["us-east1-a"]], ["topology.kubernetes.io/region", ["us-east1"]]]]),
        ),
        (json!({}), selector(&[("host", &["a"])]), json!([[["host", ["a"]]]])),
    ] {
        assert_eq!(affinity(disk(labels, selected)), want);
    }
}

#[test]
fn zones_and_regions_of_vsphere_have_keys_of_their_own() {
    let translated = affinity(json!({
        "metadata": {"labels": {"failure-domain.beta.kubernetes.io/zone": "z",
            "failure-domain.beta.kubernetes.io/region": "r"}},
        "spec": {"vsphereVolume": {"volumePath": "[ds] v.vmdk"}}}));
    let want = json!([[
        ["topology.csi.vmware.com/zone", ["z"]],
        ["topology.csi.vmware.com/region", ["r"]]
    ]]);
    assert_eq!(translated, want);
}

#[test]
fn disks_of_gce_are_handles_with_zone_or_region() {
    let handle = |labels: Value| {
        let spec = json!({"gcePersistentDisk": {"pdName": "d", "fsType": "ext4", "partition": 1},
            "accessModes": ["ReadWriteMany"]});
        let translated = translated(json!({"metadata": {"labels": labels}, "spec": spec}));
        assert_eq!(translated["spec"]["accessModes"], json!(["ReadWriteOnce"]));
        assert_eq!(translated["spec"]["csi"]["volumeAttributes"], json!({"partition": "1"}));
        translated["spec"]["csi"]["volumeHandle"].as_str().unwrap().to_owned()
    };
    assert_eq!(handle(json!({})), "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d");
    assert_eq!(
        handle(json!({"topology.kubernetes.io/zone": "us-east1-a"})),
        "projects/UNSPECIFIED/zones/us-east1-a/disks/d"
    );
    assert_eq!(
        handle(json!({"topology.kubernetes.io/zone": "us-east1-a__us-east1-b"})),
        "projects/UNSPECIFIED/regions/us-east1/disks/d"
    );
}

#[test]
fn volumes_of_aws_have_their_partition_as_attribute() {
    let translated = translated(json!({"metadata": {"name": "pv"},
        "spec": {"awsElasticBlockStore": {"volumeID": "aws://us-east-1a/vol-1", "fsType": "xfs",
            "readOnly": true}}}));
    assert_eq!(
        translated["spec"],
        json!({"csi": {"driver": "ebs.csi.aws.com", "volumeHandle": "vol-1", "fsType": "xfs",
            "readOnly": true, "volumeAttributes": {"partition": "0"}}})
    );
}

#[test]
fn disks_of_azure_must_be_managed() {
    let of = |kind: &str| {
        persistent(&volume(json!({"metadata": {}, "spec": {"azureDisk": {"diskName": "d",
            "diskURI": "/subscriptions/1/d", "kind": kind, "cachingMode": "None",
            "fsType": "ext4"}}})))
    };
    let error = of("Dedicated").unwrap_err();
    assert_eq!(error.to_string(), "kind(Dedicated) is not supported in csi migration");
    let source = of("managed").unwrap().unwrap().spec.unwrap().csi.unwrap();
    assert_eq!(source.volume_handle, "/subscriptions/1/d");
    let attributes = json!({"kind": "Managed", "cachingmode": "None", "fstype": "ext4"});
    assert_eq!(json!(source.volume_attributes), attributes);
}

/// The cases of upstream's `TestTranslateAzureFileInTreePVToCSI`.
#[test]
fn shares_of_azure_have_the_secret_of_their_claim() {
    let of = |source: Value, claim: Value| {
        persistent(&volume(json!({
            "metadata": {"name": "pv",
                "annotations": {"kubernetes.io/azure-file-resource-group": "rg"}},
            "spec": {"azureFile": source, "claimRef": claim}})))
    };
    let source = json!({"shareName": "share", "secretName": "azure-storage-account-acc-secret"});
    let translated = of(source.clone(), json!({"namespace": "n"})).unwrap().unwrap();
    let csi = translated.spec.unwrap().csi.unwrap();
    assert_eq!(csi.volume_handle, "rg#acc#share#pv#n");
    let secret = csi.node_stage_secret_ref.unwrap();
    assert_eq!(secret.name.as_deref(), Some("azure-storage-account-acc-secret"));
    assert_eq!(secret.namespace.as_deref(), Some("n"));
    assert_eq!(of(source, json!({})), Err(TranslationError::AzureSecretNamespace));
}

#[test]
fn portworx_takes_its_secret_from_annotations() {
    let translated = translated(json!({
        "metadata": {"annotations": {"openstorage.io/auth-secret-name": "s",
            "openstorage.io/auth-secret-namespace": "n"}},
        "spec": {"portworxVolume": {"volumeID": "v", "readOnly": true}}}));
    let csi = &translated["spec"]["csi"];
    let secret = json!({"name": "s", "namespace": "n"});
    for key in ["controllerPublish", "nodeStage", "nodePublish", "controllerExpand", "nodeExpand"] {
        assert_eq!(csi[format!("{key}SecretRef")], secret);
    }
    assert_eq!(csi["readOnly"], Value::Null);
}

#[test]
fn inline_volumes_become_persistent_volumes() {
    let of = |source: Value| {
        let mut value = source;
        value["name"] = "v".into();
        let volume: Volume = serde_json::from_value(value).unwrap();
        let translated = inline(&volume, "n").unwrap().unwrap();
        let spec = translated.spec.unwrap();
        assert_eq!(spec.volume_mode.as_deref(), Some("Filesystem"));
        let source = spec.csi.unwrap();
        let modes = spec.access_modes.unwrap().join(",");
        (translated.metadata.name.unwrap(), source.volume_handle, modes)
    };
    let same = |name: &str, handle: &str, mode: &str| {
        (name.to_owned(), handle.to_owned(), mode.to_owned())
    };
    let once = "ReadWriteOnce";
    assert_eq!(
        of(json!({"awsElasticBlockStore": {"volumeID": "vol-1"}})),
        same("ebs.csi.aws.com-vol-1", "vol-1", once)
    );
    assert_eq!(
        of(json!({"gcePersistentDisk": {"pdName": "d", "readOnly": true}})),
        same(
            "pd.csi.storage.gke.io-d",
            "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d",
            "ReadOnlyMany"
        )
    );
    assert_eq!(
        of(json!({"azureDisk": {"diskName": "d", "diskURI": "/d", "kind": "Managed"}})),
        same("/d", "/d", once)
    );
    assert_eq!(
        of(json!({"azureFile": {"secretName": "s", "shareName": "h"}})),
        same("#s#h#v#n", "#s#h#v#n", "ReadWriteMany")
    );
    assert_eq!(
        of(json!({"cinder": {"volumeID": "c"}})),
        same("cinder.csi.openstack.org-c", "c", once)
    );
    assert_eq!(
        of(json!({"vsphereVolume": {"volumePath": "p", "storagePolicyName": "gold"}})),
        same("csi.vsphere.vmware.com-p", "p", once)
    );
    assert_eq!(
        of(json!({"portworxVolume": {"volumeID": "w"}})),
        same("pxd.portworx.com-w", "w", once)
    );
}
