//! The lexer of templates.

use crate::parse::token::{Item, KEYWORDS, Token};

/// Reads items from a text.
pub(crate) struct Lexer<'a> {
    input: &'a str,
    pos: usize,
    start: usize,
    line: usize,
    start_line: usize,
    paren_depth: usize,
    inside_action: bool,
    failed: bool,
}

fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\n')
}

fn is_alphanumeric(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

fn left_trim(text: &str) -> bool {
    let mut chars = text.chars();
    chars.next() == Some('-') && chars.next().is_some_and(is_space)
}

fn right_trim(text: &str) -> bool {
    let mut chars = text.chars();
    chars.next().is_some_and(is_space) && chars.next() == Some('-')
}

impl<'a> Lexer<'a> {
    pub(crate) fn new(input: &'a str) -> Self {
        Self {
            input,
            pos: 0,
            start: 0,
            line: 1,
            start_line: 1,
            paren_depth: 0,
            inside_action: false,
            failed: false,
        }
    }

    fn rest(&self) -> &'a str {
        self.input.get(self.pos..).unwrap_or_default()
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn advance(&mut self) -> Option<char> {
        let next = self.peek()?;
        self.pos += next.len_utf8();
        if next == '\n' {
            self.line += 1;
        }
        Some(next)
    }

    fn taken(&self) -> &'a str {
        self.input.get(self.start..self.pos).unwrap_or_default()
    }

    fn item(&mut self, token: Token) -> Item {
        let text = self.taken().to_owned();
        let item = Item { token, pos: self.start, text, line: self.start_line };
        self.start = self.pos;
        self.start_line = self.line;
        item
    }

    fn ignore(&mut self) {
        self.start = self.pos;
        self.start_line = self.line;
    }

    fn error(&mut self, message: impl Into<String>) -> Item {
        self.failed = true;
        Item { token: Token::Error, pos: self.start, text: message.into(), line: self.start_line }
    }

    fn skip(&mut self, bytes: usize) {
        let skipped = self.rest().get(..bytes).unwrap_or_default();
        self.line += skipped.matches('\n').count();
        self.pos += bytes;
    }

    /// The next item; after an error and at the end, always the end.
    pub(crate) fn next_item(&mut self) -> Item {
        if self.failed {
            return Item {
                token: Token::Eof,
                pos: self.pos,
                text: "EOF".into(),
                line: self.start_line,
            };
        }
        if self.inside_action { self.action() } else { self.text() }
    }

    fn text(&mut self) -> Item {
        loop {
            let Some(at) = self.rest().find("{{") else {
                let length = self.rest().len();
                if length == 0 {
                    let pos = self.pos;
                    return Item {
                        token: Token::Eof,
                        pos,
                        text: "EOF".into(),
                        line: self.start_line,
                    };
                }
                self.skip(length);
                return self.item(Token::Text);
            };
            if at > 0 {
                let after = self.rest().get(at + 2..).unwrap_or_default();
                let mut length = at;
                if left_trim(after) {
                    let text = self.rest().get(..at).unwrap_or_default();
                    length = text.trim_end_matches(is_space).len();
                }
                self.skip(length);
                let item = self.item(Token::Text);
                self.skip(at - length);
                self.ignore();
                if !item.text.is_empty() {
                    return item;
                }
            }
            if let Some(item) = self.left_delim() {
                return item;
            }
        }
    }

    /// `{{`; `None` when a comment was skipped.
    fn left_delim(&mut self) -> Option<Item> {
        let start_of_action = self.rest();
        let after = start_of_action.get(2..).unwrap_or_default();
        let marker = if left_trim(after) { 2 } else { 0 };
        if after.get(marker..).is_some_and(|rest| rest.starts_with("/*")) {
            self.skip(2 + marker);
            self.ignore();
            return self.comment();
        }
        self.skip(2);
        let item = self.item(Token::LeftDelim);
        self.inside_action = true;
        self.skip(marker);
        self.ignore();
        self.paren_depth = 0;
        Some(item)
    }

    fn comment(&mut self) -> Option<Item> {
        let Some(end) = self.rest().get(2..).and_then(|rest| rest.find("*/")) else {
            return Some(self.error("unclosed comment"));
        };
        self.skip(2 + end + 2);
        let Some(trims) = self.right_delim_here() else {
            return Some(self.error("comment ends before closing delimiter"));
        };
        self.after_delim(trims);
        self.ignore();
        None
    }

    /// Whether `}}` follows, and whether with a trim marker.
    fn right_delim_here(&self) -> Option<bool> {
        let rest = self.rest();
        if right_trim(rest) && rest.get(2..).is_some_and(|rest| rest.starts_with("}}")) {
            return Some(true);
        }
        rest.starts_with("}}").then_some(false)
    }

    fn after_delim(&mut self, trims: bool) {
        self.skip(if trims { 4 } else { 2 });
        if trims {
            let rest = self.rest();
            let spaces = rest.len() - rest.trim_start_matches(is_space).len();
            self.skip(spaces);
        }
    }

    fn right_delim(&mut self, trims: bool) -> Item {
        if trims {
            self.skip(2);
            self.ignore();
        }
        self.skip(2);
        let item = self.item(Token::RightDelim);
        if trims {
            let rest = self.rest();
            let spaces = rest.len() - rest.trim_start_matches(is_space).len();
            self.skip(spaces);
            self.ignore();
        }
        self.inside_action = false;
        item
    }

    fn action(&mut self) -> Item {
        if let Some(trims) = self.right_delim_here() {
            if self.paren_depth == 0 {
                return self.right_delim(trims);
            }
            return self.error("unclosed left paren");
        }
        let Some(next) = self.peek() else {
            return self.error("unclosed action");
        };
        if is_space(next) {
            return self.space();
        }
        if next == '.' {
            let digit = self.rest().as_bytes().get(1).is_some_and(u8::is_ascii_digit);
            if self.rest().len() > 1 && !digit {
                self.advance();
                return self.field_or_variable(Token::Field);
            }
            return self.number();
        }
        if matches!(next, '+' | '-' | '0'..='9') {
            return self.number();
        }
        if is_alphanumeric(next) {
            return self.identifier();
        }
        self.advance();
        match next {
            '=' => self.item(Token::Assign),
            ':' => {
                if self.advance() != Some('=') {
                    return self.error("expected :=");
                }
                self.item(Token::Declare)
            }
            '|' => self.item(Token::Pipe),
            '"' => self.quoted('"', Token::String, "unterminated quoted string"),
            '`' => self.raw_string(),
            '$' => self.field_or_variable(Token::Variable),
            '\'' => self.quoted('\'', Token::CharConstant, "unterminated character constant"),
            '(' => {
                self.paren_depth += 1;
                self.item(Token::LeftParen)
            }
            ')' => {
                if self.paren_depth == 0 {
                    return self.error("unexpected right paren");
                }
                self.paren_depth -= 1;
                self.item(Token::RightParen)
            }
            ' '..='~' => self.item(Token::Char),
            other => self.error(format!("unrecognized character in action: {}", unicode(other))),
        }
    }

    fn space(&mut self) -> Item {
        let rest = self.rest();
        let count = rest.len() - rest.trim_start_matches(is_space).len();
        let last = rest.get(count - 1..).unwrap_or_default();
        if right_trim(last) && last.get(2..).is_some_and(|rest| rest.starts_with("}}")) {
            if count == 1 {
                return self.right_delim(true);
            }
            self.skip(count - 1);
            return self.item(Token::Space);
        }
        self.skip(count);
        self.item(Token::Space)
    }

    fn at_terminator(&self) -> bool {
        match self.peek() {
            None => true,
            Some(c) if is_space(c) => true,
            Some('.' | ',' | '|' | ':' | ')' | '(') => true,
            _ => self.rest().starts_with("}}"),
        }
    }

    fn bad_character(&mut self) -> Item {
        let c = self.peek().unwrap_or('\0');
        self.error(format!("bad character {}", unicode(c)))
    }

    fn identifier(&mut self) -> Item {
        while self.peek().is_some_and(is_alphanumeric) {
            self.advance();
        }
        if !self.at_terminator() {
            return self.bad_character();
        }
        let word = self.taken();
        let keyword = KEYWORDS.iter().find(|(name, _)| *name == word);
        match (keyword, word) {
            (Some((_, token)), _) => self.item(*token),
            (None, "true" | "false") => self.item(Token::Bool),
            _ => self.item(Token::Identifier),
        }
    }

    fn field_or_variable(&mut self, token: Token) -> Item {
        if self.at_terminator() {
            return self.item(if token == Token::Variable { token } else { Token::Dot });
        }
        while self.peek().is_some_and(is_alphanumeric) {
            self.advance();
        }
        if !self.at_terminator() {
            return self.bad_character();
        }
        self.item(token)
    }

    fn quoted(&mut self, quote: char, token: Token, unterminated: &str) -> Item {
        loop {
            match self.advance() {
                Some('\\') => match self.advance() {
                    None | Some('\n') => return self.error(unterminated),
                    Some(_) => {}
                },
                None | Some('\n') => return self.error(unterminated),
                Some(c) if c == quote => return self.item(token),
                Some(_) => {}
            }
        }
    }

    fn raw_string(&mut self) -> Item {
        loop {
            match self.advance() {
                None => return self.error("unterminated raw quoted string"),
                Some('`') => return self.item(Token::RawString),
                Some(_) => {}
            }
        }
    }

    fn accept(&mut self, valid: &str) -> bool {
        let fits = self.peek().is_some_and(|c| valid.contains(c));
        if fits {
            self.advance();
        }
        fits
    }

    fn accept_run(&mut self, valid: &str) {
        while self.accept(valid) {}
    }

    fn number(&mut self) -> Item {
        let bad = |lexer: &mut Self| {
            let text = crate::go::quote::quote(lexer.taken());
            lexer.error(format!("bad number syntax: {text}"))
        };
        if !self.scan_number() {
            return bad(self);
        }
        if self.peek().is_some_and(|c| matches!(c, '+' | '-')) {
            if !self.scan_number() || !self.taken().ends_with('i') {
                return bad(self);
            }
            return self.item(Token::Complex);
        }
        self.item(Token::Number)
    }

    fn scan_number(&mut self) -> bool {
        self.accept("+-");
        let (mut digits, mut decimal, mut hex) = ("0123456789_", true, false);
        if self.accept("0") {
            if self.accept("xX") {
                (digits, decimal, hex) = ("0123456789abcdefABCDEF_", false, true);
            } else if self.accept("oO") {
                (digits, decimal) = ("01234567_", false);
            } else if self.accept("bB") {
                (digits, decimal) = ("01_", false);
            }
        }
        self.accept_run(digits);
        if self.accept(".") {
            self.accept_run(digits);
        }
        if (decimal && self.accept("eE")) || (hex && self.accept("pP")) {
            self.accept("+-");
            self.accept_run("0123456789_");
        }
        self.accept("i");
        if self.peek().is_some_and(is_alphanumeric) {
            self.advance();
            return false;
        }
        true
    }
}

/// `%#U` of Go.
fn unicode(c: char) -> String {
    if crate::go::quote::is_print(c) {
        format!("U+{:04X} '{c}'", u32::from(c))
    } else {
        format!("U+{:04X}", u32::from(c))
    }
}
