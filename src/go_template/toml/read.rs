//! Reading TOML: tables, arrays, strings, numbers, booleans and dates.

use crate::budget::MAX_NESTING;
use crate::error::Failure;
use crate::parse::number::parse_int;
use crate::time;
use crate::value::{Map, Value};

struct Reader<'a> {
    rest: &'a str,
    line: usize,
    /// Maps and lists around the present place.
    depth: usize,
}

/// `toml.Unmarshal` into a map.
///
/// # Errors
///
/// The text is not TOML; the error names the line.
pub(crate) fn from_toml(text: &str) -> Result<Value, Failure> {
    let root = Map::new(Default::default());
    let mut table = root.clone();
    let mut reader = Reader { rest: text, line: 1, depth: 0 };
    loop {
        reader.blank();
        let Some(c) = reader.peek() else {
            return Ok(Value::Map(root));
        };
        if c == '[' {
            table = reader.heading(&root)?;
        } else {
            let path = reader.key_path('=')?;
            let value = reader.value_below(path.len())?;
            let (last, parents) = match path.split_last() {
                Some(parts) => parts,
                None => return Err(reader.error("a key is missing")),
            };
            let inner = reader.descend(&table, parents)?;
            if inner.contains(last) {
                return Err(reader.error(&format!("Key '{last}' has already been defined.")));
            }
            inner.insert(last.as_str(), value);
        }
        reader.end_of_line()?;
    }
}

impl Reader<'_> {
    fn error(&self, text: &str) -> Failure {
        Failure::new(format!("toml: line {}: {text}", self.line))
    }

    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn take(&mut self) -> Option<char> {
        let next = self.peek()?;
        self.rest = self.rest.get(next.len_utf8()..).unwrap_or_default();
        self.line += usize::from(next == '\n');
        Some(next)
    }

    fn accept(&mut self, text: &str) -> bool {
        match self.rest.strip_prefix(text) {
            Some(rest) => {
                self.line += text.matches('\n').count();
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn spaces(&mut self) {
        while matches!(self.peek(), Some(' ' | '\t')) {
            self.take();
        }
    }

    /// Spaces, line breaks and comments.
    fn blank(&mut self) {
        loop {
            match self.peek() {
                Some(' ' | '\t' | '\r' | '\n') => {
                    self.take();
                }
                Some('#') => {
                    while self.peek().is_some_and(|c| c != '\n') {
                        self.take();
                    }
                }
                _ => return,
            }
        }
    }

    fn end_of_line(&mut self) -> Result<(), Failure> {
        self.spaces();
        match self.peek() {
            None | Some('\n' | '\r' | '#') => Ok(()),
            Some(c) => {
                let text = format!("expected a top-level item to end with a newline, got '{c}'");
                Err(self.error(&text))
            }
        }
    }

    /// Keys with points between them, up to and with `end`.
    fn key_path(&mut self, end: char) -> Result<Vec<String>, Failure> {
        let mut path = Vec::new();
        loop {
            self.spaces();
            let key = match self.peek() {
                Some('"') => self.basic_string()?,
                Some('\'') => self.literal_string()?,
                _ => {
                    let is_bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
                    let length = self.rest.find(|c| !is_bare(c)).unwrap_or(self.rest.len());
                    let (key, rest) = self.rest.split_at(length);
                    if key.is_empty() {
                        return Err(self.error("bare keys cannot be empty"));
                    }
                    self.rest = rest;
                    key.to_owned()
                }
            };
            path.push(key);
            if self.depth + path.len() > MAX_NESTING {
                return Err(self.error("values are nested too deep"));
            }
            self.spaces();
            match self.take() {
                Some('.') => {}
                Some(c) if c == end => return Ok(path),
                _ => return Err(self.error(&format!("expected '.' or '{end}' after a key"))),
            }
        }
    }

    fn heading(&mut self, root: &Map) -> Result<Map, Failure> {
        self.depth = 0;
        let is_array = self.accept("[[");
        if !is_array {
            self.take();
        }
        let path = self.key_path(']')?;
        self.depth = path.len();
        if is_array && !self.accept("]") {
            return Err(self.error("expected ']]' after the name of an array of tables"));
        }
        let Some((last, parents)) = path.split_last() else { return Ok(root.clone()) };
        let parent = self.descend(root, parents)?;
        if !is_array {
            return self.descend(&parent, std::slice::from_ref(last));
        }
        let table = Map::new(Default::default());
        let mut items = match parent.get(last) {
            None => Vec::new(),
            Some(Value::List(list)) => list.items.to_vec(),
            Some(_) => {
                return Err(self.error(&format!("Key '{last}' has already been defined.")));
            }
        };
        items.push(Value::Map(table.clone()));
        parent.insert(last.as_str(), Value::list(items));
        Ok(table)
    }

    fn descend(&self, from: &Map, path: &[String]) -> Result<Map, Failure> {
        let mut table = from.clone();
        for key in path {
            let next = match table.get(key) {
                None => {
                    let next = Map::new(Default::default());
                    table.insert(key.as_str(), Value::Map(next.clone()));
                    next
                }
                Some(Value::Map(next)) => next,
                Some(Value::List(list)) => match list.items.last() {
                    Some(Value::Map(next)) => next.clone(),
                    _ => return Err(self.error(&format!("Key '{key}' is no table"))),
                },
                Some(_) => return Err(self.error(&format!("Key '{key}' is no table"))),
            };
            table = next;
        }
        Ok(table)
    }

    /// A value below so many keys.
    fn value_below(&mut self, keys: usize) -> Result<Value, Failure> {
        self.depth += keys;
        let value = self.value();
        self.depth = self.depth.saturating_sub(keys);
        value
    }

    fn value(&mut self) -> Result<Value, Failure> {
        self.depth += 1;
        if self.depth > MAX_NESTING {
            return Err(self.error("values are nested too deep"));
        }
        self.spaces();
        let value = match self.peek() {
            Some('"') if self.accept("\"\"\"") => self.long_string("\"\"\"").map(Value::from),
            Some('"') => self.basic_string().map(Value::from),
            Some('\'') if self.accept("'''") => self.long_string("'''").map(Value::from),
            Some('\'') => self.literal_string().map(Value::from),
            Some('[') => self.array(),
            Some('{') => self.inline_table(),
            _ => self.plain(),
        };
        self.depth -= 1;
        value
    }

    fn array(&mut self) -> Result<Value, Failure> {
        self.take();
        let mut items = Vec::new();
        loop {
            self.blank();
            if self.accept("]") {
                return Ok(Value::list(items));
            }
            items.push(self.value()?);
            self.blank();
            if !self.accept(",") && self.peek() != Some(']') {
                return Err(self.error("expected a comma (',') or array terminator (']')"));
            }
        }
    }

    fn inline_table(&mut self) -> Result<Value, Failure> {
        self.take();
        let table = Map::new(Default::default());
        loop {
            self.blank();
            if self.accept("}") {
                return Ok(Value::Map(table));
            }
            let path = self.key_path('=')?;
            let value = self.value_below(path.len())?;
            if let Some((last, parents)) = path.split_last() {
                self.descend(&table, parents)?.insert(last.as_str(), value);
            }
            self.blank();
            if !self.accept(",") && self.peek() != Some('}') {
                return Err(self.error("expected a comma or an inline table terminator '}'"));
            }
        }
    }

    fn literal_string(&mut self) -> Result<String, Failure> {
        self.take();
        let end = self.rest.find(['\'', '\n']).filter(|at| self.rest.get(*at..=*at) == Some("'"));
        let Some(end) = end else {
            return Err(self.error("unexpected EOF; expected \"'\""));
        };
        let text = self.rest.get(..end).unwrap_or_default().to_owned();
        self.rest = self.rest.get(end + 1..).unwrap_or_default();
        Ok(text)
    }

    fn basic_string(&mut self) -> Result<String, Failure> {
        self.take();
        let mut out = String::new();
        loop {
            match self.take() {
                Some('"') => return Ok(out),
                Some('\\') => out.push(self.escape()?),
                None | Some('\n') => return Err(self.error("strings cannot contain newlines")),
                Some(c) => out.push(c),
            }
        }
    }

    fn escape(&mut self) -> Result<char, Failure> {
        let code = |reader: &mut Self, count: usize| {
            let digits = reader.rest.get(..count).unwrap_or_default().to_owned();
            reader.rest = reader.rest.get(count..).unwrap_or_default();
            let code = u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32);
            code.ok_or_else(|| reader.error("invalid escape of a character"))
        };
        match self.take() {
            Some('b') => Ok('\x08'),
            Some('t') => Ok('\t'),
            Some('n') => Ok('\n'),
            Some('f') => Ok('\x0c'),
            Some('r') => Ok('\r'),
            Some('e') => Ok('\x1b'),
            Some('"') => Ok('"'),
            Some('\\') => Ok('\\'),
            Some('x') => code(self, 2),
            Some('u') => code(self, 4),
            Some('U') => code(self, 8),
            _ => Err(self.error("invalid escape character")),
        }
    }

    fn long_string(&mut self, end: &str) -> Result<String, Failure> {
        if !self.accept("\r\n") {
            self.accept("\n");
        }
        let mut out = String::new();
        loop {
            if self.accept(end) {
                // Up to two quotes may stand before the end.
                let quote = end.get(..1).unwrap_or_default();
                while self.accept(quote) {
                    out.push_str(quote);
                }
                return Ok(out);
            }
            match self.take() {
                None => return Err(self.error("unexpected EOF in a string")),
                Some('\\') if end.starts_with('"') => {
                    let trimmed = self.rest.trim_start_matches([' ', '\t', '\r']);
                    if trimmed.starts_with('\n') {
                        while matches!(self.peek(), Some(' ' | '\t' | '\r' | '\n')) {
                            self.take();
                        }
                    } else {
                        out.push(self.escape()?);
                    }
                }
                Some(c) => out.push(c),
            }
        }
    }

    fn plain(&mut self) -> Result<Value, Failure> {
        let end = self.rest.find([',', ']', '}', '#', '\n', '\r']).unwrap_or(self.rest.len());
        let (token, rest) = self.rest.split_at(end);
        let token = token.trim();
        let value = match token {
            "true" => Some(Value::Bool(true)),
            "false" => Some(Value::Bool(false)),
            "inf" | "+inf" => Some(Value::Float(f64::INFINITY)),
            "-inf" => Some(Value::Float(f64::NEG_INFINITY)),
            "nan" | "+nan" | "-nan" => Some(Value::Float(f64::NAN)),
            token => number_or_date(token),
        };
        let Some(value) = value else {
            let text =
                format!("expected value but found {} instead", crate::go::quote::quote(token));
            return Err(self.error(&text));
        };
        self.rest = rest;
        Ok(value)
    }
}

fn number_or_date(token: &str) -> Option<Value> {
    if let Some(number) = parse_int(token) {
        return Some(Value::Int64(number));
    }
    let layouts = ["2006-01-02T15:04:05.999999999Z07:00", "2006-01-02 15:04:05Z07:00"];
    let local = ["2006-01-02T15:04:05.999999999", "2006-01-02 15:04:05", "2006-01-02", "15:04:05"];
    for layout in layouts.iter().chain(&local) {
        if let Ok(time) = time::parse(layout, token) {
            return Some(Value::Time(time));
        }
    }
    let starts = token.starts_with(|c: char| c.is_ascii_digit() || c == '+' || c == '-');
    let clean = token.replace('_', "");
    clean.parse::<f64>().ok().filter(|number| starts && number.is_finite()).map(Value::Float)
}
