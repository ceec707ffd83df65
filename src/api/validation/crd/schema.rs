//! Validation of the schemas of custom resources (`ValidateCustomResourceDefinitionOpenAPISchema`).

use std::collections::HashSet;

use serde_json::Value;

use super::options::Options;
use super::rules::{Context, Rules, Step, Total};
use super::{DEPTH_MAX, paths, structural};
use crate::field::{Error, ErrorList, Path};
use crate::validation::checks::repeated;
use crate::value::{bool_at, entries, get, has, is_empty, items, str_at};

const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];
const PRESERVE: &str = "x-kubernetes-preserve-unknown-fields";
const EMBEDDED: &str = "x-kubernetes-embedded-resource";
const LIST_TYPE: &str = "x-kubernetes-list-type";
const LIST_KEYS: &str = "x-kubernetes-list-map-keys";
const MAP_TYPE: &str = "x-kubernetes-map-type";
const RULES: &str = "x-kubernetes-validations";
const REASONS: [&str; 4] =
    ["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];

/// Fields that the root schema may have if the status subresource is enabled, by their names in Go.
const AT_ROOT: &str = "[Description Type Format Title Maximum ExclusiveMaximum Minimum ExclusiveMinimum MaxLength MinLength Pattern MaxItems MinItems UniqueItems MultipleOf Required Items Properties ExternalDocs Example XPreserveUnknownFields XValidations]";
/// Fields that the root schema may not have if the status subresource is enabled, in the order of
/// Go.
const NOT_AT_ROOT: [&str; 21] = [
    "id",
    "$schema",
    "$ref",
    "nullable",
    "default",
    "enum",
    "maxProperties",
    "minProperties",
    "allOf",
    "oneOf",
    "anyOf",
    "not",
    "additionalProperties",
    "patternProperties",
    "dependencies",
    "additionalItems",
    "definitions",
    EMBEDDED,
    "x-kubernetes-int-or-string",
    LIST_TYPE,
    MAP_TYPE,
];

/// Validates the schema of a version. `status` is whether the status subresource is enabled, `old`
/// is the schema of the old version.
pub(super) fn root(
    schema: &Value,
    old: &Value,
    status: bool,
    path: &Path,
    options: &Options,
) -> ErrorList {
    let mut errors = ErrorList::new();
    if !schema.is_object() {
        return errors;
    }
    if status {
        errors.extend(beside_status(schema, path));
    }
    if bool_at(schema, "nullable") {
        let text = "nullable cannot be true at the root";
        errors.push(Error::forbidden(&path.child("nullable"), text));
    }
    let mut unreadable = None;
    // The parsed schema with which rules are compiled; set only if the schema is structural and its
    // defaults are valid.
    let mut node = None;
    if options.structural {
        unreadable = structural::unreadable(schema);
        if unreadable.is_none() {
            let mut found = structural::errors(schema, path);
            if found.is_empty() {
                found = crate::custom::validate_defaults(schema, path, options.pruned_defaults);
            }
            if found.is_empty() {
                node = crate::custom::parse(schema).ok();
            }
            errors.extend(found);
        }
    }
    let context = node.as_ref().filter(|node| node.rules_below).map(Context::root);
    let place = SchemaPosition { meta: false, defaults: None, uncorrelated: None, context };
    let (errors_found, expressions) = (ErrorList::new(), ErrorList::new());
    let (accepted, total) = (schema == old, Total::default());
    let mut walk = Walk { options, accepted, errors: errors_found, expressions, total };
    walk.schema(schema, path, place, true, DEPTH_MAX);
    errors.extend(walk.errors);
    errors.extend(walk.expressions);
    if let Some(why) = unreadable.filter(|_| errors.is_empty()) {
        errors.push(Error::invalid(path, "", why));
    }
    errors.extend(walk.total.errors(path));
    errors
}

/// Checks the root schema if the status subresource is enabled: the status is validated by its own
/// part of the schema alone, so the root may only have fields that are not lost then.
fn beside_status(schema: &Value, path: &Path) -> Option<Error> {
    let kind = str_at(schema, "type");
    if !matches!(kind, "" | "object") {
        let text = "only \"object\" is allowed as the type at the root of the schema if the status subresource is enabled";
        return Some(Error::invalid(&path.child("type"), kind, text));
    }
    let told = NOT_AT_ROOT.iter().any(|key| match get(schema, key) {
        Value::Bool(false) => *key == "additionalProperties",
        Value::Object(_) => true,
        _ => !is_empty(schema, key),
    });
    let text = format!(
        "only {AT_ROOT} fields are allowed at the root of the schema if the status subresource is enabled"
    );
    told.then(|| Error::invalid(path, schema.clone(), text))
}

/// The position of a schema and the conditions that apply there.
#[derive(Clone)]
struct SchemaPosition<'a> {
    /// Within `apiVersion`, `kind` or `metadata` of a resource.
    meta: bool,
    /// Why defaults are forbidden, if they are.
    defaults: Option<String>,
    /// The outermost schema whose parts cannot be correlated with an old object.
    uncorrelated: Option<Path>,
    /// The context for rules; `None` if there are no rules, and within `not`, `allOf`, `anyOf` and
    /// `oneOf`.
    context: Option<Context<'a>>,
}

impl SchemaPosition<'_> {
    fn below(&self, step: Step<'_>) -> Self {
        let context = self.context.as_ref().and_then(|context| context.below(step));
        Self { context, ..self.clone() }
    }

    /// Marks the parts of the schema at `path` as not correlatable with an old object.
    fn uncorrelated(mut self, path: &Path) -> Self {
        self.uncorrelated.get_or_insert_with(|| path.clone());
        self
    }
}

struct Walk<'a> {
    options: &'a Options,
    /// The schema is unchanged.
    accepted: bool,
    errors: ErrorList,
    /// Errors of rules, which follow all others.
    expressions: ErrorList,
    total: Total,
}

impl Walk<'_> {
    fn schema(
        &mut self,
        schema: &Value,
        path: &Path,
        place: SchemaPosition<'_>,
        root: bool,
        depth: usize,
    ) {
        let Some(depth) = depth.checked_sub(1) else { return };
        if !schema.is_object() {
            return;
        }
        let before = self.errors.len();
        self.plain(schema, path, &place);
        let (more, at_more) =
            (get(schema, "additionalProperties"), path.child("additionalProperties"));
        if !more.is_null() && more != &Value::Bool(true) && !is_empty(schema, "properties") {
            let text = "additionalProperties and properties are mutual exclusive";
            self.errors.push(Error::forbidden(&at_more, text));
        }
        let mut below = place.below(Step::Values);
        if place.meta {
            below.defaults =
                Some("inside additionalProperties applying to object metadata".to_owned());
        }
        self.schema(more, &at_more, below, false, depth);
        for (name, property) in entries(schema, "properties") {
            let mut below = place.below(Step::Property(name));
            if !matches!(str_at(schema, MAP_TYPE), "" | "granular" | "atomic") {
                below = below.uncorrelated(path);
            }
            let meta = matches!(name.as_str(), "metadata" | "kind" | "apiVersion");
            if meta && (root || bool_at(schema, EMBEDDED)) {
                below.meta = true;
                if root {
                    below.defaults = Some(format!("in top-level {name}"));
                }
            }
            self.schema(property, &path.child("properties").key(name), below, false, depth);
        }
        let nested = SchemaPosition { context: None, ..place.clone() };
        self.schema(get(schema, "not"), &path.child("not"), nested.clone(), false, depth);
        for key in ["allOf", "oneOf", "anyOf"] {
            for (index, one) in items(schema, key).iter().enumerate() {
                self.schema(one, &path.child(key).index(index), nested.clone(), false, depth);
            }
        }
        let mut below = place.below(Step::Items);
        if str_at(schema, LIST_TYPE) != "map" {
            below = below.uncorrelated(path);
        }
        self.schema(get(schema, "items"), &path.child("items"), below, false, depth);
        self.extensions(schema, path);
        self.rules(schema, path);
        // Rules are compiled only if the schema itself has no errors.
        if self.errors.len() == before
            && !is_empty(schema, RULES)
            && let Some(context) = &place.context
        {
            let (accepted, uncorrelated) = (self.accepted, place.uncorrelated.as_ref());
            let rules = Rules { schema, path, accepted, uncorrelated };
            let found = rules.errors(context, &mut self.total);
            self.expressions.extend(found);
        }
    }

    /// Reports unsupported fields and types of a schema.
    fn plain(&mut self, schema: &Value, path: &Path, place: &SchemaPosition<'_>) {
        let kind = str_at(schema, "type");
        if self.options.property_types && !kind.is_empty() && !TYPES.contains(&kind) {
            self.errors.push(Error::not_supported(&path.child("type"), kind, &TYPES));
        }
        if let (true, Some(reason)) = (has(schema, "default"), &place.defaults) {
            let text = format!("must not be set {reason}");
            self.errors.push(Error::forbidden(&path.child("default"), text));
        }
        let mut forbid = |key: &str, told: bool, text: &str| {
            if told {
                self.errors.push(Error::forbidden(&path.child(key), text));
            }
        };
        forbid("id", !is_empty(schema, "id"), "id is not supported");
        let unsupported = |key: &str| format!("{key} is not supported");
        for (key, told) in [
            ("additionalItems", has(schema, "additionalItems")),
            ("patternProperties", !is_empty(schema, "patternProperties")),
            ("definitions", !is_empty(schema, "definitions")),
            ("dependencies", has(schema, "dependencies")),
            ("$ref", has(schema, "$ref")),
        ] {
            forbid(key, told, &unsupported(key));
        }
        let text = "type cannot be set to null, use nullable as an alternative";
        forbid("type", kind == "null", text);
        let text = "items must be a schema object and not an array";
        forbid("items", get(schema, "items").as_array().is_some_and(|list| !list.is_empty()), text);
        let text = "must not be used inside of resource meta";
        forbid(EMBEDDED, place.meta && bool_at(schema, EMBEDDED), text);
        let text =
            "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
        forbid("uniqueItems", bool_at(schema, "uniqueItems"), text);
    }

    /// Validates list types, map types and the other `x-kubernetes` extensions.
    fn extensions(&mut self, schema: &Value, path: &Path) {
        let (kind, at_type) = (str_at(schema, "type"), path.child("type"));
        if get(schema, PRESERVE) == &Value::Bool(false) {
            let text = "must be true or undefined";
            self.errors.push(Error::invalid(&path.child(PRESERVE), false, text));
        }
        let wrong_type = |wanted: &str, key: &str| {
            let text = format!("must be {wanted} if {key} is specified");
            if kind.is_empty() {
                Error::required(&at_type, text)
            } else {
                Error::invalid(&at_type, kind, text)
            }
        };
        let map = str_at(schema, MAP_TYPE);
        if has(schema, MAP_TYPE) {
            if kind != "object" {
                self.errors.push(wrong_type("object", MAP_TYPE));
            }
            if !matches!(map, "atomic" | "granular") {
                let field = path.child(MAP_TYPE);
                self.errors.push(Error::not_supported(&field, map, &["atomic", "granular"]));
            }
        }
        let (list, keys) = (str_at(schema, LIST_TYPE), items(schema, LIST_KEYS));
        let (item, at_list) = (get(schema, "items"), path.child(LIST_TYPE));
        if has(schema, LIST_TYPE) {
            if kind != "array" {
                self.errors.push(wrong_type("array", LIST_TYPE));
            } else if self.options.atomic_sets && list == "set" {
                self.errors.extend(set_item(item, &path.child("items")));
            }
            if !matches!(list, "atomic" | "set" | "map") {
                let all = ["atomic", "set", "map"];
                self.errors.push(Error::not_supported(&at_list, list, &all));
            }
        }
        if !keys.is_empty() && list != "map" {
            let text = "must be map if x-kubernetes-list-map-keys is non-empty";
            self.errors.push(if has(schema, LIST_TYPE) {
                Error::invalid(&at_list, list, text)
            } else {
                Error::required(&at_list, text)
            });
        }
        if list == "map" {
            self.map(schema, path);
        }
        if self.options.map_keys && item.is_object() && matches!(list, "set" | "map") {
            self.errors.extend(whole_items(item, list, keys, &path.child("items")));
        }
    }

    /// Checks that a list of type map has items with scalar keys.
    fn map(&mut self, schema: &Value, path: &Path) {
        let (item, at_items) = (get(schema, "items"), path.child("items"));
        let (keys, at_keys) = (items(schema, LIST_KEYS), path.child(LIST_KEYS));
        let errors = &mut self.errors;
        if keys.is_empty() {
            let text = "must not be empty if x-kubernetes-list-type is map";
            errors.push(Error::required(&at_keys, text));
        }
        if item.is_null() {
            let text = "must have a schema if x-kubernetes-list-type is map";
            errors.push(Error::required(&at_items, text));
        } else if !item.is_object() {
            let text = "must only have a single schema if x-kubernetes-list-type is map";
            errors.push(Error::invalid(&at_items, item.clone(), text));
        } else if str_at(item, "type") != "object" {
            let text = "must be object if parent array's x-kubernetes-list-type is map";
            errors.push(Error::invalid(&at_items.child("type"), str_at(item, "type"), text));
        } else {
            let whole = || get(schema, LIST_KEYS).clone();
            let again = repeated(keys.iter());
            for (index, key) in keys.iter().enumerate() {
                let name = key.as_str().unwrap_or_default();
                let property = get(get(item, "properties"), name);
                if !property.is_object() {
                    let text = "entries must all be names of item properties";
                    errors.push(Error::invalid(&at_keys, whole(), text));
                } else if matches!(str_at(property, "type"), "array" | "object") {
                    let field = at_items.child("properties").key(name).child("type");
                    let text =
                        "must be a scalar type if parent array's x-kubernetes-list-type is map";
                    errors.push(Error::invalid(&field, "object", text));
                }
                if again.at(index) {
                    let text = "must not contain duplicate entries";
                    errors.push(Error::invalid(&at_keys, whole(), text));
                }
            }
        }
    }

    /// Validates the fields of rules without compiling their expressions.
    fn rules(&mut self, schema: &Value, path: &Path) {
        let lines = |text: &str| text.contains(['\n', '\r']);
        for (index, rule) in items(schema, RULES).iter().enumerate() {
            let field = path.child(RULES).index(index);
            let (source, message) = (str_at(rule, "rule").trim(), str_at(rule, "message"));
            let at_message = field.child("message");
            let errors = &mut self.errors;
            if source.is_empty() {
                errors.push(Error::required(&field.child("rule"), "rule is not specified"));
            } else if !message.is_empty() && message.trim().is_empty() {
                errors.push(Error::invalid(&at_message, message, "must be non-empty if specified"));
            } else if lines(message.trim()) {
                errors.push(Error::invalid(&at_message, message, "must not contain line breaks"));
            } else if lines(source) && message.trim().is_empty() {
                let text = "message must be specified if rule contains line breaks";
                errors.push(Error::required(&at_message, text));
            }
            let expression = str_at(rule, "messageExpression");
            if !expression.is_empty() && expression.trim().is_empty() {
                let text = "messageExpression must be non-empty if specified";
                errors.push(Error::required(&field.child("messageExpression"), text));
            }
            let reason = str_at(rule, "reason");
            if has(rule, "reason") && !REASONS.contains(&reason) {
                errors.push(Error::not_supported(&field.child("reason"), reason, &REASONS));
            }
            let (at_path, target) = (field.child("fieldPath"), str_at(rule, "fieldPath"));
            if !target.is_empty() {
                if target.trim().is_empty() {
                    errors.push(Error::invalid(&at_path, target, "must be non-empty if specified"));
                }
                if lines(target) {
                    errors.push(Error::invalid(&at_path, target, "must not contain line breaks"));
                }
                if structural::unreadable(schema).is_none()
                    && paths::find(target, schema, true).is_err()
                {
                    errors.push(Error::invalid(&at_path, target, "must be a valid path"));
                }
            }
        }
    }
}

/// Checks that an item of a set is atomic: items are compared as a whole.
fn set_item(item: &Value, path: &Path) -> Option<Error> {
    const TEXT: &str = "must be atomic as item of a list with x-kubernetes-list-type=set";
    // Upstream prints the item's list type in both cases.
    let shown = get(item, LIST_TYPE).clone();
    match str_at(item, "type") {
        "array" if has(item, LIST_TYPE) && str_at(item, LIST_TYPE) != "atomic" => {
            Some(Error::invalid(&path.child(LIST_TYPE), shown, TEXT))
        }
        "object" if str_at(item, MAP_TYPE) != "atomic" => {
            Some(Error::invalid(&path.child(MAP_TYPE), shown, TEXT))
        }
        _ => None,
    }
}

/// Checks that items of sets and maps are not nullable and that the keys of map items are required
/// or have a default.
pub(super) fn whole_items(item: &Value, list: &str, keys: &[Value], path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    if bool_at(item, "nullable") {
        let text = format!("cannot be nullable when x-kubernetes-list-type is {list}");
        errors.push(Error::forbidden(&path.child("nullable"), text));
    }
    let required: HashSet<&str> = if list == "map" {
        items(item, "required").iter().filter_map(Value::as_str).collect()
    } else {
        HashSet::new()
    };
    for key in keys.iter().filter(|_| list == "map") {
        let name = key.as_str().unwrap_or_default();
        let property = get(get(item, "properties"), name);
        if !property.is_object() {
            continue;
        }
        let field = path.child("properties").key(name);
        if !required.contains(name) && !has(property, "default") {
            let text = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
            errors.push(Error::required(&field.child("default"), text));
        }
        if bool_at(property, "nullable") {
            let text = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
            errors.push(Error::forbidden(&field.child("nullable"), text));
        }
    }
    errors
}

#[cfg(test)]
mod tests;
