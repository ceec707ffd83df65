//! Validation of environment variables and their sources.

use serde_json::Value;

use crate::field::{Error, ErrorList, Path};
use crate::validation::numbers::quantity;
use crate::validation::{each, names};
use crate::value::{get, has, items, str_at};

const ENV_FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
/// Pod fields that a downward API volume can reference, sorted.
pub(super) const VOLUME_FIELDS: [&str; 5] = [
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
];
const OTHER_FIELDS: [&str; 5] = [
    "metadata.annotations",
    "metadata.labels",
    "spec.restartPolicy",
    "spec.schedulerName",
    "status.phase",
];
const RESOURCES: [&str; 6] = [
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];
const SIZES: [&str; 13] =
    ["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];

/// Validates `env` of a container (`ValidateEnv`).
pub(super) fn env(container: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    for (index, variable) in items(container, "env").iter().enumerate() {
        let field = path.child("env").index(index);
        let name = str_at(variable, "name");
        if name.is_empty() {
            errors.push(Error::required(&field.child("name"), ""));
        } else {
            errors.extend(each(&field.child("name"), name, names::env_name(name)));
        }
        if has(variable, "valueFrom") {
            errors.extend(value_from(variable, &field.child("valueFrom")));
        }
    }
    errors
}

fn value_from(variable: &Value, path: &Path) -> ErrorList {
    let source = get(variable, "valueFrom");
    let mut errors = ErrorList::new();
    let mut count = 0;
    for kind in ["fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef"] {
        let Some(reference) = source.get(kind).filter(|r| r.is_object()) else { continue };
        count += 1;
        let field = path.child(kind);
        errors.extend(match kind {
            "fieldRef" => field_ref(reference, &ENV_FIELDS, &field),
            "resourceFieldRef" => resource_field_ref(reference, &field, false),
            "fileKeyRef" => file_key(reference, &field),
            _ => key_ref(reference, &field),
        });
    }
    if count == 0 {
        let text = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`";
        errors.push(Error::invalid(path, "", text));
    } else if !str_at(variable, "value").is_empty() {
        errors.push(Error::invalid(path, "", "may not be specified when `value` is not empty"));
    } else if count > 1 {
        errors.push(Error::invalid(
            path,
            "",
            "may not have more than one field specified at a time",
        ));
    }
    errors
}

/// Validates a reference to a field of the pod (`validateObjectFieldSelector`). `allowed` is
/// sorted.
pub(super) fn field_ref(reference: &Value, allowed: &[&str], path: &Path) -> ErrorList {
    let (version, label) = (str_at(reference, "apiVersion"), str_at(reference, "fieldPath"));
    if version.is_empty() {
        return vec![Error::required(&path.child("apiVersion"), "")];
    }
    let field = path.child("fieldPath");
    if label.is_empty() {
        return vec![Error::required(&field, "")];
    }
    let bad = |text: String| {
        vec![Error::invalid(&field, label, format!("error converting fieldPath: {text}"))]
    };
    if version != "v1" {
        return bad(format!("unsupported pod version: {version}"));
    }
    if let Some((name, key)) = label.strip_suffix("']").and_then(|l| l.split_once("['")) {
        return match name {
            "metadata.annotations" => {
                let key = key.to_lowercase();
                each(path, key.as_str(), names::qualified_name(&key)).collect()
            }
            "metadata.labels" => each(path, key, names::qualified_name(key)).collect(),
            _ => bad(format!("field label does not support subscript: {label}")),
        };
    }
    let known =
        ENV_FIELDS.contains(&label) || OTHER_FIELDS.contains(&label) || label == "spec.host";
    if !known {
        return bad(format!("field label not supported: {label}"));
    }
    let label = if label == "spec.host" { "spec.nodeName" } else { label };
    super::super::one_of(label, allowed, &field).into_iter().collect()
}

/// Validates a reference to a resource of a container (`validateContainerResourceFieldSelector`).
/// `volume` is true for a file of a downward API volume, which has to name the container.
pub(super) fn resource_field_ref(reference: &Value, path: &Path, volume: bool) -> ErrorList {
    let mut errors = ErrorList::new();
    let resource = str_at(reference, "resource");
    let huge =
        resource.starts_with("limits.hugepages-") || resource.starts_with("requests.hugepages-");
    if volume && str_at(reference, "containerName").is_empty() {
        errors.push(Error::required(&path.child("containerName"), ""));
    } else if resource.is_empty() {
        errors.push(Error::required(&path.child("resource"), ""));
    } else if !RESOURCES.contains(&resource) && !huge {
        errors.push(Error::not_supported(&path.child("resource"), resource, &RESOURCES));
    }
    let Some(divisor) = quantity(get(reference, "divisor")).filter(|d| d.sign() != 0) else {
        return errors;
    };
    let divisor = divisor.to_string();
    let field = path.child("divisor");
    let named = match resource.split_once('.').map(|(_, name)| name) {
        Some("cpu") if !["1m", "1"].contains(&divisor.as_str()) => {
            errors.push(Error::invalid(
                &field,
                resource,
                "only divisor's values 1m and 1 are supported with the cpu resource",
            ));
            return errors;
        }
        Some("memory") => "memory",
        Some("ephemeral-storage") => "local ephemeral storage",
        Some(_) if huge => "hugepages",
        _ => return errors,
    };
    if !SIZES.contains(&divisor.as_str()) {
        let text = format!(
            "only divisor's values {} are supported with the {named} resource",
            SIZES.join(", ")
        );
        errors.push(Error::invalid(&field, resource, text));
    }
    errors
}

fn key_ref(reference: &Value, path: &Path) -> ErrorList {
    let (name, key) = (str_at(reference, "name"), str_at(reference, "key"));
    let mut errors: ErrorList =
        each(&path.child("name"), name, names::dns1123_subdomain(name)).collect();
    if key.is_empty() {
        errors.push(Error::required(&path.child("key"), ""));
    } else {
        errors.extend(each(&path.child("key"), key, names::config_key(key)));
    }
    errors
}

fn file_key(reference: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let (key, volume, file) =
        (str_at(reference, "key"), str_at(reference, "volumeName"), str_at(reference, "path"));
    if key.is_empty() {
        errors.push(Error::required(&path.child("key"), ""));
    } else {
        errors.extend(each(&path.child("key"), key, names::env_name(key)));
    }
    if volume.is_empty() {
        errors.push(Error::required(&path.child("volumeName"), ""));
    } else {
        errors.extend(each(&path.child("volumeName"), volume, names::dns1123_label(volume)));
    }
    if file.is_empty() {
        errors.push(Error::required(&path.child("path"), ""));
    } else {
        errors.extend(super::volumes::no_backsteps(file, &path.child("path")));
    }
    errors
}

/// Validates `envFrom` of a container (`ValidateEnvFrom`).
pub(super) fn env_from(container: &Value, path: &Path) -> ErrorList {
    let list = path.child("envFrom");
    let mut errors = ErrorList::new();
    for (index, source) in items(container, "envFrom").iter().enumerate() {
        let field = list.index(index);
        let prefix = str_at(source, "prefix");
        if !prefix.is_empty() {
            errors.extend(each(&field.child("prefix"), prefix, names::env_name(prefix)));
        }
        let mut count = 0;
        for kind in ["configMapRef", "secretRef"] {
            let Some(reference) = source.get(kind).filter(|r| r.is_object()) else { continue };
            count += 1;
            let (name, at) = (str_at(reference, "name"), field.child(kind).child("name"));
            if name.is_empty() {
                errors.push(Error::required(&at, ""));
            } else {
                errors.extend(each(&at, name, names::name_is_subdomain(name, true)));
            }
        }
        if count == 0 {
            errors.push(Error::invalid(
                &list,
                "",
                "must specify one of: `configMapRef` or `secretRef`",
            ));
        } else if count > 1 {
            errors.push(Error::invalid(
                &list,
                "",
                "may not have more than one field specified at a time",
            ));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validation::tests::same;
    use serde_json::json;

    fn check(variable: Value, expected: &[&str]) {
        same(&env(&json!({ "env": [variable] }), &Path::new("c")), expected);
    }

    /// `ValidateEnv` and `validateEnvVarValueFrom` of `pkg/apis/core/validation`.
    #[test]
    fn variables_have_a_name_and_one_source() {
        const AT: &str = "c.env[0].valueFrom";
        let key = json!({"name": "n", "key": "k"});
        check(json!({"name": "abc.123-X", "value": "v"}), &[]);
        check(json!({"name": ""}), &["c.env[0].name: Required value"]);
        check(
            json!({"name": "a=b"}),
            &["c.env[0].name: Invalid value: \"a=b\": a valid environment variable name must \
               consist only of printable ASCII characters other than '='"],
        );
        check(
            json!({"name": "a", "valueFrom": {}}),
            &[&format!(
                "{AT}: Invalid value: \"\": must specify one of: `fieldRef`, `resourceFieldRef`, \
                 `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"
            )],
        );
        check(
            json!({"name": "a", "value": "v", "valueFrom": {"secretKeyRef": key}}),
            &[&format!(
                "{AT}: Invalid value: \"\": may not be specified when `value` is not empty"
            )],
        );
        check(
            json!({"name": "a", "valueFrom": {"secretKeyRef": key, "configMapKeyRef": key}}),
            &[&format!(
                "{AT}: Invalid value: \"\": may not have more than one field specified at a time"
            )],
        );
        check(
            json!({"name": "a", "valueFrom": {"secretKeyRef": {"name": "n"}}}),
            &[&format!("{AT}.secretKeyRef.key: Required value")],
        );
        check(
            json!({"name": "a", "valueFrom": {"fileKeyRef": {"path": "a/../b"}}}),
            &[
                &format!("{AT}.fileKeyRef.key: Required value"),
                &format!("{AT}.fileKeyRef.volumeName: Required value"),
                &format!("{AT}.fileKeyRef.path: Invalid value: \"a/../b\": must not contain '..'"),
            ],
        );
    }

    /// `validateObjectFieldSelector` of `pkg/apis/core/validation`.
    #[test]
    fn field_references_name_known_fields() {
        const AT: &str = "c.env[0].valueFrom.fieldRef";
        let check = |version: &str, field: &str, expected: &[&str]| {
            let reference = json!({"apiVersion": version, "fieldPath": field});
            check(json!({"name": "a", "valueFrom": {"fieldRef": reference}}), expected);
        };
        for field in ["metadata.name", "spec.nodeName", "status.podIPs", "metadata.labels['a/b']"] {
            check("v1", field, &[]);
        }
        check("", "metadata.name", &[&format!("{AT}.apiVersion: Required value")]);
        check("v1", "", &[&format!("{AT}.fieldPath: Required value")]);
        check(
            "v2",
            "metadata.name",
            &[&format!(
                "{AT}.fieldPath: Invalid value: \"metadata.name\": \
                 error converting fieldPath: unsupported pod version: v2"
            )],
        );
        check(
            "v1",
            "metadata.whoops",
            &[&format!(
                "{AT}.fieldPath: Invalid value: \"metadata.whoops\": \
                 error converting fieldPath: field label not supported: metadata.whoops"
            )],
        );
        check(
            "v1",
            "metadata.name['key']",
            &[&format!(
                "{AT}.fieldPath: Invalid value: \"metadata.name['key']\": error converting \
                 fieldPath: field label does not support subscript: ..."
            )],
        );
        check(
            "v1",
            "metadata.labels",
            &[&format!("{AT}.fieldPath: Unsupported value: \"metadata.labels\": ...")],
        );
    }

    /// `validateContainerResourceFieldSelector` and `validateContainerResourceDivisor` of
    /// `pkg/apis/core/validation`.
    #[test]
    fn divisors_fit_the_resource() {
        let check = |resource: &str, divisor: &str, expected: &[&str]| {
            let reference = json!({"resource": resource, "divisor": divisor});
            same(&resource_field_ref(&reference, &Path::new("r"), false), expected);
        };
        check("limits.cpu", "1m", &[]);
        check("requests.memory", "1Mi", &[]);
        check("limits.hugepages-2Mi", "1Gi", &[]);
        check("limits.cpu", "0", &[]);
        check("", "", &["r.resource: Required value"]);
        check("limits.pods", "", &["r.resource: Unsupported value: \"limits.pods\": ..."]);
        check(
            "limits.cpu",
            "2m",
            &["r.divisor: Invalid value: \"limits.cpu\": \
               only divisor's values 1m and 1 are supported with the cpu resource"],
        );
        check(
            "limits.memory",
            "2Mi",
            &["r.divisor: Invalid value: \"limits.memory\": only divisor's values 1, 1k, 1M, 1G, \
               1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei are supported with the memory resource"],
        );
        same(
            &resource_field_ref(&json!({"resource": "limits.cpu"}), &Path::new("r"), true),
            &["r.containerName: Required value"],
        );
    }

    /// `ValidateEnvFrom` of `pkg/apis/core/validation`.
    #[test]
    fn sources_of_many_variables_are_one_map_or_secret() {
        let check = |source: Value, expected: &[&str]| {
            same(&env_from(&json!({ "envFrom": [source] }), &Path::new("c")), expected);
        };
        check(json!({"prefix": "pre_", "configMapRef": {"name": "abc"}}), &[]);
        check(json!({"secretRef": {"name": "abc"}}), &[]);
        check(
            json!({}),
            &["c.envFrom: Invalid value: \"\": \
               must specify one of: `configMapRef` or `secretRef`"],
        );
        check(
            json!({"configMapRef": {"name": "a"}, "secretRef": {"name": "a"}}),
            &["c.envFrom: Invalid value: \"\": \
               may not have more than one field specified at a time"],
        );
        check(
            json!({"configMapRef": {"name": ""}}),
            &["c.envFrom[0].configMapRef.name: Required value"],
        );
        check(
            json!({"prefix": "a=", "secretRef": {"name": "a"}}),
            &["c.envFrom[0].prefix: Invalid value: \"a=\": a valid environment variable name..."],
        );
    }
}
