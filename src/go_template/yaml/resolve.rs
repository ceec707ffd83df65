//! What a plain scalar means in YAML 1.1 with Go's limits.

use std::sync::LazyLock;

use regex::Regex;

use crate::parse::number::{parse_int, parse_unsigned};
use crate::time;
use crate::yaml::Dialect;

/// A scalar by its meaning.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Scalar {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Float(f64),
    Timestamp,
    Merge,
    String,
}

fn float_pattern() -> Option<&'static Regex> {
    static PATTERN: LazyLock<Option<Regex>> =
        LazyLock::new(|| Regex::new(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$").ok());
    PATTERN.as_ref()
}

fn in_map(text: &str, dialect: Dialect) -> Option<Scalar> {
    Some(match text {
        "true" | "True" | "TRUE" => Scalar::Bool(true),
        "false" | "False" | "FALSE" => Scalar::Bool(false),
        "y" | "Y" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" if dialect == Dialect::V2 => {
            Scalar::Bool(true)
        }
        "n" | "N" | "no" | "No" | "NO" | "off" | "Off" | "OFF" if dialect == Dialect::V2 => {
            Scalar::Bool(false)
        }
        "" | "~" | "null" | "Null" | "NULL" => Scalar::Null,
        ".nan" | ".NaN" | ".NAN" => Scalar::Float(f64::NAN),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => Scalar::Float(f64::INFINITY),
        "-.inf" | "-.Inf" | "-.INF" => Scalar::Float(f64::NEG_INFINITY),
        "<<" => Scalar::Merge,
        _ => return None,
    })
}

fn parse_go_float(text: &str) -> Option<f64> {
    text.parse::<f64>().ok().filter(|value| value.is_finite())
}

fn is_timestamp(text: &str) -> bool {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    if digits != 4 || text.as_bytes().get(4) != Some(&b'-') {
        return false;
    }
    let layouts = [
        "2006-1-2T15:4:5.999999999Z07:00",
        "2006-1-2t15:4:5.999999999Z07:00",
        "2006-1-2 15:4:5.999999999",
        "2006-1-2",
    ];
    layouts.iter().any(|layout| time::parse(layout, text).is_ok())
}

fn radix(plain: &str, prefix: &str, radix: u32) -> Option<Scalar> {
    if let Some(digits) = plain.strip_prefix(prefix) {
        if let Ok(number) = i64::from_str_radix(digits, radix) {
            return Some(Scalar::Int(number));
        }
        return u64::from_str_radix(digits, radix).ok().map(Scalar::Uint);
    }
    let digits = plain.strip_prefix('-')?.strip_prefix(prefix)?;
    i64::from_str_radix(&format!("-{digits}"), radix).ok().map(Scalar::Int)
}

/// The meaning of a plain scalar.
pub(super) fn resolve(text: &str, dialect: Dialect) -> Scalar {
    let Some(first) = text.bytes().next() else {
        return Scalar::Null;
    };
    let hinted = first.is_ascii_digit() || b"+-yYnNtTfFoO~.<".contains(&first);
    if !hinted {
        return Scalar::String;
    }
    // "<<" has no hint in Go's table, and is found by the parser alone.
    if first == b'<' {
        return if text == "<<" { Scalar::Merge } else { Scalar::String };
    }
    if let Some(scalar) = in_map(text, dialect) {
        return scalar;
    }
    if first == b'.' {
        let float = crate::parse::number::parse_float(text);
        return float.map_or(Scalar::String, Scalar::Float);
    }
    if !(first.is_ascii_digit() || first == b'+' || first == b'-') {
        return Scalar::String;
    }
    if is_timestamp(text) {
        return Scalar::Timestamp;
    }
    let plain = text.replace('_', "");
    if let Some(number) = parse_int(&plain) {
        return Scalar::Int(number);
    }
    if let Some(number) = parse_unsigned(&plain) {
        return Scalar::Uint(number);
    }
    if float_pattern().is_some_and(|pattern| pattern.is_match(&plain)) {
        if let Some(float) = parse_go_float(&plain) {
            return Scalar::Float(float);
        }
    }
    let octal = if dialect == Dialect::V3 { radix(&plain, "0o", 8) } else { None };
    radix(&plain, "0b", 2).or(octal).unwrap_or(Scalar::String)
}

/// Whether a string must be quoted though it resolves to a string: a number in base 60, or a
/// boolean of YAML 1.1.
pub(super) fn needs_quotes(text: &str, dialect: Dialect) -> bool {
    static BASE60: LazyLock<Option<Regex>> =
        LazyLock::new(|| Regex::new(r"^[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?$").ok());
    let old_bool = dialect == Dialect::V3
        && matches!(resolve(text, Dialect::V2), Scalar::Bool(_))
        && !matches!(resolve(text, Dialect::V3), Scalar::Bool(_));
    old_bool || text.contains(':') && BASE60.as_ref().is_some_and(|pattern| pattern.is_match(text))
}
