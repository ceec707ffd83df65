//! The emitter: block collections and the styles of scalars.

use crate::budget::{Budget, MAX_NESTING};
use crate::error::Failure;
use crate::go::{duration, float};
use crate::value::Value;
use crate::yaml::resolve::{self, Scalar};
use crate::yaml::scalar::{self, Analysis};
use crate::yaml::{Dialect, order};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Style {
    Plain,
    Single,
    Double,
    Literal,
}

/// Where a node is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NodePosition {
    Root,
    Item,
    Value,
}

struct Emitter<'a> {
    out: String,
    /// Characters since the last line break.
    column: usize,
    width: usize,
    dialect: Dialect,
    budget: &'a mut Budget,
}

/// The columns after which version 2 folds lines.
const WIDTH: usize = 80;

/// Writes a document without its last line break.
///
/// # Errors
///
/// The text would be larger than the budget, or a value is nested too deep.
pub(super) fn emit(value: &Value, dialect: Dialect, budget: &mut Budget) -> Result<Value, Failure> {
    let width = if dialect == Dialect::V2 { WIDTH } else { usize::MAX };
    let mut emitter = Emitter { out: String::new(), column: 0, width, dialect, budget };
    emitter.node(value, NodePosition::Root, -1, 0)?;
    let Emitter { mut out, budget, .. } = emitter;
    budget.bytes(out.len())?;
    if !out.ends_with('\n') {
        out.push('\n');
    }
    out.pop();
    Ok(Value::from(out))
}

impl Emitter<'_> {
    fn put(&mut self, c: char) {
        self.out.push(c);
        self.column = if c == '\n' { 0 } else { self.column + 1 };
    }

    fn put_str(&mut self, text: &str) {
        text.chars().for_each(|c| self.put(c));
    }

    /// A new line, indented.
    fn indent(&mut self, indent: isize) {
        let indent = usize::try_from(indent).unwrap_or(0);
        if self.column > 0 {
            self.put('\n');
        }
        (0..indent).for_each(|_| self.put(' '));
    }

    fn check(&mut self, depth: usize) -> Result<(), Failure> {
        if depth > MAX_NESTING {
            return Err(Failure::new("a value is nested too deep, or contains itself"));
        }
        if self.out.len() > self.budget.max_bytes() {
            return self.budget.bytes(usize::MAX);
        }
        self.budget.step(1)
    }

    /// Writes a node; `indent` is that of the collection around it, -1 at the root.
    fn node(
        &mut self,
        value: &Value,
        place: NodePosition,
        indent: isize,
        depth: usize,
    ) -> Result<(), Failure> {
        self.check(depth)?;
        match value {
            Value::Map(map) => {
                let mut pairs = map.pairs();
                order::sort(&mut pairs, self.dialect);
                if pairs.is_empty() {
                    self.space(place);
                    self.put_str("{}");
                    return Ok(());
                }
                let inner = self.inner_indent(place, indent, false);
                for (at, (key, item)) in pairs.iter().enumerate() {
                    let continues =
                        at == 0 && matches!(place, NodePosition::Item | NodePosition::Root);
                    if continues {
                        self.space(place);
                    } else {
                        self.indent(inner);
                    }
                    self.entry(key, item, inner, depth)?;
                }
                Ok(())
            }
            Value::List(_) => {
                let items = value.items().unwrap_or_default();
                if items.is_empty() {
                    self.space(place);
                    self.put_str("[]");
                    return Ok(());
                }
                let inner = self.inner_indent(place, indent, true);
                for (at, item) in items.iter().enumerate() {
                    if at == 0 && matches!(place, NodePosition::Item | NodePosition::Root) {
                        self.space(place);
                    } else {
                        self.indent(inner);
                    }
                    self.put('-');
                    self.node(item, NodePosition::Item, inner, depth + 1)?;
                }
                Ok(())
            }
            Value::Bytes(_) if self.dialect == Dialect::V3 => {
                let items = value.items().unwrap_or_default();
                self.node(&Value::list(items), place, indent, depth)
            }
            value => self.scalar(value, place, indent),
        }
    }

    /// The indentation of a collection within another one.
    fn inner_indent(&self, place: NodePosition, indent: isize, sequence: bool) -> isize {
        match place {
            NodePosition::Root => 0,
            // Version 2 does not indent sequences of mappings.
            NodePosition::Value if sequence && self.dialect == Dialect::V2 => indent.max(0),
            _ => indent + 2,
        }
    }

    /// The space after `-` or `:`.
    fn space(&mut self, place: NodePosition) {
        if place != NodePosition::Root {
            self.put(' ');
        }
    }

    fn entry(
        &mut self,
        key: &str,
        item: &Value,
        indent: isize,
        depth: usize,
    ) -> Result<(), Failure> {
        let analysis = scalar::analyze(key, self.dialect);
        if analysis.multiline || key.len() > 128 {
            // Keys that are not simple.
            self.put('?');
            self.space(NodePosition::Value);
            let style = self.style(key, &analysis, false);
            self.string(key, style, indent + 2, true);
            self.indent(indent);
            self.put(':');
            // A collection begins on the line of the colon, as after a dash.
            return self.node(item, NodePosition::Item, indent, depth + 1);
        }
        let style = self.style(key, &analysis, true);
        self.string(key, style, indent, false);
        self.put(':');
        self.node(item, NodePosition::Value, indent, depth + 1)
    }

    fn scalar(&mut self, value: &Value, place: NodePosition, indent: isize) -> Result<(), Failure> {
        let plain = match value {
            Value::Nil | Value::Invalid => "null".to_owned(),
            Value::Bool(value) => value.to_string(),
            Value::Int(number) | Value::Int64(number) => number.to_string(),
            Value::Byte(number) => number.to_string(),
            Value::Uint64(number) => number.to_string(),
            Value::Float(number) => match float::display(*number).as_str() {
                "+Inf" => ".inf".into(),
                "-Inf" => "-.inf".into(),
                "NaN" => ".nan".into(),
                text => text.into(),
            },
            Value::Time(time) => time.rfc3339(),
            Value::String(text) => return self.text(text, place, indent),
            Value::Binary(bytes) => {
                let text = String::from_utf8_lossy(bytes).into_owned();
                return self.text(&text, place, indent);
            }
            Value::Duration(nanos) => return self.text(&duration::text(*nanos), place, indent),
            Value::Object(object) => {
                return self.node(&object.data(), place, indent, MAX_NESTING / 2);
            }
            Value::Bytes(_) | Value::List(_) | Value::Map(_) => return Ok(()),
        };
        self.space(place);
        self.put_str(&plain);
        Ok(())
    }

    fn text(&mut self, text: &str, place: NodePosition, indent: isize) -> Result<(), Failure> {
        let analysis = scalar::analyze(text, self.dialect);
        let style = self.style(text, &analysis, false);
        // An empty plain scalar does not occur: it would be null.
        self.space(place);
        let indent = match place {
            NodePosition::Root => 2,
            _ => indent + 2,
        };
        self.string(text, style, indent, true);
        self.check(0)
    }

    fn style(&self, text: &str, analysis: &Analysis, is_key: bool) -> Style {
        // "<<" means a merge to the parser alone.
        let resolved = resolve::resolve(text, self.dialect);
        let is_string = matches!(resolved, Scalar::String | Scalar::Merge);
        let can_be_plain = is_string && !resolve::needs_quotes(text, self.dialect);
        let mut style = if text.contains('\n') {
            Style::Literal
        } else if can_be_plain {
            Style::Plain
        } else {
            Style::Double
        };
        if is_key && analysis.multiline {
            style = Style::Double;
        }
        if style == Style::Plain && (!analysis.plain || text.is_empty()) {
            style = Style::Single;
        }
        if style == Style::Single && !analysis.single_quoted {
            style = Style::Double;
        }
        if style == Style::Literal && (!analysis.block || is_key) {
            style = Style::Double;
        }
        style
    }

    /// Writes a string; `folds` when lines may be broken. `indent` is that of its lines.
    fn string(&mut self, text: &str, style: Style, indent: isize, folds: bool) {
        match style {
            Style::Plain => self.folded(text, indent, folds, false),
            Style::Single => {
                self.put('\'');
                self.folded(text, indent, folds, true);
                self.put('\'');
            }
            Style::Double => self.double_quoted(text, indent, folds),
            Style::Literal => self.literal(text, indent),
        }
    }

    fn folded(&mut self, text: &str, indent: isize, folds: bool, quoted: bool) {
        let (mut spaces, mut breaks) = (false, false);
        let mut chars = text.chars().peekable();
        let mut first = true;
        while let Some(c) = chars.next() {
            let next = chars.peek().copied();
            if c == ' ' {
                let inside = !quoted || (!first && next.is_some());
                let folds_here =
                    folds && !spaces && self.column > self.width && inside && next != Some(' ');
                if folds_here {
                    self.indent(indent);
                } else {
                    self.put(c);
                }
                spaces = true;
            } else if scalar::is_break(c) {
                if !breaks && c == '\n' {
                    self.put('\n');
                }
                self.line_break(c);
                breaks = true;
            } else {
                if breaks {
                    self.indent(indent);
                }
                if quoted && c == '\'' {
                    self.put('\'');
                }
                self.put(c);
                (spaces, breaks) = (false, false);
            }
            first = false;
        }
    }

    fn line_break(&mut self, c: char) {
        if c == '\n' {
            self.put('\n');
        } else {
            self.out.push(c);
            self.column = 0;
        }
    }

    fn double_quoted(&mut self, text: &str, indent: isize, folds: bool) {
        self.put('"');
        let mut spaces = false;
        let mut chars = text.chars().peekable();
        let mut first = true;
        while let Some(c) = chars.next() {
            let next = chars.peek().copied();
            if !scalar::is_printable(c) || scalar::is_break(c) || matches!(c, '"' | '\\') {
                self.escape(c);
                spaces = false;
            } else if c == ' ' {
                if folds && !spaces && self.column > self.width && !first && next.is_some() {
                    self.indent(indent);
                    if next == Some(' ') {
                        self.put('\\');
                    }
                } else {
                    self.put(c);
                }
                spaces = true;
            } else {
                self.put(c);
                spaces = false;
            }
            first = false;
        }
        self.put('"');
    }

    fn escape(&mut self, c: char) {
        let short = match c {
            '\0' => Some('0'),
            '\x07' => Some('a'),
            '\x08' => Some('b'),
            '\t' => Some('t'),
            '\n' => Some('n'),
            '\x0b' => Some('v'),
            '\x0c' => Some('f'),
            '\r' => Some('r'),
            '\x1b' => Some('e'),
            '"' => Some('"'),
            '\\' => Some('\\'),
            '\u{85}' => Some('N'),
            '\u{a0}' => Some('_'),
            '\u{2028}' => Some('L'),
            '\u{2029}' => Some('P'),
            _ => None,
        };
        self.put('\\');
        match (short, u32::from(c)) {
            (Some(letter), _) => self.put(letter),
            (None, code @ 0..=0xff) => self.put_str(&format!("x{code:02X}")),
            (None, code @ 0x100..=0xffff) => self.put_str(&format!("u{code:04X}")),
            (None, code) => self.put_str(&format!("U{code:08X}")),
        }
    }

    fn literal(&mut self, text: &str, indent: isize) {
        self.put('|');
        if text.starts_with(|c: char| c == ' ' || scalar::is_break(c)) {
            self.put('2');
        }
        let mut backwards = text.chars().rev();
        let last_breaks = backwards.next().is_some_and(scalar::is_break);
        match backwards.next() {
            _ if !last_breaks => self.put('-'),
            None => self.put('+'),
            Some(before) if scalar::is_break(before) => self.put('+'),
            Some(_) => {}
        }
        self.put('\n');
        let mut breaks = true;
        for c in text.chars() {
            if scalar::is_break(c) {
                self.line_break(c);
                breaks = true;
            } else {
                if breaks {
                    self.indent(indent);
                }
                self.put(c);
                breaks = false;
            }
        }
    }
}
