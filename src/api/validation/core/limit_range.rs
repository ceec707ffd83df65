//! Validation of limit ranges.

use std::collections::BTreeSet;

use serde_json::Value;

use super::resources::{container_resource_name, overcommit_allowed, resource_name};
use crate::field::{Error, ErrorList, Path};
use crate::quantity::Quantity;
use crate::validation::numbers::quantity;
use crate::validation::{each, names};
use crate::value::{entries, get, is_empty, items, str_at};

const TYPES: [&str; 3] = ["Pod", "Container", "PersistentVolumeClaim"];
/// Fields with resource quantities, in the order in which upstream validates their names.
const LISTS: [&str; 5] = ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"];
/// Largest number of which the thousandfold fits in an `i64` (`resource.MaxMilliValue`).
const MILLI_MAX: i64 = i64::MAX / 1000;

/// Validates a new or updated limit range (`ValidateLimitRange`).
pub fn validate(object: &Value) -> ErrorList {
    let path = Path::new("spec").child("limits");
    let (mut errors, mut seen) = (ErrorList::new(), BTreeSet::new());
    for (index, limit) in items(get(object, "spec"), "limits").iter().enumerate() {
        let (path, kind) = (path.index(index), str_at(limit, "type"));
        errors.extend(type_name(kind, &path.child("type")));
        if !seen.insert(kind) {
            errors.push(Error::duplicate(&path.child("type"), kind));
        }
        errors.extend(limits(limit, kind, &path));
    }
    errors
}

fn type_name(kind: &str, field: &Path) -> ErrorList {
    let errors: ErrorList = each(field, kind, names::qualified_name(kind)).collect();
    if errors.is_empty() && !kind.contains('/') && !TYPES.contains(&kind) {
        return vec![Error::invalid(
            field,
            kind,
            "must be a standard limit type or fully qualified",
        )];
    }
    errors
}

fn limits(limit: &Value, kind: &str, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let mut names = BTreeSet::new();
    for list in LISTS {
        if list == "maxLimitRequestRatio"
            && kind == "PersistentVolumeClaim"
            && ["min", "max"].iter().all(|list| get(limit, list).get("storage").is_none())
        {
            let text =
                "either minimum or maximum storage value is required, but neither was provided";
            errors.push(Error::required(&path.child("limits"), text));
        }
        if kind == "Pod" && matches!(list, "default" | "defaultRequest") {
            if !is_empty(limit, list) {
                let text = "may not be specified when `type` is 'Pod'";
                errors.push(Error::forbidden(&path.child(list), text));
            }
            continue;
        }
        for (name, _) in entries(limit, list) {
            let field = path.child(list).key(name);
            errors.extend(match kind {
                "Pod" | "Container" => container_resource_name(name, &field),
                _ => resource_name(name, &field),
            });
            names.insert(name.as_str());
        }
    }
    for name in names {
        errors.extend(amounts(limit, kind, name, path));
    }
    errors
}

/// Compares the quantities of one resource: `min`, `defaultRequest`, `default` and `max` are in
/// ascending order, and `maxLimitRequestRatio` is consistent with `min` and `max`.
fn amounts(limit: &Value, kind: &str, name: &str, path: &Path) -> ErrorList {
    let amount = |list: &str| quantity(get(get(limit, list), name));
    let for_containers = |list: &str| if kind == "Pod" { None } else { amount(list) };
    let (min, max) = (amount("min"), amount("max"));
    let (default, request) = (for_containers("default"), for_containers("defaultRequest"));
    let mut errors = ErrorList::new();
    let mut ordered = |at: &str, low: Named, high: Named, shown: Option<Quantity>| {
        if let ((Some(one), low), (Some(two), high), Some(shown)) = (low, high, shown) {
            if one > two {
                let text = format!("{low} value {one} is greater than {high} value {two}");
                errors.push(Error::invalid(&path.child(at).key(name), shown.to_string(), text));
            }
        }
    };
    ordered("min", (min, "min"), (max, "max"), min);
    ordered("defaultRequest", (min, "min"), (request, "default request"), request);
    ordered("defaultRequest", (request, "default request"), (max, "max"), request);
    ordered("defaultRequest", (request, "default request"), (default, "default limit"), request);
    ordered("default", (min, "min"), (default, "default"), min);
    ordered("default", (default, "default"), (max, "max"), max);
    if let Some(ratio) = amount("maxLimitRequestRatio") {
        let field = path.child("maxLimitRequestRatio").key(name);
        if ratio < Quantity::units(1) {
            let text = format!("ratio {ratio} is less than 1");
            errors.push(Error::invalid(&field, ratio.to_string(), text));
        }
        if let (Some(min), Some(max)) = (min, max) {
            let most = most(ratio, min, max);
            if wanted(ratio, min, max) > most {
                let text = format!("ratio {ratio} is greater than max/min = {most:.6}");
                errors.push(Error::invalid(&field, ratio.to_string(), text));
            }
        }
    }
    if let (Some(default), Some(request)) = (default, request) {
        if !overcommit_allowed(name) && default != request {
            let text = format!(
                "default value {default} must equal to defaultRequest value {request} in {name}"
            );
            let field = path.child("defaultRequest").key(name);
            errors.push(Error::invalid(&field, request.to_string(), text));
        }
    }
    errors
}

type Named<'a> = (Option<Quantity>, &'a str);

fn fits(amounts: [Quantity; 3]) -> bool {
    amounts.iter().all(|amount| amount.value() < MILLI_MAX)
}

#[allow(clippy::cast_precision_loss, reason = "upstream compares ratios as float64")]
fn wanted(ratio: Quantity, min: Quantity, max: Quantity) -> f64 {
    if fits([ratio, min, max]) { ratio.milli_value() as f64 / 1000.0 } else { ratio.value() as f64 }
}

#[allow(clippy::cast_precision_loss, reason = "upstream compares ratios as float64")]
fn most(ratio: Quantity, min: Quantity, max: Quantity) -> f64 {
    if fits([ratio, min, max]) {
        max.milli_value() as f64 / min.milli_value() as f64
    } else {
        max.value() as f64 / min.value() as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn bodies(limit: Value) -> Vec<String> {
        let object = json!({"spec": {"limits": [limit]}});
        validate(&object).iter().map(|e| format!("{}: {}", e.field, e.body())).collect()
    }

    #[test]
    fn amounts_are_in_order() {
        assert_eq!(
            bodies(json!({"type": "Container", "min": {"cpu": "2"}, "max": {"cpu": "1"}})),
            [
                "spec.limits[0].min[cpu]: Invalid value: \"2\": min value 2 is greater than max value 1"
            ]
        );
        assert!(
            bodies(json!({"type": "Container", "min": {"cpu": "1"}, "max": {"cpu": "2"}}))
                .is_empty()
        );
        assert_eq!(
            bodies(
                json!({"type": "Pod", "maxLimitRequestRatio": {"cpu": "500m"}, "default": {"cpu": "1"}})
            ),
            [
                "spec.limits[0].default: Forbidden: may not be specified when `type` is 'Pod'",
                "spec.limits[0].maxLimitRequestRatio[cpu]: Invalid value: \"500m\": ratio 500m is less than 1",
            ]
        );
    }

    #[test]
    fn types_are_known_or_qualified() {
        assert_eq!(
            bodies(json!({"type": "x"})),
            [
                "spec.limits[0].type: Invalid value: \"x\": must be a standard limit type or fully qualified"
            ]
        );
        assert!(bodies(json!({"type": "example.com/x"})).is_empty());
        assert_eq!(
            bodies(json!({"type": "PersistentVolumeClaim"})),
            [
                "spec.limits[0].limits: Required value: either minimum or maximum storage value is required, but neither was provided"
            ]
        );
    }
}
