//! Expressions (CEL) of webhooks and policies as they are written.

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
    compiled.err().map(|fault| fault.at(field, shown)).into_iter().collect()
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
