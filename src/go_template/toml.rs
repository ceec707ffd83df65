//! TOML as `github.com/BurntSushi/toml` writes it.

use crate::budget::{Budget, MAX_NESTING};
use crate::error::Failure;
use crate::go::print::Out;
use crate::value::{Map, Value};

pub(crate) use read::from_toml;

mod read;

/// `toml.Encode`.
///
/// # Errors
///
/// The package's text when TOML cannot hold the value, or the budget is used up.
pub(crate) fn to_toml(value: &Value, budget: &mut Budget) -> Result<Value, Failure> {
    let mut out = Out::new(budget);
    let Value::Map(map) = value else {
        // The package writes scalars without a key.
        if value.is_nil() {
            let text = "reflect: call of reflect.Value.Type on zero Value";
            return Err(Failure::new(text));
        }
        if value.items().is_some() {
            let text = "toml: top-level values must be Go maps or structs";
            return Err(Failure::new(text));
        }
        inline(&mut out, value, 0)?;
        return Ok(Value::from_bytes(out.finish()?));
    };
    table(&mut out, map, &mut Vec::new())?;
    Ok(Value::from_bytes(out.finish()?))
}

/// Whether a list is written as an array of tables.
fn is_table_array(value: &Value) -> bool {
    match value {
        Value::List(list) => {
            !list.items.is_empty() && list.items.iter().all(|item| matches!(item, Value::Map(_)))
        }
        _ => false,
    }
}

fn key_text(key: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !key.is_empty() && key.chars().all(bare) { key.into() } else { quoted(key) }
}

fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '\x08' => out.push_str("\\b"),
            '\t' => out.push_str("\\t"),
            '\n' => out.push_str("\\n"),
            '\x0c' => out.push_str("\\f"),
            '\r' => out.push_str("\\r"),
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if c < ' ' || c == '\x7f' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

fn indent(out: &mut Out<'_>, depth: usize) -> Result<(), Failure> {
    out.push("  ".repeat(depth.saturating_sub(1)).as_bytes())
}

fn table(out: &mut Out<'_>, map: &Map, path: &mut Vec<String>) -> Result<(), Failure> {
    if path.len() > MAX_NESTING {
        return Err(Failure::new("toml: a value is nested too deep, or contains itself"));
    }
    let pairs = map.pairs();
    let is_table = |value: &Value| matches!(value, Value::Map(_)) || is_table_array(value);
    for (key, value) in pairs.iter().filter(|(_, value)| !is_table(value)) {
        if value.is_nil() {
            continue;
        }
        indent(out, path.len() + 1)?;
        out.push(key_text(key).as_bytes())?;
        out.push(b" = ")?;
        inline(out, value, 0)?;
        out.push(b"\n")?;
    }
    for (key, value) in pairs.iter().filter(|(_, value)| is_table(value)) {
        path.push(key_text(key));
        match value {
            Value::Map(inner) => {
                heading(out, path, "[", "]")?;
                table(out, inner, path)?;
            }
            Value::List(list) => {
                for item in list.items.iter() {
                    heading(out, path, "[[", "]]")?;
                    if let Value::Map(inner) = item {
                        table(out, inner, path)?;
                    }
                }
            }
            _ => {}
        }
        path.pop();
    }
    Ok(())
}

fn heading(out: &mut Out<'_>, path: &[String], open: &str, close: &str) -> Result<(), Failure> {
    // A blank line stands before every top table but the first.
    if path.len() == 1 && !out.bytes.is_empty() {
        out.push(b"\n")?;
    }
    if open == "[[" && path.len() > 1 {
        out.push(b"\n")?;
    }
    indent(out, path.len())?;
    out.push(format!("{open}{}{close}\n", path.join(".")).as_bytes())
}

fn inline(out: &mut Out<'_>, value: &Value, depth: usize) -> Result<(), Failure> {
    if depth > MAX_NESTING {
        return Err(Failure::new("toml: a value is nested too deep, or contains itself"));
    }
    out.budget().step(1)?;
    match value {
        Value::Bool(value) => out.push(value.to_string().as_bytes()),
        Value::Int(number) | Value::Int64(number) => out.push(number.to_string().as_bytes()),
        Value::Byte(number) => out.push(number.to_string().as_bytes()),
        Value::Uint64(number) => out.push(number.to_string().as_bytes()),
        Value::Float(number) => out.push(float(*number).as_bytes()),
        Value::Time(time) => out.push(time.rfc3339().as_bytes()),
        Value::Duration(nanos) => out.push(quoted(&crate::go::duration::text(*nanos)).as_bytes()),
        Value::Map(map) => {
            out.push(b"{")?;
            for (at, (key, item)) in map.pairs().iter().enumerate() {
                if at > 0 {
                    out.push(b", ")?;
                }
                out.push(key_text(key).as_bytes())?;
                out.push(b" = ")?;
                inline(out, item, depth + 1)?;
            }
            out.push(b"}")
        }
        Value::List(_) | Value::Bytes(_) => {
            out.push(b"[")?;
            for (at, item) in value.items().unwrap_or_default().iter().enumerate() {
                if at > 0 {
                    out.push(b", ")?;
                }
                if item.is_nil() {
                    return Err(Failure::new("toml: cannot encode array with nil element"));
                }
                inline(out, item, depth + 1)?;
            }
            out.push(b"]")
        }
        Value::String(text) => out.push(quoted(text).as_bytes()),
        Value::Binary(bytes) => out.push(quoted(&String::from_utf8_lossy(bytes)).as_bytes()),
        Value::Object(object) => out.push(quoted(&object.text()).as_bytes()),
        Value::Nil | Value::Invalid => Ok(()),
    }
}

fn float(number: f64) -> String {
    let text = crate::go::float::display(number);
    match text.as_str() {
        "NaN" => "nan".into(),
        "+Inf" => "inf".into(),
        "-Inf" => "-inf".into(),
        text => {
            // The package keeps exponents; a whole number gets a fraction.
            let plain = crate::go::float::fixed(number, None);
            if text.contains('e') {
                text.into()
            } else if plain.contains('.') {
                plain
            } else {
                format!("{plain}.0")
            }
        }
    }
}
