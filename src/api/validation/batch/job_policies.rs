//! Validation of the pod failure policy and the success policy of jobs.

use serde_json::Value;

use super::indexes;
use crate::field::{Error, ErrorList, Path};
use crate::validation::checks::repeated;
use crate::validation::numbers::non_negative;
use crate::validation::{each, names, one_of};
use crate::value::{at, get, has, int_at, items, str_at};

const ACTIONS: [&str; 4] = ["Count", "FailIndex", "FailJob", "Ignore"];
const STATUSES: [&str; 3] = ["False", "True", "Unknown"];
const RULES_MAX: usize = 20;
const PATTERNS_MAX: usize = 20;
const CODES_MAX: usize = 255;
const INDEXES_BYTES_MAX: usize = 64 * 1024;

fn quoted(values: &[&str]) -> String {
    let list: Vec<String> = values.iter().map(|v| format!("{v:?}")).collect();
    format!("valid values: [{}]", list.join(" "))
}

fn choice(value: &str, allowed: &[&str], field: &Path) -> Option<Error> {
    if value.is_empty() {
        Some(Error::required(field, quoted(allowed)))
    } else {
        one_of(value, allowed, field)
    }
}

/// Validates `podFailurePolicy` of a job spec (`validatePodFailurePolicy`).
pub(super) fn failure_policy(spec: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let rules = items(get(spec, "podFailurePolicy"), "rules");
    if rules.len() > RULES_MAX {
        errors.push(Error::too_many(&path.child("rules"), rules.len(), RULES_MAX));
    }
    let pod = at(spec, &["template", "spec"]);
    let containers: Vec<&str> = ["containers", "initContainers"]
        .into_iter()
        .flat_map(|list| items(pod, list))
        .map(|c| str_at(c, "name"))
        .collect();
    for (index, rule) in rules.iter().enumerate() {
        let field = path.child("rules").index(index);
        let (action, at_action) = (str_at(rule, "action"), field.child("action"));
        if action == "FailIndex" && !has(spec, "backoffLimitPerIndex") {
            errors.push(Error::invalid(
                &at_action,
                action,
                "requires the backoffLimitPerIndex to be set",
            ));
        } else {
            errors.extend(choice(action, &ACTIONS, &at_action));
        }
        let (codes, conditions) = (get(rule, "onExitCodes"), items(rule, "onPodConditions"));
        if codes.is_object() {
            errors.extend(exit_codes(codes, &containers, &field.child("onExitCodes")));
        }
        errors.extend(pod_conditions(conditions, &field.child("onPodConditions")));
        let text = match (codes.is_object(), conditions.is_empty()) {
            (true, false) => "specifying both OnExitCodes and OnPodConditions is not supported",
            (false, true) => "specifying one of OnExitCodes and OnPodConditions is required",
            _ => continue,
        };
        errors.push(Error::omitted(&field, text));
    }
    errors
}

fn pod_conditions(conditions: &[Value], path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    if conditions.len() > PATTERNS_MAX {
        errors.push(Error::too_many(path, conditions.len(), PATTERNS_MAX));
    }
    for (index, pattern) in conditions.iter().enumerate() {
        let (field, kind) = (path.index(index), str_at(pattern, "type"));
        errors.extend(each(&field.child("type"), kind, names::qualified_name(kind)));
        errors.extend(choice(str_at(pattern, "status"), &STATUSES, &field.child("status")));
    }
    errors
}

fn exit_codes(codes: &Value, containers: &[&str], path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let operator = str_at(codes, "operator");
    errors.extend(choice(operator, &["In", "NotIn"], &path.child("operator")));
    if let Some(name) =
        get(codes, "containerName").as_str().filter(|name| !containers.contains(name))
    {
        let text = "must be one of the container or initContainer names in the pod template";
        errors.push(Error::invalid(&path.child("containerName"), name, text));
    }
    let (values, field) = (items(codes, "values"), path.child("values"));
    if values.is_empty() {
        errors.push(Error::invalid(
            &field,
            get(codes, "values").clone(),
            "at least one value is required",
        ));
    } else if values.len() > CODES_MAX {
        errors.push(Error::too_many(&field, values.len(), CODES_MAX));
    }
    let numbers: Vec<i64> = values.iter().filter_map(Value::as_i64).collect();
    let again = repeated(numbers.iter());
    for (index, code) in numbers.iter().enumerate() {
        if operator == "In" && *code == 0 {
            errors.push(Error::invalid(
                &field.index(index),
                0,
                "must not be 0 for the In operator",
            ));
        }
        if again.at(index) {
            errors.push(Error::duplicate(&field.index(index), *code));
        }
    }
    if !numbers.is_sorted() {
        errors.push(Error::invalid(&field, values.to_vec(), "must be ordered"));
    }
    errors
}

/// Validates `successPolicy` of a job spec (`validateSuccessPolicy`).
pub(super) fn success_policy(spec: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let list = path.child("rules");
    let rules = items(get(spec, "successPolicy"), "rules");
    if rules.is_empty() {
        errors.push(Error::required(
            &list,
            "at least one rules must be specified when the successPolicy is specified",
        ));
    }
    if rules.len() > RULES_MAX {
        errors.push(Error::too_many(&list, rules.len(), RULES_MAX));
    }
    let completions = int_at(spec, "completions").unwrap_or_default();
    for (index, rule) in rules.iter().enumerate() {
        let field = list.index(index);
        let (count, indexes) =
            (int_at(rule, "succeededCount"), get(rule, "succeededIndexes").as_str());
        if count.is_none() && indexes.is_none() {
            errors.push(Error::required(
                &field,
                "at least one of succeededCount or succeededIndexes must be specified",
            ));
        }
        let mut total = 0;
        if let Some(indexes) = indexes {
            let at = field.child("succeededIndexes");
            if indexes.len() > INDEXES_BYTES_MAX {
                errors.push(Error::too_long(&at, INDEXES_BYTES_MAX));
            }
            match indexes::count(indexes, completions) {
                Ok(number) => total = number,
                Err(error) => errors.push(Error::invalid(
                    &at,
                    indexes,
                    format!("error parsing succeededIndexes: {error}"),
                )),
            }
        }
        if let Some(count) = count {
            let at = field.child("succeededCount");
            errors.extend(non_negative(rule, "succeededCount", &field));
            if count > completions {
                let text = format!(
                    "must be less than or equal to {completions} (the number of specified completions)"
                );
                errors.push(Error::invalid(&at, count, text));
            }
            if indexes.is_some() && count > total {
                let text = format!(
                    "must be less than or equal to {total} (the number of indexes in the specified succeededIndexes field)"
                );
                errors.push(Error::invalid(&at, count, text));
            }
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validation::tests::same;
    use serde_json::json;

    /// `validatePodFailurePolicyRule` of `pkg/apis/batch/validation`.
    #[test]
    fn failure_rules_have_an_action_and_one_kind_of_condition() {
        let check = |rule: Value, expected: &[&str]| {
            let pod = json!({"containers": [{"name": "c"}], "initContainers": [{"name": "i"}]});
            let spec = json!({"podFailurePolicy": {"rules": [rule]}, "template": {"spec": pod}});
            same(&failure_policy(&spec, &Path::new("p")), expected);
        };
        let codes = |values: Value| json!({"operator": "In", "values": values});
        let rule = |codes: Value| json!({"action": "FailJob", "onExitCodes": codes});
        check(rule(codes(json!([1, 2, 255]))), &[]);
        check(
            json!({"onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}),
            &["p.rules[0].action: Required value: \
               valid values: [\"Count\" \"FailIndex\" \"FailJob\" \"Ignore\"]"],
        );
        check(
            json!({"action": "FailIndex", "onExitCodes": codes(json!([1]))}),
            &["p.rules[0].action: Invalid value: \"FailIndex\": \
               requires the backoffLimitPerIndex to be set"],
        );
        check(
            json!({"action": "Ignore"}),
            &["p.rules[0]: Invalid value: \
               specifying one of OnExitCodes and OnPodConditions is required"],
        );
        check(
            json!({"action": "Ignore", "onExitCodes": codes(json!([1])),
                "onPodConditions": [{"type": "T", "status": "True"}]}),
            &["p.rules[0]: Invalid value: \
               specifying both OnExitCodes and OnPodConditions is not supported"],
        );
        check(
            json!({"action": "Ignore", "onPodConditions": [{"type": "T", "status": "x"}]}),
            &["p.rules[0].onPodConditions[0].status: Unsupported value: \"x\": \
               supported values: \"False\", \"True\", \"Unknown\""],
        );
        const VALUES: &str = "p.rules[0].onExitCodes.values";
        check(
            rule(codes(json!([0, 1]))),
            &[&format!("{VALUES}[0]: Invalid value: 0: must not be 0 for the In operator")],
        );
        check(
            rule(codes(json!([2, 1, 1]))),
            &[
                &format!("{VALUES}[2]: Duplicate value: 1"),
                &format!("{VALUES}: Invalid value: [2,1,1]: must be ordered"),
            ],
        );
        check(
            rule(codes(json!([]))),
            &[&format!("{VALUES}: Invalid value: []: at least one value is required")],
        );
        check(
            rule(json!({"containerName": "x", "operator": "NotIn", "values": [0]})),
            &["p.rules[0].onExitCodes.containerName: Invalid value: \"x\": \
               must be one of the container or initContainer names in the pod template"],
        );
        check(
            rule(json!({"containerName": "i", "values": [1]})),
            &["p.rules[0].onExitCodes.operator: Required value: \
               valid values: [\"In\" \"NotIn\"]"],
        );
    }

    /// `validateSuccessPolicyRule` of `pkg/apis/batch/validation`.
    #[test]
    fn success_rules_count_no_more_than_there_is() {
        let check = |rules: Value, expected: &[&str]| {
            let spec = json!({"completions": 5, "successPolicy": {"rules": rules}});
            same(&success_policy(&spec, &Path::new("p")), expected);
        };
        check(json!([{"succeededIndexes": "0-3", "succeededCount": 4}]), &[]);
        check(json!([{"succeededCount": 5}]), &[]);
        check(
            json!([]),
            &["p.rules: Required value: \
               at least one rules must be specified when the successPolicy is specified"],
        );
        check(
            json!([{}]),
            &["p.rules[0]: Required value: \
               at least one of succeededCount or succeededIndexes must be specified"],
        );
        check(
            json!([{"succeededCount": 6}]),
            &["p.rules[0].succeededCount: Invalid value: 6: \
               must be less than or equal to 5 (the number of specified completions)"],
        );
        check(
            json!([{"succeededIndexes": "0,2", "succeededCount": 3}]),
            &["p.rules[0].succeededCount: Invalid value: 3: must be less than or equal to 2 \
               (the number of indexes in the specified succeededIndexes field)"],
        );
        check(
            json!([{"succeededIndexes": "x"}]),
            &["p.rules[0].succeededIndexes: Invalid value: \"x\": \
               error parsing succeededIndexes: ..."],
        );
        let many = vec![json!({"succeededCount": 1}); 21];
        check(Value::Array(many), &["p.rules: Too many: 21: must have at most 20 items"]);
    }
}
