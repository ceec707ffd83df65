//! Merges an applied configuration into a live object.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::{Form, Kind, Ty, form, item_element, of_element, of_member};
use crate::fields::Element;
use crate::schema::{ListType, Schema, Shape};

/// Merges all fields of the applied value into the live value; no field is removed.
pub(in crate::patch) fn merge(schema: &Schema, ty: Ty<'_>, live: &Value, applied: &Value) -> Value {
    both(schema, ty, Some(live), Some(applied)).unwrap_or(Value::Null)
}

fn both(
    schema: &Schema,
    ty: Ty<'_>,
    live: Option<&Value>,
    applied: Option<&Value>,
) -> Option<Value> {
    let keep = || applied.or(live).cloned();
    let Some(applied_value) = applied else { return keep() };
    if ty.atomic || live.is_none() {
        return keep();
    }
    match (live.map(|v| form(ty.kind, v)), form(ty.kind, applied_value)) {
        (Some(Form::Map(l)), Form::Map(a)) => {
            let (l, a) = (l.filter(|m| !m.is_empty()), a.filter(|m| !m.is_empty()));
            if l.is_none() && a.is_none() {
                return keep();
            }
            Some(Value::Object(maps(schema, ty.kind, l, a)))
        }
        (Some(Form::List(l)), Form::List(a)) => {
            let (l, a) = (
                l.map(Vec::as_slice).unwrap_or_default(),
                a.map(Vec::as_slice).unwrap_or_default(),
            );
            match ty.kind {
                Kind::List(shape, list) if !(l.is_empty() && a.is_empty()) => {
                    Some(Value::Array(lists(schema, shape, list, l, a)))
                }
                _ => keep(),
            }
        }
        _ => keep(),
    }
}

fn maps(
    schema: &Schema,
    kind: Kind<'_>,
    live: Option<&Map<String, Value>>,
    applied: Option<&Map<String, Value>>,
) -> Map<String, Value> {
    let mut out = Map::new();
    for (name, value) in live.into_iter().flatten() {
        let other = applied.and_then(|a| a.get(name));
        let merged = match of_member(schema, kind, name) {
            Some((ty, _)) => both(schema, ty, Some(value), other),
            None => other.or(Some(value)).cloned(),
        };
        out.extend(merged.map(|v| (name.clone(), v)));
    }
    for (name, value) in applied.into_iter().flatten() {
        if live.is_none_or(|l| !l.contains_key(name)) {
            out.insert(name.clone(), value.clone());
        }
    }
    out
}

/// Merges two lists. The items have the live order, except where the applied list has another
/// order.
fn lists(
    schema: &Schema,
    shape: &Shape,
    list: &ListType,
    live: &[Value],
    applied: &[Value],
) -> Vec<Value> {
    let ty = of_element(schema, shape);
    let index = |items: &'_ [Value]| -> Vec<Option<Element>> {
        items.iter().map(|i| item_element(schema, shape, list, i).ok()).collect()
    };
    let (lefts, rights) = (index(live), index(applied));
    let rights_by_element: HashSet<&Option<Element>> = rights.iter().collect();
    let in_right = |e: &Option<Element>| e.is_some() && rights_by_element.contains(e);
    // A live item with duplicates is not merged: the applied item replaces it.
    let mut live_by_element: HashMap<&Option<Element>, Option<&Value>> = HashMap::new();
    for (element, item) in lefts.iter().zip(live) {
        live_by_element.entry(element).and_modify(|item| *item = None).or_insert(Some(item));
    }
    let live_of = |e: &Option<Element>| live_by_element.get(e).copied().flatten();
    let mut shared = rights.iter().filter(|e| live_by_element.contains_key(e));
    let mut next_shared = shared.next();
    let mut merged: HashSet<&Option<Element>> = HashSet::new();
    let mut out = Vec::with_capacity(live.len().max(applied.len()));
    let (mut l, mut r) = (0, 0);
    while l < lefts.len() || r < rights.len() {
        if let (Some(le), Some(re)) = (lefts.get(l), rights.get(r)) {
            if le == re {
                merged.insert(re);
                out.extend(both(schema, ty, live_of(le), applied.get(r)));
                l += 1;
                r += 1;
                next_shared = shared.next();
                continue;
            }
            if in_right(le) && next_shared.is_some_and(|n| n != le) {
                // Both lists contain the item, but another shared item precedes it.
                l += 1;
                continue;
            }
        }
        if let Some(le) = lefts.get(l) {
            if !in_right(le) {
                out.extend(live.get(l).cloned());
                l += 1;
                continue;
            }
            if merged.contains(le) {
                l += 1;
            }
        }
        if let Some(re) = rights.get(r) {
            merged.insert(re);
            out.extend(both(schema, ty, live_of(re), applied.get(r)));
            r += 1;
            if next_shared == Some(re) {
                next_shared = shared.next();
            }
        }
    }
    out
}
