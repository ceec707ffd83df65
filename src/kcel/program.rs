//! Compiled expressions: evaluation, cost estimates and queries.

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

/// The values of variables.
pub trait Activation<'a> {
    /// Returns the value of a variable; `None` if it does not exist.
    ///
    /// # Errors
    /// The value cannot be provided; expressions that refer to the variable fail with this error.
    fn get(&self, name: &str) -> Option<Result<Value<'a>, Error>>;

    /// Returns a field of a variable whose fields are created on demand; `None` for other
    /// variables.
    ///
    /// # Errors
    /// As for [`Activation::get`].
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

/// A compiled expression, which can be evaluated repeatedly and concurrently.
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

    /// Returns the type of the expression.
    pub fn output(&self) -> &Type {
        self.checked.type_of(self.checked.root.id)
    }

    /// Returns the depth of the expression's tree, which determines how much stack an evaluation
    /// needs.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Evaluates the expression and subtracts the cost from `budget`; a higher cost ends the
    /// evaluation with [`Error::limit`].
    ///
    /// # Errors
    /// The error of cel-go.
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

    /// Estimates the cost of evaluations from the known sizes of variables.
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
    /// Whether the expression selects a field of a variable by its name: `variable.field`,
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
                    let is_field = matches!(
                        &name.kind,
                        Kind::Literal(ast::Literal::String(text)) if text == field
                    );
                    found |= is_field && is_variable(operand);
                }
            }
            _ => {}
        });
        found
    }
}

#[cfg(test)]
mod tests {
    use crate::{Env, Type, Value, Variables};

    fn env() -> Env {
        Env::new()
            .variable("a", Type::map(Type::String, Type::map(Type::String, Type::Int)))
            .variable("list", Type::list(Type::Int))
    }

    /// `CostTracker` of cel-go's `interpreter/runtimecost.go`.
    #[test]
    fn evaluations_that_cost_more_than_the_budget_are_cancelled() {
        let variables = Variables(vec![("list", Value::list(vec![Value::Int(1)]))]);
        for (expr, budget, expected, rest) in [
            ("1 + 1", 1, Ok("2"), 0),
            ("1 + 1", 10, Ok("2"), 9),
            ("1 + 1", 0, Err("operation cancelled: actual cost limit exceeded"), 0),
            (
                "list.size() == 1 && list[0] == 1",
                2,
                Err("operation cancelled: actual cost limit exceeded"),
                0,
            ),
        ] {
            let mut left = budget;
            let result = env().compile_any(expr).unwrap().eval(&variables, &mut left);
            let got = result.map(|v| v.to_string()).map_err(|error| error.to_string());
            assert_eq!(got, expected.map(str::to_owned).map_err(str::to_owned), "{expr}");
            assert_eq!(left, rest, "{expr}");
        }
    }

    /// `usesEmailClaim` and `usesEmailVerifiedClaim` of
    /// `pkg/apis/apiserver/validation/validation.go` in k8s.io/apiserver ask which claims an
    /// expression selects.
    #[test]
    fn a_program_tells_its_variables_and_selections() {
        for (expr, variable, field, uses, selects) in [
            ("a.b.c == 1", "a", "b", true, true),
            ("has(a.b)", "a", "b", true, true),
            ("a.?b.hasValue()", "a", "b", true, true),
            ("a['b'].c == 1", "a", "b", true, false),
            ("a.c.b == 1", "a", "b", true, false),
            ("list.all(a, a == 1)", "a", "b", false, false),
            ("list.all(x, x == 1)", "list", "b", true, false),
        ] {
            let program = env().compile_any(expr).unwrap();
            assert_eq!(
                (program.uses(variable), program.selects(variable, field)),
                (uses, selects),
                "{expr}"
            );
        }
    }
}
