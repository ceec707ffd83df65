//! Expansion of macros such as `has`, `all` and `map`.

use super::Parser;
use crate::ast::{Comprehension, Element, Expr, Field, Id, Kind, Literal, MapEntry};

/// The accumulator variable of loops. Users can write its name, but macros reject it as the name of
/// their variable.
pub(crate) const ACCUMULATOR: &str = "__result__";
/// Name of a loop variable that is not read.
const UNUSED: &str = "#unused";
const OVERWRITES: &str = "iteration variable overwrites accumulator variable";

/// An invalid macro call: the node, and the error text.
struct Wrong(Id, String);

type Expanded = Result<Expr, Wrong>;

impl Parser<'_> {
    pub(super) fn global_call(&mut self, id: Id, function: String, mut args: Vec<Expr>) -> Expr {
        if function != "has" || args.len() != 1 {
            return Expr { id, kind: Kind::Call { target: None, function, args } };
        }
        let expanded = match args.pop().map(|arg| (arg.id, arg.kind)) {
            Some((_, Kind::Select { operand, field, .. })) => {
                Ok(self.node(id, Kind::Select { operand, field, test: true }))
            }
            Some((arg, _)) => Err(Wrong(arg, "invalid argument to has() macro".into())),
            None => Err(Wrong(id, "invalid argument to has() macro".into())),
        };
        self.finish(id, expanded)
    }

    pub(super) fn member_call(
        &mut self,
        id: Id,
        function: String,
        target: Expr,
        args: Vec<Expr>,
    ) -> Expr {
        let expanded = match (function.as_str(), args.len()) {
            ("all" | "exists" | "exists_one", 2 | 3) | ("existsOne", 3) => {
                self.quantifier(id, &function, target, args)
            }
            ("map", 2 | 3) | ("filter", 2) => self.transform(id, &function, target, args),
            ("transformList" | "transformMap" | "transformMapEntry", 3 | 4) => {
                self.transform_two(id, &function, target, args)
            }
            ("optMap" | "optFlatMap", 2) => self.optional(id, &function, target, args),
            ("sortBy", 2) => self.sort_by(id, target, args),
            ("bind", 3)
                if self.bindings && matches!(&target.kind, Kind::Ident(name) if name == "cel") =>
            {
                self.cel_bind(id, args)
            }
            _ => {
                let target = Some(Box::new(target));
                return Expr { id, kind: Kind::Call { target, function, args } };
            }
        };
        self.finish(id, expanded)
    }

    fn finish(&mut self, id: Id, expanded: Expanded) -> Expr {
        let result = match expanded {
            Ok(expr) => {
                self.forget(id);
                return expr;
            }
            Err(wrong) => wrong,
        };
        let offset = self.offsets.0.get(result.0).copied().flatten().unwrap_or(0);
        self.forget(id);
        self.report(offset, result.1)
    }

    fn node(&mut self, like: Id, kind: Kind) -> Expr {
        Expr { id: self.id_like(like), kind }
    }

    fn invoke(&mut self, like: Id, function: &str, args: Vec<Expr>) -> Expr {
        self.node(like, Kind::Call { target: None, function: function.into(), args })
    }

    fn invoke_on(&mut self, like: Id, function: &str, target: Expr) -> Expr {
        let target = Some(Box::new(target));
        self.node(like, Kind::Call { target, function: function.into(), args: Vec::new() })
    }

    fn constant(&mut self, like: Id, value: Literal) -> Expr {
        self.node(like, Kind::Literal(value))
    }

    fn ident(&mut self, like: Id, name: &str) -> Expr {
        self.node(like, Kind::Ident(name.into()))
    }

    fn collected(&mut self, like: Id) -> Expr {
        self.ident(like, ACCUMULATOR)
    }

    fn list_of(&mut self, like: Id, values: Vec<Expr>) -> Expr {
        let elements = values.into_iter().map(|value| Element { value, optional: false }).collect();
        self.node(like, Kind::List { elements })
    }

    /// Checks one or two variables: simple names that differ from each other and from the
    /// accumulator.
    fn variables(args: &[Expr], count: usize, message: &str) -> Result<Vec<String>, Wrong> {
        let mut names: Vec<(Id, String)> = Vec::new();
        for arg in args.iter().take(count) {
            match &arg.kind {
                Kind::Ident(name) => names.push((arg.id, name.clone())),
                _ => return Err(Wrong(arg.id, message.into())),
            }
        }
        if let [(_, first), (id, second)] = names.as_slice()
            && first == second
        {
            return Err(Wrong(*id, format!("duplicate variable name: {first}")));
        }
        if let Some((id, _)) = names.iter().find(|(_, name)| name == ACCUMULATOR) {
            return Err(Wrong(*id, OVERWRITES.into()));
        }
        Ok(names.into_iter().map(|(_, name)| name).collect())
    }

    fn quantifier(&mut self, id: Id, name: &str, target: Expr, mut args: Vec<Expr>) -> Expanded {
        let count = args.len() - 1;
        let names = Self::variables(&args, count, "argument must be a simple name")?;
        let predicate = args.pop().unwrap_or(Expr { id, kind: Kind::Unspecified });
        let (init, condition, step, result);
        match name {
            "all" => {
                init = self.constant(id, Literal::Bool(true));
                let so_far = self.collected(id);
                condition = self.invoke(id, "@not_strictly_false", vec![so_far]);
                let so_far = self.collected(id);
                step = self.invoke(id, "_&&_", vec![so_far, predicate]);
                result = self.collected(id);
            }
            "exists" => {
                init = self.constant(id, Literal::Bool(false));
                let so_far = self.collected(id);
                let not = self.invoke(id, "!_", vec![so_far]);
                condition = self.invoke(id, "@not_strictly_false", vec![not]);
                let so_far = self.collected(id);
                step = self.invoke(id, "_||_", vec![so_far, predicate]);
                result = self.collected(id);
            }
            _ => {
                init = self.constant(id, Literal::Int(0));
                condition = self.constant(id, Literal::Bool(true));
                let (so_far, one) = (self.collected(id), self.constant(id, Literal::Int(1)));
                let more = self.invoke(id, "_+_", vec![so_far, one]);
                let same = self.collected(id);
                step = self.invoke(id, "_?_:_", vec![predicate, more, same]);
                let (so_far, one) = (self.collected(id), self.constant(id, Literal::Int(1)));
                result = self.invoke(id, "_==_", vec![so_far, one]);
            }
        }
        Ok(self.fold(id, target, names, [init, condition, step, result]))
    }

    fn fold(&mut self, id: Id, range: Expr, names: Vec<String>, parts: [Expr; 4]) -> Expr {
        let [init, condition, step, result] = parts;
        let mut names = names.into_iter();
        let fold = Comprehension {
            range,
            variable: names.next().unwrap_or_default(),
            second: names.next(),
            accumulator: ACCUMULATOR.into(),
            init,
            condition,
            step,
            result,
        };
        self.node(id, Kind::Comprehension(Box::new(fold)))
    }

    fn transform(&mut self, id: Id, name: &str, target: Expr, mut args: Vec<Expr>) -> Expanded {
        let names = Self::variables(&args, 1, "argument is not an identifier")?;
        let last = args.pop().unwrap_or(Expr { id, kind: Kind::Unspecified });
        let (filter, value) = match (name, args.len()) {
            ("filter", _) => (Some(last), args.swap_remove(0)),
            (_, 2) => (Some(args.swap_remove(1)), last),
            _ => (None, last),
        };
        let init = self.list_of(id, Vec::new());
        let condition = self.constant(id, Literal::Bool(true));
        let so_far = self.collected(id);
        let one = self.list_of(id, vec![value]);
        let mut step = self.invoke(id, "_+_", vec![so_far, one]);
        if let Some(filter) = filter {
            let same = self.collected(id);
            step = self.invoke(id, "_?_:_", vec![filter, step, same]);
        }
        let result = self.collected(id);
        Ok(self.fold(id, target, names, [init, condition, step, result]))
    }

    fn transform_two(&mut self, id: Id, name: &str, target: Expr, mut args: Vec<Expr>) -> Expanded {
        let names = Self::variables(&args, 2, "argument must be a simple name")?;
        let value = args.pop().unwrap_or(Expr { id, kind: Kind::Unspecified });
        let filter = if args.len() == 3 { args.pop() } else { None };
        let so_far = self.collected(id);
        let mut step = match name {
            "transformList" => {
                let one = self.list_of(id, vec![value]);
                self.invoke(id, "_+_", vec![so_far, one])
            }
            "transformMap" => {
                let key = self.ident(id, names.first().map_or("", |name| name));
                self.invoke(id, "cel.@mapInsert", vec![so_far, key, value])
            }
            _ => self.invoke(id, "cel.@mapInsert", vec![so_far, value]),
        };
        if let Some(filter) = filter {
            let same = self.collected(id);
            step = self.invoke(id, "_?_:_", vec![filter, step, same]);
        }
        let init = match name {
            "transformList" => self.list_of(id, Vec::new()),
            _ => self.node(id, Kind::Map { entries: Vec::new() }),
        };
        let condition = self.constant(id, Literal::Bool(true));
        let result = self.collected(id);
        Ok(self.fold(id, target, names, [init, condition, step, result]))
    }

    /// Binds a name to the value of an expression: a loop over an empty list whose result is
    /// `body`.
    fn bind(&mut self, id: Id, name: String, value: Expr, body: Expr) -> Expr {
        let range = self.list_of(id, Vec::new());
        let condition = self.constant(id, Literal::Bool(false));
        let step = self.ident(id, &name);
        let fold = Comprehension {
            range,
            variable: UNUSED.into(),
            second: None,
            accumulator: name,
            init: value,
            condition,
            step,
            result: body,
        };
        self.node(id, Kind::Comprehension(Box::new(fold)))
    }

    fn cel_bind(&mut self, id: Id, mut args: Vec<Expr>) -> Expanded {
        let body = args.pop().unwrap_or(Expr { id, kind: Kind::Unspecified });
        let value = args.pop().unwrap_or(Expr { id, kind: Kind::Unspecified });
        match args.pop().map(|arg| (arg.id, arg.kind)) {
            Some((_, Kind::Ident(name))) => Ok(self.bind(id, name, value, body)),
            other => {
                let place = other.map_or(id, |(place, _)| place);
                let message = "cel.bind() variable names must be simple identifiers";
                Err(Wrong(place, message.into()))
            }
        }
    }

    fn optional(&mut self, id: Id, name: &str, target: Expr, mut args: Vec<Expr>) -> Expanded {
        let body = args.pop().unwrap_or(Expr { id, kind: Kind::Unspecified });
        let variable = match args.pop().map(|arg| (arg.id, arg.kind)) {
            Some((_, Kind::Ident(variable))) => variable,
            Some((arg, _)) => {
                let message = format!("{name}() variable name must be a simple identifier");
                return Err(Wrong(arg, message));
            }
            None => return Err(Wrong(id, "no variable".into())),
        };
        let copy = self.copy(id, &target);
        let has = self.invoke_on(id, "hasValue", target);
        let value = self.invoke_on(id, "value", copy);
        let mut some = self.bind(id, variable, value, body);
        if name == "optMap" {
            some = self.invoke(id, "optional.of", vec![some]);
        }
        let none = self.invoke(id, "optional.none", Vec::new());
        Ok(self.invoke(id, "_?_:_", vec![has, some, none]))
    }

    fn sort_by(&mut self, id: Id, target: Expr, args: Vec<Expr>) -> Expanded {
        let simple = matches!(target.kind, Kind::Select { .. } | Kind::Ident(_))
            || matches!(
                target.kind,
                Kind::List { .. } | Kind::Comprehension(_) | Kind::Call { .. }
            );
        if !simple {
            let message = "sortBy can only be applied to a list, identifier, comprehension, call or select expression";
            return Err(Wrong(target.id, message.into()));
        }
        let bound = "@__sortBy_input__";
        let varname = self.ident(id, bound);
        let input = self.ident(id, bound);
        let keys = self.transform(id, "map", input, args)?;
        let call = Kind::Call {
            target: Some(Box::new(varname)),
            function: "@sortByAssociatedKeys".into(),
            args: vec![keys],
        };
        let sorted = self.node(id, call);
        Ok(self.bind(id, bound.into(), target, sorted))
    }

    /// Copies a tree with new ids.
    fn copy(&mut self, id: Id, expr: &Expr) -> Expr {
        let number = self.id_like(expr.id);
        let kind = match &expr.kind {
            same @ (Kind::Unspecified | Kind::Literal(_) | Kind::Ident(_)) => same.clone(),
            Kind::Select { operand, field, test } => Kind::Select {
                operand: Box::new(self.copy(id, operand)),
                field: field.clone(),
                test: *test,
            },
            Kind::Call { target, function, args } => {
                let args = args.iter().map(|arg| self.copy(id, arg)).collect();
                let target = target.as_ref().map(|target| Box::new(self.copy(id, target)));
                Kind::Call { target, function: function.clone(), args }
            }
            Kind::List { elements } => Kind::List {
                elements: elements
                    .iter()
                    .map(|e| Element { value: self.copy(id, &e.value), optional: e.optional })
                    .collect(),
            },
            Kind::Map { entries } => Kind::Map {
                entries: entries
                    .iter()
                    .map(|e| MapEntry {
                        id: self.id_like(id),
                        key: self.copy(id, &e.key),
                        value: self.copy(id, &e.value),
                        optional: e.optional,
                    })
                    .collect(),
            },
            Kind::Struct { name, fields } => Kind::Struct {
                name: name.clone(),
                fields: fields
                    .iter()
                    .map(|f| Field {
                        id: self.id_like(id),
                        name: f.name.clone(),
                        value: self.copy(id, &f.value),
                        optional: f.optional,
                    })
                    .collect(),
            },
            Kind::Comprehension(fold) => Kind::Comprehension(Box::new(Comprehension {
                range: self.copy(id, &fold.range),
                variable: fold.variable.clone(),
                second: fold.second.clone(),
                accumulator: fold.accumulator.clone(),
                init: self.copy(id, &fold.init),
                condition: self.copy(id, &fold.condition),
                step: self.copy(id, &fold.step),
                result: self.copy(id, &fold.result),
            })),
        };
        Expr { id: number, kind }
    }
}

#[cfg(test)]
mod tests {
    use crate::parser::tests::{check, check_errors};
    use crate::tests::{check_errors as check_failures, check_values};

    /// Rows of cel-go's `parser/parser_test.go`.
    #[test]
    fn arguments_of_macros_must_have_the_right_form() {
        check(&[
            ("has(m.f)", "m.f~test-only~"),
            ("has(a, b)", "has(a, b)"),
            ("m.map(a)", "m.map(a)"),
        ]);
        let overwrites =
            |at: &str| format!("{at}: iteration variable overwrites accumulator variable");
        check_errors(&[
            ("has(m)", &["1:5: invalid argument to has() macro"]),
            ("1.all(2, 3)", &["1:7: argument must be a simple name"]),
            ("m.filter(a.b, false)", &["1:11: argument is not an identifier"]),
            ("m.map(__result__, __result__)", &[&overwrites("1:7")]),
            ("m.filter(__result__, false)", &[&overwrites("1:10")]),
        ]);
    }

    /// Rows of CEL's conformance tests, `tests/simple/testdata/macros.textproto`.
    #[test]
    fn macros_with_one_variable_loop_over_elements_and_keys() {
        check_values(&[
            ("[1, 2, 3].exists(e, e == 2)", "true"),
            ("{'key1':1, 'key2':2}.exists(k, k == 'key2')", "true"),
            ("[].exists(e, e == 2)", "false"),
            ("[1, 2, 3].all(e, 6 / (2 - e) == 6)", "false"),
            ("[].all(e, e > 0)", "true"),
            ("[6, 7, 8].exists_one(foo, foo % 5 == 2)", "true"),
            ("['foal', 'foo', 'four'].exists_one(n, n.startsWith('fo'))", "false"),
            ("[2, 4, 6].map(n, n / 2)", "[1, 2, 3]"),
            ("[0, 1, 2, 3, 4].filter(x, x % 2 == 1)", "[1, 3]"),
            ("['signer'].filter(signer, ['artifact'].all(artifact, true))", "[signer]"),
        ]);
        check_failures(&[
            ("[1, 2, 3].exists(e, e / 0 == 17)", "division by zero"),
            ("[3, 2, 1, 0].exists_one(n, 12 / n > 1)", "division by zero"),
            ("[2, 1, 0].map(n, 4 / n)", "division by zero"),
        ]);
    }

    /// Rows of CEL's conformance tests, `tests/simple/testdata/macros2.textproto`.
    #[test]
    fn macros_with_two_variables_loop_over_indices_and_keys_with_values() {
        check_values(&[
            ("[1, 2, 3].exists(i, v, i == 1 && v == 2)", "true"),
            ("{'key1':1, 'key2':2}.exists(k, v, k == 'key2' && v == 2)", "true"),
            ("[1, 2, 3].all(i, v, i == 3 || v == 4)", "false"),
            ("[5, 7, 8].existsOne(i, v, v % 5 == i)", "true"),
            ("[2, 4, 6].transformList(i, v, i != 1 && v != 4, v / 2 + i)", "[1, 5]"),
            ("{'foo': 'bar'}.transformMap(k, v, k + v)", "{foo: foobar}"),
        ]);
    }
}
