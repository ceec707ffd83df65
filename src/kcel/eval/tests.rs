//! Tests of evaluation: logic, optional values, and errors of selections.

use crate::tests::{check_errors, check_true, check_values};

/// Rows of CEL's conformance tests, `tests/simple/testdata/logic.textproto`.
#[test]
fn a_side_that_decides_absorbs_the_error_of_the_other() {
    check_values(&[
        ("true ? 1 : 2", "1"),
        ("false ? 'foo' : 'bar'", "bar"),
        ("false && (2 / 0 > 3 ? false : true)", "false"),
        ("(2 / 0 > 3 ? false : true) && false", "false"),
        ("true || (2 / 0 > 3 ? false : true)", "true"),
        ("(2 / 0 > 3 ? false : true) || true", "true"),
        ("dyn([1, 2, 3][3]) || true", "true"),
        ("dyn([1, 2, 3][3]) && false", "false"),
    ]);
    check_errors(&[
        ("2 / 0 > 4 ? 'baz' : 'quux'", "division by zero"),
        ("true && 1/0 != 0", "division by zero"),
        ("1/0 != 0 || false", "division by zero"),
        ("dyn('less') && dyn('great')", "no such overload"),
        ("'cows' ? false : 17", "no matching overload"),
        ("!0", "no matching overload"),
    ]);
}

/// Rows of CEL's conformance tests, `tests/simple/testdata/optionals.textproto`.
#[test]
fn optional_selections_are_empty_for_missing_keys_only() {
    check_true(&[
        "!{}.?key.optFlatMap(k, k.?subkey).hasValue()",
        "{'null_key': dyn(null)}.?null_key.hasValue()",
        "!{true: dyn(0)}[?false].absent.hasValue()",
        "!{}.?null_key.invalid.hasValue()",
        "!{}.?x.hasValue()",
        "!has({}.?x.y)",
        "has({'x': {'y': 'z'}}.?x.y)",
        "type(optional.none()) == optional_type",
        "!optional.none()[?0].hasValue()",
        "!optional.none().?repeated_string.hasValue()",
    ]);
}

/// Rows of CEL's conformance tests, `tests/simple/testdata/optionals.textproto`.
#[test]
fn optional_values_are_opened_joined_and_left_out_of_literals() {
    check_values(&[
        ("optional.none().or(optional.none()).orValue(42)", "42"),
        ("{'key': {'subkey': 'subvalue'}}.?key.optFlatMap(k, k.?subkey).value()", "subvalue"),
        ("optional.of(42).optMap(y, y + 1).value()", "43"),
        ("{'c': {'dashed-index': 'goodbye'}}.c[?'dashed-index'].orValue('x')", "goodbye"),
        ("{'c': {}}.c[?'missing-index'].orValue('default value')", "default value"),
        ("optional.of({'c': {'index': 'goodbye'}}).c.index.orValue('x')", "goodbye"),
        ("optional.of({'c': {}}).c['missing'].orValue('default value')", "default value"),
        ("[?{}.?c, ?optional.of(42), ?optional.none()]", "[42]"),
        ("{?'a': optional.none(), 'b': 1}", "{b: 1}"),
        ("['foo'][?0].value()", "foo"),
    ]);
}

/// Rows of CEL's conformance tests, `tests/simple/testdata/fields.textproto`, and
/// `interpreter/attributes.go` of cel-go.
#[test]
fn selections_of_what_does_not_exist_are_errors() {
    check_errors(&[
        ("{0:1,2:2,5:3}[1]", "no such key: 1"),
        ("{'a': 1}.b == 1", "no such key: b"),
        ("[1, 2, 3][3]", "index out of bounds: 3"),
        ("missing == ''", "no such attribute(s): missing"),
        ("optional.none().value()", "optional.none() dereference"),
    ]);
}
