//! Validation of Dynamic Resource Allocation: ResourceClaims, ResourceClaimTemplates, DeviceClasses
//! and, in modules of their own, ResourceSlices and DeviceTaintRules.

mod device;
mod slice;
mod status;
mod taint;

use serde_json::Value;

use super::checks::{Shape, go_json, printed, required, required_as, texts};
use super::labels::{only_labels_and_annotations, validate_annotations, validate_labels};
use super::names::{c_identifier, dns1123_label, dns1123_subdomain, label_value, qualified_name};
use super::storage::attacher as driver_name;
use super::{IMMUTABLE, each, one_of};
use crate::expressions::devices as expressions;
use crate::field::{Error, ErrorList, Kind, Path};
use crate::value::{get, has, int_at, is_empty, items, semantic_equal, str_at};

pub use slice::{slice, slice_change};
pub use status::claim_status;
pub use taint::{rule, rule_change, rule_status};

/// Maximum numbers of list elements in one claim (`k8s.io/api/resource`).
const REQUESTS_MAX: usize = 32;
const ALTERNATIVES_MAX: usize = 8;
const CONSTRAINTS_MAX: usize = 32;
const CONFIG_MAX: usize = 32;
const SELECTORS_MAX: usize = 32;
/// Maximum length of the name of an attribute without its domain.
const IDENTIFIER_MAX: usize = 32;
/// Maximum length of the name of a driver, and of the domain of an attribute.
const DRIVER_MAX: usize = 63;
/// Maximum size in bytes of the opaque parameters of a driver.
const PARAMETERS_MAX: usize = 10 * 1024;

/// A subrequest as Go prints it.
const REQUEST: Shape = Shape::Struct(&[
    ("Name", "name", Shape::Text),
    ("DeviceClassName", "deviceClassName", Shape::Text),
    ("Selectors", "selectors", Shape::Pointer),
    ("AllocationMode", "allocationMode", Shape::Text),
    ("Count", "count", Shape::Pointer),
    ("Tolerations", "tolerations", Shape::Pointer),
    ("Capacity", "capacity", Shape::Pointer),
    ("DerivedAttributes", "derivedAttributes", Shape::Pointer),
]);
/// The spec of a claim as Go prints it.
const DEVICES: Shape = Shape::Struct(&[(
    "Devices",
    "devices",
    Shape::Struct(&[
        (
            "Requests",
            "requests",
            Shape::List(&Shape::Struct(&[
                ("Name", "name", Shape::Text),
                ("Exactly", "exactly", Shape::Pointer),
                ("FirstAvailable", "firstAvailable", Shape::List(&REQUEST)),
            ])),
        ),
        ("Constraints", "constraints", Shape::Pointer),
        ("Config", "config", Shape::Pointer),
    ]),
)]);

/// Validates a new claim.
pub fn claim(object: &Value) -> ErrorList {
    devices(get(get(object, "spec"), "devices"), &Path::new("spec").child("devices"))
}

/// Validates an update of a claim: the spec is immutable.
pub fn claim_change(object: &Value, old: &Value) -> ErrorList {
    let mut errors = super::core::config_map::prefix(object);
    if !semantic_equal(get(object, "spec"), get(old, "spec")) {
        // No other rule validates the spec after its change is rejected.
        errors.push(Error::invalid(&Path::new("spec"), Value::Null, IMMUTABLE));
    }
    errors
}

/// Validates a new claim template.
pub fn template(object: &Value) -> ErrorList {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    let (meta, field) = (get(spec, "metadata"), path.child("metadata"));
    let mut errors = validate_labels(meta, "labels", &field);
    errors.extend(validate_annotations(meta, "annotations", &field));
    errors.extend(only_labels_and_annotations(meta, &field));
    errors.extend(devices(get(get(spec, "spec"), "devices"), &path.child("spec").child("devices")));
    errors
}

/// Validates an update of a claim template: the spec is immutable.
pub fn template_change(object: &Value, old: &Value) -> ErrorList {
    let mut errors = super::core::config_map::prefix(object);
    errors.extend(template(object));
    let spec = get(object, "spec");
    if !semantic_equal(spec, get(old, "spec")) {
        let meta = get(spec, "metadata");
        let kept = ["labels", "annotations"].into_iter().filter(|key| !is_empty(meta, key));
        let printed_meta: String =
            kept.map(|key| format!("\"{key}\":{},", get(meta, key))).collect();
        let shown = format!("{{{printed_meta}\"Spec\":{}}}", go_json(get(spec, "spec"), DEVICES));
        errors.push(printed(&Path::new("spec"), &shown, IMMUTABLE));
    }
    errors
}

/// Validates a new device class.
pub fn class(object: &Value) -> ErrorList {
    class_change(object, &Value::Null)
}

/// Validates an update of a device class. Unchanged selectors are not compiled again, and unchanged
/// parameters may exceed the maximum size.
pub fn class_change(object: &Value, old: &Value) -> ErrorList {
    let (spec, was, path) = (get(object, "spec"), get(old, "spec"), Path::new("spec"));
    let stored = |key: &str| old.is_object() && semantic_equal(get(spec, key), get(was, key));
    let mut errors = selectors(spec, stored("selectors"), &path);
    let (list, field) = (items(spec, "config"), path.child("config"));
    if list.len() > CONFIG_MAX {
        errors.push(Error::too_many(&field, list.len(), CONFIG_MAX));
    } else {
        let stored = stored("config");
        for (index, one) in list.iter().enumerate() {
            errors.extend(opaque_configuration(one, stored, &field.index(index)));
        }
    }
    let key = "extendedResourceName";
    if let Some(name) = get(spec, key).as_str().filter(|_| !stored(key)) {
        errors.extend(extended_resource_name(name, &path.child(key)));
    }
    errors
}

/// Validates the name of the extended resource by which pods request devices of a class without a
/// claim.
fn extended_resource_name(name: &str, field: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    if !name.contains('/') {
        let text = "a name must be a domain-prefixed path, such as 'example.com/my-prop'";
        errors.push(Error::invalid(field, name, text));
    } else if name.contains("kubernetes.io/") {
        errors.push(Error::invalid(field, name, "must not have \"kubernetes.io/\" domain"));
    }
    if name.starts_with("requests.") {
        errors.push(Error::invalid(field, name, "must not have \"requests.\" prefix"));
    }
    errors.extend(each(field, name, qualified_name(&format!("requests.{name}"))));
    errors
}

/// Validates the selectors of `parent`. If they are `stored`, they were compiled in an earlier
/// request and are not compiled again.
fn selectors(parent: &Value, stored: bool, path: &Path) -> ErrorList {
    let (list, field) = (items(parent, "selectors"), path.child("selectors"));
    let mut errors = ErrorList::new();
    if list.len() > SELECTORS_MAX {
        errors.push(Error::too_many(&field, list.len(), SELECTORS_MAX));
        return errors;
    }
    for (index, one) in list.iter().enumerate() {
        let (cel, place) = (get(one, "cel"), field.index(index).child("cel"));
        if cel.is_object() {
            let text = str_at(cel, "expression");
            if !stored {
                errors.extend(expression(text, &place.child("expression")));
            }
        } else {
            errors.push(Error::required(&place, ""));
        }
    }
    errors
}

/// Checks that an expression compiles and that its estimated cost is within the limit.
fn expression(text: &str, field: &Path) -> Option<Error> {
    if text.len() > expressions::LENGTH_MAX {
        return Some(Error::too_long(field, expressions::LENGTH_MAX));
    }
    match expressions::selector(text) {
        Err(fault) => Some(fault.at(field, text)),
        Ok(program) => (expressions::cost(&program) > expressions::COST_MAX)
            .then(|| Error::forbidden(field, "too complex, exceeds cost limit")),
    }
}

/// Validates a new configuration for a driver.
fn configuration(one: &Value, path: &Path) -> ErrorList {
    opaque_configuration(one, false, path)
}

/// Validates a configuration for a driver. If it is `stored`, its parameters may exceed
/// [`PARAMETERS_MAX`].
fn opaque_configuration(one: &Value, stored: bool, path: &Path) -> ErrorList {
    let (opaque, field) = (get(one, "opaque"), path.child("opaque"));
    if !opaque.is_object() {
        return vec![Error::required(&field, "")];
    }
    let mut errors = driver_name(str_at(opaque, "driver"), &field.child("driver"));
    match get(opaque, "parameters") {
        Value::Null => errors.push(Error::required(&field.child("parameters"), "")),
        value if !stored && value.to_string().len() > PARAMETERS_MAX => {
            errors.push(Error::too_long(&field.child("parameters"), PARAMETERS_MAX));
        }
        Value::Object(_) => {}
        _ => errors.push(Error::invalid(
            &field.child("parameters"),
            "<value omitted>",
            "must be a valid JSON object",
        )),
    }
    errors
}

/// Validates the requests, constraints and configurations of a claim.
fn devices(devices: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let (list, field) = (items(devices, "requests"), path.child("requests"));
    let known = known_requests(devices);
    if list.len() > REQUESTS_MAX {
        errors.push(Error::too_many(&field, list.len(), REQUESTS_MAX));
    }
    for (index, one) in list.iter().enumerate().filter(|_| list.len() <= REQUESTS_MAX) {
        let (place, name) = (field.index(index), str_at(one, "name"));
        errors.extend(request(one, &place));
        if list.iter().take(index).any(|r| str_at(r, "name") == name) {
            errors.push(twice(&place, &shown_request(one)));
        }
    }
    let (list, field) = (items(devices, "constraints"), path.child("constraints"));
    if list.len() > CONSTRAINTS_MAX {
        errors.push(Error::too_many(&field, list.len(), CONSTRAINTS_MAX));
    }
    for (index, one) in list.iter().enumerate().filter(|_| list.len() <= CONSTRAINTS_MAX) {
        errors.extend(constraint(one, &known, &field.index(index)));
    }
    let (list, field) = (items(devices, "config"), path.child("config"));
    if list.len() > CONFIG_MAX {
        errors.push(Error::too_many(&field, list.len(), CONFIG_MAX));
    }
    for (index, one) in list.iter().enumerate().filter(|_| list.len() <= CONFIG_MAX) {
        let place = field.index(index);
        errors.extend(request_names(one, &known, &place.child("requests")));
        errors.extend(configuration(one, &place));
    }
    errors
}

/// The names that constraints, configurations and results may refer to: `request`, and
/// `request/subrequest` for each element of `firstAvailable`.
fn known_requests(devices: &Value) -> Vec<String> {
    let mut known = Vec::new();
    for one in items(devices, "requests") {
        let name = str_at(one, "name");
        known.push(name.to_owned());
        let alternatives = items(one, "firstAvailable").iter();
        known.extend(alternatives.map(|sub| format!("{name}/{}", str_at(sub, "name"))));
    }
    known
}

/// The error for a duplicate list element; `shown` is the element as upstream prints it.
fn twice(field: &Path, shown: &str) -> Error {
    let mut error = Error::omitted(field, shown);
    error.kind = Kind::Duplicate;
    error
}

/// Prints a request as JSON with the fields in upstream's order.
fn shown_request(one: &Value) -> String {
    let order = [
        "name",
        "exactly",
        "firstAvailable",
        "deviceClassName",
        "selectors",
        "allocationMode",
        "adminAccess",
        "count",
        "tolerations",
        "capacity",
    ];
    // Upstream prints an empty class of `exactly` and of subrequests, which have an allocation
    // mode; the request around them has no field for a class.
    let shown =
        |key: &str| !is_empty(one, key) || key == "deviceClassName" && has(one, "allocationMode");
    let parts = order.iter().filter(|key| shown(key)).map(|key| {
        let value = get(one, key);
        let text = match value {
            Value::Object(_) if *key == "exactly" => shown_request(value),
            Value::Array(list) if *key == "firstAvailable" => {
                let list: Vec<String> = list.iter().map(shown_request).collect();
                format!("[{}]", list.join(","))
            }
            Value::Null => "\"\"".to_owned(),
            other => other.to_string(),
        };
        format!("\"{key}\":{text}")
    });
    format!("{{{}}}", parts.collect::<Vec<_>>().join(","))
}

/// Validates a request, which has either `exactly` or `firstAvailable`.
fn request(one: &Value, path: &Path) -> ErrorList {
    let name = str_at(one, "name");
    let mut errors: ErrorList = each(&path.child("name"), name, dns1123_label(name)).collect();
    let (exactly, first) = (get(one, "exactly"), items(one, "firstAvailable"));
    match (exactly.is_object(), first.is_empty()) {
        (true, true) => {
            errors.extend(exact_request(exactly, &path.child("exactly"), dns1123_subdomain))
        }
        (false, false) => {
            let field = path.child("firstAvailable");
            if first.len() > ALTERNATIVES_MAX {
                errors.push(Error::too_many(&field, first.len(), ALTERNATIVES_MAX));
                return errors;
            }
            for (index, sub) in first.iter().enumerate() {
                let (place, name) = (field.index(index), str_at(sub, "name"));
                errors.extend(each(&place.child("name"), name, dns1123_label(name)));
                errors.extend(exact_request(sub, &place, super::names::long_name));
                if first.iter().take(index).any(|s| str_at(s, "name") == name) {
                    errors.push(twice(&place, &shown_request(sub)));
                }
            }
        }
        (false, true) => errors.push(Error::required(
            path,
            "exactly one of `exactly` or `firstAvailable` is required",
        )),
        (true, false) => {
            let text = "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set";
            errors.push(Error::invalid(path, Value::Null, text));
            // Upstream's declarative validation checks both fields nevertheless.
            errors.extend(declarative(exactly, &path.child("exactly")));
            let field = path.child("firstAvailable");
            for (index, sub) in first.iter().enumerate().take(ALTERNATIVES_MAX) {
                let (place, name) = (field.index(index), str_at(sub, "name"));
                if first.iter().take(index).any(|s| str_at(s, "name") == name) {
                    errors.push(twice(&place, &shown_request(sub)));
                }
                let class = super::names::long_name;
                errors.extend(required_as(sub, "deviceClassName", &place, class));
                errors.extend(declarative(sub, &place));
            }
        }
    }
    errors
}

/// Validates allocation mode and tolerations of one request by the rules of upstream's declarative
/// validation only.
fn declarative(one: &Value, path: &Path) -> ErrorList {
    let one_of_if_set =
        |value: &Value, key: &str, all: &[&str], path: &Path| match str_at(value, key) {
            "" => ErrorList::new(),
            given => one_of(given, all, &path.child(key)).into_iter().collect(),
        };
    let mut errors = one_of_if_set(one, "allocationMode", &["All", "ExactCount"], path);
    for (index, toleration) in items(one, "tolerations").iter().enumerate() {
        let place = path.child("tolerations").index(index);
        let key = str_at(toleration, "key");
        if !key.is_empty() {
            errors.extend(each(&place.child("key"), key, qualified_name(key)));
        }
        errors.extend(one_of_if_set(toleration, "operator", &["Equal", "Exists"], &place));
        let effects = ["NoExecute", "NoSchedule", "None"];
        errors.extend(one_of_if_set(toleration, "effect", &effects, &place));
    }
    errors
}

/// Validates class, selectors, allocation mode, count and tolerations of `exactly` or of a
/// subrequest. `class` validates the name of the class.
fn exact_request(one: &Value, path: &Path, class: fn(&str) -> super::names::Messages) -> ErrorList {
    let mut errors = required_as(one, "deviceClassName", path, class);
    errors.extend(selectors(one, false, path));
    let (mode, count) = (str_at(one, "allocationMode"), int_at(one, "count").unwrap_or_default());
    match mode {
        "ExactCount" if count <= 0 => {
            errors.push(Error::invalid(&path.child("count"), count, "must be greater than zero"));
        }
        "All" if count != 0 => {
            let text = "must not be specified when allocationMode is 'All'";
            errors.push(Error::invalid(&path.child("count"), count, text));
        }
        "ExactCount" | "All" => {}
        other => {
            errors.extend(one_of(other, &["All", "ExactCount"], &path.child("allocationMode")))
        }
    }
    for (index, one) in items(one, "tolerations").iter().enumerate() {
        errors.extend(toleration(one, &path.child("tolerations").index(index)));
    }
    errors
}

/// Validates a toleration of device taints.
fn toleration(one: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let [key, operator, value, effect] =
        ["key", "operator", "value", "effect"].map(|key| str_at(one, key));
    if !key.is_empty() {
        errors.extend(each(&path.child("key"), key, qualified_name(key)));
    }
    let field = path.child("value");
    match operator {
        "Exists" if !value.is_empty() => {
            errors.push(Error::invalid(&field, value, "must be empty for operator `Exists`"));
        }
        "Exists" => {}
        "Equal" => errors.extend(each(&field, value, label_value(value))),
        "" => errors.push(Error::required(&path.child("operator"), "")),
        other => errors.extend(one_of(other, &["Equal", "Exists"], &path.child("operator"))),
    }
    if !effect.is_empty() {
        let known = ["NoExecute", "NoSchedule", "None"];
        errors.extend(one_of(effect, &known, &path.child("effect")));
    }
    errors
}

/// Validates the list `requests` of a constraint or configuration: references to `known` requests.
fn request_names(one: &Value, known: &[String], field: &Path) -> ErrorList {
    let names = texts(one, "requests");
    if names.len() > REQUESTS_MAX {
        return vec![Error::too_many(field, names.len(), REQUESTS_MAX)];
    }
    let mut errors = ErrorList::new();
    for (index, name) in names.iter().enumerate() {
        let place = field.index(index);
        errors.extend(request_name(name, known, &place));
        if names.iter().take(index).any(|n| n == name) {
            errors.push(Error::duplicate(&place, *name));
        }
    }
    errors
}

/// Validates a reference of the form `request` or `request/subrequest`.
fn request_name(name: &str, known: &[String], field: &Path) -> ErrorList {
    const TEXT: &str = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'";
    let segments: Vec<&str> = name.split('/').collect();
    if segments.len() > 2 {
        return vec![Error::invalid(field, name, TEXT)];
    }
    let mut errors: ErrorList =
        segments.iter().flat_map(|segment| each(field, *segment, dns1123_label(segment))).collect();
    if !known.iter().any(|known| known == name) {
        errors.push(Error::invalid(field, name, TEXT));
    }
    errors
}

/// Validates a constraint, which has `matchAttribute` or `distinctAttribute`.
fn constraint(one: &Value, known: &[String], path: &Path) -> ErrorList {
    let mut errors = request_names(one, known, &path.child("requests"));
    let keys = ["matchAttribute", "distinctAttribute"];
    let set: Vec<&str> = keys.into_iter().filter(|key| has(one, key)).collect();
    if set.is_empty() {
        // Upstream's text, although no field is set.
        let text = "exactly one of \"matchAttribute\" or \"distinctAttribute\" is required, but multiple fields are set";
        errors.push(Error::required(path, text));
        return errors;
    }
    for key in set {
        errors.extend(attribute(str_at(one, key), &path.child(key)));
    }
    errors
}

/// Validates an attribute name `domain/name` by the rule of upstream's declarative validation
/// (`ResourceFullyQualifiedName`).
fn attribute(name: &str, field: &Path) -> ErrorList {
    const TEXT: &str = "a fully qualified name must be a domain and a name separated by a slash";
    // The rule does not validate a name with more than one slash.
    if name.matches('/').count() > 1 {
        return ErrorList::new();
    }
    let (domain, identifier) = match name.split_once('/') {
        Some((domain, identifier)) => (Some(domain), identifier),
        None => (None, name),
    };
    let mut errors = ErrorList::new();
    match domain {
        None => errors.push(Error::invalid(field, name, TEXT)),
        Some("") => errors.push(Error::invalid(field, "", "prefix must not be empty")),
        Some(domain) => {
            if domain.len() > DRIVER_MAX {
                errors.push(Error::too_long(field, DRIVER_MAX));
            }
            let texts = dns1123_subdomain(domain).into_iter().map(|text| format!("prefix: {text}"));
            errors.extend(each(field, domain, texts.collect()));
        }
    }
    if identifier.is_empty() && domain.is_some() {
        errors.push(Error::invalid(field, "", "name must not be empty"));
        return errors;
    }
    if identifier.len() > IDENTIFIER_MAX {
        errors.push(Error::too_long(field, IDENTIFIER_MAX));
    }
    errors.extend(each(field, identifier, c_identifier(identifier)));
    errors
}

#[cfg(test)]
mod tests;
