//! Rules of the kinds of resource.k8s.io (dynamic resource allocation).

use api::validation::names::name_is_long_name;
use api::validation::{resource, warnings};
use api::value::{at, is_empty, items, items_mut, object_mut, remove, set, str_at, str_in};
use serde_json::Value;

use super::now;
use crate::registry::rules::Rules;

/// Fields of features that are off in 1.37, by feature; `*` is every element of a list or map.
type Disabled = &'static [&'static [&'static [&'static str]]];

const REQUESTS: [&[&str]; 2] = [
    &["spec", "devices", "requests", "*", "exactly", "derivedAttributes"],
    &["spec", "devices", "requests", "*", "firstAvailable", "*", "derivedAttributes"],
];
/// Disabled fields of the specification of a ResourceClaim.
const CLAIM_DISABLED: Disabled = &[
    // DRADerivedAttributes
    &REQUESTS,
];
/// Disabled fields of the status of a ResourceClaim.
const CLAIM_STATUS_DISABLED: Disabled = &[
    // DRAOptionalNodeOperations
    &[&["status", "allocation", "devices", "results", "*", "skipNodeOperations"]],
];
/// Disabled fields of a ResourceSlice.
const SLICE_DISABLED: Disabled = &[
    // DRADeviceCompatibilityGroups
    &[&["spec", "devices", "*", "consumesCounters", "*", "compatibilityGroups"]],
    // DRANodeAllocatableResources
    &[&["spec", "devices", "*", "nodeAllocatableResources"]],
    // DRAListTypeAttributes
    &[
        &["spec", "devices", "*", "attributes", "*", "bools"],
        &["spec", "devices", "*", "attributes", "*", "ints"],
        &["spec", "devices", "*", "attributes", "*", "strings"],
        &["spec", "devices", "*", "attributes", "*", "versions"],
    ],
    // DRAPartitionableDevicesType
    &[&["spec", "partitionTypeAttribute"]],
    // DRAOptionalNodeOperations
    &[&["spec", "skipNodeOperations"]],
];

/// Removes the fields of each disabled feature that the old object does not use.
fn drop_disabled(object: &mut Value, old: &Value, disabled: Disabled) {
    for fields in disabled {
        if fields.iter().any(|path| is_used(old, path)) {
            continue;
        }
        for path in *fields {
            remove_at(object, path);
        }
    }
}

/// Whether an object has a non-empty value at a path.
fn is_used(value: &Value, path: &[&str]) -> bool {
    match path {
        [] => false,
        [field] => !is_empty(value, field),
        ["*", rest @ ..] => match value {
            Value::Array(items) => items.iter().any(|item| is_used(item, rest)),
            Value::Object(fields) => fields.values().any(|field| is_used(field, rest)),
            _ => false,
        },
        [field, rest @ ..] => is_used(at(value, &[field]), rest),
    }
}

/// Removes the field at a path.
fn remove_at(value: &mut Value, path: &[&str]) {
    match path {
        [] => {}
        [field] => {
            remove(value, field);
        }
        ["*", rest @ ..] => match value {
            Value::Array(items) => items.iter_mut().for_each(|item| remove_at(item, rest)),
            Value::Object(fields) => fields.values_mut().for_each(|field| remove_at(field, rest)),
            _ => {}
        },
        [field, rest @ ..] => {
            if let Some(value) = value.get_mut(*field) {
                remove_at(value, rest);
            }
        }
    }
}

pub(super) const RESOURCE_CLAIM: Rules = Rules {
    status: Some("{}"),
    status_keeps_meta: true,
    validate: resource::claim,
    validate_change: resource::claim_change,
    validate_subresource: resource::claim_status,
    prepare: |_, claim| drop_disabled(claim, &Value::Null, CLAIM_DISABLED),
    prepare_change: |context, object, old| match context.subresource {
        "status" => claim_status(object, old),
        _ => drop_disabled(object, old, CLAIM_DISABLED),
    },
    ..Rules::BASE
};

/// Removes the status of devices that are not allocated any more.
fn claim_status(claim: &mut Value, old: &Value) {
    const RESULTS: [&str; 4] = ["status", "allocation", "devices", "results"];
    let identity = |device: &Value| {
        ["driver", "pool", "device", "shareID"].map(|key| str_at(device, key).to_owned())
    };
    let results = |claim: &Value| -> Vec<[String; 4]> {
        at(claim, &RESULTS).as_array().into_iter().flatten().map(identity).collect()
    };
    drop_disabled(claim, old, CLAIM_STATUS_DISABLED);
    let (old_results, new_results) = (results(old), results(claim));
    let Some(status) = object_mut(claim, "status") else { return };
    let kept: Vec<Value> = items(status, "devices")
        .iter()
        .filter(|device| {
            let own = identity(device);
            new_results.contains(&own) || !old_results.contains(&own)
        })
        .cloned()
        .collect();
    if kept.is_empty() {
        remove(status, "devices");
    } else {
        set(status, "devices", kept);
    }
}

pub(super) const RESOURCE_CLAIM_TEMPLATE: Rules = Rules {
    validate: resource::template,
    validate_change: resource::template_change,
    prepare: |_, template| drop_template_fields(template, &Value::Null),
    prepare_change: |_, template, old| drop_template_fields(template, old),
    ..Rules::BASE
};

/// Drops disabled fields of the claim in a template.
fn drop_template_fields(template: &mut Value, old: &Value) {
    if let Some(claim) = object_mut(template, "spec") {
        drop_disabled(claim, at(old, &["spec"]), CLAIM_DISABLED);
    }
}

pub(super) const RESOURCE_SLICE: Rules = Rules {
    validate: resource::slice,
    validate_change: resource::slice_change,
    warnings: warnings::resource_slice,
    generation: &["spec"],
    prepare: |_, slice| slice_fields(slice, &Value::Null),
    prepare_change: |_, slice, old| slice_fields(slice, old),
    selectable: |object| {
        vec![
            ("spec.nodeName", str_in(object, &["spec", "nodeName"]).to_owned()),
            ("spec.driver", str_in(object, &["spec", "driver"]).to_owned()),
            ("spec.pool.name", str_in(object, &["spec", "pool", "name"]).to_owned()),
        ]
    },
    ..Rules::BASE
};

/// Sets the times of taints and drops disabled fields.
fn slice_fields(slice: &mut Value, old: &Value) {
    if let Some(spec) = object_mut(slice, "spec") {
        for device in items_mut(spec, "devices") {
            items_mut(device, "taints").iter_mut().for_each(add_time);
        }
    }
    drop_disabled(slice, old, SLICE_DISABLED);
}

/// Sets the time of a taint that has none (`SetDefaults_DeviceTaint`).
fn add_time(taint: &mut Value) {
    if taint.is_object() && is_empty(taint, TIME_ADDED) {
        set(taint, TIME_ADDED, now());
    }
}

const TIME_ADDED: &str = "timeAdded";

pub(super) const DEVICE_CLASS: Rules = Rules {
    name: name_is_long_name,
    validate: resource::class,
    validate_change: resource::class_change,
    generation: &["spec"],
    ..Rules::BASE
};

pub(super) const DEVICE_TAINT_RULE: Rules = Rules {
    status: Some("{}"),
    status_keeps_meta: true,
    generation: &["spec"],
    unconditional_update: false,
    validate: resource::rule,
    validate_change: resource::rule_change,
    validate_subresource: resource::rule_status,
    prepare: |_, rule| rule_time(rule, &Value::Null),
    prepare_change: |context, rule, old| {
        if context.subresource.is_empty() {
            rule_time(rule, old);
        }
    },
    ..Rules::BASE
};

/// Sets the time of the taint when it has none, and when its effect changes and the client did not
/// set another time: tolerations count from the time of the effect.
fn rule_time(rule: &mut Value, old: &Value) {
    let before = at(old, &["spec", "taint"]);
    let Some(taint) = object_mut(rule, "spec").and_then(|spec| object_mut(spec, "taint")) else {
        return;
    };
    let same = |key: &str| str_at(taint, key) == str_at(before, key);
    if before.is_object() && !same("effect") && same(TIME_ADDED) {
        remove(taint, TIME_ADDED);
    }
    add_time(taint);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_taint_has_the_time_of_its_effect() {
        let rule = |effect: &str, time: Value| json!({"spec": {"taint": {"key": "k", "effect": effect, "timeAdded": time}}});
        let time = |mut new: Value, old: &Value| -> String {
            rule_time(&mut new, old);
            str_in(&new, &["spec", "taint", TIME_ADDED]).to_owned()
        };
        let (first, second) = (json!("2020-01-01T00:00:00Z"), json!("2021-01-01T00:00:00Z"));
        assert!(time(rule("None", Value::Null), &Value::Null).as_str() > "2022");
        assert_eq!(time(rule("None", first.clone()), &Value::Null), first);
        let old = rule("None", first.clone());
        assert_eq!(time(old.clone(), &old), first);
        assert!(time(rule("NoExecute", first.clone()), &old).as_str() > "2022");
        assert_eq!(time(rule("NoExecute", second.clone()), &old), second);
        // A PUT without the time is a new taint, as with upstream's defaults.
        assert!(time(rule("None", Value::Null), &old).as_str() > "2022");
    }

    #[test]
    fn fields_of_disabled_features_are_dropped_unless_they_are_in_use() {
        let slice = json!({"spec": {"skipNodeOperations": ["Prepare"], "devices": [{"name": "a",
            "taints": [{"key": "k", "effect": "None"}],
            "attributes": {"x": {"strings": ["s"]}, "y": {"string": "s"}},
            "consumesCounters": [{"counterSet": "c", "compatibilityGroups": ["g"]}]}]}});
        let mut new = slice.clone();
        slice_fields(&mut new, &Value::Null);
        assert!(!str_in(&new["spec"]["devices"][0]["taints"][0], &[TIME_ADDED]).is_empty());
        new["spec"]["devices"][0]["taints"] = Value::Null;
        assert_eq!(
            new,
            json!({"spec": {"devices": [{"name": "a", "taints": null,
                "attributes": {"x": {}, "y": {"string": "s"}},
                "consumesCounters": [{"counterSet": "c"}]}]}})
        );
        let mut kept = slice.clone();
        slice_fields(&mut kept, &slice);
        assert_eq!(kept["spec"]["skipNodeOperations"], slice["spec"]["skipNodeOperations"]);
        let mut claim = json!({"spec": {"devices": {"requests": [
            {"exactly": {"derivedAttributes": [1]}},
            {"firstAvailable": [{"derivedAttributes": [1], "count": 1}]}]}}});
        drop_disabled(&mut claim, &Value::Null, CLAIM_DISABLED);
        let want = json!([{"exactly": {}}, {"firstAvailable": [{"count": 1}]}]);
        assert_eq!(claim["spec"]["devices"]["requests"], want);
    }

    /// From `dropDeallocatedStatusDevices` of upstream.
    #[test]
    fn the_status_of_a_device_goes_with_its_allocation() {
        let device = |name: &str| json!({"driver": "d", "pool": "p", "device": name});
        let status = |results: Value, devices: Value| json!({"status": {"allocation": {"devices": {"results": results}}, "devices": devices}});
        let (a, b) = (device("a"), device("b"));
        let old = status(json!([a, b]), json!([a, b]));
        let mut new = status(json!([a]), json!([a, b]));
        claim_status(&mut new, &old);
        assert_eq!(new["status"]["devices"], json!([a]));
        let mut released = json!({"status": {"devices": [a, b]}});
        claim_status(&mut released, &old);
        assert_eq!(released, json!({"status": {}}));
    }
}
