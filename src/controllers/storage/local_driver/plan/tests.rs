//! Claims, classes and volumes.

use super::*;

fn claim(spec: Value) -> PersistentVolumeClaim {
    let mut whole = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": "kube-lite-local",
        "resources": {"requests": {"storage": "1Gi"}}});
    for (name, value) in spec.as_object().unwrap() {
        whole[name] = value.clone();
    }
    serde_json::from_value(json!({"metadata": {"name": "c", "namespace": "n", "uid": "u"},
        "spec": whole}))
    .unwrap()
}

fn class(parameters: Value) -> StorageClass {
    serde_json::from_value(json!({"metadata": {"name": "kube-lite-local"}, "provisioner": DRIVER,
        "parameters": parameters, "mountOptions": ["noatime"]}))
    .unwrap()
}

fn refused(spec: Value, parameters: Value) -> String {
    request(&claim(spec), &class(parameters)).unwrap_err().to_string()
}

#[test]
fn a_claim_gets_a_volume_of_its_size_on_its_node() {
    let (claim, class) = (claim(json!({})), class(json!({"fsType": "xfs", "mode": "auto"})));
    let request = request(&claim, &class).unwrap();
    assert_eq!((request.name.as_str(), request.size), ("pvc-u", 1 << 30));
    assert_eq!(request.fs_type, Some(FsType::Xfs));
    let stored = Stored { size: 1 << 30, created_at: 0 };
    let object = volume(&claim, &class, &request, stored, ("node1", "host1"));
    assert_eq!(object["spec"]["capacity"]["storage"], "1Gi");
    assert_eq!(object["spec"]["csi"]["fsType"], "xfs");
    assert_eq!(object["spec"]["mountOptions"], json!(["noatime"]));
    let volume: PersistentVolume = serde_json::from_value(object).unwrap();
    assert_eq!((handle(&volume), node_of(&volume)), (Some("pvc-u"), Some("node1")));
}

#[test]
fn a_size_that_was_rounded_is_shown_in_mebibytes() {
    assert_eq!(size_text("1Gi", 1 << 30), "1Gi");
    assert_eq!(size_text("1G", 954 << 20), "954Mi");
    assert_eq!(size_text("1Gi", 2 << 30), "2048Mi");
}

#[test]
fn a_block_volume_has_no_file_system() {
    let block = claim(json!({"volumeMode": "Block"}));
    let request = request(&block, &class(Value::Null)).unwrap();
    assert_eq!(request.fs_type, None);
    let stored = Stored { size: 1 << 30, created_at: 0 };
    let object = volume(&block, &class(Value::Null), &request, stored, ("n", "n"));
    assert_eq!(object["spec"]["csi"]["fsType"], Value::Null);
    assert_eq!(object["spec"]["volumeMode"], "Block");
}

#[test]
fn mode_quota_is_a_directory_of_the_node() {
    let mut class = class(json!({"mode": "quota"}));
    class.mount_options = None;
    let claim = claim(json!({}));
    let request = request(&claim, &class).unwrap();
    assert_eq!((request.mode, request.fs_type), (VolumeMode::Quota, None));
    let stored = Stored { size: 1 << 30, created_at: 0 };
    let object = volume(&claim, &class, &request, stored, ("n", "n"));
    assert_eq!(object["spec"]["csi"]["fsType"], Value::Null);
    assert_eq!(object["spec"]["csi"]["volumeHandle"], "pvc-u");
}

#[test]
fn mode_quota_refuses_what_a_directory_cannot_be() {
    let claim_source = json!({"dataSource": {"kind": "PersistentVolumeClaim", "name": "d"}});
    let snapshot = json!({"dataSource": {"apiGroup": "snapshot.storage.k8s.io",
        "kind": "VolumeSnapshot", "name": "s"}});
    let block = json!({"volumeMode": "Block"});
    let copied = "a source is not supported with mode quota: directories cannot be copied at";
    for (spec, fs_type, options, text) in [
        (block, None, None, "volumeMode Block is not supported with mode quota: the volume is a"),
        (json!({}), Some("xfs"), None, "the parameter fsType is not supported with mode quota"),
        (json!({}), None, Some("noatime"), "the field mountOptions is not supported with"),
        (claim_source, None, None, copied),
        (snapshot, None, None, copied),
    ] {
        let mut class = class(json!({"mode": "quota"}));
        class.mount_options = options.map(|option: &str| vec![option.to_owned()]);
        if let Some(fs_type) = fs_type {
            class.parameters.as_mut().unwrap().insert("fsType".into(), fs_type.into());
        }
        let refused = request(&claim(spec), &class).unwrap_err().to_string();
        assert!(refused.starts_with(text), "{refused}");
    }
}

#[test]
fn sources_are_claims_and_snapshots_of_the_namespace() {
    let of = |spec: Value| request(&claim(spec), &class(Value::Null)).map(|r| r.source);
    let snapshot = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot",
        "name": "s"});
    assert_eq!(of(json!({"dataSource": snapshot})), Ok(Some(ClaimSource::Snapshot("s".into()))));
    let own = json!({"kind": "PersistentVolumeClaim", "name": "d", "namespace": "n"});
    assert_eq!(of(json!({"dataSourceRef": own})), Ok(Some(ClaimSource::Claim("d".into()))));
    let other = json!({"kind": "PersistentVolumeClaim", "name": "d", "namespace": "m"});
    assert!(of(json!({"dataSourceRef": other})).is_err());
    let populator = json!({"apiGroup": "example.com", "kind": "Image", "name": "i"});
    assert!(refused(json!({"dataSource": populator}), Value::Null).contains("source Image i"));
}

#[test]
fn unsupported_requests_are_refused_by_name() {
    let selector = json!({"selector": {"matchLabels": {"a": "b"}}});
    assert!(refused(selector, Value::Null).contains("Selector"));
    for (parameters, text) in [
        (json!({"mode": "nfs"}), "mode \"nfs\" is not supported; supported are auto, loop"),
        (json!({"fsType": "btrfs"}), "fsType \"btrfs\" is not supported"),
        (json!({"nodePath": "/x"}), "the parameter nodePath"),
    ] {
        let refused = refused(json!({}), parameters);
        assert!(refused.contains(text), "{refused}");
    }
    let none = json!({"resources": {"requests": {}}});
    assert_eq!(refused(none, Value::Null), UnsupportedClaim::Size.to_string());
}

#[test]
fn a_copy_is_made_on_the_node_of_its_source() {
    let source = ContentSource::Volume("pvc-a".into());
    assert_eq!(on_node(source.clone(), ("a", "n1"), "n1"), Ok(source.clone()));
    let text = on_node(source, ("a", "n1"), "n2").unwrap_err().to_string();
    assert!(text.starts_with("the source a is on node \"n1\", the pod on \"n2\""), "{text}");
}

#[test]
fn a_released_volume_is_deleted_by_its_node_and_a_kept_one_only_released() {
    let of = |policy: &str, phase: &str, deleted: bool, finalizers: &[&str]| {
        let volume = json!({
            "metadata": {"name": "pvc-u", "annotations": {PROVISIONED_BY: DRIVER, NODE: "n"},
                "finalizers": finalizers,
                "deletionTimestamp": deleted.then_some("2026-01-01T00:00:00Z")},
            "spec": {"persistentVolumeReclaimPolicy": policy,
                "csi": {"driver": DRIVER, "volumeHandle": "pvc-u"}},
            "status": {"phase": phase}});
        reclaim(&serde_json::from_value(volume).unwrap())
    };
    let both = ["kubernetes.io/pv-protection", FINALIZER];
    assert_eq!(of("Delete", "Released", false, &both), Reclaim::Delete);
    assert_eq!(of("Delete", "Released", true, &[FINALIZER]), Reclaim::Delete);
    assert_eq!(of("Retain", "Released", false, &both), Reclaim::Nothing);
    assert_eq!(of("Retain", "Released", true, &[FINALIZER]), Reclaim::Release);
    assert_eq!(of("Delete", "Bound", true, &both), Reclaim::Nothing);
}
