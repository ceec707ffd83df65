//! The syntax tree of an expression. Every node has an id, by which its position, type and
//! overloads are looked up.

/// Id of a node. Ids are assigned in the order of cel-go, as messages contain them.
pub(crate) type Id = usize;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Expr {
    pub(crate) id: Id,
    pub(crate) kind: Kind,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Literal {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    String(String),
    Bytes(Vec<u8>),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Kind {
    /// A placeholder for an expression with a reported error.
    Unspecified,
    Literal(Literal),
    Ident(String),
    Select {
        operand: Box<Expr>,
        field: String,
        /// `has(operand.field)`.
        test: bool,
    },
    Call {
        target: Option<Box<Expr>>,
        function: String,
        args: Vec<Expr>,
    },
    List {
        elements: Vec<Element>,
    },
    Map {
        entries: Vec<MapEntry>,
    },
    Struct {
        name: String,
        fields: Vec<Field>,
    },
    Comprehension(Box<Comprehension>),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Element {
    pub(crate) value: Expr,
    pub(crate) optional: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MapEntry {
    pub(crate) id: Id,
    pub(crate) key: Expr,
    pub(crate) value: Expr,
    pub(crate) optional: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Field {
    pub(crate) id: Id,
    pub(crate) name: String,
    pub(crate) value: Expr,
    pub(crate) optional: bool,
}

/// A loop over a list or a map, to which macros expand.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Comprehension {
    pub(crate) range: Expr,
    pub(crate) variable: String,
    /// The value variable of the forms with two variables; the first variable is the index or key.
    pub(crate) second: Option<String>,
    pub(crate) accumulator: String,
    pub(crate) init: Expr,
    pub(crate) condition: Expr,
    pub(crate) step: Expr,
    pub(crate) result: Expr,
}

/// Calls `visit` for the expression and all its subexpressions, parents first.
pub(crate) fn walk<'e>(expr: &'e Expr, visit: &mut dyn FnMut(&'e Expr)) {
    visit(expr);
    match &expr.kind {
        Kind::Unspecified | Kind::Literal(_) | Kind::Ident(_) => {}
        Kind::Select { operand, .. } => walk(operand, visit),
        Kind::Call { target, args, .. } => {
            if let Some(target) = target {
                walk(target, visit);
            }
            args.iter().for_each(|arg| walk(arg, visit));
        }
        Kind::List { elements } => elements.iter().for_each(|e| walk(&e.value, visit)),
        Kind::Map { entries } => {
            for entry in entries {
                walk(&entry.key, visit);
                walk(&entry.value, visit);
            }
        }
        Kind::Struct { fields, .. } => fields.iter().for_each(|f| walk(&f.value, visit)),
        Kind::Comprehension(fold) => {
            for part in [&fold.range, &fold.init, &fold.condition, &fold.step, &fold.result] {
                walk(part, visit);
            }
        }
    }
}

/// Depth of the tree, 1 for a leaf. It determines how much stack a recursion needs.
pub(crate) fn depth(expr: &Expr) -> usize {
    let deepest = |parts: &mut dyn Iterator<Item = &Expr>| parts.map(depth).max().unwrap_or(0);
    1 + match &expr.kind {
        Kind::Unspecified | Kind::Literal(_) | Kind::Ident(_) => 0,
        Kind::Select { operand, .. } => depth(operand),
        Kind::Call { target, args, .. } => deepest(&mut target.as_deref().into_iter().chain(args)),
        Kind::List { elements } => deepest(&mut elements.iter().map(|e| &e.value)),
        Kind::Map { entries } => {
            deepest(&mut entries.iter().flat_map(|entry| [&entry.key, &entry.value]))
        }
        Kind::Struct { fields, .. } => deepest(&mut fields.iter().map(|f| &f.value)),
        Kind::Comprehension(fold) => deepest(
            &mut [&fold.range, &fold.init, &fold.condition, &fold.step, &fold.result].into_iter(),
        ),
    }
}
