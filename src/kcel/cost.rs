//! The minimum and maximum cost of an expression: cel-go's static estimate with Kubernetes'
//! estimator. The cost decides which rules a CustomResourceDefinition may have, so that it matches
//! upstream exactly.

mod functions;
mod range;

use std::collections::HashMap;

use crate::ast::{Comprehension, Expr, Id, Kind, Literal};
use crate::checked::Checked;
use crate::parser::ACCUMULATOR;
use crate::types::Type;
pub use range::Range;

/// The known sizes of variables.
pub trait SizeEstimator {
    /// Returns the size of the value at a path: a variable, then names of fields, `@items`,
    /// `@keys`, `@values` and `@indices`. `None` if it is unknown.
    fn size(&self, path: &[String]) -> Option<Range>;
}

/// No sizes are known.
#[derive(Clone, Copy, Debug)]
pub struct Unknown;

impl SizeEstimator for Unknown {
    fn size(&self, _path: &[String]) -> Option<Range> {
        None
    }
}

pub(crate) const UNKNOWN: Range = Range { min: 0, max: u64::MAX };

pub(crate) fn estimate(checked: &Checked, sizes: &dyn SizeEstimator) -> Range {
    let mut coster = Coster {
        checked,
        sizes,
        paths: HashMap::new(),
        computed: HashMap::new(),
        entries: HashMap::new(),
        locals: Vec::new(),
    };
    coster.cost(&checked.root)
}

/// Sizes of the keys and values of a list or map literal.
#[derive(Clone, Copy)]
struct EntrySize {
    list: bool,
    key: Range,
    value: Range,
}

impl EntrySize {
    fn union(self, other: EntrySize) -> EntrySize {
        let (key, value) = (self.key.union(other.key), self.value.union(other.value));
        EntrySize { list: self.list, key, value }
    }
}

/// A loop variable.
#[derive(Clone)]
struct Local<'e> {
    name: &'e str,
    path: Vec<String>,
    size: Option<Range>,
    entry: Option<EntrySize>,
}

struct Coster<'e> {
    checked: &'e Checked,
    sizes: &'e dyn SizeEstimator,
    paths: HashMap<Id, Vec<String>>,
    computed: HashMap<Id, Range>,
    entries: HashMap<Id, EntrySize>,
    locals: Vec<Local<'e>>,
}

/// An argument of a function.
struct Argument<'e> {
    expr: &'e Expr,
    size: Option<Range>,
    path: Vec<String>,
    of: Type,
}

/// The cost of a call, and the size of its result if known.
struct CallCost {
    cost: Range,
    size: Option<Range>,
}

fn is_scalar(of: &Type) -> bool {
    match of {
        Type::Bool | Type::Double | Type::Duration | Type::Int | Type::Timestamp | Type::Uint => {
            true
        }
        other => other.unwrap_optional().is_some_and(is_scalar),
    }
}

/// Returns the size of a literal.
fn written(expr: &Expr) -> Option<Range> {
    let size = match &expr.kind {
        Kind::Literal(Literal::String(text)) => text.chars().count(),
        Kind::Literal(Literal::Bytes(bytes)) => bytes.len(),
        Kind::Literal(_) => 1,
        Kind::List { elements } => elements.len(),
        Kind::Map { entries } => entries.len(),
        _ => return None,
    };
    Some(Range::fixed(size as u64))
}

impl<'e> Coster<'e> {
    fn of(&self, expr: &Expr) -> &'e Type {
        self.checked.type_of(expr.id)
    }

    fn local(&self, name: &str) -> Option<&Local<'e>> {
        self.locals.iter().rev().find(|local| local.name == name)
    }

    fn path(&self, expr: &Expr) -> Vec<String> {
        if let Kind::Ident(name) = &expr.kind
            && let Some(local) = self.local(name)
        {
            return local.path.clone();
        }
        self.paths.get(&expr.id).cloned().unwrap_or_default()
    }

    /// Returns the path with another step.
    fn below(&self, expr: &Expr, step: &str) -> Vec<String> {
        let mut path = self.path(expr);
        path.push(step.into());
        path
    }

    fn size(&mut self, expr: &Expr) -> Option<Range> {
        if let Some(size) = self.computed.get(&expr.id) {
            return Some(*size);
        }
        if let Some(size) = written(expr) {
            return Some(size);
        }
        if let Some(size) = self.sizes.size(&self.path(expr)) {
            self.computed.insert(expr.id, size);
            return Some(size);
        }
        if is_scalar(self.of(expr)) {
            return Some(Range::fixed(1));
        }
        match &expr.kind {
            Kind::Ident(name) => self.local(name).and_then(|local| local.size),
            _ => None,
        }
    }

    fn size_or_unknown(&mut self, expr: &Expr) -> Range {
        self.size(expr).unwrap_or(UNKNOWN)
    }

    fn entry_size(&self, expr: &Expr) -> Option<EntrySize> {
        if let Some(size) = self.entries.get(&expr.id) {
            return Some(*size);
        }
        match &expr.kind {
            Kind::Ident(name) => self.local(name).and_then(|local| local.entry),
            _ => None,
        }
    }

    fn set_size(&mut self, id: Id, size: Option<Range>) {
        self.computed.extend(size.map(|size| (id, size)));
    }

    fn set_entry(&mut self, id: Id, size: Option<EntrySize>) {
        self.entries.extend(size.map(|size| (id, size)));
    }

    fn cost(&mut self, expr: &'e Expr) -> Range {
        match &expr.kind {
            Kind::Unspecified | Kind::Literal(_) => Range::fixed(0),
            Kind::Ident(name) => {
                let path = match self.local(name) {
                    Some(local) => local.path.clone(),
                    None => vec![name.clone()],
                };
                self.paths.insert(expr.id, path);
                Range::fixed(1)
            }
            Kind::Select { operand, field, test } => {
                let mut sum = self.cost(operand);
                if *test {
                    return sum;
                }
                if matches!(self.of(operand), Type::Map(..) | Type::Object(_) | Type::Param(_)) {
                    sum = sum.add(Range::fixed(1));
                }
                let path = self.below(operand, field);
                self.paths.insert(expr.id, path);
                sum
            }
            Kind::Call { target, function, args } => {
                self.call(expr, target.as_deref(), function, args)
            }
            Kind::List { elements } => {
                let mut sum = Range::fixed(0);
                let mut items =
                    Range { min: if elements.is_empty() { 0 } else { u64::MAX }, max: 0 };
                for element in elements {
                    sum = sum.add(self.cost(&element.value));
                    items = items.union(self.size_or_unknown(&element.value));
                }
                let entry = EntrySize { list: true, key: Range::fixed(1), value: items };
                self.set_entry(expr.id, Some(entry));
                sum.add(Range::fixed(10))
            }
            Kind::Map { entries } => {
                let mut sum = Range::fixed(0);
                let none = Range { min: if entries.is_empty() { 0 } else { u64::MAX }, max: 0 };
                let (mut keys, mut values) = (none, none);
                for entry in entries {
                    sum = sum.add(self.cost(&entry.key)).add(self.cost(&entry.value));
                    keys = keys.union(self.size_or_unknown(&entry.key));
                    values = values.union(self.size_or_unknown(&entry.value));
                }
                let entry = EntrySize { list: false, key: keys, value: values };
                self.set_entry(expr.id, Some(entry));
                sum.add(Range::fixed(30))
            }
            Kind::Struct { fields, .. } => {
                let costs = fields.iter().map(|field| self.cost(&field.value));
                costs.fold(Range::fixed(40), Range::add)
            }
            Kind::Comprehension(fold) => self.fold(expr, fold),
        }
    }

    fn call(
        &mut self,
        expr: &'e Expr,
        target: Option<&'e Expr>,
        function: &str,
        args: &'e [Expr],
    ) -> Range {
        if function == "dyn"
            && let [arg] = args
        {
            let cost = self.cost(arg);
            let (size, entry) = (self.size(arg), self.entry_size(arg));
            self.set_size(expr.id, size);
            self.set_entry(expr.id, entry);
            return cost.add(Range::fixed(1));
        }
        let mut costs = Vec::with_capacity(args.len());
        let mut arguments = Vec::with_capacity(args.len());
        for arg in args {
            costs.push(self.cost(arg));
            arguments.push(self.argument(arg));
        }
        let Some(overloads) = self.checked.overloads.get(&expr.id) else { return Range::fixed(0) };
        let mut sum = Range::fixed(0);
        let target = target.map(|target| {
            sum = sum.add(self.cost(target));
            self.argument(target)
        });
        let mut cost = Range { min: u64::MAX, max: 0 };
        let mut result: Option<Range> = None;
        for overload in overloads {
            let one = self.overload(expr, function, overload, target.as_ref(), &arguments, &costs);
            cost = cost.union(one.cost);
            result = match (result, one.size) {
                (Some(known), Some(size)) => Some(known.union(size)),
                (known, size) => known.or(size),
            };
            let step = match *overload {
                "index_list" => Some("@items"),
                "index_map" => Some("@values"),
                _ => None,
            };
            if let (Some(step), Some(first)) = (step, args.first()) {
                result = self.entry_size(first).map(|entry| entry.value);
                let path = self.below(first, step);
                self.paths.insert(expr.id, path);
            }
            if result.is_none() {
                result = self.size(expr);
            }
        }
        self.set_size(expr.id, result);
        sum.add(cost)
    }

    fn argument(&mut self, expr: &'e Expr) -> Argument<'e> {
        let mut path = self.path(expr);
        if path.first().is_some_and(|first| first == ACCUMULATOR || first == "@result") {
            path.clear();
        }
        let size = self.size(expr);
        Argument { expr, size, path, of: self.of(expr).clone() }
    }

    /// Estimates an overload with its arguments: by Kubernetes' estimator first, then by cel-go's.
    fn overload(
        &mut self,
        expr: &Expr,
        function: &str,
        overload: &str,
        target: Option<&Argument<'e>>,
        args: &[Argument<'e>],
        costs: &[Range],
    ) -> CallCost {
        let paid = costs.iter().copied().fold(Range::fixed(0), Range::add);
        if let Some(known) = self.library(function, overload, target, args) {
            return CallCost { cost: known.cost.add(paid), size: known.size };
        }
        match (overload, costs, args) {
            ("logical_or" | "logical_and", [left, right], _) => {
                let cost = Range { min: left.min, max: left.add(*right).max };
                return CallCost { cost, size: None };
            }
            ("conditional", [condition, yes, no], [_, first, second]) => {
                let size = first.size.unwrap_or(UNKNOWN).union(second.size.unwrap_or(UNKNOWN));
                let entry = self.entry_size(first.expr).zip(self.entry_size(second.expr));
                self.set_entry(expr.id, entry.map(|(a, b)| a.union(b)));
                return CallCost { cost: condition.add(yes.union(*no)), size: Some(size) };
            }
            ("add_string" | "add_bytes" | "add_list", _, [first, second]) => {
                let size = first.size.unwrap_or(UNKNOWN).add(second.size.unwrap_or(UNKNOWN));
                let entry = self.entry_size(first.expr).zip(self.entry_size(second.expr));
                self.set_entry(expr.id, entry.map(|(a, b)| a.union(b)));
                let cost = if overload == "add_list" { Range::fixed(1) } else { size.scale(0.1) };
                return CallCost { cost: cost.add(paid), size: Some(size) };
            }
            _ => {}
        }
        let standard = functions::standard(overload, target, args);
        CallCost { cost: standard.cost.add(paid), size: standard.size }
    }

    fn push(&mut self, name: &'e str, range: &Expr, list_step: &str, map_step: &str) {
        let entry = self.entry_size(range);
        let list = match entry {
            Some(entry) => entry.list,
            None => matches!(self.of(range), Type::List(_)),
        };
        let step = if list { list_step } else { map_step };
        let size = entry.map(|entry| match step {
            "@items" | "@values" => entry.value,
            _ => entry.key,
        });
        let path = self.below(range, step);
        self.locals.push(Local { name, path, size, entry: None });
    }

    fn fold(&mut self, expr: &'e Expr, fold: &'e Comprehension) -> Range {
        let mut sum = self.cost(&fold.range).add(self.cost(&fold.init));
        let base = self.locals.len();
        let accumulator = Local {
            name: &fold.accumulator,
            path: self.path(&fold.init),
            size: self.size(&fold.init),
            entry: self.entry_size(&fold.init),
        };
        self.locals.push(accumulator);
        if is_bind(fold) {
            sum = sum.add(self.cost(&fold.result));
            self.locals.truncate(base);
            let (size, entry) = (self.size(&fold.result), self.entry_size(&fold.result));
            self.set_size(expr.id, size);
            self.set_entry(expr.id, entry);
            return sum;
        }
        if let Some(second) = &fold.second {
            self.push(&fold.variable, &fold.range, "@indices", "@keys");
            self.push(second, &fold.range, "@items", "@values");
        } else {
            self.push(&fold.variable, &fold.range, "@items", "@keys");
        }
        let turn = self.cost(&fold.condition).add(self.cost(&fold.step));
        let step_entry = self.entry_size(&fold.step);
        self.locals.truncate(base + 1);
        sum = sum.add(self.cost(&fold.result));
        self.locals.truncate(base);
        let count = self.size_or_unknown(&fold.range);
        sum = sum.add(count.multiply(turn));
        match &fold.init.kind {
            Kind::Literal(_) => {
                let size = self.size(&fold.init);
                self.set_size(expr.id, size);
            }
            Kind::List { .. } | Kind::Map { .. } => {
                self.set_size(expr.id, Some(count));
                self.set_entry(expr.id, step_entry);
            }
            _ => {}
        }
        sum
    }
}

/// Whether a loop is over an empty list and only binds a name.
fn is_bind(fold: &Comprehension) -> bool {
    matches!(&fold.range.kind, Kind::List { elements } if elements.is_empty())
        && matches!(fold.condition.kind, Kind::Literal(Literal::Bool(false)))
        && fold.accumulator != ACCUMULATOR
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::Env;

    struct Hints(&'static [(&'static str, u64)]);

    /// An expression, the type of `input`, hints, and the minimum and maximum of the estimate.
    type Row = (&'static str, Type, &'static [(&'static str, u64)], u64, u64);

    impl SizeEstimator for Hints {
        fn size(&self, path: &[String]) -> Option<Range> {
            let path = path.join(".");
            let (_, max) = self.0.iter().find(|(known, _)| *known == path)?;
            Some(Range { min: 0, max: *max })
        }
    }

    /// Rows of cel-go's `checker/cost_test.go`, with `PresenceTestHasCost(false)` as in
    /// `pkg/cel/environment/base.go` of k8s.io/apiserver.
    #[test]
    fn costs_follow_from_the_expression_and_the_sizes_of_variables() {
        let message = || Type::object("T", BTreeMap::from([("single_int32".into(), Type::Int)]));
        let list = || Type::list(message());
        let rows: &[Row] = &[
            ("\"Hello World!\"", Type::Dyn, &[], 0, 0),
            ("input", Type::list(Type::Int), &[], 1, 1),
            ("input['key']", Type::map(Type::String, Type::String), &[], 2, 2),
            ("input.single_int32", message(), &[], 2, 2),
            ("has(input.single_int32)", message(), &[], 1, 1),
            ("[1, 2, 3]", Type::Dyn, &[], 10, 10),
            ("{\"a\": 1, \"b\": 2, \"c\": 3}", Type::Dyn, &[], 30, 30),
            ("input.all(x, true)", list(), &[("input", 100)], 2, 302),
            (
                "input.all(x, x.all(y, true))",
                Type::list(list()),
                &[("input", 50), ("input.@items", 10)],
                2,
                1752,
            ),
            ("[1, 2, 3].all(x, true)", Type::Dyn, &[], 20, 20),
            ("input.matches('[0-9]')", Type::String, &[("input", 500)], 3, 103),
            ("'123'.matches('[0-9]')", Type::Dyn, &[], 2, 2),
            ("input || input || input || input", Type::Bool, &[], 1, 4),
            ("2 in [1, 2, 3]", Type::Dyn, &[], 13, 13),
            ("true ? 1 : 2", Type::Dyn, &[], 0, 0),
        ];
        for (expr, of, hints, min, max) in rows {
            let program = Env::new().variable("input", of.clone()).compile_any(expr).unwrap();
            assert_eq!(program.estimate(&Hints(hints)), Range { min: *min, max: *max }, "{expr}");
        }
    }
}
