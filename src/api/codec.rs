//! The codecs for JSON, YAML and protobuf. They follow the schema table and produce the normal
//! form, which is the form that Go writes.

pub mod json;
mod leaf;
mod normal;
pub mod protobuf;
pub mod time;
pub mod yaml;

pub use leaf::TextError;
pub use normal::{has_empties, normalize, normalize_stored};

/// The deepest nesting that any decoder accepts. A decoder rejects deeper input, so that the input
/// cannot exhaust the stack.
pub const DEPTH_MAX: usize = 120;

/// The most strict errors that a decoder collects for one object, as upstream.
const STRICT_ERRORS_MAX: usize = 100;

/// The reason why bytes cannot be decoded as an object of the requested type. The texts are
/// upstream's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The bytes are not valid JSON, YAML or protobuf, or lack `apiVersion` and `kind`.
    #[error("{0}")]
    Syntax(String),
    /// A value has the wrong type for its field.
    #[error("{0}")]
    Type(String),
}

/// A decoded object in normal form, except that it keeps the empty lists and maps of the request.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Decoded {
    /// The object without unknown fields and with normalized values.
    pub value: serde_json::Value,
    /// The unknown and duplicate fields, in upstream's order and with upstream's texts; at most
    /// 100.
    pub strict_errors: Vec<String>,
}

/// Returns the message for a body that names its kind but does not decode as the requested kind:
/// `Pod in version "v1" cannot be handled as a Pod: …`.
pub fn cannot_handle(kind: &str, version: &str, wanted_kind: &str, cause: &str) -> String {
    format!("{kind} in version {version:?} cannot be handled as a {wanted_kind}: {cause}")
}

/// Checks that a text is base64 by the rules of Go's decoder.
///
/// # Errors
///
/// Returns the error of Go's decoder.
pub(crate) fn base64(text: &str) -> Result<(), TextError> {
    leaf::bytes(text).map(drop)
}

/// Checks that a text is valid for its shape if that is a time, a duration or a quantity.
///
/// # Errors
///
/// Returns the error of Go's parser.
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

/// Returns the message for a body whose kind cannot be read.
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

/// Returns the message for strict errors: `strict decoding error: unknown field "spec.foo", …`.
pub fn strict_message(errors: &[String]) -> String {
    format!("strict decoding error: {}", errors.join(", "))
}
