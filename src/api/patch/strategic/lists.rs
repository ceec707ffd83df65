//! Order and membership of merged lists. All functions take approximately linear time, since
//! clients choose the length of lists.

use std::collections::{HashMap, HashSet};

use serde_json::Value;
use sorting::CompactSort as _;

use super::{DIRECTIVE, Merged, Object, no_merge_key};

/// Removes later occurrences of equal values from a list.
pub(super) fn deduplicate(list: Vec<Value>) -> Vec<Value> {
    let mut seen: HashSet<Value> = HashSet::with_capacity(list.len());
    list.into_iter().filter(|value| seen.insert(value.clone())).collect()
}

/// A map with only the merge key, for orders; a scalar is returned unchanged.
pub(super) fn only_key(item: &Value, key: &str) -> Value {
    match item.get(key) {
        Some(value) => Value::Object(Object::from_iter([(key.to_owned(), value.clone())])),
        None => item.clone(),
    }
}

/// Whether two items are the same element of a merged list: they have equal merge keys, or equal
/// values.
pub(super) fn same_element(a: &Value, b: &Value, key: &str) -> bool {
    identity(a, key).is_some_and(|a| Some(a) == identity(b, key))
}

/// The value that [`same_element`] compares; `None` for a map without its merge key, which is not
/// equal to any element.
fn identity<'a>(item: &'a Value, key: &str) -> Option<(bool, &'a Value)> {
    match item {
        Value::Object(map) => map.get(key).map(|value| (true, value)),
        scalar => Some((false, scalar)),
    }
}

/// The first position of each element.
fn positions<'a>(list: &'a [Value], key: &str) -> HashMap<(bool, &'a Value), usize> {
    let mut positions = HashMap::with_capacity(list.len());
    for (at, item) in list.iter().enumerate() {
        if let Some(identity) = identity(item, key) {
            positions.entry(identity).or_insert(at);
        }
    }
    positions
}

/// Orders a merged list: elements of the patch have the patch's order, all others the server's
/// order, and the two are interleaved by the server's order.
pub(super) fn order(
    merged: Vec<Value>,
    patch_order: &[Value],
    server_order: &[Value],
    key: &str,
) -> Merged<Vec<Value>> {
    if let Some(map) = merged
        .iter()
        .chain(patch_order)
        .chain(server_order)
        .filter_map(Value::as_object)
        .find(|m| !m.contains_key(key))
    {
        return Err(no_merge_key(map, key));
    }
    let (in_patch, in_server) = (positions(patch_order, key), positions(server_order, key));
    let mut ours: Vec<(usize, Option<usize>, Value)> = Vec::new();
    let mut theirs: Vec<(Option<usize>, Value)> = Vec::new();
    for item in merged {
        let identity = identity(&item, key);
        let server = identity.and_then(|identity| in_server.get(&identity).copied());
        match identity.and_then(|identity| in_patch.get(&identity).copied()) {
            Some(patch) => ours.push((patch, server, item)),
            None => theirs.push((server, item)),
        }
    }
    ours.compact_sort_by_key(|(patch, _, _)| *patch);
    theirs.compact_sort_by_key(|(server, _)| *server);
    let mut out = Vec::with_capacity(ours.len() + theirs.len());
    let mut theirs = theirs.into_iter().peekable();
    for (_, server, item) in ours {
        while let Some((_, other)) =
            theirs.next_if(|(other, _)| matches!((other, server), (Some(l), Some(r)) if *l < r))
        {
            out.push(other);
        }
        out.push(item);
    }
    out.extend(theirs.map(|(_, item)| item));
    Ok(out)
}

/// Returns the order that upstream uses as the server's order after a merge.
///
/// Upstream merges into the same array from which it later reads the server's order: a deletion
/// shifts the following elements, and added elements overwrite the freed positions. The array
/// determines which elements count as elements of the server.
pub(super) fn order_after_merge(live: &[Value], patch: &[Value], key: &str) -> Vec<Value> {
    let server: Vec<Value> = live.iter().map(|v| only_key(v, key)).collect();
    let directive = |v: &Value| v.get(DIRECTIVE).and_then(Value::as_str).map(str::to_owned);
    let mut places_of: HashMap<(bool, &Value), Vec<usize>> = HashMap::new();
    for (at, item) in server.iter().enumerate() {
        if let Some(identity) = identity(item, key) {
            places_of.entry(identity).or_default().push(at);
        }
    }
    // Each deletion shifts the following elements by one position and leaves the last position
    // unchanged.
    let mut kept = vec![true; server.len()];
    let mut last = server.len();
    let mut left_behind: Vec<&Value> = Vec::new();
    for item in patch.iter().filter(|v| directive(v).as_deref() == Some("delete")) {
        let deleted = identity(item, key).and_then(|identity| places_of.remove(&identity));
        for at in deleted.into_iter().flatten() {
            while last > 0 && kept.get(last - 1) == Some(&false) {
                last -= 1;
            }
            left_behind.extend(last.checked_sub(1).and_then(|last| server.get(last)));
            if let Some(kept) = kept.get_mut(at) {
                *kept = false;
            }
        }
    }
    let kept = server.iter().zip(kept).filter(|(_, kept)| *kept).map(|(item, _)| item);
    let mut places: Vec<Value> = kept.cloned().collect();
    let mut len = places.len();
    places.extend(left_behind.into_iter().rev().cloned());
    if patch.iter().any(|v| directive(v).as_deref() == Some("replace")) {
        return places;
    }
    let merged: Vec<Value> = places.iter().take(len).cloned().collect();
    let mut merged: HashSet<(bool, &Value)> =
        merged.iter().filter_map(|item| identity(item, key)).collect();
    for item in patch.iter().filter(|v| v.get(DIRECTIVE).is_none()) {
        // A map without its merge key is not equal to any element, so it is always added.
        if identity(item, key).is_none_or(|identity| merged.insert(identity)) {
            if let Some(slot) = places.get_mut(len) {
                *slot = only_key(item, key);
            }
            len += 1;
        }
    }
    places
}
