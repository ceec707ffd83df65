//! Validation of flow schemas, which assign requests to priority levels.

use serde_json::{Value, json};

use crate::field::{Error, ErrorList, Path};
use crate::validation::checks::texts;
use crate::validation::{each, names, one_of};
use crate::value::{bool_at, get, has, int_at, items, str_at, str_in};

/// Maximum `matchingPrecedence`, which is matched last.
const PRECEDENCE_MAX: i64 = 10_000;
/// The only schema that may have `matchingPrecedence` 1.
const EXEMPT: &str = "exempt";
const METHODS: [&str; 2] = ["ByNamespace", "ByUser"];
const VERBS: [&str; 9] =
    ["create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"];
const KINDS: [&str; 3] = ["Group", "ServiceAccount", "User"];

/// Validates a new or changed flow schema.
pub fn schema(object: &Value) -> ErrorList {
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    let mut errors = precedence(spec, str_in(object, &["metadata", "name"]), &path);
    if has(spec, "distinguisherMethod") {
        let kind = str_at(get(spec, "distinguisherMethod"), "type");
        if !METHODS.contains(&kind) {
            let field = path.child("distinguisherMethod").child("type");
            errors.push(Error::not_supported(&field, json!({"Type": kind}), &METHODS));
        }
    }
    let level = str_at(get(spec, "priorityLevelConfiguration"), "name");
    let field = path.child("priorityLevelConfiguration").child("name");
    if level.is_empty() {
        errors.push(Error::required(&field, "must reference a priority level"));
    } else {
        errors.extend(each(&field, level, names::dns1123_subdomain(level)));
    }
    for (index, rule) in items(spec, "rules").iter().enumerate() {
        errors.extend(self::rule(rule, &path.child("rules").index(index)));
    }
    errors
}

fn precedence(spec: &Value, name: &str, path: &Path) -> ErrorList {
    let value = int_at(spec, "matchingPrecedence").unwrap_or_default();
    let field = path.child("matchingPrecedence");
    let text = match value {
        ..=0 => "must be a positive value".to_owned(),
        1 if name != EXEMPT => {
            "only the schema named 'exempt' may have matchingPrecedence 1".to_owned()
        }
        _ if value > PRECEDENCE_MAX => format!("must not be greater than {PRECEDENCE_MAX}"),
        _ => return Vec::new(),
    };
    vec![Error::invalid(&field, value, text)]
}

fn rule(rule: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let (subjects, field) = (items(rule, "subjects"), path.child("subjects"));
    for (index, subject) in subjects.iter().enumerate() {
        errors.extend(self::subject(subject, &field.index(index)));
    }
    if subjects.is_empty() {
        errors.push(Error::required(&field, "subjects must contain at least one value"));
    }
    let (resources, others) = (items(rule, "resourceRules"), items(rule, "nonResourceRules"));
    if resources.is_empty() && others.is_empty() {
        let text = "at least one of resourceRules and nonResourceRules has to be non-empty";
        errors.push(Error::required(path, text));
    }
    for (index, rule) in resources.iter().enumerate() {
        errors.extend(resource_rule(rule, &path.child("resourceRules").index(index)));
    }
    for (index, rule) in others.iter().enumerate() {
        errors.extend(path_rule(rule, &path.child("nonResourceRules").index(index)));
    }
    errors
}

fn subject(subject: &Value, path: &Path) -> ErrorList {
    let kind = str_at(subject, "kind");
    if let Some(error) = one_of(kind, &KINDS, &path.child("kind")) {
        return vec![error];
    }
    let mut errors = ErrorList::new();
    for (key, name) in [("serviceAccount", "ServiceAccount"), ("user", "User"), ("group", "Group")]
    {
        let (part, field) = (get(subject, key), path.child(key));
        match (kind == name, has(subject, key)) {
            (true, true) => errors.extend(named(part, key == "serviceAccount", &field)),
            (true, false) => {
                let text = format!("{key} is required when subject kind is '{name}'");
                errors.push(Error::required(&field, text));
            }
            (false, true) => {
                let text = format!("{key} is forbidden when subject kind is not '{name}'");
                errors.push(Error::forbidden(&field, text));
            }
            (false, false) => {}
        }
    }
    errors
}

fn named(part: &Value, account: bool, path: &Path) -> ErrorList {
    let (name, field) = (str_at(part, "name"), path.child("name"));
    let mut errors = ErrorList::new();
    if name.is_empty() {
        errors.push(Error::required(&field, ""));
    } else if account && name != "*" {
        errors.extend(each(&field, name, names::dns1123_subdomain(name)));
    }
    if account {
        let (namespace, field) = (str_at(part, "namespace"), path.child("namespace"));
        if namespace.is_empty() {
            errors.push(Error::required(&field, "must specify namespace for service account"));
        } else {
            errors.extend(each(&field, namespace, names::dns1123_label(namespace)));
        }
    }
    errors
}

/// Checks that a list with `*` has no other element; `what` names the elements in the error text.
fn alone(rule: &Value, key: &str, what: &str, path: &Path) -> Option<Error> {
    let list = texts(rule, key);
    (list.len() > 1 && list.contains(&"*")).then(|| {
        let text = format!("if '*' is present, must not specify other {what}");
        Error::invalid(&path.child(key), get(rule, key).clone(), text)
    })
}

fn verbs(rule: &Value, path: &Path) -> ErrorList {
    let (list, field) = (texts(rule, "verbs"), path.child("verbs"));
    if list.is_empty() {
        return vec![Error::required(&field, "verbs must contain at least one value")];
    }
    if list.contains(&"*") {
        return alone(rule, "verbs", "verbs", path).into_iter().collect();
    }
    if list.iter().all(|verb| VERBS.contains(verb)) {
        return Vec::new();
    }
    vec![Error::not_supported(&field, get(rule, "verbs").clone(), &VERBS)]
}

fn resource_rule(rule: &Value, path: &Path) -> ErrorList {
    let mut errors = verbs(rule, path);
    for (key, one, many) in
        [("apiGroups", "api group", "api groups"), ("resources", "resource", "resources")]
    {
        if items(rule, key).is_empty() {
            let text = format!("resource rules must supply at least one {one}");
            errors.push(Error::required(&path.child(key), text));
        }
        errors.extend(alone(rule, key, many, path));
    }
    let (namespaces, field) = (texts(rule, "namespaces"), path.child("namespaces"));
    if namespaces.is_empty() && !bool_at(rule, "clusterScope") {
        let text = "resource rules that are not cluster scoped must supply at least one namespace";
        errors.push(Error::required(&field, text));
    } else if namespaces.contains(&"*") {
        errors.extend(alone(rule, "namespaces", "namespaces", path));
    } else {
        for (index, name) in namespaces.iter().enumerate() {
            let texts = names::dns1123_label(name).into_iter().map(|text| {
                format!("each member of this list must be '*' or a DNS-1123 label; {text}")
            });
            errors.extend(each(&field.index(index), *name, texts.collect()));
        }
    }
    errors
}

fn path_rule(rule: &Value, path: &Path) -> ErrorList {
    let mut errors = verbs(rule, path);
    let (urls, field) = (texts(rule, "nonResourceURLs"), path.child("nonResourceURLs"));
    if urls.is_empty() {
        errors.push(Error::required(&field, "nonResourceURLs must contain at least one value"));
    } else if urls.contains(&"*") {
        errors.extend(alone(rule, "nonResourceURLs", "non-resource URLs", path));
    } else {
        for (index, text) in urls.iter().enumerate() {
            errors.extend(url(text, &field.index(index)));
        }
    }
    errors
}

/// Validates a non-resource URL: a path, or a path prefix with `*` as its last segment.
fn url(text: &str, field: &Path) -> Option<Error> {
    let why = if text.is_empty() {
        "must not be empty"
    } else if text == "/" {
        return None;
    } else if !text.starts_with('/') {
        "must start with slash"
    } else if text.contains(' ') {
        "must not contain white-space"
    } else if text.contains("//") {
        "must not contain double slash"
    } else if text.contains('*') && !(text.ends_with("/*") && text.matches('*').count() == 1) {
        "wildcard can only do suffix matching"
    } else {
        return None;
    };
    Some(Error::invalid(field, text, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bodies(spec: Value) -> Vec<String> {
        let object = json!({"metadata": {"name": "fs"}, "spec": spec});
        schema(&object).iter().map(|e| format!("{}: {}", e.field, e.body())).collect()
    }

    #[test]
    fn a_level_is_named() {
        assert_eq!(
            bodies(json!({"matchingPrecedence": -1, "distinguisherMethod": {}})),
            [
                "spec.matchingPrecedence: Invalid value: -1: must be a positive value",
                "spec.distinguisherMethod.type: Unsupported value: {\"Type\":\"\"}: supported values: \"ByNamespace\", \"ByUser\"",
                "spec.priorityLevelConfiguration.name: Required value: must reference a priority level",
            ]
        );
    }

    #[test]
    fn rules_say_who_and_what() {
        let spec = |rule: Value| json!({"matchingPrecedence": 2, "priorityLevelConfiguration": {"name": "p"}, "rules": [rule]});
        assert_eq!(
            bodies(spec(json!({}))),
            [
                "spec.rules[0].subjects: Required value: subjects must contain at least one value",
                "spec.rules[0]: Required value: at least one of resourceRules and nonResourceRules has to be non-empty",
            ]
        );
        let subject = json!({"kind": "User", "user": {"name": "*"}, "group": {"name": "g"}});
        assert_eq!(
            bodies(spec(json!({
                "subjects": [subject], "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["x"]}],
            }))),
            [
                "spec.rules[0].subjects[0].group: Forbidden: group is forbidden when subject kind is not 'Group'",
                "spec.rules[0].nonResourceRules[0].nonResourceURLs[0]: Invalid value: \"x\": must start with slash",
            ]
        );
    }
}
