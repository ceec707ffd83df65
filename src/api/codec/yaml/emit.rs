//! The YAML emitter with upstream's layout: block style, keys in natural order, plain scalars where
//! the syntax permits them, and folding at column 80.
//!
//! The rules are those of `go.yaml.in/yaml/v2` (`encode.go`, `emitterc.go`, `sorter.go`), which
//! `sigs.k8s.io/yaml` uses.

use std::cmp::Ordering;

use serde_json::{Map, Value};
use sorting::CompactSort as _;

/// The column after which the emitter replaces a space by a line break.
const WIDTH: usize = 80;
/// The longest simple key. The emitter writes a longer key as a complex key, after `?`.
const SIMPLE_KEY_MAX: usize = 128;
const STEP: usize = 2;

/// Formats a value as a document.
pub(super) fn write(value: &Value) -> String {
    let mut out = Emitter::default();
    out.node(value, 0, NodePosition::Root);
    out.text.push('\n');
    out.text
}

/// Returns the text that precedes and the text that follows the items of the list `field` in the
/// document `whole`. [`item`] formats the items.
pub(super) fn around(whole: &Map<String, Value>, field: &str) -> (String, String) {
    let part = |side: Ordering| -> String {
        let members = whole.iter().filter(|(key, _)| natural(key, field) == side);
        let part: Map<String, Value> = members.map(|(k, v)| (k.clone(), v.clone())).collect();
        if part.is_empty() { String::new() } else { write(&Value::Object(part)) }
    };
    (format!("{}{field}:\n", part(Ordering::Less)), part(Ordering::Greater))
}

/// Formats an item of a list that is a member of the document.
pub(super) fn item(value: Value) -> String {
    // The list has the indentation of its key, which is that of a list at the root.
    write(&Value::Array(vec![value]))
}

/// The position of a value, which determines whether it shares a line with its parent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NodePosition {
    Root,
    /// After the colon of a key with this indentation.
    Member,
    /// After a dash, or after the colon of a complex key. The line is already indented.
    Item,
}

#[derive(Default)]
struct Emitter {
    text: String,
    /// The number of characters on the current line.
    column: usize,
}

impl Emitter {
    fn put(&mut self, text: &str) {
        self.text.push_str(text);
        self.column += text.chars().count();
    }

    /// Starts a line with this indentation, unless the current line is at this column.
    fn line(&mut self, indent: usize) {
        if self.column > 0 {
            self.text.push('\n');
            self.column = 0;
        }
        self.put(&" ".repeat(indent));
    }

    fn node(&mut self, value: &Value, indent: usize, place: NodePosition) {
        match value {
            Value::Object(map) if !map.is_empty() => self.mapping(map, indent, place),
            Value::Array(items) if !items.is_empty() => {
                for (index, item) in items.iter().enumerate() {
                    if index > 0 || place == NodePosition::Member {
                        self.line(indent);
                    }
                    self.put("-");
                    self.value(item, indent + STEP, NodePosition::Item);
                }
            }
            leaf => self.scalar(leaf, indent),
        }
    }

    fn mapping(&mut self, map: &Map<String, Value>, indent: usize, place: NodePosition) {
        let mut members: Vec<(&String, &Value)> = map.iter().collect();
        members.compact_sort_by(|a, b| natural(a.0, b.0));
        for (index, (key, value)) in members.into_iter().enumerate() {
            if index > 0 || place == NodePosition::Member {
                self.line(indent);
            }
            if key.len() > SIMPLE_KEY_MAX || key.contains('\n') {
                self.put("? ");
                self.string(key, indent + STEP, false);
                self.line(indent);
                self.put(":");
                self.value(value, indent + STEP, NodePosition::Item);
                continue;
            }
            self.string(key, indent, true);
            self.put(":");
            // A list has the indentation of its key.
            let inner = if value.is_array() { indent } else { indent + STEP };
            self.value(value, inner, NodePosition::Member);
        }
    }

    /// Writes the value after a dash or a colon.
    fn value(&mut self, value: &Value, indent: usize, place: NodePosition) {
        let is_block = match value {
            Value::Object(map) => !map.is_empty(),
            Value::Array(items) => !items.is_empty(),
            _ => false,
        };
        if !is_block || place == NodePosition::Item {
            self.put(" ");
        }
        self.node(value, indent, place);
    }

    fn scalar(&mut self, value: &Value, indent: usize) {
        match value {
            Value::Null => self.put("null"),
            Value::Bool(truth) => self.put(if *truth { "true" } else { "false" }),
            Value::Number(number) => {
                let text = match number.as_f64().filter(|_| number.is_f64()) {
                    Some(float) => crate::field::go_float(float),
                    None => number.to_string(),
                };
                self.put(&text);
            }
            Value::String(text) => {
                // The continuation lines of a string are indented at the root, too.
                self.string(text, indent.max(STEP), false);
            }
            Value::Array(_) => self.put("[]"),
            Value::Object(_) => self.put("{}"),
        }
    }

    fn string(&mut self, text: &str, indent: usize, is_key: bool) {
        let look = Look::of(text);
        if text.contains('\n') {
            if look.block && !is_key {
                return self.literal(text, indent);
            }
            return self.double(text, indent, is_key);
        }
        if text.is_empty() || is_other(text) {
            self.double(text, indent, is_key);
        } else if look.plain {
            self.folded(text, indent, is_key, false);
        } else if look.single {
            self.put("'");
            self.folded(text, indent, is_key, true);
            self.put("'");
        } else {
            self.double(text, indent, is_key);
        }
    }

    fn literal(&mut self, text: &str, indent: usize) {
        self.put("|");
        if text.starts_with([' ', '\n']) {
            self.put(&STEP.to_string());
        }
        if !text.ends_with('\n') {
            self.put("-");
        } else if text == "\n" || text.ends_with("\n\n") {
            self.put("+");
        }
        for line in text.strip_suffix('\n').unwrap_or(text).split('\n') {
            self.text.push('\n');
            self.column = 0;
            if !line.is_empty() {
                self.put(&" ".repeat(indent));
                self.put(line);
            }
        }
        // The next value starts a new line, even if this line is empty.
        self.column = self.column.max(1);
    }

    /// Writes a string with line breaks at single spaces; `quoted` doubles its single quotes.
    fn folded(&mut self, text: &str, indent: usize, is_key: bool, quoted: bool) {
        let chars: Vec<char> = text.chars().collect();
        let mut after_space = false;
        for (index, char) in chars.iter().enumerate() {
            if *char == ' ' {
                let inside = !quoted || (index > 0 && index + 1 < chars.len());
                let single = chars.get(index + 1) != Some(&' ');
                if !is_key && !after_space && self.column > WIDTH && inside && single {
                    self.line(indent);
                } else {
                    self.put(" ");
                }
                after_space = true;
                continue;
            }
            if quoted && *char == '\'' {
                self.put("'");
            }
            self.put(char.encode_utf8(&mut [0; 4]));
            after_space = false;
        }
    }

    fn double(&mut self, text: &str, indent: usize, is_key: bool) {
        self.put("\"");
        let chars: Vec<char> = text.chars().collect();
        let mut after_space = false;
        for (index, char) in chars.iter().enumerate() {
            if *char == ' ' {
                let inside = index > 0 && index + 1 < chars.len();
                if !is_key && !after_space && self.column > WIDTH && inside {
                    self.line(indent);
                    if chars.get(index + 1) == Some(&' ') {
                        self.put("\\");
                    }
                } else {
                    self.put(" ");
                }
                after_space = true;
                continue;
            }
            self.put(&escaped(*char));
            after_space = false;
        }
        self.put("\"");
    }
}

fn escaped(char: char) -> String {
    let short = match char {
        '\0' => "\\0",
        '\x07' => "\\a",
        '\x08' => "\\b",
        '\t' => "\\t",
        '\n' => "\\n",
        '\x0b' => "\\v",
        '\x0c' => "\\f",
        '\r' => "\\r",
        '\x1b' => "\\e",
        '"' => "\\\"",
        '\\' => "\\\\",
        '\u{85}' => "\\N",
        '\u{a0}' => "\\_",
        '\u{2028}' => "\\L",
        '\u{2029}' => "\\P",
        char if is_printable(char) => return char.to_string(),
        char => {
            let code = u32::from(char);
            return match code {
                0..=0xff => format!("\\x{code:02X}"),
                0x100..=0xffff => format!("\\u{code:04X}"),
                _ => format!("\\U{code:08X}"),
            };
        }
    };
    short.to_owned()
}

/// Returns whether upstream's library prints the character, which excludes all outside the basic
/// multilingual plane.
fn is_printable(char: char) -> bool {
    matches!(
        u32::from(char),
        0x0a | 0x20..=0x7e | 0xa0..=0xd7ff | 0xe000..=0xfefe | 0xff00..=0xfffd
    )
}

/// The scalar styles that a string permits.
struct Look {
    plain: bool,
    single: bool,
    block: bool,
}

impl Look {
    fn of(text: &str) -> Self {
        let (mut indicator, mut special) =
            (text.starts_with("---") || text.starts_with("..."), false);
        let (mut space_break, mut break_space) = (false, false);
        let is_break = |c: char| matches!(c, '\r' | '\n' | '\u{85}' | '\u{2028}' | '\u{2029}');
        let mut before: Option<char> = None;
        let mut chars = text.chars().peekable();
        while let Some(char) = chars.next() {
            let ends_word =
                chars.peek().is_none_or(|next| matches!(next, ' ' | '\t') || is_break(*next));
            let begins_word = before.is_none_or(|c| matches!(c, ' ' | '\t') || is_break(c));
            indicator |= match (before, char) {
                (
                    None,
                    '#' | ',' | '[' | ']' | '{' | '}' | '&' | '*' | '!' | '|' | '>' | '\'' | '"'
                    | '%' | '@' | '`',
                ) => true,
                (None, '?' | ':' | '-') | (Some(_), ':') => ends_word,
                (Some(_), '#') => begins_word,
                _ => false,
            };
            special |= !is_printable(char);
            if char == ' ' {
                break_space |= before.is_some_and(is_break);
            } else if is_break(char) {
                space_break |= before == Some(' ');
            }
            before = Some(char);
        }
        let edge = |c: Option<char>| c.is_some_and(|c| c == ' ' || is_break(c));
        let edged = edge(text.chars().next()) || edge(text.chars().next_back());
        let breaks = text.chars().any(is_break);
        let hard = space_break || special;
        Self {
            plain: !(edged || indicator || breaks || hard || break_space),
            single: !(hard || break_space),
            block: !(hard || text.ends_with(' ')),
        }
    }
}

/// Returns whether a parser resolves the plain text to a type other than string.
fn is_other(text: &str) -> bool {
    match text.as_bytes().first() {
        Some(b'y' | b'Y' | b'n' | b'N' | b't' | b'T' | b'f' | b'F' | b'o' | b'O' | b'~') => {
            matches!(
                text,
                "y" | "Y"
                    | "yes"
                    | "Yes"
                    | "YES"
                    | "true"
                    | "True"
                    | "TRUE"
                    | "on"
                    | "On"
                    | "ON"
                    | "n"
                    | "N"
                    | "no"
                    | "No"
                    | "NO"
                    | "false"
                    | "False"
                    | "FALSE"
                    | "off"
                    | "Off"
                    | "OFF"
                    | "~"
                    | "null"
                    | "Null"
                    | "NULL"
            )
        }
        Some(b'.') => {
            matches!(text, ".nan" | ".NaN" | ".NAN" | ".inf" | ".Inf" | ".INF") || is_float(text)
        }
        Some(b'+' | b'-' | b'0'..=b'9') => {
            let plain = text.replace('_', "");
            matches!(text, "+.inf" | "+.Inf" | "+.INF" | "-.inf" | "-.Inf" | "-.INF")
                || is_time(text)
                || is_integer(&plain)
                || is_float(&plain)
                || is_base_60(text)
        }
        _ => false,
    }
}

/// Returns whether `strconv.ParseInt` or `ParseUint` with base 0 accepts the text.
fn is_integer(text: &str) -> bool {
    let bare = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (digits, base) = match bare.get(..2).map(str::to_ascii_lowercase).as_deref() {
        Some("0x") => (bare.get(2..), 16),
        Some("0b") => (bare.get(2..), 2),
        Some("0o") => (bare.get(2..), 8),
        _ if bare.len() > 1 && bare.starts_with('0') => (bare.get(1..), 8),
        _ => (Some(bare), 10),
    };
    let digits = digits.filter(|d| d.bytes().all(|b| b.is_ascii_alphanumeric()));
    let Some(Ok(number)) = digits.map(|digits| u64::from_str_radix(digits, base)) else {
        return false;
    };
    match text.as_bytes().first() {
        Some(b'-') => number <= 1 << 63,
        // Only a number without a sign can be an unsigned one.
        Some(b'+') => number < 1 << 63,
        _ => true,
    }
}

fn is_float(text: &str) -> bool {
    let bare = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (mantissa, exponent) = match bare.find(['e', 'E']) {
        Some(at) => (bare.get(..at).unwrap_or_default(), bare.get(at + 1..)),
        None => (bare, None),
    };
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    let whole = match mantissa.split_once('.') {
        Some(("", fraction)) => !fraction.is_empty() && digits(fraction),
        Some((whole, fraction)) => digits(whole) && digits(fraction),
        None => !mantissa.is_empty() && digits(mantissa),
    };
    let power = exponent.is_none_or(|e| {
        let e = e.strip_prefix(['+', '-']).unwrap_or(e);
        !e.is_empty() && digits(e)
    });
    whole && power && bare.parse::<f64>().is_ok_and(f64::is_finite)
}

/// Returns whether the text matches `[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?`.
fn is_base_60(text: &str) -> bool {
    let bare = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (bare, fraction) = bare.split_once('.').unwrap_or((bare, ""));
    let mut parts = bare.split(':');
    let first = parts.next().unwrap_or_default();
    let number = |text: &str| text.bytes().all(|b| b.is_ascii_digit() || b == b'_');
    let part = |text: &str| matches!(text.as_bytes(), [b'0'..=b'9'] | [b'0'..=b'5', b'0'..=b'9']);
    let rest: Vec<&str> = parts.collect();
    first.starts_with(|c: char| c.is_ascii_digit())
        && number(first)
        && !rest.is_empty()
        && rest.iter().all(|text| part(text))
        && number(fraction)
}

/// Returns whether the library resolves the text to a date or a time.
fn is_time(text: &str) -> bool {
    let Some((year, rest)) = text.split_once('-') else { return false };
    if year.len() != 4 || !year.bytes().all(|b| b.is_ascii_digit()) {
        return false;
    }
    let short =
        |text: &str| matches!(text.len(), 1 | 2) && text.bytes().all(|b| b.is_ascii_digit());
    let Some((month, rest)) = rest.split_once('-').filter(|(month, _)| short(month)) else {
        return false;
    };
    let (day, clock) = match rest.find(['T', 't', ' ']) {
        None => (rest, None),
        Some(at) => (rest.get(..at).unwrap_or_default(), rest.get(at..)),
    };
    let number = |text: &str| text.parse::<i8>().unwrap_or(-1);
    let year = year.parse::<i16>().unwrap_or(-1);
    if !short(day) || jiff::civil::Date::new(year, number(month), number(day)).is_err() {
        return false;
    }
    let Some(clock) = clock else { return true };
    let zoned = !clock.starts_with(' ');
    let clock = clock.get(1..).unwrap_or_default();
    let (clock, zone) = match clock.find(['Z', '+', '-']) {
        Some(at) if zoned => (clock.get(..at).unwrap_or_default(), clock.get(at..)),
        _ => (clock, None),
    };
    let is_zone = |zone: &str| {
        zone == "Z"
            || matches!(
                zone.as_bytes(),
                [b'+' | b'-', a, b, b':', c, d]
                    if [a, b, c, d].iter().all(|b| b.is_ascii_digit())
            )
    };
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
    let parts: Vec<&str> = clock.split(':').collect();
    let in_range = match parts.as_slice() {
        [hour, minute, second] => {
            [hour, minute, second].iter().all(|part| short(part))
                && number(hour) < 24
                && number(minute) < 60
                && number(second) < 60
        }
        _ => false,
    };
    let fraction = !fraction.is_empty() && fraction.bytes().all(|b| b.is_ascii_digit());
    in_range && fraction && zone.is_some_and(is_zone) == zoned
}

/// Compares two keys in natural order: numbers by value, letters after all other characters.
fn natural(a: &str, b: &str) -> Ordering {
    let (left, right): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    for (at, (l, r)) in left.iter().zip(&right).enumerate() {
        if l == r {
            continue;
        }
        match (l.is_alphabetic(), r.is_alphabetic()) {
            (true, true) => return l.cmp(r),
            (true, false) => return Ordering::Greater,
            (false, true) => return Ordering::Less,
            (false, false) => {}
        }
        let run = |chars: &[char]| -> Vec<u8> {
            let digits = chars.iter().skip(at).take_while(|c| c.is_ascii_digit());
            digits.filter_map(|c| u8::try_from(*c).ok()).collect()
        };
        let (ln, rn) = (run(&left), run(&right));
        // Within a number, a zero is not a leading zero.
        let before = left.get(..at).unwrap_or_default();
        let inside = (*l == '0' || *r == '0')
            && before.iter().rev().take_while(|c| c.is_ascii_digit()).any(|c| *c != '0');
        let number = |digits: &[u8]| {
            digits.iter().fold(i64::from(inside), |number, digit| {
                number.wrapping_mul(10).wrapping_add(i64::from(digit - b'0'))
            })
        };
        return number(&ln).cmp(&number(&rn)).then(ln.len().cmp(&rn.len())).then(l.cmp(r));
    }
    left.len().cmp(&right.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The texts are parts of the answers of kube-apiserver 1.37.1 to `Accept: application/yaml`.
    #[test]
    fn answers_are_written_as_upstream_writes_them() {
        let refusal = json!({"apiVersion": "v1", "code": 400, "kind": "Status", "metadata": {}, "reason": "BadRequest", "status": "Failure",
            "message": "\"status.successful\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\""});
        assert_eq!(
            write(&refusal),
            "apiVersion: v1\ncode: 400\nkind: Status\nmessage: '\"status.successful\" is not a known field selector: only \"metadata.name\",\n  \"metadata.namespace\"'\nmetadata: {}\nreason: BadRequest\nstatus: Failure\n"
        );
        let refusal = json!({"message": "unable to parse requirement: found 'b' expected: '('"});
        assert_eq!(
            write(&refusal),
            "message: 'unable to parse requirement: found ''b'' expected: ''('''\n"
        );
        let list = json!({"items": [], "metadata": {"resourceVersion": "295"}, "rules": null, "rest": [
            {"metadata": {"managedFields": [{"fieldsV1": {"f:metadata": {"f:labels": {".": {}, "f:a.b/c": {}, "k:{\"port\":80}": {}}}}, "time": "2026-01-01T00:00:00Z"}]}}]});
        assert_eq!(
            write(&list),
            "items: []\nmetadata:\n  resourceVersion: \"295\"\nrest:\n- metadata:\n    managedFields:\n    - fieldsV1:\n        f:metadata:\n          f:labels:\n            .: {}\n            f:a.b/c: {}\n            k:{\"port\":80}: {}\n      time: \"2026-01-01T00:00:00Z\"\nrules: null\n"
        );
    }

    /// The texts follow from the source of `go.yaml.in/yaml/v2`.
    #[test]
    fn texts_have_the_style_of_the_library() {
        let of = |text: &str| {
            let out = write(&json!({ "k": text }));
            out.strip_prefix("k: ").map(|s| s.trim_end_matches('\n').to_owned()).unwrap_or(out)
        };
        for (text, want) in [
            ("", "\"\""),
            ("yes", "\"yes\""),
            ("yet", "yet"),
            ("12", "\"12\""),
            ("0x1f", "\"0x1f\""),
            ("09", "\"09\""),
            ("1e3", "\"1e3\""),
            ("1.5Gi", "1.5Gi"),
            ("12:30:45", "\"12:30:45\""),
            ("12:30:99", "12:30:99"),
            ("2026-01-01", "\"2026-01-01\""),
            ("2026-13-01", "2026-13-01"),
            ("10.0.0.1", "10.0.0.1"),
            ("a: b", "'a: b'"),
            ("a:b", "a:b"),
            ("a #b", "'a #b'"),
            ("- a", "'- a'"),
            ("*", "'*'"),
            ("it's", "it's"),
            ("'", "''''"),
            ("a\tb", "\"a\\tb\""),
            (" a", "' a'"),
            ("x\ny\n", "|\n  x\n  y"),
            ("x\ny", "|-\n  x\n  y"),
            ("x\n\n", "|+\n  x"),
            (" x\n", "|2\n   x"),
            ("x \ny", "\"x \\ny\""),
            ("~", "\"~\""),
            ("<<", "<<"),
            ("é", "é"),
            ("\u{1f600}", "\"\\U0001F600\""),
        ] {
            assert_eq!(of(text), want.trim_end_matches('\n'), "{text:?}");
        }
        let long = "k".repeat(129);
        assert_eq!(
            write(&json!({"a": {&long: {"b": 1, "c": ["x"]}}})),
            format!("a:\n  ? {long}\n  : b: 1\n    c:\n    - x\n")
        );
        assert_eq!(
            write(&json!({"a10": 1, "a2": 1, "a": [[1, 2], []]})),
            "a:\n- - 1\n  - 2\n- []\na2: 1\na10: 1\n"
        );
    }
}
