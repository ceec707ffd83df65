//! The function `format` of version 2 of cel-go's string extension, as in
//! `'%s is %d'.format([name, count])`.

use sorting::CompactSort as _;

use crate::convert::{self, to_string};
use crate::ops::VALUE_BYTES_MAX;
use crate::value::{Error, List, Map, Value};

type Result<T> = std::result::Result<T, Error>;

/// Default number of digits after the decimal point.
const PRECISION: usize = 6;
/// Maximum number of digits after the decimal point.
const PRECISION_MAX: usize = 1000;

// cel-go's errors of a clause whose argument has another type.

const STRING: &str = "string clause can only be used on strings, bools, bytes, ints, doubles, maps, \
    lists, types, durations, and timestamps";
const DECIMAL: &str = "decimal clause can only be used on integers";
const FIXED: &str = "fixed-point clause can only be used on doubles";
const SCIENTIFIC: &str = "scientific clause can only be used on doubles";
const BINARY: &str = "only integers and bools can be formatted as binary";
const HEXADECIMAL: &str = "only integers, byte buffers, and strings can be formatted as hex";
const OCTAL: &str = "octal clause can only be used on integers";

/// A value that a clause cannot format; the texts are those of cel-go's `ext/formatting.go`.
#[derive(Debug, thiserror::Error)]
enum FormatError {
    /// `rule` says what the clause accepts, `given` is the type of the value.
    #[error("{rule}, was given {given}")]
    Type { rule: &'static str, given: String },
    /// An element of a list or map.
    #[error("no formatting function for {0}")]
    NoFormat(String),
    #[error("no formatting function for map key of type {0}")]
    NoKeyFormat(String),
    #[error("could not find key: {0}")]
    NoKey(String),
    /// The value or one of its elements cannot be converted.
    #[error(transparent)]
    Value(#[from] Error),
}

impl FormatError {
    fn wrong_type(rule: &'static str, value: &Value<'_>) -> Self {
        Self::Type { rule, given: value.type_name().to_string() }
    }
}

/// Adds cel-go's context to the error of a value.
fn formatting_error(error: FormatError) -> Error {
    Error::new(format!("error during formatting: {error}"))
}

/// Adds cel-go's context to the error of a clause.
fn clause_error(message: &str) -> Error {
    Error::new(format!("could not parse formatting clause: {message}"))
}

/// Replaces each clause in `pattern` by the next value.
pub(super) fn format<'a>(pattern: &str, values: &List<'a>) -> Result<Value<'a>> {
    let mut out = String::new();
    let mut rest = pattern;
    let mut at = 0;
    while let Some(percent) = rest.find('%') {
        out.push_str(rest.get(..percent).unwrap_or_default());
        rest = rest.get(percent + 1..).unwrap_or_default();
        if let Some(after) = rest.strip_prefix('%') {
            out.push('%');
            rest = after;
            continue;
        }
        if at >= values.len() {
            return Err(Error::new(format!("index {at} out of range")));
        }
        if rest.is_empty() {
            return Err(Error::new("unexpected end of string"));
        }
        let value = values.get(at)?;
        at += 1;
        let (precision, after) = precision(rest)?;
        let mut chars = after.chars();
        let clause = chars.next().ok_or_else(|| clause_error("unexpected end of string"))?;
        rest = chars.as_str();
        out.push_str(&format_value(clause, precision, &value)?);
        if out.len() > VALUE_BYTES_MAX {
            return Err(Error::limit());
        }
    }
    out.push_str(rest);
    Ok(Value::text(out))
}

/// An invalid format string or argument: the index of the argument, or `None` for the call as a
/// whole, and the error text.
pub(crate) struct Wrong(pub(crate) Option<usize>, pub(crate) String);

/// Checks a format string with the types of its arguments when the expression is compiled. `dyn`
/// fits every clause.
pub(crate) fn check(pattern: &str, types: &[&str]) -> std::result::Result<(), Wrong> {
    let mut rest = pattern;
    let mut at = 0;
    while let Some(percent) = rest.find('%') {
        rest = rest.get(percent + 1..).unwrap_or_default();
        if let Some(after) = rest.strip_prefix('%') {
            rest = after;
            continue;
        }
        if rest.is_empty() {
            return Err(Wrong(None, "unexpected end of string".into()));
        }
        let Some(given) = types.get(at) else {
            return Err(Wrong(None, format!("index {at} out of range")));
        };
        let call_error = |error: Error| Wrong(None, error.to_string());
        let (_, after) = precision(rest).map_err(call_error)?;
        let mut chars = after.chars();
        let clause = chars.next().unwrap_or(' ');
        rest = chars.as_str();
        let (fits, rule): (&[&str], &'static str) = match clause {
            's' => (STRING_TYPES, STRING),
            'd' => (&["int", "uint"], DECIMAL),
            'f' => (&["double", "string"], FIXED),
            'e' => (&["double", "string"], SCIENTIFIC),
            'b' => (&["int", "uint", "bool"], BINARY),
            'x' | 'X' => (&["int", "uint", "string", "bytes"], HEXADECIMAL),
            'o' => (&["int", "uint"], OCTAL),
            other => {
                let message = format!("unrecognized formatting clause \"{other}\"");
                return Err(call_error(clause_error(&message)));
            }
        };
        if *given != "dyn" && !fits.contains(given) {
            let error = FormatError::Type { rule, given: (*given).to_string() };
            let message = formatting_error(error).to_string();
            return Err(Wrong(Some(at), message));
        }
        at += 1;
    }
    if types.len() > at {
        let count = types.len();
        let message =
            format!("too many arguments supplied to string.format (expected {at}, got {count})");
        return Err(Wrong(None, message));
    }
    Ok(())
}

/// Types that `%s` accepts.
const STRING_TYPES: &[&str] = &[
    "list",
    "map",
    "int",
    "uint",
    "double",
    "bool",
    "string",
    "google.protobuf.Timestamp",
    "bytes",
    "google.protobuf.Duration",
    "type",
    "null_type",
];

/// Splits a clause such as `.3f` into its precision, if it has one, and the rest.
fn precision(text: &str) -> Result<(Option<usize>, &str)> {
    let Some(after) = text.strip_prefix('.') else { return Ok((None, text)) };
    let count = after.bytes().take_while(u8::is_ascii_digit).count();
    let (digits, rest) = after.split_at(count);
    if rest.is_empty() {
        return Err(clause_error(
            "error while parsing precision: could not find end of precision specifier",
        ));
    }
    let number: usize = digits.parse().map_err(|_| {
        clause_error(&format!("error while parsing precision: error while converting precision to integer: strconv.Atoi: parsing {digits:?}: invalid syntax"))
    })?;
    if number > PRECISION_MAX {
        return Err(clause_error(&format!(
            "error while parsing precision: precision {number} exceeds maximum allowed precision {PRECISION_MAX}"
        )));
    }
    Ok((Some(number), rest))
}

/// Formats a value by a clause.
fn format_value(clause: char, precision: Option<usize>, value: &Value<'_>) -> Result<String> {
    let digits = precision.unwrap_or(PRECISION);
    match clause {
        's' => string(value).map_err(formatting_error),
        'd' => decimal(value).map_err(formatting_error),
        'f' => fixed(value, digits),
        'e' => scientific(value, digits),
        'b' => match value {
            Value::Int(v) => Ok(signed(*v, |v| format!("{v:b}"))),
            Value::Uint(v) => Ok(format!("{v:b}")),
            Value::Bool(v) => Ok(if *v { "1" } else { "0" }.into()),
            other => Err(formatting_error(FormatError::wrong_type(BINARY, other))),
        },
        'x' => hexadecimal(value),
        'X' => hexadecimal(value).map(|text| text.to_ascii_uppercase()),
        'o' => match value {
            Value::Int(v) => Ok(signed(*v, |v| format!("{v:o}"))),
            Value::Uint(v) => Ok(format!("{v:o}")),
            other => Err(formatting_error(FormatError::wrong_type(OCTAL, other))),
        },
        other => Err(clause_error(&format!("unrecognized formatting clause \"{other}\""))),
    }
}

/// Writes the sign of an integer and then its absolute value.
fn signed(value: i64, write: impl Fn(u64) -> String) -> String {
    let sign = if value < 0 { "-" } else { "" };
    format!("{sign}{}", write(value.unsigned_abs()))
}

/// Formats a value for `%x`.
fn hexadecimal(value: &Value<'_>) -> Result<String> {
    let bytes = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    match value {
        Value::String(text) => Ok(bytes(text.as_bytes())),
        Value::Bytes(content) => Ok(bytes(content)),
        Value::Int(v) => Ok(signed(*v, |v| format!("{v:x}"))),
        Value::Uint(v) => Ok(format!("{v:x}")),
        other => Err(formatting_error(FormatError::wrong_type(HEXADECIMAL, other))),
    }
}

/// The value of a double, or of a string that names NaN or an infinity.
fn double(value: &Value<'_>, rule: &'static str) -> Result<f64> {
    match value {
        Value::Double(value) => Ok(*value),
        Value::String(text) => match &**text {
            "NaN" => Ok(f64::NAN),
            "Infinity" => Ok(f64::INFINITY),
            "-Infinity" => Ok(f64::NEG_INFINITY),
            _ => Err(formatting_error(FormatError::Type { rule, given: "string".to_owned() })),
        },
        other => Err(formatting_error(FormatError::wrong_type(rule, other))),
    }
}

/// Formats NaN and infinities; `None` for other numbers.
fn non_finite(value: f64) -> Option<String> {
    if value.is_nan() {
        return Some("NaN".into());
    }
    value.is_infinite().then(|| if value > 0.0 { "\u{221e}" } else { "-\u{221e}" }.to_owned())
}

/// Formats a number for `%f`, with a comma between groups of three digits.
fn fixed(value: &Value<'_>, digits: usize) -> Result<String> {
    let value = double(value, FIXED)?;
    if let Some(text) = non_finite(value) {
        return Ok(text);
    }
    let text = format!("{:.digits$}", value.abs());
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let mut grouped = String::new();
    for (at, digit) in whole.char_indices() {
        if at > 0 && (whole.len() - at) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    let sign = if value.is_sign_negative() { "-" } else { "" };
    let dot = if fraction.is_empty() { "" } else { "." };
    Ok(format!("{sign}{grouped}{dot}{fraction}"))
}

/// Formats a number for `%e`: the mantissa, a multiplication sign, and a power of ten with the
/// exponent in superscript.
fn scientific(value: &Value<'_>, digits: usize) -> Result<String> {
    let value = double(value, SCIENTIFIC)?;
    if let Some(text) = non_finite(value) {
        return Ok(text);
    }
    // cel-go uses the precision as the minimum width of the text; the number of digits is always
    // the default.
    let text = format!("{value:.PRECISION$e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let text = format!("{mantissa}\u{d7}10{}", superscript(exponent));
    Ok(format!("{text:>digits$}"))
}

/// Writes an exponent in superscript digits, at least two.
fn superscript(exponent: i32) -> String {
    const DIGITS: [char; 10] = [
        '\u{2070}', '\u{b9}', '\u{b2}', '\u{b3}', '\u{2074}', '\u{2075}', '\u{2076}', '\u{2077}',
        '\u{2078}', '\u{2079}',
    ];
    let mut out = String::new();
    if exponent < 0 {
        out.push('\u{207b}');
    }
    for digit in format!("{:02}", exponent.unsigned_abs()).bytes() {
        out.extend(DIGITS.get(usize::from(digit - b'0')));
    }
    out
}

/// Formats a value for `%d`.
fn decimal(value: &Value<'_>) -> std::result::Result<String, FormatError> {
    match value {
        Value::Int(v) => Ok(v.to_string()),
        Value::Uint(v) => Ok(v.to_string()),
        other => Err(FormatError::wrong_type(DECIMAL, other)),
    }
}

/// Formats a value for `%s`.
fn string(value: &Value<'_>) -> std::result::Result<String, FormatError> {
    match value {
        Value::List(list) => list_text(list),
        Value::Map(map) => map_text(map),
        Value::Null => Ok("null".into()),
        Value::Int(_)
        | Value::Uint(_)
        | Value::Double(_)
        | Value::Bool(_)
        | Value::String(_)
        | Value::Timestamp(_)
        | Value::Bytes(_)
        | Value::Duration(_)
        | Value::Type(_) => Ok(to_string(value)?.to_string()),
        other => Err(FormatError::wrong_type(STRING, other)),
    }
}

/// Formats an element of a list, or a value of a map, for `%s`.
fn nested(value: &Value<'_>) -> std::result::Result<String, FormatError> {
    Ok(match value {
        Value::Timestamp(_) => format!("timestamp({:?})", string(value)?),
        Value::Duration(_) => format!("duration({:?})", string(value)?),
        Value::String(text) => format!("{:?}", &**text),
        Value::Bytes(_) => format!("b{:?}", string(value)?),
        Value::Double(v) if !v.is_finite() => format!("{:?}", convert::general(*v)),
        Value::Double(v) => format!("{v:.PRECISION$}"),
        Value::List(_) | Value::Map(_) | Value::Int(_) | Value::Uint(_) | Value::Bool(_) => {
            string(value)?
        }
        Value::Null | Value::Type(_) => string(value)?,
        other => return Err(FormatError::NoFormat(other.type_name().to_string())),
    })
}

/// Formats a list for `%s`.
fn list_text(list: &List<'_>) -> std::result::Result<String, FormatError> {
    let mut parts = Vec::with_capacity(list.len());
    for item in list.iter() {
        parts.push(nested(&item?)?);
    }
    Ok(format!("[{}]", parts.join(", ")))
}

/// Formats a map for `%s`, in the order of the formatted keys.
fn map_text(map: &Map<'_>) -> std::result::Result<String, FormatError> {
    let mut parts = Vec::with_capacity(map.len());
    for key in map.keys() {
        let name = match &key {
            Value::String(text) => format!("{:?}", &**text),
            Value::Bool(_) | Value::Int(_) | Value::Uint(_) => string(&key)?,
            other => {
                return Err(FormatError::NoKeyFormat(other.type_name().to_string()));
            }
        };
        let value = map.find(&key)?;
        let value = value.ok_or_else(|| FormatError::NoKey(key.to_string()))?;
        parts.push((name, nested(&value)?));
    }
    parts.compact_sort();
    let parts: Vec<String> =
        parts.into_iter().map(|(name, value)| format!("{name}:{value}")).collect();
    Ok(format!("{{{}}}", parts.join(", ")))
}

#[cfg(test)]
mod tests {
    use crate::tests::{check_errors, check_values};

    /// Rows of cel-go's `ext/formatting_test.go`.
    #[test]
    fn clauses_format_numbers_texts_and_bytes() {
        check_values(&[
            ("'no substitution'.format([])", "no substitution"),
            ("'%% and also %%'.format([])", "% and also %"),
            ("'%%%s%%'.format(['text'])", "%text%"),
            ("'%d %d %d, %s %s %s'.format([1, 2, 3, 'A', 'B', 'C'])", "1 2 3, A B C"),
            ("'%.3f'.format([1.2345])", "1.234"),
            ("'this is -5 in binary: %b'.format([-5])", "this is -5 in binary: -101"),
            ("'bit set from bool: %b'.format([true])", "bit set from bool: 1"),
            ("'%o'.format([-11])", "-13"),
            ("'%X is 6000 in hexadecimal'.format([uint(6000)])", "1770 is 6000 in hexadecimal"),
            ("'%x'.format(['Hello world!'])", "48656c6c6f20776f726c6421"),
            (r"'%x'.format([b'\x00\x00byte string\x00'])", "00006279746520737472696e6700"),
            ("'%f'.format([2.71828])", "2.718280"),
            ("'%f'.format(['-Infinity'])", "-∞"),
        ]);
    }

    /// Rows of cel-go's `ext/formatting_test.go`.
    #[test]
    fn the_clause_for_strings_formats_all_values_of_the_language() {
        check_values(&[
            ("'%s'.format([2.71])", "2.71"),
            ("'%s'.format([[2.71]])", "[2.710000]"),
            ("'%s'.format([0.000000002])", "2e-09"),
            ("'%s'.format([double('-Inf')])", "-Inf"),
            ("'null: %s'.format([null])", "null: null"),
            ("'type is %s'.format([type('test string')])", "type is string"),
            ("'%s'.format([timestamp('2023-02-03T23:31:20+00:00')])", "2023-02-03T23:31:20Z"),
            ("'%s'.format([duration('1h45m47s')])", "6347s"),
            ("'%s'.format([duration('2ns')])", "0.000000002s"),
            (
                "'%s'.format([['abc', 3.14, null, [9, 8], timestamp('2023-02-03T23:31:20Z')]])",
                r#"["abc", 3.140000, null, [9, 8], timestamp("2023-02-03T23:31:20Z")]"#,
            ),
            (
                "'%s'.format([{'key1': b'xyz', 'key2': duration('2h'), 'key3': 2.71828}])",
                r#"{"key1":b"xyz", "key2":duration("7200s"), "key3":2.718280}"#,
            ),
            (
                "'map: %s'.format([{1: 'value1', uint(2): 'value2', true: double('NaN')}])",
                r#"map: {1:"value1", 2:"value2", true:"NaN"}"#,
            ),
        ]);
    }

    /// Rows of cel-go's `ext/formatting_test.go`: constant patterns are checked at compile time,
    /// others when they are evaluated.
    #[test]
    fn unfit_arguments_and_invalid_clauses_are_errors() {
        for (pattern, args, expected) in [
            ("%a", "1", "could not parse formatting clause: unrecognized formatting clause \"a\""),
            ("%d %d %d", "0, 1", "index 2 out of range"),
            (
                "%b",
                "'abc'",
                "error during formatting: only integers and bools can be formatted as binary, was \
                 given string",
            ),
            (
                "%d",
                "duration('30m2s')",
                "error during formatting: decimal clause can only be used on integers, was given \
                 google.protobuf.Duration",
            ),
            (
                "%x",
                "0.5",
                "error during formatting: only integers, byte buffers, and strings can be \
                 formatted as hex, was given double",
            ),
            (
                "%e",
                "null",
                "error during formatting: scientific clause can only be used on doubles, was given \
                 null_type",
            ),
            ("%s %s", "'abc'", "index 1 out of range"),
            (
                "%.34",
                "5.0",
                "could not parse formatting clause: error while parsing precision: could not find \
                 end of precision specifier",
            ),
        ] {
            let constant = format!("'{pattern}'.format([{args}])");
            let computed = format!("('{pattern}' + '').format([{args}])");
            check_errors(&[(&constant, expected), (&computed, expected)]);
        }
        check_errors(&[
            (
                "'%s %s'.format(['abc', 'def', 'ghi'])",
                "too many arguments supplied to string.format (expected 2, got 3)",
            ),
            ("'filler %'.format([])", "unexpected end of string"),
        ]);
    }
}
