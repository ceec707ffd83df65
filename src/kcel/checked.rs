//! A checked expression: its tree and what the checker found out about each node.

use std::collections::{HashMap, HashSet};

use crate::ast::{Expr, Id};
use crate::types::Type;

/// An expression whose parts have types.
#[derive(Debug)]
pub(crate) struct Checked {
    pub(crate) root: Expr,
    pub(crate) types: HashMap<Id, Type>,
    /// Overloads that a call may be, by the call's number.
    pub(crate) overloads: HashMap<Id, Vec<&'static str>>,
    /// Nodes that are variables of the environment, and not of a loop.
    pub(crate) globals: HashSet<Id>,
    /// Nodes that are names of types.
    pub(crate) types_named: HashSet<Id>,
}

impl Checked {
    pub(crate) fn type_of(&self, id: Id) -> &Type {
        self.types.get(&id).unwrap_or(&Type::Dyn)
    }
}
