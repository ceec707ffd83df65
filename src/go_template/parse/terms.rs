//! The parser: commands and operands.

use std::sync::Arc;

use crate::error::Failure;
use crate::go::quote::{quote, unquote};

use crate::parse::node::{Kind, Node};
use crate::parse::number::Number;
use crate::parse::parser::{MAX_DEPTH, Parser};
use crate::parse::token::{Item, Token};

fn idents(text: &str) -> Vec<Arc<str>> {
    text.split('.').map(Arc::from).collect()
}

impl Parser<'_> {
    pub(super) fn command(&mut self) -> Result<Node, Failure> {
        let pos = self.peek_non_space().pos;
        let mut args = Vec::new();
        loop {
            self.peek_non_space();
            if let Some(operand) = self.operand()? {
                args.push(operand);
            }
            let item = self.next();
            match item.token {
                Token::Space => continue,
                Token::RightDelim | Token::RightParen => self.back(item),
                Token::Pipe => {}
                _ => return Err(self.unexpected(&item, "operand")),
            }
            break;
        }
        if args.is_empty() {
            return Err(self.error("empty command"));
        }
        Ok(Node::new(pos, Kind::Command(args)))
    }

    fn operand(&mut self) -> Result<Option<Node>, Failure> {
        let Some(node) = self.term()? else {
            return Ok(None);
        };
        let first = self.peek();
        if first.token != Token::Field {
            return Ok(Some(node));
        }
        let mut fields: Vec<Arc<str>> = Vec::new();
        while self.peek().token == Token::Field {
            let text = self.next().text;
            fields.push(text.trim_start_matches('.').into());
        }
        let node = match node.kind {
            Kind::Field(mut idents) => {
                idents.extend(fields);
                Node::new(first.pos, Kind::Field(idents))
            }
            Kind::Variable(mut idents) => {
                idents.extend(fields);
                Node::new(first.pos, Kind::Variable(idents))
            }
            Kind::Bool(_) | Kind::String(..) | Kind::Number(_) | Kind::Nil | Kind::Dot => {
                let text = quote(&node.to_string());
                return Err(self.error(&format!("unexpected . after term {text}")));
            }
            _ => Node::new(first.pos, Kind::Chain(Box::new(node), fields)),
        };
        Ok(Some(node))
    }

    fn term(&mut self) -> Result<Option<Node>, Failure> {
        let item = self.next_non_space();
        let kind = match item.token {
            Token::Identifier => {
                let Some(function) = (self.find)(&item.text) else {
                    let name = quote(&item.text);
                    return Err(self.error(&format!("function {name} not defined")));
                };
                Kind::Identifier(item.text.as_str().into(), function)
            }
            Token::Dot => Kind::Dot,
            Token::Nil => Kind::Nil,
            Token::Variable => self.variable(&item)?,
            Token::Field => Kind::Field(idents(item.text.trim_start_matches('.'))),
            Token::Bool => Kind::Bool(item.text == "true"),
            Token::CharConstant | Token::Complex | Token::Number => {
                let number = Number::parse(&item.text, item.token);
                Kind::Number(number.map_err(|error| self.error(&error.to_string()))?)
            }
            Token::LeftParen => {
                if self.depth >= MAX_DEPTH {
                    return Err(self.error("max expression depth exceeded"));
                }
                self.depth += 1;
                let pipe = self.pipeline("parenthesized pipeline", Token::RightParen)?;
                self.depth -= 1;
                return Ok(Some(pipe));
            }
            Token::String | Token::RawString => {
                let bytes = unquote(&item.text).map_err(|error| self.error(&error.to_string()))?;
                Kind::String(item.text.as_str().into(), bytes.into())
            }
            _ => {
                self.back(item);
                return Ok(None);
            }
        };
        Ok(Some(Node::new(item.pos, kind)))
    }

    fn variable(&self, item: &Item) -> Result<Kind, Failure> {
        if !self.vars.contains(&item.text) {
            return Err(self.error(&format!("undefined variable {}", quote(&item.text))));
        }
        Ok(Kind::Variable(vec![item.text.as_str().into()]))
    }
}
