//! Conditions, variables, costs and the authorizer, with upstream's messages.

use std::sync::Arc;

use api::expressions::{Compiler, Uses, Yields};
use async_trait::async_trait;
use kcel::Check;
use serde_json::{Value, json};

use super::conditions::{Conditions, Matched};
use super::{Expression, Inputs, OutOfBudget, Variables, variables};
use crate::admission::expressions::cel_authorizer::{CelAuthorizer, DecisionCache};
use crate::authz::{Attributes, Authorizer, Decision};
use crate::request::user::User;

const USES: Uses = Uses { params: true, authorizer: true, patches: false };

fn inputs<'a>(object: &'a Value, request: &'a Value, variables: &'a Variables) -> Inputs<'a> {
    Inputs {
        object: Some(object),
        old: None,
        request,
        namespace: None,
        params: None,
        authorizer: None,
        variables,
    }
}

fn decide(conditions: &[&str]) -> Matched {
    let list: Vec<Value> =
        conditions.iter().map(|text| json!({"name": "n", "expression": text})).collect();
    let conditions = Conditions::of(&Compiler::plain(), &json!({"matchConditions": list}), USES);
    let (object, request) = (json!({"metadata": {"name": "x"}}), json!({}));
    conditions.decide(&inputs(&object, &request, &Vec::new()))
}

/// Rows of upstream's `matcher_test.go`.
#[test]
fn a_false_condition_takes_precedence_over_errors() {
    let failing = "object.missing == 'a'";
    let text = "expression 'object.missing == 'a'' resulted in error: no such key: missing";
    assert_eq!(decide(&[]), Matched::Yes);
    assert_eq!(decide(&["true", "object.metadata.name == 'x'"]), Matched::Yes);
    assert_eq!(decide(&["true", "false"]), Matched::No);
    assert_eq!(decide(&[failing, "false"]), Matched::No);
    assert_eq!(decide(&["true", failing]), Matched::Failed(text.to_owned()));
    let other = "object.absent";
    let both = format!("[{text}, compilation error: must evaluate to bool but got dyn]");
    assert_eq!(decide(&[failing, other, failing]), Matched::Failed(both));
}

#[test]
fn variables_are_evaluated_and_charged_once() {
    let mut compiler = Compiler::composed();
    let list = json!([
        {"name": "list", "expression": "object.items.map(i, i * 2)"},
        {"name": "bad", "expression": "object.none"},
        {"name": "sum", "expression": "variables.list.size() + 1"},
    ]);
    let made = variables(&mut compiler, list.as_array().unwrap(), USES);
    let of = |text: &str| Expression::of(&compiler, text, USES, Yields::Bool);
    let (object, request) = (json!({"items": [1, 2, 3]}), json!({}));
    let inputs = inputs(&object, &request, &made);
    let run = |texts: &[&str]| {
        let all: Vec<Expression> = texts.iter().map(|text| of(text)).collect();
        let mut budget = 10_000;
        let yielded = inputs.evaluate(&all, &mut budget).unwrap();
        let yielded: Vec<String> = yielded
            .into_iter()
            .map(|v| v.map_or_else(|e| e.to_string(), |v| v.to_string()))
            .collect();
        (yielded, 10_000 - budget)
    };
    let (yielded, once) = run(&["variables.list[2] == 6 && variables.sum == 4"]);
    assert_eq!(yielded, ["true"]);
    let (yielded, twice) =
        run(&["variables.list[2] == 6 && variables.sum == 4", "variables.list[0] == 2"]);
    assert_eq!(yielded, ["true", "true"]);
    // The second expression costs its own three steps (two selections and a comparison), not the
    // list again.
    assert!(twice - once <= 4, "{once} {twice}");
    assert_eq!(
        run(&["variables.bad == 1", "has(variables.sum) && variables.?sum.orValue(0) == 4"]).0,
        [
            "expression 'variables.bad == 1' resulted in error: composited variable \"bad\" fails to evaluate: no such key: none",
            "true"
        ]
    );
    assert_eq!(inputs.evaluate(&[of("variables.sum == 4")], &mut 5).err(), Some(OutOfBudget));
}

#[test]
fn variables_that_refer_to_themselves_are_errors() {
    let mut compiler = Compiler::composed();
    let list =
        json!([{"name": "a", "expression": "1"}, {"name": "a", "expression": "variables.a + 1"}]);
    let made = variables(&mut compiler, list.as_array().unwrap(), USES);
    let (object, request) = (json!({}), json!({}));
    let text = Expression::of(&compiler, "variables.a == 2", USES, Yields::Bool);
    let yielded = inputs(&object, &request, &made).evaluate(&[text], &mut 1000).unwrap();
    assert!(
        yielded[0].as_ref().unwrap_err().to_string().contains("refers to itself"),
        "{yielded:?}"
    );
}

/// Allows verbs that begin with `a`, and counts calls.
struct Counting(std::sync::atomic::AtomicUsize);

#[async_trait]
impl Authorizer for Counting {
    async fn authorize(&self, user: &User, attributes: &Attributes<'_>) -> Decision {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        tokio::task::yield_now().await;
        let reason = format!("{} {} {}", user.name, attributes.verb, attributes.resource);
        if attributes.verb.starts_with('a') {
            Decision::Allow(reason)
        } else {
            Decision::NoOpinion(reason)
        }
    }
}

#[tokio::test]
async fn equal_authorization_checks_are_decided_once() {
    let authorizer = Counting(0.into());
    let user = User::authenticated("jane", &[]);
    let cel_authorizer = CelAuthorizer::new(&authorizer, &user);
    let check = Check { resource: "pods".into(), ..Check::default() };
    let none = Variables::new();
    // One evaluation can afford two checks, of 350,000 each.
    let texts = [
        "authorizer.requestResource.check('ask').reason() == 'jane ask pods' && !authorizer.requestResource.check('deny').allowed()",
        "authorizer.requestResource.check('ask').allowed() && authorizer.serviceAccount('n', 's').group('').resource('x').check('ask').reason() == 'system:serviceaccount:n:s ask x'",
    ];
    let of = |text: &str| Expression::of(&Compiler::plain(), text, USES, Yields::Bool);
    let expressions = texts.map(of);
    let request = json!({});
    let run = |cache: &Arc<DecisionCache>| {
        let inputs = Inputs {
            object: None,
            old: None,
            request: &request,
            namespace: None,
            params: None,
            authorizer: Some((cache, &check)),
            variables: &none,
        };
        let yielded = inputs.evaluate(&expressions, &mut 10_000_000).unwrap();
        yielded.into_iter().map(|v| v.map(|v| v.as_bool())).collect::<Vec<_>>()
    };
    let yielded = cel_authorizer.evaluate(expressions[0].depth(), run).await.unwrap();
    assert_eq!(yielded, [Ok(Some(true)), Ok(Some(true))]);
    assert_eq!(authorizer.0.into_inner(), 3);
}

#[tokio::test]
async fn the_deepest_expression_does_not_overflow_the_stack() {
    let text = format!("{}true{}", "(!".repeat(100), ")".repeat(100));
    let expression = Expression::of(&Compiler::plain(), &text, USES, Yields::Bool);
    let user = User::anonymous();
    let authorizer = Counting(0.into());
    let (object, request, none) = (json!({}), json!({}), Variables::new());
    let cel_authorizer = CelAuthorizer::new(&authorizer, &user);
    let run = |_: &Arc<DecisionCache>| {
        let yielded = inputs(&object, &request, &none).evaluate([&expression], &mut 10_000);
        yielded.unwrap().into_iter().map(|v| v.map(|v| v.as_bool())).collect::<Vec<_>>()
    };
    assert_eq!(cel_authorizer.evaluate(expression.depth(), run).await.unwrap(), [Ok(Some(true))]);
}
