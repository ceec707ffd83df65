//! The functions that expressions may call, by name, with their overloads in the order of
//! resolution.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use crate::types::Type;

/// An overload of a function.
#[derive(Debug)]
pub(crate) struct Overload {
    /// cel-go's overload id, on which costs depend.
    pub(crate) id: &'static str,
    /// Whether it is called as `target.function(...)`; the target is the first argument.
    pub(crate) member: bool,
    pub(crate) args: Vec<Type>,
    pub(crate) result: Type,
    /// Names of the type parameters.
    pub(crate) parameters: Vec<Arc<str>>,
}

/// A function.
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) name: &'static str,
    pub(crate) overloads: Vec<Overload>,
}

/// All functions by name.
pub(crate) fn functions() -> &'static HashMap<&'static str, Function> {
    static TABLE: OnceLock<HashMap<&'static str, Function>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut table: HashMap<&'static str, Function> = HashMap::new();
        for line in include_str!("declarations.txt").lines().filter(|l| !l.starts_with('#')) {
            let (name, overload) =
                read(line).unwrap_or_else(|| panic!("declarations.txt: cannot read {line:?}"));
            let new = || Function { name, overloads: Vec::new() };
            table.entry(name).or_insert_with(new).overloads.push(overload);
        }
        table
    })
}

fn read(line: &'static str) -> Option<(&'static str, Overload)> {
    let (left, result) = line.rsplit_once(" | ")?;
    let mut words = left.splitn(4, ' ');
    let (name, id, style) = (words.next()?, words.next()?, words.next()?);
    let args = match words.next() {
        Some(args) => args.split(" ; ").map(Type::parse).collect::<Option<Vec<Type>>>()?,
        None => Vec::new(),
    };
    let result = Type::parse(result)?;
    let mut parameters = Vec::new();
    args.iter().chain([&result]).for_each(|of| collect(of, &mut parameters));
    let overload = Overload { id, member: style == "member", args, result, parameters };
    Some((name, overload))
}

/// Returns the type parameters in a type, each once.
fn collect(of: &Type, into: &mut Vec<Arc<str>>) {
    match of {
        Type::Param(name) if !into.contains(name) => into.push(name.clone()),
        Type::List(of) | Type::Type(Some(of)) => collect(of, into),
        Type::Map(key, value) => {
            collect(key, into);
            collect(value, into);
        }
        Type::Opaque(_, parameters) => parameters.iter().for_each(|of| collect(of, into)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The order of cel-go's `common/stdlib/standard.go`.
    #[test]
    fn overloads_have_the_order_of_upstream() {
        for (name, expected) in [
            (
                "_+_",
                "add_bytes add_double add_duration_duration add_duration_timestamp \
                 add_timestamp_duration add_int64 add_list add_string add_uint64",
            ),
            (
                "_-_",
                "subtract_double subtract_duration_duration subtract_int64 \
                 subtract_timestamp_duration subtract_timestamp_timestamp subtract_uint64",
            ),
            ("_/_", "divide_double divide_int64 divide_uint64"),
            ("_%_", "modulo_int64 modulo_uint64"),
            ("-_", "negate_double negate_int64"),
            (
                "_<_",
                "less_bool less_int64 less_int64_double less_int64_uint64 less_uint64 \
                 less_uint64_double less_uint64_int64 less_double less_double_int64 \
                 less_double_uint64 less_string less_bytes less_timestamp less_duration",
            ),
            ("_[_]", "index_list index_map"),
            ("@in", "in_list in_map"),
            ("size", "size_bytes bytes_size size_list list_size"),
        ] {
            let function = &functions()[name];
            let ids: Vec<&str> = function.overloads.iter().map(|overload| overload.id).collect();
            assert!(ids.join(" ").starts_with(expected), "{name}: {ids:?}");
        }
    }

    /// The declarations of cel-go's `common/stdlib/standard.go`.
    #[test]
    fn a_line_declares_one_overload() {
        let (name, overload) = read("_[_] index_map global map(A, B) ; A | B").unwrap();
        assert_eq!((name, overload.id, overload.member), ("_[_]", "index_map", false));
        assert_eq!(overload.args.len(), 2);
        assert_eq!(overload.result, Type::param("B"));
        assert_eq!(overload.parameters, ["A".into(), "B".into()]);
        let (_, overload) =
            read("startsWith starts_with_string member string ; string | bool").unwrap();
        assert!(overload.member && overload.parameters.is_empty());
        for line in
            ["", "size", "size size_list global list(A)", "size size_list global list | int"]
        {
            assert!(read(line).is_none(), "{line}");
        }
    }
}
