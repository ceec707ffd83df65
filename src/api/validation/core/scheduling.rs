//! Validation of the scheduling constraints of pods: node selectors, affinity, tolerations and
//! topology spread.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use crate::field::{Error, ErrorList, Path};
use crate::validation::labels::validate_selector;
use crate::validation::{each, names, one_of};
use crate::value::{at, entries, get, has, int_at, items, semantic_equal, str_at};

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

fn requirement(expression: &Value, lenient: bool, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let (operator, values) = (str_at(expression, "operator"), items(expression, "values"));
    let field = path.child("values");
    match operator {
        "In" | "NotIn" if values.is_empty() => {
            errors.push(Error::required(
                &field,
                "must be specified when `operator` is 'In' or 'NotIn'",
            ));
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            errors.push(Error::forbidden(
                &field,
                "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            ));
        }
        "Gt" | "Lt" if values.len() != 1 => {
            errors.push(Error::required(
                &field,
                "must be specified single value when `operator` is 'Lt' or 'Gt'",
            ));
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
        other => errors.push(Error::invalid(
            &path.child("operator"),
            other,
            "not a valid selector operator",
        )),
    }
    let key = str_at(expression, "key");
    errors.extend(each(&path.child("key"), key, names::qualified_name(key)));
    if !lenient {
        for (index, value) in values.iter().enumerate() {
            let value = value.as_str().unwrap_or_default();
            errors.extend(each(&field.index(index), value, names::label_value(value)));
        }
    }
    errors
}

fn field_requirement(expression: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let (operator, values) = (str_at(expression, "operator"), items(expression, "values"));
    match operator {
        "In" | "NotIn" if values.len() != 1 => {
            let text =
                "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
            errors.push(Error::required(&path.child("values"), text));
        }
        "In" | "NotIn" => {}
        other => errors.push(Error::invalid(
            &path.child("operator"),
            other,
            "not a valid selector operator",
        )),
    }
    let key = str_at(expression, "key");
    if key != "metadata.name" {
        errors.push(Error::invalid(&path.child("key"), key, "not a valid field selector key"));
        return errors;
    }
    for (index, value) in values.iter().enumerate() {
        let value = value.as_str().unwrap_or_default();
        errors.extend(each(
            &path.child("values").index(index),
            value,
            names::dns1123_subdomain(value),
        ));
    }
    errors
}

/// Validates a term of a node selector (`ValidateNodeSelectorTerm`).
pub fn node_term(term: &Value, lenient: bool, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    for (index, expression) in items(term, "matchExpressions").iter().enumerate() {
        errors.extend(requirement(
            expression,
            lenient,
            &path.child("matchExpressions").index(index),
        ));
    }
    for (index, expression) in items(term, "matchFields").iter().enumerate() {
        errors.extend(field_requirement(expression, &path.child("matchFields").index(index)));
    }
    errors
}

/// Validates a node selector and its terms (`ValidateNodeSelector`).
pub fn node_selector(selector: &Value, lenient: bool, path: &Path) -> ErrorList {
    let list = path.child("nodeSelectorTerms");
    let terms = items(selector, "nodeSelectorTerms");
    if terms.is_empty() {
        return vec![Error::required(&list, "must have at least one node selector term")];
    }
    terms
        .iter()
        .enumerate()
        .flat_map(|(index, term)| node_term(term, lenient, &list.index(index)))
        .collect()
}

fn weight(term: &Value, path: &Path) -> Option<Error> {
    let weight = int_at(term, "weight").unwrap_or_default();
    (!(1..=100).contains(&weight))
        .then(|| Error::invalid(&path.child("weight"), weight, "must be in the range 1-100"))
}

/// Validates `affinity` of a pod.
pub(super) fn affinity(spec: &Value, path: &Path) -> ErrorList {
    let affinity = get(spec, "affinity");
    let mut errors = ErrorList::new();
    let node = get(affinity, "nodeAffinity");
    let field = path.child("nodeAffinity");
    if has(node, REQUIRED) {
        errors.extend(node_selector(get(node, REQUIRED), false, &field.child(REQUIRED)));
    }
    for (index, term) in items(node, PREFERRED).iter().enumerate() {
        let at = field.child(PREFERRED).index(index);
        errors.extend(weight(term, &at));
        errors.extend(node_term(get(term, "preference"), true, &at.child("preference")));
    }
    for side in ["podAffinity", "podAntiAffinity"] {
        let (terms, field) = (get(affinity, side), path.child(side));
        for (index, term) in items(terms, REQUIRED).iter().enumerate() {
            errors.extend(pod_term(term, &field.child(REQUIRED).index(index)));
        }
        for (index, term) in items(terms, PREFERRED).iter().enumerate() {
            let at = field.child(PREFERRED).index(index);
            errors.extend(weight(term, &at));
            errors.extend(pod_term(get(term, "podAffinityTerm"), &at.child("podAffinityTerm")));
        }
    }
    errors
}

fn pod_term(term: &Value, path: &Path) -> ErrorList {
    let mut errors =
        validate_selector(get(term, "labelSelector"), &path.child("labelSelector"), false);
    errors.extend(validate_selector(
        get(term, "namespaceSelector"),
        &path.child("namespaceSelector"),
        false,
    ));
    for name in items(term, "namespaces") {
        let name = name.as_str().unwrap_or_default();
        errors.extend(each(&path.child("namespace"), name, names::dns1123_label(name)));
    }
    errors.extend(label_keys(term, path));
    let key = str_at(term, "topologyKey");
    let field = path.child("topologyKey");
    if key.is_empty() {
        errors.push(Error::required(&field, "can not be empty"));
    }
    errors.extend(each(&field, key, names::qualified_name(key)));
    errors
}

/// Validates `matchLabelKeys` and `mismatchLabelKeys` of a pod affinity term against its
/// `labelSelector`.
fn label_keys(term: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let selector = get(term, "labelSelector");
    let text_of = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    for list in ["matchLabelKeys", "mismatchLabelKeys"] {
        let keys = items(term, list);
        let field = path.child(list);
        if !keys.is_empty() && !selector.is_object() {
            errors.push(Error::forbidden(
                &field,
                "must not be specified when labelSelector is not set",
            ));
            continue;
        }
        for (index, key) in keys.iter().enumerate() {
            let key = text_of(key);
            errors.extend(each(&field.index(index), key.as_str(), names::qualified_name(&key)));
        }
    }
    let matched: Vec<String> = items(term, "matchLabelKeys").iter().map(text_of).collect();
    if selector.is_object() {
        let last: HashMap<&str, usize> =
            matched.iter().enumerate().map(|(index, key)| (key.as_str(), index)).collect();
        let mut known: HashSet<&str> =
            entries(selector, "matchLabels").map(|(key, _)| key.as_str()).collect();
        for expression in items(selector, "matchExpressions") {
            let key = str_at(expression, "key");
            if let (Some(index), true) = (last.get(key), known.contains(key)) {
                errors.push(Error::invalid(
                    &path.index(*index),
                    key,
                    "exists in both matchLabelKeys and labelSelector",
                ));
            }
            known.insert(key);
        }
    }
    let mismatched: HashSet<String> =
        items(term, "mismatchLabelKeys").iter().map(text_of).collect();
    for (index, key) in matched.iter().enumerate() {
        if mismatched.contains(key) {
            let text = "exists in both matchLabelKeys and mismatchLabelKeys";
            errors.push(Error::invalid(
                &path.child("matchLabelKeys").index(index),
                key.as_str(),
                text,
            ));
        }
    }
    errors
}

/// Validates `topologySpreadConstraints` of a pod.
pub(super) fn spread(spec: &Value, path: &Path) -> ErrorList {
    let constraints = items(spec, "topologySpreadConstraints");
    let mut errors = ErrorList::new();
    let identity = |constraint: &'_ Value| {
        ["topologyKey", "whenUnsatisfiable"].map(|key| str_at(constraint, key).to_owned())
    };
    let mut repeats_later: Vec<bool> = Vec::with_capacity(constraints.len());
    let mut later: HashSet<[String; 2]> = HashSet::new();
    repeats_later.extend(constraints.iter().rev().map(|c| !later.insert(identity(c))));
    repeats_later.reverse();
    for (index, constraint) in constraints.iter().enumerate() {
        let field = path.index(index);
        let skew = int_at(constraint, "maxSkew").unwrap_or_default();
        if skew <= 0 {
            errors.push(Error::invalid(&field.child("maxSkew"), skew, "must be greater than zero"));
        }
        let (key, action) =
            (str_at(constraint, "topologyKey"), str_at(constraint, "whenUnsatisfiable"));
        if key.is_empty() {
            errors.push(Error::required(&field.child("topologyKey"), "can not be empty"));
        }
        errors.extend(one_of(
            action,
            &["DoNotSchedule", "ScheduleAnyway"],
            &field.child("whenUnsatisfiable"),
        ));
        if repeats_later.get(index) == Some(&true) {
            errors.push(Error::duplicate(
                &field.child("{topologyKey, whenUnsatisfiable}"),
                format!("{{{key}, {action}}}"),
            ));
        }
        if let Some(domains) = int_at(constraint, "minDomains") {
            let at = field.child("minDomains");
            if domains <= 0 {
                errors.push(Error::invalid(&at, domains, "must be greater than zero"));
            }
            if action != "DoNotSchedule" {
                let text = format!(
                    "can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}"
                );
                errors.push(Error::invalid(&at, domains, text));
            }
        }
        for policy in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            let value = get(constraint, policy).as_str();
            errors
                .extend(value.and_then(|v| one_of(v, &["Honor", "Ignore"], &field.child(policy))));
        }
        errors.extend(label_keys(constraint, &field));
        errors.extend(validate_selector(
            get(constraint, "labelSelector"),
            &field.child("labelSelector"),
            false,
        ));
    }
    errors
}

/// Validates `tolerations` of a pod or a runtime class (`ValidateTolerations`).
pub fn tolerations(list: &[Value], path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    for (index, toleration) in list.iter().enumerate() {
        let field = path.index(index);
        let (key, operator) = (str_at(toleration, "key"), str_at(toleration, "operator"));
        let (value, effect) = (str_at(toleration, "value"), str_at(toleration, "effect"));
        let at = field.child("operator");
        if !key.is_empty() {
            errors.extend(each(&field.child("key"), key, names::qualified_name(key)));
        } else if operator != "Exists" {
            let text = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            errors.push(Error::invalid(&at, operator, text));
        }
        if has(toleration, "tolerationSeconds") && effect != "NoExecute" {
            let text = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            errors.push(Error::invalid(&field.child("effect"), effect, text));
        }
        match operator {
            "" | "Equal" => {
                let bad = names::label_value(value);
                if !bad.is_empty() {
                    errors.push(Error::invalid(&at, value, bad.join(";")));
                }
            }
            "Exists" if !value.is_empty() => {
                errors.push(Error::invalid(
                    &at,
                    value,
                    "value must be empty when `operator` is 'Exists'",
                ));
            }
            "Exists" => {}
            "Lt" | "Gt" => {
                errors.push(Error::not_supported(&at, operator, &["Equal", "Exists", "Lt", "Gt"]))
            }
            other => errors.push(Error::not_supported(&at, other, &["Equal", "Exists"])),
        }
        if !effect.is_empty() {
            errors.extend(one_of(
                effect,
                &["NoSchedule", "PreferNoSchedule", "NoExecute"],
                &field.child("effect"),
            ));
        }
    }
    errors
}

/// Validates changes of the node selector and the node affinity of a pod with scheduling gates: an
/// update may only add requirements.
pub(super) fn narrowing(new: &Value, old: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let (new_labels, old_labels) = (get(new, "nodeSelector"), get(old, "nodeSelector"));
    if entries(old, "nodeSelector").any(|(key, value)| new_labels.get(key) != Some(value))
        && !semantic_equal(new_labels, old_labels)
    {
        let text = "only additions to spec.nodeSelector are allowed (no mutations or deletions)";
        errors.push(Error::invalid(&path.child("nodeSelector"), new_labels.clone(), text));
    }
    let required = |spec| at(spec, &["affinity", "nodeAffinity", REQUIRED]);
    let (new_required, old_required) = (required(new), required(old));
    let (new_terms, old_terms) =
        (items(new_required, "nodeSelectorTerms"), items(old_required, "nodeSelectorTerms"));
    let list =
        path.child("affinity").child("nodeAffinity").child(REQUIRED).child("nodeSelectorTerms");
    if !old_terms.is_empty() && new_terms.len() != old_terms.len() {
        let text = "no additions/deletions to non-empty NodeSelectorTerms list are allowed";
        let shown = get(new_required, "nodeSelectorTerms").clone();
        errors.push(Error::invalid(&list, shown, text).printed_as("[NodeSelectorTerm"));
        return errors;
    }
    for (index, (new, old)) in new_terms.iter().zip(old_terms).enumerate() {
        let kept = |key: &str| {
            let (new, old) = (items(new, key), items(old, key));
            new.get(..old.len())
                .is_some_and(|n| n.iter().zip(old).all(|(a, b)| semantic_equal(a, b)))
        };
        let was_empty =
            items(old, "matchExpressions").is_empty() && items(old, "matchFields").is_empty();
        let now_empty =
            items(new, "matchExpressions").is_empty() && items(new, "matchFields").is_empty();
        if (was_empty && !now_empty) || !kept("matchExpressions") || !kept("matchFields") {
            let text = "only additions are allowed (no mutations or deletions)";
            let error = Error::invalid(&list.index(index), new.clone(), text);
            errors.push(error.printed_as("NodeSelectorTerm"));
        }
    }
    errors
}

#[cfg(test)]
mod tests;
