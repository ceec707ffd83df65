//! Validation of the CEL rules in schemas: whether they compile, their estimated cost, and where
//! they can use `oldSelf` (`pkg/apis/apiextensions/validation/{validation,cel_validation}.go`).

use std::sync::Arc;

use kcel::limits::{STATIC_PER_DEFINITION, STATIC_PER_EXPRESSION};
use serde_json::{Value, json};
use sorting::CompactSort as _;

use crate::custom::{Additional, Compiled, Decl, Node, SELF_TYPE, Type, compile};
use crate::field::{Error, ErrorList, Path, escape_html};
use crate::value::{get, has, items, str_at};

const RULES: &str = "x-kubernetes-validations";
/// Number of the most expensive rules that are reported.
const EXPENSIVE_MAX: usize = 4;

/// The context of a schema for the validation of its rules.
#[derive(Clone)]
pub(super) struct Context<'a> {
    node: &'a Node,
    root: bool,
    /// `None` if neither this schema nor one above it has rules; `Err` if the schema has no CEL
    /// type.
    decl: Option<Result<Arc<Decl>, ()>>,
    /// How often a value of this schema can occur in an object; `None` if unbounded.
    cardinality: Option<u64>,
}

/// The step from a schema to a schema directly below it.
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

    /// The context of a schema below this one; `None` if it has no rules.
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

    /// Sets the CEL type of the schema if it has rules, or if a schema above it has rules
    /// (`within`).
    fn find(&mut self, within: Option<bool>) {
        if within == Some(true) || !self.node.rules.is_empty() {
            let root = self.root || self.node.embedded;
            self.decl = Some(Decl::of(self.node, root, SELF_TYPE).ok_or(()));
        }
    }
}

/// The maximum number of elements of a value; `None` if unbounded.
fn elements(node: &Node) -> Option<u64> {
    let limit = |limit: Option<i64>| Some(u64::try_from(limit?).unwrap_or(0));
    match node.kind {
        Some(Type::Object) if node.additional.is_some() => limit(node.checks.max_properties),
        Some(Type::Array) => limit(node.checks.max_items),
        _ => Some(1),
    }
}

/// The total estimated cost of all rules of a schema, with the most expensive rules.
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
        self.expensive.compact_sort_by_key(|(cost, _)| std::cmp::Reverse(*cost));
        self.expensive.truncate(EXPENSIVE_MAX);
    }

    /// Returns errors if the total exceeds the limit.
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

/// The rules of one schema and the conditions under which they are validated.
pub(super) struct Rules<'a> {
    /// The schema's JSON.
    pub(super) schema: &'a Value,
    pub(super) path: &'a Path,
    /// The schema is unchanged: the limit on the cost of a single expression does not apply.
    pub(super) accepted: bool,
    /// The outermost schema below which new values cannot be correlated with old ones.
    pub(super) uncorrelated: Option<&'a Path>,
}

impl Rules<'_> {
    /// Returns the errors of the rules and adds their costs to `total`.
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

/// Prints a rule as Go prints upstream's internal type.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validation::tests::same;

    /// `getCostErrorMessage` of `pkg/apis/apiextensions/validation`.
    #[test]
    fn costs_above_the_limit_are_shown_by_their_factor() {
        let check = |cost: u64, factor: &str| {
            let text = too_costly("cost", cost, 1000);
            let start = format!("cost exceeds budget by factor of {factor} (try simplifying");
            assert!(text.starts_with(&start), "{text}");
        };
        check(1001, "1.001000x");
        check(1499, "1.499000x");
        check(1500, "1.5x");
        check(20_000, "20.0x");
        check(100_000, "100.0x");
        check(100_001, "more than 100x");
    }

    /// `ValidateCustomResourceDefinitionOpenAPISchema` and `TotalCost` of
    /// `pkg/apis/apiextensions/validation`.
    #[test]
    fn the_most_expensive_rules_are_named_when_all_together_cost_too_much() {
        const TEXT: &str = "Forbidden: contributed to estimated rule cost total exceeding cost \
            limit for entire OpenAPIv3 schema";
        let of = |costs: &[u64]| {
            let mut total = Total::default();
            for (index, cost) in costs.iter().enumerate() {
                total.add(Path::new("r").index(index), *cost);
            }
            total.errors(&Path::new("s"))
        };
        let limit = STATIC_PER_DEFINITION;
        same(&of(&[]), &[]);
        same(&of(&[limit]), &[]);
        same(
            &of(&[1, limit, limit * 2]),
            &[
                &format!("r[2]: {TEXT}"),
                &format!("r[1]: {TEXT}"),
                "s: Forbidden: x-kubernetes-validations estimated rule cost total for entire \
                 OpenAPIv3 schema exceeds budget by factor of 3.0x (try simplifying the rule...",
            ],
        );
        assert_eq!(of(&[limit; 6]).len(), EXPENSIVE_MAX + 1);
    }
}
