//! Lists of sprig.

use sorting::CompactSort as _;

use crate::compare::deep_equal;
use crate::convert::{strings_of, text_of, to_int};
use crate::error::Failure;
use crate::function::{Args, Call, Function, Plain, fixed, variadic};
use crate::signature::Param::{Any, Int, Str};
use crate::value::{Elem, List, Value};

pub(super) const FUNCTIONS: &[Function] = &[
    variadic("list", &[Any], |_, args| Ok(Value::list(args.to_vec()))),
    variadic("tuple", &[Any], |_, args| Ok(Value::list(args.to_vec()))),
    fixed("append", &[Any, Any], PUSH),
    fixed("push", &[Any, Any], PUSH),
    fixed("mustAppend", &[Any, Any], PUSH),
    fixed("mustPush", &[Any, Any], PUSH),
    fixed("prepend", &[Any, Any], PREPEND),
    fixed("mustPrepend", &[Any, Any], PREPEND),
    fixed("first", &[Any], FIRST),
    fixed("mustFirst", &[Any], FIRST),
    fixed("last", &[Any], LAST),
    fixed("mustLast", &[Any], LAST),
    fixed("rest", &[Any], REST),
    fixed("mustRest", &[Any], REST),
    fixed("initial", &[Any], INITIAL),
    fixed("mustInitial", &[Any], INITIAL),
    fixed("reverse", &[Any], REVERSE),
    fixed("mustReverse", &[Any], REVERSE),
    fixed("compact", &[Any], COMPACT),
    fixed("mustCompact", &[Any], COMPACT),
    fixed("uniq", &[Any], uniq),
    fixed("mustUniq", &[Any], uniq),
    variadic("without", &[Any, Any], without),
    variadic("mustWithout", &[Any, Any], without),
    fixed("has", &[Any, Any], has),
    fixed("mustHas", &[Any, Any], has),
    variadic("concat", &[Any], concat),
    fixed("chunk", &[Int, Any], chunk),
    fixed("mustChunk", &[Int, Any], chunk),
    fixed("sortAlpha", &[Any], sort_alpha),
    fixed("join", &[Str, Any], join),
    fixed("toStrings", &[Any], |call, args| {
        let items = strings_of(&args.value(0), call.budget)?;
        Ok(Value::List(List::of(Elem::String, items)))
    }),
    fixed("until", &[Int], |call, args| {
        let stop = args.int(0);
        steps(call, 0, stop, if stop < 0 { -1 } else { 1 }).map(int_list)
    }),
    fixed("untilStep", &[Int, Int, Int], |call, args| {
        steps(call, args.int(0), args.int(1), args.int(2)).map(int_list)
    }),
    variadic("seq", &[Int], seq),
];

const PUSH: Plain = |call, args| {
    let mut items = items(call, args, 0, "push on")?;
    items.push(args.value(1));
    Ok(Value::list(items))
};
const PREPEND: Plain = |call, args| {
    let mut items = items(call, args, 0, "prepend on")?;
    items.insert(0, args.value(1));
    Ok(Value::list(items))
};
const FIRST: Plain = |call, args| {
    let items = items(call, args, 0, "find first on")?;
    Ok(items.first().cloned().unwrap_or(Value::Nil))
};
const LAST: Plain = |call, args| {
    let items = items(call, args, 0, "find last on")?;
    Ok(items.last().cloned().unwrap_or(Value::Nil))
};
const REST: Plain = |call, args| {
    let items = items(call, args, 0, "find rest on")?;
    Ok(part(items.split_first().map(|(_, rest)| rest)))
};
const INITIAL: Plain = |call, args| {
    let items = items(call, args, 0, "find initial on")?;
    Ok(part(items.split_last().map(|(_, rest)| rest)))
};
const REVERSE: Plain = |call, args| {
    let mut items = items(call, args, 0, "find reverse on")?;
    items.reverse();
    Ok(Value::list(items))
};
const COMPACT: Plain = |call, args| {
    let mut items = items(call, args, 0, "compact on")?;
    items.retain(Value::truth);
    Ok(Value::list(items))
};

fn part(items: Option<&[Value]>) -> Value {
    match items {
        Some(items) => Value::list(items.to_vec()),
        None => Value::List(List::none(Elem::Any)),
    }
}

/// The elements of a list; Go's reflection fails on nil.
fn items(
    call: &mut Call<'_>,
    args: &[Value],
    at: usize,
    what: &str,
) -> Result<Vec<Value>, Failure> {
    let value = args.value(at);
    if value.is_nil() {
        let text = "runtime error: invalid memory address or nil pointer dereference";
        return Err(Failure::new(text));
    }
    let kind = value.kind_name();
    let items = value.items().ok_or_else(|| Failure::new(format!("Cannot {what} type {kind}")))?;
    call.budget.bytes(items.len().saturating_mul(16))?;
    Ok(items)
}

fn uniq(call: &mut Call<'_>, args: &[Value]) -> Result<Value, Failure> {
    let items = items(call, args, 0, "find uniq on")?;
    let mut unique: Vec<Value> = Vec::new();
    for item in items {
        call.budget.step(u64::try_from(unique.len()).unwrap_or(u64::MAX))?;
        if !unique.iter().any(|known| deep_equal(known, &item, 0)) {
            unique.push(item);
        }
    }
    Ok(Value::list(unique))
}

fn without(call: &mut Call<'_>, args: &[Value]) -> Result<Value, Failure> {
    let mut items = items(call, args, 0, "find without on")?;
    let omit = args.from(1);
    let work = items.len().saturating_mul(omit.len());
    call.budget.step(u64::try_from(work).unwrap_or(u64::MAX))?;
    items.retain(|item| !omit.iter().any(|omit| deep_equal(omit, item, 0)));
    Ok(Value::list(items))
}

fn has(call: &mut Call<'_>, args: &[Value]) -> Result<Value, Failure> {
    if args.value(1).is_nil() {
        return Ok(Value::Bool(false));
    }
    let needle = args.value(0);
    let items = items(call, args, 1, "find has on")?;
    Ok(Value::Bool(items.iter().any(|item| deep_equal(&needle, item, 0))))
}

fn concat(call: &mut Call<'_>, args: &[Value]) -> Result<Value, Failure> {
    let mut all = Vec::new();
    for at in 0..args.len() {
        let value = args.value(at);
        if !value.is_nil() && value.items().is_none() {
            let kind = value.kind_name();
            return Err(Failure::new(format!("Cannot concat type {kind} as list")));
        }
        all.extend(items(call, args, at, "concat")?);
    }
    if all.is_empty() {
        return Ok(Value::List(List::none(Elem::Any)));
    }
    Ok(Value::list(all))
}

fn chunk(call: &mut Call<'_>, args: &[Value]) -> Result<Value, Failure> {
    let value = args.value(1);
    if !value.is_nil() && value.items().is_none() {
        return Err(Failure::new(format!("Cannot chunk type {}", value.kind_name())));
    }
    let items = items(call, args, 1, "chunk")?;
    let size = usize::try_from(args.int(0)).unwrap_or(0);
    if size == 0 {
        return Err(Failure::new("chunk: the size must be at least 1"));
    }
    let chunks = items.chunks(size).map(|chunk| Value::list(chunk.to_vec())).collect();
    Ok(Value::List(List::of(Elem::List, chunks)))
}

fn sort_alpha(call: &mut Call<'_>, args: &[Value]) -> Result<Value, Failure> {
    let value = args.value(0);
    let mut strings = if value.items().is_some() {
        strings_of(&value, call.budget)?
    } else {
        vec![Value::from(text_of(&value, call.budget)?)]
    };
    strings.compact_sort_by(|a, b| a.string_bytes().cmp(&b.string_bytes()));
    Ok(Value::List(List::of(Elem::String, strings)))
}

fn join(call: &mut Call<'_>, args: &[Value]) -> Result<Value, Failure> {
    let strings = strings_of(&args.value(1), call.budget)?;
    let separator = args.bytes(0);
    let parts: Vec<&[u8]> = strings.iter().filter_map(Value::string_bytes).collect();
    let length: usize = parts.iter().map(|part| part.len() + separator.len()).sum();
    call.budget.bytes(length)?;
    Ok(Value::from_bytes(parts.join(separator)))
}

/// sprig's `untilStep`.
fn steps(call: &mut Call<'_>, start: i64, stop: i64, step: i64) -> Result<Vec<i64>, Failure> {
    let wrong_way = if stop < start { step >= 0 } else { step <= 0 };
    if wrong_way || start == stop {
        return Ok(Vec::new());
    }
    let span = start.abs_diff(stop);
    let count = span.div_ceil(step.unsigned_abs());
    let bytes = usize::try_from(count).unwrap_or(usize::MAX).saturating_mul(16);
    call.budget.bytes(bytes)?;
    let mut numbers = Vec::new();
    let mut at = start;
    while if step > 0 { at < stop } else { at > stop } {
        numbers.push(at);
        match at.checked_add(step) {
            Some(next) => at = next,
            None => break,
        }
    }
    Ok(numbers)
}

fn int_list(numbers: Vec<i64>) -> Value {
    Value::List(List::of(Elem::Int, numbers.into_iter().map(Value::Int).collect()))
}

fn seq(call: &mut Call<'_>, args: &[Value]) -> Result<Value, Failure> {
    let numbers: Vec<i64> = args.iter().map(to_int).collect();
    let toward = |start: i64, end: i64| if end < start { -1 } else { 1 };
    let range = match numbers.as_slice() {
        [end] => Some((1, *end, toward(1, *end), toward(1, *end))),
        [start, end] => Some((*start, *end, toward(*start, *end), toward(*start, *end))),
        [start, step, end] if end < start && *step > 0 => None,
        [start, step, end] => Some((*start, *end, toward(*start, *end), *step)),
        _ => None,
    };
    let Some((start, end, increment, step)) = range else {
        return Ok(Value::from(""));
    };
    let numbers = steps(call, start, end.saturating_add(increment), step)?;
    let texts: Vec<String> = numbers.iter().map(i64::to_string).collect();
    Ok(Value::from(texts.join(" ")))
}
