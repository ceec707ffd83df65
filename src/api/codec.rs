//! Objects as bytes: JSON, YAML and protobuf by the schema table, in the normal form that Go would
//! write.

pub mod json;
mod leaf;
mod normal;
pub mod protobuf;
pub mod time;
pub mod yaml;

pub use leaf::TextError;
pub use normal::{has_empties, normalize, normalize_stored};

/// Nesting that is accepted in any format; deeper input is refused before it can exhaust a stack.
pub const DEPTH_MAX: usize = 120;

/// Strict errors that are collected per object, as upstream.
const STRICT_ERRORS_MAX: usize = 100;

/// Why bytes are no object of the wanted type; the texts are upstream's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The bytes are no JSON, YAML or protobuf at all, or hold no `apiVersion` and `kind`.
    #[error("{0}")]
    Syntax(String),
    /// A value has the wrong type for its field.
    #[error("{0}")]
    Type(String),
}

/// A decoded object in normal form, but with the empty lists and maps that were sent.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Decoded {
    /// The object: unknown fields dropped, values normalised.
    pub value: serde_json::Value,
    /// Unknown and duplicate fields in the order and with the texts of upstream; at most 100.
    pub strict_errors: Vec<String>,
}

/// The message of a body whose kind could be read but that does not fit: `Pod in version "v1"
/// cannot be handled as a Pod: …`.
pub fn cannot_handle(kind: &str, version: &str, wanted_kind: &str, cause: &str) -> String {
    format!("{kind} in version {version:?} cannot be handled as a {wanted_kind}: {cause}")
}

/// Checks that a text is base64 as Go reads it.
///
/// # Errors
///
/// The error of Go's decoder.
pub(crate) fn base64(text: &str) -> Result<(), TextError> {
    leaf::bytes(text).map(drop)
}

/// Checks a text whose shape is a time, a duration or a quantity.
///
/// # Errors
///
/// The error of Go's parser.
pub(crate) fn check_text(shape: &crate::schema::Shape, text: &str) -> Result<(), TextError> {
    use crate::schema::Shape;
    match shape {
        Shape::Time => leaf::time(text, time::Precision::Seconds).map(drop),
        Shape::MicroTime => leaf::time(text, time::Precision::Micros).map(drop),
        Shape::Duration => leaf::duration(text).map(drop),
        Shape::Quantity => leaf::quantity(text).map(drop),
        _ => Ok(()),
    }
}

/// The message of a body whose kind could not be read.
pub fn unrecognized(wanted_kind: &str, cause: &str, body: &[u8]) -> String {
    const SHOWN: usize = 30;
    let head = body.get(..SHOWN).unwrap_or(body);
    let more = if body.len() > SHOWN { " ..." } else { "" };
    let summary = match body.first() {
        None => "<empty>".to_owned(),
        Some(b'{') => String::from_utf8_lossy(head).into_owned(),
        Some(_) => head.iter().map(|b| format!("{b:02x}")).collect(),
    };
    format!(
        "the object provided is unrecognized (must be of type {wanted_kind}): {cause} ({summary}{more})"
    )
}

/// The message of strict errors: `strict decoding error: unknown field "spec.foo", …`.
pub fn strict_message(errors: &[String]) -> String {
    format!("strict decoding error: {}", errors.join(", "))
}
