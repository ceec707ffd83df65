//! Values of annotations.

use std::time::Duration;

use http::{HeaderName, HeaderValue, StatusCode};
use settings::Cidr;

use super::AnnotationError as Error;

pub(super) fn boolean(value: &str) -> Result<bool, Error> {
    value.parse().map_err(|_| Error::Boolean(value.to_owned()))
}

/// Addresses or ranges in CIDR notation, split by commas.
pub(super) fn ranges(value: &str) -> Result<Vec<Cidr>, Error> {
    list(value).into_iter().map(|text| Ok(Cidr::of_block_or_address(text)?)).collect()
}

/// Texts, split by commas.
pub(super) fn list(value: &str) -> Vec<&str> {
    value.split(',').map(str::trim).filter(|text| !text.is_empty()).collect()
}

/// A number of seconds.
pub(super) fn seconds(value: &str) -> Result<Duration, Error> {
    let digits = value.strip_suffix('s').unwrap_or(value);
    match digits.parse::<u32>() {
        Ok(number) if number > 0 => Ok(Duration::from_secs(u64::from(number))),
        _ => Err(Error::Seconds(value.to_owned())),
    }
}

/// A number.
pub(super) fn number(value: &str) -> Result<u32, Error> {
    value.parse().map_err(|_| Error::Number(value.to_owned()))
}

/// A size as nginx writes it: bytes, or with `k`, `m`, `g`.
pub(super) fn size(value: &str) -> Result<u64, Error> {
    let lower = value.to_ascii_lowercase();
    let (digits, unit) = match lower.strip_suffix(['k', 'm', 'g']) {
        Some(digits) => (digits, lower.get(digits.len()..).unwrap_or_default()),
        None => (lower.as_str(), ""),
    };
    let factor: u64 = match unit {
        "k" => 1 << 10,
        "m" => 1 << 20,
        "g" => 1 << 30,
        _ => 1,
    };
    let bytes = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(factor));
    bytes.ok_or_else(|| Error::Size(value.to_owned()))
}

/// The name of a header.
pub(super) fn header_name(value: &str) -> Result<HeaderName, Error> {
    value.parse().map_err(|_| Error::Value(value.to_owned()))
}

/// A text without control characters and separators of cookies.
pub(super) fn cookie_text(value: &str) -> Result<String, Error> {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !b";,\"\\".contains(&byte);
    match !value.is_empty() && value.bytes().all(is_plain) {
        true => Ok(value.to_owned()),
        false => Err(Error::Value(value.to_owned())),
    }
}

/// The name of a cookie (RFC 6265, a token).
pub(super) fn cookie_name(value: &str) -> Result<String, Error> {
    header_name(value).map(|_| value.to_owned())
}

/// The target of a redirect: a URL with `http` or `https`, or a path.
pub(super) fn location(value: &str) -> Result<HeaderValue, Error> {
    let refused = || Error::Location(value.to_owned());
    let is_known = ["http://", "https://", "/"].iter().any(|start| value.starts_with(start));
    if !is_known || value.contains('$') || value.parse::<http::Uri>().is_err() {
        return Err(refused());
    }
    HeaderValue::from_str(value).map_err(|_| refused())
}

/// The status of a redirect.
pub(super) fn redirect_status(value: &str) -> Result<StatusCode, Error> {
    let status = value.parse::<StatusCode>().ok().filter(|s| matches!(s.as_u16(), 300..=308));
    status.ok_or_else(|| Error::Value(value.to_owned()))
}
