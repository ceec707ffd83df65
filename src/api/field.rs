//! Field errors with the exact texts of upstream's package
//! `k8s.io/apimachinery/pkg/util/validation/field`.

use std::collections::HashSet;
use std::fmt;

use serde_json::Value;

use crate::status::{Cause, Details, Status, qualified};

/// The path of a field, such as `spec.containers[0].name`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Path(String);

impl Path {
    /// Creates a path of one element; the empty string is the root.
    pub fn new(root: &str) -> Self {
        Self(root.to_owned())
    }

    /// Returns `self.name`.
    #[must_use]
    pub fn child(&self, name: &str) -> Self {
        if self.0.is_empty() { Self(name.to_owned()) } else { Self(format!("{}.{name}", self.0)) }
    }

    /// Returns `self[index]`.
    #[must_use]
    pub fn index(&self, index: usize) -> Self {
        Self(format!("{}[{index}]", self.0))
    }

    /// Returns `self[key]`.
    #[must_use]
    pub fn key(&self, key: &str) -> Self {
        Self(format!("{}[{key}]", self.0))
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "<nil>" } else { &self.0 })
    }
}

/// The kinds of field errors. The comments are the reasons of the causes in a Status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `FieldValueNotFound`
    NotFound,
    /// `FieldValueRequired`
    Required,
    /// `FieldValueDuplicate`
    Duplicate,
    /// `FieldValueInvalid`
    Invalid,
    /// `FieldValueNotSupported`
    NotSupported,
    /// `FieldValueForbidden`
    Forbidden,
    /// `FieldValueTooLong`
    TooLong,
    /// `FieldValueTooMany`
    TooMany,
    /// `InternalError`
    Internal,
    /// `FieldValueTypeInvalid`
    TypeInvalid,
}

/// A field error.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Error {
    /// The kind of the error.
    pub kind: Kind,
    /// The path of the field.
    pub field: Path,
    /// The invalid value, if the text contains it.
    pub value: Value,
    /// The explanation.
    pub detail: String,
    /// Whether the text omits the value.
    pub omit_value: bool,
}

/// Field errors in upstream's order.
pub type ErrorList = Vec<Error>;

/// Returns the errors without later repetitions of equal errors.
pub fn distinct(errors: ErrorList) -> ErrorList {
    let mut seen = std::collections::HashSet::with_capacity(errors.len());
    errors.into_iter().filter(|error| seen.insert(error.clone())).collect()
}

impl Error {
    fn new(kind: Kind, field: &Path, value: Value, detail: String) -> Self {
        Self { kind, field: field.clone(), value, detail, omit_value: false }
    }

    /// Creates the error for a required field that is absent.
    pub fn required(field: &Path, detail: impl Into<String>) -> Self {
        Self::new(Kind::Required, field, Value::Null, detail.into())
    }

    /// Creates the error for an invalid value of the right type.
    pub fn invalid(field: &Path, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Self::new(Kind::Invalid, field, value.into(), detail.into())
    }

    /// Creates the error for an invalid value that upstream does not show.
    pub fn omitted(field: &Path, detail: impl Into<String>) -> Self {
        Self::new(Kind::Invalid, field, Value::Null, detail.into()).without_value()
    }

    fn without_value(mut self) -> Self {
        self.omit_value = true;
        self
    }

    /// Replaces the value in the text of the error by `text`.
    #[must_use]
    pub fn printed(mut self, text: &str) -> Self {
        self.omit_value = true;
        self.detail = if self.detail.is_empty() {
            text.to_owned()
        } else {
            format!("{text}: {}", self.detail)
        };
        self
    }

    /// Creates the error for a value that occurs twice.
    pub fn duplicate(field: &Path, value: impl Into<Value>) -> Self {
        Self::new(Kind::Duplicate, field, value.into(), String::new())
    }

    /// Creates the error for a reference to an object or field that does not exist.
    pub fn not_found(field: &Path, value: impl Into<Value>) -> Self {
        Self::new(Kind::NotFound, field, value.into(), String::new())
    }

    /// Creates the error for a value outside of an enumeration. The text lists `supported` in this
    /// order; upstream sorts it first.
    pub fn not_supported(field: &Path, value: impl Into<Value>, supported: &[&str]) -> Self {
        let quoted: Vec<String> = supported.iter().map(|s| go_quote(s)).collect();
        let detail = if quoted.is_empty() {
            String::new()
        } else {
            format!("supported values: {}", quoted.join(", "))
        };
        Self::new(Kind::NotSupported, field, value.into(), detail)
    }

    /// Creates the error for a field that must not be set.
    pub fn forbidden(field: &Path, detail: impl Into<String>) -> Self {
        Self::new(Kind::Forbidden, field, Value::Null, detail.into())
    }

    /// Creates the error for a value of more than `max` bytes; upstream does not show the value.
    pub fn too_long(field: &Path, max: usize) -> Self {
        let unit = if max == 1 { "byte" } else { "bytes" };
        Self::new(
            Kind::TooLong,
            field,
            Value::String("<value omitted>".into()),
            format!("may not be more than {max} {unit}"),
        )
    }

    /// Creates the error for a list of more than `max` items.
    pub fn too_many(field: &Path, actual: usize, max: usize) -> Self {
        let unit = if max == 1 { "item" } else { "items" };
        Self::new(Kind::TooMany, field, actual.into(), format!("must have at most {max} {unit}"))
    }

    /// Creates the error for a value of the wrong type.
    pub fn type_invalid(field: &Path, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Self::new(Kind::TypeInvalid, field, value.into(), detail.into())
    }

    /// Creates the error for an internal error of the server that concerns the field.
    pub fn internal(field: &Path, detail: impl Into<String>) -> Self {
        Self::new(Kind::Internal, field, Value::Null, detail.into())
    }

    /// Returns the reason of the cause in a Status.
    pub fn reason(&self) -> &'static str {
        match self.kind {
            Kind::NotFound => "FieldValueNotFound",
            Kind::Required => "FieldValueRequired",
            Kind::Duplicate => "FieldValueDuplicate",
            Kind::Invalid => "FieldValueInvalid",
            Kind::NotSupported => "FieldValueNotSupported",
            Kind::Forbidden => "FieldValueForbidden",
            Kind::TooLong => "FieldValueTooLong",
            Kind::TooMany => "FieldValueTooMany",
            Kind::Internal => "InternalError",
            Kind::TypeInvalid => "FieldValueTypeInvalid",
        }
    }

    /// Returns the text without the path of the field: `Invalid value: "x": why`.
    pub fn body(&self) -> String {
        let title = match self.kind {
            Kind::NotFound => "Not found",
            Kind::Required => "Required value",
            Kind::Duplicate => "Duplicate value",
            Kind::Invalid | Kind::TypeInvalid => "Invalid value",
            Kind::NotSupported => "Unsupported value",
            Kind::Forbidden => "Forbidden",
            Kind::TooLong => "Too long",
            Kind::TooMany => "Too many",
            Kind::Internal => "Internal error",
        };
        let mut text = title.to_owned();
        if !self.omit_value
            && !matches!(
                self.kind,
                Kind::Required | Kind::Forbidden | Kind::TooLong | Kind::Internal
            )
        {
            text.push_str(": ");
            text.push_str(&shown(&self.value));
        }
        if !self.detail.is_empty() {
            text.push_str(": ");
            text.push_str(&self.detail);
        }
        text
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.body())
    }
}

/// Formats a value as Go does in a field error: strings with quotes, scalars without, all others as
/// JSON.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => go_quote(text),
        Value::Null => "null".into(),
        Value::Number(number) if number.is_f64() => {
            number.as_f64().map_or_else(String::new, go_float)
        }
        other => escape_html(&other.to_string()),
    }
}

/// Formats a float like Go's `%v`: with the fewest digits, and in exponent form if the decimal
/// exponent is less than -4 or at least 6.
pub fn go_float(float: f64) -> String {
    let text = format!("{float:e}");
    let Some((digits, exponent)) = text.split_once('e') else { return text };
    match exponent.parse::<i32>() {
        Ok(exponent) if (-4..6).contains(&exponent) => float.to_string(),
        Ok(exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
        }
        Err(_) => text,
    }
}

/// Escapes `<`, `>` and `&` in JSON text as Go's encoder does. In JSON, they occur only in strings.
pub fn escape_html(json: &str) -> String {
    json.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

/// Quotes a text like Go's `%q`.
pub fn go_quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\u{b}' => out.push_str("\\v"),
            c if (c as u32) < 0x20 || c as u32 == 0x7f => {
                out.push_str(&format!("\\x{:02x}", c as u32))
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Several errors as one text, in the form of upstream's `NewAggregate`: one error is its own text.
pub fn aggregate(errors: &[String]) -> String {
    match errors {
        [one] => one.clone(),
        several => format!("[{}]", several.join(", ")),
    }
}

impl Status {
    /// 422 `Invalid`: `Pod "x" is invalid: …` with one cause per error. `kind` is the kind of the
    /// object.
    pub fn invalid(group: &str, kind: &str, name: &str, errors: &[Error]) -> Self {
        // The Status reports an error of two rules once; a large object can have many errors.
        let mut told = HashSet::with_capacity(errors.len());
        let errors: Vec<&Error> = errors
            .iter()
            .filter(|error| told.insert((error.field.to_string(), error.reason(), error.body())))
            .collect();
        let mut known = HashSet::with_capacity(errors.len());
        let texts: Vec<String> = errors
            .iter()
            .map(|error| error.to_string())
            .filter(|text| known.insert(text.clone()))
            .collect();
        let joined = aggregate(&texts);
        let mut status = Self::failure(
            422,
            "Invalid",
            format!("{} {} is invalid: {joined}", qualified(group, kind), go_quote(name)),
        );
        let cause = |error: &&Error| Cause {
            reason: error.reason().into(),
            message: error.body(),
            field: error.field.to_string(),
        };
        let causes = errors.iter().map(cause).collect();
        status.details = Some(Details {
            name: name.into(),
            group: group.into(),
            kind: kind.into(),
            causes,
            ..Details::default()
        });
        status
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_upstreams() {
        let path = Path::new("spec").child("containers").index(0).child("name");
        assert_eq!(
            Error::required(&path, "").to_string(),
            "spec.containers[0].name: Required value"
        );
        assert_eq!(
            Error::invalid(&path, "A", "no").to_string(),
            "spec.containers[0].name: Invalid value: \"A\": no"
        );
        assert_eq!(
            Error::not_supported(&path, "x", &["a", "b"]).to_string(),
            "spec.containers[0].name: Unsupported value: \"x\": supported values: \"a\", \"b\""
        );
        assert_eq!(
            Error::too_many(&path, 3, 1).to_string(),
            "spec.containers[0].name: Too many: 3: must have at most 1 item"
        );
    }
}
