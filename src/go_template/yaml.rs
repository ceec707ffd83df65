//! YAML as Go's packages write and read it.

mod emit;
mod order;
mod read;
mod resolve;
mod scalar;
#[cfg(test)]
mod tests;

pub(crate) use read::{mapping, read, sequence};

use crate::budget::Budget;
use crate::error::Failure;
use crate::json;
use crate::value::Value;

/// Which of Go's packages is meant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Dialect {
    /// `sigs.k8s.io/yaml`, over JSON and version 2: lines are folded at 80 columns, sequences in
    /// mappings are not indented.
    V2,
    /// `go.yaml.in/yaml/v3` with an indentation of 2.
    V3,
}

/// `toYaml`: the value as JSON, written as YAML without the last line break.
///
/// # Errors
///
/// The text would be larger than the budget, or the value has no JSON.
pub(crate) fn to_yaml(value: &Value, budget: &mut Budget) -> Result<Value, Failure> {
    let plain = json::normalize(value, budget)?;
    emit::emit(&plain, Dialect::V2, budget)
}

/// `toYamlPretty`.
///
/// # Errors
///
/// The text would be larger than the budget.
pub(crate) fn to_yaml_pretty(value: &Value, budget: &mut Budget) -> Result<Value, Failure> {
    emit::emit(value, Dialect::V3, budget)
}
