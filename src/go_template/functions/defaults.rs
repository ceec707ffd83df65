//! Defaults and conditions of sprig.

use crate::error::Failure;
use crate::function::{Args, Call, Function, fixed, variadic};
use crate::signature::Param::{Any, Bool};
use crate::value::Value;

pub(super) const FUNCTIONS: &[Function] = &[
    variadic("default", &[Any, Any], default),
    fixed("empty", &[Any], |_, args| Ok(Value::Bool(!args.value(0).truth()))),
    variadic("coalesce", &[Any], |_, args| {
        Ok(args.iter().find(|value| value.truth()).cloned().unwrap_or(Value::Nil))
    }),
    variadic("all", &[Any], |_, args| Ok(Value::Bool(args.iter().all(Value::truth)))),
    variadic("any", &[Any], |_, args| Ok(Value::Bool(args.iter().any(Value::truth)))),
    fixed("ternary", &[Any, Any, Bool], |_, args| Ok(args.value(if args.flag(2) { 0 } else { 1 }))),
];

fn default(_: &mut Call<'_>, args: &[Value]) -> Result<Value, Failure> {
    match args.get(1) {
        Some(given) if given.truth() => Ok(given.clone()),
        _ => Ok(args.value(0)),
    }
}
