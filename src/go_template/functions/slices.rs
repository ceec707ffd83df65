//! `slice`, which sprig has in place of Go's.

use crate::convert::to_int;
use crate::error::Failure;
use crate::function::{Args, Call, Function, variadic};
use crate::signature::Param::Any;
use crate::value::Value;

pub(super) const FUNCTIONS: &[Function] =
    &[variadic("slice", &[Any, Any], slice), variadic("mustSlice", &[Any, Any], slice)];

fn slice(_: &mut Call<'_>, args: &[Value]) -> Result<Value, Failure> {
    let value = args.value(0);
    if value.is_nil() {
        let text = "runtime error: invalid memory address or nil pointer dereference";
        return Err(Failure::new(text));
    }
    let Some(items) = value.items() else {
        let kind = value.kind_name();
        return Err(Failure::new(format!("list should be type of slice or array but {kind}")));
    };
    if items.is_empty() {
        return Ok(Value::Nil);
    }
    let length = i64::try_from(items.len()).unwrap_or(i64::MAX);
    let start = args.get(1).map_or(0, to_int);
    let end = args.get(2).map_or(length, to_int);
    let range = usize::try_from(start).ok().zip(usize::try_from(end).ok());
    let Some(part) = range.and_then(|(start, end)| items.get(start..end)) else {
        return Err(Failure::new("reflect.Value.Slice: slice index out of bounds"));
    };
    Ok(match &value {
        Value::List(list) => Value::List(list.with(part.to_vec())),
        Value::Bytes(bytes) => {
            let bytes = bytes.iter().copied().skip(usize::try_from(start).unwrap_or(0));
            Value::Bytes(bytes.take(part.len()).collect())
        }
        _ => Value::Nil,
    })
}
