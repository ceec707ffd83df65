//! The JSON codec. It decodes objects by the schema leniently, collects Kubernetes' strict errors
//! and returns Go's error messages.

mod decode;
mod scan;

use self::scan::{Kind, Scanner, Syntax};
use super::{DecodeError, Decoded};
use crate::schema::{Schema, TypeId};

/// The fields `apiVersion` and `kind` of a body, which the decoder reads before it selects the
/// type.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TypeMeta {
    /// The field `apiVersion`; empty when absent.
    pub api_version: String,
    /// The field `kind`; empty when absent.
    pub kind: String,
}

impl From<Syntax> for DecodeError {
    fn from(error: Syntax) -> Self {
        Self::Syntax(error.0)
    }
}

/// Reads `apiVersion` and `kind` and checks the syntax of the whole body.
///
/// # Errors
/// Returns upstream's text: `couldn't get version/kind; json parse error: …`, or the error for a
/// version with two slashes.
pub fn interpret(body: &[u8]) -> Result<TypeMeta, DecodeError> {
    let mut found = read_type_meta(body).map_err(|e| {
        DecodeError::Syntax(format!("couldn't get version/kind; json parse error: {e}"))
    })?;
    let version = &mut found.api_version;
    if version.matches('/').count() > 1 {
        return Err(DecodeError::Syntax(format!("unexpected GroupVersion string: {version}")));
    }
    // Upstream's `ParseGroupVersion` reads a single slash as neither a group nor a version.
    if version == "/" {
        version.clear();
    }
    Ok(found)
}

fn read_type_meta(body: &[u8]) -> Result<TypeMeta, DecodeError> {
    const GO: &str = r#"struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }"#;
    let mut scanner = Scanner::new(body);
    let kind = scanner.peek()?;
    let mut found = TypeMeta::default();
    let mut wrong = None;
    if kind != Kind::Object {
        scanner.skip()?;
        if kind != Kind::Null {
            wrong =
                Some(format!("json: cannot unmarshal {} into Go value of type {GO}", kind.name()));
        }
    } else {
        scanner.open()?;
        let mut first = true;
        while let Some(key) = scanner.key(&mut first)? {
            let slot = match key.as_ref() {
                "apiVersion" => &mut found.api_version,
                "kind" => &mut found.kind,
                _ => {
                    scanner.skip()?;
                    continue;
                }
            };
            match scanner.peek()? {
                Kind::String => *slot = scanner.string()?.into_owned(),
                Kind::Null => scanner.literal(Kind::Null)?,
                other => {
                    scanner.skip()?;
                    let name = other.name();
                    wrong.get_or_insert_with(|| format!("json: cannot unmarshal {name} into Go struct field .{key} of type string"));
                }
            }
        }
    }
    scanner.end()?;
    match wrong {
        Some(message) => Err(DecodeError::Type(message)),
        None => Ok(found),
    }
}

/// Decodes a body as an object of the type `type_id` into normal form.
///
/// # Errors
/// Returns an error with upstream's text if the body is not valid JSON or a value has the wrong
/// type for its field.
pub fn decode_strict(
    schema: &Schema,
    type_id: TypeId,
    body: &[u8],
) -> Result<Decoded, DecodeError> {
    decode::decode(schema, type_id, body)
}

/// Parses any JSON value. The parser reports Go's syntax errors and limits the nesting.
///
/// # Errors
/// Returns an error if the body is not valid JSON or exceeds the nesting limit.
pub fn parse(body: &[u8]) -> Result<serde_json::Value, DecodeError> {
    let mut scanner = Scanner::new(body);
    let value = scanner.any()?;
    scanner.end()?;
    Ok(value)
}

/// Parses like [`parse`] and also returns the paths of duplicate keys (`spec.ports[0].name`).
///
/// # Errors
/// Returns the errors of [`parse`].
pub fn parse_strict(body: &[u8]) -> Result<(serde_json::Value, Vec<String>), DecodeError> {
    let (mut scanner, mut doubled) = (Scanner::new(body), Vec::new());
    let value = scanner.any_strict(&mut String::new(), &mut doubled)?;
    scanner.end()?;
    Ok((value, doubled))
}

#[cfg(test)]
mod tests;
