//! Validation of DeviceTaintRules and of the taints of devices.

use serde_json::Value;

use super::slice::{driver, pool_name};
use crate::field::{Error, ErrorList, Path};
use crate::validation::names::{dns1123_label, label_value, qualified_name};
use crate::validation::{conditions, each, one_of};
use crate::value::{get, items, str_at};

/// Maximum number of conditions of a rule (`DeviceTaintRuleStatusMaxConditions`).
const CONDITIONS_MAX: usize = 8;

/// Validates a new DeviceTaintRule.
pub fn rule(object: &Value) -> ErrorList {
    rule_change(object, &Value::Null)
}

/// Validates an update of a DeviceTaintRule; an unchanged effect may be unknown.
pub fn rule_change(object: &Value, old: &Value) -> ErrorList {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    let (selector, field) = (get(spec, "deviceSelector"), path.child("deviceSelector"));
    let mut errors = ErrorList::new();
    if let Some(name) = get(selector, "driver").as_str() {
        errors.extend(driver(name, &field.child("driver")));
    }
    if let Some(name) = get(selector, "pool").as_str() {
        errors.extend(pool_name(name, &field.child("pool")));
    }
    if let Some(name) = get(selector, "device").as_str() {
        errors.extend(each(&field.child("device"), name, dns1123_label(name)));
    }
    errors.extend(taint(get(spec, "taint"), get(get(old, "spec"), "taint"), &path.child("taint")));
    errors
}

/// Validates a write of the status of a DeviceTaintRule.
pub fn rule_status(subresource: &str, object: &Value, _: &Value) -> ErrorList {
    if subresource != "status" {
        return ErrorList::new();
    }
    let conditions = items(get(object, "status"), "conditions");
    let field = Path::new("status").child("conditions");
    let mut errors = conditions::validate(conditions, &field);
    if conditions.len() > CONDITIONS_MAX {
        errors.push(Error::too_many(&field, conditions.len(), CONDITIONS_MAX));
    }
    errors
}

/// Validates a taint; `old` is the taint before an update, or null.
pub(super) fn taint(taint: &Value, old: &Value, path: &Path) -> ErrorList {
    let [key, value, effect] = ["key", "value", "effect"].map(|key| str_at(taint, key));
    let mut errors: ErrorList = each(&path.child("key"), key, qualified_name(key)).collect();
    if !value.is_empty() {
        errors.extend(each(&path.child("value"), value, label_value(value)));
    }
    if old.is_null() || str_at(old, "effect") != effect {
        let field = path.child("effect");
        if effect.is_empty() {
            errors.push(Error::required(&field, ""));
        } else {
            errors.extend(one_of(effect, &["NoExecute", "NoSchedule", "None"], &field));
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

    /// From the cases of `TestValidateDeviceTaint`.
    #[test]
    fn rules_name_drivers_pools_devices_and_a_taint() {
        let good = json!({"spec": {
            "deviceSelector": {"driver": "d.example.com", "pool": "p/q", "device": "a"},
            "taint": {"key": "example.com/taint", "value": "tainted", "effect": "NoExecute"}}});
        assert_eq!(bodies(&rule(&good)), [""; 0]);
        let empty =
            json!({"spec": {"deviceSelector": {}, "taint": {"key": "k", "effect": "None"}}});
        assert_eq!(bodies(&rule(&empty)), [""; 0]);
        let bad = json!({"spec": {
            "deviceSelector": {"driver": "", "pool": "", "device": "A"},
            "taint": {"key": "k", "value": "no spaces", "effect": "Other"}}});
        let found = bodies(&rule(&bad));
        assert_eq!(found[0], "spec.deviceSelector.driver: Required value");
        assert_eq!(found[1], "spec.deviceSelector.pool: Required value");
        assert!(found[2].starts_with("spec.deviceSelector.device: Invalid value: \"A\": "));
        assert!(found[3].starts_with("spec.taint.value: Invalid value: \"no spaces\": "));
        assert_eq!(
            found[4],
            "spec.taint.effect: Unsupported value: \"Other\": supported values: \"NoExecute\", \
             \"NoSchedule\", \"None\""
        );
        // A stored effect that is not known may stay.
        assert_eq!(bodies(&rule_change(&bad, &bad)).len(), 4);
        let none = bodies(&rule(&json!({"spec": {"taint": {}}})));
        assert!(none[0].starts_with("spec.taint.key: Invalid value: \"\": name part must be"));
        assert_eq!(none.last().unwrap(), "spec.taint.effect: Required value");
    }

    #[test]
    fn a_status_has_eight_valid_conditions() {
        let condition = |kind: usize| {
            json!({"type": format!("T{kind}"), "status": "True", "reason": "R", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z"})
        };
        let status = |number| json!({"status": {"conditions": (0..number).map(condition).collect::<Vec<_>>()}});
        let of = |number| bodies(&rule_status("status", &status(number), &Value::Null));
        assert_eq!(of(8), [""; 0]);
        assert_eq!(of(9), ["status.conditions: Too many: 9: must have at most 8 items"]);
        let bad = json!({"status": {"conditions": [{"type": "T", "status": "Maybe"}]}});
        assert!(!rule_status("status", &bad, &Value::Null).is_empty());
    }
}
