//! CEL as in Kubernetes 1.37: parser, type checker, evaluation and costs, with cel-go's messages.
//! It does no I/O and reads no clock.
//!
//! An [`Env`] compiles a text to a [`Program`], which is evaluated with an [`Activation`] and a
//! budget, or whose cost is estimated from sizes. Values borrow from JSON, whose type is
//! [`Declared`] or not.
#![forbid(unsafe_code)]

mod env;
mod program;
mod types;
mod value;

mod ast;
mod checked;
mod checker;
mod convert;
mod cost;
mod declarations;
mod escape;
mod eval;
mod export;
pub mod formats;
mod functions;
mod host;
mod json;
mod lexer;
pub mod limits;
pub mod names;
mod node;
mod ops;
mod parser;
mod plan;
mod runtime_cost;
mod source;
#[cfg(test)]
mod tests;
mod time;

pub use cost::{Range, SizeEstimator, Unknown};
pub use env::Env;
pub use escape::{escape, is_reserved, unescape};
pub use host::{Authorize, Check, Decision, Host};
pub use json::{Declared, Format, JsonMap, ListType, Properties};
pub use parser::CODE_POINTS_MAX;
pub use program::{Activation, Program, Variables};
pub use source::CompileError;
pub use types::{OPTIONAL, ObjectType, Type};
pub use value::{Error, Key, List, ListKind, Map, Object, Text, Timestamp, Value};
