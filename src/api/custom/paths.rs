//! Paths to fields of a schema in the syntax of rules and selectable fields: `.spec.color`,
//! `.spec['x']` (`ValidFieldPath` of `pkg/apiserver/schema/cel/validation.go`).

use super::node::{Additional, Node};
use crate::field::Path;

/// An invalid path; the texts are upstream's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FieldPathError {
    #[error("unexpected end of JSON path")]
    End,
    #[error("array notation is not allowed")]
    NoBrackets,
    #[error("expected single quoted string but got {0}")]
    NotQuoted(String),
    #[error("expected ] but got {0}")]
    NotClosed(String),
    #[error("expected [ or . but got: {0}")]
    NoDelimiter(String),
    #[error("invalid string literal: invalid escape char \\{0}")]
    Escape(char),
}

/// An iterator over the names of a path in order; it ends after the first error.
pub(crate) struct Steps<'a> {
    rest: &'a str,
    /// Whether names in brackets are allowed.
    brackets: bool,
}

impl<'a> Steps<'a> {
    pub(crate) fn new(path: &'a str, brackets: bool) -> Self {
        Self { rest: path, brackets }
    }

    /// Reads a delimiter, a quoted text, or the text between delimiters.
    fn token(&mut self) -> Option<&'a str> {
        let text = self.rest;
        let end = match text.bytes().next()? {
            b'.' | b'[' | b']' => 1,
            b'\'' => {
                let bytes = text.as_bytes();
                let close = (1..bytes.len()).find(|i| {
                    bytes.get(*i) == Some(&b'\'') && bytes.get(i.wrapping_sub(1)) != Some(&b'\\')
                });
                close.map_or(text.len(), |i| i + 1)
            }
            _ => text.find(['.', '[', ']']).unwrap_or(text.len()),
        };
        self.rest = text.get(end..).unwrap_or_default();
        text.get(..end)
    }

    fn step(&mut self, token: &str) -> Result<String, FieldPathError> {
        match token {
            "." => Ok(self.token().ok_or(FieldPathError::End)?.to_owned()),
            "[" if !self.brackets => Err(FieldPathError::NoBrackets),
            "[" => {
                let quoted = self.token().ok_or(FieldPathError::End)?;
                let inner = quoted.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\''));
                let inner = inner.ok_or_else(|| FieldPathError::NotQuoted(quoted.to_owned()))?;
                let name = unescaped(inner)?;
                match self.token().ok_or(FieldPathError::End)? {
                    "]" => Ok(name),
                    other => Err(FieldPathError::NotClosed(other.to_owned())),
                }
            }
            other => Err(FieldPathError::NoDelimiter(other.to_owned())),
        }
    }
}

impl Iterator for Steps<'_> {
    type Item = Result<String, FieldPathError>;

    fn next(&mut self) -> Option<Self::Item> {
        let token = self.token()?;
        let step = self.step(token);
        if step.is_err() {
            self.rest = "";
        }
        Some(step)
    }
}

fn unescaped(text: &str) -> Result<String, FieldPathError> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text.chars();
    while let Some(character) = rest.next() {
        if character != '\\' {
            out.push(character);
            continue;
        }
        out.push(match rest.next() {
            Some('a') => '\u{7}',
            Some('b') => '\u{8}',
            Some('f') => '\u{c}',
            Some('n') => '\n',
            Some('r') => '\r',
            Some('t') => '\t',
            Some('v') => '\u{b}',
            Some(same @ ('\'' | '\\')) => same,
            Some(other) => {
                return Err(FieldPathError::Escape(other));
            }
            None => '\\',
        });
    }
    Ok(out)
}

/// The path in the form of errors, relative to the value of `node`; `None` when it names no field.
pub(super) fn shown(path: &str, node: &Node) -> Option<Path> {
    let mut shown = Path::default();
    let mut node = node;
    for step in Steps::new(path, true) {
        let name = step.ok()?;
        if node.properties.is_empty() {
            let Some(Additional::Schema(values)) = &node.additional else { return None };
            shown = shown.key(&name);
            node = values;
        } else {
            node = node.properties.get(name.as_str())?;
            shown = shown.child(&name);
        }
    }
    Some(shown)
}
