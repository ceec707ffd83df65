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
