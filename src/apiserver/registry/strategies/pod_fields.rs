//! Drops pod fields whose feature gate is off in 1.37, unless the old object has them.

use api::value::{get, items_mut, object_mut, remove};
use serde_json::Value;

/// Fields of the pod spec itself.
const SPEC: [&str; 2] = ["schedulingGroup", "evictionResponders"];

/// Drops the fields of a pod spec that are off by default in 1.37.
pub(crate) fn drop_disabled(spec: &mut Value, old: &Value) {
    for key in SPEC {
        if old.get(key).is_none() {
            remove(spec, key);
        }
    }
    for volume in items_mut(spec, "volumes") {
        if let Some(empty) = object_mut(volume, "emptyDir") {
            remove(empty, "mode");
        }
        drop_users(volume);
        if let Some(projected) = object_mut(volume, "projected") {
            remove(projected, "defaultUser");
            for source in items_mut(projected, "sources") {
                drop_users(source);
                for kind in ["serviceAccountToken", "clusterTrustBundle", "podCertificate"] {
                    if let Some(file) = object_mut(source, kind) {
                        remove(file, "user");
                    }
                }
            }
        }
    }
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        items_mut(spec, list).iter_mut().for_each(drop_of_container);
    }
}

/// The same for `spec.template` of a workload.
pub(crate) fn drop_of_template(template: &mut Value, old: &Value) {
    if let Some(spec) = object_mut(template, "spec") {
        drop_disabled(spec, get(old, "spec"));
    }
}

/// Drops the owners of the files of a volume, or of a source of one.
fn drop_users(volume: &mut Value) {
    for kind in ["secret", "configMap", "downwardAPI"] {
        if let Some(source) = object_mut(volume, kind) {
            remove(source, "defaultUser");
            for item in items_mut(source, "items") {
                remove(item, "user");
            }
        }
    }
}

fn drop_of_container(container: &mut Value) {
    for mount in items_mut(container, "volumeMounts") {
        remove(mount, "bindMountOptions");
    }
    if let Some(lifecycle) = object_mut(container, "lifecycle") {
        remove(lifecycle, "stopSignal");
        for hook in ["postStart", "preStop"] {
            if let Some(action) =
                object_mut(lifecycle, hook).and_then(|hook| object_mut(hook, "httpGet"))
            {
                remove(action, "protocol");
            }
        }
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = object_mut(container, probe) {
            if let Some(action) = object_mut(probe, "httpGet") {
                remove(action, "protocol");
            }
            if let Some(action) = object_mut(probe, "grpc") {
                remove(action, "tls");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn owners_of_files_are_dropped() {
        let items = json!([{"key": "k", "path": "p", "user": 1}]);
        let mut spec = json!({"volumes": [
            {"secret": {"secretName": "s", "defaultUser": 1, "items": items}},
            {"projected": {"defaultUser": 1, "sources": [
                {"configMap": {"name": "c", "items": items}},
                {"podCertificate": {"keyPath": "k", "user": 1}}]}}]});
        drop_disabled(&mut spec, &Value::Null);
        let items = json!([{"key": "k", "path": "p"}]);
        let left = json!({"volumes": [
            {"secret": {"secretName": "s", "items": items}},
            {"projected": {"sources": [
                {"configMap": {"name": "c", "items": items}},
                {"podCertificate": {"keyPath": "k"}}]}}]});
        assert_eq!(spec, left);
    }
}
