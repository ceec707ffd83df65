//! The nodes of a program, as the planner makes and the evaluator walks them.

use std::collections::BTreeSet;
use std::sync::Arc;

use regex::Regex;

use crate::value::{Key, Value};

/// A step of a program.
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

/// A value and the selections from it.
#[derive(Debug)]
pub(crate) struct Attr {
    pub(crate) root: Root,
    pub(crate) qualifiers: Vec<Qualifier>,
}

/// What a chain of selections starts from.
#[derive(Debug)]
pub(crate) enum Root {
    Variable {
        name: Arc<str>,
        /// A variable of the environment although a loop has one of this name.
        global: bool,
    },
    Relative(Node),
    Conditional {
        condition: Node,
        yes: Box<Attr>,
        no: Box<Attr>,
    },
}

/// One selection: a field or an index.
#[derive(Debug)]
pub(crate) struct Qualifier {
    pub(crate) key: QualifierKey,
    pub(crate) optional: bool,
    /// Only whether it is there: `has(...)`.
    pub(crate) test: bool,
}

/// The key of a selection.
#[derive(Debug)]
pub(crate) enum QualifierKey {
    Const(Value<'static>),
    Attr(Attr),
    Node(Node),
}

/// A call bound to its function.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) function: String,
    /// The one overload that types allow; none if only the values decide.
    pub(crate) overload: Option<&'static str>,
    pub(crate) args: Vec<Node>,
    /// The pattern, if it is a constant.
    pub(crate) regex: Option<Regex>,
    /// The step of a loop that adds to what was collected: that is moved and not copied.
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
