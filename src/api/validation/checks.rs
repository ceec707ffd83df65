//! Checks that many kinds share: required strings, selectors, values printed as Go prints them, and
//! line differences.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;

use serde_json::Value;
use sorting::CompactSort as _;

use super::each;
use super::labels::validate_selector;
use super::names::{self, Messages};
use crate::field::{Error, ErrorList, Path};
use crate::value::{get, is_empty, items, str_at};

/// Returns a `Required` error for each of the string fields that is absent or empty.
pub fn required(object: &Value, keys: &[&str], path: &Path) -> ErrorList {
    let missing = keys.iter().filter(|key| str_at(object, key).is_empty());
    missing.map(|key| Error::required(&path.child(key), "")).collect()
}

/// Validates the format of a required string field.
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

/// Validates the format of a string field unless it is absent or empty.
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

/// Validates the format of a string field unless it is absent; an empty string is validated (in
/// upstream's type the field is a pointer).
pub fn pointer_as(object: &Value, key: &str, path: &Path, rule: fn(&str) -> Messages) -> ErrorList {
    match get(object, key).as_str() {
        None => ErrorList::new(),
        Some(text) => each(&path.child(key), text, rule(text)).collect(),
    }
}

/// Validates a name that is one segment of a URL path.
pub fn segment(name: &str) -> Messages {
    names::name_is_path_segment(name, false)
}

/// Validates the label selector in the field `key` of an object.
pub fn selector(object: &Value, key: &str, path: &Path) -> ErrorList {
    validate_selector(get(object, key), &path.child(key), false)
}

/// The strings of the list in the field `key`; an element of another type reads as the empty
/// string.
pub fn texts<'a>(object: &'a Value, key: &str) -> Vec<&'a str> {
    items(object, key).iter().map(|v| v.as_str().unwrap_or_default()).collect()
}

/// Returns an `Invalid` error with the printed form of its value, for values that upstream prints
/// in the field order of its own structures.
pub fn printed(field: &Path, value: &str, detail: &str) -> Error {
    Error::omitted(field, format!("{value}: {detail}"))
}

/// How upstream prints a value of an internal type: with the field names of Go and without omitting
/// a field.
#[derive(Debug, Clone, Copy)]
pub enum Shape {
    /// A value printed as JSON; absence is `null`.
    Pointer,
    /// A string; absence is `""`.
    Text,
    /// A boolean; absence is `false`.
    Flag,
    /// A label selector, printed with its JSON names and without empty fields.
    Selector,
    /// A structure: the Go name, the JSON name and the shape of each field.
    Struct(&'static [(&'static str, &'static str, Shape)]),
    /// A pointer to a structure; absence is `null`.
    Optional(&'static Shape),
    /// A list; absence is `null`.
    List(&'static Shape),
}

/// Prints a value on one line.
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

/// Prints a value on several lines, with one space of indentation per level.
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

/// Number of unchanged lines before and after a change in a difference.
const CONTEXT: usize = 3;

/// The difference of two texts in the format of `diff -u`, without the file names.
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

/// Maximum number of lines of texts that are compared line by line; a longer text is shown as
/// replaced.
const LINES_MAX: usize = 4000;
/// In a text of at least this many lines, a line that occurs more often than once per hundred lines
/// does not start a common block.
const POPULAR_MIN: usize = 200;

/// The kept, removed and added lines that change one text into the other. The longest common block
/// is found first, then those before and after it (Ratcliff and Obershelp, as in upstream's
/// difflib).
fn steps<'a>(old: &'a [String], new: &'a [String]) -> Vec<(char, &'a String)> {
    let mut blocks =
        if old.len().max(new.len()) > LINES_MAX { Vec::new() } else { blocks(old, new) };
    blocks.push((old.len(), new.len(), 0));
    let (mut i, mut j, mut steps) = (0, 0, Vec::with_capacity(old.len() + new.len()));
    for (a, b, size) in blocks {
        steps.extend(old.get(i..a).unwrap_or_default().iter().map(|line| ('-', line)));
        steps.extend(new.get(j..b).unwrap_or_default().iter().map(|line| ('+', line)));
        steps.extend(old.get(a..a + size).unwrap_or_default().iter().map(|line| (' ', line)));
        (i, j) = (a + size, b + size);
    }
    steps
}

/// The common blocks in their order: the first line of each in both texts, and its number of lines.
fn blocks(old: &[String], new: &[String]) -> Vec<(usize, usize, usize)> {
    let mut places: HashMap<&str, Vec<usize>> = HashMap::new();
    for (j, line) in new.iter().enumerate() {
        places.entry(line).or_default().push(j);
    }
    if new.len() >= POPULAR_MIN {
        places.retain(|_, at| at.len() <= new.len() / 100 + 1);
    }
    let same = |i: usize, j: usize| old.get(i).is_some_and(|line| Some(line) == new.get(j));
    let (mut found, mut open) = (Vec::new(), vec![(0..old.len(), 0..new.len())]);
    while let Some((a, b)) = open.pop() {
        let (mut i, mut j, mut size) = (a.start, b.start, 0);
        // The length of the common block that ends at a line of the new text, by that line.
        let mut ends: HashMap<usize, usize> = HashMap::new();
        for at in a.clone() {
            let mut now = HashMap::new();
            let line = old.get(at).map_or("", String::as_str);
            for place in places.get(line).into_iter().flatten().filter(|place| b.contains(place)) {
                let length =
                    1 + place.checked_sub(1).and_then(|p| ends.get(&p)).copied().unwrap_or(0);
                now.insert(*place, length);
                if length > size {
                    (i, j, size) = (at + 1 - length, place + 1 - length, length);
                }
            }
            ends = now;
        }
        while i > a.start && j > b.start && same(i - 1, j - 1) {
            (i, j, size) = (i - 1, j - 1, size + 1);
        }
        while i + size < a.end && j + size < b.end && same(i + size, j + size) {
            size += 1;
        }
        if size > 0 {
            found.push((i, j, size));
            for (left, right) in [(a.start..i, b.start..j), (i + size..a.end, j + size..b.end)] {
                if !left.is_empty() && !right.is_empty() {
                    open.push((left, right));
                }
            }
        }
    }
    found.compact_sort();
    found
}

/// For each entry of a list, whether an equal entry precedes it.
#[derive(Debug)]
pub struct Again(Vec<bool>);

impl Again {
    /// Whether an equal entry precedes the entry at `index`.
    pub fn at(&self, index: usize) -> bool {
        self.0.get(index).copied().unwrap_or_default()
    }

    /// Whether the list has a duplicate.
    pub fn any(&self) -> bool {
        self.0.contains(&true)
    }
}

/// Finds duplicates in one pass: the length of a list is bounded only by that of the body.
pub fn repeated<T: Hash + Eq>(entries: impl Iterator<Item = T>) -> Again {
    let mut seen = HashSet::new();
    Again(entries.map(|entry| !seen.insert(entry)).collect())
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
    fn what_comes_again_is_told_from_its_second_place_on() {
        let again = repeated(["a", "b", "a", "a"].iter());
        assert_eq!([0, 1, 2, 3, 4].map(|at| again.at(at)), [false, false, true, true, false]);
        assert!(again.any() && !repeated(["a", "b"].iter()).any());
    }

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
        // The longest block is kept, whereas a minimal difference would keep a line of brackets.
        let lines = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(
            unified_diff(&lines("a ] x ] y z"), &lines("b ] y z")),
            "@@ -1,6 +1,4 @@\n-a\n-]\n-x\n+b\n ]\n y\n z\n"
        );
    }
}
