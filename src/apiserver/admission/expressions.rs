//! CEL expressions of webhooks and policies, evaluated for one request: variables, cost budget and
//! upstream's error messages (`pkg/admission/plugin/cel/activation.go`).

pub(crate) mod cel_authorizer;
pub(crate) mod conditions;

#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api::expressions::{Compiler, Fault, Uses, VARIABLES, Yields};
use kcel::limits::PER_CALL;
use kcel::{Activation, Check, Error, Host, Program, Value};
use serde_json::Value as Json;

use cel_authorizer::DecisionCache;

/// Upstream's message for expressions that exceed the cost budget together.
pub(crate) const OUT_OF_BUDGET: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";

/// A compiled expression, or its compilation error.
#[derive(Debug)]
pub(crate) struct Expression {
    pub(crate) text: String,
    pub(crate) program: Result<Program, Fault>,
}

impl Expression {
    /// Compiles an expression.
    pub(crate) fn of(compiler: &Compiler, text: &str, uses: Uses, yields: Yields) -> Self {
        Self { text: text.to_owned(), program: compiler.compile(text, uses, yields) }
    }

    /// The depth of the syntax tree.
    pub(crate) fn depth(&self) -> usize {
        self.program.as_ref().map_or(0, Program::depth)
    }
}

/// The variables of a policy, in their order.
pub(crate) type Variables = Vec<(String, Expression)>;

/// The variables that an expression can read.
#[derive(Clone, Copy)]
pub(crate) struct Inputs<'a> {
    /// The object, in the version of the rule that matched.
    pub(crate) object: Option<&'a Json>,
    pub(crate) old: Option<&'a Json>,
    /// The AdmissionRequest.
    pub(crate) request: &'a Json,
    /// The namespace of the request.
    pub(crate) namespace: Option<&'a Json>,
    pub(crate) params: Option<&'a Json>,
    /// The decisions for the variable `authorizer`, and the check for `authorizer.requestResource`.
    pub(crate) authorizer: Option<(&'a Arc<DecisionCache>, &'a Check)>,
    pub(crate) variables: &'a Variables,
}

/// All expressions together exceed the cost budget.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OutOfBudget;

/// An expression has no value. The messages are upstream's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ExpressionError {
    #[error("compilation error: {0}")]
    Compilation(Fault),
    #[error("expression '{expression}' resulted in error: {source}")]
    Evaluation { expression: String, source: Error },
}

/// The value of an expression, or its error.
pub(crate) type Yielded<'a> = Result<Value<'a>, ExpressionError>;

impl<'a> Inputs<'a> {
    /// Evaluates expressions in order; subtracts their cost from `budget`.
    ///
    /// # Errors
    /// If the budget is exceeded; the remaining expressions are not evaluated.
    pub(crate) fn evaluate<'e>(
        &self,
        expressions: impl IntoIterator<Item = &'e Expression>,
        budget: &mut u64,
    ) -> Result<Vec<Yielded<'a>>, OutOfBudget> {
        let all = self.timed(expressions, budget)?;
        Ok(all.into_iter().map(|(yielded, _)| yielded).collect())
    }

    /// Like [`Inputs::evaluate`], with the duration of each evaluation.
    ///
    /// # Errors
    /// If the budget is exceeded.
    pub(crate) fn timed<'e>(
        &self,
        expressions: impl IntoIterator<Item = &'e Expression>,
        budget: &mut u64,
    ) -> Result<Vec<(Yielded<'a>, Duration)>, OutOfBudget> {
        let context =
            EvaluationContext { inputs: *self, evaluated: RefCell::default(), cost: Cell::new(0) };
        let yielded = expressions.into_iter().map(|expression| {
            let program = match &expression.program {
                Ok(program) => program,
                Err(fault) => {
                    let error = ExpressionError::Compilation(fault.clone());
                    return Ok((Err(error), Duration::ZERO));
                }
            };
            let begun = base::clock::now();
            let mut left = PER_CALL;
            let result = program.eval(&context, &mut left);
            let took = base::clock::now().duration_since(begun);
            for cost in [context.cost.take(), PER_CALL - left] {
                *budget = budget.checked_sub(cost).ok_or(OutOfBudget)?;
            }
            let result = result.map_err(|source| ExpressionError::Evaluation {
                expression: expression.text.clone(),
                source,
            });
            Ok((result, took))
        });
        yielded.collect()
    }
}

/// The variables of one evaluation; a variable of the policy is evaluated lazily, and once.
struct EvaluationContext<'a> {
    inputs: Inputs<'a>,
    evaluated: RefCell<BTreeMap<&'a str, Result<Value<'a>, Error>>>,
    /// The cost of policy variables since the last expression was charged.
    cost: Cell<u64>,
}

impl<'a> EvaluationContext<'a> {
    fn variable(&self, name: &'a str, of: &'a Expression) -> Result<Value<'a>, Error> {
        if let Some(evaluated) = self.evaluated.borrow().get(name) {
            return evaluated.clone();
        }
        let quoted = api::field::go_quote(name);
        let program = of.program.as_ref().map_err(|fault| {
            Error::new(format!("composited variable {quoted} fails to compile: {fault}"))
        });
        // Two variables of the same name may refer to each other; report the cycle.
        let circle = Error::new(format!("composited variable {quoted} refers to itself"));
        self.evaluated.borrow_mut().insert(name, Err(circle));
        let value = program.and_then(|program| {
            let mut left = PER_CALL;
            let value = program.eval(self, &mut left);
            self.cost.set(self.cost.get().saturating_add(PER_CALL - left));
            value.map_err(|error| {
                Error::new(format!("composited variable {quoted} fails to evaluate: {error}"))
            })
        });
        self.evaluated.borrow_mut().insert(name, value.clone());
        value
    }
}

impl<'a> Activation<'a> for EvaluationContext<'a> {
    fn get(&self, name: &str) -> Option<Result<Value<'a>, Error>> {
        let inputs = &self.inputs;
        let json = |value: Option<&'a Json>| value.map_or(Value::Null, Value::json);
        Some(Ok(match name {
            "object" => json(inputs.object),
            "oldObject" => json(inputs.old),
            "request" => Value::json(inputs.request),
            "namespaceObject" => json(inputs.namespace),
            "params" => json(inputs.params),
            "authorizer" => {
                let (cache, _) = inputs.authorizer?;
                Value::Host(Host::authorizer(Arc::clone(cache) as Arc<dyn kcel::Authorize>))
            }
            "authorizer.requestResource" => {
                let (cache, check) = inputs.authorizer?;
                let by = Arc::clone(cache) as Arc<dyn kcel::Authorize>;
                Value::Host(Host::resource_check(by, check.clone()))
            }
            VARIABLES => return Some(Err(Error::new("variables can only be selected from"))),
            _ => return None,
        }))
    }

    fn field(&self, variable: &str, field: &str) -> Option<Result<Value<'a>, Error>> {
        if variable != VARIABLES {
            return None;
        }
        // Of several variables with the same name, the last one counts.
        let found = self.inputs.variables.iter().rfind(|(name, _)| name == field);
        Some(match found {
            Some((name, expression)) => self.variable(name, expression),
            None => Err(Error::new(format!("no such key: {field}"))),
        })
    }
}

/// Parses the variables of a policy; a variable can use those before it.
pub(crate) fn variables(compiler: &mut Compiler, list: &[Json], uses: Uses) -> Variables {
    let one = |variable: &Json| {
        let word = |key| api::value::str_at(variable, key);
        let (name, text) = (word("name"), word("expression"));
        let program = compiler.variable(name, text, uses);
        (name.to_owned(), Expression { text: text.to_owned(), program })
    };
    list.iter().map(one).collect()
}
