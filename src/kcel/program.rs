//! A compiled expression: what it is asked for.

use crate::ast;
use crate::ast::Kind;
use crate::checked::Checked;
use crate::cost::{Range, SizeEstimator};
use crate::eval::Frame;
use crate::node::Node;
use crate::plan;
use crate::source::CompileError;
use crate::types::Type;
use crate::value::{Error, Value};

/// Values of an expression's variables.
pub trait Activation<'a> {
    /// The value of a variable; none if there is none.
    ///
    /// # Errors
    /// Where the value cannot be had: what refers to the variable fails with it.
    fn get(&self, name: &str) -> Option<Result<Value<'a>, Error>>;

    /// A field of a variable, for variables whose fields are made only when they are asked for;
    /// none if the variable is an ordinary one.
    ///
    /// # Errors
    /// As of [`Activation::get`].
    fn field(&self, _variable: &str, _field: &str) -> Option<Result<Value<'a>, Error>> {
        None
    }
}

/// Variables by name.
#[derive(Clone, Debug, Default)]
pub struct Variables<'a>(pub Vec<(&'static str, Value<'a>)>);

impl<'a> Activation<'a> for Variables<'a> {
    fn get(&self, name: &str) -> Option<Result<Value<'a>, Error>> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, value)| Ok(value.clone()))
    }
}

/// An expression that is ready to be evaluated, as often and by as many threads as wished.
#[derive(Debug)]
pub struct Program {
    checked: Checked,
    node: Node,
    depth: usize,
}

impl Program {
    pub(crate) fn plan(checked: Checked) -> Result<Program, CompileError> {
        let node = plan::plan(&checked)?;
        let depth = ast::depth(&checked.root);
        Ok(Program { checked, node, depth })
    }

    /// The type that the expression has.
    pub fn output(&self) -> &Type {
        self.checked.type_of(self.checked.root.id)
    }

    /// Levels of the expression's tree: what evaluation needs of the stack.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// The value, with the cost of finding it taken from `budget`; a cost above it ends the
    /// evaluation with [`Error::limit`].
    ///
    /// # Errors
    /// cel-go's.
    pub fn eval<'a>(
        &self,
        activation: &dyn Activation<'a>,
        budget: &mut u64,
    ) -> Result<Value<'a>, Error> {
        let mut frame = Frame::new(activation, *budget);
        let result = frame.eval(&self.node);
        *budget = budget.saturating_sub(frame.cost);
        result
    }

    /// The cost that any evaluation can have, by what is known of the sizes of variables.
    pub fn estimate(&self, sizes: &dyn SizeEstimator) -> Range {
        crate::cost::estimate(&self.checked, sizes)
    }

    /// Whether the expression refers to a variable of the environment.
    pub fn uses(&self, variable: &str) -> bool {
        let mut found = false;
        ast::walk(&self.checked.root, &mut |expr| {
            if let Kind::Ident(name) = &expr.kind {
                let plain = name.strip_prefix('.').unwrap_or(name);
                found |= plain == variable && self.checked.globals.contains(&expr.id);
            }
        });
        found
    }
    /// Whether a field of a variable is asked for by its name: `variable.field`,
    /// `has(variable.field)`, `variable.?field`.
    pub fn selects(&self, variable: &str, field: &str) -> bool {
        let is_variable =
            |of: &ast::Expr| matches!(&of.kind, Kind::Ident(name) if name == variable);
        let mut found = false;
        ast::walk(&self.checked.root, &mut |expr| match &expr.kind {
            Kind::Select { operand, field: name, .. } => {
                found |= name == field && is_variable(operand);
            }
            Kind::Call { target: None, function, args } if function == "_?._" => {
                if let [operand, name] = args.as_slice() {
                    let is_field = matches!(&name.kind, Kind::Literal(ast::Literal::String(text)) if text == field);
                    found |= is_field && is_variable(operand);
                }
            }
            _ => {}
        });
        found
    }
}
