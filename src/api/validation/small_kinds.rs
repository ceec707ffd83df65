//! Validation of kinds with few rules: PriorityClass, Lease, ControllerRevision, RuntimeClass and
//! APIService.

use serde_json::Value;

use super::admission::webhook_service;
use super::checks::{Shape, go_json, printed, repeated, required_as};
use super::core::resources::{container_resource_name, quantity_value};
use super::core::scheduling::tolerations;
use super::labels::validate_labels;
use super::names;
use super::numbers::{NEGATIVE, non_negative, positive, quantity};
use super::{IMMUTABLE, each, immutable, one_of};
use crate::field::{Error, ErrorList, Kind, Path};
use crate::value::{bool_at, entries, get, has, int_at, is_empty, items, str_at};

/// Maximum value of a PriorityClass of users; only the system classes of Kubernetes have higher
/// values.
const PRIORITY_MAX: i64 = 1_000_000_000;

/// Validates a new PriorityClass.
pub fn priority_class(object: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let (name, value) = (str_at(get(object, "metadata"), "name"), int_at(object, "value"));
    let value = value.unwrap_or_default();
    let known =
        [("system-node-critical", 2_000_001_000), ("system-cluster-critical", 2_000_000_000)];
    if name.starts_with("system-") {
        let field = Path::new("metadata").child("name");
        match known.iter().find(|(system, _)| *system == name) {
            None => {
                let text = format!(
                    "priority class names with 'system-' prefix are reserved for system use only. error: {name} is not a known system priority class"
                );
                errors.push(Error::forbidden(&field, text));
            }
            Some((_, wanted)) if *wanted != value => {
                let text = format!(
                    "priority class names with 'system-' prefix are reserved for system use only. error: value of {name} PriorityClass must be {wanted}"
                );
                errors.push(Error::forbidden(&field, text));
            }
            Some(_) => {}
        }
    } else if value > PRIORITY_MAX {
        let text = format!("maximum allowed value of a user defined priority is {PRIORITY_MAX}");
        errors.push(Error::forbidden(&Path::new("value"), text));
    }
    let field = Path::new("preemptionPolicy");
    match get(object, "preemptionPolicy").as_str() {
        None => {}
        Some("") => errors.push(Error::required(&field, "")),
        Some(policy) => {
            errors.extend(one_of(policy, &["PreemptLowerPriority", "Never"], &field));
        }
    }
    errors
}

/// Validates an update of a PriorityClass: `value` and `preemptionPolicy` are immutable.
pub fn priority_class_change(object: &Value, old: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    if int_at(object, "value").unwrap_or_default() != int_at(old, "value").unwrap_or_default() {
        errors.push(Error::forbidden(&Path::new("value"), "may not be changed in an update."));
    }
    let key = "preemptionPolicy";
    errors.extend(immutable(get(object, key), get(old, key), &Path::new(key)));
    errors
}

/// Validates a Lease.
pub fn lease(object: &Value) -> ErrorList {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    let mut errors = ErrorList::new();
    errors.extend(positive(spec, "leaseDurationSeconds", &path));
    errors.extend(non_negative(spec, "leaseTransitions", &path));
    if let Some(strategy) = get(spec, "strategy").as_str() {
        let field = path.child("strategy");
        let prefixed = strategy.contains('/');
        if prefixed {
            errors.extend(each(&field, strategy, names::qualified_name(strategy)));
        } else {
            errors.extend(one_of(strategy, &["OldestEmulationVersion"], &field));
        }
    }
    if has(spec, "preferredHolder") && is_empty(spec, "strategy") {
        let text = "may only be specified if `strategy` is defined";
        errors.push(Error::forbidden(&path.child("preferredHolder"), text));
    }
    errors
}

/// Validates a ControllerRevision.
pub fn controller_revision(object: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    if let Some(revision) = int_at(object, "revision").filter(|r| *r < 0) {
        errors.push(Error::invalid(&Path::new("revision"), revision, NEGATIVE));
    }
    match get(object, "data") {
        Value::Null => errors.push(Error::required(&Path::new("data"), "data is mandatory")),
        Value::Object(_) => {}
        _ => {
            let text = "data must be a valid JSON object";
            errors.push(Error::required(&Path::new("data"), text));
        }
    }
    errors
}

/// Validates an update of a ControllerRevision: `data` is immutable.
pub fn controller_revision_change(object: &Value, old: &Value) -> ErrorList {
    let data = immutable(get(object, "data"), get(old, "data"), &Path::new("data"));
    let mut errors = super::core::config_map::prefix(object);
    errors.extend(controller_revision(object));
    if !data.is_empty() {
        errors.retain(|error| error.field != Path::new("data"));
    }
    errors.extend(data);
    errors
}

/// The fields by which two tolerations are equal; an absent string equals an empty one.
fn toleration(one: &Value) -> ([&str; 4], Option<i64>) {
    let texts = ["key", "operator", "value", "effect"].map(|field| str_at(one, field));
    (texts, one.get("tolerationSeconds").and_then(Value::as_i64))
}

const TOLERATION: Shape = Shape::Struct(&[
    ("Key", "key", Shape::Text),
    ("Operator", "operator", Shape::Text),
    ("Value", "value", Shape::Text),
    ("Effect", "effect", Shape::Text),
    ("TolerationSeconds", "tolerationSeconds", Shape::Pointer),
]);

/// Validates a new RuntimeClass.
pub fn runtime_class(object: &Value) -> ErrorList {
    // The text of upstream's declarative validation states the length in bytes.
    let short_name = |name: &str| {
        let texts = names::dns1123_label(name).into_iter();
        texts.map(|text| text.replace("more than 63 characters", "more than 63 bytes")).collect()
    };
    let mut errors = required_as(object, "handler", &Path::default(), short_name);
    let path = Path::new("overhead").child("limits");
    for (name, amount) in entries(get(object, "overhead"), "podFixed") {
        let field = path.key(name);
        errors.extend(container_resource_name(name, &field));
        if let Some(amount) = quantity(amount) {
            errors.extend(quantity_value(name, amount, &field));
        }
    }
    let (scheduling, path) = (get(object, "scheduling"), Path::new("scheduling"));
    errors.extend(validate_labels(scheduling, "nodeSelector", &path));
    let (list, path) = (items(scheduling, "tolerations"), path.child("tolerations"));
    errors.extend(tolerations(list, &path));
    let again = repeated(list.iter().map(toleration));
    for (index, one) in list.iter().enumerate() {
        if again.at(index) {
            let mut error = printed(&path.index(index), &go_json(one, TOLERATION), "");
            error.kind = Kind::Duplicate;
            error.detail = go_json(one, TOLERATION);
            errors.push(error);
        }
    }
    errors
}

/// Validates an update of a RuntimeClass: `handler` is immutable.
pub fn runtime_class_change(object: &Value, old: &Value) -> ErrorList {
    let mut errors = runtime_class(object);
    if str_at(object, "handler") != str_at(old, "handler") {
        errors.push(Error::invalid(&Path::new("handler"), Value::Null, IMMUTABLE));
    }
    errors
}

/// Validates an update of the status of an APIService.
pub fn api_service_status(subresource: &str, object: &Value, _: &Value) -> ErrorList {
    if subresource != "status" {
        return Vec::new();
    }
    let path = Path::new("status").child("conditions");
    let list = items(get(object, "status"), "conditions").iter().enumerate();
    list.filter_map(|(index, condition)| {
        let field = path.index(index).child("status");
        one_of(str_at(condition, "status"), &["False", "True", "Unknown"], &field)
    })
    .collect()
}

/// Validates an APIService.
pub fn api_service(object: &Value) -> ErrorList {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    let (group, version) = (str_at(spec, "group"), str_at(spec, "version"));
    let (name, wanted) = (str_at(get(object, "metadata"), "name"), format!("{version}.{group}"));
    let mut errors = ErrorList::new();
    // For a name that is not a valid path segment, upstream reports only that error.
    let is_segment = !matches!(name, "." | "..") && !name.contains(['/', '%']);
    if name != wanted && !name.is_empty() && is_segment {
        let text =
            format!("must be `spec.version+\".\"+spec.group`: {}", crate::field::go_quote(&wanted));
        errors.push(Error::invalid(&Path::new("metadata").child("name"), name, text));
    }
    if !group.is_empty() {
        errors.extend(each(&path.child("group"), group, names::dns1123_subdomain(group)));
    } else if version != "v1" {
        let text = "only v1 may have an empty group and it better be legacy kube";
        errors.push(Error::required(&path.child("group"), text));
    }
    errors.extend(each(&path.child("version"), version, names::dns1035_label(version)));
    for (key, max) in [("groupPriorityMinimum", 20_000), ("versionPriority", 1000)] {
        let value = int_at(spec, key).unwrap_or_default();
        if value <= 0 || value > max {
            let text = format!("must be positive and less than {max}");
            errors.push(Error::invalid(&path.child(key), value, text));
        }
    }
    let (service, insecure) = (get(spec, "service"), bool_at(spec, "insecureSkipTLSVerify"));
    let bundle = !is_empty(spec, "caBundle");
    if !service.is_object() {
        for (key, set, shown) in [
            ("caBundle", bundle, "[REDACTED]".into()),
            ("insecureSkipTLSVerify", insecure, Value::Bool(insecure)),
        ] {
            if set {
                let text = format!("local APIServices may not have {key}");
                errors.push(Error::invalid(&path.child(key), shown, text));
            }
        }
        return errors;
    }
    errors.extend(webhook_service(service, false, &path.child("service")));
    if insecure && bundle {
        let text = "may not be true if caBundle is present";
        errors.push(Error::invalid(&path.child("insecureSkipTLSVerify"), true, text));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A response of kube-apiserver 1.37.1.
    #[test]
    fn handlers_are_counted_in_bytes() {
        let class = json!({"metadata": {"name": "rt"}, "handler": "a".repeat(64)});
        let text = format!(
            "handler: Invalid value: \"{}\": must be no more than 63 bytes",
            "a".repeat(64)
        );
        assert_eq!(runtime_class(&class)[0].to_string(), text);
    }

    #[test]
    fn values_of_priority_classes_stay() {
        let class = |value: i64| json!({"metadata": {"name": "p"}, "value": value});
        assert!(priority_class(&class(1_000_000_000)).is_empty());
        assert_eq!(
            priority_class(&class(1_000_000_001))[0].to_string(),
            "value: Forbidden: maximum allowed value of a user defined priority is 1000000000"
        );
        assert_eq!(priority_class_change(&class(1), &class(2)).len(), 1);
    }
}
