//! The differences between two values, as sets of removed, modified and added fields.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::{Form, Kind, Ty, form, item_element, of_element, of_member};
use crate::fields::{Element, Set, SetBuilder};
use crate::schema::{ListType, Schema, Shape};

/// Three disjoint sets; all are empty when the values are equal.
#[derive(Debug, Default)]
pub(in crate::patch) struct Comparison {
    /// Fields of the left value only.
    pub removed: Set,
    /// Fields of both values with different contents.
    pub modified: Set,
    /// Fields of the right value only.
    pub added: Set,
}

impl Comparison {
    /// Whether the values are equal.
    pub(in crate::patch) fn is_same(&self) -> bool {
        self.removed.is_empty() && self.modified.is_empty() && self.added.is_empty()
    }

    /// Fields that were modified or added.
    pub(in crate::patch) fn touched(&self) -> Set {
        self.modified.clone().union(self.added.clone())
    }

    /// Removes these fields, and the fields below them, from the comparison.
    pub(in crate::patch) fn without(self, fields: Option<&Set>) -> Self {
        let Some(fields) = fields else { return self };
        Self {
            removed: self.removed.recursive_difference(fields),
            modified: self.modified.recursive_difference(fields),
            added: self.added.recursive_difference(fields),
        }
    }
}

/// The differences of the members or items of one value, in any order.
#[derive(Default)]
struct ComparisonBuilder {
    removed: SetBuilder,
    modified: SetBuilder,
    added: SetBuilder,
}

impl ComparisonBuilder {
    fn put(&mut self, element: Element, inner: Difference) {
        let Difference { own, below } = inner;
        self.removed.put(element.clone(), own == Own::Removed, below.removed);
        self.modified.put(element.clone(), own == Own::Modified, below.modified);
        self.added.put(element, own == Own::Added, below.added);
    }

    fn build(self) -> Comparison {
        Comparison {
            removed: self.removed.build(),
            modified: self.modified.build(),
            added: self.added.build(),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Own {
    Same,
    Removed,
    Modified,
    Added,
}

struct Difference {
    own: Own,
    below: Comparison,
}

/// Compares two objects of one type.
pub(in crate::patch) fn compare(
    schema: &Schema,
    ty: Ty<'_>,
    left: &Value,
    right: &Value,
) -> Comparison {
    value(schema, ty, Some(left), Some(right)).below
}

fn leaf(own: Own) -> Difference {
    Difference { own, below: Comparison::default() }
}

fn leaf_of(left: Option<&Value>, right: Option<&Value>) -> Difference {
    leaf(presence(left, right).unwrap_or(if left == right { Own::Same } else { Own::Modified }))
}

fn presence(left: Option<&Value>, right: Option<&Value>) -> Option<Own> {
    match (left, right) {
        (None, _) => Some(Own::Added),
        (_, None) => Some(Own::Removed),
        _ => None,
    }
}

fn value(schema: &Schema, ty: Ty<'_>, left: Option<&Value>, right: Option<&Value>) -> Difference {
    if ty.atomic || matches!(ty.kind, Kind::Scalar(_)) {
        return leaf_of(left, right);
    }
    let (l, r) = (left.map(|v| form(ty.kind, v)), right.map(|v| form(ty.kind, v)));
    let own = presence(left, right).unwrap_or(Own::Same);
    match (l, r) {
        (Some(Form::Map(l)), Some(Form::Map(r))) => maps(schema, ty.kind, l, r, own, left, right),
        (Some(Form::Map(l)), None) => maps(schema, ty.kind, l, None, own, left, right),
        (None, Some(Form::Map(r))) => maps(schema, ty.kind, None, r, own, left, right),
        (Some(Form::List(l)), Some(Form::List(r))) => {
            lists(schema, ty.kind, l, r, own, left, right)
        }
        (Some(Form::List(l)), None) => lists(schema, ty.kind, l, None, own, left, right),
        (None, Some(Form::List(r))) => lists(schema, ty.kind, None, r, own, left, right),
        (None | Some(Form::Leaf), None | Some(Form::Leaf)) => leaf_of(left, right),
        _ => {
            // Without a schema, a value can change from a map to another form: the field is
            // modified, and its members are removed or added.
            let mut below = ComparisonBuilder::default();
            if let Some(map) = left.and_then(Value::as_object) {
                members(schema, ty.kind, Some(map), None, &mut below);
            }
            if let Some(map) = right.and_then(Value::as_object) {
                members(schema, ty.kind, None, Some(map), &mut below);
            }
            Difference { own: Own::Modified, below: below.build() }
        }
    }
}

type Members<'a> = Option<&'a Map<String, Value>>;

fn maps(
    schema: &Schema,
    kind: Kind<'_>,
    l: Members<'_>,
    r: Members<'_>,
    own: Own,
    left: Option<&Value>,
    right: Option<&Value>,
) -> Difference {
    if l.is_none_or(Map::is_empty) && r.is_none_or(Map::is_empty) {
        return leaf_of(left, right);
    }
    let mut below = ComparisonBuilder::default();
    members(schema, kind, l, r, &mut below);
    Difference { own, below: below.build() }
}

fn members(
    schema: &Schema,
    kind: Kind<'_>,
    l: Members<'_>,
    r: Members<'_>,
    out: &mut ComparisonBuilder,
) {
    let mut one = |name: &str, left: Option<&Value>, right: Option<&Value>| {
        if left == right {
            return;
        }
        let Some((ty, _)) = of_member(schema, kind, name) else { return };
        let difference = value(schema, ty, left, right);
        if difference.own != Own::Same || !difference.below.is_same() {
            out.put(Element::field(name), difference);
        }
    };
    for (name, left) in l.into_iter().flatten() {
        one(name, Some(left), r.and_then(|r| r.get(name)));
    }
    for (name, right) in r.into_iter().flatten() {
        if l.is_none_or(|l| !l.contains_key(name)) {
            one(name, None, Some(right));
        }
    }
}

type Items<'a> = Option<&'a Vec<Value>>;

fn lists(
    schema: &Schema,
    kind: Kind<'_>,
    l: Items<'_>,
    r: Items<'_>,
    own: Own,
    left: Option<&Value>,
    right: Option<&Value>,
) -> Difference {
    if l.is_none_or(Vec::is_empty) && r.is_none_or(Vec::is_empty) {
        return leaf_of(left, right);
    }
    let mut below = ComparisonBuilder::default();
    if let Kind::List(shape, list) = kind {
        items(schema, shape, list, l, r, &mut below);
    }
    Difference { own, below: below.build() }
}

/// The items of both sides with the same path element: usually one of each, several in case of
/// duplicates.
#[derive(Default)]
struct ItemsOfElement<'a> {
    left: Vec<&'a Value>,
    right: Vec<&'a Value>,
}

/// Groups items by their path element. Clients choose the number of items, so the lookup is by key.
fn by_element<'a>(
    schema: &Schema,
    shape: &Shape,
    list: &ListType,
    l: Items<'a>,
    r: Items<'a>,
) -> HashMap<Element, ItemsOfElement<'a>> {
    let mut found: HashMap<Element, ItemsOfElement<'a>> = HashMap::new();
    let element = |item| item_element(schema, shape, list, item).ok();
    for item in l.into_iter().flatten() {
        if let Some(element) = element(item) {
            found.entry(element).or_default().left.push(item);
        }
    }
    for item in r.into_iter().flatten() {
        if let Some(element) = element(item) {
            found.entry(element).or_default().right.push(item);
        }
    }
    found
}

fn items(
    schema: &Schema,
    shape: &Shape,
    list: &ListType,
    l: Items<'_>,
    r: Items<'_>,
    out: &mut ComparisonBuilder,
) {
    let ty = of_element(schema, shape);
    for (element, ItemsOfElement { left, right }) in by_element(schema, shape, list, l, r) {
        let difference = match (left.as_slice(), right.as_slice()) {
            ([] | [_], [] | [_]) => {
                let (a, b) = (left.first().copied(), right.first().copied());
                if a == b { leaf(Own::Same) } else { value(schema, ty, a, b) }
            }
            ([_, _, ..], [_, _, ..]) => leaf(if left == right { Own::Same } else { Own::Modified }),
            // Duplicate items are owned together. When only one side has duplicates, the fields of
            // the other side's single item are compared as well.
            ([_, _, ..], single) => {
                let mut difference = leaf(Own::Removed);
                if let [b] = single {
                    let inner = value(schema, ty, None, Some(b));
                    difference.below = inner.below;
                    if inner.own == Own::Added {
                        out.added.put(element.clone(), true, Set::new());
                    }
                }
                difference
            }
            (single, _) => {
                let mut difference = leaf(Own::Added);
                if let [a] = single {
                    let inner = value(schema, ty, Some(a), None);
                    difference.below = inner.below;
                    if inner.own == Own::Removed {
                        out.removed.put(element.clone(), true, Set::new());
                    }
                }
                difference
            }
        };
        if difference.own != Own::Same || !difference.below.is_same() {
            out.put(element, difference);
        }
    }
}
