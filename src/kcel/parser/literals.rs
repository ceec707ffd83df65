//! Parses literals: numbers, and strings with their escapes.

use super::Parser;
use crate::ast::{Expr, Kind, Literal};
use crate::lexer::Token;

impl Parser<'_> {
    /// Parses a literal, if one begins here.
    pub(super) fn literal(&mut self, begin: usize) -> Option<Expr> {
        let negative = self.is("-");
        let token = self.peek(usize::from(negative)).clone();
        if negative && !matches!(token, Token::Int | Token::Float) {
            return None;
        }
        let read = match &token {
            Token::Mark("true") => Ok(Literal::Bool(true)),
            Token::Mark("false") => Ok(Literal::Bool(false)),
            Token::Mark("null") => Ok(Literal::Null),
            Token::Int | Token::Uint | Token::Float | Token::String | Token::Bytes => {
                self.at += usize::from(negative);
                let text = self.lexemes.get(self.at).map_or("", |lexeme| &lexeme.text);
                match token {
                    Token::Int => int(text, negative).ok_or("invalid int literal"),
                    Token::Uint => uint(text).ok_or("invalid uint literal"),
                    Token::Float => double(text, negative).ok_or("invalid double literal"),
                    Token::String => unescape(text, false)
                        .map(|bytes| Literal::String(String::from_utf8_lossy(&bytes).into_owned())),
                    _ => unescape(text.get(1..).unwrap_or_default(), true).map(Literal::Bytes),
                }
            }
            _ => return None,
        };
        self.at += 1;
        Some(match read {
            Ok(literal) => Expr { id: self.id(begin), kind: Kind::Literal(literal) },
            Err(message) => self.report(begin, message),
        })
    }
}

fn int(text: &str, negative: bool) -> Option<Literal> {
    let (digits, radix) = match text.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    let magnitude = i128::from(u64::from_str_radix(digits, radix).ok()?);
    i64::try_from(if negative { -magnitude } else { magnitude }).ok().map(Literal::Int)
}

fn uint(text: &str) -> Option<Literal> {
    let text = text.strip_suffix(['u', 'U'])?;
    let (digits, radix) = match text.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    u64::from_str_radix(digits, radix).ok().map(Literal::Uint)
}

fn double(text: &str, negative: bool) -> Option<Literal> {
    let value: f64 = text.parse().ok()?;
    value.is_finite().then_some(Literal::Double(if negative { -value } else { value }))
}

const BAD: &str = "unable to unescape string";

/// Decodes the content of a quoted literal. In bytes, `\x` and octal escapes are single bytes, in
/// strings code points.
fn unescape(text: &str, bytes: bool) -> Result<Vec<u8>, &'static str> {
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let (text, raw) = match text.strip_prefix(['r', 'R']) {
        Some(rest) => (rest, true),
        None => (text.as_str(), false),
    };
    let content = ["'''", "\"\"\""]
        .iter()
        .find_map(|quotes| text.strip_prefix(quotes)?.strip_suffix(quotes))
        .or_else(|| text.get(1..text.len().checked_sub(1)?))
        .ok_or(BAD)?;
    if raw || !content.contains('\\') {
        return Ok(content.as_bytes().to_vec());
    }
    let mut out = Vec::with_capacity(content.len());
    let mut rest = content.chars();
    while let Some(character) = rest.next() {
        if character != '\\' {
            push(&mut out, character);
            continue;
        }
        let simple = match rest.next().ok_or(BAD)? {
            'a' => '\u{7}',
            'b' => '\u{8}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'v' => '\u{b}',
            same @ ('\\' | '\'' | '"' | '`' | '?') => same,
            'x' | 'X' => {
                code(&mut out, digits(&mut rest, 2, 16, 0)?, bytes)?;
                continue;
            }
            'u' | 'U' if bytes => return Err(BAD),
            'u' => {
                code(&mut out, digits(&mut rest, 4, 16, 0)?, false)?;
                continue;
            }
            'U' => {
                code(&mut out, digits(&mut rest, 8, 16, 0)?, false)?;
                continue;
            }
            first @ '0'..='3' => {
                let value = digits(&mut rest, 2, 8, first.to_digit(8).unwrap_or(0))
                    .map_err(|_| "unable to unescape octal sequence in string")?;
                code(&mut out, value, bytes)?;
                continue;
            }
            _ => return Err(BAD),
        };
        push(&mut out, simple);
    }
    Ok(out)
}

fn digits(
    rest: &mut std::str::Chars<'_>,
    count: usize,
    radix: u32,
    first: u32,
) -> Result<u32, &'static str> {
    (0..count).try_fold(first, |value, _| {
        let digit = rest.next().and_then(|c| c.to_digit(radix)).ok_or(BAD)?;
        value.checked_mul(radix).and_then(|v| v.checked_add(digit)).ok_or(BAD)
    })
}

fn code(out: &mut Vec<u8>, value: u32, bytes: bool) -> Result<(), &'static str> {
    if bytes {
        out.push(u8::try_from(value).map_err(|_| BAD)?);
    } else {
        push(out, char::from_u32(value).ok_or("invalid unicode code point")?);
    }
    Ok(())
}

fn push(out: &mut Vec<u8>, character: char) {
    let mut buffer = [0; 4];
    out.extend_from_slice(character.encode_utf8(&mut buffer).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of cel-go's `parser/unescape_test.go`.
    #[test]
    fn escapes_are_code_points_in_strings_and_single_bytes_in_bytes() {
        for (text, bytes, expected) in [
            ("'hello'", false, "hello".as_bytes()),
            ("r'hello'", false, b"hello"),
            (r#""\\\"""#, false, br#"\""#),
            ("'''x''x'''", false, b"x''x"),
            (r#""\303\277""#, false, "\u{c3}\u{bf}".as_bytes()),
            (r#""\377""#, false, "\u{ff}".as_bytes()),
            (r#""\u263A\u263A""#, false, "☺☺".as_bytes()),
            (r#""\a\b\f\n\r\t\v\'\"\\\? x""#, false, b"\x07\x08\x0c\n\r\t\x0b'\"\\? x"),
            ("\"\u{ff}\"", true, b"\xc3\xbf"),
            (r#""\303\277""#, true, b"\xc3\xbf"),
            (r#""\377""#, true, b"\xff"),
            (r#""\xff""#, true, b"\xff"),
            (r#"'''"Kim\t"'''"#, true, b"\"Kim\t\""),
        ] {
            assert_eq!(unescape(text, bytes).unwrap(), expected, "{text}");
        }
    }

    /// Rows of cel-go's `parser/unescape_test.go`.
    #[test]
    fn invalid_escapes_are_errors() {
        for (text, bytes, expected) in [
            (r#""Illegal escape \>""#, false, "unable to unescape string"),
            (r#""\u00f""#, false, "unable to unescape string"),
            (r#""\u00ff""#, true, "unable to unescape string"),
            (r#""\U00ff""#, true, "unable to unescape string"),
            (r#""\26""#, false, "unable to unescape octal sequence"),
            (r#""\268""#, false, "unable to unescape octal sequence"),
            ("'", false, "unable to unescape string"),
        ] {
            let error = unescape(text, bytes).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    /// Rows of cel-go's `parser/parser_test.go`, and the bounds of int64 and uint64.
    #[test]
    fn numbers_outside_of_their_type_are_errors() {
        let parse = |text: &str| match crate::parser::parse(text, false) {
            Ok(parsed) => format!("{:?}", parsed.root.kind),
            Err(error) => error.to_string().lines().next().unwrap().to_owned(),
        };
        for (text, expected) in [
            ("9223372036854775807", "Literal(Int(9223372036854775807))"),
            ("-9223372036854775808", "Literal(Int(-9223372036854775808))"),
            ("9223372036854775808", "ERROR: <input>:1:1: invalid int literal"),
            ("0xFFFFFFFFFFFFFFFFF", "ERROR: <input>:1:1: invalid int literal"),
            ("18446744073709551615u", "Literal(Uint(18446744073709551615))"),
            ("0xFFFFFFFFFFFFFFFFFu", "ERROR: <input>:1:1: invalid uint literal"),
            ("1.99e90000009", "ERROR: <input>:1:1: invalid double literal"),
        ] {
            assert_eq!(parse(text), expected, "{text}");
        }
    }
}
