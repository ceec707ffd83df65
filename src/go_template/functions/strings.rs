//! Strings of sprig.

use crate::convert::strval;
use crate::error::Failure;
use crate::function::{Args, Call, Function, fixed, variadic};
use crate::go::quote::quote_bytes;
use crate::signature::Param::{Any, Int, Str};
use crate::value::{Class, Entries, Map, Value};

pub(super) const FUNCTIONS: &[Function] = &[
    fixed("trim", &[Str], |_, args| Ok(map(args, 0, str::trim))),
    fixed("upper", &[Str], |_, args| Ok(Value::from(args.text(0).to_uppercase()))),
    fixed("lower", &[Str], |_, args| Ok(Value::from(args.text(0).to_lowercase()))),
    fixed("trimall", &[Str, Str], |_, args| Ok(trim_all(args))),
    fixed("trimAll", &[Str, Str], |_, args| Ok(trim_all(args))),
    fixed("trimSuffix", &[Str, Str], |_, args| {
        let text = args.bytes(1);
        Ok(same_or(args, 1, text.strip_suffix(args.bytes(0))))
    }),
    fixed("trimPrefix", &[Str, Str], |_, args| {
        let text = args.bytes(1);
        Ok(same_or(args, 1, text.strip_prefix(args.bytes(0))))
    }),
    fixed("contains", &[Str, Str], |_, args| {
        Ok(Value::Bool(args.text(1).contains(&*args.text(0))))
    }),
    fixed("hasPrefix", &[Str, Str], |_, args| {
        Ok(Value::Bool(args.bytes(1).starts_with(args.bytes(0))))
    }),
    fixed("hasSuffix", &[Str, Str], |_, args| {
        Ok(Value::Bool(args.bytes(1).ends_with(args.bytes(0))))
    }),
    fixed("repeat", &[Int, Str], repeat),
    fixed("substr", &[Int, Int, Str], substring),
    fixed("trunc", &[Int, Str], |_, args| Ok(trunc(args))),
    fixed("nospace", &[Str], |_, args| {
        let text = args.text(0);
        Ok(Value::from(text.chars().filter(|c| !c.is_whitespace()).collect::<String>()))
    }),
    variadic("quote", &[Any], quote),
    variadic("squote", &[Any], squote),
    variadic("cat", &[Any], cat),
    fixed("indent", &[Int, Str], |call, args| indent(call, args, "")),
    fixed("nindent", &[Int, Str], |call, args| indent(call, args, "\n")),
    fixed("replace", &[Str, Str, Str], replace),
    fixed("plural", &[Str, Str, Int], |_, args| {
        Ok(args.value(if args.int(2) == 1 { 0 } else { 1 }))
    }),
    fixed("toString", &[Any], |call, args| strval(&args.value(0), call.budget)),
    fixed("split", &[Str, Str], |call, args| {
        let parts = split(call, &args.text(1), &args.text(0), -1)?;
        Ok(numbered(parts))
    }),
    fixed("splitList", &[Str, Str], |call, args| {
        Ok(Value::strings(split(call, &args.text(1), &args.text(0), -1)?))
    }),
    fixed("splitn", &[Str, Int, Str], |call, args| {
        let parts = split(call, &args.text(2), &args.text(0), args.int(1))?;
        Ok(numbered(parts))
    }),
];

fn map(args: &[Value], at: usize, change: fn(&str) -> &str) -> Value {
    let text = args.text(at);
    let changed = change(&text);
    if changed.len() == text.len() { args.value(at) } else { Value::from(changed) }
}

fn same_or(args: &[Value], at: usize, changed: Option<&[u8]>) -> Value {
    match changed {
        Some(bytes) => Value::from_bytes(bytes.to_vec()),
        None => args.value(at),
    }
}

fn trim_all(args: &[Value]) -> Value {
    let set: Vec<char> = args.text(0).chars().collect();
    Value::from(args.text(1).trim_matches(|c| set.contains(&c)))
}

fn repeat(call: &mut Call<'_>, args: &[Value]) -> Result<Value, Failure> {
    let Ok(count) = usize::try_from(args.int(0)) else {
        return Err(Failure::new("strings: negative Repeat count"));
    };
    let text = args.bytes(1);
    call.budget.bytes(text.len().saturating_mul(count))?;
    Ok(Value::from_bytes(text.repeat(count)))
}

fn out_of_range(at: i64, length: usize) -> Failure {
    let text = "runtime error: slice bounds out of range";
    match at {
        at if at < 0 => Failure::new(format!("{text} [{at}:]")),
        at => Failure::new(format!("{text} [:{at}] with length {length}")),
    }
}

fn substring(_: &mut Call<'_>, args: &[Value]) -> Result<Value, Failure> {
    let (start, end, text) = (args.int(0), args.int(1), args.bytes(2));
    let length = i64::try_from(text.len()).unwrap_or(i64::MAX);
    let (from, to) = if start < 0 {
        (0, end)
    } else if end < 0 || end > length {
        (start, length)
    } else {
        (start, end)
    };
    let range = usize::try_from(from).ok().zip(usize::try_from(to).ok());
    match range.and_then(|(from, to)| text.get(from..to)) {
        Some(part) => Ok(Value::from_bytes(part.to_vec())),
        None if start < 0 => Err(out_of_range(end, text.len())),
        None => {
            let text = "runtime error: slice bounds out of range";
            Err(Failure::new(format!("{text} [{from}:{to}]")))
        }
    }
}

fn trunc(args: &[Value]) -> Value {
    let (count, text) = (args.int(0), args.bytes(1));
    let length = i64::try_from(text.len()).unwrap_or(i64::MAX);
    let part = if count < 0 && length.saturating_add(count) > 0 {
        usize::try_from(length + count).ok().and_then(|from| text.get(from..))
    } else if count >= 0 && length > count {
        usize::try_from(count).ok().and_then(|to| text.get(..to))
    } else {
        None
    };
    same_or(args, 1, part)
}

fn quote(call: &mut Call<'_>, args: &[Value]) -> Result<Value, Failure> {
    let mut parts = Vec::new();
    for arg in args.iter().filter(|arg| !arg.is_nil()) {
        let text = strval(arg, call.budget)?;
        parts.push(quote_bytes(text.string_bytes().unwrap_or_default()));
    }
    Ok(Value::from(parts.join(" ")))
}

fn squote(call: &mut Call<'_>, args: &[Value]) -> Result<Value, Failure> {
    let mut parts = Vec::new();
    for arg in args.iter().filter(|arg| !arg.is_nil()) {
        let text = crate::go::print::sprint(arg, call.budget)?;
        let text = text.string_bytes().unwrap_or_default();
        parts.push([b"'", text, b"'"].concat());
    }
    Ok(Value::from_bytes(parts.join(&b' ')))
}

fn cat(call: &mut Call<'_>, args: &[Value]) -> Result<Value, Failure> {
    let mut parts = Vec::new();
    for arg in args.iter().filter(|arg| !arg.is_nil()) {
        let text = crate::go::print::sprint(arg, call.budget)?;
        parts.push(text.string_bytes().unwrap_or_default().to_vec());
    }
    Ok(Value::from_bytes(parts.join(&b' ')))
}

fn indent(call: &mut Call<'_>, args: &[Value], before: &str) -> Result<Value, Failure> {
    let Ok(spaces) = usize::try_from(args.int(0)) else {
        return Err(Failure::new("strings: negative Repeat count"));
    };
    let text = args.bytes(1);
    let lines = text.iter().filter(|byte| **byte == b'\n').count() + 1;
    call.budget.bytes(text.len().saturating_add(lines.saturating_mul(spaces)))?;
    let pad = vec![b' '; spaces];
    let mut out = Vec::with_capacity(text.len() + lines * spaces + before.len());
    out.extend_from_slice(before.as_bytes());
    for (at, line) in text.split(|byte| *byte == b'\n').enumerate() {
        if at > 0 {
            out.push(b'\n');
        }
        out.extend_from_slice(&pad);
        out.extend_from_slice(line);
    }
    Ok(Value::from_bytes(out))
}

fn replace(call: &mut Call<'_>, args: &[Value]) -> Result<Value, Failure> {
    let (old, new, text) = (args.text(0), args.text(1), args.text(2));
    let count = if old.is_empty() { text.chars().count() + 1 } else { text.matches(&*old).count() };
    if count == 0 {
        return Ok(args.value(2));
    }
    call.budget.bytes(text.len().saturating_add(count.saturating_mul(new.len())))?;
    Ok(Value::from(text.replace(&*old, &new)))
}

/// `strings.SplitN`.
fn split(
    call: &mut Call<'_>,
    text: &str,
    separator: &str,
    count: i64,
) -> Result<Vec<String>, Failure> {
    let pieces = if separator.is_empty() { text.len() } else { text.matches(separator).count() };
    call.budget.bytes(pieces.saturating_add(1).saturating_mul(16))?;
    let limit = usize::try_from(count).unwrap_or(usize::MAX);
    if limit == 0 {
        return Ok(Vec::new());
    }
    if separator.is_empty() {
        let mut parts: Vec<String> = text.chars().map(String::from).collect();
        if parts.len() > limit {
            let tail: String = parts.split_off(limit - 1).concat();
            parts.push(tail);
        }
        return Ok(parts);
    }
    Ok(text.splitn(limit, separator).map(str::to_owned).collect())
}

fn numbered(parts: Vec<String>) -> Value {
    let entries = parts.into_iter().enumerate();
    let entries: Entries =
        entries.map(|(at, part)| (format!("_{at}").into(), Value::from(part))).collect();
    Value::Map(Map::of(Class::Strings, entries))
}
