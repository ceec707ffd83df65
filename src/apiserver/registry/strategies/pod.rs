//! Rules of pods: quality of service, scheduling gates, label keys, and the subresources that
//! replace a part of the pod.

use std::collections::HashMap;

use api::defaults::default_pod_level;
use api::quantity::Quantity;
use api::validation::core::{pod as rules, pod_change};
use api::validation::warnings;
use api::value::{
    at, bool_at, ensure_object, get, is_empty, items, items_mut, object_mut, remove, restore, set,
    str_at, str_in,
};
use serde_json::{Value, json};

use super::super::rules::Rules;
use super::pod_app_armor::apply_annotations;
use super::pod_fields::drop_disabled;
use crate::registry::WriteContext;

pub(super) const POD: Rules = Rules {
    warnings: warnings::pod,
    status: Some(r#"{"phase":"Pending"}"#),
    generation: &["spec"],
    prepare: |context, object| {
        apply_annotations(context, object);
        prepare(object);
    },
    prepare_change,
    validate: rules::validate,
    validate_change: pod_change::validate_change,
    validate_subresource: pod_change::validate_subresource,
    selectable,
    ..Rules::BASE
};

fn prepare(pod: &mut Value) {
    let labels = at(pod, &["metadata", "labels"]).clone();
    if let Some(spec) = ensure_object(pod, "spec") {
        drop_disabled(spec, &Value::Null);
        merge_label_keys(spec, &labels);
        default_pod_level(spec);
    }
    let gated = !items(get(pod, "spec"), "schedulingGates").is_empty();
    let class = quality_of_service(get(pod, "spec"));
    if let Some(status) = ensure_object(pod, "status") {
        set(status, "qosClass", class);
        if gated {
            set(
                status,
                "conditions",
                json!([{
                    "type": "PodScheduled", "status": "False", "lastProbeTime": null, "lastTransitionTime": super::now(),
                    "reason": "SchedulingGated", "message": "Scheduling is blocked due to non-empty scheduling gates",
                }]),
            );
        }
    }
}

fn prepare_change(context: &WriteContext<'_>, pod: &mut Value, old: &Value) {
    let old_spec = get(old, "spec");
    match context.subresource {
        "" => {
            if let Some(spec) = ensure_object(pod, "spec") {
                if is_empty(spec, "resources") && !is_empty(old_spec, "resources") {
                    restore(spec, old_spec, "resources");
                }
                drop_disabled(spec, old_spec);
            }
        }
        "status" => prepare_status(pod, old),
        "ephemeralcontainers" => {
            let containers = at(pod, &["spec", "ephemeralContainers"]).clone();
            set(pod, "spec", old_spec.clone());
            if let (Some(spec), false) = (object_mut(pod, "spec"), containers.is_null()) {
                set(spec, "ephemeralContainers", containers);
                drop_disabled(spec, old_spec);
            }
            keep_meta(pod, old);
        }
        "resize" => {
            resized(pod, old_spec);
            keep_meta(pod, old);
        }
        _ => {}
    }
}

/// Restores the metadata that a write to a part of the pod cannot change.
fn keep_meta(pod: &mut Value, old: &Value) {
    if let Some(meta) = ensure_object(pod, "metadata") {
        for key in ["deletionTimestamp", "labels", "annotations", "finalizers", "ownerReferences"] {
            restore(meta, get(old, "metadata"), key);
        }
    }
}

fn prepare_status(pod: &mut Value, old: &Value) {
    if let Some(meta) = ensure_object(pod, "metadata") {
        restore(meta, get(old, "metadata"), "deletionTimestamp");
        restore(meta, get(old, "metadata"), "ownerReferences");
    }
    let old = get(old, "status");
    let Some(status) = ensure_object(pod, "status") else { return };
    // Off in 1.37; kept where the old object has it.
    for key in ["nodeAllocatableResourceClaimStatuses", "volumeHealth"] {
        if is_empty(old, key) {
            remove(status, key);
        }
    }
    for list in ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"] {
        for mount in items_mut(status, list).iter_mut().flat_map(|c| items_mut(c, "volumeMounts")) {
            remove(mount, "volumeStatus");
        }
    }
    for key in
        ["qosClass", "resourceClaimStatuses", "extendedResourceClaimStatus", "observedGeneration"]
    {
        if is_empty(status, key) && old.get(key).is_some() {
            restore(status, old, key);
        }
    }
    let mut known: HashMap<&str, &Value> = HashMap::new();
    for condition in items(old, "conditions") {
        known.entry(str_at(condition, "type")).or_insert(condition);
    }
    for condition in items_mut(status, "conditions") {
        if condition.get("observedGeneration").is_none() {
            let known = known.get(str_at(condition, "type"));
            if let Some(generation) = known.and_then(|c| c.get("observedGeneration")) {
                set(condition, "observedGeneration", generation.clone());
            }
        }
    }
}

/// The old spec with the resources of the existing containers changed: a resize changes nothing
/// else.
fn resized(pod: &mut Value, old_spec: &Value) {
    let spec = get(pod, "spec");
    let mut merged = old_spec.clone();
    for list in ["containers", "initContainers"] {
        let (new, kept) = (items(spec, list), items_mut(&mut merged, list));
        if new.len() != kept.len() {
            return;
        }
        for (new, kept) in new.iter().zip(kept) {
            if str_at(new, "name") != str_at(kept, "name") {
                return;
            }
            restore(kept, new, "resources");
            restore(kept, new, "resizePolicy");
        }
    }
    if is_empty(spec, "resources") {
        restore(&mut merged, old_spec, "resources");
    } else {
        restore(&mut merged, spec, "resources");
    }
    default_pod_level(&mut merged);
    set(pod, "spec", merged);
}

/// Adds `matchLabelKeys` and `mismatchLabelKeys` as requirements to the selector of the term.
fn merge_label_keys(spec: &mut Value, labels: &Value) {
    for constraint in items_mut(spec, "topologySpreadConstraints") {
        merge_keys(constraint, "matchLabelKeys", "In", labels);
    }
    let Some(affinity) = object_mut(spec, "affinity") else { return };
    for side in ["podAffinity", "podAntiAffinity"] {
        let Some(side) = object_mut(affinity, side) else { continue };
        let preferred = items_mut(side, "preferredDuringSchedulingIgnoredDuringExecution");
        let mut terms: Vec<&mut Value> =
            preferred.iter_mut().filter_map(|p| object_mut(p, "podAffinityTerm")).collect();
        for term in &mut terms {
            merge_keys(term, "matchLabelKeys", "In", labels);
            merge_keys(term, "mismatchLabelKeys", "NotIn", labels);
        }
        for term in items_mut(side, "requiredDuringSchedulingIgnoredDuringExecution") {
            merge_keys(term, "matchLabelKeys", "In", labels);
            merge_keys(term, "mismatchLabelKeys", "NotIn", labels);
        }
    }
}

fn merge_keys(term: &mut Value, keys: &str, operator: &str, labels: &Value) {
    let requirements: Vec<Value> = items(term, keys)
        .iter()
        .filter_map(Value::as_str)
        .filter_map(|key| {
            Some(json!({"key": key, "operator": operator, "values": [labels.get(key)?]}))
        })
        .collect();
    if let (Some(selector), false) = (object_mut(term, "labelSelector"), requirements.is_empty()) {
        let mut all = items(selector, "matchExpressions").to_vec();
        all.extend(requirements);
        set(selector, "matchExpressions", all);
    }
}

/// `Guaranteed`, `Burstable` or `BestEffort`, from the resources of the pod or of its containers.
pub(crate) fn quality_of_service(spec: &Value) -> &'static str {
    let pod_level = get(spec, "resources");
    if !is_empty(pod_level, "limits") || !is_empty(pod_level, "requests") {
        return class_of(pod_level);
    }
    let mut class = None;
    for container in items(spec, "initContainers").iter().chain(items(spec, "containers")) {
        let own = class_of(get(container, "resources"));
        if own == "Burstable" || class.is_some_and(|c| c != own) {
            return "Burstable";
        }
        class = Some(own);
    }
    class.unwrap_or("BestEffort")
}

fn class_of(resources: &Value) -> &'static str {
    let amount = |list: &str, name: &str| {
        let amount =
            at(resources, &[list, name]).as_str().and_then(|text| Quantity::parse(text).ok());
        amount.filter(|q| q.sign() > 0)
    };
    let names = ["cpu", "memory"];
    if names.iter().all(|n| amount("limits", n).is_none() && amount("requests", n).is_none()) {
        return "BestEffort";
    }
    let equal = |name: &&str| {
        let limit = amount("limits", name);
        limit.is_some() && amount("requests", name).is_none_or(|request| Some(request) == limit)
    };
    if names.iter().all(equal) { "Guaranteed" } else { "Burstable" }
}

fn selectable(pod: &Value) -> Vec<(&'static str, String)> {
    let (spec, status) = (get(pod, "spec"), get(pod, "status"));
    let address = items(status, "podIPs").first().map_or("", |ip| str_at(ip, "ip"));
    vec![
        ("spec.nodeName", str_at(spec, "nodeName").to_owned()),
        ("spec.restartPolicy", str_at(spec, "restartPolicy").to_owned()),
        ("spec.schedulerName", str_at(spec, "schedulerName").to_owned()),
        ("spec.serviceAccountName", str_at(spec, "serviceAccountName").to_owned()),
        ("spec.hostNetwork", bool_at(spec, "hostNetwork").to_string()),
        ("status.phase", str_at(status, "phase").to_owned()),
        ("status.podIP", address.to_owned()),
        ("status.nominatedNodeName", str_in(pod, &["status", "nominatedNodeName"]).to_owned()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_follow_requests_and_limits() {
        let spec = |resources: Value| json!({"containers": [{"resources": resources}]});
        assert_eq!(quality_of_service(&spec(json!({}))), "BestEffort");
        assert_eq!(quality_of_service(&spec(json!({"requests": {"cpu": "1"}}))), "Burstable");
        let full = json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1000m", "memory": "1024Mi"}});
        assert_eq!(quality_of_service(&spec(full.clone())), "Guaranteed");
        let mixed = json!({"containers": [{"resources": full}, {"resources": {}}]});
        assert_eq!(quality_of_service(&mixed), "Burstable");
    }

    #[test]
    fn label_keys_join_the_selector() {
        let mut spec = json!({"topologySpreadConstraints": [{"labelSelector": {}, "matchLabelKeys": ["a", "gone"]}]});
        merge_label_keys(&mut spec, &json!({"a": "1"}));
        assert_eq!(
            spec["topologySpreadConstraints"][0]["labelSelector"],
            json!({"matchExpressions": [{"key": "a", "operator": "In", "values": ["1"]}]})
        );
    }
}
