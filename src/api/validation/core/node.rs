//! Validation of nodes: taints, pod CIDRs, provider ID and status.

use std::collections::HashSet;

use serde_json::Value;

use super::resources::quantity_value;
use crate::field::{Error, ErrorList, Kind, Path, go_quote};
use crate::validation::checks::{Shape, go_json, printed, texts};
use crate::validation::numbers::quantity;
use crate::validation::{each, names, net, one_of};
use crate::value::{entries, get, items, str_at};

/// Maximum length in bytes of the name of a declared feature.
const FEATURE_MAX: usize = 253;

const TAINT: Shape = Shape::Struct(&[
    ("Key", "key", Shape::Text),
    ("Value", "value", Shape::Text),
    ("Effect", "effect", Shape::Text),
    ("TimeAdded", "timeAdded", Shape::Pointer),
]);

const ADDRESS: Shape =
    Shape::Struct(&[("Type", "type", Shape::Text), ("Address", "address", Shape::Text)]);

/// Validates a new node: its taints and pod CIDRs (`ValidateNode`).
pub fn node(object: &Value) -> ErrorList {
    let spec = get(object, "spec");
    let mut errors = ErrorList::new();
    let (list, path) = (items(spec, "taints"), Path::new("metadata").child("taints"));
    let mut seen = HashSet::new();
    for (index, taint) in list.iter().enumerate() {
        let field = path.index(index);
        let (key, value) = (str_at(taint, "key"), str_at(taint, "value"));
        errors.extend(each(&field.child("key"), key, names::qualified_name(key)));
        let bad = names::label_value(value);
        if !bad.is_empty() {
            errors.push(Error::invalid(&field.child("value"), value, bad.join(";")));
        }
        let effect = str_at(taint, "effect");
        let known = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
        if effect.is_empty() {
            errors.push(Error::required(&field.child("effect"), ""));
        } else {
            errors.extend(one_of(effect, &known, &field.child("effect")));
        }
        if !seen.insert((key, effect)) {
            let shown = go_json(taint, TAINT);
            let mut error = printed(&field, &shown, "taints must be unique by key and effect pair");
            error.kind = Kind::Duplicate;
            errors.push(error);
        }
    }
    errors.extend(offered(get(object, "status")));
    let (ranges, field) = (texts(spec, "podCIDRs"), Path::new("spec").child("podCIDRs"));
    for (index, range) in ranges.iter().enumerate() {
        errors.extend(net::legacy_cidr(&field.index(index), range, &[]));
    }
    let families: Vec<bool> = ranges
        .iter()
        .filter_map(|range| net::sloppy_cidr(range).map(|(a, _)| a.is_ipv4()))
        .collect();
    let shown = || get(spec, "podCIDRs").clone();
    if ranges.len() > 2 || matches!(families.as_slice(), [a, b] if a == b) {
        let text = "may specify no more than one CIDR for each IP family";
        errors.push(Error::invalid(&field, shown(), text));
    }
    errors
}

/// Validates `capacity`, `allocatable` and `declaredFeatures` of a status. The features are sorted
/// and distinct.
fn offered(status: &Value) -> ErrorList {
    let path = Path::new("status");
    let mut errors = ErrorList::new();
    for key in ["capacity", "allocatable"] {
        for (name, amount) in entries(status, key) {
            let field = path.child(key).child(name);
            errors.extend(
                quantity(amount).map(|a| quantity_value(name, a, &field)).into_iter().flatten(),
            );
        }
    }
    let (features, field) = (texts(status, "declaredFeatures"), path.child("declaredFeatures"));
    let mut before: Option<&str> = None;
    for (index, feature) in features.into_iter().enumerate() {
        let place = field.index(index);
        match before {
            Some(before) if before == feature => errors.push(Error::duplicate(&place, feature)),
            Some(before) if before > feature => {
                let text = "list must be sorted alphabetically";
                errors.push(Error::invalid(&place, feature, text));
            }
            _ => {}
        }
        let quoted = go_quote(feature);
        if feature.len() > FEATURE_MAX {
            let text = format!(
                "invalid feature name {quoted}: must be no more than {FEATURE_MAX} characters"
            );
            errors.push(Error::invalid(&place, feature, text));
        } else if !is_feature(feature) {
            let text = format!(
                "invalid feature name {quoted}: must start with an UpperCamelCase segment, with subsequent segments separated by '/' (e.g., MyFeature or MyFeature/mySubFeature), and contain only alphanumeric characters and slashes"
            );
            errors.push(Error::invalid(&place, feature, text));
        }
        before = Some(feature);
    }
    errors
}

fn is_feature(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_uppercase())
        && name.split('/').all(|segment| {
            segment.starts_with(|c: char| c.is_ascii_alphabetic())
                && segment.chars().all(|c| c.is_ascii_alphanumeric())
        })
}

/// Rejects duplicate addresses in a status.
fn addresses(status: &Value) -> ErrorList {
    let list = items(status, "addresses");
    let field = Path::new("status").child("addresses");
    let mut errors = ErrorList::new();
    let mut seen = HashSet::new();
    for (index, address) in list.iter().enumerate() {
        if !seen.insert(address) {
            let shown = go_json(address, ADDRESS);
            let mut error = Error::omitted(&field.index(index), shown);
            error.kind = Kind::Duplicate;
            errors.push(error);
        }
    }
    errors
}

/// Validates a status update.
pub fn node_status(subresource: &str, object: &Value, _: &Value) -> ErrorList {
    if subresource != "status" {
        return Vec::new();
    }
    let status = get(object, "status");
    let mut errors = offered(status);
    errors.extend(addresses(status));
    errors
}

/// Validates an update of a node (`ValidateNodeUpdate`): the provider ID and the pod CIDRs are
/// immutable once set.
pub fn node_change(object: &Value, old: &Value) -> ErrorList {
    let (new, was, path) = (get(object, "spec"), get(old, "spec"), Path::new("spec"));
    let mut errors = ErrorList::new();
    let (ranges, before) = (texts(new, "podCIDRs"), texts(was, "podCIDRs"));
    if !before.is_empty() && ranges != before {
        let text = "node updates may not change podCIDR except from \"\" to valid";
        errors.push(Error::forbidden(&path.child("podCIDRs"), text));
    }
    let (provider, before) = (str_at(new, "providerID"), str_at(was, "providerID"));
    if !before.is_empty() && provider != before {
        let what = if provider.is_empty() { "cleared" } else { "modified" };
        let text = format!("field cannot be {what} once set");
        errors.push(Error::invalid(&path.child("providerID"), Value::Null, text));
    }
    errors.extend(addresses(get(object, "status")));
    errors.extend(node(object));
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Cases of upstream's `TestValidateNodeUpdate` and `TestValidateNodeDeclaredFeatures`.
    #[test]
    fn what_a_node_offers_is_counted_and_sorted() {
        let address = json!({"type": "InternalIP", "address": "1.1.1.1"});
        let node = json!({"status": {"capacity": {"cpu": "-1"}, "allocatable": {"pods": "1.5"},
            "addresses": [address, address], "declaredFeatures": ["B", "B", "A/b", "x"]}});
        let said: Vec<String> =
            node_status("status", &node, &node).iter().map(ToString::to_string).collect();
        let name = "must start with an UpperCamelCase segment, with subsequent segments separated by '/' (e.g., MyFeature or MyFeature/mySubFeature), and contain only alphanumeric characters and slashes";
        assert_eq!(
            said,
            [
                "status.capacity.cpu: Invalid value: \"-1\": must be greater than or equal to 0".to_owned(),
                "status.allocatable.pods: Invalid value: \"1500m\": must be an integer".to_owned(),
                "status.declaredFeatures[1]: Duplicate value: \"B\"".to_owned(),
                "status.declaredFeatures[2]: Invalid value: \"A/b\": list must be sorted alphabetically".to_owned(),
                format!("status.declaredFeatures[3]: Invalid value: \"x\": invalid feature name \"x\": {name}"),
                "status.addresses[1]: Duplicate value: {\"Type\":\"InternalIP\",\"Address\":\"1.1.1.1\"}".to_owned(),
            ]
        );
    }

    #[test]
    fn taints_differ() {
        let taint = json!({"key": "k", "effect": "NoSchedule"});
        let errors = node(&json!({"spec": {"taints": [taint, taint]}}));
        assert_eq!(
            errors[0].to_string(),
            "metadata.taints[1]: Duplicate value: {\"Key\":\"k\",\"Value\":\"\",\"Effect\":\"NoSchedule\",\"TimeAdded\":null}: taints must be unique by key and effect pair"
        );
    }
}
