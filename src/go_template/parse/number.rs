//! Literals of numbers.

use crate::go::quote::{quote, unquote_rune};
use crate::parse::token::Token;

/// A literal and the types that can hold it.
#[derive(Clone, Debug)]
pub(crate) struct Number {
    pub text: Box<str>,
    pub int: Option<i64>,
    pub uint: Option<u64>,
    pub float: Option<f64>,
}

/// The literal is not a number of Go.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NumberError {
    #[error("integer overflow: {0}")]
    Overflow(String),
    #[error("illegal number syntax: {0}")]
    Syntax(String),
    #[error("malformed character constant: {0}")]
    Character(String),
    #[error("complex numbers are not supported: {0}")]
    Complex(String),
}

/// Underscores only between digits, or after the prefix of a base.
fn underscores_fit(text: &str) -> bool {
    let text = text.trim_start_matches(['+', '-']);
    let (mut before, body) = match text.get(..2) {
        Some("0x" | "0X" | "0b" | "0B" | "0o" | "0O") => ('0', text.get(2..).unwrap_or_default()),
        _ => ('_', text),
    };
    for c in body.chars() {
        if c == '_' && !before.is_ascii_alphanumeric() {
            return false;
        }
        if !c.is_ascii_alphanumeric() && before == '_' && c != '_' && body.starts_with(c) {
            return true;
        }
        before = c;
    }
    before != '_' || body.is_empty()
}

/// `strconv.ParseInt(text, 0, 64)` with its sign apart.
pub(crate) fn parse_unsigned(text: &str) -> Option<u64> {
    if text.contains('_') && !underscores_fit(text) {
        return None;
    }
    let clean = text.replace('_', "");
    let lower = clean.to_ascii_lowercase();
    let (digits, radix) = if let Some(digits) = lower.strip_prefix("0x") {
        (digits, 16)
    } else if let Some(digits) = lower.strip_prefix("0b") {
        (digits, 2)
    } else if let Some(digits) = lower.strip_prefix("0o") {
        (digits, 8)
    } else if lower.len() > 1 && lower.starts_with('0') {
        (lower.get(1..)?, 8)
    } else {
        (lower.as_str(), 10)
    };
    if digits.starts_with(['+', '-']) {
        return None;
    }
    u64::from_str_radix(digits, radix).ok()
}

/// `strconv.ParseInt(text, 0, 64)`.
pub(crate) fn parse_int(text: &str) -> Option<i64> {
    match text.strip_prefix('-') {
        Some(rest) => {
            let size = parse_unsigned(rest)?;
            0_i64.checked_sub_unsigned(size)
        }
        None => {
            let rest = text.strip_prefix('+').unwrap_or(text);
            i64::try_from(parse_unsigned(rest)?).ok()
        }
    }
}

/// `strconv.ParseFloat(text, 64)` for decimal and hexadecimal literals.
pub(crate) fn parse_float(text: &str) -> Option<f64> {
    let body = text.trim_start_matches(['+', '-']);
    let lower = body.to_ascii_lowercase();
    if let Some(hex) = lower.strip_prefix("0x") {
        let (mantissa, exponent) = hex.split_once('p')?;
        let (whole, part) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits = format!("{whole}{part}");
        let value = u64::from_str_radix(&digits, 16).ok()?;
        let exponent: i32 = exponent.parse().ok()?;
        let shift = exponent.checked_sub(i32::try_from(part.len()).ok()?.checked_mul(4)?)?;
        let size = value.to_string().parse::<f64>().ok()? * 2_f64.powi(shift);
        return Some(if text.starts_with('-') { -size } else { size });
    }
    let known = ["inf", "infinity", "nan"];
    if known.contains(&lower.as_str()) {
        return text.parse().ok();
    }
    let clean = if body.contains('_') && underscores_fit(body) {
        text.replace('_', "")
    } else {
        text.to_owned()
    };
    let value: f64 = clean.parse().ok()?;
    value.is_finite().then_some(value)
}

/// An integer as a float.
pub(crate) fn to_float(value: i64) -> f64 {
    // The nearest float is what Go's conversion gives as well.
    #[expect(clippy::cast_precision_loss, reason = "Go's conversion rounds the same way")]
    let float = value as f64;
    float
}

impl Number {
    /// Reads a literal.
    ///
    /// # Errors
    ///
    /// The literal is not a number of Go, or too large.
    pub(crate) fn parse(text: &str, token: Token) -> Result<Self, NumberError> {
        let mut number = Self { text: text.into(), int: None, uint: None, float: None };
        if token == Token::CharConstant {
            let rune = unquote_rune(text).map_err(|_| NumberError::Character(text.to_owned()))?;
            number.int = Some(i64::from(rune));
            number.uint = Some(u64::from(rune));
            number.float = Some(f64::from(rune));
            return Ok(number);
        }
        if token == Token::Complex || text.ends_with('i') {
            return Err(NumberError::Complex(text.to_owned()));
        }
        number.uint = parse_unsigned(text);
        number.int = parse_int(text);
        if number.int == Some(0) {
            number.uint = Some(0);
        }
        if let Some(int) = number.int {
            number.float = Some(to_float(int));
            return Ok(number);
        }
        if let Some(uint) = number.uint {
            number.float = uint.to_string().parse().ok();
            return Ok(number);
        }
        if let Some(float) = parse_float(text) {
            if !text.contains(['.', 'e', 'E', 'p', 'P']) {
                return Err(NumberError::Overflow(quote(text)));
            }
            number.float = Some(float);
            // A float that is an integer can be used as one.
            if float.fract() == 0.0 && float.abs() < 9.2e18 {
                #[expect(clippy::cast_possible_truncation, reason = "the range is checked")]
                let int = float as i64;
                number.int = Some(int);
                number.uint = u64::try_from(int).ok();
            }
            return Ok(number);
        }
        Err(NumberError::Syntax(quote(text)))
    }

    pub(crate) fn is_rune(&self) -> bool {
        self.text.starts_with('\'')
    }

    pub(crate) fn is_hex_int(&self) -> bool {
        let hex = self.text.starts_with("0x") || self.text.starts_with("0X");
        hex && !self.text.contains(['p', 'P'])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_are_those_of_go() {
        let ints = [("0x1F", 31), ("0b11", 3), ("017", 15), ("0o17", 15), ("1_000", 1000)];
        for (text, expected) in ints {
            assert_eq!(parse_int(text), Some(expected), "{text}");
        }
        assert_eq!(parse_int("-9223372036854775808"), Some(i64::MIN));
        assert_eq!(parse_int("1__0"), None);
        assert_eq!(Number::parse("1.0", Token::Number).unwrap().int, Some(1));
        assert_eq!(Number::parse("1e3", Token::Number).unwrap().int, Some(1000));
        assert_eq!(Number::parse("1.5", Token::Number).unwrap().int, None);
        assert_eq!(Number::parse("'a'", Token::CharConstant).unwrap().int, Some(97));
        assert!(Number::parse("99999999999999999999", Token::Number).is_err());
    }
}
