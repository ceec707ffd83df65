//! Custom resource definitions: names, versions and what each version says of its objects.

mod schema;

use serde_json::Value;

use super::checks::texts;
use super::{immutable, names, one_of};
use crate::field::{Error, ErrorList, Path};
use crate::value::{at, bool_at, get, has, items, str_at, str_in};

const COLUMN_TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
const COLUMN_FORMATS: [&str; 8] =
    ["byte", "date", "date-time", "double", "float", "int32", "int64", "password"];
const APPROVAL: &str = "api-approved.kubernetes.io";
/// Most fields of a version that lists can be selected by.
const SELECTABLE_MAX: usize = 8;

/// A new definition.
pub fn validate(object: &Value) -> ErrorList {
    let names = at(object, &["spec", "names"]);
    let wanted = format!("{}.{}", str_at(names, "plural"), str_in(object, &["spec", "group"]));
    let name = str_in(object, &["metadata", "name"]);
    let mut errors = ErrorList::new();
    if !name.is_empty() && name != wanted {
        let text = "must be spec.names.plural+\".\"+spec.group";
        errors.push(Error::invalid(&Path::new("metadata").child("name"), name, text));
    }
    errors.extend(definition(object, &Value::Null));
    errors
}

/// A changed definition; what its objects are stored under stays.
pub fn validate_change(object: &Value, old: &Value) -> ErrorList {
    let mut errors = definition(object, old);
    let (path, spec, was) = (Path::new("spec"), get(object, "spec"), get(old, "spec"));
    let established = items(get(old, "status"), "conditions")
        .iter()
        .any(|c| str_at(c, "type") == "Established" && str_at(c, "status") == "True");
    let names = path.child("names");
    let kept = |key: &str, field: &Path| {
        immutable(at(spec, &["names", key]), at(was, &["names", key]), field)
    };
    if established {
        errors.extend(immutable(get(spec, "scope"), get(was, "scope"), &path.child("scope")));
        errors.extend(kept("kind", &names.child("kind")));
    }
    errors.extend(immutable(get(spec, "group"), get(was, "group"), &path.child("group")));
    errors.extend(kept("plural", &names.child("plural")));
    errors
}

/// A write to the status.
pub fn validate_subresource(subresource: &str, object: &Value, _: &Value) -> ErrorList {
    if subresource == "status" { accepted(object) } else { ErrorList::new() }
}

fn accepted(object: &Value) -> ErrorList {
    let path = Path::new("status").child("acceptedNames");
    of_names(at(object, &["status", "acceptedNames"]), &path)
}

fn definition(object: &Value, old: &Value) -> ErrorList {
    let mut errors = spec(get(object, "spec"), &Path::new("spec"));
    errors.extend(accepted(object));
    errors.extend(stored_versions(object));
    errors.extend(approval(object, old));
    if bool_at(get(object, "spec"), "preserveUnknownFields")
        && !bool_at(get(old, "spec"), "preserveUnknownFields")
    {
        let field = Path::new("spec").child("preserveUnknownFields");
        let text = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead";
        errors.push(Error::invalid(&field, true, text));
    }
    errors
}

fn spec(spec: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let (group, field) = (str_at(spec, "group"), path.child("group"));
    let bad = names::dns1123_subdomain(group);
    if group.is_empty() {
        errors.push(Error::required(&field, ""));
    } else if !bad.is_empty() {
        errors.push(Error::invalid(&field, group, bad.join(",")));
    } else if !group.contains('.') {
        errors.push(Error::invalid(&field, group, "should be a domain with at least one dot"));
    }
    match str_at(spec, "scope") {
        "" => errors.push(Error::required(&path.child("scope"), "")),
        scope => errors.extend(one_of(scope, &["Cluster", "Namespaced"], &path.child("scope"))),
    }
    errors.extend(versions(spec, path));
    let (own, field) = (get(spec, "names"), path.child("names"));
    for key in ["plural", "singular", "kind", "listKind"] {
        if str_at(own, key).is_empty() {
            errors.push(Error::required(&field.child(key), ""));
        }
    }
    errors.extend(of_names(own, &field));
    errors.extend(conversion(get(spec, "conversion"), &path.child("conversion")));
    errors
}

/// Versions, each with its schema. Upstream tells what all versions have in common as if it stood beside them.
fn versions(spec: &Value, path: &Path) -> ErrorList {
    let (list, field) = (items(spec, "versions"), path.child("versions"));
    let mut errors = ErrorList::new();
    for (index, version) in list.iter().enumerate() {
        if !has(get(version, "schema"), "openAPIV3Schema") {
            let place = field.index(index).child("schema").child("openAPIV3Schema");
            errors.push(Error::required(&place, ""));
        }
    }
    for (index, version) in list.iter().enumerate() {
        let (name, place) = (str_at(version, "name"), field.index(index));
        let bad = names::dns1035_label(name);
        if !bad.is_empty() {
            errors.push(Error::invalid(&place.child("name"), name, bad.join(",")));
        }
    }
    let shared = |key: &str| {
        list.windows(2).all(|w| w.first().map(|v| get(v, key)) == w.last().map(|v| get(v, key)))
    };
    let (same_schema, same_fields) = (shared("schema"), shared("selectableFields"));
    let (same_parts, same_columns) = (shared("subresources"), shared("additionalPrinterColumns"));
    for (index, version) in list.iter().enumerate() {
        let place = |same: bool| if same { path.clone() } else { field.index(index) };
        let told = |same: bool| !same || index == 0;
        if told(same_schema) {
            let name = if same_schema { "validation" } else { "schema" };
            let place = place(same_schema).child(name).child("openAPIV3Schema");
            errors.extend(schema::root(at(version, &["schema", "openAPIV3Schema"]), &place));
        }
        if told(same_parts) {
            let place = place(same_parts).child("subresources");
            errors.extend(scale(at(version, &["subresources", "scale"]), &place));
        }
        if told(same_columns) {
            let place = place(same_columns).child("additionalPrinterColumns");
            for (at, column) in items(version, "additionalPrinterColumns").iter().enumerate() {
                errors.extend(of_column(column, &place.index(at)));
            }
        }
        if told(same_fields) {
            errors.extend(selectable(version, same_fields, &place(same_fields)));
        }
    }
    let name = |index: usize| list.get(index).map_or("", |v| str_at(v, "name"));
    let shown = || shown_versions(spec, [same_schema, same_parts, same_columns, same_fields]);
    let invalid = |text: &str| match get(spec, "versions") {
        Value::Array(list) if !list.is_empty() => Error::omitted(&field, text).printed(&shown()),
        other => Error::invalid(&field, other.clone(), text),
    };
    if (0..list.len()).any(|index| (0..index).any(|before| name(before) == name(index))) {
        errors.push(invalid("must contain unique version names"));
    }
    if list.iter().filter(|version| bool_at(version, "storage")).count() != 1 {
        errors.push(invalid("must have exactly one version marked as storage version"));
    }
    errors
}

/// The versions with Go's names; what all have in common stands elsewhere and is null.
fn shown_versions(spec: &Value, shared: [bool; 4]) -> String {
    let keys = ["schema", "subresources", "additionalPrinterColumns", "selectableFields"];
    let names = ["Schema", "Subresources", "AdditionalPrinterColumns", "SelectableFields"];
    let one = |version: &Value| {
        let mut text = format!(
            "{{\"Name\":{},\"Served\":{},\"Storage\":{},\"Deprecated\":{},\"DeprecationWarning\":{}",
            Value::from(str_at(version, "name")),
            bool_at(version, "served"),
            bool_at(version, "storage"),
            bool_at(version, "deprecated"),
            get(version, "deprecationWarning")
        );
        for ((key, name), shared) in keys.iter().zip(names).zip(shared) {
            let value = if shared { &Value::Null } else { get(version, key) };
            text.push_str(&format!(",\"{name}\":{value}"));
        }
        text.push('}');
        text
    };
    let list: Vec<String> = items(spec, "versions").iter().map(one).collect();
    format!("[{}]", list.join(","))
}

fn of_names(own: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    for (key, mixed) in [("plural", false), ("singular", false), ("kind", true), ("listKind", true)]
    {
        let name = str_at(own, key);
        let bad = names::dns1035_label(&if mixed { name.to_lowercase() } else { name.to_owned() });
        if !name.is_empty() && !bad.is_empty() {
            let intro =
                if mixed { "may have mixed case, but should otherwise match: " } else { "" };
            errors.push(Error::invalid(
                &path.child(key),
                name,
                format!("{intro}{}", bad.join(",")),
            ));
        }
    }
    for key in ["shortNames", "categories"] {
        for (index, name) in texts(own, key).into_iter().enumerate() {
            let bad = names::dns1035_label(name);
            if !bad.is_empty() {
                errors.push(Error::invalid(&path.child(key).index(index), name, bad.join(",")));
            }
        }
        let (kind, list) = (str_at(own, "kind"), str_at(own, "listKind"));
        if key == "shortNames" && !kind.is_empty() && kind == list {
            let text = "kind and listKind may not be the same";
            errors.push(Error::invalid(&path.child("listKind"), list, text));
        }
    }
    errors
}

fn stored_versions(object: &Value) -> ErrorList {
    let (status, field) = (get(object, "status"), Path::new("status").child("storedVersions"));
    let stored = texts(status, "storedVersions");
    let shown = get(status, "storedVersions").clone();
    if stored.is_empty() {
        return vec![Error::invalid(&field, shown, "must have at least one stored version")];
    }
    let mut errors = ErrorList::new();
    let versions = items(get(object, "spec"), "versions");
    for version in versions.iter().filter(|version| bool_at(version, "storage")) {
        let name = str_at(version, "name");
        if !stored.contains(&name) {
            let text = format!("must have the storage version {name}");
            errors.push(Error::invalid(&field, shown.clone(), text));
        }
    }
    for (index, name) in stored.iter().enumerate() {
        if !versions.iter().any(|version| str_at(version, "name") == *name) {
            let text = format!(
                "missing from spec.versions; {name} was previously a storage version, and must remain in spec.versions until a storage migration \
                 ensures no data remains persisted in {name} and removes {name} from status.storedVersions"
            );
            errors.push(Error::invalid(&field.index(index), *name, text));
        }
    }
    errors
}

/// Groups of Kubernetes' own need a note of their approval.
fn approval(object: &Value, old: &Value) -> Option<Error> {
    let group = str_in(object, &["spec", "group"]);
    let protected = ["k8s.io", "kubernetes.io"].iter().any(|domain| {
        group.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    });
    let note = |object| str_in(object, &["metadata", "annotations", APPROVAL]);
    let state = |note: &str| match note {
        "" => 0,
        note if note.starts_with("unapproved") => 1,
        note if note
            .split_once("://")
            .is_some_and(|(s, rest)| !s.is_empty() && !rest.is_empty()) =>
        {
            2
        }
        _ => 3,
    };
    let given = note(object);
    if !protected || old.is_object() && state(note(old)) == state(given) {
        return None;
    }
    let field = Path::new("metadata").child("annotations").key(APPROVAL);
    const SEE: &str = "see https://github.com/kubernetes/enhancements/pull/1111";
    match state(given) {
        0 => Some(Error::required(
            &field,
            format!("protected groups must have approval annotation \"{APPROVAL}\", {SEE}"),
        )),
        3 => Some(Error::invalid(
            &field,
            given,
            format!(
                "protected groups must have approval annotation \"{APPROVAL}\" with either a URL or a reason starting with \"unapproved\", {SEE}"
            ),
        )),
        _ => None,
    }
}

fn simple_path(path: &str, field: &Path) -> Option<Error> {
    let text = "must be a simple json path starting with .";
    (!path.starts_with('.')).then(|| Error::invalid(field, path, text))
}

fn scale(scale: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    if !scale.is_object() {
        return errors;
    }
    for (key, under, text, required) in [
        ("specReplicasPath", [".spec.", ".spec."], "should be a json path under .spec", true),
        (
            "statusReplicasPath",
            [".status.", ".status."],
            "should be a json path under .status",
            true,
        ),
        (
            "labelSelectorPath",
            [".spec.", ".status."],
            "should be a json path under either .spec or .status",
            false,
        ),
    ] {
        let (value, field) = (str_at(scale, key), path.child(&format!("scale.{key}")));
        if value.is_empty() {
            errors.extend(required.then(|| Error::required(&field, "")));
        } else if let Some(error) = simple_path(value, &field) {
            errors.push(error);
        } else if !under.iter().any(|start| value.starts_with(start)) {
            errors.push(Error::invalid(&field, value, text));
        }
    }
    errors
}

fn of_column(column: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    if str_at(column, "name").is_empty() {
        errors.push(Error::required(&path.child("name"), ""));
    }
    let (kind, text) =
        (str_at(column, "type"), format!("must be one of {}", COLUMN_TYPES.join(",")));
    if kind.is_empty() {
        errors.push(Error::required(&path.child("type"), text));
    } else if !COLUMN_TYPES.contains(&kind) {
        errors.push(Error::invalid(&path.child("type"), kind, text));
    }
    let format = str_at(column, "format");
    if !format.is_empty() && !COLUMN_FORMATS.contains(&format) {
        let text = format!("must be one of {}", COLUMN_FORMATS.join(","));
        errors.push(Error::invalid(&path.child("format"), format, text));
    }
    match str_at(column, "jsonPath") {
        "" => errors.push(Error::required(&path.child("JSONPath"), "")),
        value => errors.extend(simple_path(value, &path.child("JSONPath"))),
    }
    errors
}

fn selectable(version: &Value, shared: bool, path: &Path) -> ErrorList {
    let (list, field) = (items(version, "selectableFields"), path.child("selectableFields"));
    let root = at(version, &["schema", "openAPIV3Schema"]);
    if list.is_empty() {
        return ErrorList::new();
    }
    if !root.is_object() {
        let text = if shared {
            "may only be set when validations.schema is included"
        } else {
            "may only be set when `version.schema.openAPIV3Schema` is not included"
        };
        return vec![Error::invalid(&field, "", text)];
    }
    let mut errors = ErrorList::new();
    let mut seen: Vec<&str> = Vec::new();
    for (index, one) in list.iter().enumerate() {
        let (path, field) = (str_at(one, "jsonPath"), field.index(index).child("jsonPath"));
        if path.is_empty() {
            errors.push(Error::required(&field, ""));
            continue;
        }
        let steps = path.strip_prefix('.').unwrap_or_default().split('.');
        let found = steps.fold(root, |schema, step| at(schema, &["properties", step]));
        if !found.is_object() {
            let text = "is an invalid path: does not refer to a valid field";
            errors.push(Error::invalid(&field, path, text));
            continue;
        }
        if path.split('.').nth(1) == Some("metadata") {
            errors.push(Error::invalid(&field, path, "must not point to fields in metadata"));
        }
        if !matches!(str_at(found, "type"), "string" | "boolean" | "integer") {
            let text = "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.";
            errors.push(Error::invalid(&field, path, text));
        }
        if seen.contains(&path) {
            errors.push(Error::duplicate(&field, path));
        } else {
            seen.push(path);
        }
    }
    if seen.len() > SELECTABLE_MAX {
        errors.push(Error::too_many(&field, seen.len(), SELECTABLE_MAX));
    }
    errors
}

fn conversion(conversion: &Value, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    if !conversion.is_object() {
        return errors;
    }
    let (strategy, webhook) = (str_at(conversion, "strategy"), get(conversion, "webhook"));
    let (client, versions) =
        (get(webhook, "clientConfig"), texts(webhook, "conversionReviewVersions"));
    match strategy {
        "" => errors.push(Error::required(&path.child("strategy"), "")),
        _ => errors.extend(one_of(strategy, &["None", "Webhook"], &path.child("strategy"))),
    }
    let (at_client, at_versions) =
        (path.child("webhookClientConfig"), path.child("conversionReviewVersions"));
    if strategy != "Webhook" {
        let text = "should not be set when strategy is not set to Webhook";
        errors.extend(client.is_object().then(|| Error::forbidden(&at_client, text)));
        errors.extend((!versions.is_empty()).then(|| Error::forbidden(&at_versions, text)));
        return errors;
    }
    let (url, service) = (get(client, "url").as_str(), get(client, "service"));
    match (client.is_object(), url, service.is_object()) {
        (false, ..) => {
            errors.push(Error::required(&at_client, "required when strategy is set to Webhook"));
        }
        (true, Some(url), false) => {
            errors.extend(super::admission::webhook_url(url, &at_client.child("url")));
        }
        (true, None, true) => {
            let field = at_client.child("service");
            errors.extend(super::admission::webhook_service(service, false, &field));
        }
        _ => errors.push(Error::required(&at_client, "exactly one of url or service is required")),
    }
    if versions.is_empty() {
        errors.push(Error::required(&at_versions, ""));
        return errors;
    }
    for (index, version) in versions.iter().enumerate() {
        let field = at_versions.index(index);
        if versions.iter().take(index).any(|before| before == version) {
            errors.push(Error::invalid(&field, *version, "duplicate version"));
        } else {
            errors.extend(super::each(&field, *version, names::dns1035_label(version)));
        }
    }
    if !versions.iter().any(|version| matches!(*version, "v1" | "v1beta1")) {
        let shown = get(webhook, "conversionReviewVersions").clone();
        let text = "must include at least one of v1, v1beta1";
        errors.push(Error::invalid(&at_versions, shown, text));
    }
    errors
}

#[cfg(test)]
mod tests;
