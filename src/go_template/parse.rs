//! The parser of `text/template/parse`.

pub(crate) mod lexer;
pub(crate) mod node;
pub(crate) mod number;
pub(crate) mod parser;
mod terms;
pub(crate) mod token;

pub(crate) use node::{Kind, Node, Template};
pub(crate) use parser::{Templates, add, parse};
