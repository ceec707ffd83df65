//! The parsed form of one schema, with only the keywords that processing of values requires.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value};
use sorting::CollectOrdered as _;

use super::enumeration::Enumeration;
use super::formats::Format;
use super::pattern::Pattern;
use crate::field::{Error, ErrorList, Path};

/// Deepest nesting of a schema; the decoder rejects bodies with deeper nesting earlier.
const DEPTH_MAX: usize = 200;

/// The types that a schema can name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Type {
    Array,
    Boolean,
    Integer,
    Number,
    Object,
    String,
}

impl Type {
    pub(super) fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "array" => Self::Array,
            "boolean" => Self::Boolean,
            "integer" => Self::Integer,
            "number" => Self::Number,
            "object" => Self::Object,
            "string" => Self::String,
            _ => return None,
        })
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Array => "array",
            Self::Boolean => "boolean",
            Self::Integer => "integer",
            Self::Number => "number",
            Self::Object => "object",
            Self::String => "string",
        }
    }
}

/// `additionalProperties`.
#[derive(Debug, Clone)]
pub(crate) enum Additional {
    /// `true` or `false`.
    Any(bool),
    Schema(Arc<Node>),
}

/// `x-kubernetes-list-type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ListKind {
    Atomic,
    Set,
    Map,
}

/// One schema. Schemas in `allOf`, `anyOf`, `oneOf` and `not` are nodes as well.
#[derive(Debug, Clone, Default)]
pub(crate) struct Node {
    pub kind: Option<Type>,
    pub nullable: bool,
    pub default: Option<Value>,
    pub int_or_string: bool,
    pub preserve: bool,
    pub embedded: bool,
    pub list: Option<ListKind>,
    pub list_keys: Box<[Arc<str>]>,
    pub map_atomic: bool,
    pub items: Option<Arc<Node>>,
    pub properties: BTreeMap<Box<str>, Arc<Node>>,
    pub additional: Option<Additional>,
    pub checks: Checks,
    /// `x-kubernetes-validations`.
    pub rules: Box<[RuleText]>,
    /// Whether this schema or a schema below it has rules.
    pub rules_below: bool,
    /// Whether this schema or a schema below it is a list of type set or map.
    pub lists_below: bool,
    /// Whether this schema or a schema below it is an embedded resource.
    pub embedded_below: bool,
}

/// A rule in its source form.
#[derive(Debug, Clone, Default)]
pub(crate) struct RuleText {
    pub rule: Box<str>,
    pub message: Box<str>,
    pub message_expression: Box<str>,
    pub reason: Box<str>,
    pub field_path: Box<str>,
    pub optional_old: bool,
}

impl RuleText {
    fn of(rule: &Value) -> Self {
        let text = |key: &str| rule.get(key).and_then(Value::as_str).unwrap_or_default().into();
        Self {
            rule: text("rule"),
            message: text("message"),
            message_expression: text("messageExpression"),
            reason: text("reason"),
            field_path: text("fieldPath"),
            optional_old: rule.get("optionalOldSelf") == Some(&Value::Bool(true)),
        }
    }
}

/// The constraints on a value other than its structure.
#[derive(Debug, Clone, Default)]
pub(crate) struct Checks {
    pub format: Option<Format>,
    pub maximum: Option<f64>,
    pub exclusive_maximum: bool,
    pub minimum: Option<f64>,
    pub exclusive_minimum: bool,
    pub multiple_of: Option<f64>,
    pub max_length: Option<i64>,
    pub min_length: Option<i64>,
    pub pattern: Option<Pattern>,
    pub max_items: Option<i64>,
    pub min_items: Option<i64>,
    pub unique_items: bool,
    pub max_properties: Option<i64>,
    pub min_properties: Option<i64>,
    pub values: Enumeration,
    pub required: Box<[Box<str>]>,
    pub all_of: Box<[Node]>,
    pub any_of: Box<[Node]>,
    pub one_of: Box<[Node]>,
    pub not: Option<Box<Node>>,
}

impl Node {
    /// The types that a value may have; an empty list allows all types.
    pub(crate) fn types(&self) -> &'static [Type] {
        match self.kind {
            _ if self.int_or_string => &[Type::Integer, Type::String],
            Some(Type::Array) => &[Type::Array],
            Some(Type::Boolean) => &[Type::Boolean],
            Some(Type::Integer) => &[Type::Integer],
            Some(Type::Number) => &[Type::Number],
            Some(Type::Object) => &[Type::Object],
            Some(Type::String) => &[Type::String],
            None => &[],
        }
    }

    /// The schemas of items, properties and additional properties.
    fn below(&self) -> impl Iterator<Item = &Arc<Node>> {
        let more = match &self.additional {
            Some(Additional::Schema(node)) => Some(node),
            _ => None,
        };
        self.properties.values().chain(&self.items).chain(more)
    }

    /// The schema of an object's field: that of its property, or that of additional properties.
    /// `None` when neither is specified.
    pub(crate) fn field(&self, name: &str) -> Option<&Arc<Node>> {
        self.properties.get(name).or(match &self.additional {
            Some(Additional::Schema(node)) => Some(node),
            _ => None,
        })
    }
}

/// Parses `JSONSchemaProps`.
pub(crate) fn parse(schema: &Value) -> Result<Node, ErrorList> {
    let mut reader = Reader { errors: ErrorList::new() };
    let node = reader.node(schema, &Path::default(), DEPTH_MAX);
    if reader.errors.is_empty() { Ok(node) } else { Err(reader.errors) }
}

struct Reader {
    errors: ErrorList,
}

/// Keywords that a schema of a custom resource must not use.
const UNSUPPORTED: [&str; 7] = [
    "id",
    "$schema",
    "$ref",
    "patternProperties",
    "dependencies",
    "additionalItems",
    "definitions",
];

impl Reader {
    fn node(&mut self, schema: &Value, path: &Path, depth: usize) -> Node {
        let Value::Object(map) = schema else {
            self.errors.push(Error::type_invalid(
                path,
                schema.clone(),
                "a schema must be an object",
            ));
            return Node::default();
        };
        let Some(depth) = depth.checked_sub(1) else {
            let text = format!("schemas may be nested {DEPTH_MAX} deep at most");
            self.errors.push(Error::forbidden(path, text));
            return Node::default();
        };
        for key in UNSUPPORTED.into_iter().filter(|key| !vacant(map.get(*key))) {
            let text = format!("{key} is not supported");
            self.errors.push(Error::forbidden(&path.child(key), text));
        }
        let flag = |key: &str| map.get(key).and_then(Value::as_bool).unwrap_or_default();
        let text = |key: &str| map.get(key).and_then(Value::as_str).unwrap_or_default();
        let kind = Type::parse(text("type"));
        if kind.is_none() && !text("type").is_empty() {
            let types = ["array", "boolean", "integer", "number", "object", "string"];
            self.errors.push(Error::not_supported(&path.child("type"), text("type"), &types));
        }
        let int_or_string = flag("x-kubernetes-int-or-string");
        let keys = list_of(map, "x-kubernetes-list-map-keys");
        let mut node = Node {
            kind,
            nullable: flag("nullable"),
            default: map.get("default").filter(|value| !value.is_null()).cloned(),
            int_or_string,
            preserve: flag("x-kubernetes-preserve-unknown-fields"),
            embedded: flag("x-kubernetes-embedded-resource"),
            list: match text("x-kubernetes-list-type") {
                "atomic" => Some(ListKind::Atomic),
                "set" => Some(ListKind::Set),
                "map" => Some(ListKind::Map),
                _ => None,
            },
            list_keys: keys.iter().filter_map(Value::as_str).map(Arc::from).collect(),
            map_atomic: text("x-kubernetes-map-type") == "atomic",
            items: self.items(map, path, depth),
            properties: self.properties(map, path, depth),
            additional: self.additional(map, path, depth),
            checks: self.checks(map, kind.filter(|_| !int_or_string), path, depth),
            rules: list_of(map, "x-kubernetes-validations").iter().map(RuleText::of).collect(),
            rules_below: false,
            lists_below: false,
            embedded_below: false,
        };
        node.lists_below = matches!(node.list, Some(ListKind::Set | ListKind::Map))
            || node.below().any(|below| below.lists_below);
        node.rules_below = !node.rules.is_empty() || node.below().any(|below| below.rules_below);
        node.embedded_below = node.embedded || node.below().any(|below| below.embedded_below);
        node
    }

    fn items(&mut self, map: &Map<String, Value>, path: &Path, depth: usize) -> Option<Arc<Node>> {
        let path = path.child("items");
        match map.get("items")? {
            Value::Null => None,
            Value::Array(_) => {
                let text = "items must be a schema object and not an array";
                self.errors.push(Error::forbidden(&path, text));
                None
            }
            items => Some(Arc::new(self.node(items, &path, depth))),
        }
    }

    fn properties(
        &mut self,
        map: &Map<String, Value>,
        path: &Path,
        depth: usize,
    ) -> BTreeMap<Box<str>, Arc<Node>> {
        let path = path.child("properties");
        let all = map.get("properties").and_then(Value::as_object).into_iter().flatten();
        all.map(|(name, schema)| {
            let node = self.node(schema, &path.key(name), depth);
            (Box::from(name.as_str()), Arc::new(node))
        })
        .collect_map()
    }

    fn additional(
        &mut self,
        map: &Map<String, Value>,
        path: &Path,
        depth: usize,
    ) -> Option<Additional> {
        match map.get("additionalProperties")? {
            Value::Null => None,
            Value::Bool(allowed) => Some(Additional::Any(*allowed)),
            schema => {
                let node = self.node(schema, &path.child("additionalProperties"), depth);
                Some(Additional::Schema(Arc::new(node)))
            }
        }
    }

    fn checks(
        &mut self,
        map: &Map<String, Value>,
        kind: Option<Type>,
        path: &Path,
        depth: usize,
    ) -> Checks {
        let number = |key: &str| map.get(key).and_then(Value::as_f64);
        let integer = |key: &str| map.get(key).and_then(Value::as_i64);
        let flag = |key: &str| map.get(key).and_then(Value::as_bool).unwrap_or_default();
        let text = |key: &str| map.get(key).and_then(Value::as_str).unwrap_or_default();
        Checks {
            format: Format::of(text("format"), kind),
            maximum: number("maximum"),
            exclusive_maximum: flag("exclusiveMaximum"),
            minimum: number("minimum"),
            exclusive_minimum: flag("exclusiveMinimum"),
            multiple_of: number("multipleOf"),
            max_length: integer("maxLength"),
            min_length: integer("minLength"),
            pattern: Some(text("pattern")).filter(|p| !p.is_empty()).map(Pattern::new),
            max_items: integer("maxItems"),
            min_items: integer("minItems"),
            unique_items: flag("uniqueItems"),
            max_properties: integer("maxProperties"),
            min_properties: integer("minProperties"),
            values: Enumeration::new(list_of(map, "enum")),
            required: list_of(map, "required")
                .iter()
                .filter_map(Value::as_str)
                .map(Box::from)
                .collect(),
            all_of: self.nested(map, "allOf", path, depth),
            any_of: self.nested(map, "anyOf", path, depth),
            one_of: self.nested(map, "oneOf", path, depth),
            not: map
                .get("not")
                .filter(|not| !not.is_null())
                .map(|not| Box::new(self.node(not, &path.child("not"), depth))),
        }
    }

    fn nested(
        &mut self,
        map: &Map<String, Value>,
        key: &str,
        path: &Path,
        depth: usize,
    ) -> Box<[Node]> {
        let path = path.child(key);
        let list = list_of(map, key).iter().enumerate();
        list.map(|(index, schema)| self.node(schema, &path.index(index), depth)).collect()
    }
}

fn list_of<'a>(map: &'a Map<String, Value>, key: &str) -> &'a [Value] {
    map.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn vacant(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(Value::Object(map)) => map.is_empty(),
        Some(_) => false,
    }
}
