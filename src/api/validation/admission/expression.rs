//! Checks the CEL expressions of webhooks and policies.

use crate::expressions::{Compiler, Fault, Uses, Yields};
use crate::field::{Error, ErrorList, Path};

/// Checks that an expression is set and compiles; `missing` is the error text for an empty
/// expression.
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

/// Returns the error of an expression that does not compile; `shown` is the value in the error.
pub(super) fn outcome<T>(compiled: Result<T, Fault>, shown: &str, field: &Path) -> ErrorList {
    compiled.err().map(|fault| fault.at(field, shown)).into_iter().collect()
}

/// Whether expressions can use a name as an identifier.
pub(super) fn is_identifier(name: &str) -> bool {
    crate::validation::names::c_identifier(name).is_empty() && !kcel::is_reserved(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validation::tests::same;

    /// `validateValidation` of `pkg/apis/admissionregistration/validation`.
    #[test]
    fn expressions_must_be_set_and_compile() {
        let check = |text: &str, expected: &[&str]| {
            let kind = (Uses::default(), Yields::Bool);
            let text = (text, "expression is not specified");
            same(&required(&Compiler::plain(), text, kind, &Path::new("e")), expected);
        };
        check("", &["e: Required value: expression is not specified"]);
        check(" \t", &["e: Required value: expression is not specified"]);
        check("object.x < 100", &[]);
        check("true", &[]);
        check("'a'", &["e: Invalid value: \"'a'\": must evaluate to bool but got string"]);
        check(
            "object.x in [1, 2, ",
            &["e: Invalid value: \"object.x in [1, 2, \": compilation failed: \
               ERROR: <input>:1:20: Syntax error: ..."],
        );
    }

    /// `isCELIdentifier` of `pkg/apis/admissionregistration/validation`.
    #[test]
    fn identifiers_are_no_reserved_words() {
        for name in ["foo", "_a1", "A", "object", "int"] {
            assert!(is_identifier(name), "{name}");
        }
        for name in ["", "1a", "a-b", "a.b", "true", "null", "in", "as", "namespace", "while"] {
            assert!(!is_identifier(name), "{name}");
        }
    }
}
