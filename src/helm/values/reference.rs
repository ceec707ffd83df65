//! References inside a JSON schema.

use serde_json::Value;

/// The deepest nesting that is searched for an anchor.
const DEPTH_MAX: usize = 128;

/// The schema with this anchor or identifier.
pub(super) fn find_anchor<'a>(schema: &'a Value, name: &str, depth: usize) -> Option<&'a Value> {
    if depth > DEPTH_MAX {
        return None;
    }
    match schema {
        Value::Object(object) => {
            let is_named = |key: &str| {
                object
                    .get(key)
                    .and_then(Value::as_str)
                    .is_some_and(|id| id.trim_start_matches('#') == name)
            };
            if !name.is_empty() && (is_named("$anchor") || is_named("$id") || is_named("id")) {
                return Some(schema);
            }
            object.values().find_map(|inner| find_anchor(inner, name, depth + 1))
        }
        Value::Array(items) => items.iter().find_map(|item| find_anchor(item, name, depth + 1)),
        _ => None,
    }
}

pub(super) fn percent_decoded(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        let decoded = hex.filter(|_| *byte == b'%').map(|hex| u8::from_str_radix(hex, 16));
        if let Some(Ok(decoded)) = decoded {
            out.push(decoded);
            rest = after.get(2..).unwrap_or_default();
        } else {
            out.push(*byte);
            rest = after;
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}
