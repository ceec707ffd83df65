//! Operators: equality, order, arithmetic and `in`.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

use crate::json::{Declared, JsonMap};
use crate::time;
use crate::value::{Error, Items, Key, List, ListKind, Map, Value};

type Json = serde_json::Value;

/// Evaluates `a == b`. Only values of the Kubernetes libraries and JSON with a declared type can
/// cause an error.
pub(crate) fn equal(one: &Value<'_>, other: &Value<'_>) -> Result<bool, Error> {
    match (one, other) {
        (Value::Null, Value::Null) => Ok(true),
        (Value::Null, _) | (_, Value::Null) => Ok(false),
        _ => equal_values(one, other),
    }
}

/// Evaluates `a == b` by the type of `a`, which determines whether another type is unequal or an
/// error.
fn equal_values(one: &Value<'_>, other: &Value<'_>) -> Result<bool, Error> {
    Ok(match (one, other) {
        (Value::Bool(a), Value::Bool(b)) => a == b,
        (Value::Int(_) | Value::Uint(_) | Value::Double(_), _) => {
            number_order(one, other) == Some(Ordering::Equal)
        }
        (Value::String(a), Value::String(b)) => **a == **b,
        (Value::Bytes(a), Value::Bytes(b)) => a == b,
        (Value::Timestamp(a), Value::Timestamp(b)) => a.order(b) == Ordering::Equal,
        (Value::Duration(a), Value::Duration(b)) => a == b,
        (Value::Type(a), Value::Type(b)) => a == b,
        (Value::Optional(a), Value::Optional(b)) => match (a, b) {
            (None, None) => true,
            (Some(a), Some(b)) => equal_values(a, b)?,
            _ => false,
        },
        (Value::List(a), b) => return equal_lists(a, b),
        (Value::Map(a), b) => return equal_maps(a, b),
        (Value::Host(a), Value::Host(b)) => return a.equal(b),
        (Value::Host(_), _) => return Err(Error::no_overload()),
        (Value::Preserved(a), b) => same_json(a, b),
        (Value::Object(a), Value::Object(b)) => {
            if a.name != b.name || a.fields.len() != b.fields.len() {
                return Ok(false);
            }
            for (name, value) in &a.fields {
                match b.fields.get(name) {
                    Some(other) if equal(value, other)? => {}
                    _ => return Ok(false),
                }
            }
            true
        }
        _ => false,
    })
}

/// Compares JSON without a declared type with a value.
fn same_json(json: &Json, value: &Value<'_>) -> bool {
    match value {
        Value::Preserved(other) => json == *other,
        other => equal(&Value::json(json), other).unwrap_or(false),
    }
}

/// Whether a list is JSON with a declared type: its comparison with a value that is not a list is
/// an error.
fn is_declared(list: &List<'_>) -> bool {
    !matches!(list.items, Items::Json(_, Declared::Dyn | Declared::Claims) | Items::Owned(_))
}

/// Compares a list with a value, by the kind of the list: sets and lists with keys have no order.
fn equal_lists(one: &List<'_>, other: &Value<'_>) -> Result<bool, Error> {
    // Lists with a schema compare strictly, as the type of Kubernetes does: a value of another type
    // and an error of an element are errors. For other lists, as in cel-go, they are not.
    let is_strict = is_declared(one) || one.kind != ListKind::Atomic;
    let Value::List(other) = other else {
        return if is_strict { Err(Error::no_overload()) } else { Ok(false) };
    };
    if one.len() != other.len() {
        return Ok(false);
    }
    match one.kind {
        ListKind::Set => equal_sets(one, other),
        ListKind::Keyed(keys) => equal_keyed(one, other, keys),
        ListKind::Atomic => {
            for at in 0..one.len() {
                let (a, b) = (one.get(at)?, other.get(at)?);
                match if is_strict { equal_values(&a, &b) } else { equal(&a, &b) } {
                    Ok(true) => {}
                    Ok(false) => return Ok(false),
                    Err(error) if is_strict => return Err(error),
                    Err(_) => {}
                }
            }
            Ok(true)
        }
    }
}

/// Returns a text that is equal for equal elements of a set.
fn set_key(value: &Value<'_>) -> Result<String, Error> {
    match value {
        Value::List(_) | Value::Map(_) => {
            Err(Error::new("listSet operations are only supported on lists of scalar values"))
        }
        Value::Timestamp(at) => Ok(format!("t{}.{}", at.seconds, at.nanos)),
        other => Ok(format!("{} {other}", other.type_name())),
    }
}

/// Compares two sets, in any order.
fn equal_sets(one: &List<'_>, other: &List<'_>) -> Result<bool, Error> {
    let mut known = BTreeSet::new();
    for item in one.iter() {
        known.insert(set_key(&item?)?);
    }
    let mut seen = BTreeSet::new();
    for item in other.iter() {
        let key = set_key(&item?)?;
        if !known.contains(&key) {
            return Ok(false);
        }
        seen.insert(key);
    }
    Ok(seen.len() == known.len())
}

/// Returns the values of the key fields of an element of a list with `x-kubernetes-list-type=map`.
fn element_key(value: &Value<'_>, keys: &[String]) -> Result<Vec<String>, Error> {
    let Value::Map(map) = value else {
        return Err(Error::new(format!(
            "unexpected data format for element of array with x-kubernetes-list-type=map: {}",
            value.type_name()
        )));
    };
    keys.iter()
        .map(|key| {
            let name = crate::escape::escape(key).unwrap_or_else(|| key.clone());
            Ok(match map.find(&Value::text(name))? {
                Some(value) => format!("{} {value}", value.type_name()),
                None => String::new(),
            })
        })
        .collect()
}

/// Compares two lists with keys, in any order.
fn equal_keyed(one: &List<'_>, other: &List<'_>, keys: &[String]) -> Result<bool, Error> {
    let mut known = std::collections::BTreeMap::new();
    for item in one.iter() {
        let item = item?;
        known.insert(element_key(&item, keys)?, item);
    }
    let mut seen = BTreeSet::new();
    for item in other.iter() {
        let item = item?;
        let key = element_key(&item, keys)?;
        match known.get(&key) {
            Some(mine) if equal_values(mine, &item)? => seen.insert(key),
            _ => return Ok(false),
        };
    }
    Ok(seen.len() == known.len())
}

/// Compares a map with a value.
fn equal_maps(one: &Map<'_>, other: &Value<'_>) -> Result<bool, Error> {
    let declared = match one {
        Map::Json(map) if !matches!(map.declared, Declared::Dyn | Declared::Claims) => Some(*map),
        _ => None,
    };
    let Value::Map(other) = other else {
        return if declared.is_some() { Err(Error::no_overload()) } else { Ok(false) };
    };
    if one.len() != other.len() {
        return Ok(false);
    }
    if let Some(declared) = declared {
        return equal_declared(one, declared, other);
    }
    for key in one.keys() {
        let (Some(a), Some(b)) = (one.find(&key)?, other.find(&key)?) else { return Ok(false) };
        if matches!(equal(&a, &b), Ok(false)) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Compares a JSON object that has a declared type with another map. `map` is the JSON of `one`.
fn equal_declared(one: &Map<'_>, map: JsonMap<'_>, other: &Map<'_>) -> Result<bool, Error> {
    for (name, value) in map.object {
        if map.declares(name) {
            // As upstream, the lookup uses the name in the schema, although maps are looked up by
            // escaped names.
            let key = Value::text(name.as_str());
            match (one.find(&key)?, other.find(&key)?) {
                (None, None) => {}
                (Some(a), Some(b)) if equal_values(&a, &b)? => {}
                _ => return Ok(false),
            }
        } else {
            let Map::Json(other) = other else { return Err(Error::no_overload()) };
            if other.object.get(name).is_some_and(|theirs| theirs != value) {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// Compares two numbers, also of different types; `None` if one is NaN or not a number.
fn number_order(one: &Value<'_>, other: &Value<'_>) -> Option<Ordering> {
    match (one, other) {
        (Value::Int(a), Value::Int(b)) => Some(a.cmp(b)),
        (Value::Uint(a), Value::Uint(b)) => Some(a.cmp(b)),
        (Value::Double(a), Value::Double(b)) => a.partial_cmp(b),
        (Value::Int(a), Value::Uint(b)) => Some(i128::from(*a).cmp(&i128::from(*b))),
        (Value::Uint(a), Value::Int(b)) => Some(i128::from(*a).cmp(&i128::from(*b))),
        (Value::Double(a), Value::Int(b)) => a.partial_cmp(&(*b as f64)),
        (Value::Int(a), Value::Double(b)) => (*a as f64).partial_cmp(b),
        (Value::Double(a), Value::Uint(b)) => a.partial_cmp(&(*b as f64)),
        (Value::Uint(a), Value::Double(b)) => (*a as f64).partial_cmp(b),
        _ => None,
    }
}

/// Whether `<` is defined for values of this type.
pub(crate) fn is_comparable(value: &Value<'_>) -> bool {
    matches!(
        value,
        Value::Bool(_)
            | Value::Int(_)
            | Value::Uint(_)
            | Value::Double(_)
            | Value::String(_)
            | Value::Bytes(_)
            | Value::Timestamp(_)
            | Value::Duration(_)
    )
}

/// Compares two values, for `<`, `<=`, `>` and `>=`.
///
/// # Errors
/// The types have no order, or one value is NaN.
pub(crate) fn order(one: &Value<'_>, other: &Value<'_>) -> Result<Ordering, Error> {
    let is_nan = |value: &Value<'_>| matches!(value, Value::Double(v) if v.is_nan());
    match (one, other) {
        (Value::Bool(a), Value::Bool(b)) => Ok(a.cmp(b)),
        (Value::String(a), Value::String(b)) => Ok((**a).cmp(&**b)),
        (Value::Bytes(a), Value::Bytes(b)) => Ok(a.cmp(b)),
        (Value::Timestamp(a), Value::Timestamp(b)) => Ok(a.order(b)),
        (Value::Duration(a), Value::Duration(b)) => Ok(a.cmp(b)),
        (Value::Int(_) | Value::Uint(_) | Value::Double(_), _) => {
            if is_nan(one) || is_nan(other) {
                return Err(Error::new("NaN values cannot be ordered"));
            }
            number_order(one, other).ok_or_else(Error::no_overload)
        }
        _ => Err(Error::no_overload()),
    }
}

/// Maximum size in bytes of a string or list that an expression creates. Upstream has no such
/// limit, but the cost limits stay far below it.
pub(crate) const VALUE_BYTES_MAX: usize = 64 << 20;

/// Evaluates `a + b`, which also concatenates strings, bytes and lists.
pub(crate) fn add<'a>(one: Value<'a>, other: Value<'a>) -> Result<Value<'a>, Error> {
    let overflow = || Error::new("integer overflow");
    Ok(match (one, other) {
        (Value::Int(a), Value::Int(b)) => Value::Int(a.checked_add(b).ok_or_else(overflow)?),
        (Value::Uint(a), Value::Uint(b)) => {
            Value::Uint(a.checked_add(b).ok_or_else(|| Error::new("unsigned integer overflow"))?)
        }
        (Value::Double(a), Value::Double(b)) => Value::Double(a + b),
        (Value::String(a), Value::String(b)) => {
            if a.len() + b.len() > VALUE_BYTES_MAX {
                return Err(Error::limit());
            }
            let mut out = String::with_capacity(a.len() + b.len());
            out.push_str(&a);
            out.push_str(&b);
            Value::text(out)
        }
        (Value::Bytes(a), Value::Bytes(b)) => {
            if a.len() + b.len() > VALUE_BYTES_MAX {
                return Err(Error::limit());
            }
            Value::Bytes(a.iter().chain(b.iter()).copied().collect())
        }
        (Value::Duration(a), Value::Duration(b)) => {
            Value::Duration(a.checked_add(b).ok_or_else(overflow)?)
        }
        (Value::Timestamp(at), Value::Duration(by))
        | (Value::Duration(by), Value::Timestamp(at)) => Value::Timestamp(time::add(&at, by)?),
        (Value::List(a), Value::List(b)) => Value::List(append(a, &b)?),
        _ => return Err(Error::no_overload()),
    })
}

/// Concatenates two lists. The result has the kind of the first: a set has equal elements once, and
/// in a list with keys an element of the second list replaces that of the first with the same key.
fn append<'a>(one: List<'a>, other: &List<'a>) -> Result<List<'a>, Error> {
    // An empty list literal plus a list is that list with its kind.
    if one.is_empty() && one.kind == ListKind::Atomic && !is_declared(&one) {
        return Ok(other.clone());
    }
    if other.is_empty() && one.kind == ListKind::Atomic {
        return Ok(one);
    }
    let kind = one.kind;
    let mut items = match one.items {
        // If `one` is the only owner of the elements, they are not copied, so that a loop appends
        // in constant time.
        Items::Owned(items) => Arc::unwrap_or_clone(items),
        Items::Json(..) => one.iter().collect::<Result<Vec<_>, _>>()?,
    };
    match kind {
        ListKind::Atomic => {
            for item in other.iter() {
                items.push(item?);
            }
        }
        ListKind::Set => {
            let mut known = items.iter().map(set_key).collect::<Result<BTreeSet<_>, _>>()?;
            for item in other.iter() {
                let item = item?;
                if known.insert(set_key(&item)?) {
                    items.push(item);
                }
            }
        }
        ListKind::Keyed(keys) => {
            let mut index_by_key = std::collections::BTreeMap::new();
            for (at, item) in items.iter().enumerate() {
                index_by_key.insert(element_key(item, keys)?, at);
            }
            for item in other.iter() {
                let item = item?;
                match index_by_key.get(&element_key(&item, keys)?).and_then(|at| items.get_mut(*at))
                {
                    Some(element) => *element = item,
                    None => items.push(item),
                }
            }
        }
    }
    Ok(List { items: Items::Owned(Arc::new(items)), kind })
}

/// Evaluates `a - b`.
pub(crate) fn subtract<'a>(one: &Value<'a>, other: &Value<'a>) -> Result<Value<'a>, Error> {
    let overflow = || Error::new("integer overflow");
    Ok(match (one, other) {
        (Value::Int(a), Value::Int(b)) => Value::Int(a.checked_sub(*b).ok_or_else(overflow)?),
        (Value::Uint(a), Value::Uint(b)) => {
            Value::Uint(a.checked_sub(*b).ok_or_else(|| Error::new("unsigned integer overflow"))?)
        }
        (Value::Double(a), Value::Double(b)) => Value::Double(a - b),
        (Value::Duration(a), Value::Duration(b)) => {
            Value::Duration(a.checked_sub(*b).ok_or_else(overflow)?)
        }
        (Value::Timestamp(at), Value::Duration(by)) => {
            Value::Timestamp(time::add(at, by.checked_neg().ok_or_else(overflow)?)?)
        }
        (Value::Timestamp(a), Value::Timestamp(b)) => Value::Duration(time::between(a, b)?),
        _ => return Err(Error::no_overload()),
    })
}

/// Evaluates `a * b`.
pub(crate) fn multiply<'a>(one: &Value<'a>, other: &Value<'a>) -> Result<Value<'a>, Error> {
    Ok(match (one, other) {
        (Value::Int(a), Value::Int(b)) => {
            Value::Int(a.checked_mul(*b).ok_or_else(|| Error::new("integer overflow"))?)
        }
        (Value::Uint(a), Value::Uint(b)) => {
            Value::Uint(a.checked_mul(*b).ok_or_else(|| Error::new("unsigned integer overflow"))?)
        }
        (Value::Double(a), Value::Double(b)) => Value::Double(a * b),
        _ => return Err(Error::no_overload()),
    })
}

/// Evaluates `a / b`.
pub(crate) fn divide<'a>(one: &Value<'a>, other: &Value<'a>) -> Result<Value<'a>, Error> {
    let by_zero = || Error::new("division by zero");
    Ok(match (one, other) {
        (Value::Int(_), Value::Int(0)) | (Value::Uint(_), Value::Uint(0)) => return Err(by_zero()),
        (Value::Int(a), Value::Int(b)) => {
            Value::Int(a.checked_div(*b).ok_or_else(|| Error::new("integer overflow"))?)
        }
        (Value::Uint(a), Value::Uint(b)) => Value::Uint(a.checked_div(*b).ok_or_else(by_zero)?),
        (Value::Double(a), Value::Double(b)) => Value::Double(a / b),
        _ => return Err(Error::no_overload()),
    })
}

/// Evaluates `a % b`.
pub(crate) fn modulo<'a>(one: &Value<'a>, other: &Value<'a>) -> Result<Value<'a>, Error> {
    let by_zero = || Error::new("modulus by zero");
    Ok(match (one, other) {
        (Value::Int(_), Value::Int(0)) | (Value::Uint(_), Value::Uint(0)) => return Err(by_zero()),
        (Value::Int(a), Value::Int(b)) => {
            Value::Int(a.checked_rem(*b).ok_or_else(|| Error::new("integer overflow"))?)
        }
        (Value::Uint(a), Value::Uint(b)) => Value::Uint(a.checked_rem(*b).ok_or_else(by_zero)?),
        _ => return Err(Error::no_overload()),
    })
}

/// Evaluates `-a`.
pub(crate) fn negate<'a>(value: &Value<'a>) -> Result<Value<'a>, Error> {
    let overflow = || Error::new("integer overflow");
    Ok(match value {
        Value::Int(v) => Value::Int(v.checked_neg().ok_or_else(overflow)?),
        Value::Double(v) => Value::Double(-v),
        Value::Duration(v) => Value::Duration(v.checked_neg().ok_or_else(overflow)?),
        _ => return Err(Error::no_overload()),
    })
}

/// Whether a list contains an element, for `in`. In JSON with a declared type, the first error is
/// returned if no element is equal; in other lists, elements whose comparison fails are not equal.
pub(crate) fn contains(list: &List<'_>, value: &Value<'_>) -> Result<bool, Error> {
    let is_strict = is_declared(list);
    let mut failed = None;
    for item in list.iter() {
        let found = item.and_then(|item| {
            if is_strict { equal_values(&item, value) } else { equal_values(value, &item) }
        });
        match found {
            Ok(true) => return Ok(true),
            Ok(false) => {}
            Err(error) if is_strict => failed = failed.or(Some(error)),
            Err(_) => {}
        }
    }
    failed.map_or(Ok(false), Err)
}

/// Evaluates `x in y`.
pub(crate) fn is_in(value: &Value<'_>, of: &Value<'_>) -> Result<bool, Error> {
    match of {
        Value::List(list) => contains(list, value),
        Value::Map(map) => Ok(map.entry(value)?.is_some()),
        _ => Err(Error::no_overload()),
    }
}

/// Returns a map with an additional entry, whose key must be new.
pub(crate) fn insert<'a>(
    map: Map<'a>,
    key: &Value<'a>,
    value: Value<'a>,
) -> Result<Map<'a>, Error> {
    if map.find(key)?.is_some() {
        return Err(Error::new(format!("insert failed: key {key} already exists")));
    }
    let mut entries = match map {
        Map::Owned(entries) => Arc::unwrap_or_clone(entries),
        Map::Json(_) | Map::WithDefault(..) => {
            let mut entries = std::collections::BTreeMap::new();
            for key in map.keys() {
                if let (Some(k), Some(value)) = (Key::of(&key), map.find(&key)?) {
                    entries.insert(k, value);
                }
            }
            entries
        }
    };
    let key = Key::of(key)
        .ok_or_else(|| Error::new(format!("unsupported key type: {}", key.type_name())))?;
    entries.insert(key, value);
    Ok(Map::owned(entries))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{check_errors, check_true, check_values};

    /// Rows of CEL's conformance tests, `tests/simple/testdata/integer_math.textproto`.
    #[test]
    fn integer_division_truncates_and_the_remainder_has_the_sign_of_the_dividend() {
        check_values(&[
            ("42 + (-7)", "35"),
            ("42 - (-22)", "64"),
            ("-80 / (-2)", "40"),
            ("43 % (-5)", "3"),
            ("-42 % (-5)", "-2"),
            ("-3 % 5", "-3"),
            ("-(-42)", "42"),
            ("60u / 2u", "30"),
            ("42u % 5u", "2"),
        ]);
    }

    /// Rows of CEL's conformance tests, `tests/simple/testdata/integer_math.textproto`, with the
    /// errors of cel-go's `common/types/err.go`.
    #[test]
    fn integers_that_overflow_and_divisions_by_zero_are_errors() {
        check_errors(&[
            ("9223372036854775807 + 1", "integer overflow"),
            ("-9223372036854775808 - 1", "integer overflow"),
            ("1 - (-9223372036854775807)", "integer overflow"),
            ("-(-9223372036854775808)", "integer overflow"),
            ("(-9223372036854775808) * -1", "integer overflow"),
            ("(-9223372036854775808)/-1", "integer overflow"),
            ("5000000000 * 5000000000", "integer overflow"),
            ("18446744073709551615u + 1u", "unsigned integer overflow"),
            ("0u - 1u", "unsigned integer overflow"),
            ("5000000000u * 5000000000u", "unsigned integer overflow"),
            ("15 / 0", "division by zero"),
            ("34 % 0", "modulus by zero"),
            ("15u / 0u", "division by zero"),
            ("34u % 0u", "modulus by zero"),
        ]);
    }

    /// Rows of CEL's conformance tests, `tests/simple/testdata/fp_math.textproto`.
    #[test]
    fn doubles_overflow_to_infinity() {
        check_true(&[
            "-8.875 / (-0.0625) == 142.0",
            "15.75 / 0.0 == double('Infinity')",
            "2.0 * 8.988466e+307 == double('Infinity')",
            "2.0 * -8.988466e+307 == double('-Infinity')",
            "1e-324 / 2.0 == 0.0",
        ]);
    }

    /// Rows of CEL's conformance tests, `tests/simple/testdata/comparisons.textproto`.
    #[test]
    fn numbers_of_different_types_are_compared_by_value() {
        check_values(&[
            ("dyn(1) == 1u", "true"),
            ("dyn(2u) == 1.0", "false"),
            ("0.0/0.0 == 0.0/0.0", "false"),
            ("dyn(1) == 0.0/0.0", "false"),
            ("-0.0 < 0.0", "false"),
            ("dyn(1) < 9223372036854775808u", "true"),
            ("dyn(-1) < 0u", "true"),
            ("dyn(9223372036854775807) < 9223372036854775808.0", "false"),
            ("dyn(9223372036854775807) < 9223372036854777857.0", "true"),
            ("dyn(-9223372036854775808) < -9223372036854775809.0", "false"),
            ("dyn(9223372036854775808u) < 1", "false"),
            ("{dyn(1): dyn(1.0), dyn(2u): dyn(3u)} == {dyn(1u): dyn(1), dyn(2): dyn(3.0)}", "true"),
            ("[dyn(1.0), dyn(2.0), dyn(3)] == [dyn(1u), dyn(2), dyn(3u)]", "true"),
            ("{'k1':'v1','k2':'v2'} == {'k2':'v2','k1':'v1'}", "true"),
            ("dyn(duration('0s')) == null", "false"),
        ]);
    }

    /// Rows of CEL's conformance tests, `tests/simple/testdata/comparisons.textproto`.
    #[test]
    fn texts_are_ordered_by_code_points_and_only_some_types_are_ordered() {
        check_values(&[
            ("'' < 'a'", "true"),
            ("'Abc' < 'aBC'", "true"),
            (r"'a' < '\u00E1'", "true"),
            ("'a' < 'AB'", "false"),
            ("b'á' < b'b'", "false"),
            ("false < true", "true"),
        ]);
        check_errors(&[
            ("dyn([0]) < dyn([1])", "no such overload"),
            ("dyn(null) < dyn(null)", "no such overload"),
            ("dyn('foo') < dyn(1024)", "no such overload"),
            ("0.0 / 0.0 < 1.0", "NaN values cannot be ordered"),
        ]);
        assert!(!is_comparable(&Value::Null) && is_comparable(&Value::Duration(0)));
    }

    /// `TestMapList` of `pkg/cel/openapi/maplist_test.go` and `unstructuredSetList` of
    /// `pkg/cel/common/valuesunstructured.go` in k8s.io/apiserver.
    #[test]
    fn sets_and_lists_with_keys_are_equal_in_any_order_and_replace_equal_elements() {
        check_values(&[
            ("self.set == other.set", "true"),
            ("self.ports == other.ports", "true"),
            ("self.tags == other.tags", "false"),
            ("(self.set + other.set).size()", "3"),
            ("(self.ports + other.ports).size()", "2"),
            ("(self.tags + self.tags).size()", "6"),
        ]);
    }
}
