//! Paths; on Linux, paths of files are the same.

use crate::function::{Args, Function, fixed};
use crate::go::path;
use crate::signature::Param::Str;
use crate::value::Value;

pub(super) const FUNCTIONS: &[Function] = &[
    fixed("base", &[Str], |_, args| Ok(Value::from(path::base(&args.text(0))))),
    fixed("osBase", &[Str], |_, args| Ok(Value::from(path::base(&args.text(0))))),
    fixed("dir", &[Str], |_, args| Ok(Value::from(path::dir(&args.text(0))))),
    fixed("osDir", &[Str], |_, args| Ok(Value::from(path::dir(&args.text(0))))),
    fixed("clean", &[Str], |_, args| Ok(Value::from(path::clean(&args.text(0))))),
    fixed("osClean", &[Str], |_, args| Ok(Value::from(path::clean(&args.text(0))))),
    fixed("ext", &[Str], |_, args| Ok(Value::from(path::ext(&args.text(0))))),
    fixed("osExt", &[Str], |_, args| Ok(Value::from(path::ext(&args.text(0))))),
    fixed("isAbs", &[Str], |_, args| Ok(Value::Bool(args.text(0).starts_with('/')))),
    fixed("osIsAbs", &[Str], |_, args| Ok(Value::Bool(args.text(0).starts_with('/')))),
];
