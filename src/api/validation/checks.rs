//! Checks that many kinds share: required strings, references, Go's way to print a value, and line differences.

use serde_json::Value;

use super::each;
use super::labels::validate_selector;
use super::names::{self, Messages};
use crate::field::{Error, ErrorList, Path};
use crate::value::{get, is_empty, items, str_at};

/// An error for each of the string fields that is absent or empty.
pub fn required(object: &Value, keys: &[&str], path: &Path) -> ErrorList {
    let missing = keys.iter().filter(|key| str_at(object, key).is_empty());
    missing.map(|key| Error::required(&path.child(key), "")).collect()
}

/// A string field that must be there and fit its format.
pub fn required_as(
    object: &Value,
    key: &str,
    path: &Path,
    rule: fn(&str) -> Messages,
) -> ErrorList {
    let (text, field) = (str_at(object, key), path.child(key));
    if text.is_empty() {
        return vec![Error::required(&field, "")];
    }
    each(&field, text, rule(text)).collect()
}

/// A string field that, when not empty, must fit its format.
pub fn optional_as(
    object: &Value,
    key: &str,
    path: &Path,
    rule: fn(&str) -> Messages,
) -> ErrorList {
    match str_at(object, key) {
        "" => ErrorList::new(),
        text => each(&path.child(key), text, rule(text)).collect(),
    }
}

/// A pointer to a string that must fit its format, also when empty.
pub fn pointer_as(object: &Value, key: &str, path: &Path, rule: fn(&str) -> Messages) -> ErrorList {
    match get(object, key).as_str() {
        None => ErrorList::new(),
        Some(text) => each(&path.child(key), text, rule(text)).collect(),
    }
}

/// A name that fits into one segment of a URL path.
pub fn segment(name: &str) -> Messages {
    names::name_is_path_segment(name, false)
}

/// A label selector below an object.
pub fn selector(object: &Value, key: &str, path: &Path) -> ErrorList {
    validate_selector(get(object, key), &path.child(key), false)
}

/// The strings of a list; anything else in it reads as empty.
pub fn texts<'a>(object: &'a Value, key: &str) -> Vec<&'a str> {
    items(object, key).iter().map(|v| v.as_str().unwrap_or_default()).collect()
}

/// An invalid value whose printed form is given, for values that upstream prints in the order of its own structures.
pub fn printed(field: &Path, value: &str, detail: &str) -> Error {
    Error::omitted(field, format!("{value}: {detail}"))
}

/// How upstream's internal structures print: field names are Go's, nothing is left out.
#[derive(Debug, Clone, Copy)]
pub enum Shape {
    /// Printed as it is; absence is `null`.
    Pointer,
    /// A string; absence is `""`.
    Text,
    /// A truth value; absence is `false`.
    Flag,
    /// A label selector, which prints with its JSON names and without what is empty.
    Selector,
    /// A structure: Go's name, the JSON name and the shape of each field.
    Struct(&'static [(&'static str, &'static str, Shape)]),
    /// A pointer to a structure; absence is `null`.
    Optional(&'static Shape),
    /// A list; absence is `null`.
    List(&'static Shape),
}

/// Prints a value in one line.
pub fn go_json(value: &Value, shape: Shape) -> String {
    match shape {
        Shape::Pointer => value.to_string(),
        Shape::Text => Value::from(value.as_str().unwrap_or_default()).to_string(),
        Shape::Flag => value.as_bool().unwrap_or_default().to_string(),
        Shape::Selector if value.is_null() => "null".into(),
        Shape::Selector => {
            let parts: Vec<String> =
                selector_fields(value).map(|(key, v)| format!("\"{key}\":{v}")).collect();
            format!("{{{}}}", parts.join(","))
        }
        Shape::Optional(_) | Shape::List(_) if value.is_null() => "null".into(),
        Shape::Optional(inner) => go_json(value, *inner),
        Shape::List(inner) => {
            let list = value.as_array().map(Vec::as_slice).unwrap_or_default();
            let parts: Vec<String> = list.iter().map(|v| go_json(v, *inner)).collect();
            format!("[{}]", parts.join(","))
        }
        Shape::Struct(fields) => {
            let parts: Vec<String> = fields
                .iter()
                .map(|(go, json, shape)| format!("\"{go}\":{}", go_json(get(value, json), *shape)))
                .collect();
            format!("{{{}}}", parts.join(","))
        }
    }
}

fn selector_fields(value: &Value) -> impl Iterator<Item = (&'static str, &Value)> {
    let keys = ["matchLabels", "matchExpressions"].into_iter();
    keys.filter(|key| !is_empty(value, key)).map(|key| (key, get(value, key)))
}

/// Prints a value over several lines, one space of indentation per level.
pub fn go_lines(value: &Value, shape: Shape) -> Vec<String> {
    match shape {
        Shape::Pointer => plain_lines(value),
        Shape::Text | Shape::Flag => vec![go_json(value, shape)],
        Shape::Selector if value.is_null() => vec!["null".into()],
        Shape::Selector => {
            let parts =
                selector_fields(value).map(|(key, v)| (format!("\"{key}\": "), plain_lines(v)));
            block('{', '}', parts.collect())
        }
        Shape::Optional(_) | Shape::List(_) if value.is_null() => vec!["null".into()],
        Shape::Optional(inner) => go_lines(value, *inner),
        Shape::List(inner) => {
            let list = value.as_array().map(Vec::as_slice).unwrap_or_default();
            block('[', ']', list.iter().map(|v| (String::new(), go_lines(v, *inner))).collect())
        }
        Shape::Struct(fields) => {
            let parts = fields.iter().map(|(go, json, shape)| {
                (format!("\"{go}\": "), go_lines(get(value, json), *shape))
            });
            block('{', '}', parts.collect())
        }
    }
}

fn plain_lines(value: &Value) -> Vec<String> {
    match value {
        Value::Array(list) => {
            block('[', ']', list.iter().map(|v| (String::new(), plain_lines(v))).collect())
        }
        Value::Object(map) => {
            let parts = map.iter().map(|(key, v)| (format!("\"{key}\": "), plain_lines(v)));
            block('{', '}', parts.collect())
        }
        other => vec![other.to_string()],
    }
}

fn block(open: char, close: char, parts: Vec<(String, Vec<String>)>) -> Vec<String> {
    if parts.is_empty() {
        return vec![format!("{open}{close}")];
    }
    let count = parts.len();
    let mut lines = vec![open.to_string()];
    for (index, (prefix, inner)) in parts.into_iter().enumerate() {
        let (last, comma) = (inner.len(), if index + 1 < count { "," } else { "" });
        for (at, line) in inner.into_iter().enumerate() {
            let prefix = if at == 0 { prefix.as_str() } else { "" };
            let comma = if at + 1 == last { comma } else { "" };
            lines.push(format!(" {prefix}{line}{comma}"));
        }
    }
    lines.push(close.to_string());
    lines
}

/// Lines around a change that are shown.
const CONTEXT: usize = 3;

/// The difference of two texts as `diff -u` shows it, without the names of files.
pub fn unified_diff(old: &[String], new: &[String]) -> String {
    let steps = steps(old, new);
    let changed: Vec<usize> =
        steps.iter().enumerate().filter(|(_, s)| s.0 != ' ').map(|(i, _)| i).collect();
    let mut out = String::new();
    let mut rest = changed.as_slice();
    while let Some(first) = rest.first().copied() {
        let gap = rest.windows(2).position(|w| matches!(w, [a, b] if b - a > 2 * CONTEXT + 1));
        let (taken, later) = rest.split_at(gap.map_or(rest.len(), |at| at + 1));
        let end = taken.last().copied().unwrap_or(first);
        rest = later;
        let (from, to) = (first.saturating_sub(CONTEXT), (end + CONTEXT + 1).min(steps.len()));
        let hunk = steps.get(from..to).unwrap_or_default();
        let before = steps.get(..from).unwrap_or_default();
        let count =
            |part: &[(char, &String)], not: char| part.iter().filter(|s| s.0 != not).count();
        out.push_str(&format!(
            "@@ -{} +{} @@\n",
            span(count(before, '+'), count(hunk, '+')),
            span(count(before, '-'), count(hunk, '-'))
        ));
        for (sign, line) in hunk {
            out.push_str(&format!("{sign}{line}\n"));
        }
    }
    out
}

fn span(before: usize, count: usize) -> String {
    match count {
        0 => format!("{before},0"),
        1 => (before + 1).to_string(),
        _ => format!("{},{count}", before + 1),
    }
}

/// Longest texts that are compared line by line in the middle; beyond it the middle is shown as replaced.
const LINES_MAX: usize = 400;

/// Keeps, removals and additions that lead from one text to the other.
fn steps<'a>(old: &'a [String], new: &'a [String]) -> Vec<(char, &'a String)> {
    let head = old.iter().zip(new).take_while(|(a, b)| a == b).count();
    let (a, b) = (old.get(head..).unwrap_or_default(), new.get(head..).unwrap_or_default());
    let tail = a.iter().rev().zip(b.iter().rev()).take_while(|(x, y)| x == y).count();
    let (a, end) = a.split_at(a.len() - tail);
    let b = b.get(..b.len() - tail).unwrap_or_default();
    let mut steps: Vec<(char, &String)> = old.iter().take(head).map(|l| (' ', l)).collect();
    if a.len() > LINES_MAX || b.len() > LINES_MAX {
        steps.extend(a.iter().map(|l| ('-', l)));
        steps.extend(b.iter().map(|l| ('+', l)));
    } else {
        steps.extend(common(a, b));
    }
    steps.extend(end.iter().map(|l| (' ', l)));
    steps
}

/// A longest common subsequence of lines; removals come before additions.
fn common<'a>(a: &'a [String], b: &'a [String]) -> Vec<(char, &'a String)> {
    let width = b.len() + 1;
    let mut table = vec![0_u32; (a.len() + 1) * width];
    let cell = |table: &[u32], i: usize, j: usize| table.get(i * width + j).copied().unwrap_or(0);
    for (i, x) in a.iter().enumerate().rev() {
        for (j, y) in b.iter().enumerate().rev() {
            let best = if x == y {
                cell(&table, i + 1, j + 1) + 1
            } else {
                cell(&table, i + 1, j).max(cell(&table, i, j + 1))
            };
            if let Some(slot) = table.get_mut(i * width + j) {
                *slot = best;
            }
        }
    }
    let (mut i, mut j, mut out) = (0, 0, Vec::new());
    loop {
        match (a.get(i), b.get(j)) {
            (Some(x), Some(y)) if x == y => {
                out.push((' ', x));
                (i, j) = (i + 1, j + 1);
            }
            (Some(x), other)
                if other.is_none() || cell(&table, i + 1, j) >= cell(&table, i, j + 1) =>
            {
                out.push(('-', x));
                i += 1;
            }
            (_, Some(y)) => {
                out.push(('+', y));
                j += 1;
            }
            _ => return out,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const TAINT: Shape = Shape::Struct(&[
        ("Key", "key", Shape::Text),
        ("TimeAdded", "timeAdded", Shape::Pointer),
        ("Modes", "modes", Shape::List(&Shape::Text)),
    ]);

    #[test]
    fn structures_print_as_upstreams() {
        assert_eq!(
            go_json(&json!({"key": "k"}), TAINT),
            r#"{"Key":"k","TimeAdded":null,"Modes":null}"#
        );
        let old = go_lines(&json!({"key": "k", "modes": ["a"]}), TAINT);
        assert_eq!(old[3..], [" \"Modes\": [", "  \"a\"", " ]", "}"]);
        let new = go_lines(&json!({"key": "x", "modes": ["a"]}), TAINT);
        assert_eq!(
            unified_diff(&old, &new),
            "@@ -1,5 +1,5 @@\n {\n- \"Key\": \"k\",\n+ \"Key\": \"x\",\n  \"TimeAdded\": null,\n  \"Modes\": [\n   \"a\"\n"
        );
        assert_eq!(unified_diff(&old, &old), "");
    }
}
