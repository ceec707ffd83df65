//! Dispatches calls of functions: chooses the overload by the values and evaluates it.

pub(crate) mod format;
mod hosts;
mod lists;
mod patterns;
mod standard;
mod strings;

use regex::Regex;

use self::patterns::PatternError;
use crate::declarations::{Function, Overload, functions};
use crate::node::Call;
use crate::types::{OPTIONAL, Type};
use crate::value::{Error, Value};

type Result<T> = std::result::Result<T, Error>;

/// Functions with one implementation for all overloads, which checks the types of its arguments
/// itself.
const SINGLE: &[&str] = &[
    "!_",
    "-_",
    "@in",
    "@sortByAssociatedKeys",
    "_!=_",
    "_%_",
    "_*_",
    "_+_",
    "_-_",
    "_/_",
    "_<=_",
    "_<_",
    "_==_",
    "_>=_",
    "_>_",
    "_[_]",
    "dyn",
    "matches",
    "size",
    "sort",
    "type",
];

/// Functions that do not check the types of their arguments beforehand.
const UNGUARDED: &[&str] = &["contains", "endsWith", "startsWith", "flatten"];

/// Whether the overload is chosen by the values at run time.
pub(crate) fn is_chosen_late(call: &Call) -> bool {
    call.overload.is_none()
        && !SINGLE.contains(&call.function.as_str())
        && functions().get(call.function.as_str()).is_some_and(|f| f.overloads.len() > 1)
}

/// Calls a function. Arguments are moved, so that a list without other owners can grow in place.
pub(crate) fn call<'a>(call: &Call, args: Vec<Value<'a>>) -> Result<Value<'a>> {
    let name = call.function.as_str();
    if !SINGLE.contains(&name) && !UNGUARDED.contains(&name) {
        guard(call, &args)?;
    }
    if let Some(result) = standard::call(call, args)? {
        return Ok(result);
    }
    Err(Error::new(format!("the function {name} is not supported")))
}

/// Rejects arguments that no overload accepts.
fn guard(call: &Call, args: &[Value<'_>]) -> Result<()> {
    let Some(function) = functions().get(call.function.as_str()) else {
        return Err(Error::new(format!("no such overload: {}", call.function)));
    };
    if candidates(function, call.overload).any(|overload| takes(overload, args)) {
        return Ok(());
    }
    let types: Vec<&str> = args.iter().map(Value::type_name).collect();
    Err(Error::new(format!("no such overload: {}({})", call.function, types.join(", "))))
}

fn candidates<'f>(
    function: &'f Function,
    overload: Option<&'f str>,
) -> impl Iterator<Item = &'f Overload> {
    function.overloads.iter().filter(move |one| overload.is_none_or(|id| one.id == id))
}

fn takes(overload: &Overload, args: &[Value<'_>]) -> bool {
    overload.args.len() == args.len()
        && overload.args.iter().zip(args).all(|(of, value)| holds(of, value))
}

/// Whether a value has a type; for lists and maps, the first element decides.
fn holds(of: &Type, value: &Value<'_>) -> bool {
    match (of, value) {
        (Type::Dyn | Type::Any | Type::Param(_), _) => true,
        (Type::List(of), Value::List(list)) => {
            list.is_empty() || list.get(0).is_ok_and(|first| holds(of, &first))
        }
        (Type::Map(key, of), Value::Map(map)) => match map.keys().first() {
            None => true,
            Some(first) => {
                holds(key, first) && matches!(map.find(first), Ok(Some(v)) if holds(of, &v))
            }
        },
        (Type::Opaque(name, _), Value::Optional(_)) => &**name == OPTIONAL,
        (of, value) => of.name() == value.type_name(),
    }
}

/// Largest size of a compiled pattern, in bytes.
const PATTERN_BYTES_MAX: usize = 1 << 20;

/// Compiles a pattern of Go's syntax.
///
/// # Errors
///
/// An invalid pattern, with Go's text where it is known.
pub(crate) fn pattern(text: &str) -> std::result::Result<Regex, PatternError> {
    patterns::translated(text).and_then(|translated| {
        regex::RegexBuilder::new(&translated)
            .size_limit(PATTERN_BYTES_MAX)
            .build()
            .map_err(|error| PatternError::of(text, &error))
    })
}

/// Returns the pattern of a call; a constant pattern is compiled in advance.
fn pattern_of(call: &Call, text: &Value<'_>) -> Result<Regex> {
    if let Some(regex) = &call.regex {
        return Ok(regex.clone());
    }
    let text = text.as_str().ok_or_else(Error::no_overload)?;
    pattern(text).map_err(|error| Error::new(error.to_string()))
}

/// Returns the arguments as an array, or an error if their number differs.
fn exactly<'s, 'a, const N: usize>(args: &'s [Value<'a>]) -> Result<&'s [Value<'a>; N]> {
    args.try_into().map_err(|_| Error::no_overload())
}

fn text<'s>(value: &'s Value<'_>) -> Result<&'s str> {
    value.as_str().ok_or_else(Error::no_overload)
}

fn int(value: &Value<'_>) -> Result<i64> {
    match value {
        Value::Int(value) => Ok(*value),
        _ => Err(Error::no_overload()),
    }
}

fn list<'s, 'a>(value: &'s Value<'a>) -> Result<&'s crate::value::List<'a>> {
    match value {
        Value::List(list) => Ok(list),
        _ => Err(Error::no_overload()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::check_errors;

    /// Rows of cel-go's `ext/strings_test.go`, whose calls are not type-checked; here, `dyn` defers
    /// the check to the evaluation.
    #[test]
    fn calls_without_a_fitting_overload_are_errors() {
        check_errors(&[
            ("dyn(42).charAt(2) == ''", "no such overload"),
            ("'hello'.charAt(dyn(true)) == ''", "no such overload"),
            ("dyn(24).indexOf(dyn('2')) == 0", "no such overload"),
            ("'42'.indexOf('4', dyn('0')) == 0", "no such overload"),
            ("dyn(42).split('2') == ['4']", "no such overload"),
            ("'42'.replace(dyn(2), '1') == '41'", "no such overload"),
            ("'42'.split('2', dyn('1')) == ['4']", "no such overload"),
            ("'tacocat'.substring(0, dyn(false)) == ''", "no such overload"),
            ("dyn({}).flatten()", "no such overload"),
            ("dyn(1) - dyn('a')", "no such overload"),
            ("-dyn('a')", "no such overload"),
        ]);
    }

    /// `Type.IsAssignableRuntimeType` of cel-go's `common/types/types.go` looks at the first
    /// element of a list or map.
    #[test]
    fn the_first_element_determines_whether_a_list_has_a_type() {
        let list = |items: Vec<Value<'static>>| Value::list(items);
        let of = |text: &str| Type::parse(text).unwrap();
        for (text, value, expected) in [
            ("list(int)", list(vec![]), true),
            ("list(int)", list(vec![Value::Int(1), Value::text("a")]), true),
            ("list(int)", list(vec![Value::text("a")]), false),
            ("list(dyn)", list(vec![Value::text("a")]), true),
            ("int", Value::Uint(1), false),
            ("optional_type(int)", Value::Optional(None), true),
            ("timestamp", Value::Duration(1), false),
            ("A", Value::Null, true),
        ] {
            assert_eq!(holds(&of(text), &value), expected, "{text} {value}");
        }
    }
}
