//! Strategic merge patch: a merge patch in which the schema specifies the lists that are merged and
//! their merge keys.

mod lists;

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

use serde_json::{Map, Value};
use sorting::CollectOrdered as _;

use super::{bad_request, gotext, plain, unprocessable};
use crate::Status;
use crate::field::go_quote;
use crate::schema::{Field, Schema, Shape, TypeId};
use lists::{deduplicate, only_key, order, order_after_merge, same_element};

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_PREFIX: &str = "$deleteFromPrimitiveList";
const ORDER_PREFIX: &str = "$setElementOrder";

type Object = Map<String, Value>;
type Merged<T> = Result<T, Box<Status>>;

/// Applies a decoded strategic merge patch to an object of type `ty`.
///
/// # Errors
/// Upstream's: 400 for malformed directives, 422 for lists of lists, 500 without a reason for all
/// other errors (such as a list element without its merge key).
pub fn strategic(
    schema: &Schema,
    ty: TypeId,
    live: Value,
    patch: Value,
) -> Result<Value, Box<Status>> {
    let Value::Object(patch) = patch else {
        let kind = gotext::json_kind(&patch);
        return Err(bad_request(format!(
            "json: cannot unmarshal {kind} into Go value of type map[string]interface {{}}"
        )));
    };
    let live = match live {
        Value::Object(live) => live,
        _ => Object::new(),
    };
    Merger { schema }.merge_map(live, patch, Meta::Struct(ty)).map(Value::Object)
}

/// The schema of the current value.
#[derive(Clone, Copy)]
enum Meta<'a> {
    Struct(TypeId),
    Shape(&'a Shape),
}

struct Merger<'a> {
    schema: &'a Schema,
}

/// Go's name of the kind of a shape, for errors.
fn go_kind(shape: &Shape) -> &'static str {
    match shape {
        Shape::String => "string",
        Shape::Bool => "bool",
        Shape::Int32 => "int32",
        Shape::Int64 => "int64",
        Shape::Double => "float64",
        Shape::Bytes | Shape::List(_) => "slice",
        Shape::Map(_) => "map",
        Shape::Duration => "int64",
        _ => "struct",
    }
}

fn no_merge_key(map: &Object, key: &str) -> Box<Status> {
    plain(format!(
        "map: {} does not contain declared merge key: {key}",
        gotext::v(&Value::Object(map.clone()))
    ))
}

fn expected(what: &str, got: &Value) -> Box<Status> {
    // Go prints the type of nil as `%!s(<nil>)`.
    let type_name = if got.is_null() { "%!s(<nil>)" } else { gotext::type_name(got) };
    plain(format!("expected a {what}, but received a {type_name}"))
}

const GO_MAP: &str = "map[string]interface {}";
const GO_LIST: &str = "[]interface {}";

impl<'a> Merger<'a> {
    fn field(&self, meta: Meta<'a>, key: &str) -> Merged<&'a Field> {
        let id = match meta {
            Meta::Struct(id) => id,
            Meta::Shape(Shape::Struct(id)) => *id,
            Meta::Shape(shape) => {
                let kind = go_kind(shape);
                return Err(plain(format!(
                    "merging an object in json but data type is not struct, instead is: {kind}"
                )));
            }
        };
        let ty = self.schema.get(id);
        // Go's field lookup is case-insensitive if no name matches exactly.
        ty.field(key)
            .or_else(|| ty.fields.iter().find(|f| f.json.eq_ignore_ascii_case(key)))
            .ok_or_else(|| {
                let name = ty.name.rsplit('.').next().unwrap_or_default();
                plain(format!(
                    "unable to find api field in struct {name} for the json field {}",
                    go_quote(key)
                ))
            })
    }

    /// Whether a map is replaced (`patchStrategy: replace`). Only one field of the stable types
    /// declares this.
    fn replaced(&self, meta: Meta<'a>, key: &str) -> bool {
        let (Meta::Struct(id) | Meta::Shape(&Shape::Struct(id))) = meta else { return false };
        key == "selector"
            && &*self.schema.get(id).name == "io.k8s.api.policy.v1.PodDisruptionBudgetSpec"
    }

    /// The field of a list and the schema of the list's elements.
    fn list_field(&self, meta: Meta<'a>, key: &str) -> Merged<(&'a Field, Meta<'a>)> {
        let field = self.field(meta, key)?;
        match &field.shape {
            Shape::List(element) if matches!(**element, Shape::List(_)) => {
                Err(plain("unexpected slice of slice"))
            }
            Shape::List(element) => Ok((field, Meta::Shape(element))),
            Shape::Bytes => Ok((field, Meta::Shape(&Shape::Int32))),
            _ => Err(plain("expected slice or array type, but got: struct")),
        }
    }

    fn merge_map(&self, mut original: Object, mut patch: Object, meta: Meta<'a>) -> Merged<Object> {
        if let Some(directive) = patch.get(DIRECTIVE) {
            return match directive.as_str() {
                Some("replace") => {
                    patch.remove(DIRECTIVE);
                    Ok(patch)
                }
                Some("delete") => Ok(Object::new()),
                _ => Err(bad_directive(directive, &patch)),
            };
        }
        apply_retain_keys(&mut original, &mut patch)?;
        self.apply_orders(&mut original, &mut patch, meta)?;
        for (key, mut value) in patch {
            let deletes = key.starts_with(DELETE_PREFIX);
            let key = if deletes { list_name(&key, DELETE_PREFIX)? } else { key };
            if value.is_null() {
                original.remove(&key);
                continue;
            }
            let Some(have) = original.get_mut(&key).filter(|have| same_type(have, &value)) else {
                if !deletes {
                    discard_nulls(&mut value);
                    match without_directives(value) {
                        Some(value) => original.insert(key, value),
                        None => original.remove(&key),
                    };
                }
                continue;
            };
            match (have.take(), value) {
                (Value::Object(live), Value::Object(patch)) => {
                    let field = self.field(meta, &key)?;
                    let merged = if self.replaced(meta, &key) {
                        patch
                    } else {
                        self.merge_map(live, patch, Meta::Shape(&field.shape))?
                    };
                    *have = Value::Object(merged);
                }
                (Value::Array(live), Value::Array(patch)) => {
                    let (field, element) = self.list_field(meta, &key)?;
                    *have =
                        Value::Array(self.merge_list_field(live, patch, field, element, deletes)?);
                }
                (_, value) => *have = value,
            }
        }
        Ok(original)
    }

    fn merge_list_field(
        &self,
        live: Vec<Value>,
        patch: Vec<Value>,
        field: &Field,
        element: Meta<'a>,
        deletes: bool,
    ) -> Merged<Vec<Value>> {
        if field.patch.merge || deletes {
            self.merge_list(live, patch, element, field.patch.merge_key.as_deref(), deletes)
        } else {
            Ok(patch)
        }
    }

    fn merge_list(
        &self,
        live: Vec<Value>,
        patch: Vec<Value>,
        element: Meta<'a>,
        key: Option<&str>,
        deletes: bool,
    ) -> Merged<Vec<Value>> {
        if live.is_empty() && patch.is_empty() {
            return Ok(live);
        }
        if !elements_are_maps(&live, &patch)? {
            if deletes {
                let deleted: HashSet<Value> = patch.into_iter().collect();
                return Ok(live.into_iter().filter(|v| !deleted.contains(v)).collect());
            }
            let mut merged = live.clone();
            merged.extend(patch.iter().cloned());
            return order(deduplicate(merged), &patch, &live, key.unwrap_or_default());
        }
        let Some(key) = key else {
            let kind = match element {
                Meta::Struct(_) => "struct",
                Meta::Shape(shape) => go_kind(shape),
            };
            return Err(plain(format!("cannot merge lists without merge key for {kind}")));
        };
        let (live, patch) = apply_element_directives(live, patch, key)?;
        let server_order: Vec<Value> = live.iter().map(|v| only_key(v, key)).collect();
        let mut merged = live;
        // Positions by the value of the merge key, in ascending order. A patch element is merged
        // into the first one.
        let mut places: HashMap<Value, VecDeque<usize>> = HashMap::new();
        for (at, item) in merged.iter().enumerate() {
            if let Some(value) = item.get(key) {
                places.entry(value.clone()).or_default().push_back(at);
            }
        }
        let mut patch_order = Vec::with_capacity(patch.len());
        for item in patch {
            patch_order.push(only_key(&item, key));
            let Value::Object(item) = item else { return Err(expected(GO_MAP, &item)) };
            let wanted = item.get(key).ok_or_else(|| no_merge_key(&item, key))?.clone();
            let place = places.entry(wanted.clone()).or_default();
            match place.front().and_then(|at| merged.get_mut(*at)) {
                Some(slot) => {
                    if let Value::Object(have) = slot.take() {
                        *slot = Value::Object(self.merge_map(have, item, element)?);
                    }
                    // A null removes the merge key, so later elements do not match this item.
                    if slot.get(key) != Some(&wanted) {
                        place.pop_front();
                    }
                }
                None => {
                    place.push_back(merged.len());
                    merged.push(Value::Object(item));
                }
            }
        }
        order(merged, &patch_order, &server_order, key)
    }

    /// Applies `$setElementOrder/<list>` together with the lists of the same name.
    fn apply_orders(
        &self,
        original: &mut Object,
        patch: &mut Object,
        meta: Meta<'a>,
    ) -> Merged<()> {
        let directives: Vec<String> =
            patch.keys().filter(|k| k.starts_with(ORDER_PREFIX)).cloned().collect();
        for directive in directives {
            let order_list = match patch.remove(&directive) {
                Some(Value::Array(list)) => list,
                Some(other) => return Err(expected(GO_LIST, &other)),
                None => continue,
            };
            let name = list_name(&directive, ORDER_PREFIX)?;
            let live = original.get(&name).map(as_list).transpose()?.cloned();
            let wanted = patch.get(&name).map(as_list).transpose()?.cloned();
            let (field, element) = self.list_field(meta, &name)?;
            let key = field.patch.merge_key.as_deref().unwrap_or_default();
            check_order(wanted.as_deref().unwrap_or_default(), &order_list, key)?;
            let mut server_order = live.clone().unwrap_or_default();
            let patched = wanted.clone().unwrap_or_default();
            let merged = match (live, wanted) {
                (Some(live), None) => live,
                (None, Some(wanted)) => wanted.into_iter().filter_map(without_directives).collect(),
                (Some(live), Some(wanted)) => {
                    self.merge_list_field(live, wanted, field, element, false)?
                }
                (None, None) => continue,
            };
            // Upstream returns an error when it orders lists without any element.
            if server_order.is_empty() && patched.is_empty() {
                return Err(plain("no elements in any of the given slices"));
            }
            elements_are_maps(&server_order, &patched)?;
            if field.patch.merge && !key.is_empty() {
                server_order = order_after_merge(&server_order, &patched, key);
            }
            patch.remove(&name);
            // Upstream searches the order for each item and fails at the first element that is not
            // a map, unless the item precedes it.
            let not_map = order_list.iter().position(|item| !item.is_object());
            let before: HashSet<&Value> = order_list
                .iter()
                .take(not_map.unwrap_or_default())
                .filter_map(|item| item.get(key))
                .collect();
            for item in merged.iter().filter(|_| !key.is_empty()) {
                let Value::Object(item) = item else { return Err(expected(GO_MAP, item)) };
                let wanted = item.get(key).ok_or_else(|| no_merge_key(item, key))?;
                if let Some(at) = not_map.filter(|_| !before.contains(wanted)) {
                    return Err(plain(format!("value for key {at} is not a map")));
                }
            }
            let ordered = order(merged, &order_list, &server_order, key)?;
            original.insert(name, Value::Array(ordered));
        }
        Ok(())
    }
}

fn bad_directive(directive: &Value, map: &Object) -> Box<Status> {
    plain(format!(
        "unknown patch type: {} in map: {}",
        gotext::s(directive),
        gotext::v(&Value::Object(map.clone()))
    ))
}

fn as_list(value: &Value) -> Merged<&Vec<Value>> {
    value.as_array().ok_or_else(|| expected(GO_LIST, value))
}

/// The part after the prefix in the name of a parallel list.
fn list_name(key: &str, prefix: &str) -> Merged<String> {
    match key.split_once('/') {
        Some((p, name)) if p == prefix => Ok(name.to_owned()),
        _ if prefix == DELETE_PREFIX => Err(bad_request("invalid patch format of primitive list")),
        _ => Err(bad_request("invalid patch format of setElementOrder list")),
    }
}

fn apply_retain_keys(original: &mut Object, patch: &mut Object) -> Merged<()> {
    let Some(list) = patch.remove(RETAIN_KEYS) else { return Ok(()) };
    let malformed = || bad_request("invalid patch format of retainKeys");
    let Value::Array(list) = list else { return Err(malformed()) };
    let keep: BTreeSet<&str> = list.iter().filter_map(Value::as_str).collect_set();
    let listed = |k: &String| keep.contains(k.as_str());
    if patch.iter().any(|(k, v)| {
        !v.is_null() && !k.starts_with(DELETE_PREFIX) && !k.starts_with(ORDER_PREFIX) && !listed(k)
    }) {
        return Err(malformed());
    }
    original.retain(|k, _| listed(k));
    Ok(())
}

/// Whether both values have the same dynamic type in Go, where integers and floats differ.
fn same_type(a: &Value, b: &Value) -> bool {
    gotext::type_name(a) == gotext::type_name(b)
}

fn discard_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, v| !v.is_null());
            map.values_mut().for_each(discard_nulls);
        }
        Value::Array(list) => list.iter_mut().for_each(discard_nulls),
        _ => {}
    }
}

/// Removes elements and members that are directives from a value; `None` when the value itself is
/// one.
fn without_directives(value: Value) -> Option<Value> {
    match value {
        Value::Object(map) if map.contains_key(DIRECTIVE) => None,
        Value::Object(map) => Some(Value::Object(
            map.into_iter().filter_map(|(k, v)| Some((k, without_directives(v)?))).collect(),
        )),
        Value::Array(list) => {
            Some(Value::Array(list.into_iter().filter_map(without_directives).collect()))
        }
        other => Some(other),
    }
}

/// Whether the elements of both lists are maps. All elements must have the same type.
fn elements_are_maps(live: &[Value], patch: &[Value]) -> Merged<bool> {
    let mut all = live.iter().chain(patch);
    let Some(first) = all.next() else { return Ok(false) };
    if first.is_array() {
        return Err(unprocessable());
    }
    if all.any(|v| !same_type(first, v)) {
        let both = Value::Array(vec![Value::Array(live.to_vec()), Value::Array(patch.to_vec())]);
        return Err(plain(format!("list element types are not identical: {}", gotext::v(&both))));
    }
    Ok(first.is_object())
}

/// Applies the elements that are directives (`$patch: delete`, `$patch: replace`) and returns both
/// lists without them.
fn apply_element_directives(
    mut live: Vec<Value>,
    patch: Vec<Value>,
    key: &str,
) -> Merged<(Vec<Value>, Vec<Value>)> {
    let mut rest = Vec::with_capacity(patch.len());
    let mut replace = false;
    let mut deleted: HashSet<Value> = HashSet::new();
    for item in patch {
        let Some(map) = item.as_object() else { return Err(expected(GO_MAP, &item)) };
        match map.get(DIRECTIVE) {
            None => rest.push(item),
            Some(directive) => match directive.as_str() {
                Some("delete") => {
                    deleted.insert(map.get(key).ok_or_else(|| no_merge_key(map, key))?.clone());
                }
                Some("replace") => replace = true,
                Some("merge") => {
                    return Err(plain("merging lists cannot yet be specified in the patch"));
                }
                _ => return Err(bad_directive(directive, map)),
            },
        }
    }
    live.retain(|item| item.get(key).is_none_or(|value| !deleted.contains(value)));
    Ok(if replace { (rest, Vec::new()) } else { (live, rest) })
}

/// Checks that the order contains every element of the patch, in the patch's order.
fn check_order(patch: &[Value], order_list: &[Value], key: &str) -> Merged<()> {
    if patch.is_empty() || order_list.is_empty() {
        return Ok(());
    }
    let deletes = |v: &&Value| v.get(DIRECTIVE).and_then(Value::as_str) == Some("delete");
    let mut wanted = patch.iter().filter(|v| key.is_empty() || !deletes(v)).peekable();
    for entry in order_list {
        while wanted.next_if(|v| v.get(DIRECTIVE).is_some()).is_some() {}
        let Some(next) = wanted.peek() else { break };
        if !key.is_empty() {
            for side in [next, &entry] {
                let map = side.as_object().ok_or_else(|| expected(GO_MAP, side))?;
                if !map.contains_key(key) {
                    return Err(no_merge_key(map, key));
                }
            }
        }
        if same_element(next, entry, key) {
            wanted.next();
        }
    }
    // As in upstream, a directive after the last ordered element counts as unordered.
    if wanted.peek().is_some() {
        let show = |list: &[Value]| gotext::v(&Value::Array(list.to_vec()));
        let text = format!(
            "The order in patch list:\n{}\n doesn't match {ORDER_PREFIX} list:\n{}\n",
            show(patch),
            show(order_list)
        );
        return Err(plain(text));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
