//! Label and field selectors: parsing with upstream's errors, the normal form, and matching without
//! allocation.

mod field;
mod label;
mod lexer;
mod names;
mod parser;

pub use field::{FieldSelector, FieldTerm};
pub use label::{LabelSelector, Labels, Operator, Requirement};

/// The reason why a selector is rejected. The text is upstream's; the API server returns it with
/// the code 400.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SelectorError(pub String);
