//! Tests of the parser: precedence, limits and messages.

use super::*;

/// The tree of an expression, in the notation of cel-go's tests without ids.
pub(super) fn shown(expr: &Expr) -> String {
    let list = |args: &[Expr]| args.iter().map(shown).collect::<Vec<_>>().join(", ");
    match &expr.kind {
        Kind::Literal(Literal::Int(value)) => value.to_string(),
        Kind::Literal(Literal::Bool(value)) => value.to_string(),
        Kind::Literal(Literal::String(value)) => format!("{value:?}"),
        Kind::Ident(name) => name.clone(),
        Kind::Select { operand, field, test } => {
            format!("{}.{field}{}", shown(operand), if *test { "~test-only~" } else { "" })
        }
        Kind::Call { target: None, function, args } => format!("{function}({})", list(args)),
        Kind::Call { target: Some(target), function, args } => {
            format!("{}.{function}({})", shown(target), list(args))
        }
        Kind::List { elements } => {
            let mark = |optional| if optional { "?" } else { "" };
            let shown = elements.iter().map(|e| format!("{}{}", mark(e.optional), shown(&e.value)));
            format!("[{}]", shown.collect::<Vec<_>>().join(", "))
        }
        Kind::Map { entries } => {
            let mark = |optional| if optional { "?" } else { "" };
            let shown = entries
                .iter()
                .map(|e| format!("{}{}:{}", mark(e.optional), shown(&e.key), shown(&e.value)));
            format!("{{{}}}", shown.collect::<Vec<_>>().join(", "))
        }
        Kind::Struct { name, fields } => {
            let shown =
                fields.iter().map(|field| format!("{}:{}", field.name, shown(&field.value)));
            format!("{name}{{{}}}", shown.collect::<Vec<_>>().join(", "))
        }
        other => format!("{other:?}"),
    }
}

/// Checks trees.
pub(super) fn check(rows: &[(&str, &str)]) {
    for (text, expected) in rows {
        assert_eq!(shown(&parse(text, false).unwrap().root), *expected, "{text}");
    }
}

/// Checks that expressions are invalid, and the errors without the lines of the expression.
pub(super) fn check_errors(rows: &[(&str, &[&str])]) {
    for (text, expected) in rows {
        let error = parse(text, false).unwrap_err().to_string();
        let errors: Vec<&str> =
            error.lines().filter_map(|line| line.strip_prefix("ERROR: <input>:")).collect();
        assert_eq!(errors, *expected, "{text}");
    }
}

/// Rows of cel-go's `parser/parser_test.go` and `checker/checker_test.go`.
#[test]
fn operators_bind_as_the_grammar_says() {
    check(&[
        ("x * 2", "_*_(x, 2)"),
        ("a?b:c", "_?_:_(a, b, c)"),
        ("1 + 2 * 3 - 1 / 2 == 6 % 1", "_==_(_-_(_+_(1, _*_(2, 3)), _/_(1, 2)), _%_(6, 1))"),
        ("false && !true || false ? 2 : 3", "_?_:_(_||_(_&&_(false, !_(true)), false), 2, 3)"),
        ("a < 5 || a > 10", "_||_(_<_(a, 5), _>_(a, 10))"),
        ("a in b", "@in(a, b)"),
        ("! false", "!_(false)"),
        ("-a", "-_(a)"),
        ("-1", "-1"),
        ("[1,3,4][0]", "_[_]([1, 3, 4], 0)"),
        ("size(x) == x.size()", "_==_(size(x), x.size())"),
        ("a.b.c", "a.b.c"),
        ("a.?b && a[?b]", "_&&_(_?._(a, \"b\"), _[?_](a, b))"),
    ]);
}

/// Rows of cel-go's `parser/parser_test.go`.
#[test]
fn chains_of_logical_operators_are_balanced() {
    check(&[
        ("a || b || c || d || e || f ", "_||_(_||_(_||_(a, b), c), _||_(_||_(d, e), f))"),
        (
            "a && b && c && d && e && f && g",
            "_&&_(_&&_(_&&_(a, b), _&&_(c, d)), _&&_(_&&_(e, f), g))",
        ),
    ]);
}

/// Rows of cel-go's `parser/parser_test.go`.
#[test]
fn syntax_errors_name_the_token_and_what_was_expected() {
    let expected = |position: &str, what: &str| {
        format!("{position}: Syntax error: {what} expecting {EXPRESSION}")
    };
    check_errors(&[
        ("as", &["1:1: reserved identifier: as"]),
        ("while", &["1:1: reserved identifier: while"]),
        (
            "a | b",
            &[
                "1:3: Syntax error: token recognition error at: '| '",
                "1:5: Syntax error: extraneous input 'b' expecting <EOF>",
            ],
        ),
        (
            "1 + $",
            &[
                "1:5: Syntax error: token recognition error at: '$'",
                &expected("1:6", "mismatched input '<EOF>'"),
            ],
        ),
        ("1 + 2\n3 +", &["2:1: Syntax error: mismatched input '3' expecting <EOF>"]),
        ("TestAllTypes(){}", &["1:15: Syntax error: mismatched input '{' expecting <EOF>"]),
        ("TestAllTypes{}()", &["1:15: Syntax error: mismatched input '(' expecting <EOF>"]),
        ("ind[a{b}]", &["1:8: Syntax error: mismatched input '}' expecting ':'"]),
    ]);
}

/// The options `ExpressionSizeCodePointLimit` and `MaxRecursionDepth` of cel-go's
/// `parser/options.go`, and their messages in `parser/parser.go`.
#[test]
fn long_and_deep_expressions_are_errors() {
    // The environment gives deep expressions a larger stack.
    let compile = |text: &str| crate::Env::new().compile_any(text);
    let nested = |depth| format!("{}1{}", "(".repeat(depth), ")".repeat(depth));
    let spaces = |count| format!("{}1", " ".repeat(count));
    for (text, expected) in [
        (spaces(100_000), "expression code point size exceeds limit: size: 100001, limit 100000"),
        (nested(251), "expression recursion limit exceeded: 250"),
    ] {
        let error = compile(&text).unwrap_err().to_string();
        assert_eq!(error, format!("ERROR: <input>:-1:0: {expected}"));
    }
    for text in [spaces(99_999), nested(200)] {
        assert!(compile(&text).is_ok(), "{}", text.len());
    }
}
