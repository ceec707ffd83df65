//! The nodes of a program, which the planner creates and the evaluator executes.

use std::collections::BTreeSet;
use std::sync::Arc;

use regex::Regex;

use crate::value::{Key, Value};

/// A node of a program.
#[derive(Debug)]
pub(crate) enum Node {
    Const(Value<'static>),
    Attr(Box<Attr>),
    And(Box<[Node; 2]>),
    Or(Box<[Node; 2]>),
    Equal {
        negated: bool,
        args: Box<[Node; 2]>,
    },
    Call(Box<Call>),
    /// `x in [constants]`.
    Member {
        arg: Box<Node>,
        set: BTreeSet<Key<'static>>,
    },
    /// `a.or(b)` and `a.orValue(b)`.
    OptionalOr {
        args: Box<[Node; 2]>,
        value: bool,
    },
    List {
        elements: Vec<(Node, bool)>,
    },
    Map {
        entries: Vec<(Node, Node, bool)>,
    },
    Struct {
        name: String,
        fields: Vec<(String, Node, bool)>,
    },
    Fold(Box<Fold>),
}

/// A value and the selections of its fields or elements.
#[derive(Debug)]
pub(crate) struct Attr {
    pub(crate) root: Root,
    pub(crate) qualifiers: Vec<Qualifier>,
}

/// The start of a chain of selections.
#[derive(Debug)]
pub(crate) enum Root {
    Variable {
        name: Arc<str>,
        /// Whether it is a variable of the environment that a loop variable of the same name hides.
        global: bool,
    },
    Relative(Node),
    Conditional {
        condition: Node,
        yes: Box<Attr>,
        no: Box<Attr>,
    },
}

/// A selection of a field or an element.
#[derive(Debug)]
pub(crate) struct Qualifier {
    pub(crate) key: QualifierKey,
    pub(crate) optional: bool,
    /// Whether only the presence is tested: `has(...)`.
    pub(crate) test: bool,
}

/// The key of a selection.
#[derive(Debug)]
pub(crate) enum QualifierKey {
    Const(Value<'static>),
    Attr(Attr),
    Node(Node),
}

/// A call with its function.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) function: String,
    /// The only overload that the types allow; `None` if the values decide.
    pub(crate) overload: Option<&'static str>,
    pub(crate) args: Vec<Node>,
    /// The pattern, if it is a constant.
    pub(crate) regex: Option<Regex>,
    /// Whether this is the step of a loop that appends to the accumulator, which is then moved
    /// instead of copied.
    pub(crate) collects: bool,
}

/// A comprehension.
#[derive(Debug)]
pub(crate) struct Fold {
    pub(crate) range: Node,
    pub(crate) variable: Arc<str>,
    pub(crate) second: Option<Arc<str>>,
    pub(crate) accumulator: Arc<str>,
    pub(crate) init: Node,
    pub(crate) condition: Node,
    pub(crate) step: Node,
    pub(crate) result: Node,
}
