//! Typed label selectors, for controllers and the scheduler.

use std::collections::BTreeMap;

use api::k8s::apimachinery::pkg::apis::meta::v1::LabelSelector;

/// Labels of typed objects.
pub type Labels = BTreeMap<String, String>;

/// Whether `selector` matches `labels`. An empty selector matches everything; an unknown operator
/// matches nothing.
pub fn selects(selector: &LabelSelector, labels: Option<&Labels>) -> bool {
    let value = |key: &str| labels.and_then(|l| l.get(key)).map(String::as_str);
    let equal = selector.match_labels.iter().flatten().all(|(k, v)| value(k) == Some(v));
    equal
        && selector.match_expressions.iter().flatten().all(|e| {
            let found = value(&e.key);
            let listed = || found.is_some_and(|f| e.values.iter().flatten().any(|v| v == f));
            match e.operator.as_str() {
                "In" => listed(),
                "NotIn" => !listed(),
                "Exists" => found.is_some(),
                "DoesNotExist" => found.is_none(),
                _ => false,
            }
        })
}

/// The keys of the labels that the selector reads, if there is one; a key may come several times.
pub fn keys(selector: Option<&LabelSelector>) -> impl Iterator<Item = &str> {
    let labels = selector.and_then(|s| s.match_labels.as_ref()).into_iter().flatten();
    let expressions = selector.and_then(|s| s.match_expressions.as_ref()).into_iter().flatten();
    labels.map(|(key, _)| key.as_str()).chain(expressions.map(|e| e.key.as_str()))
}

/// Whether the selector has no terms, with which most controllers select nothing.
pub fn is_empty(selector: &LabelSelector) -> bool {
    selector.match_labels.as_ref().is_none_or(BTreeMap::is_empty)
        && selector.match_expressions.as_ref().is_none_or(Vec::is_empty)
}

/// Whether all pairs of an equality selector (`spec.selector` of Services and
/// ReplicationControllers) are in `labels`.
pub fn contains(selector: &Labels, labels: Option<&Labels>) -> bool {
    selector.iter().all(|(k, v)| labels.and_then(|l| l.get(k)) == Some(v))
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::k8s::apimachinery::pkg::apis::meta::v1::LabelSelectorRequirement;

    #[test]
    fn operators_match_as_documented() {
        let labels: Labels = [("a".to_owned(), "1".to_owned())].into();
        for (key, operator, values, want) in [
            ("a", "In", vec!["1", "2"], true),
            ("a", "NotIn", vec!["1"], false),
            ("b", "NotIn", vec!["1"], true),
            ("b", "Exists", vec![], false),
            ("b", "DoesNotExist", vec![], true),
            ("a", "Gt", vec!["0"], false),
        ] {
            let requirement = LabelSelectorRequirement {
                key: key.into(),
                operator: operator.into(),
                values: Some(values.into_iter().map(str::to_owned).collect()),
            };
            let selector =
                LabelSelector { match_expressions: Some(vec![requirement]), match_labels: None };
            assert_eq!(selects(&selector, Some(&labels)), want, "{key} {operator}");
        }
    }
}
