//! Validation of the status of a ResourceClaim: its consumers, its allocated devices, and the
//! device status that drivers report.
//!
//! The rules are those of upstream's `validateResourceClaimStatusUpdate` and the declarative ones
//! of its types.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::{configuration, known_requests, request_names, toleration};
use crate::field::{Error, ErrorList, Path};
use crate::validation::checks::{repeated, texts};
use crate::validation::core::scheduling::node_selector;
use crate::validation::names::{dns1123_label, dns1123_subdomain, long_name, qualified_name};
use crate::validation::{conditions, each, net, one_of};
use crate::value::{get, has, items, semantic_equal, str_at};

/// Maximum numbers of consumers of a claim, of allocated devices, and of their configurations (of
/// class and claim).
const USERS_MAX: usize = 256;
const RESULTS_MAX: usize = 32;
const CONFIG_MAX: usize = 64;
/// Maximum numbers of conditions of a device status, of binding conditions, and of addresses of a
/// network device.
const CONDITIONS_MAX: usize = 8;
const BINDING_MAX: usize = 4;
const ADDRESSES_MAX: usize = 16;
/// Maximum lengths in bytes of the name of a pool, the name of an interface, and a hardware
/// address.
const POOL_MAX: usize = 253;
const INTERFACE_MAX: usize = 256;
const HARDWARE_MAX: usize = 128;
/// Maximum size in bytes of the driver-specific `data` of a device.
const DATA_MAX: usize = 10 * 1024;

/// Validates an update of the status.
pub fn claim_status(subresource: &str, object: &Value, old: &Value) -> ErrorList {
    if subresource != "status" {
        return Vec::new();
    }
    let (status, was, path) = (get(object, "status"), get(old, "status"), Path::new("status"));
    let (allocation, before) = (get(status, "allocation"), get(was, "allocation"));
    let mut errors = users(object, old, &path.child("reservedFor"));
    errors.extend(devices(status, was, &path.child("devices")));
    let field = path.child("allocation");
    if allocation.is_object() && before.is_object() {
        if !semantic_equal(allocation, before) {
            let text = "field cannot be modified once set";
            errors.push(Error::invalid(&field, Value::Null, text));
        }
    } else if allocation.is_object() {
        let known = known_requests(get(get(object, "spec"), "devices"));
        errors.extend(results(get(allocation, "devices"), &known, &field.child("devices")));
        let selector = get(allocation, "nodeSelector");
        if selector.is_object() {
            errors.extend(node_selector(selector, false, &field.child("nodeSelector")));
        }
    }
    errors
}

fn users(object: &Value, old: &Value, path: &Path) -> ErrorList {
    let (status, was) = (get(object, "status"), get(old, "status"));
    let list = items(status, "reservedFor");
    let mut errors = ErrorList::new();
    let unchanged = semantic_equal(get(status, "reservedFor"), get(was, "reservedFor"));
    if list.len() > USERS_MAX {
        // Upstream does not count an unchanged list again.
        if !unchanged {
            errors.push(Error::too_many(path, list.len(), USERS_MAX));
        }
    } else {
        for (index, user) in list.iter().enumerate() {
            errors.extend(super::required(user, &["resource", "name", "uid"], &path.index(index)));
        }
        for (index, user) in list.iter().enumerate().filter(|_| !unchanged) {
            let uid = str_at(user, "uid");
            if list.iter().take(index).any(|other| str_at(other, "uid") == uid) {
                let shown = in_order(user, &USER);
                errors.push(super::twice(&path.index(index), &shown));
            }
        }
    }
    if list.is_empty() {
        return errors;
    }
    if !get(status, "allocation").is_object() {
        let text = "may not be specified when `allocated` is not set";
        errors.push(Error::forbidden(path, text));
    } else if has(get(object, "metadata"), "deletionTimestamp")
        && list.iter().any(|user| !items(was, "reservedFor").contains(user))
    {
        let text = "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set";
        errors.push(Error::forbidden(path, text));
    }
    errors
}

/// The fields of a consumer and of a device in the order in which upstream prints them, and whether
/// an empty field prints.
const USER: [(&str, bool); 4] =
    [("apiGroup", false), ("resource", true), ("name", true), ("uid", true)];
const DEVICE: [(&str, bool); 7] = [
    ("driver", true),
    ("pool", true),
    ("device", true),
    ("shareID", false),
    ("conditions", false),
    ("data", false),
    ("networkData", false),
];

fn in_order(value: &Value, fields: &[(&str, bool)]) -> String {
    let parts = fields.iter().filter_map(|(key, always)| match get(value, key) {
        Value::Null if *always => Some(format!("\"{key}\":\"\"")),
        Value::Null => None,
        some => Some(format!("\"{key}\":{some}")),
    });
    format!("{{{}}}", parts.collect::<Vec<_>>().join(","))
}

/// The identity of a device: driver, pool, device and share ID.
type Identity<'a> = [&'a str; 4];

fn identity(device: &Value) -> Identity<'_> {
    ["driver", "pool", "device", "shareID"].map(|key| str_at(device, key))
}

/// Validates the device status that drivers report.
fn devices(status: &Value, was: &Value, path: &Path) -> ErrorList {
    let results = items(get(get(status, "allocation"), "devices"), "results");
    let allocated: HashSet<Identity<'_>> = results.iter().map(identity).collect();
    let (list, before) = (items(status, "devices"), items(was, "devices"));
    let mut known: HashMap<Identity<'_>, &Value> = HashMap::new();
    for device in before {
        known.entry(identity(device)).or_insert(device);
    }
    let mut errors = ErrorList::new();
    for (index, device) in list.iter().enumerate() {
        let (field, own) = (path.index(index), identity(device));
        let [driver, pool, name, _] = own;
        errors.extend(super::slice::driver(driver, &field.child("driver")));
        errors.extend(handwritten_pool(pool, &field.child("pool")));
        errors.extend(each(&field.child("device"), name, dns1123_label(name)));
        if !allocated.contains(&own) {
            let [driver, pool, device, share] = own.map(|text| Value::from(text).to_string());
            let shown = format!(
                "{{\"Driver\":{driver},\"Pool\":{pool},\"Device\":{device},\"ShareID\":{share}}}"
            );
            let text = "must be an allocated device in the claim";
            errors.push(Error::omitted(&field, text).printed(&shown));
        }
        let list = items(device, "conditions");
        let place = field.child("conditions");
        if list.len() > CONDITIONS_MAX {
            errors.push(Error::too_many(&place, list.len(), CONDITIONS_MAX));
        }
        errors.extend(conditions::validate(list, &place));
        errors.extend(data(get(device, "data"), &field.child("data")));
        // Upstream's declarative validation skips unchanged devices.
        let same = known.get(&own).is_some_and(|other| semantic_equal(other, device));
        if !same {
            errors.extend(share(device, &field));
        }
        errors.extend(network(get(device, "networkData"), same, &field.child("networkData")));
    }
    if !semantic_equal(get(status, "devices"), get(was, "devices")) {
        let again = repeated(list.iter().map(identity));
        for (index, device) in list.iter().enumerate() {
            if again.at(index) {
                errors.push(super::twice(&path.index(index), &in_order(device, &DEVICE)));
            }
        }
    }
    errors
}

fn handwritten_pool(name: &str, field: &Path) -> ErrorList {
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

/// Validates the driver-specific `data` of a device, which must be a JSON object.
fn data(value: &Value, field: &Path) -> ErrorList {
    match value {
        Value::Null => ErrorList::new(),
        value if value.to_string().len() > DATA_MAX => vec![Error::too_long(field, DATA_MAX)],
        Value::Object(_) => ErrorList::new(),
        _ => vec![Error::invalid(field, "<value omitted>", "must be a valid JSON object")],
    }
}

fn network(data: &Value, same: bool, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    if !same {
        for (key, max) in [("interfaceName", INTERFACE_MAX), ("hardwareAddress", HARDWARE_MAX)] {
            if str_at(data, key).len() > max {
                errors.push(Error::too_long(&path.child(key), max));
            }
        }
    }
    let (list, field) = (texts(data, "ips"), path.child("ips"));
    if list.len() > ADDRESSES_MAX {
        errors.push(Error::too_many(&field, list.len(), ADDRESSES_MAX));
        return errors;
    }
    for (index, address) in list.iter().enumerate() {
        errors.extend(net::interface_address(&field.index(index), address));
    }
    for (index, address) in list.iter().enumerate().filter(|_| !same) {
        if list.iter().take(index).any(|other| other == address) {
            errors.push(Error::duplicate(&field.index(index), *address));
        }
    }
    errors
}

/// Validates `shareID`, which must be a UUID.
fn share(device: &Value, path: &Path) -> Option<Error> {
    let id = get(device, "shareID").as_str()?;
    let good = id.len() == 36
        && id.bytes().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
        });
    let text = "must be a lowercase UUID in 8-4-4-4-12 format";
    (!good).then(|| Error::invalid(&path.child("shareID"), id, text))
}

/// Validates the allocated devices and their configurations.
fn results(devices: &Value, known: &[String], path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let (list, field) = (items(devices, "results"), path.child("results"));
    if list.len() > RESULTS_MAX {
        errors.push(Error::too_many(&field, list.len(), RESULTS_MAX));
    } else {
        for (index, one) in list.iter().enumerate() {
            errors.extend(result(one, known, &field.index(index)));
        }
    }
    let (list, field) = (items(devices, "config"), path.child("config"));
    if list.len() > CONFIG_MAX {
        errors.push(Error::too_many(&field, list.len(), CONFIG_MAX));
        return errors;
    }
    for (index, one) in list.iter().enumerate() {
        let place = field.index(index);
        let source = str_at(one, "source");
        if source.is_empty() {
            errors.push(Error::required(&place.child("source"), ""));
        } else {
            errors.extend(one_of(source, &["FromClaim", "FromClass"], &place.child("source")));
        }
        errors.extend(request_names(one, known, &place.child("requests")));
        errors.extend(configuration(one, &place));
    }
    errors
}

fn result(one: &Value, known: &[String], path: &Path) -> ErrorList {
    let mut errors = super::request_name(str_at(one, "request"), known, &path.child("request"));
    errors.extend(super::driver_name(str_at(one, "driver"), &path.child("driver")));
    errors.extend(pool(str_at(one, "pool"), &path.child("pool")));
    let device = str_at(one, "device");
    errors.extend(each(&path.child("device"), device, dns1123_label(device)));
    errors.extend(binding(one, path));
    for (index, one) in items(one, "tolerations").iter().enumerate() {
        errors.extend(toleration(one, &path.child("tolerations").index(index)));
    }
    errors.extend(share(one, path));
    errors
}

/// Validates the name of a pool: DNS subdomains separated by slashes.
fn pool(name: &str, field: &Path) -> ErrorList {
    if name.is_empty() {
        return vec![Error::required(field, "")];
    }
    let mut errors = ErrorList::new();
    if name.len() > POOL_MAX {
        errors.push(Error::too_long(field, POOL_MAX));
    }
    for (index, part) in name.split('/').enumerate() {
        if part.is_empty() {
            let text = format!("segment {index}: must not be empty");
            errors.push(Error::invalid(field, name, text));
            continue;
        }
        let texts = long_name(part).into_iter();
        let texts = texts.map(|text| format!("segment {index}: {text}")).collect();
        errors.extend(each(field, part, texts));
    }
    errors
}

/// Validates the conditions for which the scheduler waits before it binds a pod, and those that end
/// the wait with a failure.
fn binding(one: &Value, path: &Path) -> ErrorList {
    let (good, bad) = ("bindingConditions", "bindingFailureConditions");
    let [wanted, refused] = [good, bad].map(|key| texts(one, key));
    let mut errors = ErrorList::new();
    for (key, list) in [(good, &wanted), (bad, &refused)] {
        let field = path.child(key);
        if list.len() > BINDING_MAX {
            errors.push(Error::too_many(&field, list.len(), BINDING_MAX));
            continue;
        }
        for (index, name) in list.iter().enumerate() {
            errors.extend(each(&field.index(index), *name, qualified_name(name)));
        }
    }
    let good_names: HashSet<&str> = wanted.iter().copied().collect();
    for (key, list) in [(good, &wanted), (bad, &refused)] {
        let again = repeated(list.iter());
        for (index, name) in list.iter().enumerate() {
            let field = path.child(key).index(index);
            if again.at(index) {
                errors.push(Error::duplicate(&field, *name));
            }
            if key == bad && good_names.contains(name) {
                let text = "bindingFailureConditions must not overlap with bindingConditions";
                errors.push(Error::invalid(&field, *name, text));
            }
        }
    }
    if wanted.is_empty() != refused.is_empty() {
        let (missing, given) = if wanted.is_empty() { (good, bad) } else { (bad, good) };
        let text = format!("{missing} are required to use {given}");
        errors.push(Error::invalid(&path.child(missing), get(one, missing).clone(), text));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn said(status: Value, was: Value) -> Vec<String> {
        let spec = json!({"devices": {"requests": [{"name": "r"}, {"name": "f", "firstAvailable": [{"name": "a"}]}]}});
        let claim = json!({"metadata": {}, "spec": spec, "status": status});
        let old = json!({"metadata": {}, "spec": spec, "status": was});
        claim_status("status", &claim, &old).iter().map(ToString::to_string).collect()
    }

    fn allocation(results: Value) -> Value {
        json!({"allocation": {"devices": {"results": results}}})
    }

    /// Cases of upstream's `TestValidateClaimStatusUpdate`.
    #[test]
    fn users_need_an_allocation() {
        let user = json!({"resource": "pods", "name": "p", "uid": "1"});
        assert_eq!(
            said(json!({"reservedFor": [user]}), json!({})),
            ["status.reservedFor: Forbidden: may not be specified when `allocated` is not set"]
        );
        let good =
            json!({"request": "f/a", "driver": "d.example.com", "pool": "p/q", "device": "g"});
        let mut status = allocation(json!([good]));
        assert_eq!(said(status.clone(), json!({})), [""; 0]);
        status["reservedFor"] = json!([user, {"uid": "1"}]);
        assert_eq!(
            said(status, json!({})),
            [
                "status.reservedFor[1].resource: Required value",
                "status.reservedFor[1].name: Required value",
                "status.reservedFor[1]: Duplicate value: {\"resource\":\"\",\"name\":\"\",\"uid\":\"1\"}",
            ]
        );
    }

    /// A response of kube-apiserver 1.37.1.
    #[test]
    fn results_name_what_they_answer() {
        let label = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
        assert_eq!(
            said(allocation(json!([{}])), json!({})),
            [
                format!("status.allocation.devices.results[0].request: Invalid value: \"\": {label}"),
                "status.allocation.devices.results[0].request: Invalid value: \"\": must be the name of a request in the claim or the name of a request and a subrequest separated by '/'".into(),
                "status.allocation.devices.results[0].driver: Required value".into(),
                "status.allocation.devices.results[0].pool: Required value".into(),
                format!("status.allocation.devices.results[0].device: Invalid value: \"\": {label}"),
            ]
        );
        let was = allocation(json!([{"request": "r", "driver": "d", "pool": "p", "device": "g"}]));
        assert_eq!(
            said(allocation(json!([])), was),
            ["status.allocation: Invalid value: null: field cannot be modified once set"]
        );
    }

    #[test]
    fn what_is_waited_for_comes_in_pairs() {
        let one = |good: Value, bad: Value| {
            let result = json!({"request": "r", "driver": "d", "pool": "p", "device": "g", "shareID": "X",
                "bindingConditions": good, "bindingFailureConditions": bad});
            said(allocation(json!([result])), json!({}))
        };
        let at = "status.allocation.devices.results[0]";
        assert_eq!(
            one(json!(["a", "a"]), json!(["a"])),
            [
                format!("{at}.bindingConditions[1]: Duplicate value: \"a\""),
                format!(
                    "{at}.bindingFailureConditions[0]: Invalid value: \"a\": bindingFailureConditions must not overlap with bindingConditions"
                ),
                format!(
                    "{at}.shareID: Invalid value: \"X\": must be a lowercase UUID in 8-4-4-4-12 format"
                ),
            ]
        );
        assert_eq!(
            one(json!(["a"]), Value::Null)[0],
            format!(
                "{at}.bindingFailureConditions: Invalid value: null: bindingFailureConditions are required to use bindingConditions"
            )
        );
    }

    #[test]
    fn drivers_speak_of_allocated_devices() {
        let mut status = allocation(
            json!([{"request": "r", "driver": "d.example.com", "pool": "p", "device": "g"}]),
        );
        let said_of = |device: &str| {
            json!([{"driver": "d.example.com", "pool": "p", "device": device, "data": [],
            "networkData": {"ips": ["10.9.8.7/24", "10.9.8.7", "::1/064"]}}])
        };
        status["devices"] = said_of("other");
        assert_eq!(
            said(status.clone(), json!({})),
            [
                "status.devices[0]: Invalid value: {\"Driver\":\"d.example.com\",\"Pool\":\"p\",\"Device\":\"other\",\"ShareID\":\"\"}: must be an allocated device in the claim",
                "status.devices[0].data: Invalid value: \"<value omitted>\": must be a valid JSON object",
                "status.devices[0].networkData.ips[1]: Invalid value: \"10.9.8.7\": must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)",
                "status.devices[0].networkData.ips[2]: Invalid value: \"::1/064\": must be in canonical form (\"::1/64\")",
            ]
        );
        status["devices"] = said_of("g");
        assert!(!said(status, json!({}))[0].contains("allocated device"));
    }
}
