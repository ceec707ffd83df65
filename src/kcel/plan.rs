//! Plans programs: evaluates constants, joins chains of selections, and binds every call to its
//! function.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::ast::{Expr, Id, Kind, Literal, MapEntry};
use crate::checked::Checked;
use crate::eval::Frame;
use crate::node::{Attr, Call, Fold, Node, Qualifier, QualifierKey, Root};
use crate::source::CompileError;
use crate::types::Type;
use crate::value::{Items, Key, Value};

/// Functions that are evaluated at compile time if their argument is a constant.
const CONVERSIONS: &[&str] =
    &["bool", "bytes", "double", "duration", "dyn", "int", "string", "timestamp", "type", "uint"];

type Planned = Result<Node, CompileError>;

/// Plans the program of a checked expression.
pub(crate) fn plan(checked: &Checked) -> Planned {
    Planner { checked }.node(&checked.root)
}

struct Planner<'c> {
    checked: &'c Checked,
}

impl Planner<'_> {
    fn node(&self, expr: &Expr) -> Planned {
        match &expr.kind {
            Kind::Unspecified => Err(CompileError::instantiation("unsupported expr")),
            Kind::Literal(literal) => Ok(Node::Const(constant(literal))),
            Kind::Ident(name) => Ok(self.ident(expr.id, name)),
            Kind::Select { operand, field, test } => {
                let key = QualifierKey::Const(Value::text(field.as_str()));
                let qualifier = Qualifier { key, optional: false, test: *test };
                Ok(qualified(self.node(operand)?, qualifier))
            }
            Kind::Call { target, function, args } => {
                self.call(expr.id, target.as_deref(), function, args)
            }
            Kind::List { elements } => {
                let elements = elements
                    .iter()
                    .map(|element| Ok((self.node(&element.value)?, element.optional)))
                    .collect::<Result<Vec<_>, CompileError>>()?;
                let known = elements.iter().all(|(node, _)| matches!(node, Node::Const(_)));
                computed(Node::List { elements }, known)
            }
            Kind::Map { entries } => self.map(entries),
            Kind::Struct { name, fields } => {
                let fields = fields
                    .iter()
                    .map(|field| Ok((field.name.clone(), self.node(&field.value)?, field.optional)))
                    .collect::<Result<Vec<_>, CompileError>>()?;
                Ok(Node::Struct { name: name.clone(), fields })
            }
            Kind::Comprehension(fold) => {
                let mut step = self.node(&fold.step)?;
                mark_collecting(&mut step, &fold.accumulator);
                Ok(Node::Fold(Box::new(Fold {
                    init: self.node(&fold.init)?,
                    range: self.node(&fold.range)?,
                    condition: self.node(&fold.condition)?,
                    step,
                    result: self.node(&fold.result)?,
                    variable: fold.variable.as_str().into(),
                    second: fold.second.as_deref().map(Arc::from),
                    accumulator: fold.accumulator.as_str().into(),
                })))
            }
        }
    }

    fn ident(&self, id: Id, name: &str) -> Node {
        // The name of a type evaluates to the type.
        if let Type::Type(Some(of)) = self.checked.type_of(id)
            && self.checked.types_named.contains(&id)
        {
            return Node::Const(Value::Type(of.name().into()));
        }
        if matches!(self.checked.type_of(id), Type::Type(None))
            && self.checked.types_named.contains(&id)
        {
            return Node::Const(Value::Type("type".into()));
        }
        let (name, global) = match name.strip_prefix('.') {
            Some(plain) => (plain, true),
            None => (name, false),
        };
        let root = Root::Variable { name: name.into(), global };
        Node::Attr(Box::new(Attr { root, qualifiers: Vec::new() }))
    }

    fn map(&self, entries: &[MapEntry]) -> Planned {
        let mut planned = Vec::with_capacity(entries.len());
        for entry in entries {
            planned.push((self.node(&entry.key)?, self.node(&entry.value)?, entry.optional));
        }
        let constant = |node: &Node| matches!(node, Node::Const(_));
        let known = planned.iter().all(|(key, value, _)| constant(key) && constant(value));
        computed(Node::Map { entries: planned }, known)
    }

    fn call(&self, id: Id, target: Option<&Expr>, function: &str, args: &[Expr]) -> Planned {
        let args = target.into_iter().chain(args).map(|arg| self.node(arg));
        let args = args.collect::<Result<Vec<_>, _>>()?;
        let overloads = self.checked.overloads.get(&id).map_or(&[][..], Vec::as_slice);
        let overload = match overloads {
            [only] => Some(*only),
            _ => None,
        };
        let args = match (function, <[Node; 2]>::try_from(args)) {
            ("_&&_", Ok(args)) => return Ok(Node::And(Box::new(args))),
            ("_||_", Ok(args)) => return Ok(Node::Or(Box::new(args))),
            ("_==_", Ok(args)) => return Ok(Node::Equal { negated: false, args: Box::new(args) }),
            ("_!=_", Ok(args)) => return Ok(Node::Equal { negated: true, args: Box::new(args) }),
            ("_[_]" | "_[?_]" | "_?._", Ok([operand, index])) => {
                let key = match index {
                    Node::Const(value) => QualifierKey::Const(value),
                    Node::Attr(attr) => QualifierKey::Attr(*attr),
                    node => QualifierKey::Node(node),
                };
                let optional = function != "_[_]";
                return Ok(qualified(operand, Qualifier { key, optional, test: false }));
            }
            ("or" | "orValue", Ok(args)) => {
                return Ok(Node::OptionalOr { args: Box::new(args), value: function == "orValue" });
            }
            ("@in", Ok(args)) => return Ok(membership(overload, args)),
            (_, Ok(args)) => Vec::from(args),
            (_, Err(args)) => args,
        };
        let args = match (function, <[Node; 3]>::try_from(args)) {
            ("_?_:_", Ok([condition, yes, no])) => {
                let root = Root::Conditional {
                    condition,
                    yes: Box::new(into_attr(yes)),
                    no: Box::new(into_attr(no)),
                };
                return Ok(Node::Attr(Box::new(Attr { root, qualifiers: Vec::new() })));
            }
            (_, Ok(args)) => Vec::from(args),
            (_, Err(args)) => args,
        };
        let known = CONVERSIONS.contains(&function) && matches!(args.as_slice(), [Node::Const(_)]);
        let regex = match (function, args.get(1)) {
            ("matches" | "find" | "findAll", Some(Node::Const(Value::String(pattern)))) => {
                let regex = crate::functions::pattern(pattern);
                Some(regex.map_err(|error| CompileError::instantiation(error.to_string()))?)
            }
            _ => None,
        };
        let call = Call { function: function.into(), overload, args, regex, collects: false };
        computed(Node::Call(Box::new(call)), known)
    }
}

/// Marks the step `accumulator + x`, also as a branch of a condition.
fn mark_collecting(step: &mut Node, accumulator: &str) {
    match step {
        Node::Call(call) if matches!(call.function.as_str(), "_+_" | "cel.@mapInsert") => {
            let Some(Node::Attr(first)) = call.args.first() else { return };
            let is_accumulator = matches!(
                &first.root,
                Root::Variable { name, global: false } if &**name == accumulator
            );
            call.collects = is_accumulator && first.qualifiers.is_empty();
        }
        Node::Attr(attr) if attr.qualifiers.is_empty() => {
            if let Root::Conditional { yes, no, .. } = &mut attr.root {
                for branch in [yes, no] {
                    if let (Root::Relative(node), true) =
                        (&mut branch.root, branch.qualifiers.is_empty())
                    {
                        mark_collecting(node, accumulator);
                    }
                }
            }
        }
        _ => {}
    }
}

fn constant(literal: &Literal) -> Value<'static> {
    match literal {
        Literal::Null => Value::Null,
        Literal::Bool(value) => Value::Bool(*value),
        Literal::Int(value) => Value::Int(*value),
        Literal::Uint(value) => Value::Uint(*value),
        Literal::Double(value) => Value::Double(*value),
        Literal::String(value) => Value::text(value.as_str()),
        Literal::Bytes(value) => Value::Bytes(value.as_slice().into()),
    }
}

/// Evaluates a node whose operands are constants.
fn computed(node: Node, known: bool) -> Planned {
    if !known {
        return Ok(node);
    }
    let value = Frame::of_constants().eval(&node);
    value.map(Node::Const).map_err(|error| CompileError::instantiation(error.to_string()))
}

fn qualified(operand: Node, qualifier: Qualifier) -> Node {
    let mut attr = match operand {
        Node::Attr(attr) => attr,
        node => Box::new(Attr { root: Root::Relative(node), qualifiers: Vec::new() }),
    };
    attr.qualifiers.push(qualifier);
    Node::Attr(attr)
}

fn into_attr(node: Node) -> Attr {
    match node {
        Node::Attr(attr) => *attr,
        node => Attr { root: Root::Relative(node), qualifiers: Vec::new() },
    }
}

/// Plans `x in [constants]` as a lookup in a set, which has no cost.
fn membership(overload: Option<&'static str>, args: [Node; 2]) -> Node {
    let [arg, of] = args;
    let set = match (&of, overload) {
        (Node::Const(Value::List(list)), Some("in_list")) => match &list.items {
            Items::Owned(items) => keys(items),
            Items::Json(..) => None,
        },
        _ => None,
    };
    match set {
        Some(set) if set.is_empty() => Node::Const(Value::Bool(false)),
        Some(set) => Node::Member { arg: Box::new(arg), set },
        None => Node::Call(Box::new(Call {
            function: "@in".into(),
            overload,
            args: vec![arg, of],
            regex: None,
            collects: false,
        })),
    }
}

/// Returns all values and the equal values of other number types, if all values are simple.
fn keys(items: &[Value<'static>]) -> Option<BTreeSet<Key<'static>>> {
    let mut set = BTreeSet::new();
    for item in items {
        set.insert(Key::of(item)?);
        let others = [
            crate::convert::to_int(item),
            crate::convert::to_uint(item),
            crate::convert::to_double(item),
        ];
        if matches!(item, Value::Int(_) | Value::Uint(_) | Value::Double(_)) {
            for other in others.into_iter().flatten() {
                if crate::ops::equal(&other, item) == Ok(true) {
                    set.extend(Key::of(&other));
                }
            }
        }
    }
    Some(set)
}

#[cfg(test)]
mod tests {
    use crate::Env;
    use crate::node::Node;
    use crate::types::Type;

    fn kind(expr: &str) -> Result<&'static str, String> {
        let env = Env::new()
            .variable("a", Type::Int)
            .variable("list", Type::list(Type::Int))
            .variable("map", Type::map(Type::String, Type::Int));
        let parsed = crate::parser::parse(expr, false).unwrap();
        let checked = crate::checker::check(&env, parsed).unwrap();
        let node = super::plan(&checked).map_err(|error| {
            assert!(error.instantiation, "{expr}");
            error.to_string()
        })?;
        Ok(match node {
            Node::Const(_) => "constant",
            Node::Attr(_) => "attribute",
            Node::Call(_) => "call",
            Node::Member { .. } => "set membership",
            Node::List { .. } => "list",
            Node::Map { .. } => "map",
            Node::Fold(_) => "fold",
            _ => "other",
        })
    }

    /// `decOptimize` and `decRegexOptimizer` of cel-go's `interpreter/decorators.go`, and the
    /// planner's attributes in `interpreter/planner.go`.
    #[test]
    fn literals_conversions_and_sets_of_constants_are_evaluated_in_advance() {
        for (expr, expected) in [
            ("1", "constant"),
            ("[1, 2, 3]", "constant"),
            ("{'a': 1}", "constant"),
            ("[1, a]", "list"),
            ("{'a': a}", "map"),
            ("int('5')", "constant"),
            ("duration('1h')", "constant"),
            ("int", "constant"),
            ("1 + 1", "call"),
            ("a in [1, 2, 3]", "set membership"),
            ("a in list", "call"),
            ("map.b", "attribute"),
            ("list[0]", "attribute"),
            ("a > 0 ? 1 : 2", "attribute"),
            ("list.all(x, x > 0)", "fold"),
        ] {
            assert_eq!(kind(expr), Ok(expected), "{expr}");
        }
    }

    /// `decOptimize` of cel-go's `interpreter/decorators.go` returns the errors of constants, and
    /// `FindRegexOptimization` of `pkg/cel/library/regex.go` in k8s.io/apiserver those of patterns.
    #[test]
    fn constants_that_cannot_be_evaluated_are_errors_of_the_program() {
        for (expr, expected) in [
            ("int('x')", "type conversion error from 'string' to 'int'"),
            ("uint(-1)", "unsigned integer overflow"),
            ("'a'.find('(')", "error parsing regexp: missing closing ): `(`"),
        ] {
            assert_eq!(kind(expr), Err(expected.to_owned()), "{expr}");
        }
    }
}
