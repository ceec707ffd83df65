//! `dario.cat/mergo`, as sprig calls it: the first dictionary is changed in place.

use crate::budget::MAX_NESTING;
use crate::error::Failure;
use crate::function::{Args, Call};
use crate::value::{Map, Value};

/// Merges the dictionaries after the first into the first.
///
/// # Errors
///
/// The values are nested too deep, or the first is nil.
pub(super) fn merge_all(
    call: &mut Call<'_>,
    args: &[Value],
    overwrite: bool,
) -> Result<Value, Failure> {
    for source in args.from(1) {
        match (args.first(), source) {
            (Some(Value::Map(target)), Value::Map(source)) => {
                merge(call, target, source, overwrite, 0)?;
            }
            (Some(Value::Map(_)), _) => {}
            _ => return Err(Failure::new("assignment to entry in nil map")),
        }
    }
    Ok(args.value(0))
}

/// mergo's `isEmptyValue`.
fn is_empty(value: &Value) -> bool {
    !value.truth()
}

fn merge(
    call: &mut Call<'_>,
    target: &Map,
    source: &Map,
    overwrite: bool,
    depth: usize,
) -> Result<(), Failure> {
    if depth > MAX_NESTING {
        return Err(Failure::new("dictionaries are nested too deep to merge"));
    }
    if target.is(source) {
        return Ok(());
    }
    for (key, value) in source.pairs() {
        call.budget.step(1)?;
        let old = target.get(&key);
        if is_nil(&value) {
            if overwrite {
                target.insert(key, value);
            }
            continue;
        }
        match (&value, &old) {
            (Value::Map(new), Some(Value::Map(old))) => {
                merge(call, old, new, overwrite, depth + 1)?;
            }
            (Value::List(_), _) if overwrite && !source.is_empty() => {
                target.insert(key.clone(), value.clone());
            }
            _ => {}
        }
        let full = old.as_ref().is_some_and(|old| !is_empty(old));
        let both_maps = matches!((&value, &old), (Value::Map(_), Some(Value::Map(_))));
        if full && (matches!(value, Value::List(_)) || both_maps) {
            continue;
        }
        if overwrite || !full {
            target.insert(key, value);
        }
    }
    Ok(())
}

fn is_nil(value: &Value) -> bool {
    match value {
        Value::List(list) => list.nil,
        value => value.is_nil(),
    }
}
