//! Why the selector of a device cannot be evaluated.

/// Why an expression has no result for a device; the texts are upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EvaluationError {
    /// The expression failed.
    #[error("{0}")]
    Expression(String),
    #[error("CEL result of type {of} could not be converted to bool: {reason}")]
    NoBool { of: String, reason: String },
    #[error("attribute {name}: {source}")]
    Attribute { name: String, source: AttributeError },
    /// The quantity of a capacity cannot be parsed.
    #[error("{0}")]
    Capacity(String),
}

/// Why an attribute of a device has no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AttributeError {
    #[error("parse semantic version: {0}")]
    Version(String),
    #[error("unsupported attribute value")]
    Unsupported,
}
