//! `matchConditions` of authorization webhooks: expressions over the review to be sent
//! (`pkg/authorization/cel`).

use std::collections::BTreeMap;
use std::sync::LazyLock;

use api::expressions::{Fault, Yields, compile};
use kcel::limits::PER_CALL;
use kcel::{Env, Program, Type, Value, Variables};
use serde_json::Value as Json;
use sorting::CollectOrdered as _;

use crate::admission::expressions::cel_authorizer::on_stack;
use component_config::aggregate_errors;

/// The maximum number of match conditions per webhook.
pub(in crate::authz) const CONDITIONS_MAX: usize = 64;

/// The CEL environment of match conditions: the variable `request` is a SubjectAccessReviewSpec.
static ENV: LazyLock<Env> = LazyLock::new(|| {
    let strings = || Type::list(Type::String);
    let requirement = || {
        object(
            "SelectorRequirement",
            &[("key", Type::String), ("operator", Type::String), ("values", strings())],
        )
    };
    let selector = |name: &str| {
        let requirements = Type::list(requirement());
        object(name, &[("rawSelector", Type::String), ("requirements", requirements)])
    };
    let resource = object(
        "ResourceAttributes",
        &[
            ("namespace", Type::String),
            ("verb", Type::String),
            ("group", Type::String),
            ("version", Type::String),
            ("resource", Type::String),
            ("subresource", Type::String),
            ("name", Type::String),
            ("fieldSelector", selector("FieldSelectorAttributes")),
            ("labelSelector", selector("LabelSelectorAttributes")),
        ],
    );
    let path = object("NonResourceAttributes", &[("path", Type::String), ("verb", Type::String)]);
    let request = object(
        "SubjectAccessReviewSpec",
        &[
            ("resourceAttributes", resource),
            ("nonResourceAttributes", path),
            ("user", Type::String),
            ("groups", strings()),
            ("extra", Type::map(Type::String, strings())),
            ("uid", Type::String),
        ],
    );
    Env::new().variable("request", request)
});

/// An object type in the namespace `kubernetes.`, as upstream names them in error messages.
fn object(name: &str, fields: &[(&str, Type)]) -> Type {
    let fields: BTreeMap<String, Type> =
        fields.iter().map(|(name, of)| ((*name).to_owned(), of.clone())).collect_map();
    Type::object(&format!("kubernetes.{name}"), fields)
}

/// Compiles a match condition.
///
/// # Errors
/// Upstream's message.
pub(in crate::authz) fn condition(text: &str) -> Result<Program, Fault> {
    compile(&ENV, text, Yields::Bool)
}

/// Match conditions cannot be evaluated, and none of them is false. The messages are upstream's.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConditionsError {
    /// There are not enough resources for an evaluation.
    #[error("{}", .0.message)]
    NoStack(Box<api::Status>),
    /// The errors of single conditions.
    #[error("{}", aggregate_errors(.0))]
    Conditions(Vec<ConditionError>),
}

/// The error of one condition.
#[derive(Debug, thiserror::Error)]
#[error("cel evaluation error: expression '{expression}' resulted in error: {cause}")]
pub(super) struct ConditionError {
    expression: String,
    cause: ConditionCause,
}

#[derive(Debug, thiserror::Error)]
enum ConditionCause {
    #[error("{0}")]
    Compilation(Fault),
    #[error(transparent)]
    Evaluation(#[from] kcel::Error),
}

/// The match conditions of one webhook: texts and compiled programs.
#[derive(Debug, Default)]
pub(super) struct Conditions(Vec<(String, Result<Program, Fault>)>);

impl Conditions {
    /// Compiles the conditions. Validation rejects those that do not compile; here they fail at
    /// each evaluation.
    pub(super) fn of(texts: &[String]) -> Self {
        Self(texts.iter().map(|text| (text.clone(), condition(text))).collect())
    }

    /// Whether there are no conditions.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether all conditions are true for the spec of a review
    /// ([`super::review::condition_input`]). A false condition takes precedence over errors of
    /// others.
    ///
    /// # Errors
    /// If conditions cannot be evaluated.
    pub(super) fn match_all(&self, request: &Json) -> Result<bool, ConditionsError> {
        let programs = self.0.iter().filter_map(|(_, program)| program.as_ref().ok());
        let depth = programs.map(Program::depth).max().unwrap_or(0);
        on_stack(depth, || self.evaluate(request))
            .map_err(|status| ConditionsError::NoStack(Box::new(status)))?
    }

    /// Evaluates all conditions until one is false; reports errors only if none is false.
    fn evaluate(&self, request: &Json) -> Result<bool, ConditionsError> {
        let variables = Variables(vec![("request", Value::json(request))]);
        let mut errors = Vec::new();
        for (text, program) in &self.0 {
            let mut remaining_cost = PER_CALL;
            let result = match program {
                Ok(program) => {
                    program.eval(&variables, &mut remaining_cost).map_err(ConditionCause::from)
                }
                Err(fault) => Err(ConditionCause::Compilation(fault.clone())),
            };
            match result {
                Ok(Value::Bool(false)) => return Ok(false),
                Ok(_) => {}
                Err(cause) => errors.push(ConditionError { expression: text.clone(), cause }),
            }
        }
        if errors.is_empty() { Ok(true) } else { Err(ConditionsError::Conditions(errors)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn conditions(texts: &[&str]) -> Conditions {
        let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
        Conditions::of(&texts)
    }

    /// Expressions of upstream's `compile_test.go`.
    #[test]
    fn conditions_must_compile_to_a_boolean() {
        for good in [
            "has(request.resourceAttributes) && request.resourceAttributes.namespace == 'default'",
            "request.user == 'admin'",
            "('system:serviceaccounts' in request.groups)",
            "request.?resourceAttributes.fieldSelector.requirements.orValue([]).exists(r, r.key == 'metadata.name')",
            "request.extra.exists(k, k == 'a')",
            "request.uid == '1' || has(request.nonResourceAttributes) && request.nonResourceAttributes.path == '/healthz'",
        ] {
            assert!(condition(good).is_ok(), "{good}: {}", condition(good).unwrap_err());
        }
        let wrong = |text| condition(text).unwrap_err().to_string();
        assert_eq!(wrong("request.user"), "must evaluate to bool but got string");
        assert!(wrong("request.invalid == ''").contains("undefined field 'invalid'"));
        assert!(wrong("resource.verb == 'get'").starts_with(
            "compilation failed: ERROR: <input>:1:1: undeclared reference to 'resource'"
        ));
    }

    /// Rows of upstream's `matcher` semantics: false takes precedence over errors.
    #[test]
    fn a_false_condition_takes_precedence_over_errors() {
        let request = json!({"user": "a", "groups": ["g"], "uid": "", "extra": {}, "nonResourceAttributes": {"path": "/x", "verb": "get"}});
        let fails = "request.resourceAttributes.verb == 'get'";
        let matches =
            |texts: &[&str]| conditions(texts).match_all(&request).map_err(|e| e.to_string());
        assert_eq!(matches(&["request.user == 'a'", "'g' in request.groups"]), Ok(true));
        assert_eq!(matches(&["request.user == 'b'"]), Ok(false));
        assert_eq!(matches(&[fails, "request.user == 'b'"]), Ok(false));
        assert_eq!(
            matches(&[fails, "request.user == 'a'"]),
            Err("cel evaluation error: expression 'request.resourceAttributes.verb == 'get'' resulted in error: no such key: resourceAttributes".to_owned())
        );
    }
}
