//! Validation of `storage.k8s.io`: StorageClass, VolumeAttachment, CSINode, CSIDriver,
//! CSIStorageCapacity and VolumeAttributesClass.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::Value;
use sorting::CompactSort as _;

use super::checks::{Shape, go_json, printed, repeated, required, required_as, texts};
use super::core::claim::ACCESS_MODES;
use super::core::persistent_volume::volume_spec;
use super::core::volumes::csi_driver_name;
use super::names::{self, qualified_name};
use super::numbers::{non_negative, non_negative_quantity};
use super::{IMMUTABLE, each, one_of};
use crate::field::{Error, ErrorList, Path};
use crate::value::{entries, get, has, int_at, is_empty, items, semantic_equal, str_at};

/// Maximum number of parameters of a class, and their total size in bytes.
const PARAMETERS_MAX: usize = 512;
const PARAMETERS_SIZE_MAX: usize = 256 * 1024;
/// Maximum length in bytes of the node ID of a driver.
const NODE_ID_MAX: usize = 256;
/// Maximum length in bytes of the error message of an attachment, and maximum size of its metadata.
const MESSAGE_MAX: usize = 1024;
const METADATA_MAX: usize = 256 * 1024;
/// Minimum of `nodeAllocatableUpdatePeriodSeconds`, in seconds.
const UPDATE_PERIOD_MIN: i64 = 10;
/// Minimum and maximum lifetime of a service account token, in seconds.
const TOKEN_SECONDS_MIN: i64 = 600;
const TOKEN_SECONDS_MAX: i64 = 1 << 32;

fn driver_like(object: &Value, key: &str) -> ErrorList {
    required_as(object, key, &Path::default(), |name| {
        // Upstream validates the name in lower case, and its errors print it so.
        qualified_name(&name.to_lowercase())
    })
    .into_iter()
    .map(|mut error| {
        if let Value::String(text) = &error.value {
            error.value = Value::from(text.to_lowercase());
        }
        error
    })
    .collect()
}

fn parameters(object: &Value, empty_allowed: bool) -> ErrorList {
    let field = Path::new("parameters");
    let count = entries(object, "parameters").count();
    if count > PARAMETERS_MAX {
        return vec![Error::too_long(&field, PARAMETERS_MAX)];
    }
    let mut errors = ErrorList::new();
    let mut size = 0;
    for (key, value) in entries(object, "parameters") {
        if key.is_empty() {
            errors.push(Error::invalid(&field, "", "field can not be empty."));
        }
        size += key.len() + value.as_str().map_or(0, str::len);
    }
    if size > PARAMETERS_SIZE_MAX {
        errors.push(Error::too_long(&field, PARAMETERS_SIZE_MAX));
    }
    if !empty_allowed && count == 0 {
        errors.push(Error::required(&field, "must contain at least one key/value pair"));
    }
    errors
}

/// Validates a new StorageClass.
pub fn class(object: &Value) -> ErrorList {
    let mut errors = driver_like(object, "provisioner");
    errors.extend(parameters(object, true));
    let policy = str_at(object, "reclaimPolicy");
    if !policy.is_empty() {
        errors.extend(one_of(policy, &["Delete", "Retain"], &Path::new("reclaimPolicy")));
    }
    let field = Path::new("volumeBindingMode");
    match get(object, "volumeBindingMode").as_str() {
        None => errors.push(Error::required(&field, "")),
        Some(mode) => errors.extend(one_of(mode, &["Immediate", "WaitForFirstConsumer"], &field)),
    }
    errors.extend(topologies(items(object, "allowedTopologies"), &Path::new("allowedTopologies")));
    errors
}

/// Validates an update of a StorageClass.
pub fn class_change(object: &Value, old: &Value) -> ErrorList {
    let mut errors = class(object);
    for key in ["parameters", "provisioner", "reclaimPolicy", "volumeBindingMode"] {
        errors.extend(stays(object, old, key));
    }
    errors
}

/// Checks that a field is unchanged; upstream omits the value from the error.
fn stays(object: &Value, old: &Value, key: &str) -> Option<Error> {
    let same = semantic_equal(get(object, key), get(old, key));
    (!same).then(|| Error::invalid(&Path::new(key), Value::Null, IMMUTABLE))
}

fn topologies(terms: &[Value], path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let mut seen: HashSet<BTreeMap<&str, Vec<&str>>> = HashSet::from([BTreeMap::new()]);
    for (index, term) in terms.iter().enumerate() {
        let field = path.index(index).child("matchLabelExpressions");
        let mut own: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (at, requirement) in items(term, "matchLabelExpressions").iter().enumerate() {
            let place = field.index(at);
            let (key, mut values) = (str_at(requirement, "key"), texts(requirement, "values"));
            if values.is_empty() {
                errors.push(Error::required(&place.child("values"), ""));
            }
            let again = repeated(values.iter());
            for (n, value) in values.iter().enumerate() {
                if again.at(n) {
                    errors.push(Error::duplicate(&place.child("values").index(n), *value));
                }
            }
            errors.extend(each(&place.child("key"), key, qualified_name(key)));
            if own.contains_key(key) {
                errors.push(Error::duplicate(&place.child("key"), key));
            }
            values.compact_sort();
            values.dedup();
            own.insert(key, values);
        }
        if !seen.insert(own) {
            errors.push(Error::duplicate(&field, ""));
        }
    }
    errors
}

/// Validates a new VolumeAttachment.
pub fn attachment(object: &Value) -> ErrorList {
    attachment_by(object, attacher)
}

/// Validates a VolumeAttachment; `rule` validates the name of the attacher.
fn attachment_by(object: &Value, rule: fn(&str, &Path) -> ErrorList) -> ErrorList {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    let mut errors = rule(str_at(spec, "attacher"), &path.child("attacher"));
    let (source, field) = (get(spec, "source"), path.child("source"));
    const ONE: &str = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
    let name = get(source, "persistentVolumeName").as_str();
    match (get(source, "inlineVolumeSpec"), name) {
        (inline, None) if !inline.is_object() => errors.push(Error::required(&field, ONE)),
        (inline, None) => {
            errors.extend(volume_spec(inline, "", true, &field.child("inlineVolumeSpec")))
        }
        (inline, Some(_)) if inline.is_object() => errors.push(Error::forbidden(&field, ONE)),
        (_, Some("")) => errors.push(Error::required(
            &field.child("persistentVolumeName"),
            "must specify non empty persistentVolumeName",
        )),
        _ => {}
    }
    let node = str_at(spec, "nodeName");
    errors.extend(each(&path.child("nodeName"), node, names::dns1123_subdomain(node)));
    errors.extend(attachment_status(object));
    if let Some(name) = name {
        let field = field.child("persistentVolumeName");
        errors.extend(each(&field, name, names::dns1123_subdomain(name)));
    }
    errors
}

fn attachment_status(object: &Value) -> ErrorList {
    let (status, path) = (get(object, "status"), Path::new("status"));
    let mut errors = ErrorList::new();
    let size: usize = entries(status, "attachmentMetadata")
        .map(|(key, value)| key.len() + value.as_str().map_or(0, str::len))
        .sum();
    if size > METADATA_MAX {
        errors.push(Error::too_long(&path.child("attachmentMetadata"), METADATA_MAX));
    }
    for key in ["attachError", "detachError"] {
        let (error, field) = (get(status, key), path.child(key));
        if str_at(error, "message").len() > MESSAGE_MAX {
            errors.push(Error::too_long(&field.child("message"), MESSAGE_MAX));
        }
        let code = int_at(error, "errorCode").filter(|code| *code < 0);
        errors.extend(code.map(|code| {
            let text = names::range_text(0, i64::from(i32::MAX));
            Error::invalid(&field.child("errorCode"), code, text)
        }));
    }
    errors
}

/// Validates the name of a driver by the rule of upstream's declarative validation.
pub(super) fn attacher(name: &str, path: &Path) -> ErrorList {
    const TEXT: &str = "an RFC 1123 subdomain must consist of alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'Example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
    if name.is_empty() {
        return vec![Error::required(path, "")];
    }
    let mut errors = ErrorList::new();
    let texts = names::long_name(&name.to_lowercase()).into_iter();
    let texts = texts.map(|text| if text.starts_with("a lower") { TEXT.to_owned() } else { text });
    errors.extend(each(path, name, texts.collect()));
    if name.chars().count() > names::LABEL_MAX {
        let mut error = Error::too_long(path, names::LABEL_MAX);
        error.detail = format!("may not be more than {} characters", names::LABEL_MAX);
        errors.push(error);
    }
    errors
}

/// Validates an update of a VolumeAttachment.
pub fn attachment_change(object: &Value, old: &Value) -> ErrorList {
    // Upstream's declarative validation stops at a changed spec, so the handwritten rule validates
    // the attacher.
    let mut errors = attachment_by(object, csi_driver_name);
    errors.extend(stays(object, old, "spec"));
    errors
}

/// A driver entry of a CSINode as upstream prints it; `Allocatable` is always `null`.
const DRIVER: Shape = Shape::Struct(&[
    ("Name", "name", Shape::Text),
    ("NodeID", "nodeID", Shape::Text),
    ("TopologyKeys", "topologyKeys", Shape::List(&Shape::Text)),
    ("Allocatable", "", Shape::Pointer),
]);

/// Validates a new CSINode.
pub fn node(object: &Value) -> ErrorList {
    let list = Path::new("spec").child("drivers");
    let mut errors = ErrorList::new();
    let drivers = items(get(object, "spec"), "drivers");
    let again = repeated(drivers.iter().map(|driver| str_at(driver, "name")));
    for (index, driver) in drivers.iter().enumerate() {
        let path = list.index(index);
        let (name, id) = (str_at(driver, "name"), str_at(driver, "nodeID"));
        errors.extend(csi_driver_name(name, &path.child("name")));
        errors.extend(required(driver, &["nodeID"], &path));
        if id.len() > NODE_ID_MAX {
            let text = format!("must be {NODE_ID_MAX} characters or less");
            errors.push(Error::invalid(&path.child("nodeID"), id, text));
        }
        let allocatable = get(driver, "allocatable");
        errors.extend(non_negative(allocatable, "count", &path.child("allocatable")));
        if again.at(index) {
            errors.push(Error::duplicate(&path.child("name"), name));
        }
        let keys = texts(driver, "topologyKeys");
        let again = repeated(keys.iter());
        for (at, key) in keys.iter().enumerate() {
            if key.is_empty() {
                errors.push(Error::required(&path, ""));
            }
            if again.at(at) {
                errors.push(Error::duplicate(&path, *key));
            }
            errors.extend(each(&path, *key, qualified_name(key)));
        }
    }
    errors
}

/// Validates an update of a CSINode: of an existing driver entry, only `allocatable` may change.
pub fn node_change(object: &Value, old: &Value) -> ErrorList {
    let mut errors = node(object);
    let mut by_name: HashMap<&str, Vec<&Value>> = HashMap::new();
    for driver in items(get(object, "spec"), "drivers") {
        by_name.entry(str_at(driver, "name")).or_default().push(driver);
    }
    for was in items(get(old, "spec"), "drivers") {
        for driver in by_name.get(str_at(was, "name")).into_iter().flatten().copied() {
            let same = |key: &str| semantic_equal(get(driver, key), get(was, key));
            if !(str_at(driver, "nodeID") == str_at(was, "nodeID") && same("topologyKeys")) {
                let field = Path::new("spec").child("drivers");
                errors.push(printed(&field, &go_json(driver, DRIVER), IMMUTABLE));
            }
        }
    }
    errors
}

/// Validates a new CSIDriver.
pub fn driver(object: &Value) -> ErrorList {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    let mut errors = ErrorList::new();
    for (key, shown) in [
        ("attachRequired", "attachedRequired"),
        ("podInfoOnMount", "podInfoOnMount"),
        ("storageCapacity", "storageCapacity"),
    ] {
        if !has(spec, key) {
            errors.push(Error::required(&path.child(shown), ""));
        }
    }
    let policies = ["File", "None", "ReadWriteOnceWithFSType"];
    let policy = get(spec, "fsGroupPolicy").as_str();
    errors.extend(policy.and_then(|p| one_of(p, &policies, &path.child("fsGroupPolicy"))));
    errors.extend(token_requests(items(spec, "tokenRequests"), &path.child("tokenRequests")));
    let field = path.child("volumeLifecycleModes");
    let modes = texts(spec, "volumeLifecycleModes");
    errors.extend(modes.iter().filter_map(|m| one_of(m, &["Persistent", "Ephemeral"], &field)));
    if !has(spec, "seLinuxMount") {
        errors.push(Error::required(&path.child("seLinuxMount"), ""));
    }
    const PERIOD: &str = "nodeAllocatableUpdatePeriodSeconds";
    if let Some(period) = int_at(spec, PERIOD).filter(|p| *p < UPDATE_PERIOD_MIN) {
        let text = "must be greater than or equal to 10 seconds";
        errors.push(Error::invalid(&path.child(PERIOD), period, text));
    }
    const SECRETS: &str = "serviceAccountTokenInSecrets";
    if has(spec, SECRETS) && is_empty(spec, "tokenRequests") {
        let text = "serviceAccountTokenInSecrets is set but no tokenRequests are specified";
        errors.push(Error::invalid(&path.child(SECRETS), get(spec, SECRETS).clone(), text));
    }
    errors
}

fn token_requests(list: &[Value], path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let again = repeated(list.iter().map(|request| str_at(request, "audience")));
    for (index, request) in list.iter().enumerate() {
        let (field, audience) = (path.index(index), str_at(request, "audience"));
        if again.at(index) {
            errors.push(Error::duplicate(&field.child("audience"), audience));
            continue;
        }
        let Some(seconds) = int_at(request, "expirationSeconds") else { continue };
        let text = match seconds {
            s if s < TOKEN_SECONDS_MIN => "may not specify a duration less than 10 minutes",
            s if s > TOKEN_SECONDS_MAX => "may not specify a duration larger than 2^32 seconds",
            _ => continue,
        };
        errors.push(Error::invalid(&field.child("expirationSeconds"), seconds, text));
    }
    errors
}

/// Validates an update of a CSIDriver.
pub fn driver_change(object: &Value, old: &Value) -> ErrorList {
    let mut errors = driver(object);
    let (spec, was, path) = (get(object, "spec"), get(old, "spec"), Path::new("spec"));
    for (key, shown) in
        [("attachRequired", "attachedRequired"), ("volumeLifecycleModes", "volumeLifecycleModes")]
    {
        errors.extend(super::immutable(get(spec, key), get(was, key), &path.child(shown)));
    }
    errors
}

/// Validates a new CSIStorageCapacity.
pub fn capacity(object: &Value) -> ErrorList {
    let mut errors = super::checks::selector(object, "nodeTopology", &Path::default());
    let class = str_at(object, "storageClassName");
    errors.extend(each(&Path::new("storageClassName"), class, names::dns1123_subdomain(class)));
    errors.extend(non_negative_quantity(get(object, "capacity"), &Path::new("capacity")));
    errors
}

/// Validates an update of a CSIStorageCapacity: storage class and node topology are immutable.
pub fn capacity_change(object: &Value, old: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let (place, was) = (get(object, "nodeTopology"), get(old, "nodeTopology"));
    if !semantic_equal(place, was) {
        let shown = go_json(place, Shape::Selector);
        errors.push(printed(&Path::new("nodeTopology"), &shown, IMMUTABLE));
    }
    let class = str_at(object, "storageClassName");
    if class != str_at(old, "storageClassName") {
        errors.push(Error::invalid(&Path::new("storageClassName"), class, IMMUTABLE));
    }
    errors.extend(capacity(object));
    errors
}

/// Validates a new VolumeAttributesClass.
pub fn attributes_class(object: &Value) -> ErrorList {
    let mut errors = driver_like(object, "driverName");
    errors.extend(parameters(object, false));
    errors
}

/// Validates an update of a VolumeAttributesClass: driver and parameters are immutable.
pub fn attributes_class_change(object: &Value, old: &Value) -> ErrorList {
    let mut errors = super::core::config_map::prefix(object);
    for key in ["driverName", "parameters"] {
        if !semantic_equal(get(object, key), get(old, key)) {
            let text = format!("updates to {key} are forbidden.");
            errors.push(Error::forbidden(&Path::new(key), text));
        }
    }
    errors.extend(attributes_class(object));
    errors
}

/// Validates an update of the status of a CSINode: the storage health that the node reports.
pub fn node_status(subresource: &str, object: &Value, _: &Value) -> ErrorList {
    let path = Path::new("status").child("storageHealth");
    let list = items(get(object, "status"), "storageHealth");
    if subresource != "status" {
        return ErrorList::new();
    }
    let mut errors = ErrorList::new();
    let again = repeated(list.iter().map(|health| str_at(health, "name")));
    for (index, health) in list.iter().enumerate() {
        let (field, name) = (path.index(index), str_at(health, "name"));
        if again.at(index) {
            errors.push(Error::duplicate(&field, name));
        }
        errors.extend(csi_driver_name(name, &field.child("name")));
        errors.extend(health_conditions(
            items(health, "healthConditions"),
            &field.child("healthConditions"),
        ));
    }
    errors
}

/// Maximum number of health conditions of one driver.
const CONDITIONS_MAX: usize = 16;
const REASON_MAX: usize = 256;

fn health_conditions(list: &[Value], path: &Path) -> ErrorList {
    if list.len() > CONDITIONS_MAX {
        return vec![Error::too_many(path, list.len(), CONDITIONS_MAX)];
    }
    let mut errors = ErrorList::new();
    for (index, condition) in list.iter().enumerate() {
        let field = path.index(index);
        let status = str_at(condition, "status");
        errors.extend(one_of(status, &["Degraded", "StorageUnreachable"], &field.child("status")));
        errors.extend(required(condition, &["reason"], &field));
        for (key, max) in [("reason", REASON_MAX), ("message", MESSAGE_MAX)] {
            if str_at(condition, key).len() > max {
                errors.push(Error::too_long(&field.child(key), max));
            }
        }
        let modes: [(&str, &[&str]); 2] =
            [("accessMode", &ACCESS_MODES), ("volumeMode", &["Filesystem", "Block"])];
        for (key, allowed) in modes {
            let mode = get(condition, key).as_str();
            errors.extend(mode.and_then(|mode| one_of(mode, allowed, &field.child(key))));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn shown(errors: &ErrorList) -> Vec<String> {
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn topologies_differ_from_each_other() {
        let object = json!({"provisioner": "a", "volumeBindingMode": "Immediate", "allowedTopologies": [
            {"matchLabelExpressions": [{"key": "z", "values": ["a"]}]},
            {"matchLabelExpressions": [{"key": "z", "values": ["a"]}]},
        ]});
        assert_eq!(
            shown(&class(&object)),
            ["allowedTopologies[1].matchLabelExpressions: Duplicate value: \"\""]
        );
    }

    #[test]
    fn only_the_capacity_of_a_driver_changes() {
        let node = |id: &str, count: i64| json!({"spec": {"drivers": [{"name": "d", "nodeID": id, "allocatable": {"count": count}}]}});
        assert!(node_change(&node("x", 5), &node("x", 4)).is_empty());
        assert_eq!(
            shown(&node_change(&node("y", 5), &node("x", 5))),
            [
                "spec.drivers: Invalid value: {\"Name\":\"d\",\"NodeID\":\"y\",\"TopologyKeys\":null,\"Allocatable\":null}: field is immutable"
            ]
        );
    }
}
