//! The elements of field paths in the serialized form of FieldsV1, and upstream's order of them.

use std::cmp::Ordering;

use serde_json::Value;
use sorting::CompactSort as _;

use super::FieldsError;
use crate::field::go_quote;

/// A path element in FieldsV1 form, such as `f:spec` or `k:{"name":"a"}`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Element(pub(super) Box<str>);

impl Element {
    /// Creates the element of a struct field or a map key.
    pub fn field(name: &str) -> Self {
        Self(["f:", name].concat().into())
    }

    /// Creates the element of an associative list; `keys` are the key fields that are set.
    pub fn keys<'a>(keys: impl IntoIterator<Item = (&'a str, &'a Value)>) -> Self {
        let mut sorted: Vec<(&str, &Value)> = keys.into_iter().collect();
        sorted.compact_sort_by_key(|(name, _)| *name);
        let mut text = String::from("k:{");
        for (i, (name, value)) in sorted.into_iter().enumerate() {
            if i > 0 {
                text.push(',');
            }
            text.push_str(&Value::from(name).to_string());
            text.push(':');
            text.push_str(&canonical(value));
        }
        text.push('}');
        Self(text.into())
    }

    /// Creates the element of a set.
    pub fn value(value: &Value) -> Self {
        Self(format!("v:{}", canonical(value)).into())
    }

    /// Parses a key of FieldsV1; returns `Ok(None)` for an unknown kind, which is ignored.
    pub(super) fn parse(key: &str) -> Result<Option<Self>, FieldsError> {
        let Some((kind, rest)) = key.split_once(':').filter(|(kind, _)| kind.len() == 1) else {
            return Err(if key.len() < 2 {
                FieldsError::ShortKey
            } else {
                FieldsError::NoColon(key.to_owned())
            });
        };
        let json = |text: &str| {
            serde_json::from_str::<Value>(text).map_err(|e| FieldsError::Json(e.to_string()))
        };
        Ok(match kind {
            "f" => Some(Self(key.into())),
            "v" => Some(Self::value(&json(rest)?)),
            "k" => match json(rest)? {
                Value::Object(map) => Some(Self::keys(map.iter().map(|(k, v)| (k.as_str(), v)))),
                other => return Err(FieldsError::KeysNotAnObject(other.to_string())),
            },
            "i" => Some(Self(format!("i:{}", rest.parse::<i64>()?).into())),
            _ => None,
        })
    }

    /// Returns the name if this is a field.
    pub fn name(&self) -> Option<&str> {
        self.0.strip_prefix("f:")
    }

    /// Compares in upstream's order: fields, keys, values, indexes, and by content within each
    /// kind.
    pub(super) fn compare(&self, other: &Self) -> Ordering {
        compare_texts(&self.0, &other.0)
    }

    /// Formats the element for a path: `.spec`, `[name="a"]`, `[="x"]`, `[1]`.
    pub fn show(&self) -> String {
        let rest = self.0.get(2..).unwrap_or_default();
        let json = || serde_json::from_str::<Value>(rest).unwrap_or_default();
        match self.0.as_bytes().first() {
            Some(b'f') => format!(".{rest}"),
            Some(b'k') => match json() {
                Value::Object(map) => {
                    format!(
                        "[{}]",
                        map.iter()
                            .map(|(k, v)| format!("{k}={}", shown(v)))
                            .collect::<Vec<_>>()
                            .join(",")
                    )
                }
                _ => "[]".into(),
            },
            Some(b'v') => format!("[={}]", shown(&json())),
            _ => format!("[{rest}]"),
        }
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => go_quote(text),
        other => other.to_string(),
    }
}

/// Returns compact JSON. A float without a fraction becomes an integer, and HTML characters are
/// escaped as Go does.
fn canonical(value: &Value) -> String {
    let text = match value.as_f64() {
        Some(f) if value.is_f64() && f.fract() == 0.0 && f.abs() < 9e15 => {
            return format!("{f:.0}");
        }
        _ => value.to_string(),
    };
    if !text.contains(['<', '>', '&', '\u{2028}', '\u{2029}']) {
        return text;
    }
    let mut out = String::with_capacity(text.len() + 16);
    for letter in text.chars() {
        match letter {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                out.push_str(&format!("\\u{:04x}", u32::from(letter)));
            }
            other => out.push(other),
        }
    }
    out
}

/// Compares values in upstream's total order: numbers, strings, booleans, others.
fn compare_values(a: &Value, b: &Value) -> Ordering {
    let rank = |v: &Value| match v {
        Value::Number(_) => 0,
        Value::String(_) => 1,
        Value::Bool(_) => 2,
        Value::Array(_) => 3,
        Value::Object(_) => 4,
        Value::Null => 5,
    };
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => match (x.as_i64(), y.as_i64()) {
            (Some(x), Some(y)) => x.cmp(&y),
            _ => x.as_f64().partial_cmp(&y.as_f64()).unwrap_or(Ordering::Equal),
        },
        (Value::String(x), Value::String(y)) => x.cmp(y),
        (Value::Bool(x), Value::Bool(y)) => x.cmp(y),
        (Value::Object(x), Value::Object(y)) => {
            for ((xk, xv), (yk, yv)) in x.iter().zip(y) {
                match xk.cmp(yk).then_with(|| compare_values(xv, yv)) {
                    Ordering::Equal => {}
                    other => return other,
                }
            }
            x.len().cmp(&y.len())
        }
        _ => rank(a).cmp(&rank(b)),
    }
}

/// Compares serialized path elements in upstream's order.
pub(super) fn compare_texts(a: &str, b: &str) -> Ordering {
    let rank = |text: &str| match text.as_bytes().first() {
        Some(b'f') => 0,
        Some(b'k') => 1,
        Some(b'v') => 2,
        _ => 3,
    };
    rank(a).cmp(&rank(b)).then_with(|| {
        if a == b || a.starts_with('f') {
            return a.cmp(b);
        }
        compare_unparsed(a, b).unwrap_or_else(|| {
            let parse = |text: &str| {
                text.get(2..)
                    .and_then(|text| serde_json::from_str::<Value>(text).ok())
                    .unwrap_or_default()
            };
            compare_values(&parse(a), &parse(b)).then_with(|| a.cmp(b))
        })
    })
}

/// Compares two different canonical elements by their bytes if they first differ within a string or
/// a short number; returns `None` if the values must be parsed. A sort or a search makes many
/// comparisons, so this path is fast.
fn compare_unparsed(a: &str, b: &str) -> Option<Ordering> {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let differs = a.iter().zip(b).position(|(a, b)| a != b)?;
    let (before, rest_a) = a.split_at_checked(differs)?;
    let (_, rest_b) = b.split_at_checked(differs)?;
    let (first_a, first_b) = (*rest_a.first()?, *rest_b.first()?);
    if before.contains(&b'\\') || first_a == b'\\' || first_b == b'\\' {
        return None;
    }
    let in_string = before.iter().filter(|byte| **byte == b'"').count() % 2 == 1;
    if !in_string {
        return compare_numbers(before, a, b);
    }
    // A string that ends first is the lesser one.
    Some(match (first_a, first_b) {
        (b'"', _) => Ordering::Less,
        (_, b'"') => Ordering::Greater,
        (a, b) => a.cmp(&b),
    })
}

/// Compares two whole numbers that start within or directly after the common part `before`.
fn compare_numbers(before: &[u8], a: &[u8], b: &[u8]) -> Option<Ordering> {
    let begin = before.iter().rposition(|byte| !byte.is_ascii_digit())?;
    let number = |text: &'_ [u8]| -> Option<u64> {
        let digits = text.get(begin + 1..)?;
        let end = digits.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(digits.len());
        let whole = matches!(digits.get(end), None | Some(b',' | b'}'));
        // Longer numbers compare as floats.
        let short = (1..=18).contains(&end);
        let parse = || std::str::from_utf8(digits.get(..end)?).ok()?.parse::<u64>().ok();
        (whole && short).then(parse).flatten()
    };
    if before.get(begin) != Some(&b':') {
        return None;
    }
    Some(number(a)?.cmp(&number(b)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_order_of_unparsed_texts_is_that_of_the_values() {
        let values = [
            json!({"name": "a"}),
            json!({"name": "ab"}),
            json!({"name": "a!"}),
            json!({"name": "a\"b"}),
            json!({"name": "a\nb"}),
            json!({"name": "é"}),
            json!({"name": "a", "port": 1}),
            json!({"name": "a", "port": 10}),
            json!({"port": 9, "protocol": "TCP"}),
            json!({"port": 10, "protocol": "TCP"}),
            json!({"port": 10, "protocol": "UDP"}),
            json!({"nam": "z"}),
            json!({"port": -9}),
            json!({"port": 1.5}),
            json!({"port": 15}),
            json!({"port": 9_223_372_036_854_775_807_u64}),
            json!({"port": "15"}),
            json!({"port": true}),
        ];
        for a in &values {
            for b in &values {
                let elements = [a, b].map(|v| {
                    Element::keys(v.as_object().unwrap().iter().map(|(k, v)| (k.as_str(), v)))
                });
                assert_eq!(elements[0].compare(&elements[1]), compare_values(a, b), "{a} {b}");
            }
        }
        for (a, b) in [("a", "ab"), ("a", "a!"), ("\u{1}", " "), ("z", "é"), ("\\", "a")] {
            let elements = [a, b].map(|text| Element::value(&json!(text)));
            assert_eq!(elements[0].compare(&elements[1]), a.cmp(b), "{a} {b}");
        }
    }
}
