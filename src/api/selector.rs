//! Label and field selectors: parsing, upstream's errors, normal form, and matching without
//! allocation.

mod field;
mod label;
mod lexer;
mod names;
mod parser;

pub use field::{FieldSelector, FieldTerm};
pub use label::{LabelSelector, Labels, Operator, Requirement};

/// Why a selector is refused; the text is upstream's and goes out as a 400.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SelectorError(pub String);
