//! Regular expressions.

use regex::Regex;

use crate::error::Failure;
use crate::function::{Args, Call, Function, fixed};
use crate::go::quote::quote;
use crate::signature::Param::{Int, Str};
use crate::value::{Elem, List, Value};

pub(super) const FUNCTIONS: &[Function] = &[
    fixed("regexMatch", &[Str, Str], |call, args| match matches(call, args) {
        Err(_) if !call.budget.is_exhausted() => Ok(Value::Bool(false)),
        result => result,
    }),
    fixed("mustRegexMatch", &[Str, Str], matches),
    fixed("regexFindAll", &[Str, Str, Int], |call, args| find_all(call, args, true)),
    fixed("mustRegexFindAll", &[Str, Str, Int], |call, args| find_all(call, args, false)),
    fixed("regexFind", &[Str, Str], |call, args| find(call, args, true)),
    fixed("mustRegexFind", &[Str, Str], |call, args| find(call, args, false)),
    fixed("regexReplaceAll", &[Str, Str, Str], |call, args| {
        let regex = compile(call, args, true)?;
        replace(call, args, &regex, false)
    }),
    fixed("mustRegexReplaceAll", &[Str, Str, Str], |call, args| {
        let regex = compile(call, args, false)?;
        replace(call, args, &regex, false)
    }),
    fixed("regexReplaceAllLiteral", &[Str, Str, Str], |call, args| {
        let regex = compile(call, args, true)?;
        replace(call, args, &regex, true)
    }),
    fixed("mustRegexReplaceAllLiteral", &[Str, Str, Str], |call, args| {
        let regex = compile(call, args, false)?;
        replace(call, args, &regex, true)
    }),
    fixed("regexSplit", &[Str, Str, Int], |call, args| split(call, args, true)),
    fixed("mustRegexSplit", &[Str, Str, Int], |call, args| split(call, args, false)),
    fixed("regexQuoteMeta", &[Str], |_, args| Ok(Value::from(quote_meta(&args.text(0))))),
];

/// Compiles the first argument; sprig's functions without `must` panic with another text.
fn compile(call: &mut Call<'_>, args: &[Value], panics: bool) -> Result<Regex, Failure> {
    let pattern = args.text(0);
    call.budget.step(100)?;
    call.budget.bytes(pattern.len().saturating_mul(64))?;
    call.budget.bytes(args.bytes(1).len())?;
    let failure = |reason: &str| {
        let text = format!("error parsing regexp: {reason}");
        match panics {
            true => Failure::new(format!("regexp: Compile({}): {text}", backquoted(&pattern))),
            false => Failure::new(text),
        }
    };
    if let Some(operators) = nested_repetition(&pattern) {
        let operators = backquoted(operators);
        return Err(failure(&format!("invalid nested repetition operator: {operators}")));
    }
    Regex::new(&go_syntax(&pattern))
        .map_err(|error| failure(&go_error(&pattern, &error.to_string())))
}

/// Repetitions of repetitions, such as `**`, which Go refuses.
fn nested_repetition(pattern: &str) -> Option<&str> {
    let bytes = pattern.as_bytes();
    let (mut at, mut in_class) = (0, false);
    let mut before: Option<usize> = None;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'\\' => {
                at += 2;
                before = None;
                continue;
            }
            b'[' if !in_class => in_class = true,
            b']' => in_class = false,
            b'*' | b'+' | b'?' if !in_class => {
                let lazy = *byte == b'?' && before.is_some_and(|start| start + 1 == at);
                match before {
                    Some(start) if !lazy => return pattern.get(start..=at),
                    Some(_) => {}
                    None => {
                        before = Some(at);
                        at += 1;
                        continue;
                    }
                }
            }
            _ => {}
        }
        // A lazy repetition can still be followed by another operator.
        let lazy = *byte == b'?' && before.is_some();
        if !lazy {
            before = None;
        }
        at += 1;
    }
    None
}

fn backquoted(text: &str) -> String {
    if text.contains('`') { quote(text) } else { format!("`{text}`") }
}

/// Go's reason for a wrong pattern, by that of the crate regex.
fn go_error(pattern: &str, reason: &str) -> String {
    let whole = backquoted(pattern);
    if reason.contains("unclosed group") {
        return format!("missing closing ): {whole}");
    }
    if reason.contains("unopened group") {
        return format!("unexpected ): {whole}");
    }
    if reason.contains("unclosed character class") {
        let from = pattern.rfind('[').and_then(|at| pattern.get(at..)).unwrap_or(pattern);
        return format!("missing closing ]: {}", backquoted(from));
    }
    if reason.contains("repetition operator missing expression") {
        let operator = pattern.chars().find(|c| matches!(c, '*' | '+' | '?')).unwrap_or('*');
        return format!("missing argument to repetition operator: `{operator}`");
    }
    if reason.contains("look-around") {
        let from = pattern.find("(?").and_then(|at| pattern.get(at..at + 3)).unwrap_or("(?");
        return format!("invalid or unsupported Perl syntax: {}", backquoted(from));
    }
    let last = reason.lines().last().unwrap_or_default().trim_start_matches("error: ");
    format!("{last}: {whole}")
}

/// Go's classes `\d`, `\w`, `\s` and `\b` are ASCII; `\z` and `\pN` are the same.
fn go_syntax(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len());
    let mut chars = pattern.chars().peekable();
    let mut in_class = false;
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some('d') => out.push_str(if in_class { "0-9" } else { "[0-9]" }),
                Some('w') => out.push_str(if in_class { "0-9A-Za-z_" } else { "[0-9A-Za-z_]" }),
                Some('s') => {
                    out.push_str(if in_class { r"\t\n\f\r " } else { r"[\t\n\f\r ]" });
                }
                Some('D') => out.push_str("[^0-9]"),
                Some('W') => out.push_str("[^0-9A-Za-z_]"),
                Some('S') => out.push_str(r"[^\t\n\f\r ]"),
                Some('b') => out.push_str(r"(?-u:\b)"),
                Some('Q') => {
                    let mut literal = String::new();
                    while let Some(c) = chars.next() {
                        if c == '\\' && chars.peek() == Some(&'E') {
                            chars.next();
                            break;
                        }
                        literal.push(c);
                    }
                    out.push_str(&regex::escape(&literal));
                }
                Some(other) => {
                    out.push('\\');
                    out.push(other);
                }
                None => out.push('\\'),
            },
            '[' if in_class && chars.peek() != Some(&':') => out.push_str("\\["),
            '[' if !in_class => {
                in_class = true;
                out.push('[');
                if chars.peek() == Some(&'^') {
                    out.extend(chars.next());
                }
                if chars.peek() == Some(&']') {
                    chars.next();
                    out.push_str("\\]");
                }
            }
            '[' => {
                // A named class such as [:alpha:].
                out.push('[');
                for c in chars.by_ref() {
                    out.push(c);
                    if c == ']' {
                        break;
                    }
                }
            }
            ']' => {
                in_class = false;
                out.push(']');
            }
            '&' | '~' if in_class => {
                out.push('\\');
                out.push(c);
            }
            c => out.push(c),
        }
    }
    out
}

fn matches(call: &mut Call<'_>, args: &[Value]) -> Result<Value, Failure> {
    Ok(Value::Bool(compile(call, args, false)?.is_match(&args.text(1))))
}

fn find(call: &mut Call<'_>, args: &[Value], panics: bool) -> Result<Value, Failure> {
    let text = args.text(1);
    let found =
        compile(call, args, panics)?.find(&text).map(|found| found.as_str()).unwrap_or_default();
    Ok(Value::from(found))
}

fn find_all(call: &mut Call<'_>, args: &[Value], panics: bool) -> Result<Value, Failure> {
    let text = args.text(1);
    let limit = usize::try_from(args.int(2)).unwrap_or(usize::MAX);
    let regex = compile(call, args, panics)?;
    call.budget.bytes(text.len().saturating_mul(16))?;
    let found: Vec<Value> =
        regex.find_iter(&text).take(limit).map(|found| Value::from(found.as_str())).collect();
    if found.is_empty() {
        return Ok(Value::List(List::none(Elem::String)));
    }
    Ok(Value::List(List::of(Elem::String, found)))
}

fn split(call: &mut Call<'_>, args: &[Value], panics: bool) -> Result<Value, Failure> {
    let text = args.text(1);
    let regex = compile(call, args, panics)?;
    call.budget.bytes(text.len().saturating_mul(16))?;
    let limit = args.int(2);
    if limit == 0 {
        return Ok(Value::List(List::none(Elem::String)));
    }
    if !args.text(0).is_empty() && text.is_empty() {
        return Ok(Value::strings([""]));
    }
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let mut parts: Vec<&str> = Vec::new();
    let (mut start, mut end) = (0, 0);
    for found in regex.find_iter(&text).take(limit) {
        if parts.len() + 1 == limit {
            break;
        }
        end = found.start();
        if found.end() != 0 {
            parts.extend(text.get(start..end));
        }
        start = found.end();
    }
    if end != text.len() {
        parts.extend(text.get(start..));
    }
    Ok(Value::strings(parts))
}

fn replace(
    call: &mut Call<'_>,
    args: &[Value],
    regex: &Regex,
    literal: bool,
) -> Result<Value, Failure> {
    let (text, with) = (args.text(1), args.text(2));
    let mut out = String::new();
    let mut start = 0;
    for captures in regex.captures_iter(&text) {
        let Some(whole) = captures.get(0) else { continue };
        out.push_str(text.get(start..whole.start()).unwrap_or_default());
        if literal {
            out.push_str(&with);
        } else {
            expand(&with, &captures, &mut out);
        }
        start = whole.end();
        if out.len() > call.budget.max_bytes() {
            call.budget.bytes(usize::MAX)?;
        }
    }
    out.push_str(text.get(start..).unwrap_or_default());
    Ok(Value::from(out))
}

/// `Regexp.Expand`: `$1`, `${name}` and `$$`.
fn expand(template: &str, captures: &regex::Captures<'_>, out: &mut String) {
    let mut rest = template;
    while let Some(at) = rest.find('$') {
        out.push_str(rest.get(..at).unwrap_or_default());
        let tail = rest.get(at + 1..).unwrap_or_default();
        if let Some(after) = tail.strip_prefix('$') {
            out.push('$');
            rest = after;
            continue;
        }
        let braced = tail.strip_prefix('{');
        let body = braced.unwrap_or(tail);
        let is_name = |c: char| c == '_' || c.is_alphanumeric();
        let end = body.find(|c| !is_name(c)).unwrap_or(body.len());
        let (name, after) = body.split_at(end);
        let after = match braced {
            Some(_) => after.strip_prefix('}'),
            None => Some(after),
        };
        match after.filter(|_| !name.is_empty()) {
            Some(after) => {
                let capture = match name.parse::<usize>() {
                    Ok(number) => captures.get(number),
                    Err(_) => captures.name(name),
                };
                out.push_str(capture.map(|found| found.as_str()).unwrap_or_default());
                rest = after;
            }
            None => {
                out.push('$');
                rest = tail;
            }
        }
    }
    out.push_str(rest);
}

/// `regexp.QuoteMeta`.
fn quote_meta(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if r"\.+*?()|[]{}^$".contains(c) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}
