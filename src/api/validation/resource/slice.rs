//! Validation of ResourceSlices: the devices of a driver and the nodes that can access them.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;

use super::DRIVER_MAX;
use super::device::{binding_conditions, consumed_counters, placement, shared_counters};
use super::taint::taint;
use crate::field::{Error, ErrorList, Path};
use crate::validation::core::scheduling::node_selector;
use crate::validation::names::{c_identifier, dns1123_label, dns1123_subdomain};
use crate::validation::{IMMUTABLE, each};
use crate::value::{
    at, bool_at, entries, get, has, int_at, is_empty, items, semantic_equal, str_at,
};

const POOL_MAX: usize = 253;
const VALUE_MAX: usize = 64;
const DEVICES_MAX: usize = 128;
/// Maximum number of devices of a slice that uses taints, counters or lists.
const ADVANCED_DEVICES_MAX: usize = 64;
const ENTRIES_MAX: usize = 32;
/// Maximum number of taints of a device (`DeviceTaintsMaxLength`).
const TAINTS_MAX: usize = 16;
/// Maximum length in bytes of the name of an attribute or capacity without its domain.
const IDENTIFIER_MAX: usize = 32;
/// The value types of an attribute, in upstream's order.
const KINDS: [&str; 8] =
    ["int", "bool", "string", "version", "ints", "bools", "strings", "versions"];

/// A version by the grammar of semver.org 2.0.0.
static VERSION: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let part = "(?:0|[1-9][0-9]*)";
    let before = "(?:0|[1-9][0-9]*|[0-9]*[a-zA-Z-][0-9a-zA-Z-]*)";
    let build = "[0-9a-zA-Z-]+";
    Regex::new(&format!(
        r"^{part}\.{part}\.{part}(?:-{before}(?:\.{before})*)?(?:\+{build}(?:\.{build})*)?$"
    ))
    .ok()
});

/// Validates a new ResourceSlice.
pub fn slice(object: &Value) -> ErrorList {
    spec(get(object, "spec"), &Value::Null)
}

/// Validates an update of a ResourceSlice: driver, pool name and node are immutable.
pub fn slice_change(object: &Value, old: &Value) -> ErrorList {
    spec(get(object, "spec"), get(old, "spec"))
}

fn spec(spec: &Value, old: &Value) -> ErrorList {
    let path = Path::new("spec");
    let mut errors = driver(str_at(spec, "driver"), &path.child("driver"));
    errors.extend(pool(get(spec, "pool"), &path.child("pool")));
    if old.is_object() {
        let pool = path.child("pool").child("name");
        for (at_path, field) in [
            (&["pool", "name"][..], pool),
            (&["driver"], path.child("driver")),
            (&["nodeName"], path.child("nodeName")),
        ] {
            let (new, was) = (at(spec, at_path), at(old, at_path));
            if !semantic_equal(new, was) {
                let shown = if new.is_null() && at_path != ["nodeName"] {
                    Value::from("")
                } else {
                    new.clone()
                };
                errors.push(Error::invalid(&field, shown, IMMUTABLE));
            }
        }
    }
    errors.extend(place(spec, &path));
    if has(spec, "sharedCounters") && has(spec, "devices") {
        errors.push(Error::invalid(
            &path,
            "",
            "only one of `sharedCounters` or `devices` is allowed",
        ));
    }
    errors.extend(devices(spec, old, &path.child("devices")));
    errors.extend(shared_counters(spec, &path.child("sharedCounters")));
    errors
}

pub(super) fn driver(name: &str, field: &Path) -> ErrorList {
    if name.is_empty() {
        return vec![Error::required(field, "")];
    }
    let mut errors = ErrorList::new();
    if name.len() > DRIVER_MAX {
        errors.push(Error::too_long(field, DRIVER_MAX));
    }
    errors.extend(each(field, name, dns1123_subdomain(&name.to_lowercase())));
    errors
}

pub(super) fn pool_name(name: &str, field: &Path) -> ErrorList {
    if name.is_empty() {
        return vec![Error::required(field, "")];
    }
    let mut errors = ErrorList::new();
    if name.len() > POOL_MAX {
        errors.push(Error::too_long(field, POOL_MAX));
    }
    for part in name.split('/') {
        errors.extend(each(field, part, dns1123_subdomain(part)));
    }
    errors
}

fn pool(pool: &Value, path: &Path) -> ErrorList {
    let mut errors = pool_name(str_at(pool, "name"), &path.child("name"));
    let count = int_at(pool, "resourceSliceCount").unwrap_or_default();
    if count <= 0 {
        let field = path.child("resourceSliceCount");
        errors.push(Error::invalid(&field, count, "must be greater than zero"));
    }
    if let Some(generation) = int_at(pool, "generation").filter(|generation| *generation < 0) {
        let field = path.child("generation");
        errors.push(Error::invalid(&field, generation, "must be greater than or equal to zero"));
    }
    errors
}

/// Checks that exactly one field specifies the nodes that can access the devices.
fn place(spec: &Value, path: &Path) -> ErrorList {
    const ONE: &str = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";
    let (mut errors, mut set) = (ErrorList::new(), Vec::new());
    match get(spec, "nodeName").as_str() {
        Some("") => errors.push(Error::invalid(
            &path.child("nodeName"),
            "",
            "must be either unset or set to a non-empty string",
        )),
        Some(name) => {
            set.push("`nodeName`");
            errors.extend(each(&path.child("nodeName"), name, dns1123_subdomain(name)));
        }
        None => {}
    }
    let selector = get(spec, "nodeSelector");
    if selector.is_object() {
        set.push("`nodeSelector`");
        let field = path.child("nodeSelector");
        errors.extend(node_selector(selector, false, &field));
        if items(selector, "nodeSelectorTerms").len() != 1 {
            let shown = get(selector, "nodeSelectorTerms").clone();
            let text = "must have exactly one node selector term";
            errors.push(Error::invalid(&field.child("nodeSelectorTerms"), shown, text));
        }
    }
    for (key, shown) in
        [("allNodes", "`allNodes`"), ("perDeviceNodeSelection", "`perDeviceNodeSelection`")]
    {
        match get(spec, key).as_bool() {
            Some(true) => set.push(shown),
            Some(false) => errors.push(Error::invalid(
                &path.child(key),
                false,
                "must be either unset or set to true",
            )),
            None => {}
        }
    }
    match set.as_slice() {
        [] => errors.push(Error::required(path, ONE)),
        [_] => {}
        many => errors.push(Error::invalid(
            path,
            format!("{{{}}}", many.join(", ")),
            format!("{ONE}, but multiple fields are set"),
        )),
    }
    errors
}

fn devices(spec: &Value, old: &Value, path: &Path) -> ErrorList {
    let list = items(spec, "devices");
    let advanced = |device: &Value| {
        !is_empty(device, "taints")
            || !is_empty(device, "consumesCounters")
            || entries(device, "attributes").any(|(_, value)| {
                ["ints", "bools", "strings", "versions"].iter().any(|key| has(value, key))
            })
    };
    let most = if list.iter().any(advanced) { ADVANCED_DEVICES_MAX } else { DEVICES_MAX };
    if list.len() > most {
        return vec![Error::too_many(path, list.len(), most)];
    }
    let (mut errors, mut seen) = (ErrorList::new(), BTreeSet::new());
    for (index, device) in list.iter().enumerate() {
        let name = str_at(device, "name");
        let was = items(old, "devices").iter().find(|device| str_at(device, "name") == name);
        let alone = bool_at(spec, "perDeviceNodeSelection");
        errors.extend(self::device(device, was, alone, &path.index(index)));
        if !seen.insert(name) {
            errors.push(Error::duplicate(&path.index(index), name));
        }
    }
    errors
}

fn device(device: &Value, old: Option<&Value>, placed: bool, path: &Path) -> ErrorList {
    let name = str_at(device, "name");
    let mut errors: ErrorList = each(&path.child("name"), name, dns1123_label(name)).collect();
    let count = entries(device, "attributes").count() + entries(device, "capacity").count();
    if count > ENTRIES_MAX {
        let text =
            format!("the total number of attributes and capacities must not exceed {ENTRIES_MAX}");
        errors.push(Error::invalid(path, count, text));
    }
    let field = path.child("attributes");
    for (name, value) in entries(device, "attributes") {
        errors.extend(qualified(name, &field));
        errors.extend(attribute(value, &field.key(name)));
    }
    let same = old.is_some_and(|old| semantic_equal(get(old, "capacity"), get(device, "capacity")));
    let field = path.child("capacity");
    for (name, value) in entries(device, "capacity").filter(|_| !same) {
        errors.extend(qualified(name, &field));
        if has(value, "requestPolicy") && !bool_at(device, "allowMultipleAllocations") {
            let field = field.key(name).child("requestPolicy");
            errors.push(Error::forbidden(&field, "allowMultipleAllocations must be true"));
        }
    }
    let taints = items(device, "taints");
    let field = path.child("taints");
    if taints.len() > TAINTS_MAX {
        errors.push(Error::too_many(&field, taints.len(), TAINTS_MAX));
    } else if !old.is_some_and(|old| semantic_equal(get(old, "taints"), get(device, "taints"))) {
        for (index, one) in taints.iter().enumerate() {
            errors.extend(taint(one, &Value::Null, &field.index(index)));
        }
    }
    errors.extend(consumed_counters(device, &path.child("consumesCounters")));
    errors.extend(placement(device, placed, path));
    errors.extend(binding_conditions(device, path));
    errors
}

/// Validates a name of the form `[domain/]identifier`.
fn qualified(name: &str, field: &Path) -> ErrorList {
    let (domain, identifier) = match name.split_once('/') {
        None => (None, name),
        // Upstream does not validate a name with more than one slash.
        Some((_, rest)) if rest.contains('/') => return Vec::new(),
        Some((domain, identifier)) => (Some(domain), identifier),
    };
    let mut errors = match domain {
        None => ErrorList::new(),
        Some("") => vec![Error::invalid(field, "", "the domain must not be empty")],
        Some(domain) => driver(domain, field),
    };
    if identifier.is_empty() && domain.is_some() {
        errors.push(Error::invalid(field, "", "the name must not be empty"));
        return errors;
    }
    if identifier.len() > IDENTIFIER_MAX {
        errors.push(Error::too_long(field, IDENTIFIER_MAX));
    }
    errors.extend(each(field, identifier, c_identifier(identifier)));
    errors
}

fn attribute(value: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    for (key, many) in [("string", "strings"), ("version", "versions")] {
        if let Some(text) = get(value, key).as_str() {
            errors.extend(attribute_text(text, key, &path.child(key)));
        }
        for (index, text) in items(value, many).iter().enumerate() {
            let field = path.child(many).index(index);
            errors.extend(attribute_text(text.as_str().unwrap_or_default(), key, &field));
        }
    }
    let set: Vec<String> =
        KINDS.iter().filter(|kind| has(value, kind)).map(|kind| format!("`{kind}`")).collect();
    let all = KINDS.map(|kind| format!("`{kind}`")).join(", ");
    match set.as_slice() {
        [] => errors.push(Error::invalid(path, "", format!("must specify one of: {all}"))),
        [_] => {}
        many => errors.push(Error::invalid(
            path,
            format!("{{{}}}", many.join(", ")),
            format!("must specify exactly one of: {all}"),
        )),
    }
    errors
}

fn attribute_text(text: &str, kind: &str, field: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    if kind == "version" && !VERSION.as_ref().is_some_and(|version| version.is_match(text)) {
        let why = "must be a string compatible with semver.org spec 2.0.0";
        errors.push(Error::invalid(field, text, why));
    }
    if text.len() > VALUE_MAX {
        errors.push(Error::too_long(field, VALUE_MAX));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn bodies(spec: Value) -> Vec<String> {
        let errors = slice(&json!({"spec": spec}));
        errors.iter().map(|e| format!("{}: {}", e.field, e.body())).collect()
    }

    #[test]
    fn slices_say_whose_and_where() {
        assert_eq!(
            bodies(json!({})),
            [
                "spec.driver: Required value",
                "spec.pool.name: Required value",
                "spec.pool.resourceSliceCount: Invalid value: 0: must be greater than zero",
                "spec: Required value: exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required",
            ]
        );
    }

    #[test]
    fn attributes_have_one_value() {
        let spec = |attributes: Value| {
            json!({
                "driver": "d.example.com", "nodeName": "n", "pool": {"name": "p", "resourceSliceCount": 1},
                "devices": [{"name": "d0", "attributes": attributes}],
            })
        };
        assert!(bodies(spec(json!({"v": {"version": "1.2.3"}, "x": {"string": "a"}}))).is_empty());
        assert_eq!(
            bodies(spec(json!({"v": {"version": "1.2.3x"}, "x": {}}))),
            [
                "spec.devices[0].attributes[v].version: Invalid value: \"1.2.3x\": must be a string compatible with semver.org spec 2.0.0",
                "spec.devices[0].attributes[x]: Invalid value: \"\": must specify one of: `int`, `bool`, `string`, `version`, `ints`, `bools`, `strings`, `versions`",
            ]
        );
    }
}
