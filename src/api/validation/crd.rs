//! Validation of CustomResourceDefinitions: names, versions and the fields of each version.

mod columns;
mod options;
mod paths;
mod rules;
mod schema;
mod structural;
mod warnings;

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use self::columns::{of_column, scale, selectable};
use self::options::Options;
pub use self::warnings::warnings;
use super::checks::{repeated, texts};
use super::{immutable, names, one_of};
use crate::field::{Error, ErrorList, Path};
use crate::value::{at, bool_at, get, has, is_condition_true, items, str_at, str_in};

/// Maximum number of errors about storage versions that are reported for one definition.
const STORAGE_ERRORS_MAX: usize = 100;
const APPROVAL: &str = "api-approved.kubernetes.io";
/// Maximum depth to which a schema is validated; the decoder rejects deeper bodies.
const DEPTH_MAX: usize = 200;
/// Maximum length in bytes of the warning about a deprecated version.
const WARNING_MAX: usize = 256;

/// Validates a new definition.
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

/// Validates an update of a definition. Group and plural name are immutable; once the definition is
/// established, scope and kind are too.
pub fn validate_change(object: &Value, old: &Value) -> ErrorList {
    let mut errors = definition(object, old);
    let (path, spec, was) = (Path::new("spec"), get(object, "spec"), get(old, "spec"));
    let established = is_condition_true(old, "Established");
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

/// Validates an update of the status.
pub fn validate_subresource(subresource: &str, object: &Value, _: &Value) -> ErrorList {
    if subresource == "status" { accepted(object) } else { ErrorList::new() }
}

fn accepted(object: &Value) -> ErrorList {
    let path = Path::new("status").child("acceptedNames");
    of_names(at(object, &["status", "acceptedNames"]), &path)
}

fn definition(object: &Value, old: &Value) -> ErrorList {
    let options = Options::of(object, old);
    let path = Path::new("spec");
    let mut errors = spec(get(object, "spec"), get(old, "spec"), &path, &options);
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

fn spec(spec: &Value, old: &Value, path: &Path, options: &Options) -> ErrorList {
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
    let shared = Shared::of(items(spec, "versions"));
    let old = &old_versions(old);
    errors.extend(versions(spec, old, &shared, path, options));
    let (own, field) = (get(spec, "names"), path.child("names"));
    for key in ["plural", "singular", "kind", "listKind"] {
        if str_at(own, key).is_empty() {
            errors.push(Error::required(&field.child(key), ""));
        }
    }
    errors.extend(of_names(own, &field));
    if let Some(version) = items(spec, "versions").first() {
        let place = SchemaPosition { spec, old, version, shared: true };
        errors.extend(of_version(&place, &shared, path, options));
    }
    let webhook = str_in(spec, &["conversion", "strategy"]);
    if has(spec, "conversion") && webhook != "None" && bool_at(spec, "preserveUnknownFields") {
        let field = path.child("conversion").child("strategy");
        let text = "must be None if spec.preserveUnknownFields is true";
        errors.push(Error::invalid(&field, webhook, text));
    }
    let known = options.review_versions;
    errors.extend(conversion(known, get(spec, "conversion"), &path.child("conversion")));
    errors
}

/// Which fields are equal in all versions. Upstream's internal type has such fields once, next to
/// `versions` in the spec, and its errors have their paths there.
#[derive(Debug)]
struct Shared {
    schema: bool,
    parts: bool,
    columns: bool,
    fields: bool,
}

impl Shared {
    fn of(list: &[Value]) -> Self {
        let same = |key: &str| {
            list.windows(2).all(|w| w.first().map(|v| get(v, key)) == w.last().map(|v| get(v, key)))
        };
        Self {
            schema: same("schema"),
            parts: same("subresources"),
            columns: same("additionalPrinterColumns"),
            fields: same("selectableFields"),
        }
    }
}

/// The versions of a definition by name; if several have the same name, the first.
type OldVersions<'a> = HashMap<&'a str, &'a Value>;

fn old_versions(spec: &Value) -> OldVersions<'_> {
    // In reverse order, the first of several versions with the same name is inserted last.
    items(spec, "versions").iter().rev().map(|version| (str_at(version, "name"), version)).collect()
}

/// A version with its own fields, or, if `shared`, with the fields that all versions share.
struct SchemaPosition<'a> {
    spec: &'a Value,
    /// The versions of the old definition.
    old: &'a OldVersions<'a>,
    version: &'a Value,
    shared: bool,
}

/// Validates the fields that only this version has or, with `place.shared`, those that all versions
/// share.
fn of_version(
    place: &SchemaPosition<'_>,
    shared: &Shared,
    path: &Path,
    options: &Options,
) -> ErrorList {
    let version = place.version;
    let before = place.old.get(str_at(version, "name")).copied().unwrap_or(&Value::Null);
    let mut errors = ErrorList::new();
    let told = |same: bool| same == place.shared;
    if told(shared.schema) {
        let status = |version: &Value| get(get(version, "subresources"), "status").is_object();
        let status = if place.shared {
            items(place.spec, "versions").iter().any(status)
        } else {
            status(version)
        };
        let name = if place.shared { "validation" } else { "schema" };
        let field = path.child(name).child("openAPIV3Schema");
        let schema = at(version, &["schema", "openAPIV3Schema"]);
        let old = at(before, &["schema", "openAPIV3Schema"]);
        errors.extend(schema::root(schema, old, status, &field, options));
    }
    if told(shared.parts) {
        let field = path.child("subresources");
        errors.extend(scale(at(version, &["subresources", "scale"]), &field));
    }
    if told(shared.columns) {
        let field = path.child("additionalPrinterColumns");
        for (index, column) in items(version, "additionalPrinterColumns").iter().enumerate() {
            errors.extend(of_column(column, &field.index(index)));
        }
    }
    if told(shared.fields) {
        let before = get(before, "selectableFields");
        let field = path.child("selectableFields");
        // Upstream validates the shared fields separately: a shared field does not see a schema
        // that is not shared, and vice versa.
        let schema = if told(shared.schema) {
            at(version, &["schema", "openAPIV3Schema"])
        } else {
            &Value::Null
        };
        // A shared `validation` without a schema counts as an empty schema.
        let none = serde_json::json!({});
        let around = place.shared && told(shared.schema) && get(version, "schema").is_object();
        let schema = if around && schema.is_null() { &none } else { schema };
        errors.extend(selectable(schema, get(version, "selectableFields"), before, &field));
    }
    errors
}

/// Validates the list of versions and the fields that each version does not share with the others.
fn versions(
    spec: &Value,
    old: &OldVersions<'_>,
    shared: &Shared,
    path: &Path,
    options: &Options,
) -> ErrorList {
    let (list, field) = (items(spec, "versions"), path.child("versions"));
    let mut errors = ErrorList::new();
    let preserves = bool_at(spec, "preserveUnknownFields");
    for (index, version) in list.iter().enumerate() {
        let lacks = !has(get(version, "schema"), "openAPIV3Schema");
        let place = field.index(index).child("schema").child("openAPIV3Schema");
        if lacks && options.schemas {
            errors.push(Error::required(&place, ""));
        } else if lacks && !preserves && bool_at(version, "served") {
            errors.push(Error::required(&place, "because otherwise all fields are pruned"));
        }
    }
    let defaults = |version: &Value| {
        let schema = at(version, &["schema", "openAPIV3Schema"]);
        options::any(schema, &|schema| has(schema, "default"), DEPTH_MAX)
    };
    if preserves && list.iter().any(defaults) {
        let text = "must be false in order to use defaults in the schema";
        errors.push(Error::invalid(&path.child("preserveUnknownFields"), true, text));
    }
    for (index, version) in list.iter().enumerate() {
        let (name, place) = (str_at(version, "name"), field.index(index));
        let bad = names::dns1035_label(name);
        if !bad.is_empty() {
            errors.push(Error::invalid(&place.child("name"), name, bad.join(",")));
        }
        errors.extend(deprecation(version, &place.child("deprecationWarning")));
        let own = SchemaPosition { spec, old, version, shared: false };
        errors.extend(of_version(&own, shared, &place, options));
    }
    let name = |index: usize| list.get(index).map_or("", |v| str_at(v, "name"));
    let flags = [shared.schema, shared.parts, shared.columns, shared.fields];
    let invalid = |text: &str| match get(spec, "versions") {
        Value::Array(list) if !list.is_empty() => {
            Error::omitted(&field, text).printed(&shown_versions(spec, flags))
        }
        other => Error::invalid(&field, other.clone(), text),
    };
    if repeated((0..list.len()).map(name)).any() {
        errors.push(invalid("must contain unique version names"));
    }
    if list.iter().filter(|version| bool_at(version, "storage")).count() != 1 {
        errors.push(invalid("must have exactly one version marked as storage version"));
    }
    errors
}

/// Validates the warning that clients of a deprecated version receive.
fn deprecation(version: &Value, path: &Path) -> ErrorList {
    let Some(warning) = get(version, "deprecationWarning").as_str() else {
        return ErrorList::new();
    };
    let error = |text: &str| Error::invalid(path, warning, text);
    if !bool_at(version, "deprecated") {
        return vec![error("can only be set for deprecated versions")];
    }
    let mut errors = ErrorList::new();
    if warning.len() > WARNING_MAX {
        errors.push(error("must be <= 256 characters long"));
    }
    if warning.is_empty() {
        errors.push(error("must not be an empty string"));
    }
    let unprintable = |c: char| c.is_control() || c.is_whitespace() && c != ' ';
    if let Some((index, _)) = warning.char_indices().find(|(_, c)| unprintable(*c)) {
        errors.push(error(&format!(
            "must only contain printable UTF-8 characters; non-printable character found at index {index}"
        )));
    }
    errors
}

/// Prints the versions with the field names of Go; fields that all versions share are null, as in
/// upstream's internal type.
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
    let again = repeated(versions.iter().map(|version| str_at(version, "name")));
    for (index, version) in versions.iter().enumerate() {
        let name = str_at(version, "name");
        // Upstream removes a stored name at the first version that has it.
        let named_before = again.at(index);
        // Each error contains the whole list, so the number of errors is bounded.
        if errors.len() < STORAGE_ERRORS_MAX
            && bool_at(version, "storage")
            && (named_before || !stored.contains(&name))
        {
            let text = format!("must have the storage version {name}");
            errors.push(Error::invalid(&field, shown.clone(), text));
        }
    }
    let named: HashSet<&str> = versions.iter().map(|version| str_at(version, "name")).collect();
    for (index, name) in stored.iter().enumerate() {
        if !named.contains(name) {
            let text = format!(
                "missing from spec.versions; {name} was previously a storage version, and must remain in spec.versions until a storage migration \
                 ensures no data remains persisted in {name} and removes {name} from status.storedVersions"
            );
            errors.push(Error::invalid(&field.index(index), *name, text));
        }
    }
    errors
}

/// Checks that a definition in a group of Kubernetes has the annotation of its API approval.
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

fn conversion(known: bool, conversion: &Value, path: &Path) -> ErrorList {
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
    let again = repeated(versions.iter());
    for (index, version) in versions.iter().enumerate() {
        let field = at_versions.index(index);
        if again.at(index) {
            errors.push(Error::invalid(&field, *version, "duplicate version"));
        } else {
            errors.extend(super::each(&field, *version, names::dns1035_label(version)));
        }
    }
    if known && !versions.iter().any(|version| matches!(*version, "v1" | "v1beta1")) {
        let shown = get(webhook, "conversionReviewVersions").clone();
        let text = "must include at least one of v1, v1beta1";
        errors.push(Error::invalid(&at_versions, shown, text));
    }
    errors
}

#[cfg(test)]
mod tests;
