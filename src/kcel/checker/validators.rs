//! The additional validators of Kubernetes: constants that must be durations, timestamps or
//! patterns, and list and map literals of one type.

use super::Checked;
use crate::ast::{Expr, Kind, Literal, walk};
use crate::functions::format::Wrong;
use crate::parser::Offsets;
use crate::source::{Fault, Source};
use crate::types::Type;

pub(super) fn faults(checked: &Checked, source: &Source, offsets: &Offsets) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut report = |expr: &Expr, message: String| {
        faults.push(Fault { location: offsets.location(source, expr.id), message });
    };
    walk(&checked.root, &mut |expr| {
        let Kind::Call { function, args, target } = &expr.kind else { return };
        if let Some(literal) = args.first()
            && !is_valid(function, literal)
        {
            report(literal, format!("invalid {function} argument"));
        }
        if let ("format", Some(target), [values]) = (function.as_str(), target, args.as_slice()) {
            format(checked, expr, target, values, &mut report);
        }
    });
    homogeneous(checked, &checked.root, false, &mut report);
    faults
}

/// A literal format pattern with its arguments.
fn format(
    checked: &Checked,
    call: &Expr,
    target: &Expr,
    values: &Expr,
    report: &mut dyn FnMut(&Expr, String),
) {
    let (Kind::Literal(Literal::String(pattern)), Kind::List { elements }) =
        (&target.kind, &values.kind)
    else {
        return;
    };
    let types: Vec<&str> =
        elements.iter().map(|element| checked.type_of(element.value.id).name()).collect();
    if let Err(Wrong(at, message)) = crate::functions::format::check(pattern, &types) {
        let place = at.and_then(|at| elements.get(at)).map_or(call, |element| &element.value);
        report(place, message);
    }
}

/// Whether a function accepts a constant.
fn is_valid(function: &str, literal: &Expr) -> bool {
    let Kind::Literal(literal) = &literal.kind else { return true };
    match (function, literal) {
        ("duration", Literal::String(text)) => crate::time::parse_duration(text).is_some(),
        ("timestamp", Literal::String(text)) => {
            crate::time::parse_rfc3339(text).is_some_and(|at| crate::time::in_range(at.seconds))
        }
        ("timestamp", Literal::Int(seconds)) => crate::time::in_range(*seconds),
        ("matches", Literal::String(text)) => crate::functions::pattern(text).is_ok(),
        _ => true,
    }
}

/// Requires one type for the elements of list and map literals, except in arguments of `format`.
fn homogeneous(
    checked: &Checked,
    expr: &Expr,
    exempt: bool,
    report: &mut dyn FnMut(&Expr, String),
) {
    let mut exempt = exempt;
    match &expr.kind {
        Kind::Call { function, .. } if function == "format" => exempt = true,
        Kind::List { elements } if !exempt => {
            let mut first: Option<Type> = None;
            for element in elements {
                let of = opened(checked.type_of(element.value.id), element.optional);
                match &first {
                    None => first = Some(of),
                    Some(known) if *known != of => {
                        report(&element.value, mismatch(known, &of));
                        break;
                    }
                    Some(_) => {}
                }
            }
        }
        Kind::Map { entries } if !exempt => {
            let mut first: Option<(Type, Type)> = None;
            for entry in entries {
                let key = checked.type_of(entry.key.id).clone();
                let value = opened(checked.type_of(entry.value.id), entry.optional);
                let Some((known_key, known_value)) = &first else {
                    first = Some((key, value));
                    continue;
                };
                if *known_key != key {
                    report(&entry.key, mismatch(known_key, &key));
                }
                if *known_value != value {
                    report(&entry.value, mismatch(known_value, &value));
                }
            }
        }
        _ => {}
    }
    children(expr, &mut |child| homogeneous(checked, child, exempt, report));
}

fn opened(of: &Type, optional: bool) -> Type {
    match of.unwrap_optional() {
        Some(inner) if optional => inner.clone(),
        _ => of.clone(),
    }
}

fn mismatch(expected: &Type, actual: &Type) -> String {
    format!("expected type '{expected}' but found '{actual}'")
}

fn children<'e>(expr: &'e Expr, visit: &mut dyn FnMut(&'e Expr)) {
    match &expr.kind {
        Kind::Unspecified | Kind::Literal(_) | Kind::Ident(_) => {}
        Kind::Select { operand, .. } => visit(operand),
        Kind::Call { target, args, .. } => {
            if let Some(target) = target {
                visit(target);
            }
            args.iter().for_each(visit);
        }
        Kind::List { elements } => elements.iter().for_each(|element| visit(&element.value)),
        Kind::Map { entries } => {
            for entry in entries {
                visit(&entry.key);
                visit(&entry.value);
            }
        }
        Kind::Struct { fields, .. } => fields.iter().for_each(|field| visit(&field.value)),
        Kind::Comprehension(fold) => {
            for part in [&fold.range, &fold.init, &fold.condition, &fold.step, &fold.result] {
                visit(part);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Env, Type};

    /// Rows of cel-go's `cel/validator_test.go`.
    #[test]
    fn invalid_constants_and_mixed_literals_are_errors() {
        for (expr, expected) in [
            ("duration('1')", "1:10: invalid duration argument"),
            ("duration('1d')", "1:10: invalid duration argument"),
            ("duration('1us')\n < duration('1nns')", "2:13: invalid duration argument"),
            ("timestamp('1000-00-00T00:00:00Z')", "1:11: invalid timestamp argument"),
            ("timestamp('1000-01-01T00:00:00ZZ')", "1:11: invalid timestamp argument"),
            ("timestamp(-62135596801)", "1:11: invalid timestamp argument"),
            ("'hello'.matches('(?<name%>el*)')", "1:17: invalid matches argument"),
            ("'hello'.matches('??el*')", "1:17: invalid matches argument"),
            ("name in ['hello', 0]", "1:19: expected type 'string' but found 'int'"),
            ("{'hello':'world', 1:'!'}", "1:19: expected type 'string' but found 'int'"),
            (
                "name in {'hello':'world', 'goodbye':true}",
                "1:37: expected type 'string' but found 'bool'",
            ),
        ] {
            let env = Env::new().variable("name", Type::String);
            let error = env.compile_any(expr).unwrap_err().to_string();
            assert!(error.contains(&format!("ERROR: <input>:{expected}\n")), "{expr}: {error}");
        }
    }

    /// Rows of cel-go's `cel/validator_test.go` and `ext/formatting_test.go`.
    #[test]
    fn variables_and_arguments_of_format_are_not_restricted() {
        let env = Env::new().variable("name", Type::String).variable("x", Type::String);
        for expr in [
            "duration('2h3m4s5us')",
            "duration(x)",
            "timestamp(-6213559680)",
            "timestamp(x)",
            "'hello'.matches('el*')",
            "'hello'.matches(x)",
            "name in [?optional.ofNonZeroValue(''), 'hello', ?optional.of('')]",
            "{?'hello': optional.ofNonZeroValue(false), 'world': true}",
            "'%s %d'.format(['a', 1])",
        ] {
            assert!(env.compile_any(expr).is_ok(), "{expr}");
        }
        let error = env.compile_any("'%d'.format([5.2])").unwrap_err().to_string();
        let expected = "error during formatting: decimal clause can only be used on integers";
        assert!(error.contains(expected), "{error}");
    }
}
