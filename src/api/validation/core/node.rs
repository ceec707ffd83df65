//! Nodes: taints, pod ranges, the provider's identity.

use serde_json::Value;

use crate::field::{Error, ErrorList, Kind, Path};
use crate::validation::checks::{Shape, go_json, printed, texts};
use crate::validation::{each, names, net, one_of};
use crate::value::{get, items, str_at};

const TAINT: Shape = Shape::Struct(&[
    ("Key", "key", Shape::Text),
    ("Value", "value", Shape::Text),
    ("Effect", "effect", Shape::Text),
    ("TimeAdded", "timeAdded", Shape::Pointer),
]);

/// A node: taints and pod ranges.
pub fn node(object: &Value) -> ErrorList {
    let spec = get(object, "spec");
    let mut errors = ErrorList::new();
    let (list, path) = (items(spec, "taints"), Path::new("metadata").child("taints"));
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
        let same = |t: &Value| str_at(t, "key") == key && str_at(t, "effect") == effect;
        if list.iter().take(index).any(same) {
            let shown = go_json(taint, TAINT);
            let mut error = printed(&field, &shown, "taints must be unique by key and effect pair");
            error.kind = Kind::Duplicate;
            errors.push(error);
        }
    }
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

/// A changed node: its provider stays, and so do pod ranges once given.
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
    errors.extend(node(object));
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

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
