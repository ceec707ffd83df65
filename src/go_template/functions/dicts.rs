//! Dictionaries of sprig.

use crate::budget::MAX_NESTING;
use crate::convert::text_of;
use crate::error::Failure;
use crate::function::{Args, Call, Function, fixed, variadic};
use crate::functions::merge;
use crate::signature::Param::{Any, Map as Dict, Str};
use crate::value::{Entries, Map, Value};

pub(super) const FUNCTIONS: &[Function] = &[
    variadic("dict", &[Any], dict),
    fixed("get", &[Dict, Str], |_, args| {
        let value = dict_of(args, 0).and_then(|map| map.get(&args.text(1)));
        Ok(value.unwrap_or_else(|| Value::from("")))
    }),
    fixed("set", &[Dict, Str, Any], |_, args| match args.first() {
        Some(Value::Map(map)) => {
            map.insert(&*args.text(1), args.value(2));
            Ok(args.value(0))
        }
        _ => Err(Failure::new("assignment to entry in nil map")),
    }),
    fixed("unset", &[Dict, Str], |_, args| {
        if let Some(map) = dict_of(args, 0) {
            map.remove(&args.text(1));
        }
        Ok(args.value(0))
    }),
    fixed("hasKey", &[Dict, Str], |_, args| {
        Ok(Value::Bool(dict_of(args, 0).is_some_and(|map| map.contains(&args.text(1)))))
    }),
    variadic("pluck", &[Str, Dict], |_, args| {
        let key = args.text(0);
        let found = args.from(1).iter().filter_map(|dict| dict.get(&key));
        Ok(Value::list(found.collect()))
    }),
    variadic("keys", &[Dict], |_, args| {
        let maps = args.iter().filter_map(as_map);
        let keys = maps.flat_map(|map| map.pairs()).map(|(key, _)| key);
        Ok(Value::strings(keys))
    }),
    fixed("values", &[Dict], |_, args| {
        let pairs = dict_of(args, 0).map(Map::pairs).unwrap_or_default();
        Ok(Value::list(pairs.into_iter().map(|(_, value)| value).collect()))
    }),
    variadic("pick", &[Dict, Str], |_, args| filter(args, true)),
    variadic("omit", &[Dict, Str], |_, args| filter(args, false)),
    variadic("dig", &[Any], dig),
    variadic("merge", &[Dict, Dict], |call, args| {
        Ok(merge::merge_all(call, args, false).unwrap_or_else(|_| Value::from("")))
    }),
    variadic("mustMerge", &[Dict, Dict], |call, args| merge::merge_all(call, args, false)),
    variadic("mergeOverwrite", &[Dict, Dict], |call, args| {
        Ok(merge::merge_all(call, args, true).unwrap_or_else(|_| Value::from("")))
    }),
    variadic("mustMergeOverwrite", &[Dict, Dict], |call, args| merge::merge_all(call, args, true)),
    fixed("deepCopy", &[Any], copy),
    fixed("mustDeepCopy", &[Any], copy),
];

fn as_map(value: &Value) -> Option<&Map> {
    match value {
        Value::Map(map) => Some(map),
        _ => None,
    }
}

fn dict_of(args: &[Value], at: usize) -> Option<&Map> {
    args.get(at).and_then(as_map)
}

fn dict(call: &mut Call<'_>, args: &[Value]) -> Result<Value, Failure> {
    let mut entries = Entries::new();
    for pair in args.chunks(2) {
        let key = text_of(&pair.value(0), call.budget)?;
        entries.insert(key.into(), pair.get(1).cloned().unwrap_or_else(|| Value::from("")));
    }
    Ok(Value::from(entries))
}

fn filter(args: &[Value], keep: bool) -> Result<Value, Failure> {
    let names: Vec<_> = args.from(1).iter().filter_map(Value::string_bytes).collect();
    let mut entries = dict_of(args, 0).map(Map::entries).unwrap_or_default();
    entries.retain(|key, _| names.contains(&key.as_bytes()) == keep);
    Ok(Value::from(entries))
}

fn not_a(value: &Value, wanted: &str) -> Failure {
    let name = crate::go::print::type_of(value);
    let name = if value.is_nil() { "nil" } else { name };
    Failure::new(format!("interface conversion: interface {{}} is {name}, not {wanted}"))
}

fn dig(_: &mut Call<'_>, args: &[Value]) -> Result<Value, Failure> {
    if args.len() < 3 {
        return Err(Failure::new("dig needs at least three arguments"));
    }
    let keys = args.get(..args.len() - 2).unwrap_or_default();
    let default = args.value(args.len() - 2);
    let mut dict = args.value(args.len() - 1);
    let as_dict = |value: &Value| match value {
        Value::Map(map) if map.class == crate::value::Class::Any => Ok(map.clone()),
        value => Err(not_a(value, "map[string]interface {}")),
    };
    as_dict(&dict)?;
    for key in keys {
        if key.string_bytes().is_none() {
            return Err(not_a(key, "string"));
        }
    }
    for (at, key) in keys.iter().enumerate() {
        let key = String::from_utf8_lossy(key.string_bytes().unwrap_or_default()).into_owned();
        match as_dict(&dict)?.get(&key) {
            None => return Ok(default),
            Some(value) if at + 1 == keys.len() => return Ok(value),
            Some(value) => dict = value,
        }
    }
    Ok(default)
}

fn copy(call: &mut Call<'_>, args: &[Value]) -> Result<Value, Failure> {
    if args.value(0).is_nil() {
        return Err(Failure::new("reflect: call of reflect.Value.Type on zero Value"));
    }
    deep_copy(call, &args.value(0), 0)
}

/// A copy that shares nothing with the value.
fn deep_copy(call: &mut Call<'_>, value: &Value, depth: usize) -> Result<Value, Failure> {
    if depth > MAX_NESTING {
        return Err(Failure::new("a value is nested too deep, or contains itself"));
    }
    call.budget.step(1)?;
    match value {
        Value::Map(map) => {
            let mut entries = Entries::new();
            for (key, item) in map.pairs() {
                entries.insert(key, deep_copy(call, &item, depth + 1)?);
            }
            Ok(Value::Map(Map::of(map.class, entries)))
        }
        Value::List(list) => {
            let items = list.items.iter().map(|item| deep_copy(call, item, depth + 1));
            let items: Result<Vec<Value>, Failure> = items.collect();
            Ok(Value::List(list.with(items?)))
        }
        value => Ok(value.clone()),
    }
}
