//! `matchConditions`: unless all are true, the webhook or policy is skipped (upstream's
//! `webhook/matchconditions`).

use api::expressions::{Compiler, Uses, Yields};
use api::value::{items, str_at};
use kcel::Value;
use kcel::limits::MATCH_CONDITIONS_BUDGET;
use serde_json::Value as Json;

use crate::metrics::admission::ConditionsEvaluated;
use component_config::aggregate_errors;

use super::{Expression, Inputs, OUT_OF_BUDGET, Yielded};

/// The match conditions of a webhook or policy.
#[derive(Debug, Default)]
pub(crate) struct Conditions(Vec<Expression>);

/// Whether a request meets the match conditions.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Matched {
    Yes,
    No,
    /// No condition is false, and at least one fails to evaluate.
    Failed(String),
}

impl Conditions {
    /// Parses `matchConditions` of a webhook or of a policy's `spec`.
    pub(crate) fn of(compiler: &Compiler, parent: &Json, uses: Uses) -> Self {
        let list = items(parent, "matchConditions").iter();
        let texts = list.map(|condition| str_at(condition, "expression"));
        Self(texts.map(|text| Expression::of(compiler, text, uses, Yields::Bool)).collect())
    }

    /// Whether there are no conditions.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The depth of the deepest expression.
    pub(crate) fn depth(&self) -> usize {
        self.0.iter().map(Expression::depth).max().unwrap_or(0)
    }

    /// Evaluates the conditions; one that is false takes precedence over errors of others.
    #[cfg(test)]
    pub(crate) fn decide(&self, inputs: &Inputs<'_>) -> Matched {
        self.count(inputs).0
    }

    /// Evaluates the conditions and returns the outcome with its metrics; a condition that is false
    /// takes precedence over errors of others.
    pub(crate) fn count(&self, inputs: &Inputs<'_>) -> (Matched, ConditionsEvaluated) {
        let begun = base::clock::now();
        let counted = |matched: Matched, errors| {
            let took = base::clock::now().duration_since(begun);
            let is_decided = !matches!(matched, Matched::Yes);
            (matched, ConditionsEvaluated { errors, is_decided, took })
        };
        let mut budget = MATCH_CONDITIONS_BUDGET;
        let Ok(yielded) = inputs.evaluate(&self.0, &mut budget) else {
            return counted(Matched::Failed(OUT_OF_BUDGET.to_owned()), 0);
        };
        let is_false = |value: &Yielded<'_>| matches!(value, Ok(Value::Bool(false)));
        if let Some(at) = yielded.iter().position(is_false) {
            // Upstream does not evaluate the conditions after it.
            let errors = yielded.iter().take(at).filter(|value| value.is_err()).count();
            return counted(Matched::No, errors);
        }
        let errors: Vec<_> = yielded.into_iter().filter_map(Result::err).collect();
        let matched = if errors.is_empty() {
            Matched::Yes
        } else {
            Matched::Failed(aggregate_errors(&errors))
        };
        counted(matched, errors.len())
    }
}
