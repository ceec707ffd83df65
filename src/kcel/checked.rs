//! A checked expression: its tree and the results of the checker for each node.

use std::collections::{HashMap, HashSet};

use crate::ast::{Expr, Id};
use crate::types::Type;

/// A type-checked expression.
#[derive(Debug)]
pub(crate) struct Checked {
    pub(crate) root: Expr,
    pub(crate) types: HashMap<Id, Type>,
    /// The possible overloads of a call, by the id of the call.
    pub(crate) overloads: HashMap<Id, Vec<&'static str>>,
    /// Nodes that refer to variables of the environment instead of loop variables.
    pub(crate) globals: HashSet<Id>,
    /// Nodes that are names of types.
    pub(crate) types_named: HashSet<Id>,
}

impl Checked {
    pub(crate) fn type_of(&self, id: Id) -> &Type {
        self.types.get(&id).unwrap_or(&Type::Dyn)
    }
}
