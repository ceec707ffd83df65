//! The functions of `text/template`, and those of Helm's engine.

use crate::compare;
use crate::error::Failure;
use crate::function::{Args, Call, Function, Run, fixed, variadic};
use crate::go::{printf, url};
use crate::signature::Param::{self, Any, Reflect, Str};
use crate::value::Value;

const fn special(name: &'static str, params: &'static [Param], run: Run) -> Function {
    Function { name, params, variadic: true, run }
}

pub(super) const FUNCTIONS: &[Function] = &[
    special("and", &[Reflect, Reflect], Run::And),
    special("or", &[Reflect, Reflect], Run::Or),
    special("call", &[Reflect, Reflect], Run::Call),
    Function { name: "include", params: &[Str, Any], variadic: false, run: Run::Include },
    Function { name: "tpl", params: &[Str, Any], variadic: false, run: Run::Tpl },
    fixed("not", &[Reflect], |_, args| Ok(Value::Bool(!args.value(0).truth()))),
    variadic("eq", &[Reflect, Reflect], eq),
    fixed("ne", &[Reflect, Reflect], |call, args| Ok(Value::Bool(!eq(call, args)?.truth()))),
    fixed("lt", &[Reflect, Reflect], |_, args| less(args).map(Value::Bool)),
    fixed("le", &[Reflect, Reflect], |call, args| at_most(call, args).map(Value::Bool)),
    fixed("gt", &[Reflect, Reflect], |call, args| Ok(Value::Bool(!at_most(call, args)?))),
    fixed("ge", &[Reflect, Reflect], |_, args| Ok(Value::Bool(!less(args)?))),
    fixed("len", &[Reflect], len),
    variadic("index", &[Reflect, Reflect], index),
    variadic("print", &[Any], |call, args| printf::sprint_all(args, false, call.budget)),
    variadic("println", &[Any], |call, args| printf::sprint_all(args, true, call.budget)),
    variadic("printf", &[Str, Any], |call, args| {
        printf::sprintf(&args.text(0), args.from(1), call.budget)
    }),
    variadic("html", &[Any], |call, args| escape(call, args, html)),
    variadic("js", &[Any], |call, args| escape(call, args, js)),
    variadic("urlquery", &[Any], |call, args| escape(call, args, url::query_escape)),
    fixed("required", &[Str, Any], required),
    fixed("fail", &[Str], |_, args| Err(warning(&args.text(0)))),
    fixed("lookup", &[Str, Str, Str, Str], lookup),
    fixed("getHostByName", &[Str], |_, _| Ok(Value::from(""))),
    fixed("hello", &[], |_, _| Ok(Value::from("Hello!"))),
];

/// Marks a text that Helm shows without the template's own words.
fn warning(text: &str) -> Failure {
    Failure::new(format!("HELM_ERR_START{text}HELM_ERR_END"))
}

fn required(_: &mut Call<'_>, args: &[Value]) -> Result<Value, Failure> {
    let value = args.value(1);
    if value.is_nil() || value.string_bytes().is_some_and(<[u8]>::is_empty) {
        return Err(warning(&args.text(0)));
    }
    Ok(value)
}

fn lookup(call: &mut Call<'_>, args: &[Value]) -> Result<Value, Failure> {
    call.budget.step(1000)?;
    let (version, kind) = (args.text(0), args.text(1));
    let (namespace, name) = (args.text(2), args.text(3));
    call.host
        .lookup(&version, &kind, &namespace, &name)
        .map_err(|error| Failure::new(error.to_string()))
}

fn eq(call: &mut Call<'_>, args: &[Value]) -> Result<Value, Failure> {
    let first = args.value(0);
    if args.len() < 2 {
        return Err(Failure::new("missing argument for comparison"));
    }
    for other in args.from(1) {
        if compare::equal(&first, other, call.budget)? {
            return Ok(Value::Bool(true));
        }
    }
    Ok(Value::Bool(false))
}

fn less(args: &[Value]) -> Result<bool, Failure> {
    compare::less(&args.value(0), &args.value(1))
}

fn at_most(call: &mut Call<'_>, args: &[Value]) -> Result<bool, Failure> {
    let less = less(args)?;
    Ok(less || compare::equal(&args.value(0), &args.value(1), call.budget)?)
}

fn len(_: &mut Call<'_>, args: &[Value]) -> Result<Value, Failure> {
    let value = args.value(0);
    let length = match &value {
        Value::String(text) => text.len(),
        Value::Binary(bytes) | Value::Bytes(bytes) => bytes.len(),
        Value::List(list) => list.items.len(),
        Value::Map(map) => map.len(),
        Value::Nil | Value::Invalid => {
            let text = "reflect: call of reflect.Value.Type on zero Value";
            return Err(Failure::new(text));
        }
        value => return Err(Failure::new(format!("len of type {}", value.type_name()))),
    };
    Ok(Value::Int(i64::try_from(length).unwrap_or(i64::MAX)))
}

fn position(index: &Value, length: usize) -> Result<usize, Failure> {
    let number = match index {
        Value::Int(number) | Value::Int64(number) => *number,
        Value::Byte(number) => i64::from(*number),
        Value::Nil | Value::Invalid => {
            return Err(Failure::new("cannot index slice/array with nil"));
        }
        value => {
            let name = value.type_name();
            return Err(Failure::new(format!("cannot index slice/array with type {name}")));
        }
    };
    match usize::try_from(number) {
        Ok(at) if at <= length => Ok(at),
        _ => Err(Failure::new(format!("index out of range: {number}"))),
    }
}

fn index(_: &mut Call<'_>, args: &[Value]) -> Result<Value, Failure> {
    let mut item = args.value(0);
    if item.is_nil() {
        return Err(Failure::new("index of untyped nil"));
    }
    for index in args.from(1) {
        item = match &item {
            Value::Nil | Value::Invalid => return Err(Failure::new("index of nil pointer")),
            Value::Map(map) => match index {
                Value::String(key) => {
                    map.get(key).unwrap_or_else(|| crate::methods::zero_of(map.class))
                }
                Value::Nil | Value::Invalid => {
                    let text = "value is nil; should be of type string";
                    return Err(Failure::new(text));
                }
                value => {
                    let name = value.type_name();
                    return Err(Failure::new(format!("value has type {name}; should be string")));
                }
            },
            value => {
                let items = match (value.items(), value.string_bytes()) {
                    (Some(items), _) => items,
                    (_, Some(bytes)) => bytes.iter().map(|byte| Value::Byte(*byte)).collect(),
                    _ => {
                        let name = value.type_name();
                        return Err(Failure::new(format!("can't index item of type {name}")));
                    }
                };
                let at = position(index, items.len())?;
                items
                    .get(at)
                    .cloned()
                    .ok_or_else(|| Failure::new("reflect: slice index out of range"))?
            }
        };
    }
    Ok(item)
}

fn escape(
    call: &mut Call<'_>,
    args: &[Value],
    escape: fn(&str) -> String,
) -> Result<Value, Failure> {
    let args: Vec<Value> = args
        .iter()
        .map(|arg| if arg.is_nil() { Value::from("<no value>") } else { arg.clone() })
        .collect();
    let text = printf::sprint_all(&args, false, call.budget)?;
    let text = String::from_utf8_lossy(text.string_bytes().unwrap_or_default()).into_owned();
    call.budget.bytes(text.len().saturating_mul(6))?;
    Ok(Value::from(escape(&text)))
}

fn html(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\0' => out.push('\u{fffd}'),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            c => out.push(c),
        }
    }
    out
}

fn js(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\'' => out.push_str("\\'"),
            '"' => out.push_str("\\\""),
            '<' | '>' | '&' | '=' => out.push_str(&format!("\\u{:04X}", u32::from(c))),
            c if c < ' ' => out.push_str(&format!("\\u{:04X}", u32::from(c))),
            c if c.is_ascii() || crate::go::quote::is_print(c) => out.push(c),
            c => out.push_str(&format!("\\u{:04X}", u32::from(c))),
        }
    }
    out
}
