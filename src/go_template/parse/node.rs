//! The nodes of a parsed template, and how Go prints them in errors.

use std::fmt;
use std::sync::Arc;

use crate::function::Function;
use crate::go::quote::quote;
use crate::parse::number::Number;

/// A template by its name.
pub(crate) struct Template {
    pub name: Arc<str>,
    /// The file that the template was read from.
    pub parse_name: Arc<str>,
    /// The text of that file, for lines and columns.
    pub text: Arc<str>,
    pub root: Node,
}

/// A node at a position: bytes from the start of the text.
pub(crate) struct Node {
    pub pos: usize,
    pub kind: Kind,
}

pub(crate) struct Pipe {
    pub is_assign: bool,
    pub decl: Vec<Node>,
    pub cmds: Vec<Node>,
}

/// `if`, `with` or `range`.
pub(crate) struct Branch {
    pub pipe: Box<Node>,
    pub list: Box<Node>,
    pub else_list: Option<Box<Node>>,
}

pub(crate) enum Kind {
    Text(Box<str>),
    Action(Box<Node>),
    Bool(bool),
    Break,
    Continue,
    Chain(Box<Node>, Vec<Arc<str>>),
    Command(Vec<Node>),
    Dot,
    Field(Vec<Arc<str>>),
    Identifier(Arc<str>, &'static Function),
    If(Branch),
    List(Vec<Node>),
    Nil,
    Number(Number),
    Pipe(Pipe),
    Range(Branch),
    /// The literal, and the value.
    String(Box<str>, Arc<[u8]>),
    Template(Arc<str>, Option<Box<Node>>),
    Variable(Vec<Arc<str>>),
    With(Branch),
    /// `else` and `end`, which the parser takes away.
    Else,
    End,
}

impl Node {
    pub(crate) fn new(pos: usize, kind: Kind) -> Self {
        Self { pos, kind }
    }

    /// Whether a template of this content counts as not defined: spaces and comments only.
    pub(crate) fn is_empty(&self) -> bool {
        match &self.kind {
            Kind::List(nodes) => nodes.iter().all(Self::is_empty),
            Kind::Text(text) => text.trim().is_empty(),
            _ => false,
        }
    }
}

fn branch(f: &mut fmt::Formatter<'_>, name: &str, branch: &Branch) -> fmt::Result {
    write!(f, "{{{{{name} {}}}}}{}", branch.pipe, branch.list)?;
    if let Some(list) = &branch.else_list {
        write!(f, "{{{{else}}}}{list}")?;
    }
    write!(f, "{{{{end}}}}")
}

fn joined(f: &mut fmt::Formatter<'_>, nodes: &[Node], separator: &str) -> fmt::Result {
    for (at, node) in nodes.iter().enumerate() {
        if at > 0 {
            f.write_str(separator)?;
        }
        write!(f, "{node}")?;
    }
    Ok(())
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::Text(text) => f.write_str(text),
            Kind::Action(pipe) => write!(f, "{{{{{pipe}}}}}"),
            Kind::Bool(value) => write!(f, "{value}"),
            Kind::Break => f.write_str("{{break}}"),
            Kind::Continue => f.write_str("{{continue}}"),
            Kind::Chain(node, fields) => {
                match node.kind {
                    Kind::Pipe(_) => write!(f, "({node})")?,
                    _ => write!(f, "{node}")?,
                }
                fields.iter().try_for_each(|field| write!(f, ".{field}"))
            }
            Kind::Command(args) => {
                for (at, arg) in args.iter().enumerate() {
                    if at > 0 {
                        f.write_str(" ")?;
                    }
                    match arg.kind {
                        Kind::Pipe(_) => write!(f, "({arg})")?,
                        _ => write!(f, "{arg}")?,
                    }
                }
                Ok(())
            }
            Kind::Dot => f.write_str("."),
            Kind::Field(fields) => fields.iter().try_for_each(|field| write!(f, ".{field}")),
            Kind::Identifier(name, _) => f.write_str(name),
            Kind::If(node) => branch(f, "if", node),
            Kind::List(nodes) => joined(f, nodes, ""),
            Kind::Nil => f.write_str("nil"),
            Kind::Number(number) => f.write_str(&number.text),
            Kind::Pipe(pipe) => {
                if !pipe.decl.is_empty() {
                    joined(f, &pipe.decl, ", ")?;
                    f.write_str(if pipe.is_assign { " = " } else { " := " })?;
                }
                joined(f, &pipe.cmds, " | ")
            }
            Kind::Range(node) => branch(f, "range", node),
            Kind::String(literal, _) => f.write_str(literal),
            Kind::Template(name, None) => write!(f, "{{{{template {}}}}}", quote(name)),
            Kind::Template(name, Some(pipe)) => {
                write!(f, "{{{{template {} {pipe}}}}}", quote(name))
            }
            Kind::Variable(names) => {
                for (at, name) in names.iter().enumerate() {
                    if at > 0 {
                        f.write_str(".")?;
                    }
                    f.write_str(name)?;
                }
                Ok(())
            }
            Kind::With(node) => branch(f, "with", node),
            Kind::Else => f.write_str("{{else}}"),
            Kind::End => f.write_str("{{end}}"),
        }
    }
}
