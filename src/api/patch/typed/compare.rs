//! What differs between two values, as sets of removed, modified and added fields.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::{Form, Kind, Ty, form, item_element, of_element, of_member};
use crate::fields::{Element, Set};
use crate::schema::{ListType, Schema, Shape};

/// Three disjoint sets; all empty when the values are equal.
#[derive(Debug, Default)]
pub(in crate::patch) struct Comparison {
    /// In the left value alone.
    pub removed: Set,
    /// In both, and different.
    pub modified: Set,
    /// In the right value alone.
    pub added: Set,
}

impl Comparison {
    /// Nothing differs.
    pub(in crate::patch) fn is_same(&self) -> bool {
        self.removed.is_empty() && self.modified.is_empty() && self.added.is_empty()
    }

    /// Fields that were changed or added.
    pub(in crate::patch) fn touched(&self) -> Set {
        self.modified.clone().union(self.added.clone())
    }

    /// The same without these fields and what is below them.
    pub(in crate::patch) fn without(self, fields: Option<&Set>) -> Self {
        let Some(fields) = fields else { return self };
        Self {
            removed: self.removed.recursive_difference(fields),
            modified: self.modified.recursive_difference(fields),
            added: self.added.recursive_difference(fields),
        }
    }

    fn put(&mut self, element: Element, inner: Difference) {
        let Difference { own, below } = inner;
        self.removed.put(element.clone(), own == Own::Removed, below.removed);
        self.modified.put(element.clone(), own == Own::Modified, below.modified);
        self.added.put(element, own == Own::Added, below.added);
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
            // Without a schema a value may turn from a map into something else: the field is modified and its members come or go.
            let mut difference = leaf(Own::Modified);
            if let Some(map) = left.and_then(Value::as_object) {
                members(schema, ty.kind, Some(map), None, &mut difference.below);
            }
            if let Some(map) = right.and_then(Value::as_object) {
                members(schema, ty.kind, None, Some(map), &mut difference.below);
            }
            difference
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
    let mut below = Comparison::default();
    members(schema, kind, l, r, &mut below);
    Difference { own, below }
}

fn members(schema: &Schema, kind: Kind<'_>, l: Members<'_>, r: Members<'_>, out: &mut Comparison) {
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
    let mut below = Comparison::default();
    if let Kind::List(shape, list) = kind {
        items(schema, shape, list, l, r, &mut below);
    }
    Difference { own, below }
}

fn indexed<'a>(
    schema: &Schema,
    shape: &Shape,
    list: &ListType,
    items: Items<'a>,
) -> Vec<(Element, &'a Value)> {
    items
        .into_iter()
        .flatten()
        .filter_map(|item| Some((item_element(schema, shape, list, item).ok()?, item)))
        .collect()
}

fn items(
    schema: &Schema,
    shape: &Shape,
    list: &ListType,
    l: Items<'_>,
    r: Items<'_>,
    out: &mut Comparison,
) {
    let (left, right) = (indexed(schema, shape, list, l), indexed(schema, shape, list, r));
    let mut seen: BTreeSet<usize> = BTreeSet::new();
    for (i, (element, _)) in left.iter().chain(&right).enumerate() {
        if !seen.insert(i) {
            continue;
        }
        let of = |side: &[(Element, &'_ Value)],
                  offset: usize,
                  seen: &mut BTreeSet<usize>|
         -> Vec<usize> {
            let found: Vec<usize> = side
                .iter()
                .enumerate()
                .filter(|(_, (e, _))| e == element)
                .map(|(j, _)| j)
                .collect();
            seen.extend(found.iter().map(|j| j + offset));
            found
        };
        let ls = of(&left, 0, &mut seen);
        let rs = of(&right, left.len(), &mut seen);
        let at = |side: &[(Element, &'_ Value)], j: &usize| side.get(*j).map(|(_, v)| (*v).clone());
        let values = |side: &[(Element, &'_ Value)], js: &[usize]| {
            js.iter().filter_map(|j| at(side, j)).collect::<Vec<_>>()
        };
        let ty = of_element(schema, shape);
        let difference = match (ls.as_slice(), rs.as_slice()) {
            ([] | [_], [] | [_]) => {
                let a = ls.first().and_then(|j| left.get(*j)).map(|(_, v)| *v);
                let b = rs.first().and_then(|j| right.get(*j)).map(|(_, v)| *v);
                if a == b { leaf(Own::Same) } else { value(schema, ty, a, b) }
            }
            ([_, _, ..], [_, _, ..]) => leaf(if values(&left, &ls) == values(&right, &rs) {
                Own::Same
            } else {
                Own::Modified
            }),
            // Duplicates are owned as one; when they end or begin, the single item is compared by its fields.
            ([_, _, ..], single) => {
                let b = single.first().and_then(|j| right.get(*j)).map(|(_, v)| *v);
                let below = b.map(|b| value(schema, ty, None, Some(b))).map(|d| (d.own, d.below));
                let mut difference = leaf(Own::Removed);
                if let Some((own, below)) = below {
                    difference.below = below;
                    if own == Own::Added {
                        out.added.put(element.clone(), true, Set::new());
                    }
                }
                difference
            }
            (single, _) => {
                let a = single.first().and_then(|j| left.get(*j)).map(|(_, v)| *v);
                let mut difference = leaf(Own::Added);
                if let Some(a) = a {
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
            out.put(element.clone(), difference);
        }
    }
}
