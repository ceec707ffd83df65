//! Rules of the kinds of resource.k8s.io (dynamic resource allocation).

use api::validation::names::name_is_long_name;
use api::validation::{resource, warnings};
use api::value::{at, is_empty, items, object_mut, remove, set, str_at, str_in};
use serde_json::Value;

use crate::registry::rules::Rules;

pub(super) const RESOURCE_CLAIM: Rules = Rules {
    status: Some("{}"),
    status_keeps_meta: true,
    validate: resource::claim,
    validate_change: resource::claim_change,
    validate_subresource: resource::claim_status,
    prepare_change: |context, object, old| {
        if context.subresource == "status" {
            claim_status(object, old);
        }
    },
    ..Rules::BASE
};

/// Removes the status of devices that are not allocated any more, and `skipNodeOperations`, which
/// is off in 1.37, unless the old object has it.
fn claim_status(claim: &mut Value, old: &Value) {
    const RESULTS: [&str; 4] = ["status", "allocation", "devices", "results"];
    let identity = |device: &Value| {
        ["driver", "pool", "device", "shareID"].map(|key| str_at(device, key).to_owned())
    };
    let results = |claim: &Value| -> Vec<[String; 4]> {
        at(claim, &RESULTS).as_array().into_iter().flatten().map(identity).collect()
    };
    const SKIP: &str = "skipNodeOperations";
    let mut in_use = at(old, &RESULTS).as_array().into_iter().flatten();
    if !in_use.any(|result| !is_empty(result, SKIP)) {
        let results = claim.pointer_mut("/status/allocation/devices/results");
        for result in results.and_then(Value::as_array_mut).into_iter().flatten() {
            remove(result, SKIP);
        }
    }
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
    ..Rules::BASE
};

pub(super) const RESOURCE_SLICE: Rules = Rules {
    validate: resource::slice,
    validate_change: resource::slice_change,
    warnings: warnings::resource_slice,
    generation: &["spec"],
    selectable: |object| {
        vec![
            ("spec.nodeName", str_in(object, &["spec", "nodeName"]).to_owned()),
            ("spec.driver", str_in(object, &["spec", "driver"]).to_owned()),
        ]
    },
    ..Rules::BASE
};

pub(super) const DEVICE_CLASS: Rules = Rules {
    name: name_is_long_name,
    validate: resource::class,
    validate_change: resource::class_change,
    generation: &["spec"],
    ..Rules::BASE
};
