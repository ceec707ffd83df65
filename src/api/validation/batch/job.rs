//! Validation of jobs.

use serde_json::{Value, json};

use super::job_policies::{failure_policy, success_policy};
use super::job_status::is_so;

pub use super::job_status::validate_subresource;

use crate::field::{Error, ErrorList, Path};
use crate::validation::core::pod;
use crate::validation::labels::{convertible, matches, shown_map, validate_selector};
use crate::validation::numbers::all_non_negative;
use crate::validation::{IMMUTABLE, each, immutable_as, names, one_of};
use crate::value::{at, bool_at, get, has, int_at, restore, semantic_equal, set, str_at, str_in};

const INDEXED: &str = "requires indexed completion mode";
/// Maximum of `parallelism` and of `maxFailedIndexes` of an indexed job.
const PARALLEL_MAX: i64 = 100_000;
/// With more completions than this and a `backoffLimitPerIndex`, the maximum of both fields is
/// [`HIGH_COMPLETIONS_MAX`].
const COMPLETIONS_SOFT: i64 = 100_000;
const HIGH_COMPLETIONS_MAX: i64 = 10_000;
/// Maximum length of `managedBy`, in bytes.
const MANAGED_BY_MAX: usize = 63;

/// Validates a new job.
pub fn validate(object: &Value) -> ErrorList {
    let mut errors = generated_selector(object);
    errors.extend(spec(get(object, "spec"), &Path::new("spec")));
    errors.extend(name_fits(object));
    errors
}

/// Checks that the selector and the labels of the template are those that the API server generates
/// from the job's name and UID. Does nothing with `manualSelector`.
fn generated_selector(object: &Value) -> ErrorList {
    let (spec, meta) = (get(object, "spec"), get(object, "metadata"));
    let mut errors = ErrorList::new();
    if bool_at(spec, "manualSelector") || !has(spec, "selector") {
        return errors;
    }
    let (uid, name) = (str_at(meta, "uid"), str_at(meta, "name"));
    let path = Path::new("spec").child("template").child("metadata").child("labels");
    let labels = at(spec, &["template", "metadata", "labels"]);
    let expected = [
        ("controller-uid", uid),
        ("job-name", name),
        ("batch.kubernetes.io/controller-uid", uid),
        ("batch.kubernetes.io/job-name", name),
    ];
    for (key, value) in expected {
        match get(labels, key).as_str() {
            None => errors.push(Error::required(&path.key(key), format!("must be '{value}'"))),
            Some(found) if found != value => {
                errors.push(Error::invalid(
                    &path.key(key),
                    shown_map(labels),
                    format!("must be '{value}'"),
                ));
            }
            Some(_) => {}
        }
    }
    let selector = get(spec, "selector");
    let wanted: serde_json::Map<String, Value> =
        expected.iter().map(|(k, v)| ((*k).to_owned(), json!(v))).collect();
    if convertible(selector) && !matches(selector, &Value::Object(wanted)) {
        errors.push(
            Error::invalid(
                &Path::new("spec").child("selector"),
                selector.clone(),
                "`selector` not auto-generated",
            )
            .printed_as("*LabelSelector"),
        );
    }
    errors
}

/// Checks that the name of the last pod of an indexed job, which is also its host name, is a valid
/// DNS label.
fn name_fits(object: &Value) -> Option<Error> {
    let spec = get(object, "spec");
    let completions = int_at(spec, "completions")
        .filter(|c| *c > 0 && str_at(spec, "completionMode") == "Indexed")?;
    let name = str_in(object, &["metadata", "name"]);
    let host = format!("{name}-{}", completions - 1);
    let text = format!("will not able to create pod with invalid DNS label: {host}");
    (!names::dns1123_label(&host).is_empty())
        .then(|| Error::invalid(&Path::new("metadata").child("name"), name, text))
}

/// Validates a job's spec with its selector.
fn spec(spec: &Value, path: &Path) -> ErrorList {
    let mut errors = template_spec(spec, path);
    let selector = get(spec, "selector");
    if selector.is_object() {
        errors.extend(validate_selector(selector, &path.child("selector"), false));
    } else {
        errors.push(Error::required(&path.child("selector"), ""));
    }
    let labels = at(spec, &["template", "metadata", "labels"]);
    if convertible(selector) && !(selector.is_object() && matches(selector, labels)) {
        let field = path.child("template").child("metadata").child("labels");
        errors.push(Error::invalid(
            &field,
            labels.clone(),
            "`selector` does not match template `labels`",
        ));
    }
    errors
}

/// Validates a job's spec without its selector, as in the template of a cron job.
pub(super) fn template_spec(spec: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let counts = [
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    ];
    all_non_negative(spec, &counts, path, &mut errors);
    if has(spec, "maxFailedIndexes") && !has(spec, "backoffLimitPerIndex") {
        errors.push(Error::required(
            &path.child("backoffLimitPerIndex"),
            "when maxFailedIndexes is specified",
        ));
    }
    if let Some(manager) = get(spec, "managedBy").as_str() {
        errors.extend(domain_prefixed_path(manager, &path.child("managedBy")));
        if manager.len() > MANAGED_BY_MAX {
            errors.push(Error::too_long(&path.child("managedBy"), MANAGED_BY_MAX));
        }
    }
    errors.extend(completion_mode(spec, path));
    if has(spec, "podFailurePolicy") {
        errors.extend(failure_policy(spec, &path.child("podFailurePolicy")));
    }
    if has(spec, "successPolicy") {
        let field = path.child("successPolicy");
        if str_at(spec, "completionMode") == "Indexed" {
            errors.extend(success_policy(spec, &field));
        } else {
            let policy = get(spec, "successPolicy").clone();
            errors.push(Error::invalid(&field, policy, INDEXED).printed_as("*SuccessPolicy"));
        }
    }
    if let Some(policy) = get(spec, "podReplacementPolicy").as_str() {
        let allowed: &[&str] = if has(spec, "podFailurePolicy") {
            &["Failed"]
        } else {
            &["Failed", "TerminatingOrFailed"]
        };
        errors.extend(one_of(policy, allowed, &path.child("podReplacementPolicy")));
    }
    errors.extend(pod::template(get(spec, "template"), &path.child("template")));
    let policy = str_in(spec, &["template", "spec", "restartPolicy"]);
    let field = path.child("template").child("spec").child("restartPolicy");
    match policy {
        "" | "Always" => {
            errors.push(Error::required(&field, "valid values: \"OnFailure\", \"Never\""))
        }
        "OnFailure" if has(spec, "podFailurePolicy") => {
            errors.push(Error::invalid(
                &field,
                policy,
                "only \"Never\" is supported when podFailurePolicy is specified",
            ));
        }
        "OnFailure" | "Never" => {}
        other => errors.push(Error::not_supported(&field, other, &["OnFailure", "Never"])),
    }
    errors
}

/// Validates `completionMode` and the fields that depend on it.
fn completion_mode(spec: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let mode = get(spec, "completionMode").as_str();
    errors.extend(
        mode.and_then(|m| one_of(m, &["NonIndexed", "Indexed"], &path.child("completionMode"))),
    );
    let (completions, parallel) = (int_at(spec, "completions"), int_at(spec, "parallelism"));
    let (per_index, failed) =
        (int_at(spec, "backoffLimitPerIndex"), int_at(spec, "maxFailedIndexes"));
    let (at_parallel, at_failed) = (path.child("parallelism"), path.child("maxFailedIndexes"));
    if mode.is_none_or(|m| m == "NonIndexed") {
        for (key, value) in [("backoffLimitPerIndex", per_index), ("maxFailedIndexes", failed)] {
            errors.extend(value.map(|v| Error::invalid(&path.child(key), v, INDEXED)));
        }
        return errors;
    }
    if mode != Some("Indexed") {
        return errors;
    }
    if completions.is_none() {
        errors.push(Error::required(&path.child("completions"), "when completion mode is Indexed"));
    }
    if let Some(value) = parallel.filter(|p| *p > PARALLEL_MAX) {
        let text =
            format!("must be less than or equal to {PARALLEL_MAX} when completion mode is Indexed");
        errors.push(Error::invalid(&at_parallel, value, text));
    }
    if let (Some(failed), Some(completions)) = (failed, completions) {
        if failed > completions {
            errors.push(Error::invalid(
                &at_failed,
                failed,
                "must be less than or equal to completions",
            ));
        }
    }
    if let Some(failed) = failed.filter(|f| *f > PARALLEL_MAX) {
        errors.push(Error::invalid(
            &at_failed,
            failed,
            format!("must be less than or equal to {PARALLEL_MAX}"),
        ));
    }
    if completions.is_some_and(|c| c > COMPLETIONS_SOFT) && per_index.is_some() {
        if failed.is_none() {
            errors.push(Error::required(
                &at_failed,
                format!("must be specified when completions is above {COMPLETIONS_SOFT}"),
            ));
        }
        let text = format!(
            "must be less than or equal to {HIGH_COMPLETIONS_MAX} when completions are above {COMPLETIONS_SOFT} and used with backoff limit per index"
        );
        for (field, value) in [(at_parallel, parallel), (at_failed, failed)] {
            errors.extend(
                value
                    .filter(|v| *v > HIGH_COMPLETIONS_MAX)
                    .map(|v| Error::invalid(&field, v, text.as_str())),
            );
        }
    }
    errors
}

/// Validates a name of the form `example.com/foo`.
fn domain_prefixed_path(value: &str, field: &Path) -> ErrorList {
    if value.is_empty() {
        return vec![Error::required(field, "")];
    }
    let Some((host, path)) = value.split_once('/').filter(|(h, p)| !h.is_empty() && !p.is_empty())
    else {
        return vec![Error::invalid(
            field,
            value,
            "must be a domain-prefixed path (such as \"acme.io/foo\")",
        )];
    };
    let mut errors: ErrorList = each(field, host, names::dns1123_subdomain(host)).collect();
    let is_allowed = |b: u8| b.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&b);
    if !path.bytes().all(is_allowed) {
        let text = "Invalid path (regex used for validation is '[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+')";
        errors.push(Error::invalid(field, path, text));
    }
    errors
}

/// Validates an update of a job.
pub fn validate_change(object: &Value, old: &Value) -> ErrorList {
    let (new, was, path) = (get(object, "spec"), get(old, "spec"), Path::new("spec"));
    let mut errors = spec(new, &path);
    errors.extend(completions_change(new, was, &path));
    errors.extend(immutable_as(
        get(new, "selector"),
        get(was, "selector"),
        &path.child("selector"),
        "*LabelSelector",
    ));
    errors.extend(template_change(new, old, &path));
    for (key, kind) in [
        ("completionMode", "*s"),
        ("podFailurePolicy", "*PodFailurePolicy"),
        ("backoffLimitPerIndex", "*i"),
        ("managedBy", "*s"),
        ("successPolicy", "*SuccessPolicy"),
    ] {
        errors.extend(immutable_as(get(new, key), get(was, key), &path.child(key), kind));
    }
    errors.extend(name_fits(object));
    errors
}

/// Checks that `completions` does not change, except of an indexed job to the new value of
/// `parallelism`.
fn completions_change(new: &Value, old: &Value, path: &Path) -> ErrorList {
    let field = path.child("completions");
    let (now, was) = (get(new, "completions"), get(old, "completions"));
    if semantic_equal(now, was) {
        return Vec::new();
    }
    if str_at(new, "completionMode") != "Indexed" || !now.is_number() || !was.is_number() {
        return vec![Error::invalid(&field, now.clone(), IMMUTABLE)];
    }
    if now != get(new, "parallelism") {
        return vec![Error::invalid(
            &field,
            now.clone(),
            "can only be modified in tandem with spec.parallelism",
        )];
    }
    Vec::new()
}

/// Checks that the template does not change. Scheduling directives and resources may change while
/// the job is suspended and has no active pods.
fn template_change(new: &Value, old: &Value, path: &Path) -> ErrorList {
    let (now, mut was) = (get(new, "template").clone(), at(old, &["spec", "template"]).clone());
    let suspended = bool_at(get(old, "spec"), "suspend");
    let status = get(old, "status");
    let is_stopped = !has(status, "startTime") || suspended_condition(status);
    if !suspended || !is_stopped || int_at(status, "active").unwrap_or_default() != 0 {
        return immutable_as(&now, &was, &path.child("template"), "PodTemplateSpec");
    }
    // Copies the mutable fields into the old template, so that the comparison ignores them.
    if let Some(meta) = crate::value::ensure_object(&mut was, "metadata") {
        restore(meta, get(&now, "metadata"), "labels");
        restore(meta, get(&now, "metadata"), "annotations");
    }
    if let Some(spec) = crate::value::ensure_object(&mut was, "spec") {
        let new = get(&now, "spec");
        for key in ["nodeSelector", "tolerations", "schedulingGates"] {
            restore(spec, new, key);
        }
        if let Some(affinity) = crate::value::ensure_object(spec, "affinity") {
            set(affinity, "nodeAffinity", at(new, &["affinity", "nodeAffinity"]).clone());
        }
        for list in ["containers", "initContainers"] {
            for (container, new) in
                crate::value::items_mut(spec, list).iter_mut().zip(crate::value::items(new, list))
            {
                restore(container, new, "resources");
            }
        }
    }
    immutable_as(get(&now, "spec"), get(&was, "spec"), &path.child("template.spec"), "PodSpec")
}

fn suspended_condition(status: &Value) -> bool {
    is_so(status, "Suspended", "True")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validation::tests::{same, with};

    fn job(changes: &Value) -> Value {
        let template = json!({"metadata": {"labels": {"a": "b"}}, "spec":
            {"restartPolicy": "OnFailure", "containers": [{"name": "c", "image": "i"}]}});
        let mut object = json!({"metadata": {"name": "j", "uid": "1a"}, "spec": {
            "manualSelector": true, "selector": {"matchLabels": {"a": "b"}},
            "template": template}});
        crate::defaults::defaulter("batch", "v1", "Job")(&mut object);
        with(&object, &json!({ "spec": changes }))
    }

    fn check(changes: Value, expected: &[&str]) {
        same(&validate(&job(&changes)), expected);
    }

    /// `ValidateJobSpec` of `pkg/apis/batch/validation`.
    #[test]
    fn numbers_must_not_be_negative_and_the_template_not_restart_always() {
        const AT: &str = "spec.template.spec.restartPolicy";
        check(json!({}), &[]);
        check(json!({"template": {"spec": {"restartPolicy": "Never"}}}), &[]);
        check(
            json!({"template": {"spec": {"restartPolicy": "Always"}}}),
            &[&format!("{AT}: Required value: valid values: \"OnFailure\", \"Never\"")],
        );
        check(
            json!({"podFailurePolicy": {"rules": []}, "podReplacementPolicy": "Failed"}),
            &[&format!(
                "{AT}: Invalid value: \"OnFailure\": \
                 only \"Never\" is supported when podFailurePolicy is specified"
            )],
        );
        for key in ["parallelism", "completions", "activeDeadlineSeconds", "backoffLimit"] {
            let text = format!("spec.{key}: Invalid value: -1: ...");
            check(json!({ key: -1 }), &[&text]);
        }
        check(
            json!({"selector": null}),
            &[
                "spec.selector: Required value",
                "spec.template.metadata.labels: Invalid value: {\"a\":\"b\"}: \
                 `selector` does not match template `labels`",
            ],
        );
        check(
            json!({"managedBy": "x"}),
            &["spec.managedBy: Invalid value: \"x\": \
               must be a domain-prefixed path (such as \"acme.io/foo\")"],
        );
    }

    /// `ValidateJobSpec` of `pkg/apis/batch/validation`.
    #[test]
    fn limits_by_index_need_indexed_completion() {
        check(json!({"completionMode": "Indexed", "completions": 2}), &[]);
        check(
            json!({"backoffLimitPerIndex": 1, "successPolicy": {"rules": []}}),
            &[
                "spec.backoffLimitPerIndex: Invalid value: 1: requires indexed completion mode",
                "spec.successPolicy: Invalid value: ...",
            ],
        );
        check(
            json!({"completionMode": "Indexed", "completions": null}),
            &["spec.completions: Required value: when completion mode is Indexed"],
        );
        check(
            json!({"completionMode": "Indexed", "completions": 1, "maxFailedIndexes": 2}),
            &[
                "spec.backoffLimitPerIndex: Required value: when maxFailedIndexes is specified",
                "spec.maxFailedIndexes: Invalid value: 2: \
                 must be less than or equal to completions",
            ],
        );
        check(
            json!({"completionMode": "Indexed", "completions": 2, "parallelism": 100_001}),
            &["spec.parallelism: Invalid value: 100001: \
               must be less than or equal to 100000 when completion mode is Indexed"],
        );
        check(
            json!({"completionMode": "Indexed", "completions": 100_001, "parallelism": 10_001,
                "backoffLimitPerIndex": 1}),
            &[
                "spec.maxFailedIndexes: Required value: \
                 must be specified when completions is above 100000",
                "spec.parallelism: Invalid value: 10001: must be less than or equal to 10000 when \
                 completions are above 100000 and used with backoff limit per index",
            ],
        );
    }

    /// `validateGeneratedSelector` and `validateNameAllowsCompletions` of
    /// `pkg/apis/batch/validation`.
    #[test]
    fn generated_labels_name_the_job() {
        let labels = json!({"controller-uid": "1a", "job-name": "j",
            "batch.kubernetes.io/controller-uid": "1a", "batch.kubernetes.io/job-name": "j"});
        let generated = |labels: &Value, selector: Value| {
            json!({"manualSelector": null, "selector": {"matchLabels": selector},
                "template": {"metadata": {"labels": labels}}})
        };
        let one = json!({"a": null, "controller-uid": "1a"});
        check(generated(&labels, one.clone()), &[]);
        check(
            generated(&with(&labels, &json!({"job-name": null})), one),
            &["spec.template.metadata.labels[job-name]: Required value: must be 'j'"],
        );
        check(
            generated(&labels, json!({"a": "b"})),
            &["spec.selector: Invalid value: {\"matchLabels\":{\"a\":\"b\"}}: \
               `selector` not auto-generated"],
        );
        let mut long = job(&json!({"completionMode": "Indexed", "completions": 10}));
        long["metadata"]["name"] = json!("j".repeat(61));
        same(&validate(&long), &[""; 0]);
        long["spec"]["completions"] = json!(11);
        same(&validate(&long), &["metadata.name: Invalid value: ..."]);
    }

    /// `ValidateJobSpecUpdate` of `pkg/apis/batch/validation`.
    #[test]
    fn templates_and_completions_stay() {
        let check = |old: Value, new: Value, expected: &[&str]| {
            same(&validate_change(&job(&new), &job(&old)), expected);
        };
        let indexed = |completions: i64, parallelism: i64| {
            json!({"completionMode": "Indexed", "completions": completions,
                "parallelism": parallelism})
        };
        check(json!({}), json!({"parallelism": 5}), &[]);
        check(
            json!({"completions": 1}),
            json!({"completions": 2}),
            &["spec.completions: Invalid value: 2: field is immutable"],
        );
        check(indexed(2, 2), indexed(3, 3), &[]);
        check(
            indexed(2, 2),
            indexed(3, 2),
            &["spec.completions: Invalid value: 3: \
               can only be modified in tandem with spec.parallelism"],
        );
        check(
            json!({}),
            json!({"managedBy": "a.b/c"}),
            &["spec.managedBy: Invalid value: \"a.b/c\": field is immutable"],
        );
        let node = json!({"template": {"spec": {"nodeSelector": {"n": "m"}}}});
        check(json!({}), node.clone(), &["spec.template: Invalid value: ..."]);
        check(json!({"suspend": true}), node, &[]);
    }
}
