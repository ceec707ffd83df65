//! Methods of values, and zero values.

use base64::Engine as _;

use crate::budget::Budget;
use crate::error::Failure;
use crate::function::Args;
use crate::go::duration;
use crate::go::path;
use crate::parse::number::to_float;
use crate::signature::Param;
use crate::time::Time;
use crate::value::{Class, Elem, Entries, Map, Value};
use crate::{glob, yaml};

/// Go's zero value of the elements of a map.
pub(crate) fn zero_of(class: Class) -> Value {
    match class {
        Class::Any => Value::Nil,
        Class::Strings => Value::from(""),
        Class::Files => Value::Bytes([].into()),
    }
}

/// The parameters of a method, `None` when there is none of that name.
pub(crate) fn params(value: &Value, name: &str) -> Option<&'static [Param]> {
    match value {
        Value::Map(map) if map.class == Class::Files => match name {
            "Get" | "GetBytes" | "Glob" | "Lines" => Some(&[Param::Str]),
            "AsConfig" | "AsSecrets" => Some(&[]),
            _ => None,
        },
        Value::List(list) if list.elem == Elem::Versions && name == "Has" => Some(&[Param::Str]),
        Value::Time(_) => Time::method(name),
        Value::Duration(_) => match name {
            "Seconds" | "Minutes" | "Hours" | "Milliseconds" | "Microseconds" | "Nanoseconds"
            | "String" => Some(&[]),
            _ => None,
        },
        Value::Object(object) => object.method(name),
        _ => None,
    }
}

/// Runs a method of [`params`].
///
/// # Errors
///
/// The method fails, or its result is larger than the budget.
pub(crate) fn call(
    value: &Value,
    name: &str,
    args: &[Value],
    budget: &mut Budget,
) -> Result<Value, Failure> {
    match value {
        Value::Map(map) => files(map, name, args, budget),
        Value::List(list) => {
            let wanted = args.bytes(0);
            let has = list.items.iter().any(|item| item.string_bytes() == Some(wanted));
            Ok(Value::Bool(has))
        }
        Value::Time(time) => time.call(name, args),
        Value::Duration(nanos) => {
            let seconds = to_float(*nanos) / to_float(duration::SECOND);
            Ok(match name {
                "Seconds" => Value::Float(seconds),
                "Minutes" => Value::Float(seconds / 60.0),
                "Hours" => Value::Float(seconds / 3600.0),
                "Milliseconds" => Value::Int64(nanos / 1_000_000),
                "Microseconds" => Value::Int64(nanos / 1_000),
                "Nanoseconds" => Value::Int64(*nanos),
                _ => Value::from(duration::text(*nanos)),
            })
        }
        Value::Object(object) => object.call(name, args),
        _ => Err(Failure::new(format!("no method {name}"))),
    }
}

fn files(map: &Map, name: &str, args: &[Value], budget: &mut Budget) -> Result<Value, Failure> {
    let get = |name: &str| match map.get(name) {
        Some(Value::Bytes(bytes)) => bytes,
        _ => [].into(),
    };
    let name_arg = args.text(0);
    match name {
        "Get" => Ok(Value::from_bytes(get(&name_arg).to_vec())),
        "GetBytes" => Ok(Value::Bytes(get(&name_arg))),
        "Lines" => {
            let data = get(&name_arg);
            let text = String::from_utf8_lossy(&data);
            if text.is_empty() {
                return Ok(Value::strings(Vec::<String>::new()));
            }
            let text = text.strip_suffix('\n').unwrap_or(&text);
            Ok(Value::strings(text.split('\n')))
        }
        "Glob" => {
            let pattern = glob::compile(&name_arg);
            let entries: Entries =
                map.entries().into_iter().filter(|(name, _)| pattern.is_match(name)).collect();
            Ok(Value::Map(Map::of(Class::Files, entries)))
        }
        _ => {
            let encode = |bytes: &[u8]| match name {
                "AsSecrets" => Value::from(base64::engine::general_purpose::STANDARD.encode(bytes)),
                _ => Value::from_bytes(bytes.to_vec()),
            };
            let entries = map.entries().into_iter().map(|(name, data)| match data {
                Value::Bytes(bytes) => (path::base(&name).into(), encode(&bytes)),
                other => (path::base(&name).into(), other),
            });
            yaml::to_yaml(&Value::from(entries.collect::<Entries>()), budget)
        }
    }
}
