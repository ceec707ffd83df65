//! Types and kinds.

use crate::compare::deep_equal;
use crate::function::{Args, Function, fixed};
use crate::go::print::type_of;
use crate::signature::Param::{Any, Str};
use crate::value::Value;

pub(super) const FUNCTIONS: &[Function] = &[
    fixed("typeOf", &[Any], |_, args| Ok(Value::from(type_of(&args.value(0))))),
    fixed("typeIs", &[Str, Any], |_, args| {
        Ok(Value::Bool(args.text(0) == type_of(&args.value(1))))
    }),
    fixed("typeIsLike", &[Str, Any], |_, args| {
        let (wanted, value) = (args.text(0), args.value(1));
        let name = type_of(&value);
        Ok(Value::Bool(wanted == name || name.strip_prefix('*') == Some(&*wanted)))
    }),
    fixed("kindOf", &[Any], |_, args| Ok(Value::from(args.value(0).kind_name()))),
    fixed("kindIs", &[Str, Any], |_, args| {
        Ok(Value::Bool(args.text(0) == args.value(1).kind_name()))
    }),
    fixed("deepEqual", &[Any, Any], |_, args| {
        Ok(Value::Bool(deep_equal(&args.value(0), &args.value(1), 0)))
    }),
];
