//! JSON values as Go's `fmt` prints them in error messages.

use serde_json::{Number, Value};

use crate::field::go_quote;

/// The format `%v`: `map[a:1 b:[x y]]`.
pub fn v(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".into(),
        Value::Bool(b) => b.to_string(),
        Value::Number(n) => number(n),
        Value::String(s) => s.clone(),
        Value::Array(items) => format!("[{}]", items.iter().map(v).collect::<Vec<_>>().join(" ")),
        Value::Object(map) => format!(
            "map[{}]",
            map.iter().map(|(k, x)| format!("{k}:{}", v(x))).collect::<Vec<_>>().join(" ")
        ),
    }
}

/// The format `%s`, which marks values other than strings: `%!s(int64=1)`.
pub(super) fn s(value: &Value) -> String {
    match value {
        Value::Null => "%!s(<nil>)".into(),
        Value::Bool(_) | Value::Number(_) => format!("%!s({}={})", type_name(value), v(value)),
        Value::String(text) => text.clone(),
        Value::Array(items) => format!("[{}]", items.iter().map(s).collect::<Vec<_>>().join(" ")),
        Value::Object(map) => format!(
            "map[{}]",
            map.iter().map(|(k, x)| format!("{k}:{}", s(x))).collect::<Vec<_>>().join(" ")
        ),
    }
}

/// The format `%#v`: `map[string]interface {}{"a":1}`.
pub(super) fn sharp(value: &Value) -> String {
    match value {
        Value::Null => "interface {}(nil)".into(),
        Value::Bool(b) => b.to_string(),
        Value::Number(n) => number(n),
        Value::String(s) => go_quote(s),
        Value::Array(items) => format!(
            "[]interface {{}}{{{}}}",
            items.iter().map(sharp).collect::<Vec<_>>().join(", ")
        ),
        Value::Object(map) => {
            let fields: Vec<String> =
                map.iter().map(|(k, x)| format!("{}:{}", go_quote(k), sharp(x))).collect();
            format!("map[string]interface {{}}{{{}}}", fields.join(", "))
        }
    }
}

/// The format `%T` of a decoded value.
pub fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(n) if n.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

/// The name of a value's type in the errors of `encoding/json` about a value of a wrong type.
pub(super) fn json_kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn number(n: &Number) -> String {
    match n.as_f64() {
        Some(f) if n.is_f64() && f.fract() == 0.0 && f.abs() < 1e21 => format!("{f:.0}"),
        _ => n.to_string(),
    }
}
