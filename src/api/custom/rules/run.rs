//! Evaluation of rules: selection of applicable rules, cost limits, and errors.

use kcel::limits::{MESSAGE_BYTES_MAX, PER_CALL, RUNTIME_BUDGET};
use kcel::{Activation, Declared, Program, Value as Cel};
use serde_json::Value;
use std::cell::OnceCell;
use std::sync::Arc;

use super::super::correlate::{self, OldItems};
use super::super::decl;
use super::super::node::{Node, RuleText};
use super::{Level, Rule, Rules};
use crate::field::{Error, ErrorList, Path, go_quote};

/// Maximum number of errors that rules report for one object, and maximum number of warnings.
const ERRORS_MAX: usize = 1000;
/// Maximum total size of these errors in bytes.
const ERROR_BYTES_MAX: usize = 4 << 20;

const OUT_OF_BUDGET: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";

/// The result of the evaluation of rules.
#[derive(Debug, Default)]
pub(in crate::custom) struct Outcome {
    pub(in crate::custom) errors: ErrorList,
    /// Errors that the old object has as well; they do not reject the write (KEP-4008).
    pub(in crate::custom) warnings: Vec<String>,
}

/// A write: the new value, the old value, and whether errors of unchanged values are warnings.
#[derive(Debug, Clone, Copy)]
pub(in crate::custom) struct Write<'a> {
    pub(in crate::custom) node: &'a Node,
    pub(in crate::custom) new: &'a Value,
    pub(in crate::custom) old: Option<&'a Value>,
    pub(in crate::custom) ratchets: bool,
}

impl Rules {
    /// Evaluates all rules and subtracts their cost from `budget`. An error that stops the
    /// evaluation sets the budget to zero.
    pub(in crate::custom) fn run(
        &self,
        write: Write<'_>,
        path: &Path,
        budget: &mut u64,
    ) -> Outcome {
        let Write { node, new, old, ratchets } = write;
        let mut run = Run { out: Outcome::default(), bytes: 0, budget: Some(*budget) };
        let pair = old.filter(|_| ratchets).map(|old| Pair::new(new, old, node));
        let ratchet = Ratchet { here: pair.as_ref(), near: None };
        run.level(&self.level, Spot { node, declared: &self.declared, new, old, ratchet }, path);
        *budget = run.budget.unwrap_or(0);
        run.out
    }

    /// Evaluates all rules of an object with the whole budget, as [`Rules::run`] does.
    pub(in crate::custom) fn run_all(&self, write: Write<'_>, path: &Path) -> Outcome {
        self.run(write, path, &mut { RUNTIME_BUDGET })
    }
}

/// A new value and its old value, compared at most once, when an error requires the comparison.
struct Pair<'a> {
    new: &'a Value,
    old: &'a Value,
    node: &'a Node,
    equal: OnceCell<bool>,
}

impl<'a> Pair<'a> {
    fn new(new: &'a Value, old: &'a Value, node: &'a Node) -> Self {
        Self { new, old, node, equal: OnceCell::new() }
    }

    fn is_equal(&self) -> bool {
        *self.equal.get_or_init(|| correlate::unchanged(self.new, self.old, self.node))
    }
}

/// Ratcheting of a value's errors: an error is a warning when the value itself is unchanged, or,
/// when the value has no comparable old value, when the nearest enclosing comparable value is
/// unchanged.
#[derive(Clone, Copy)]
struct Ratchet<'p, 'a> {
    here: Option<&'p Pair<'a>>,
    near: Option<&'p Pair<'a>>,
}

impl<'p, 'a> Ratchet<'p, 'a> {
    fn holds(&self) -> bool {
        self.here.or(self.near).is_some_and(Pair::is_equal)
    }

    /// The state for a part of the value; `part` is the part's own pair.
    fn part(&self, part: Option<&'p Pair<'a>>) -> Self {
        match self.here {
            None => *self,
            near => Self { here: part, near },
        }
    }
}

/// A value with its schema, its conversion, its old value and its ratcheting state.
#[derive(Clone, Copy)]
struct Spot<'p, 'a> {
    node: &'a Node,
    declared: &'a Declared,
    new: &'a Value,
    old: Option<&'a Value>,
    ratchet: Ratchet<'p, 'a>,
}

/// The variables `self` and `oldSelf`.
struct Selves<'a> {
    new: Result<Cel<'a>, kcel::Error>,
    old: Option<Result<Cel<'a>, kcel::Error>>,
}

impl<'a> Activation<'a> for Selves<'a> {
    fn get(&self, name: &str) -> Option<Result<Cel<'a>, kcel::Error>> {
        match name {
            "self" => Some(self.new.clone()),
            "oldSelf" => self.old.clone(),
            _ => None,
        }
    }
}

/// Why a message expression returns no text.
enum NoMessage {
    /// The rule's own message is reported instead.
    Told,
    /// The evaluation of all rules stops with this error.
    Ends(String),
}

struct Run {
    out: Outcome,
    bytes: usize,
    /// The remaining budget; `None` when an error has stopped the evaluation.
    budget: Option<u64>,
}

impl Run {
    fn error(&mut self, error: Error) {
        self.bytes = self.bytes.saturating_add(error.detail.len() + error.field.to_string().len());
        self.out.errors.push(error);
        if self.out.errors.len() >= ERRORS_MAX || self.bytes > ERROR_BYTES_MAX {
            self.budget = None;
        }
    }

    fn ends(&mut self, error: Error) {
        self.error(error);
        self.budget = None;
    }

    /// Evaluates the rules of a value, then those of its fields or items. Rules of null values are
    /// skipped.
    fn level(&mut self, level: &Level, spot: Spot<'_, '_>, path: &Path) {
        if spot.new.is_null() {
            return;
        }
        self.rules(level, &spot, path);
        match spot.new {
            Value::Object(map) => self.fields(level, &spot, map, path),
            Value::Array(list) => {
                if let Some(items) = &level.items {
                    self.items(items, &spot, list, path);
                }
            }
            _ => {}
        }
    }

    fn fields(
        &mut self,
        level: &Level,
        spot: &Spot<'_, '_>,
        map: &serde_json::Map<String, Value>,
        path: &Path,
    ) {
        for (name, new) in map {
            let (below, path) = match (level.fields.get(name.as_str()), &level.more) {
                (Some(below), _) => (below, path.child(name)),
                (None, Some(below)) => (&**below, path.key(name)),
                (None, None) => continue,
            };
            let (Some(node), Some(declared)) =
                (spot.node.field(name), decl::part(spot.declared, Some(name)))
            else {
                continue;
            };
            if self.budget.is_none() {
                return;
            }
            let old = spot.old.and_then(|old| old.get(name));
            // Both objects are converted to the same version, so these fields are equal in both.
            let top = spot.ratchet.near.is_none() && matches!(name.as_str(), "apiVersion" | "kind");
            let pair = spot.ratchet.here.and_then(|whole| {
                let old = correlate::field(Some(whole.old), name, whole.node)?;
                Some(Pair::new(new, old, node))
            });
            let ratchet = match spot.ratchet.here {
                Some(_) if top => Ratchet { here: None, near: None },
                _ => spot.ratchet.part(pair.as_ref()),
            };
            self.level(below, Spot { node, declared, new, old, ratchet }, &path);
        }
    }

    fn items(&mut self, below: &Level, spot: &Spot<'_, '_>, list: &[Value], path: &Path) {
        let (Some(node), Some(declared)) =
            (spot.node.items.as_deref(), decl::part(spot.declared, None))
        else {
            return;
        };
        // Only the items of lists of type map are correlated.
        let before = OldItems::of(spot.old, spot.node);
        let known = spot.ratchet.here.and_then(|whole| OldItems::of(Some(whole.old), whole.node));
        for (index, new) in list.iter().enumerate() {
            if self.budget.is_none() {
                return;
            }
            let old = before.as_ref().and_then(|items| items.get(new, spot.node));
            let pair = known.as_ref().and_then(|items| items.get(new, spot.node));
            let pair = pair.map(|old| Pair::new(new, old, node));
            let ratchet = spot.ratchet.part(pair.as_ref());
            self.level(below, Spot { node, declared, new, old, ratchet }, &path.index(index));
        }
    }

    fn rules(&mut self, level: &Level, spot: &Spot<'_, '_>, path: &Path) {
        let (Some(budget), false) = (self.budget, level.rules.is_empty()) else { return };
        if budget == 0 {
            return self.ends(about(spot.node, path, OUT_OF_BUDGET));
        }
        let old = spot.old.filter(|old| !old.is_null());
        let (new, old) = (spot.declared.value(spot.new), old.map(|old| spot.declared.value(old)));
        let optional = match &old {
            None => Ok(Cel::Optional(None)),
            Some(Ok(value)) => Ok(Cel::Optional(Some(Arc::new(value.clone())))),
            Some(Err(error)) => Err(error.clone()),
        };
        let plain = Selves { new: new.clone(), old };
        let optional = Selves { new, old: Some(optional) };
        for (rule, text) in level.rules.iter().zip(&spot.node.rules) {
            if rule.compiled.uses_old && plain.old.is_none() && !text.optional_old {
                continue;
            }
            let selves = if text.optional_old { &optional } else { &plain };
            self.rule(rule, text, selves, spot, path);
            if self.budget.is_none() {
                return;
            }
        }
    }

    fn rule(
        &mut self,
        rule: &Rule,
        text: &RuleText,
        selves: &Selves<'_>,
        spot: &Spot<'_, '_>,
        path: &Path,
    ) {
        let program = match &rule.compiled.program {
            Ok(Some(program)) => program,
            Ok(None) => return,
            Err(why) => {
                let why = format!("rule compile error: {why}");
                return self.error(about(spot.node, path, &why));
            }
        };
        let (result, cost) = evaluate(program, selves);
        match self.budget.and_then(|budget| budget.checked_sub(cost)) {
            Some(left) => self.budget = Some(left),
            None => return self.ends(about(spot.node, path, OUT_OF_BUDGET)),
        }
        match result {
            Ok(Cel::Bool(true)) => {}
            Ok(_) => self.broken(rule, text, selves, spot, path),
            Err(error) => {
                let (limit, why, told) = (error.limit, error.to_string(), told(text));
                if why.starts_with("no such overload") {
                    self.error(about(spot.node, path, &format!("'{why}': call arguments did not match a supported operator, function or macro signature for rule: {told}")));
                } else if limit {
                    self.ends(about(spot.node, path, &format!("'{why}': no further validation rules will be run due to call cost exceeds limit for rule: {told}")));
                } else {
                    self.error(about(spot.node, path, &format!("{why} evaluating rule: {told}")));
                }
            }
        }
    }

    /// Reports a rule that is false.
    fn broken(
        &mut self,
        rule: &Rule,
        text: &RuleText,
        selves: &Selves<'_>,
        spot: &Spot<'_, '_>,
        path: &Path,
    ) {
        let path = match &rule.field {
            Some(field) => path.child(&field.to_string()),
            None => path.clone(),
        };
        let ratchets = !rule.compiled.uses_old && spot.ratchet.holds();
        let mut ends = false;
        let error = match self.message(rule, text, selves) {
            Ok(message) => of_reason(&text.reason, &path, spot, message),
            Err(NoMessage::Told) => of_reason(&text.reason, &path, spot, own_message(text)),
            Err(NoMessage::Ends(why)) => {
                ends = true;
                about(spot.node, &path, &why)
            }
        };
        if !ratchets {
            self.error(error);
        } else if self.out.warnings.len() < ERRORS_MAX {
            self.out.warnings.push(error.to_string());
        }
        if ends {
            self.budget = None;
        }
    }

    /// The result of the rule's `messageExpression`.
    fn message(
        &mut self,
        rule: &Rule,
        text: &RuleText,
        selves: &Selves<'_>,
    ) -> Result<String, NoMessage> {
        let Ok(Some(program)) = &rule.compiled.message else { return Err(NoMessage::Told) };
        let (result, cost) = evaluate(program, selves);
        let Some(left) = self.budget.and_then(|budget| budget.checked_sub(cost)) else {
            let text = "messageExpression evaluation failed due to running out of cost budget, no further validation rules will be run";
            return Err(NoMessage::Ends(text.into()));
        };
        if let Err(error) = &result
            && error.limit
        {
            let source = go_quote(&text.message_expression);
            return Err(NoMessage::Ends(format!(
                "no further validation rules will be run due to call cost exceeds limit for messageExpression: {source}"
            )));
        }
        self.budget = Some(left);
        let value = result.map_err(|_| NoMessage::Told)?;
        let message = value.as_str().unwrap_or_default().trim();
        let fits = !message.is_empty() && message.len() <= MESSAGE_BYTES_MAX;
        if fits && !message.contains('\n') { Ok(message.to_owned()) } else { Err(NoMessage::Told) }
    }
}

/// Evaluates an expression and returns its result and cost.
fn evaluate<'a>(program: &Program, selves: &Selves<'a>) -> (Result<Cel<'a>, kcel::Error>, u64) {
    let mut left = PER_CALL;
    let result = program.eval(selves, &mut left);
    (result, PER_CALL.saturating_sub(left))
}

/// An error with the type of the value in place of the value.
fn about(node: &Node, path: &Path, why: &str) -> Error {
    Error::invalid(path, node.kind.map_or("", |kind| kind.name()), why)
}

/// The text that identifies a rule in errors: its message, or else its expression.
fn told(text: &RuleText) -> &str {
    if text.message.is_empty() { text.rule.trim() } else { text.message.trim() }
}

fn own_message(text: &RuleText) -> String {
    if text.message.is_empty() {
        format!("failed rule: {}", told(text))
    } else {
        told(text).to_owned()
    }
}

fn of_reason(reason: &str, path: &Path, spot: &Spot<'_, '_>, detail: String) -> Error {
    let large = matches!(spot.new, Value::Array(_) | Value::Object(_));
    let shown = || if large { Value::Null } else { spot.new.clone() };
    let mut error = match reason {
        "FieldValueForbidden" => Error::forbidden(path, detail),
        "FieldValueRequired" => Error::required(path, detail),
        "FieldValueDuplicate" => Error::duplicate(path, shown()),
        _ => Error::invalid(path, shown(), detail),
    };
    error.omit_value = large;
    error
}
