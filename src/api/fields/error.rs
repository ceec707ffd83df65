//! The errors of FieldsV1.

use super::MAX_DEPTH;

/// The reason why FieldsV1 cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FieldsError {
    /// The nesting exceeds the limit.
    #[error("fields are nested deeper than {MAX_DEPTH}")]
    TooDeep,
    /// A value, given as JSON, is not an object.
    #[error("expected an object of fields, got {0}")]
    NotAnObject(String),
    /// A key is too short to name a kind of element.
    #[error("key must be 2 characters long:")]
    ShortKey,
    /// A key lacks the kind of element.
    #[error("missing colon: {0}")]
    NoColon(String),
    /// The keys of a list element, given as JSON, are not an object.
    #[error("the keys of an element are no object: {0}")]
    KeysNotAnObject(String),
    /// The value or the keys of an element are not valid JSON; the text is that of the parser.
    #[error("{0}")]
    Json(String),
    /// The index of an element is not a number.
    #[error(transparent)]
    Index(#[from] std::num::ParseIntError),
}
