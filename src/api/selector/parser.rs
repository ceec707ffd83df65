//! The parser of the string form of label selectors, with upstream's messages.

use std::collections::BTreeSet;

use super::SelectorError;
use super::label::{Operator, Requirement};
use super::lexer::{Scanned, Token, scan};
use super::names::label_key;
use crate::field::{Error as FieldError, Path};

/// Returns the requirements in their written order.
pub(super) fn parse(text: &str) -> Result<Vec<Requirement>, SelectorError> {
    Parser { items: scan(text), position: 0 }.parse()
}

struct Parser {
    items: Vec<Scanned>,
    position: usize,
}

const BINARY_OPERATORS: &str = "in, notin, =, ==, !=, gt, lt";

impl Parser {
    fn at(&self, position: usize) -> (Token, &str) {
        self.items
            .get(position)
            .or(self.items.last())
            .map_or((Token::End, ""), |s| (s.token, s.text.as_str()))
    }

    /// Returns the next token, with `in` and `notin` as identifiers.
    fn peek(&self) -> (Token, &str) {
        let (token, text) = self.at(self.position);
        let token =
            if matches!(token, Token::In | Token::NotIn) { Token::Identifier } else { token };
        (token, text)
    }

    fn take(&mut self) -> (Token, String) {
        let (token, text) = self.peek();
        let taken = (token, text.to_owned());
        self.position += 1;
        taken
    }

    fn parse(mut self) -> Result<Vec<Requirement>, SelectorError> {
        let mut out = Vec::new();
        loop {
            match self.peek() {
                (Token::Identifier | Token::Not, _) => {
                    let requirement = self
                        .requirement()
                        .map_err(|e| SelectorError(format!("unable to parse requirement: {e}")))?;
                    out.push(requirement);
                    match self.take() {
                        (Token::End, _) => return Ok(out),
                        (Token::Comma, _) => {
                            let (token, text) = self.peek();
                            if !matches!(token, Token::Identifier | Token::Not) {
                                return Err(SelectorError(format!(
                                    "found '{text}', expected: identifier after ','"
                                )));
                            }
                        }
                        (_, text) => {
                            return Err(SelectorError(format!(
                                "found '{text}', expected: ',' or 'end of string'"
                            )));
                        }
                    }
                }
                (Token::End, _) => return Ok(out),
                (_, text) => {
                    return Err(SelectorError(format!(
                        "found '{text}', expected: !, identifier, or 'end of string'"
                    )));
                }
            }
        }
    }

    fn requirement(&mut self) -> Result<Requirement, SelectorError> {
        let (mut token, mut key) = self.take();
        let negated = token == Token::Not;
        if negated {
            (token, key) = self.take();
        }
        if token != Token::Identifier {
            return Err(SelectorError(format!("found '{key}', expected: identifier")));
        }
        let problems = label_key(&key);
        if !problems.is_empty() {
            return Err(SelectorError(
                FieldError::invalid(&Path::default(), key.as_str(), problems.join("; "))
                    .to_string(),
            ));
        }
        if negated {
            return Requirement::new(&key, Operator::DoesNotExist, Vec::new());
        }
        if matches!(self.peek().0, Token::End | Token::Comma) {
            return Requirement::new(&key, Operator::Exists, Vec::new());
        }
        let (token, text) = self.at(self.position);
        let operator = match token {
            Token::In => Operator::In,
            Token::Equals => Operator::Equals,
            Token::DoubleEquals => Operator::DoubleEquals,
            Token::Greater => Operator::GreaterThan,
            Token::Less => Operator::LessThan,
            Token::NotIn => Operator::NotIn,
            Token::NotEquals => Operator::NotEquals,
            _ => {
                return Err(SelectorError(format!("found '{text}', expected: {BINARY_OPERATORS}")));
            }
        };
        self.position += 1;
        let values = match operator {
            Operator::In | Operator::NotIn => self.values()?,
            _ => self.exact_value()?,
        };
        Requirement::new(&key, operator, values.into_iter().map(String::into_boxed_str).collect())
    }

    fn exact_value(&mut self) -> Result<BTreeSet<String>, SelectorError> {
        if matches!(self.peek().0, Token::End | Token::Comma) {
            return Ok(BTreeSet::from([String::new()]));
        }
        match self.take() {
            (Token::Identifier, text) => Ok(BTreeSet::from([text])),
            (_, text) => Err(SelectorError(format!("found '{text}', expected: identifier"))),
        }
    }

    fn values(&mut self) -> Result<BTreeSet<String>, SelectorError> {
        let (token, text) = self.take();
        if token != Token::Open {
            return Err(SelectorError(format!("found '{text}' expected: '('")));
        }
        let (token, text) = self.peek();
        match token {
            Token::Identifier | Token::Comma => {
                let text = text.to_owned();
                let values = self.identifiers()?;
                if self.take().0 != Token::Close {
                    return Err(SelectorError(format!("found '{text}', expected: ')'")));
                }
                Ok(values)
            }
            Token::Close => {
                self.take();
                Ok(BTreeSet::from([String::new()]))
            }
            _ => Err(SelectorError(format!("found '{text}', expected: ',', ')' or identifier"))),
        }
    }

    fn identifiers(&mut self) -> Result<BTreeSet<String>, SelectorError> {
        let mut out = BTreeSet::new();
        loop {
            match self.take() {
                (Token::Identifier, text) => {
                    out.insert(text);
                    match self.peek() {
                        (Token::Comma, _) => {}
                        (Token::Close, _) => return Ok(out),
                        (_, text) => {
                            return Err(SelectorError(format!(
                                "found '{text}', expected: ',' or ')'"
                            )));
                        }
                    }
                }
                (Token::Comma, _) => {
                    if out.is_empty() {
                        out.insert(String::new());
                    }
                    match self.peek().0 {
                        Token::Close => {
                            out.insert(String::new());
                            return Ok(out);
                        }
                        Token::Comma => {
                            out.insert(String::new());
                        }
                        _ => {}
                    }
                }
                (_, text) => {
                    return Err(SelectorError(format!(
                        "found '{text}', expected: ',', or identifier"
                    )));
                }
            }
        }
    }
}
