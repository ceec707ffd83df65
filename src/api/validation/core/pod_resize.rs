//! Validation of pod resizes: of the resources, only cpu and memory may change, and no request or
//! limit may be removed (`ValidatePodResize`).

use serde_json::Value;

use super::pod::body;
use super::resources::quality_changed;
use crate::field::{Error, ErrorList, Path};
use crate::value::{
    at, ensure_object, entries, get, has, is_empty, items, items_mut, remove, restore,
    semantic_equal, str_at, str_in,
};

/// Annotation of a mirror pod, which the kubelet creates for a static pod.
pub(super) const MIRROR: &str = "kubernetes.io/config.mirror";
const ONLY: &str = "only cpu and memory resources are mutable";

/// The path of the whole pod: upstream's path with an empty name.
pub(super) fn whole() -> Path {
    Path::new("[]")
}

/// Validates an update of `resize` (`ValidatePodResize`).
pub(super) fn validate(pod: &Value, old: &Value) -> ErrorList {
    let mut errors = body(pod);
    let (new, was, path) = (get(pod, "spec"), get(old, "spec"), Path::new("spec"));
    if at(old, &["metadata", "annotations"]).get(MIRROR).is_some() {
        return vec![Error::forbidden(&whole(), "static pods cannot be resized")];
    }
    if str_in(was, &["os", "name"]) == "windows" {
        return vec![Error::forbidden(&whole(), "windows pods cannot be resized")];
    }
    if quality_changed(new, was) {
        let text = "Pod QOS Class may not change as a result of resizing";
        errors.push(Error::invalid(&path, str_in(old, &["status", "qosClass"]), text));
    }
    let mut running = items(get(old, "status"), "containerStatuses").iter();
    let running = running.find(|c| at(c, &["state", "running"]).is_object());
    if running.is_some_and(|container| !has(container, "resources")) {
        let text = "Pod running on node without support for resize";
        errors.push(Error::forbidden(&path, text));
    }
    let mut munged = new.clone();
    let given = |spec: &Value| {
        let resources = get(spec, "resources");
        !is_empty(resources, "requests") || !is_empty(resources, "limits")
    };
    if given(new) || given(was) {
        errors.extend(pod_level(new, was, &mut munged, &path));
    }
    let order = order(new, was, &path);
    if !order.is_empty() {
        errors.extend(order);
        return errors;
    }
    for list in ["initContainers", "containers"] {
        let field = path.child(list);
        for (index, (now, before)) in items(new, list).iter().zip(items(was, list)).enumerate() {
            let field = field.index(index).child("resources");
            errors.extend(vanished(now, before, &field, "resource"));
        }
    }
    for container in ["containers", "initContainers"] {
        errors.extend(containers(new, was, container, &mut munged, &path));
    }
    if errors.is_empty() && !semantic_equal(&munged, was) {
        errors.push(Error::forbidden(&path, ONLY));
    }
    errors
}

/// Rejects the removal of requests and limits. `what` is the start of upstream's text.
fn vanished(new: &Value, old: &Value, field: &Path, what: &str) -> ErrorList {
    let [now, before] = [new, old].map(|parent| get(parent, "resources"));
    let kinds = ["requests", "limits"].into_iter();
    let lost =
        kinds.filter(|kind| entries(before, kind).any(|(name, _)| !has(get(now, kind), name)));
    lost.map(|kind| {
        Error::forbidden(&field.child(kind), format!("{what} {kind} cannot be removed"))
    })
    .collect()
}

/// Sets cpu and memory to the old values, so that the comparison ignores them.
fn keep_mutable(resources: &mut Value, old: &Value) {
    for kind in ["requests", "limits"] {
        let (before, absent) = (get(old, kind), is_empty(resources, kind));
        if absent && is_empty(old, kind) {
            continue;
        }
        if let Some(amounts) = ensure_object(resources, kind) {
            restore(amounts, before, "cpu");
            restore(amounts, before, "memory");
        }
    }
}

fn pod_level(new: &Value, was: &Value, munged: &mut Value, path: &Path) -> ErrorList {
    let field = path.child("resources");
    if has(was, "resources") && !has(new, "resources") {
        return vec![Error::forbidden(&field, "pod-level resources cannot be removed")];
    }
    let mut errors = vanished(new, was, &field, "pod-level resource");
    if has(was, "resources") {
        if let Some(resources) = ensure_object(munged, "resources") {
            keep_mutable(resources, get(was, "resources"));
        }
    } else if let Some(resources) = ensure_object(munged, "resources") {
        keep_mutable(resources, &Value::Null);
        let nothing = ["requests", "limits"].iter().all(|kind| is_empty(resources, kind));
        if nothing && is_empty(resources, "claims") {
            remove(munged, "resources");
        }
    }
    if !semantic_equal(get(munged, "resources"), get(was, "resources")) {
        let text = "only cpu and memory resources are mutable at pod-level";
        errors.push(Error::forbidden(path, text));
    }
    errors
}

/// Checks that the containers and their order do not change.
fn order(new: &Value, was: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    for list in ["containers", "initContainers"] {
        let (now, before, field) = (items(new, list), items(was, list), path.child(list));
        if now.len() != before.len() {
            let text = format!("{list} may not be added or removed on resize");
            errors.push(Error::forbidden(&field, text));
            continue;
        }
        for (index, (now, before)) in now.iter().zip(before).enumerate() {
            if str_at(now, "name") != str_at(before, "name") {
                let text = format!("{list} may not be renamed or reordered on resize");
                errors.push(Error::forbidden(&field.index(index).child("name"), text));
            }
        }
    }
    errors
}

fn containers(new: &Value, was: &Value, list: &str, munged: &mut Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let both = items(new, list).iter().zip(items(was, list));
    for (index, ((now, before), kept)) in both.zip(items_mut(munged, list)).enumerate() {
        let resources = get(before, "resources");
        if has(kept, "resources") || has(before, "resources") {
            if let Some(own) = ensure_object(kept, "resources") {
                keep_mutable(own, resources);
            }
        }
        let same = semantic_equal(kept, before);
        if list == "containers" {
            if !same {
                errors.push(Error::forbidden(path, ONLY));
            }
            continue;
        }
        let field = path.child(list).index(index);
        if !same {
            let text = "only cpu and memory resources for init or sidecar containers are mutable";
            errors.push(Error::forbidden(&field, text));
        }
        let sidecar = str_at(now, "restartPolicy") == "Always";
        if !sidecar && !semantic_equal(now, before) {
            let policies = items(now, "resizePolicy").iter();
            let restarts = policies.filter(|p| str_at(p, "restartPolicy") == "RestartContainer");
            let text = "non-sidecar init containers with a resize policy of RestartContainer cannot be resized";
            errors.extend(restarts.map(|_| Error::forbidden(&field, text)));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(containers: Value) -> Value {
        let mut pod = json!({"metadata": {"name": "p"}, "spec": {"containers": containers}});
        crate::defaults::defaulter("", "v1", "Pod")(&mut pod);
        pod
    }

    fn container(name: &str, requests: Value) -> Value {
        json!({"name": name, "image": "i", "resources": {"requests": requests}})
    }

    fn said(new: &Value, old: &Value) -> Vec<String> {
        validate(new, old).iter().map(ToString::to_string).collect()
    }

    /// Cases of upstream's `TestValidatePodResize`.
    #[test]
    fn cpu_and_memory_change_and_nothing_vanishes() {
        let was = pod(json!([container("c", json!({"cpu": "1", "memory": "1Gi"}))]));
        let now = |requests: Value| pod(json!([container("c", requests)]));
        assert_eq!(said(&now(json!({"cpu": "2", "memory": "2Gi"})), &was), [""; 0]);
        assert_eq!(
            said(&now(json!({"cpu": "2"})), &was),
            [
                "spec.containers[0].resources.requests: Forbidden: resource requests cannot be removed"
            ]
        );
        assert_eq!(
            said(&now(json!({"cpu": "1", "memory": "1Gi", "ephemeral-storage": "1Gi"})), &was),
            ["spec: Forbidden: only cpu and memory resources are mutable"]
        );
        assert_eq!(
            said(&pod(json!([container("d", json!({"cpu": "1", "memory": "1Gi"}))])), &was),
            [
                "spec.containers[0].name: Forbidden: containers may not be renamed or reordered on resize"
            ]
        );
        let two = json!([
            container("c", json!({"cpu": "1", "memory": "1Gi"})),
            container("d", json!({}))
        ]);
        assert!(said(&pod(two), &was).contains(
            &"spec.containers: Forbidden: containers may not be added or removed on resize".into()
        ));
    }

    #[test]
    fn some_pods_cannot_be_resized() {
        let mut was = pod(json!([container("c", json!({"cpu": "1"}))]));
        let now = pod(json!([container("c", json!({"cpu": "2"}))]));
        was["status"] = json!({"containerStatuses": [{"name": "c", "state": {"running": {}}}]});
        assert_eq!(
            said(&now, &was),
            ["spec: Forbidden: Pod running on node without support for resize"]
        );
        was["metadata"]["annotations"] = json!({MIRROR: "x"});
        assert_eq!(said(&now, &was), ["[]: Forbidden: static pods cannot be resized"]);
        was["metadata"]["annotations"] = json!({});
        was["spec"]["os"] = json!({"name": "windows"});
        assert_eq!(said(&now, &was), ["[]: Forbidden: windows pods cannot be resized"]);
    }
}
