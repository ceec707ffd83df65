//! Leaf values in the form that Go writes: quantities, times, durations and base64.

use std::borrow::Cow;

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde_json::Value;

use super::time::{DurationError, Precision, TimeError, duration_text, parse_duration, parse_time};
use crate::quantity::{BadQuantity, Quantity};

/// Standard base64 as Go reads and writes it, with mandatory padding.
pub(super) const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::RequireCanonical)
        .with_decode_allow_trailing_bits(true),
);

/// A text that is not a value of its type. The texts are those of Go's parsers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// The text is not a quantity.
    #[error(transparent)]
    Quantity(#[from] BadQuantity),
    /// The text is not a time.
    #[error(transparent)]
    Time(#[from] TimeError),
    /// The text is not a duration.
    #[error(transparent)]
    Duration(#[from] DurationError),
    /// The text is not base64.
    #[error("illegal base64 data at input byte {at}")]
    Base64 {
        /// The position that Go's decoder reports, in bytes.
        at: usize,
    },
}

/// Converts a quantity to its canonical text.
pub(super) fn quantity(text: &str) -> Result<Value, TextError> {
    let parsed = Quantity::parse(text.trim())?;
    Ok(Value::String(parsed.to_string()))
}

/// Returns the precision of the times of a type. Objects contain times with whole seconds. The
/// validation of `PodCertificateRequest` compares the times of the sent status with those of a
/// certificate, so these times keep their fraction; validation rejects a fraction, so that it is
/// never stored.
pub(super) fn precision_of(ty: &str) -> Precision {
    if ty.ends_with(".PodCertificateRequestStatus") { Precision::Exact } else { Precision::Seconds }
}

/// Converts a time to its canonical text; Go's zero time becomes null.
pub(super) fn time(text: &str, precision: Precision) -> Result<Value, TextError> {
    let moment = parse_time(text, precision)?;
    if moment.is_zero() {
        return Ok(Value::Null);
    }
    Ok(Value::String(moment.text(precision)))
}

/// Converts a duration to its canonical text.
pub(super) fn duration(text: &str) -> Result<Value, TextError> {
    Ok(Value::String(duration_text(parse_duration(text)?)))
}

/// Encodes bytes as base64.
pub(super) fn base64_text(raw: &[u8]) -> String {
    BASE64.encode(raw)
}

/// Converts base64 to its canonical text, without the line ends that Go ignores.
pub(super) fn bytes(sent: &str) -> Result<Value, TextError> {
    let text: Cow<'_, str> = if sent.contains(['\r', '\n']) {
        Cow::Owned(sent.replace(['\r', '\n'], ""))
    } else {
        Cow::Borrowed(sent)
    };
    match BASE64.decode(&*text) {
        Ok(raw) => Ok(Value::String(BASE64.encode(raw))),
        Err(_) => {
            // Go's decoder skips line ends but counts them in the position.
            let (fault, mut at) = (base64_fault(text.as_bytes()), 0);
            let is_end = |b: &u8| matches!(b, b'\r' | b'\n');
            if fault + text.len() % 4 == text.len() {
                at = sent.len() - text.len();
            } else {
                let mut left = fault;
                for byte in sent.bytes() {
                    if is_end(&byte) {
                        at += 1;
                    } else if left == 0 {
                        break;
                    } else {
                        left -= 1;
                    }
                }
            }
            Err(TextError::Base64 { at: fault + at })
        }
    }
}

/// Returns the position that Go reports: that of the invalid character, or of the start of the
/// incomplete group.
fn base64_fault(text: &[u8]) -> usize {
    let valid = |b: &u8| b.is_ascii_alphanumeric() || *b == b'+' || *b == b'/';
    let Some(bad) = text.iter().position(|b| !valid(b)) else {
        // Padding is missing: Go reports the start of the incomplete group.
        return text.len() - text.len() % 4;
    };
    if text.get(bad) != Some(&b'=') {
        return bad;
    }
    match bad % 4 {
        0 | 1 => bad,
        2 => match text.get(bad + 1) {
            None => text.len(),
            Some(b'=') => bad + 2,
            Some(_) => bad,
        },
        _ => bad + 1,
    }
}
