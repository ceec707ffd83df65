//! `strconv.Quote` and `strconv.Unquote`.

/// Whether Go's `strconv.IsPrint` holds: letters, marks, numbers, punctuation, symbols and the
/// ASCII space.
pub(crate) fn is_print(character: char) -> bool {
    static UNPRINTABLE: std::sync::LazyLock<Option<regex::Regex>> =
        std::sync::LazyLock::new(|| regex::Regex::new(r"^[\p{C}\p{Z}]$").ok());
    if character.is_ascii() {
        return (' '..='~').contains(&character);
    }
    let mut buffer = [0; 4];
    let text = character.encode_utf8(&mut buffer);
    UNPRINTABLE.as_ref().is_some_and(|pattern| !pattern.is_match(text))
}

fn push_escape(out: &mut String, character: char, quote: char) {
    match character {
        '\\' => out.push_str("\\\\"),
        c if c == quote => {
            out.push('\\');
            out.push(c);
        }
        '\x07' => out.push_str("\\a"),
        '\x08' => out.push_str("\\b"),
        '\x0c' => out.push_str("\\f"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        '\x0b' => out.push_str("\\v"),
        c if is_print(c) => out.push(c),
        c if c < ' ' || c == '\x7f' => out.push_str(&format!("\\x{:02x}", u32::from(c))),
        c if u32::from(c) < 0x1_0000 => out.push_str(&format!("\\u{:04x}", u32::from(c))),
        c => out.push_str(&format!("\\U{:08x}", u32::from(c))),
    }
}

/// `strconv.Quote` of a string.
pub(crate) fn quote(text: &str) -> String {
    quote_bytes(text.as_bytes())
}

/// `strconv.Quote` of bytes that may not be UTF-8.
pub(crate) fn quote_bytes(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len() + 2);
    out.push('"');
    for chunk in bytes.utf8_chunks() {
        chunk.valid().chars().for_each(|character| push_escape(&mut out, character, '"'));
        for byte in chunk.invalid() {
            out.push_str(&format!("\\x{byte:02x}"));
        }
    }
    out.push('"');
    out
}

/// `strconv.QuoteRune`, as `%q` prints a number.
pub(crate) fn quote_rune(character: char) -> String {
    let mut out = String::from("'");
    push_escape(&mut out, character, '\'');
    out.push('\'');
    out
}

/// The literal is not one of Go.
#[derive(Debug, thiserror::Error)]
#[error("invalid syntax")]
pub(crate) struct InvalidSyntax;

/// `strconv.Unquote` of a string literal in double quotes or backquotes.
///
/// # Errors
///
/// The literal is not one of Go.
pub(crate) fn unquote(literal: &str) -> Result<Vec<u8>, InvalidSyntax> {
    if let Some(raw) = literal.strip_prefix('`').and_then(|rest| rest.strip_suffix('`')) {
        return Ok(raw.replace('\r', "").into_bytes());
    }
    let inner =
        literal.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).ok_or(InvalidSyntax)?;
    let mut out = Vec::with_capacity(inner.len());
    let mut rest = inner;
    while !rest.is_empty() {
        let (bytes, tail) = unquote_char(rest, '"')?;
        out.extend_from_slice(&bytes);
        rest = tail;
    }
    Ok(out)
}

/// The value of a character literal in single quotes.
///
/// # Errors
///
/// The literal is not one of Go.
pub(crate) fn unquote_rune(literal: &str) -> Result<u32, InvalidSyntax> {
    let inner =
        literal.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\'')).ok_or(InvalidSyntax)?;
    let (bytes, tail) = unquote_char(inner, '\'')?;
    if !tail.is_empty() {
        return Err(InvalidSyntax);
    }
    match std::str::from_utf8(&bytes).ok().and_then(|text| text.chars().next()) {
        Some(character) => Ok(u32::from(character)),
        None => bytes.first().map(|byte| u32::from(*byte)).ok_or(InvalidSyntax),
    }
}

/// The bytes of the first character of a literal, and what follows it.
fn unquote_char(text: &str, quote: char) -> Result<(Vec<u8>, &str), InvalidSyntax> {
    let mut chars = text.chars();
    let first = chars.next().ok_or(InvalidSyntax)?;
    if first == quote || first == '\n' {
        return Err(InvalidSyntax);
    }
    if first != '\\' {
        return Ok((first.to_string().into_bytes(), chars.as_str()));
    }
    let kind = chars.next().ok_or(InvalidSyntax)?;
    let rest = chars.as_str();
    let simple = match kind {
        'a' => Some(7),
        'b' => Some(8),
        'f' => Some(12),
        'n' => Some(b'\n'),
        'r' => Some(b'\r'),
        't' => Some(b'\t'),
        'v' => Some(11),
        '\\' => Some(b'\\'),
        c if c == quote => Some(if quote == '"' { b'"' } else { b'\'' }),
        _ => None,
    };
    if let Some(byte) = simple {
        return Ok((vec![byte], rest));
    }
    let digits = |count: usize, radix: u32, text: &'_ str| {
        let part = text.get(..count).ok_or(InvalidSyntax)?;
        u32::from_str_radix(part, radix).map_err(|_| InvalidSyntax)
    };
    let (value, used) = match kind {
        'x' => (digits(2, 16, rest)?, 2),
        'u' => (digits(4, 16, rest)?, 4),
        'U' => (digits(8, 16, rest)?, 8),
        '0'..='7' => {
            let octal = text.get(1..).unwrap_or_default();
            (digits(3, 8, octal)?, 2)
        }
        _ => return Err(InvalidSyntax),
    };
    let tail = rest.get(used..).ok_or(InvalidSyntax)?;
    if matches!(kind, 'x' | '0'..='7') {
        let byte = u8::try_from(value).map_err(|_| InvalidSyntax)?;
        return Ok((vec![byte], tail));
    }
    let character = char::from_u32(value).ok_or(InvalidSyntax)?;
    Ok((character.to_string().into_bytes(), tail))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_as_go_does() {
        let table = [
            ("a", r#""a""#),
            ("a\"b\\", r#""a\"b\\""#),
            ("\n\t\x01\x7f", r#""\n\t\x01\x7f""#),
            ("é世\u{a0}\u{200b}", r#""é世\u00a0\u200b""#),
        ];
        for (text, quoted) in table {
            assert_eq!(quote(text), quoted);
            assert_eq!(unquote(quoted).unwrap(), text.as_bytes());
        }
        assert_eq!(quote_bytes(b"\xff"), r#""\xff""#);
        assert_eq!(unquote("`a\\n`").unwrap(), b"a\\n");
        assert_eq!(unquote(r#""\101\x41""#).unwrap(), b"AA");
        assert_eq!(unquote_rune("'a'").unwrap(), 97);
        assert!(unquote(r#""\q""#).is_err());
    }
}
