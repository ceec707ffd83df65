//! A JSON scanner over bytes with the syntax errors of Go's `encoding/json`.

use std::borrow::Cow;

use serde_json::{Map, Number, Value};

use super::super::{DEPTH_MAX, STRICT_ERRORS_MAX};

/// A syntax error with the text of Go's `encoding/json`.
#[derive(Debug)]
pub(super) struct Syntax(pub(super) String);

pub(super) struct Scanner<'a> {
    data: &'a [u8],
    pos: usize,
    depth: usize,
}

/// The type of the next value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Object,
    Array,
    String,
    Number,
    Bool(bool),
    Null,
}

impl Kind {
    /// Returns the name of the type in type errors.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Object => "object",
            Self::Array => "array",
            Self::String => "string",
            Self::Number => "number",
            Self::Bool(_) => "bool",
            Self::Null => "null",
        }
    }
}

/// Formats a byte as Go's `encoding/json` does in its error messages.
fn character(byte: u8) -> String {
    match byte {
        b'\'' => r"'\''".to_owned(),
        b'"' => "'\"'".to_owned(),
        b'\\' => r"'\\'".to_owned(),
        0x07 => r"'\a'".to_owned(),
        0x08 => r"'\b'".to_owned(),
        0x0c => r"'\f'".to_owned(),
        b'\n' => r"'\n'".to_owned(),
        b'\r' => r"'\r'".to_owned(),
        b'\t' => r"'\t'".to_owned(),
        0x0b => r"'\v'".to_owned(),
        0x20..0x7f => format!("'{}'", char::from(byte)),
        0x00..0x20 | 0x7f => format!("'\\x{byte:02x}'"),
        0x80..0xa1 | 0xad => format!("'\\u{byte:04x}'"),
        _ => format!("'{}'", char::from(byte)),
    }
}

impl<'a> Scanner<'a> {
    pub(super) fn new(data: &'a [u8]) -> Self {
        Self { data, pos: 0, depth: 0 }
    }

    /// Returns the error for the byte at the current position. If the input ends within a literal,
    /// a number or an escape, the error names a space, as Go's does.
    fn fault(&self, context: &str) -> Syntax {
        let within = ["in literal", "numeric literal", "character escape", "escape code"];
        let byte = match self.data.get(self.pos).copied() {
            Some(byte) => byte,
            None if within.iter().any(|part| context.contains(part)) => b' ',
            None => return Syntax("unexpected end of JSON input".into()),
        };
        let shown = character(byte);
        Syntax(format!("invalid character {shown} {context}"))
    }

    fn space(&mut self) {
        while matches!(self.data.get(self.pos), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.pos += 1;
        }
    }

    /// Skips white space and returns the type of the next value without consuming the value.
    pub(super) fn peek(&mut self) -> Result<Kind, Syntax> {
        self.space();
        Ok(match self.data.get(self.pos) {
            Some(b'{') => Kind::Object,
            Some(b'[') => Kind::Array,
            Some(b'"') => Kind::String,
            Some(b'-' | b'0'..=b'9') => Kind::Number,
            Some(b't') => Kind::Bool(true),
            Some(b'f') => Kind::Bool(false),
            Some(b'n') => Kind::Null,
            _ => return Err(self.fault("looking for beginning of value")),
        })
    }

    /// Checks that only white space follows the top-level value.
    pub(super) fn end(&mut self) -> Result<(), Syntax> {
        self.space();
        if self.pos < self.data.len() { Err(self.fault("after top-level value")) } else { Ok(()) }
    }

    /// Enters an object or an array.
    pub(super) fn open(&mut self) -> Result<(), Syntax> {
        self.pos += 1;
        self.depth += 1;
        if self.depth > DEPTH_MAX { Err(self.fault("exceeded max depth")) } else { Ok(()) }
    }

    /// Reads the next key of an object and its colon; returns `None` at the end of the object.
    pub(super) fn key(&mut self, first: &mut bool) -> Result<Option<Cow<'a, str>>, Syntax> {
        self.space();
        match self.data.get(self.pos) {
            Some(b'}') => {
                self.pos += 1;
                self.depth -= 1;
                return Ok(None);
            }
            Some(b',') if !*first => {
                self.pos += 1;
                self.space();
            }
            _ if !*first => return Err(self.fault("after object key:value pair")),
            _ => {}
        }
        *first = false;
        if self.data.get(self.pos) != Some(&b'"') {
            return Err(self.fault("looking for beginning of object key string"));
        }
        let key = self.string()?;
        self.space();
        if self.data.get(self.pos) != Some(&b':') {
            return Err(self.fault("after object key"));
        }
        self.pos += 1;
        Ok(Some(key))
    }

    /// Returns whether the array has another element.
    pub(super) fn element(&mut self, first: &mut bool) -> Result<bool, Syntax> {
        self.space();
        match self.data.get(self.pos) {
            Some(b']') => {
                self.pos += 1;
                self.depth -= 1;
                return Ok(false);
            }
            Some(b',') if !*first => {
                self.pos += 1;
                self.space();
                // A value must follow a comma.
                if self.data.get(self.pos) == Some(&b']') {
                    return Err(self.fault("looking for beginning of value"));
                }
            }
            _ if !*first => return Err(self.fault("after array element")),
            _ => {}
        }
        *first = false;
        Ok(true)
    }

    /// Reads a string; the current position is its opening quote. Invalid UTF-8 and lone surrogates
    /// become U+FFFD.
    pub(super) fn string(&mut self) -> Result<Cow<'a, str>, Syntax> {
        let start = self.pos + 1;
        self.pos = start;
        loop {
            match self.data.get(self.pos) {
                Some(b'"') => {
                    let raw = self.data.get(start..self.pos).unwrap_or_default();
                    self.pos += 1;
                    return Ok(String::from_utf8_lossy(raw));
                }
                Some(b'\\') => break,
                Some(0x20..) => self.pos += 1,
                _ => return Err(self.fault("in string literal")),
            }
        }
        let mut out = self.data.get(start..self.pos).unwrap_or_default().to_vec();
        loop {
            match self.data.get(self.pos).copied() {
                Some(b'"') => {
                    self.pos += 1;
                    let text = String::from_utf8(out)
                        .unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned());
                    return Ok(Cow::Owned(text));
                }
                Some(b'\\') => {
                    self.pos += 1;
                    let c = self.escape()?;
                    out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                }
                Some(byte @ 0x20..) => {
                    out.push(byte);
                    self.pos += 1;
                }
                _ => return Err(self.fault("in string literal")),
            }
        }
    }

    fn escape(&mut self) -> Result<char, Syntax> {
        let simple = match self.data.get(self.pos) {
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                self.pos += 1;
                let high = self.hex()?;
                if !(0xd800..0xe000).contains(&high) {
                    return Ok(char::from_u32(high).unwrap_or('\u{fffd}'));
                }
                let mark = self.pos;
                if high < 0xdc00 && self.data.get(self.pos..self.pos + 2) == Some(b"\\u") {
                    self.pos += 2;
                    let low = self.hex()?;
                    if (0xdc00..0xe000).contains(&low) {
                        let code = 0x1_0000 + ((high - 0xd800) << 10) + (low - 0xdc00);
                        return Ok(char::from_u32(code).unwrap_or('\u{fffd}'));
                    }
                    self.pos = mark;
                }
                return Ok('\u{fffd}');
            }
            _ => return Err(self.fault("in string escape code")),
        };
        self.pos += 1;
        Ok(simple)
    }

    fn hex(&mut self) -> Result<u32, Syntax> {
        let mut code = 0;
        for _ in 0..4 {
            let digit = self.data.get(self.pos).and_then(|b| char::from(*b).to_digit(16));
            code = code * 16
                + digit.ok_or_else(|| self.fault("in \\u hexadecimal character escape"))?;
            self.pos += 1;
        }
        Ok(code)
    }

    /// Reads a number and returns its text; the current position is its first byte.
    pub(super) fn number(&mut self) -> Result<&'a str, Syntax> {
        let start = self.pos;
        if self.data.get(self.pos) == Some(&b'-') {
            self.pos += 1;
        }
        match self.data.get(self.pos) {
            Some(b'0') => self.pos += 1,
            Some(b'1'..=b'9') => self.digits(),
            _ => return Err(self.fault("in numeric literal")),
        }
        if self.data.get(self.pos) == Some(&b'.') {
            self.pos += 1;
            if !matches!(self.data.get(self.pos), Some(b'0'..=b'9')) {
                return Err(self.fault("after decimal point in numeric literal"));
            }
            self.digits();
        }
        if matches!(self.data.get(self.pos), Some(b'e' | b'E')) {
            self.pos += 1;
            if matches!(self.data.get(self.pos), Some(b'+' | b'-')) {
                self.pos += 1;
            }
            if !matches!(self.data.get(self.pos), Some(b'0'..=b'9')) {
                return Err(self.fault("in exponent of numeric literal"));
            }
            self.digits();
        }
        Ok(std::str::from_utf8(self.data.get(start..self.pos).unwrap_or_default())
            .unwrap_or_default())
    }

    fn digits(&mut self) {
        while matches!(self.data.get(self.pos), Some(b'0'..=b'9')) {
            self.pos += 1;
        }
    }

    /// Reads `true`, `false` or `null`.
    pub(super) fn literal(&mut self, kind: Kind) -> Result<(), Syntax> {
        let word = match kind {
            Kind::Bool(true) => "true",
            Kind::Bool(false) => "false",
            _ => "null",
        };
        for (i, expected) in word.bytes().enumerate() {
            if self.data.get(self.pos) != Some(&expected) {
                return Err(self.fault(&format!(
                    "in literal {word} (expecting {:?})",
                    char::from(word.as_bytes()[i])
                )));
            }
            self.pos += 1;
        }
        Ok(())
    }

    /// Reads a value of any type; integers remain integers.
    pub(super) fn any(&mut self) -> Result<Value, Syntax> {
        let kind = self.peek()?;
        match kind {
            Kind::Object => {
                self.open()?;
                let mut map = Map::new();
                let mut first = true;
                while let Some(key) = self.key(&mut first)? {
                    let value = self.any()?;
                    map.insert(key.into_owned(), value);
                }
                Ok(Value::Object(map))
            }
            Kind::Array => {
                self.open()?;
                let mut list = Vec::new();
                let mut first = true;
                while self.element(&mut first)? {
                    list.push(self.any()?);
                }
                Ok(Value::Array(list))
            }
            Kind::String => Ok(Value::String(self.string()?.into_owned())),
            Kind::Number => self.number().map(number_value),
            Kind::Bool(value) => self.literal(kind).map(|()| Value::Bool(value)),
            Kind::Null => self.literal(kind).map(|()| Value::Null),
        }
    }

    /// Reads like [`Scanner::any`] and records the paths of duplicate keys in the form of Go's
    /// strict decoder.
    pub(super) fn any_strict(
        &mut self,
        path: &mut String,
        doubled: &mut Vec<String>,
    ) -> Result<Value, Syntax> {
        let kind = self.peek()?;
        let length = path.len();
        match kind {
            Kind::Object => {
                self.open()?;
                let mut map = Map::new();
                let mut first = true;
                while let Some(key) = self.key(&mut first)? {
                    if length > 0 {
                        path.push('.');
                    }
                    path.push_str(&key);
                    if map.contains_key(key.as_ref()) && doubled.len() < STRICT_ERRORS_MAX {
                        doubled.push(path.clone());
                    }
                    let value = self.any_strict(path, doubled)?;
                    map.insert(key.into_owned(), value);
                    path.truncate(length);
                }
                Ok(Value::Object(map))
            }
            Kind::Array => {
                self.open()?;
                let mut list = Vec::new();
                let mut first = true;
                while self.element(&mut first)? {
                    path.push_str(&format!("[{}]", list.len()));
                    list.push(self.any_strict(path, doubled)?);
                    path.truncate(length);
                }
                Ok(Value::Array(list))
            }
            _ => self.any(),
        }
    }

    /// Skips a value and returns its bytes.
    pub(super) fn skip(&mut self) -> Result<&'a [u8], Syntax> {
        let kind = self.peek()?;
        let start = self.pos;
        match kind {
            Kind::Object => {
                self.open()?;
                let mut first = true;
                while self.key(&mut first)?.is_some() {
                    self.skip()?;
                }
            }
            Kind::Array => {
                self.open()?;
                let mut first = true;
                while self.element(&mut first)? {
                    self.skip()?;
                }
            }
            Kind::String => {
                self.string()?;
            }
            Kind::Number => {
                self.number()?;
            }
            Kind::Bool(_) | Kind::Null => self.literal(kind)?,
        }
        Ok(self.data.get(start..self.pos).unwrap_or_default())
    }
}

/// Converts the text of a number to a JSON value; a number beyond the range of a float becomes the
/// largest float.
pub(super) fn number_value(text: &str) -> Value {
    if !text.contains(['.', 'e', 'E'])
        && let Ok(integer) = text.parse::<i64>()
    {
        return Value::Number(integer.into());
    }
    let float: f64 = text.parse().unwrap_or(0.0);
    let float = float.clamp(f64::MIN, f64::MAX);
    Number::from_f64(float).map_or(Value::Null, Value::Number)
}
