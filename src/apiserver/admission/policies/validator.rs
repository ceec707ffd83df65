//! Evaluates one validating policy for one request (upstream's `policy/validating/validator.go`).

use std::time::Duration;

use api::expressions::{Compiler, Uses, Yields};
use api::value::{items, str_at};
use kcel::Value;
use kcel::limits::{MESSAGE_BYTES_MAX, RUNTIME_BUDGET};
use serde_json::Value as Json;

use super::source::{Body, Policy};
use crate::admission::expressions::conditions::Matched;
use crate::admission::expressions::{Expression, ExpressionError, Inputs, OUT_OF_BUDGET, Yielded};
use crate::metrics::admission::ConditionsEvaluated;

/// The validating part of a policy's `spec`.
#[derive(Debug)]
pub(super) struct Validations {
    /// The expressions that must be true.
    tests: Vec<Expression>,
    /// The messages, parallel to `tests`.
    words: Vec<ValidationMessages>,
    annotations: Vec<(String, Expression)>,
}

#[derive(Debug)]
struct ValidationMessages {
    message: String,
    expression: Option<Expression>,
    reason: String,
}

impl Body for Validations {
    fn of(spec: &Json, compiler: &Compiler, uses: Uses) -> Self {
        let of = |one: &Json, key: &str, uses, yields| {
            Expression::of(compiler, str_at(one, key), uses, yields)
        };
        let list = items(spec, "validations");
        let without = Uses { authorizer: false, ..uses };
        let words = |one: &Json| ValidationMessages {
            message: str_at(one, "message").to_owned(),
            expression: (!str_at(one, "messageExpression").is_empty())
                .then(|| of(one, "messageExpression", without, Yields::Text)),
            reason: match str_at(one, "reason") {
                "" => "Invalid".to_owned(),
                reason => reason.to_owned(),
            },
        };
        let annotation = |one: &Json| {
            let value = of(one, "valueExpression", uses, Yields::TextOrNull);
            (str_at(one, "key").to_owned(), value)
        };
        Self {
            tests: list.iter().map(|one| of(one, "expression", uses, Yields::Bool)).collect(),
            words: list.iter().map(words).collect(),
            annotations: items(spec, "auditAnnotations").iter().map(annotation).collect(),
        }
    }
}

/// The outcome of one validation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Decision {
    Admit,
    /// The message, and the `reason` of the validation if it has one.
    Deny(String, Option<String>),
}

/// The expression of an audit annotation returns no text. The messages are upstream's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum AnnotationError {
    #[error(transparent)]
    Expression(#[from] ExpressionError),
    #[error(
        "valueExpression '{expression}' resulted in unsupported return type: {actual}. Return type \
         must be either string or null."
    )]
    Type { expression: String, actual: String },
}

/// The outcome of one audit annotation: key, value or error, and duration.
pub(super) type Annotation = (String, Result<String, AnnotationError>, Duration);

/// The outcome of a policy; errors count according to its `failurePolicy`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    /// One per validation.
    pub(super) decisions: Vec<Decision>,
    /// For each decision, its duration and the error despite which it was admitted.
    pub(super) notes: Vec<(Duration, Option<String>)>,
    /// The metrics of its match conditions.
    pub(super) conditions: Option<ConditionsEvaluated>,
    pub(super) annotations: Vec<Annotation>,
}

impl Policy<Validations> {
    /// The depth of the deepest expression.
    pub(super) fn deepest(&self) -> usize {
        let body = &self.body;
        let words = body.words.iter().filter_map(|words| words.expression.as_ref());
        let all = body.tests.iter().chain(words).chain(body.annotations.iter().map(|(_, e)| e));
        let deepest = all.map(Expression::depth).max().unwrap_or(0);
        self.depth().saturating_add(deepest)
    }

    fn failed(&self, why: String) -> (Decision, Option<String>) {
        if self.fails_open {
            (Decision::Admit, Some(why))
        } else {
            (Decision::Deny(why, None), None)
        }
    }

    fn all_failed(&self, why: &str) -> Outcome {
        let (decision, error) = self.failed(why.to_owned());
        let notes = vec![(Duration::ZERO, error)];
        Outcome { decisions: vec![decision], notes, ..Outcome::default() }
    }

    /// Evaluates the policy. Match conditions do not see the namespace of `inputs`.
    pub(super) fn decide(&self, inputs: &Inputs<'_>) -> Outcome {
        if self.conditions.is_empty() {
            return self.validate(inputs);
        }
        let (matched, counted) = self.conditions.count(&Inputs { namespace: None, ..*inputs });
        let outcome = match matched {
            Matched::Yes => self.validate(inputs),
            Matched::Failed(why) if !self.fails_open => self.all_failed(&why),
            Matched::No | Matched::Failed(_) => Outcome::default(),
        };
        Outcome { conditions: Some(counted), ..outcome }
    }

    fn validate(&self, inputs: &Inputs<'_>) -> Outcome {
        let mut budget = RUNTIME_BUDGET;
        let Ok(tested) = inputs.timed(&self.body.tests, &mut budget) else {
            return self.all_failed(OUT_OF_BUDGET);
        };
        let without = Inputs { authorizer: None, ..*inputs };
        let words = self.body.words.iter().filter_map(|words| words.expression.as_ref());
        let mut messages = without.evaluate(words, &mut budget).map(Vec::into_iter);
        let mut decisions = Vec::with_capacity(tested.len());
        let mut notes = Vec::with_capacity(tested.len());
        let all = self.body.tests.iter().zip(&self.body.words).zip(tested);
        for ((test, words), (value, took)) in all {
            let message_value = match (&words.expression, &mut messages) {
                (Some(_), Ok(messages)) => messages.next(),
                _ => None,
            };
            let (decision, error) = match value {
                Err(error) => self.failed(error.to_string()),
                Ok(_) if messages.is_err() => {
                    self.failed(format!("failed messageExpression: {OUT_OF_BUDGET}"))
                }
                Ok(Value::Bool(true)) => (Decision::Admit, None),
                Ok(_) => {
                    let message = message(test, words, message_value.as_ref());
                    (Decision::Deny(message, Some(words.reason.clone())), None)
                }
            };
            decisions.push(decision);
            notes.push((took, error));
        }
        // Upstream provides no authorizer to annotations, although they compile with it.
        let expressions = self.body.annotations.iter().map(|(_, expression)| expression);
        let Ok(values) = without.timed(expressions, &mut { RUNTIME_BUDGET }) else {
            return self.all_failed(OUT_OF_BUDGET);
        };
        let annotations = self.body.annotations.iter().zip(values);
        let annotations = annotations
            .filter_map(|((key, expression), (value, took))| {
                Some((key.clone(), self.annotation(expression, value)?, took))
            })
            .collect();
        Outcome { decisions, notes, annotations, conditions: None }
    }

    /// The annotation to publish, or its error; `None` if there is neither.
    fn annotation(
        &self,
        expression: &Expression,
        value: Yielded<'_>,
    ) -> Option<Result<String, AnnotationError>> {
        match value {
            Err(_) if self.fails_open => None,
            Err(error) => Some(Err(error.into())),
            Ok(Value::Null) => None,
            Ok(Value::String(text)) => match text.trim() {
                "" => None,
                text => Some(Ok(text.to_owned())),
            },
            Ok(other) => Some(Err(AnnotationError::Type {
                expression: expression.text.clone(),
                actual: other.type_name().to_string(),
            })),
        }
    }
}

/// The message for the client: the result of `messageExpression` if valid, else `message`, else the
/// expression.
fn message(
    test: &Expression,
    words: &ValidationMessages,
    message_value: Option<&Yielded<'_>>,
) -> String {
    let message_value = match message_value {
        Some(Ok(value)) => value.as_str().unwrap_or_default().trim(),
        _ => "",
    };
    if !message_value.is_empty()
        && message_value.len() <= MESSAGE_BYTES_MAX
        && !message_value.contains('\n')
    {
        return message_value.to_owned();
    }
    match words.message.trim() {
        "" => format!("failed expression: {}", test.text.trim()),
        message => message.to_owned(),
    }
}
