//! `strconv.FormatFloat`.

/// Digits and exponent: `0.d1d2d3… × 10^exp`.
struct Decimal {
    negative: bool,
    digits: Vec<u8>,
    exp: i32,
}

fn special(value: f64) -> Option<&'static str> {
    if value.is_nan() {
        Some("NaN")
    } else if value == f64::INFINITY {
        Some("+Inf")
    } else if value == f64::NEG_INFINITY {
        Some("-Inf")
    } else {
        None
    }
}

fn from_scientific(text: &str, negative: bool) -> Decimal {
    let (mantissa, exp) = text.split_once('e').unwrap_or((text, "0"));
    let digits: Vec<u8> = mantissa.bytes().filter(u8::is_ascii_digit).collect();
    let exp: i32 = exp.parse().unwrap_or(0);
    if digits.iter().all(|digit| *digit == b'0') {
        return Decimal { negative, digits: vec![b'0'], exp: 1 };
    }
    Decimal { negative, digits, exp: exp + 1 }
}

/// The shortest digits that read back as the same number.
fn shortest(value: f64) -> Decimal {
    from_scientific(&format!("{:e}", value.abs()), value.is_sign_negative())
}

/// Writes `d.ddde±dd`.
fn scientific(decimal: &Decimal, precision: Option<usize>, letter: char) -> String {
    let mut out = String::new();
    if decimal.negative {
        out.push('-');
    }
    let digit = |at: usize| char::from(decimal.digits.get(at).copied().unwrap_or(b'0'));
    out.push(digit(0));
    let after = precision.unwrap_or(decimal.digits.len().saturating_sub(1));
    if after > 0 {
        out.push('.');
        for at in 1..=after {
            out.push(digit(at));
        }
    }
    let zero = decimal.digits.iter().all(|digit| *digit == b'0');
    let exp = if zero { 0 } else { decimal.exp - 1 };
    out.push(letter);
    out.push(if exp < 0 { '-' } else { '+' });
    let exp = exp.unsigned_abs();
    if exp < 10 {
        out.push('0');
    }
    out.push_str(&exp.to_string());
    out
}

/// Writes `ddd.ddd`.
fn plain(decimal: &Decimal) -> String {
    let mut out = String::new();
    if decimal.negative {
        out.push('-');
    }
    let zero = decimal.digits.iter().all(|digit| *digit == b'0');
    if zero {
        out.push('0');
        return out;
    }
    let count = i32::try_from(decimal.digits.len()).unwrap_or(i32::MAX);
    if decimal.exp <= 0 {
        out.push_str("0.");
        (0..-decimal.exp).for_each(|_| out.push('0'));
        out.extend(decimal.digits.iter().map(|digit| char::from(*digit)));
        return out;
    }
    for (at, digit) in (0..).zip(&decimal.digits) {
        if at == decimal.exp {
            out.push('.');
        }
        out.push(char::from(*digit));
    }
    (count..decimal.exp).for_each(|_| out.push('0'));
    out
}

/// `strconv.FormatFloat(value, 'g', -1, 64)`, which `%v`, `%g` and YAML use.
pub(crate) fn display(value: f64) -> String {
    if let Some(text) = special(value) {
        return text.into();
    }
    let decimal = shortest(value);
    let exp = decimal.exp - 1;
    // With the shortest digits, Go decides as for a precision of 6.
    if value != 0.0 && !(-4..6).contains(&exp) {
        return scientific(&decimal, None, 'e');
    }
    plain(&decimal)
}

/// `%e` with a precision.
pub(crate) fn exponent(value: f64, precision: Option<usize>, letter: char) -> String {
    if let Some(text) = special(value) {
        return text.into();
    }
    let decimal = match precision {
        Some(precision) => {
            let text = format!("{:.*e}", precision, value.abs());
            from_scientific(&text, value.is_sign_negative())
        }
        None => shortest(value),
    };
    scientific(&decimal, precision, letter)
}

/// `%f` with a precision.
pub(crate) fn fixed(value: f64, precision: Option<usize>) -> String {
    if let Some(text) = special(value) {
        return text.into();
    }
    match precision {
        Some(precision) => format!("{value:.precision$}"),
        None => plain(&shortest(value)),
    }
}

/// `%g` with a precision.
pub(crate) fn general_precision(value: f64, precision: usize, letter: char) -> String {
    if let Some(text) = special(value) {
        return text.into();
    }
    let precision = precision.max(1);
    let text = format!("{:.*e}", precision - 1, value.abs());
    let mut decimal = from_scientific(&text, value.is_sign_negative());
    while decimal.digits.len() > 1 && decimal.digits.last() == Some(&b'0') {
        decimal.digits.pop();
    }
    let exp = decimal.exp - 1;
    let limit = i32::try_from(precision).unwrap_or(i32::MAX);
    if value != 0.0 && (exp < -4 || exp >= limit) {
        return scientific(&decimal, None, letter);
    }
    plain(&decimal)
}

/// How `encoding/json` writes a number.
pub(crate) fn json(value: f64) -> String {
    let size = value.abs();
    if size != 0.0 && !(1e-6..1e21).contains(&size) {
        let text = exponent(value, None, 'e');
        // e-09 becomes e-9.
        let length = text.len();
        if let Some(head) = text.get(..length.saturating_sub(4)) {
            if text.get(length - 4..length - 1) == Some("e-0") {
                return format!("{head}e-{}", text.get(length - 1..).unwrap_or_default());
            }
        }
        return text;
    }
    fixed(value, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_print_as_in_go() {
        let table: [(f64, &str, &str); 12] = [
            (1.0, "1", "1"),
            (1.5, "1.5", "1.5"),
            (1e6, "1e+06", "1000000"),
            (123_456_789.0, "1.23456789e+08", "123456789"),
            (0.1, "0.1", "0.1"),
            (1e-5, "1e-05", "0.00001"),
            (0.0001, "0.0001", "0.0001"),
            (-2.5, "-2.5", "-2.5"),
            (1e21, "1e+21", "1e+21"),
            (1e20, "1e+20", "100000000000000000000"),
            (0.0, "0", "0"),
            (1e-9, "1e-09", "1e-9"),
        ];
        for (value, display_text, json_text) in table {
            assert_eq!(display(value), display_text);
            assert_eq!(json(value), json_text);
        }
        assert_eq!(fixed(2.0, Some(2)), "2.00");
        assert_eq!(exponent(1234.5, Some(6), 'e'), "1.234500e+03");
        assert_eq!(general_precision(1234.5, 3, 'e'), "1.23e+03");
    }
}
