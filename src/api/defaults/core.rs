//! Defaults of the core group, except Pods and Services.

use serde_json::{Map, Value};

use super::pod::{claim_spec, pod, pod_template};
use super::pod_resources::round;
use super::service::{endpoints, service};
use super::{Defaulter, none};
use crate::value::{
    default_str, default_to, ensure_object, get, is_empty, items, items_mut, object_mut, remove,
    set, str_at,
};

pub(super) fn defaulter(kind: &str) -> Defaulter {
    match kind {
        "Pod" => pod,
        "PodTemplate" => |object| {
            if let Some(template) = ensure_object(object, "template") {
                pod_template(template);
            }
        },
        "Service" => service,
        "Endpoints" => endpoints,
        "ReplicationController" => replication_controller,
        "Secret" => secret,
        "Namespace" => namespace,
        "Node" => node,
        "PersistentVolume" => persistent_volume,
        "PersistentVolumeClaim" => persistent_volume_claim,
        "LimitRange" => limit_range,
        "ResourceQuota" => |object| {
            for (part, keys) in [("spec", &["hard"][..]), ("status", &["hard", "used"][..])] {
                if let Some(part) = object_mut(object, part) {
                    keys.iter().for_each(|key| round(part, key));
                }
            }
        },
        _ => none,
    }
}

/// Moves the values of the write-only field `stringData` to `data`.
fn secret(object: &mut Value) {
    use base64::Engine;
    default_str(object, "type", "Opaque");
    let Some(Value::Object(plain)) = remove(object, "stringData") else { return };
    let Some(data) = ensure_object(object, "data") else { return };
    for (key, value) in plain {
        let text = value.as_str().unwrap_or_default();
        set(data, &key, base64::engine::general_purpose::STANDARD.encode(text));
    }
}

fn replication_controller(object: &mut Value) {
    let labels =
        object.pointer("/spec/template/metadata/labels").filter(|l| l.is_object()).cloned();
    if let Some(labels) = labels {
        if let Some(spec) = object_mut(object, "spec") {
            if is_empty(spec, "selector") {
                set(spec, "selector", labels.clone());
            }
        }
        if let Some(meta) = ensure_object(object, "metadata") {
            if is_empty(meta, "labels") {
                set(meta, "labels", labels);
            }
        }
    }
    if let Some(spec) = ensure_object(object, "spec") {
        default_to(spec, "replicas", 1);
        if let Some(template) = object_mut(spec, "template") {
            pod_template(template);
        }
    }
}

fn namespace(object: &mut Value) {
    let name = str_at(get(object, "metadata"), "name").to_owned();
    if !name.is_empty() {
        if let Some(labels) =
            ensure_object(object, "metadata").and_then(|meta| ensure_object(meta, "labels"))
        {
            set(labels, "kubernetes.io/metadata.name", name);
        }
    }
    if let Some(status) = ensure_object(object, "status") {
        default_str(status, "phase", "Active");
    }
}

fn node(object: &mut Value) {
    if let Some(spec) = object_mut(object, "spec") {
        pod_ranges(spec);
    }
    let Some(status) = object_mut(object, "status") else { return };
    if !is_empty(status, "capacity") && !status.get("allocatable").is_some_and(Value::is_object) {
        let capacity = get(status, "capacity").clone();
        set(status, "allocatable", capacity);
    }
    round(status, "capacity");
    round(status, "allocatable");
}

/// Synchronizes `podCIDR` and the first item of `podCIDRs`; `podCIDR` takes precedence.
fn pod_ranges(spec: &mut Value) {
    let single = str_at(spec, "podCIDR").to_owned();
    let first = items(spec, "podCIDRs").first().and_then(Value::as_str).map(str::to_owned);
    match first {
        Some(range) if single.is_empty() => set(spec, "podCIDR", range),
        Some(range) if range == single => {}
        _ if single.is_empty() => {}
        _ => set(spec, "podCIDRs", vec![single]),
    }
}

fn persistent_volume(object: &mut Value) {
    if let Some(status) = ensure_object(object, "status") {
        default_str(status, "phase", "Pending");
    }
    if let Some(spec) = ensure_object(object, "spec") {
        default_str(spec, "persistentVolumeReclaimPolicy", "Retain");
        default_to(spec, "volumeMode", "Filesystem");
        round(spec, "capacity");
        if let Some(host) = object_mut(spec, "hostPath") {
            default_to(host, "type", "");
        }
    }
}

/// Sets the defaults of a PersistentVolumeClaim, including a claim template of a StatefulSet.
pub(super) fn persistent_volume_claim(object: &mut Value) {
    if let Some(status) = ensure_object(object, "status") {
        default_str(status, "phase", "Pending");
        round(status, "capacity");
        round(status, "allocatedResources");
    }
    if let Some(spec) = ensure_object(object, "spec") {
        claim_spec(spec);
    }
}

fn limit_range(object: &mut Value) {
    let Some(spec) = object_mut(object, "spec") else { return };
    for item in items_mut(spec, "limits") {
        if str_at(item, "type") == "Container" {
            container_limits(item);
        }
        for key in ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"] {
            round(item, key);
        }
    }
}

/// Sets the defaults of a LimitRange item for containers: limits default to the maximum; requests
/// to the limit, then to the minimum.
fn container_limits(item: &mut Value) {
    let list = |key: &str| get(item, key).as_object().cloned().unwrap_or_default();
    let (mut limit, mut request) = (list("default"), list("defaultRequest"));
    fill(&mut limit, list("max"));
    fill(&mut request, limit.clone());
    fill(&mut request, list("min"));
    for (key, list) in [("default", limit), ("defaultRequest", request)] {
        if !list.is_empty() {
            set(item, key, list);
        }
    }
}

fn fill(target: &mut Map<String, Value>, source: Map<String, Value>) {
    for (name, amount) in source {
        target.entry(name).or_insert(amount);
    }
}
