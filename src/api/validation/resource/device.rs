//! Validation of the parts of a device of a ResourceSlice: its nodes, the counters that it
//! consumes, and its binding conditions.

use serde_json::Value;

use crate::field::{Error, ErrorList, Path};
use crate::validation::core::scheduling::node_selector;
use crate::validation::each;
use crate::validation::names::{dns1123_label, dns1123_subdomain, qualified_name};
use crate::value::{entries, get, has, items, str_at, str_in};

/// Maximum numbers of counter sets of a slice, of counters of a set, of counter sets that a device
/// consumes, and of binding conditions (`k8s.io/api/resource`).
const COUNTER_SETS_MAX: usize = 8;
const COUNTERS_MAX: usize = 32;
const CONSUMED_SETS_MAX: usize = 2;
const CONDITIONS_MAX: usize = 4;

/// Validates the fields of a device that specify its nodes. They exist only when each device of the
/// slice has its own.
pub(super) fn placement(device: &Value, is_per_device: bool, path: &Path) -> ErrorList {
    const ONE: &str = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set to true in the ResourceSlice spec";
    if !is_per_device {
        let keys = ["nodeName", "nodeSelector", "allNodes"];
        if !keys.iter().any(|key| has(device, key)) {
            return ErrorList::new();
        }
        let text = "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in the ResourceSlice spec";
        return vec![Error::invalid(path, Value::Null, text)];
    }
    let (mut errors, mut set) = (ErrorList::new(), Vec::new());
    let field = path.child("nodeName");
    match get(device, "nodeName").as_str() {
        Some("") => errors.push(Error::invalid(&field, "", "must not be empty")),
        Some(name) => {
            set.push("`nodeName`");
            errors.extend(each(&field, name, dns1123_subdomain(name)));
        }
        None => {}
    }
    let selector = get(device, "nodeSelector");
    if selector.is_object() {
        set.push("`nodeSelector`");
        errors.extend(node_selector(selector, false, &path.child("nodeSelector")));
    }
    match get(device, "allNodes").as_bool() {
        Some(true) => set.push("`allNodes`"),
        Some(false) => {
            let text = "must be either unset or set to true";
            errors.push(Error::invalid(&path.child("allNodes"), false, text));
        }
        None => {}
    }
    match set.as_slice() {
        [] => errors.push(Error::required(path, ONE)),
        [_] => {}
        many => errors.push(Error::invalid(path, format!("{{{}}}", many.join(", ")), ONE)),
    }
    errors
}

/// Validates the counter sets of a slice.
pub(super) fn shared_counters(spec: &Value, path: &Path) -> ErrorList {
    counter_sets(items(spec, "sharedCounters"), "name", COUNTER_SETS_MAX, path)
}

/// Validates the counters that a device consumes.
pub(super) fn consumed_counters(device: &Value, path: &Path) -> ErrorList {
    counter_sets(items(device, "consumesCounters"), "counterSet", CONSUMED_SETS_MAX, path)
}

/// Validates a list of named sets of counters; any quantity is valid.
fn counter_sets(list: &[Value], key: &str, most: usize, path: &Path) -> ErrorList {
    if list.len() > most {
        return vec![Error::too_many(path, list.len(), most)];
    }
    let mut errors = ErrorList::new();
    for (index, set) in list.iter().enumerate() {
        let place = path.index(index);
        let (name, field) = (str_at(set, key), place.child(key));
        if name.is_empty() {
            errors.push(Error::required(&field, ""));
        } else {
            errors.extend(each(&field, name, dns1123_label(name)));
        }
        let (count, field) = (entries(set, "counters").count(), place.child("counters"));
        match count {
            0 => errors.push(Error::required(&field, "")),
            _ if count > COUNTERS_MAX => {
                errors.push(Error::too_many(&field, count, COUNTERS_MAX));
            }
            _ => {
                for (counter, _) in entries(set, "counters") {
                    errors.extend(each(&field, counter.as_str(), dns1123_label(counter)));
                }
            }
        }
    }
    for (index, set) in list.iter().enumerate() {
        let name = str_at(set, key);
        if list.iter().take(index).any(|earlier| str_in(earlier, &[key]) == name) {
            errors.push(Error::duplicate(&path.index(index), name));
        }
    }
    errors
}

/// Validates the conditions that must be true or false before a pod is bound: both kinds or none.
pub(super) fn binding_conditions(device: &Value, path: &Path) -> ErrorList {
    let [required, failing] = ["bindingConditions", "bindingFailureConditions"];
    let mut errors = ErrorList::new();
    let texts =
        |key: &str| -> Vec<&str> { items(device, key).iter().filter_map(Value::as_str).collect() };
    let (conditions, failures) = (texts(required), texts(failing));
    for (key, list) in [(required, &conditions), (failing, &failures)] {
        let field = path.child(key);
        if list.len() > CONDITIONS_MAX {
            errors.push(Error::too_many(&field, list.len(), CONDITIONS_MAX));
            continue;
        }
        for (index, name) in list.iter().enumerate() {
            errors.extend(each(&field.index(index), *name, qualified_name(name)));
        }
    }
    for (key, list) in [(required, &conditions), (failing, &failures)] {
        for (index, name) in list.iter().enumerate() {
            let field = path.child(key).index(index);
            if list.iter().take(index).any(|earlier| earlier == name) {
                errors.push(Error::duplicate(&field, *name));
            }
            if key == failing && conditions.contains(name) {
                let text = "bindingFailureConditions must not overlap with bindingConditions";
                errors.push(Error::invalid(&field, *name, text));
            }
        }
    }
    for (missing, other, is_missing) in [
        (required, failing, conditions.is_empty() && !failures.is_empty()),
        (failing, required, failures.is_empty() && !conditions.is_empty()),
    ] {
        if is_missing {
            let text = format!("{missing} are required to use {other}");
            errors.push(Error::invalid(&path.child(missing), Value::Null, text));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn bodies(errors: &ErrorList) -> Vec<String> {
        errors.iter().map(|e| format!("{}: {}", e.field, e.body())).collect()
    }

    #[test]
    fn each_device_has_its_own_nodes_or_none() {
        let of = |device: &Value, own| bodies(&placement(device, own, &Path::new("d")));
        assert!(of(&json!({"nodeName": "n"}), true).is_empty());
        assert!(of(&json!({}), false).is_empty());
        assert!(of(&json!({}), true)[0].starts_with("d: Required value: exactly one of"));
        let two = json!({"nodeName": "n", "allNodes": true});
        assert!(of(&two, true)[0].starts_with("d: Invalid value: \"{`nodeName`, `allNodes`}\""));
        assert!(of(&two, false)[0].contains("can only be set if `perDeviceNodeSelection`"));
        assert_eq!(
            of(&json!({"nodeName": ""}), true)[0],
            "d.nodeName: Invalid value: \"\": must not be empty"
        );
    }

    #[test]
    fn counter_sets_have_names_and_counters() {
        let set =
            |name: &str| json!({"counterSet": name, "counters": {"memory": {"value": "1Gi"}}});
        let of = |sets: Value| {
            bodies(&consumed_counters(&json!({"consumesCounters": sets}), &Path::new("c")))
        };
        assert!(of(json!([set("a"), set("b")])).is_empty());
        assert_eq!(of(json!([set("a"), set("a")])), ["c[1]: Duplicate value: \"a\""]);
        assert_eq!(
            of(json!([set("a"), set("b"), set("c")])),
            ["c: Too many: 3: must have at most 2 items"]
        );
        assert_eq!(
            of(json!([{}])),
            ["c[0].counterSet: Required value", "c[0].counters: Required value"]
        );
        let shared = json!({"sharedCounters": [{"name": "A", "counters": {"B": {"value": "1"}}}]});
        let found = bodies(&shared_counters(&shared, &Path::new("s")));
        assert!(found[0].starts_with("s[0].name: Invalid value: \"A\""));
        assert!(found[1].starts_with("s[0].counters: Invalid value: \"B\""));
    }

    #[test]
    fn binding_conditions_come_in_pairs() {
        let of = |conditions: Value, failures: Value| {
            let device =
                json!({"bindingConditions": conditions, "bindingFailureConditions": failures});
            bodies(&binding_conditions(&device, &Path::new("d")))
        };
        assert!(of(json!(["a"]), json!(["b"])).is_empty());
        assert!(of(Value::Null, Value::Null).is_empty());
        assert!(
            of(json!(["a"]), Value::Null)[0]
                .ends_with("bindingFailureConditions are required to use bindingConditions")
        );
        assert!(
            of(Value::Null, json!(["a"]))[0]
                .ends_with("bindingConditions are required to use bindingFailureConditions")
        );
        assert_eq!(
            of(json!(["a", "a"]), json!(["a"])),
            [
                "d.bindingConditions[1]: Duplicate value: \"a\"",
                "d.bindingFailureConditions[0]: Invalid value: \"a\": bindingFailureConditions must not overlap with bindingConditions",
            ]
        );
    }
}
