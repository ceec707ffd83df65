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
