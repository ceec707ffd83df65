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
