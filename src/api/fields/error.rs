//! Errors of FieldsV1.

use super::MAX_DEPTH;

/// FieldsV1 that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FieldsError {
    /// The nesting exceeds the limit.
    #[error("fields are nested deeper than {MAX_DEPTH}")]
    TooDeep,
    /// A value that is not an object, as JSON.
    #[error("expected an object of fields, got {0}")]
    NotAnObject(String),
    /// A key is too short to name a kind of element.
    #[error("key must be 2 characters long:")]
    ShortKey,
    /// A key without a kind of element.
    #[error("missing colon: {0}")]
    NoColon(String),
    /// The keys of a list element are not an object, as JSON.
    #[error("the keys of an element are no object: {0}")]
    KeysNotAnObject(String),
    /// The value or keys of an element are not JSON; the text of the parser's error.
    #[error("{0}")]
    Json(String),
    /// The index of an element is not a number.
    #[error(transparent)]
    Index(#[from] std::num::ParseIntError),
}
