//! JSON as Go's `encoding/json` writes it.

use base64::Engine as _;

use crate::budget::{Budget, MAX_NESTING};
use crate::error::Failure;
use crate::go::float;
use crate::go::print::Out;
use crate::value::{Entries, List, Value};

/// How JSON is laid out.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    Compact,
    /// Compact, with `<`, `>` and `&` as they are.
    Raw,
    /// Indented by two spaces.
    Pretty,
}

/// JSON's name of the type, as Go prints it in errors.
pub(crate) fn kind_name(value: &Value) -> &'static str {
    match value {
        Value::Bool(_) => "bool",
        Value::String(_) | Value::Binary(_) => "string",
        Value::List(_) => "array",
        Value::Map(_) => "object",
        Value::Nil | Value::Invalid => "null",
        _ => "number",
    }
}

fn too_deep() -> Failure {
    Failure::new("json: unsupported value: encountered a cycle")
}

/// The value with JSON's types alone, as if written as JSON and read as YAML: whole numbers are
/// integers.
///
/// # Errors
///
/// A value has no JSON, or the budget is used up.
pub(crate) fn normalize(value: &Value, budget: &mut Budget) -> Result<Value, Failure> {
    normalize_at(value, budget, 0)
}

fn normalize_at(value: &Value, budget: &mut Budget, depth: usize) -> Result<Value, Failure> {
    if depth > MAX_NESTING {
        return Err(too_deep());
    }
    budget.step(1)?;
    Ok(match value {
        Value::Invalid | Value::Nil => Value::Nil,
        Value::Bool(_) | Value::Int(_) | Value::Uint64(_) | Value::String(_) => value.clone(),
        Value::Int64(number) | Value::Duration(number) => Value::Int(*number),
        Value::Byte(number) => Value::Int(i64::from(*number)),
        Value::Float(number) => whole(*number)?,
        Value::Binary(bytes) => Value::from(String::from_utf8_lossy(bytes).into_owned()),
        Value::Bytes(bytes) => Value::from(base64::engine::general_purpose::STANDARD.encode(bytes)),
        Value::Time(time) => Value::from(time.rfc3339()),
        Value::List(list) if list.nil => Value::Nil,
        Value::List(list) => {
            let items = list.items.iter().map(|item| normalize_at(item, budget, depth + 1));
            let items: Result<Vec<Value>, Failure> = items.collect();
            Value::List(List::any(items?))
        }
        Value::Map(map) => {
            let mut entries = Entries::new();
            for (key, item) in map.pairs() {
                entries.insert(key, normalize_at(&item, budget, depth + 1)?);
            }
            Value::from(entries)
        }
        Value::Object(object) => normalize_at(&object.data(), budget, depth + 1)?,
    })
}

/// A float as YAML reads its JSON.
fn whole(number: f64) -> Result<Value, Failure> {
    if !number.is_finite() {
        let text = float::display(number);
        return Err(Failure::new(format!("json: unsupported value: {text}")));
    }
    let text = float::json(number);
    if let Ok(int) = text.parse::<i64>() {
        return Ok(Value::Int(int));
    }
    match text.parse::<u64>() {
        Ok(uint) => Ok(Value::Uint64(uint)),
        Err(_) => Ok(Value::Float(number)),
    }
}

/// `json.Marshal`.
///
/// # Errors
///
/// A value has no JSON, or the text would be larger than the budget.
pub(crate) fn to_json(
    value: &Value,
    layout: Layout,
    budget: &mut Budget,
) -> Result<Value, Failure> {
    let mut out = Out::new(budget);
    write(&mut out, value, layout, 0)?;
    Ok(Value::from_bytes(out.finish()?))
}

fn new_line(out: &mut Out<'_>, layout: Layout, depth: usize) -> Result<(), Failure> {
    if layout == Layout::Pretty {
        out.push(b"\n")?;
        out.push("  ".repeat(depth).as_bytes())?;
    }
    Ok(())
}

fn write(out: &mut Out<'_>, value: &Value, layout: Layout, depth: usize) -> Result<(), Failure> {
    if depth > MAX_NESTING {
        return Err(too_deep());
    }
    out.budget().step(1)?;
    match value {
        Value::Float(number) if number.is_finite() => out.push(float::json(*number).as_bytes()),
        Value::List(list) if !list.nil => {
            if list.items.is_empty() {
                return out.push(b"[]");
            }
            out.push(b"[")?;
            for (at, item) in list.items.iter().enumerate() {
                if at > 0 {
                    out.push(b",")?;
                }
                new_line(out, layout, depth + 1)?;
                write(out, item, layout, depth + 1)?;
            }
            new_line(out, layout, depth)?;
            out.push(b"]")
        }
        Value::Map(map) => {
            let pairs = map.pairs();
            if pairs.is_empty() {
                return out.push(b"{}");
            }
            out.push(b"{")?;
            for (at, (key, item)) in pairs.iter().enumerate() {
                if at > 0 {
                    out.push(b",")?;
                }
                new_line(out, layout, depth + 1)?;
                string(out, key, layout)?;
                out.push(if layout == Layout::Pretty { b": " } else { b":" })?;
                write(out, item, layout, depth + 1)?;
            }
            new_line(out, layout, depth)?;
            out.push(b"}")
        }
        value => match normalize_at(value, out.budget(), depth)? {
            Value::String(text) => string(out, &text, layout),
            Value::Nil => out.push(b"null"),
            Value::Bool(value) => out.push(value.to_string().as_bytes()),
            Value::Int(number) => out.push(number.to_string().as_bytes()),
            Value::Uint64(number) => out.push(number.to_string().as_bytes()),
            value @ (Value::Map(_) | Value::List(_)) => write(out, &value, layout, depth + 1),
            _ => Ok(()),
        },
    }
}

fn string(out: &mut Out<'_>, text: &str, layout: Layout) -> Result<(), Failure> {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\x08' => quoted.push_str("\\b"),
            '\x0c' => quoted.push_str("\\f"),
            '<' | '>' | '&' if layout != Layout::Raw => {
                quoted.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            '\u{2028}' | '\u{2029}' => quoted.push_str(&format!("\\u{:04x}", u32::from(c))),
            c if c < ' ' => quoted.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    out.push(quoted.as_bytes())
}
