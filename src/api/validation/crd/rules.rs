//! Expressions in schemas: whether they compile, what they may cost, where `oldSelf` can be known
//! (`pkg/apis/apiextensions/validation/{validation,cel_validation}.go`).

use std::sync::Arc;

use kcel::limits::{STATIC_PER_DEFINITION, STATIC_PER_EXPRESSION};
use serde_json::{Value, json};

use crate::custom::{Additional, Compiled, Decl, Node, SELF_TYPE, Type, compile};
use crate::field::{Error, ErrorList, Path, escape_html};
use crate::value::{get, has, items, str_at};

const RULES: &str = "x-kubernetes-validations";
/// Number of the most expensive rules that are reported.
const EXPENSIVE_MAX: usize = 4;

/// What is known of a schema when its rules are looked at.
#[derive(Clone)]
pub(super) struct Context<'a> {
    node: &'a Node,
    root: bool,
    /// None when no rules are here or above; an error where rules cannot see the values.
    decl: Option<Result<Arc<Decl>, ()>>,
    /// How often such a value can be in an object; `None` when nothing bounds it.
    cardinality: Option<u64>,
}

/// A way from a schema to one in it.
#[derive(Clone, Copy)]
pub(super) enum Step<'a> {
    Property(&'a str),
    Values,
    Items,
}

impl<'a> Context<'a> {
    pub(super) fn root(node: &'a Node) -> Self {
        let mut context = Self { node, root: true, decl: None, cardinality: Some(1) };
        context.find(None);
        context
    }

    /// The context of a schema in this one; `None` when there are no rules.
    pub(super) fn below(&self, step: Step<'_>) -> Option<Self> {
        let node = match step {
            Step::Property(name) => self.node.properties.get(name)?,
            Step::Items => self.node.items.as_ref()?,
            Step::Values => match &self.node.additional {
                Some(Additional::Schema(below)) => below,
                _ => return None,
            },
        };
        if !node.rules_below {
            return None;
        }
        let times = self.cardinality.zip(elements(self.node));
        let cardinality = times.map(|(known, more)| known.saturating_mul(more));
        let mut context = Self { node, root: false, decl: None, cardinality };
        let known = match &self.decl {
            None => None,
            Some(Err(())) => Some(Err(())),
            Some(Ok(decl)) => match step {
                Step::Property(name) => decl.property(name),
                Step::Items | Step::Values => decl.element(),
            }
            .map(|below| Ok(Arc::clone(below))),
        };
        let within = self.decl.is_some();
        match known {
            Some(known) => context.decl = Some(known),
            None => context.find(Some(within)),
        }
        Some(context)
    }

    /// Makes the type of the schema, where rules are here, or above as `within` says.
    fn find(&mut self, within: Option<bool>) {
        if within == Some(true) || !self.node.rules.is_empty() {
            let root = self.root || self.node.embedded;
            self.decl = Some(Decl::of(self.node, root, SELF_TYPE).ok_or(()));
        }
    }
}

/// By how much a schema multiplies what is in it.
fn elements(node: &Node) -> Option<u64> {
    let limit = |limit: Option<i64>| Some(u64::try_from(limit?).unwrap_or(0));
    match node.kind {
        Some(Type::Object) if node.additional.is_some() => limit(node.checks.max_properties),
        Some(Type::Array) => limit(node.checks.max_items),
        _ => Some(1),
    }
}

/// What all rules of a schema may cost together.
#[derive(Default)]
pub(super) struct Total {
    cost: u64,
    expensive: Vec<(u64, Path)>,
}

impl Total {
    fn add(&mut self, path: Path, cost: u64) {
        self.cost = self.cost.saturating_add(cost);
        if cost < STATIC_PER_DEFINITION / 100 {
            return;
        }
        self.expensive.push((cost, path));
        self.expensive.sort_by_key(|(cost, _)| std::cmp::Reverse(*cost));
        self.expensive.truncate(EXPENSIVE_MAX);
    }

    /// Errors when that is too much.
    pub(super) fn errors(&self, path: &Path) -> ErrorList {
        if self.cost <= STATIC_PER_DEFINITION {
            return ErrorList::new();
        }
        let text = "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema";
        let mut errors: ErrorList =
            self.expensive.iter().map(|(_, path)| Error::forbidden(path, text)).collect();
        let what = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
        errors.push(Error::forbidden(path, too_costly(what, self.cost, STATIC_PER_DEFINITION)));
        errors
    }
}

/// What holds for the rules of one schema.
pub(super) struct Rules<'a> {
    /// The schema's JSON.
    pub(super) schema: &'a Value,
    pub(super) path: &'a Path,
    /// The schema was accepted before: each rule may cost what it did.
    pub(super) accepted: bool,
    /// Below this schema no old value can be correlated.
    pub(super) uncorrelated: Option<&'a Path>,
}

impl Rules<'_> {
    /// Errors of the expressions of a schema.
    pub(super) fn errors(&self, context: &Context<'_>, total: &mut Total) -> ErrorList {
        let path = self.path.child(RULES);
        let decl = match &context.decl {
            Some(Ok(decl)) => decl,
            _ => {
                let why = "internal error: failed to construct type information for x-kubernetes-validations rules: unable to convert structural schema to CEL declarations";
                return vec![Error::internal(&path, why)];
            }
        };
        let compiled = compile(&context.node.rules, decl);
        let rules = items(self.schema, RULES).iter().zip(compiled).enumerate();
        rules
            .flat_map(|(index, (rule, compiled))| {
                self.one(rule, &compiled, &path.index(index), context, decl, total)
            })
            .collect()
    }

    fn one(
        &self,
        rule: &Value,
        compiled: &Compiled,
        path: &Path,
        context: &Context<'_>,
        decl: &Decl,
        total: &mut Total,
    ) -> ErrorList {
        let mut errors = ErrorList::new();
        let (at_rule, at_message) = (path.child("rule"), path.child("messageExpression"));
        let times = context.cardinality.unwrap_or_else(|| decl.cardinality());
        let mut costs = |what: &str, cost: u64, path: &Path| {
            total.add(path.clone(), cost);
            let costly = !self.accepted && cost > STATIC_PER_EXPRESSION;
            costly.then(|| Error::forbidden(path, too_costly(what, cost, STATIC_PER_EXPRESSION)))
        };
        match &compiled.program {
            Ok(Some(program)) => {
                let cost = program.estimate(decl).max.saturating_mul(times);
                errors.extend(costs("estimated rule cost", cost, &at_rule));
            }
            Ok(None) => {}
            Err(error) => {
                errors.push(Error::omitted(&at_rule, error.to_string()).printed(&shown(rule)));
            }
        }
        match &compiled.message {
            Ok(Some(program)) => {
                let cost = program.estimate(decl).max;
                errors.extend(costs("estimated messageExpression cost", cost, &at_message));
            }
            Ok(None) => {}
            Err(error) => {
                errors.push(Error::omitted(&at_message, error.to_string()).printed(&shown(rule)));
            }
        }
        if compiled.uses_old {
            if let Some(within) = self.uncorrelated {
                let text = format!(
                    "oldSelf cannot be used on the uncorrelatable portion of the schema within {within}"
                );
                errors.push(Error::invalid(&at_rule, str_at(rule, "rule"), text));
            }
        } else if has(rule, "optionalOldSelf") {
            let text = "may not be set if oldSelf is not used in rule";
            let value = get(rule, "optionalOldSelf").clone();
            errors.push(Error::invalid(&path.child("optionalOldSelf"), value, text));
        }
        errors
    }
}

/// A rule as Go writes the type that upstream has for it.
fn shown(rule: &Value) -> String {
    let text = |key: &str| json!(str_at(rule, key)).to_string();
    let given = |key: &str| get(rule, key).to_string();
    escape_html(&format!(
        "{{\"Rule\":{},\"Message\":{},\"MessageExpression\":{},\"Reason\":{},\"FieldPath\":{},\"OptionalOldSelf\":{}}}",
        text("rule"),
        text("message"),
        text("messageExpression"),
        given("reason"),
        text("fieldPath"),
        given("optionalOldSelf")
    ))
}

fn too_costly(what: &str, cost: u64, limit: u64) -> String {
    let times = cost as f64 / limit as f64;
    let factor = if times > 100.0 {
        "more than 100x".to_owned()
    } else if times < 1.5 {
        format!("{times:.6}x")
    } else {
        format!("{times:.1}x")
    };
    format!(
        "{what} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)"
    )
}
