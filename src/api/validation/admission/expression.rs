//! Expressions (CEL) of webhooks and policies as they are written; of all others, what can be said without compiling them.

use crate::expressions::{Compiler, Fault, Uses, Yields};
use crate::field::{Error, ErrorList, Path};

/// An expression that must be there, `missing` says why, and must compile.
pub(super) fn required(
    compiler: &Compiler,
    (text, missing): (&str, &str),
    (uses, yields): (Uses, Yields),
    field: &Path,
) -> ErrorList {
    if text.trim().is_empty() {
        return vec![Error::required(field, missing)];
    }
    outcome(compiler.compile(text, uses, yields), text, field)
}

/// The error of an expression that does not compile; `shown` stands in it.
pub(super) fn outcome<T>(compiled: Result<T, Fault>, shown: &str, field: &Path) -> ErrorList {
    let fault = compiled.err().map(|fault| match fault {
        Fault::Invalid(why) => Error::invalid(field, shown, why),
        Fault::Internal(why) => Error::internal(field, why),
    });
    fault.into_iter().collect()
}

/// An expression that may be absent and is not compiled.
fn optional(text: &str, field: &Path) -> ErrorList {
    let problem = if text.trim().is_empty() { None } else { syntax(text.trim()) };
    problem
        .map(|(column, what)| {
            let dots = ".".repeat(column.saturating_sub(1));
            let why = format!(
                "compilation failed: ERROR: <input>:1:{column}: Syntax error: {what}\n | {}\n | {dots}^",
                text.trim()
            );
            Error::invalid(field, text.trim(), why)
        })
        .into_iter()
        .collect()
}

/// An expression that is looked at even when it is empty.
pub(in crate::validation) fn compilable(text: &str, field: &Path) -> ErrorList {
    if !text.trim().is_empty() {
        return optional(text, field);
    }
    let why = "compilation failed: ERROR: <input>:1:0: Syntax error: mismatched input '<EOF>' expecting {'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}";
    vec![Error::invalid(field, text, why)]
}

/// The column (from 1) and the kind of the first thing that no expression can have.
fn syntax(text: &str) -> Option<(usize, String)> {
    let chars: Vec<char> = text.chars().collect();
    let mut open: Vec<char> = Vec::new();
    // Whether a complete operand stands before this place, so that another one cannot follow.
    let mut operand = false;
    let mut at = 0;
    while let Some(c) = chars.get(at).copied() {
        let start = at;
        match c {
            c if c.is_whitespace() => at += 1,
            '/' if chars.get(at + 1) == Some(&'/') => return None,
            '\'' | '"' => {
                if operand {
                    return Some((start + 1, extraneous(&chars, start, at + 1)));
                }
                at = quoted(&chars, at)?;
                operand = true;
            }
            c if c.is_alphanumeric() || c == '_' => {
                while chars.get(at).is_some_and(|c| c.is_alphanumeric() || *c == '_') {
                    at += 1;
                }
                let word: String = chars.get(start..at).unwrap_or_default().iter().collect();
                // A prefix of a string literal belongs to the literal.
                let prefix = matches!(chars.get(at), Some('\'' | '"'))
                    && word.chars().all(|c| "rRbB".contains(c));
                if prefix {
                    return None;
                }
                if word == "in" {
                    operand = false;
                    continue;
                }
                if operand {
                    return Some((start + 1, extraneous(&chars, start, at)));
                }
                operand = true;
            }
            '(' | '[' | '{' => {
                open.push(c);
                operand = false;
                at += 1;
            }
            ')' | ']' | '}' => {
                let wanted = match c {
                    ')' => '(',
                    ']' => '[',
                    _ => '{',
                };
                if open.pop() != Some(wanted) {
                    return Some((start + 1, extraneous(&chars, start, at + 1)));
                }
                operand = true;
                at += 1;
            }
            '!' if operand && chars.get(at + 1) != Some(&'=') => {
                return Some((start + 1, extraneous(&chars, start, at + 1)));
            }
            _ => {
                operand = false;
                at += 1;
            }
        }
    }
    (!open.is_empty()).then(|| (chars.len() + 1, "missing closing bracket at '<EOF>'".to_owned()))
}

fn extraneous(chars: &[char], start: usize, end: usize) -> String {
    let word: String = chars.get(start..end).unwrap_or_default().iter().collect();
    format!("extraneous input '{word}' expecting <EOF>")
}

/// The place after a string literal; `None` when it is not a plain one-line literal that ends, which is left to evaluation.
fn quoted(chars: &[char], start: usize) -> Option<usize> {
    let quote = chars.get(start)?;
    if chars.get(start + 1) == Some(quote) && chars.get(start + 2) == Some(quote) {
        return None;
    }
    let mut at = start + 1;
    loop {
        match chars.get(at)? {
            '\\' => at += 2,
            c if c == quote => return Some(at + 1),
            _ => at += 1,
        }
    }
}

/// A name that expressions can use.
pub(super) fn is_identifier(name: &str) -> bool {
    const RESERVED: [&str; 19] = [
        "true",
        "false",
        "null",
        "in",
        "as",
        "break",
        "const",
        "continue",
        "else",
        "for",
        "function",
        "if",
        "import",
        "let",
        "loop",
        "package",
        "namespace",
        "return",
        "var",
    ];
    crate::validation::names::c_identifier(name).is_empty()
        && !RESERVED.contains(&name)
        && !matches!(name, "void" | "while")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_mistakes_are_found() {
        let field = Path::new("e");
        for good in [
            "request.operation == 'CREATE'",
            "!has(object.x) && size(y) > 1 ? a[0] : {'k': 1}",
            "a in [1, 2] || b != -1",
            "Object{metadata: Object.metadata{labels: {'a':'b'}}}",
            "r'raw\\' == b\"x\"",
            "object.?spec.orValue(1)",
        ] {
            assert!(optional(good, &field).is_empty(), "{good}");
        }
        assert_eq!(
            optional("Bad_Name!", &field)[0].detail,
            "compilation failed: ERROR: <input>:1:9: Syntax error: extraneous input '!' expecting <EOF>\n | Bad_Name!\n | ........^"
        );
        assert_eq!(
            optional("a == 'C'x", &field)[0].detail,
            "compilation failed: ERROR: <input>:1:9: Syntax error: extraneous input 'x' expecting <EOF>\n | a == 'C'x\n | ........^"
        );
        assert_eq!(optional("(a", &field).len(), 1);
    }
}
