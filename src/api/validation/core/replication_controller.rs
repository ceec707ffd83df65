//! Validation of replication controllers and pod templates.

use serde_json::{Value, json};

use super::pod;
use crate::field::{Error, ErrorList, Path};
use crate::validation::labels::matches;
use crate::validation::numbers::non_negative;
use crate::value::{get, has, is_empty, str_in};

/// Validates a new or updated replication controller (`ValidateReplicationController`).
pub fn validate(object: &Value) -> ErrorList {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    let mut errors: ErrorList = non_negative(spec, "minReadySeconds", &path).into_iter().collect();
    if is_empty(spec, "selector") {
        errors.push(Error::required(&path.child("selector"), ""));
    }
    errors.extend(non_negative(spec, "replicas", &path));
    let (template, field) = (get(spec, "template"), path.child("template"));
    if !template.is_object() {
        errors.push(Error::required(&field, ""));
        return errors;
    }
    let labels = get(get(template, "metadata"), "labels");
    let selector = json!({ "matchLabels": get(spec, "selector") });
    if !is_empty(spec, "selector") && !matches(&selector, labels) {
        let text = "`selector` does not match template `labels`";
        errors.push(Error::invalid(&field.child("metadata").child("labels"), labels.clone(), text));
    }
    errors.extend(pod::template(template, &field));
    let policy = str_in(template, &["spec", "restartPolicy"]);
    if policy != "Always" {
        errors.push(Error::not_supported(
            &field.child("spec").child("restartPolicy"),
            policy,
            &["Always"],
        ));
    }
    if has(get(template, "spec"), "activeDeadlineSeconds") {
        let text = "activeDeadlineSeconds in ReplicationController is not Supported";
        errors.push(Error::forbidden(&field.child("spec").child("activeDeadlineSeconds"), text));
    }
    errors
}

/// Validates a status update. The status has the counters of a replica set except one.
pub fn validate_subresource(subresource: &str, object: &Value, old: &Value) -> ErrorList {
    crate::validation::apps::replica_set::validate_subresource(subresource, object, old)
}

/// Validates a `PodTemplate` object (`ValidatePodTemplate`).
pub fn validate_pod_template(object: &Value) -> ErrorList {
    pod::template(get(object, "template"), &Path::new("template"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validation::tests::{same, with};

    /// `ValidateReplicationControllerSpec` and `ValidatePodTemplateSpecForRC` of
    /// `pkg/apis/core/validation`.
    #[test]
    fn selectors_must_be_set_and_match_the_template() {
        let check = |changes: Value, expected: &[&str]| {
            let template = json!({"metadata": {"labels": {"a": "b"}},
                "spec": {"containers": [{"name": "c", "image": "i"}]}});
            let mut object = json!({"spec": {"selector": {"a": "b"}, "template": template}});
            crate::defaults::defaulter("", "v1", "ReplicationController")(&mut object);
            same(&validate(&with(&object, &json!({ "spec": changes }))), expected);
        };
        check(json!({}), &[]);
        check(json!({"replicas": 0}), &[]);
        check(json!({"selector": null}), &["spec.selector: Required value"]);
        check(
            json!({"selector": {"c": "d"}}),
            &["spec.template.metadata.labels: Invalid value: {\"a\":\"b\"}: \
               `selector` does not match template `labels`"],
        );
        check(json!({"template": null}), &["spec.template: Required value"]);
        check(
            json!({"replicas": -1, "minReadySeconds": -1}),
            &[
                "spec.minReadySeconds: Invalid value: -1: must be greater than or equal to 0",
                "spec.replicas: Invalid value: -1: must be greater than or equal to 0",
            ],
        );
        check(
            json!({"template": {"spec": {"restartPolicy": "OnFailure"}}}),
            &["spec.template.spec.restartPolicy: Unsupported value: \"OnFailure\": \
               supported values: \"Always\""],
        );
        check(
            json!({"template": {"spec": {"activeDeadlineSeconds": 1}}}),
            &["spec.template.spec.activeDeadlineSeconds: Forbidden: \
               activeDeadlineSeconds in ReplicationController is not Supported"],
        );
    }
}
