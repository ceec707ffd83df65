//! Tests of the checker: the types of expressions, and names and calls that do not resolve.

use std::collections::BTreeMap;

use crate::{Env, Type};

/// The message type of cel-go's tests, with some of its fields.
fn all_types() -> Type {
    let fields = [
        ("single_int32", Type::Int),
        ("single_int64", Type::Int),
        ("repeated_int64", Type::list(Type::Int)),
        ("map_string_string", Type::map(Type::String, Type::String)),
    ];
    let fields = fields.map(|(name, of)| (name.to_owned(), of));
    Type::object("google.expr.proto3.test.TestAllTypes", BTreeMap::from(fields))
}

fn compile(variables: &[(&str, Type)], expr: &str) -> Result<String, String> {
    let start = Env::new().variable("all", all_types());
    let env = variables.iter().fold(start, |env, (name, of)| env.variable(name, of.clone()));
    let program = env.compile_any(expr).map_err(|error| error.to_string())?;
    Ok(program.output().to_string())
}

/// Rows of cel-go's `checker/checker_test.go`.
#[test]
fn overloads_and_elements_determine_the_type() {
    let variables = [("is", Type::String), ("ii", Type::Int), ("x", all_types())];
    for (expr, expected) in [
        ("is", "string"),
        ("null", "null"),
        ("[]", "list(dyn)"),
        ("[1]", "list(int)"),
        ("1 + ii", "int"),
        ("[] + [1,2,3,] + [4]", "list(int)"),
        ("{1:2u, 2:3u}", "map(int, uint)"),
        ("{\"a\":1, \"b\":2}.a", "int"),
        ("int(1u) + int(uint(\"1\"))", "int"),
        ("false && !true || false ? 2 : 3", "int"),
        ("size([] + [1])", "int"),
        ("x.repeated_int64.map(x, double(x))", "list(double)"),
        ("list == type([1]) && map == type({1:2u})", "bool"),
        (
            "google.expr.proto3.test.TestAllTypes{single_int32: 1, single_int64: 2}",
            "google.expr.proto3.test.TestAllTypes",
        ),
    ] {
        assert_eq!(compile(&variables, expr).as_deref(), Ok(expected), "{expr}");
    }
}

/// Rows of cel-go's `checker/checker_test.go`.
#[test]
fn names_and_calls_that_do_not_resolve_are_errors() {
    let list = Type::list(all_types());
    for (variable, of, expr, expected) in [
        ("x", Type::Int, "foo", "1:1: undeclared reference to 'foo' (in container '')"),
        (
            "x",
            list.clone(),
            "x + all",
            "1:3: found no matching overload for '_+_' applied to \
             '(list(google.expr.proto3.test.TestAllTypes), \
             google.expr.proto3.test.TestAllTypes)'",
        ),
        (
            "x",
            list,
            "x[1u]",
            "1:2: found no matching overload for '_[_]' applied to \
             '(list(google.expr.proto3.test.TestAllTypes), uint)'",
        ),
        (
            "x",
            Type::Bool,
            "x.all(y, y == true)",
            "1:1: expression of type 'bool' cannot be range of a comprehension \
             (must be list, map, or dynamic)",
        ),
        ("x", all_types(), "x.all(e, 0)", "1:10: expected type 'bool' but found 'int'"),
        (
            "x",
            all_types(),
            "x.repeated_int64.exists(y, y > 10) && y < 5",
            "1:39: undeclared reference to 'y' (in container '')",
        ),
        ("x", all_types(), "x.undefined == 1", "1:2: undefined field 'undefined'"),
        (
            "x",
            all_types(),
            "google.expr.proto3.test.TestAllTypes{single_int32: 1u}",
            "expected type of field 'single_int32' is 'int' but provided type is 'uint'",
        ),
        ("x", Type::Int, "x.y", "1:2: type 'int' does not support field selection"),
    ] {
        let error = compile(&[(variable, of)], expr).unwrap_err();
        assert!(error.contains(expected), "{expr}: {error}");
    }
}
