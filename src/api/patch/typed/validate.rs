//! Validation of a value against its schema, and the set of all its fields.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::{Form, Kind, Scalar, Ty, form, item_element, of_element, of_member};
use crate::fields::{Element, Set, SetBuilder};
use crate::patch::gotext;
use crate::schema::{ListType, Schema, Shape};

/// The errors of a value in upstream's order and form: a single one without a prefix, several after
/// `errors:`.
pub(in crate::patch) fn validate(
    schema: &Schema,
    ty: Ty<'_>,
    value: &Value,
    duplicates: bool,
) -> Result<(), InvalidObject> {
    let mut walker = Walker { schema, duplicates, path: String::new(), errors: Vec::new() };
    walker.value(ty, value);
    if walker.errors.is_empty() { Ok(()) } else { Err(InvalidObject(walker.errors)) }
}

/// The errors of an object that does not match its schema, with their paths; never empty. The texts
/// are those of structured-merge-diff's `typed.ValidationErrors`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", list(.0))]
pub struct InvalidObject(Vec<String>);

fn list(errors: &[String]) -> String {
    match errors {
        [one] => one.clone(),
        many => format!("errors:\n  {}", many.join("\n  ")),
    }
}

struct Walker<'a> {
    schema: &'a Schema,
    duplicates: bool,
    path: String,
    errors: Vec<String>,
}

impl Walker<'_> {
    fn complain(&mut self, text: &str) {
        let text =
            if self.path.is_empty() { text.to_owned() } else { format!("{}: {text}", self.path) };
        self.errors.push(text);
    }

    fn value(&mut self, ty: Ty<'_>, value: &Value) {
        let shown = || gotext::v(value);
        match (ty.kind, value) {
            (_, Value::Null) => {}
            (Kind::Struct(_) | Kind::Map(_), Value::Object(map))
            | (Kind::Deduced, Value::Object(map)) => self.members(ty.kind, map),
            (Kind::Struct(_) | Kind::Map(_), _) => {
                self.complain(&format!("expected map, got &{{{}}}", shown()))
            }
            (Kind::List(element, list), Value::Array(items)) => self.items(element, list, items),
            (Kind::List(..), _) => self.complain(&format!("expected list, got &{{{}}}", shown())),
            (Kind::Scalar(scalar), _) => self.scalar(scalar, value),
            (Kind::Deduced, _) => {}
        }
    }

    fn scalar(&mut self, scalar: Scalar, value: &Value) {
        match (scalar, value) {
            (Scalar::String | Scalar::Any, Value::String(_))
            | (Scalar::Number | Scalar::Any, Value::Number(_)) => {}
            (Scalar::Bool | Scalar::Any, Value::Bool(_)) => {}
            (Scalar::String, _) => self.complain(&format!(
                "expected string, got &value.valueUnstructured{{Value:{}}}",
                gotext::sharp(value)
            )),
            (Scalar::Number, _) => self.complain(&format!(
                "expected numeric (int or float), got {}",
                gotext::type_name(value)
            )),
            (Scalar::Bool, _) => {
                self.complain(&format!("expected boolean, got &{{{}}}", gotext::v(value)))
            }
            (Scalar::Any, _) => {
                self.complain(&format!("expected any scalar, got &{{{}}}", gotext::v(value)))
            }
        }
    }

    fn below(&mut self, element: &str, visit: impl FnOnce(&mut Self)) {
        let len = self.path.len();
        self.path.push_str(element);
        visit(self);
        self.path.truncate(len);
    }

    fn members(&mut self, kind: Kind<'_>, map: &Map<String, Value>) {
        let schema = self.schema;
        for (name, value) in map {
            let element = [".", name].concat();
            let Some((ty, _)) = of_member(schema, kind, name) else {
                self.below(&element, |w| w.complain("field not declared in schema"));
                // Upstream stops at the first unknown field of a map.
                return;
            };
            self.below(&element, |w| w.value(ty, value));
        }
    }

    fn items(&mut self, shape: &Shape, list: &ListType, items: &[Value]) {
        let schema = self.schema;
        let mut seen: HashSet<Element> = HashSet::new();
        for (i, item) in items.iter().enumerate() {
            let shown = if *list == ListType::Atomic {
                format!("[{i}]")
            } else {
                match item_element(schema, shape, list, item) {
                    Err(text) => return self.complain(&format!("element {i}: {text}")),
                    Ok(element) => {
                        let shown = element.show();
                        if !self.duplicates && !seen.insert(element) {
                            self.complain(&format!("duplicate entries for key {shown}"));
                        }
                        shown
                    }
                }
            };
            self.below(&shown, |w| w.value(of_element(schema, shape), item));
        }
    }
}

/// The set of every leaf field and list item of a value.
pub(in crate::patch) fn field_set(schema: &Schema, ty: Ty<'_>, value: &Value) -> Set {
    members_of(schema, ty, value).1
}

/// Whether the value itself is a leaf that a manager owns, and the set of the fields below it.
fn members_of(schema: &Schema, ty: Ty<'_>, value: &Value) -> (bool, Set) {
    if ty.atomic {
        return (true, Set::new());
    }
    let mut set = SetBuilder::default();
    match (form(ty.kind, value), ty.kind) {
        (Form::Leaf, _) => return (true, Set::new()),
        (Form::Map(Some(map)), kind) => {
            for (name, value) in map {
                let Some((child, declared)) = of_member(schema, kind, name) else { continue };
                let (leaf, below) = members_of(schema, child, value);
                let empty = value.is_null() || value.as_object().is_some_and(Map::is_empty);
                set.put(Element::field(name), leaf || empty || !declared, below);
            }
        }
        (Form::List(Some(items)), Kind::List(shape, list)) => {
            let elements: Vec<Option<Element>> =
                items.iter().map(|item| item_element(schema, shape, list, item).ok()).collect();
            let mut occurrences: HashMap<&Element, usize> = HashMap::new();
            for element in elements.iter().flatten() {
                *occurrences.entry(element).or_default() += 1;
            }
            for (item, element) in items.iter().zip(&elements) {
                let Some(element) = element else { continue };
                let below = if occurrences.get(element).is_some_and(|count| *count > 1) {
                    Set::new()
                } else {
                    members_of(schema, of_element(schema, shape), item).1
                };
                set.put(element.clone(), true, below);
            }
        }
        _ => {}
    }
    (false, set.build())
}
