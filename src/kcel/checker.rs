//! Type checker: resolves the variable, function and overload of each part of an expression, and
//! reports type errors.

mod unify;
mod validators;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::ast::{Comprehension, Element, Expr, Field, Id, Kind, Literal, MapEntry};
use crate::checked::Checked;
use crate::declarations::Function;
use crate::env::Env;
use crate::parser::{Offsets, Parsed};
use crate::source::{CompileError, Fault, Source};
use crate::types::Type;
use unify::{Mapping, most_general, unwrapped};

/// Type-checks an expression in an environment.
pub(crate) fn check(env: &Env, parsed: Parsed) -> Result<Checked, CompileError> {
    let Parsed { source, mut root, offsets } = parsed;
    let mut checker = Checker {
        env,
        source: &source,
        offsets: &offsets,
        faults: Vec::new(),
        types: HashMap::new(),
        overloads: HashMap::new(),
        globals: HashSet::new(),
        types_named: HashSet::new(),
        scopes: Vec::new(),
        mapping: Mapping::default(),
        variables: 0,
    };
    checker.check(&mut root);
    let Checker { mut faults, mut types, overloads, globals, types_named, mapping, .. } = checker;
    // A type variable that is still free is `dyn`.
    for node_type in types.values_mut() {
        *node_type = mapping.substitute(node_type, true);
    }
    let checked = Checked { root, types, overloads, globals, types_named };
    if faults.is_empty() {
        faults = validators::faults(&checked, &source, &offsets);
    }
    if faults.is_empty() { Ok(checked) } else { Err(CompileError::new(&source, faults)) }
}

/// What an identifier refers to.
#[derive(Clone, Copy)]
enum IdentScope {
    /// A loop variable.
    Local,
    /// A variable of the environment.
    Global,
    /// The name of a type.
    Type,
}

/// The state of a check. [`Checked`] has the results.
struct Checker<'e> {
    env: &'e Env,
    source: &'e Source,
    offsets: &'e Offsets,
    faults: Vec<Fault>,
    /// The type of each node, which may have free type variables until the end of the check.
    types: HashMap<Id, Type>,
    overloads: HashMap<Id, Vec<&'static str>>,
    globals: HashSet<Id>,
    types_named: HashSet<Id>,
    /// Loop variables, innermost last.
    scopes: Vec<(String, Type)>,
    /// The types of the free type variables.
    mapping: Mapping,
    /// Number of type variables that were created.
    variables: usize,
}

impl Checker<'_> {
    fn report(&mut self, id: Id, message: String) {
        let location = self.offsets.location(self.source, id);
        self.faults.push(Fault { location, message });
    }

    fn mismatch(&mut self, id: Id, expected: &Type, actual: &Type) {
        self.report(id, format!("expected type '{expected}' but found '{actual}'"));
    }

    fn undeclared(&mut self, id: Id, name: &str) {
        self.report(id, format!("undeclared reference to '{name}' (in container '')"));
        self.types.insert(id, Type::Error);
    }

    /// Sets the type of a node unless it has one.
    fn set_type(&mut self, id: Id, of: Type) {
        self.types.entry(id).or_insert(of);
    }

    /// Returns the type of a checked node, which may contain type variables.
    fn type_of(&self, id: Id) -> Type {
        self.types.get(&id).cloned().unwrap_or(Type::Error)
    }

    /// Creates a free type variable.
    fn new_type_variable(&mut self) -> Type {
        self.variables += 1;
        Type::param(format!("_var{}", self.variables - 1))
    }

    /// Returns the type of a checked node with its type variables replaced where they are bound.
    fn resolved(&self, id: Id) -> Type {
        self.mapping.substitute(&self.type_of(id), false)
    }

    /// Checks a node and its children.
    fn check(&mut self, expr: &mut Expr) {
        let id = expr.id;
        match &mut expr.kind {
            Kind::Unspecified => {}
            Kind::Literal(literal) => {
                let of = literal_type(literal);
                self.set_type(id, of);
            }
            Kind::Ident(name) => {
                let name = name.clone();
                match self.variable(&name) {
                    Some((resolved, of, scope)) => {
                        self.set_type(id, of);
                        self.record_scope(id, scope);
                        expr.kind = Kind::Ident(resolved);
                    }
                    None => self.undeclared(id, &name),
                }
            }
            Kind::Select { .. } => self.select(expr),
            Kind::Call { .. } => self.call(expr),
            Kind::List { elements } => self.list(id, elements),
            Kind::Map { entries } => self.map(id, entries),
            Kind::Struct { name, fields } => self.construct(id, name, fields),
            Kind::Comprehension(fold) => self.comprehension(id, fold),
        }
    }

    /// Records that a node refers to a variable of the environment or to a type.
    fn record_scope(&mut self, id: Id, scope: IdentScope) {
        match scope {
            IdentScope::Local => {}
            IdentScope::Global => {
                self.globals.insert(id);
            }
            IdentScope::Type => {
                self.types_named.insert(id);
            }
        }
    }

    /// Resolves a simple name: returns its runtime name, its type and its scope.
    fn variable(&self, name: &str) -> Option<(String, Type, IdentScope)> {
        let local = self.scopes.iter().rev().find(|(local, _)| local == name);
        if let Some((name, of)) = local {
            return Some((name.clone(), of.clone(), IdentScope::Local));
        }
        let plain = name.strip_prefix('.').unwrap_or(name);
        let (of, is_type) = self.env.identifier(plain)?;
        // The leading dot makes the evaluation skip a loop variable of the same name.
        let is_shadowed = self.scopes.iter().any(|(local, _)| local == plain);
        let name = if is_shadowed { format!(".{plain}") } else { plain.to_owned() };
        Some((name, of, if is_type { IdentScope::Type } else { IdentScope::Global }))
    }

    /// Resolves `a.b.c` as a qualified name, if the environment has it and `a` is not a loop
    /// variable.
    fn qualified(&self, expr: &Expr) -> Option<(String, Type, IdentScope)> {
        let name = dotted(expr)?;
        let first = name.split('.').next()?;
        if self.scopes.iter().any(|(local, _)| local == first) {
            return None;
        }
        let plain = name.strip_prefix('.').unwrap_or(&name);
        let (of, is_type) = self.env.identifier(plain)?;
        Some((plain.to_owned(), of, if is_type { IdentScope::Type } else { IdentScope::Global }))
    }

    /// Checks `a.b`, which is a qualified name or the selection of a field.
    fn select(&mut self, expr: &mut Expr) {
        if let Some((name, of, scope)) = self.qualified(expr) {
            self.set_type(expr.id, of);
            self.record_scope(expr.id, scope);
            expr.kind = Kind::Ident(name);
            return;
        }
        let id = expr.id;
        let Kind::Select { operand, field, test } = &mut expr.kind else { return };
        let (field, test) = (field.clone(), *test);
        let found = self.field(id, operand, &field, false);
        let of = if test { Type::Bool } else { self.mapping.substitute(&found, false) };
        self.set_type(id, of);
    }

    /// Checks an operand and returns the type of its field.
    fn field(&mut self, id: Id, operand: &mut Expr, field: &str, optional: bool) -> Type {
        self.check(operand);
        let (target, was_optional) = unwrapped(&self.resolved(operand.id));
        let result = match &target {
            Type::Map(_, value) => (**value).clone(),
            Type::Object(object) => match self.env.field(object, field) {
                Some(of) => of,
                None => {
                    let message = if self.env.knows(object) {
                        format!("undefined field '{field}'")
                    } else {
                        format!("unexpected failed resolution of '{}'", object.name)
                    };
                    self.report(id, message);
                    Type::Error
                }
            },
            Type::Param(_) => {
                self.mapping.assignable(&Type::Dyn, &target);
                Type::Dyn
            }
            other => {
                if !other.is_dyn_or_error() {
                    self.report(id, format!("type '{other}' does not support field selection"));
                }
                Type::Dyn
            }
        };
        if was_optional || optional { Type::optional(result) } else { result }
    }

    /// Checks a call of a function or method, or an optional selection `a.?b`.
    fn call(&mut self, expr: &mut Expr) {
        let id = expr.id;
        // In `a.b.f()`, `a.b` may be a part of the function's name instead of the target.
        let qualified = match &expr.kind {
            Kind::Call { target: Some(target), function, .. } => {
                dotted(target).map(|prefix| format!("{prefix}.{function}"))
            }
            _ => None,
        };
        let Kind::Call { target, function, args } = &mut expr.kind else { return };
        if function == "_?._"
            && target.is_none()
            && let [operand, name] = args.as_mut_slice()
        {
            let Kind::Literal(Literal::String(name)) = &name.kind else { return };
            let name = name.clone();
            let of = self.field(id, operand, &name, true);
            let of = self.mapping.substitute(&of, false);
            self.set_type(id, of);
            self.overloads.insert(id, vec!["select_optional_field"]);
            return;
        }
        args.iter_mut().for_each(|arg| self.check(arg));
        if target.is_some() {
            let plain = qualified.as_deref().map(|name| name.strip_prefix('.').unwrap_or(name));
            match plain.and_then(|name| self.env.function(name)) {
                Some(found) => {
                    *target = None;
                    found.name.clone_into(function);
                }
                None => {
                    if let Some(target) = target {
                        self.check(target);
                    }
                }
            }
        }
        let plain = function.strip_prefix('.').unwrap_or(function);
        let Some(found) = self.env.function(plain) else {
            let name = function.clone();
            return self.undeclared(id, &name);
        };
        found.name.clone_into(function);
        let target = target.as_ref().map(|target| target.id);
        let ids: Vec<Id> = target.into_iter().chain(args.iter().map(|arg| arg.id)).collect();
        self.resolve(id, found, &ids, target.is_some());
    }

    /// Finds the overloads of a function that its arguments allow. The type of the call is their
    /// result type, or `dyn` if their result types differ.
    fn resolve(&mut self, id: Id, function: &'static Function, args: &[Id], member: bool) {
        let types: Vec<Type> = args.iter().map(|arg| self.type_of(*arg)).collect();
        if matches!(function.name, "_&&_" | "_||_") {
            let mut fits = true;
            for (arg, of) in args.iter().zip(&types) {
                if !self.mapping.assignable(of, &Type::Bool) {
                    self.mismatch(*arg, &Type::Bool, of);
                    fits = false;
                }
            }
            let overload = if function.name == "_&&_" { "logical_and" } else { "logical_or" };
            self.set_type(id, if fits { Type::Bool } else { Type::Error });
            if fits {
                self.overloads.insert(id, vec![overload]);
            }
            return;
        }
        let mut result: Option<Type> = None;
        let mut chosen = Vec::new();
        for overload in function.overloads.iter().filter(|overload| overload.member == member) {
            let mut fresh = HashMap::new();
            for name in &overload.parameters {
                fresh.insert(name.clone(), self.new_type_variable());
            }
            let expected: Vec<Type> = overload.args.iter().map(|of| rename(of, &fresh)).collect();
            if !self.mapping.all_assignable(&types, &expected) {
                continue;
            }
            chosen.push(overload.id);
            let of = self.mapping.substitute(&rename(&overload.result, &fresh), false);
            result = Some(match result {
                None => of,
                Some(known) if !known.is_dyn() && of != known => Type::Dyn,
                Some(known) => known,
            });
        }
        let Some(result) = result else {
            let types: Vec<Type> =
                types.iter().map(|of| self.mapping.substitute(of, true)).collect();
            let signature = signature(&types, member);
            let name = function.name;
            self.report(
                id,
                format!("found no matching overload for '{name}' applied to '{signature}'"),
            );
            self.types.insert(id, Type::Error);
            return;
        };
        self.set_type(id, result);
        self.overloads.insert(id, chosen);
    }

    /// Checks a list literal.
    fn list(&mut self, id: Id, elements: &mut [Element]) {
        let mut common: Option<Type> = None;
        for element in elements {
            self.check(&mut element.value);
            let mut of = self.type_of(element.value.id);
            if element.optional {
                of = self.optional_element(element.value.id, &of);
            }
            common = Some(self.common_type(common, of));
        }
        let of = common.unwrap_or_else(|| self.new_type_variable());
        self.set_type(id, Type::list(of));
    }

    /// Checks a map literal.
    fn map(&mut self, id: Id, entries: &mut [MapEntry]) {
        let (mut keys, mut values): (Option<Type>, Option<Type>) = (None, None);
        for entry in entries {
            self.check(&mut entry.key);
            let of = self.type_of(entry.key.id);
            keys = Some(self.common_type(keys, of));
            self.check(&mut entry.value);
            let mut of = self.type_of(entry.value.id);
            if entry.optional {
                of = self.optional_element(entry.value.id, &of);
            }
            values = Some(self.common_type(values, of));
        }
        let key = keys.unwrap_or_else(|| self.new_type_variable());
        let value = values.unwrap_or_else(|| self.new_type_variable());
        self.set_type(id, Type::map(key, value));
    }

    /// Returns the type of the value in the optional of an element `?value`, and reports a type
    /// that is not optional.
    fn optional_element(&mut self, id: Id, of: &Type) -> Type {
        let (inner, was_optional) = unwrapped(of);
        if !was_optional && !inner.is_dyn() {
            self.mismatch(id, &Type::optional(inner.clone()), &inner);
        }
        inner
    }

    /// Returns the common type of two elements; `validators` checks later whether they may differ.
    fn common_type(&mut self, previous: Option<Type>, current: Type) -> Type {
        let Some(previous) = previous else { return current };
        if self.mapping.assignable(&previous, &current) {
            return most_general(&previous, &current).clone();
        }
        Type::Dyn
    }

    /// Checks a message literal `Type{field: value}`.
    fn construct(&mut self, id: Id, name: &mut String, fields: &mut [Field]) {
        let plain = name.strip_prefix('.').unwrap_or(name).to_owned();
        let Some(of) = self.env.type_named(&plain) else {
            let name = name.clone();
            return self.undeclared(id, &name);
        };
        *name = plain;
        let object = match &of {
            Type::Object(object) => Some(object.clone()),
            other => {
                self.report(id, format!("'{}' is not a message type", other.name()));
                None
            }
        };
        self.set_type(id, if object.is_some() { of.clone() } else { Type::Error });
        for field in fields {
            self.check(&mut field.value);
            let declared = match &object {
                Some(object) => self.env.field(object, &field.name),
                None => None,
            };
            let expected = match declared {
                Some(of) => of,
                None => {
                    let message = match &object {
                        Some(_) => format!("undefined field '{}'", field.name),
                        None => format!("unexpected failed resolution of '{name}'"),
                    };
                    self.report(field.id, message);
                    Type::Error
                }
            };
            let mut actual = self.type_of(field.value.id);
            if field.optional {
                actual = self.optional_element(field.value.id, &actual);
            }
            if !self.mapping.assignable(&expected, &actual) {
                let name = &field.name;
                self.report(field.id, format!("expected type of field '{name}' is '{expected}' but provided type is '{actual}'"));
            }
        }
    }

    /// Checks a comprehension, the expansion of a macro such as `all` or `map`.
    fn comprehension(&mut self, id: Id, fold: &mut Comprehension) {
        self.check(&mut fold.range);
        self.check(&mut fold.init);
        let range = self.resolved(fold.range.id);
        let accumulated = self.type_of(fold.init.id);
        let outer = self.scopes.len();
        self.scopes.push((fold.accumulator.clone(), accumulated.clone()));
        let (first, second) = match &range {
            Type::List(of) if fold.second.is_some() => (Type::Int, (**of).clone()),
            Type::List(of) => ((**of).clone(), Type::Error),
            Type::Map(key, value) => ((**key).clone(), (**value).clone()),
            Type::Dyn | Type::Error | Type::Param(_) => {
                self.mapping.assignable(&Type::Dyn, &range);
                (Type::Dyn, Type::Dyn)
            }
            other => {
                self.report(fold.range.id, format!("expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"));
                (Type::Error, Type::Error)
            }
        };
        let inner = self.scopes.len();
        self.scopes.push((fold.variable.clone(), first));
        if let Some(name) = &fold.second {
            self.scopes.push((name.clone(), second));
        }
        self.check(&mut fold.condition);
        self.expect_type(fold.condition.id, &Type::Bool);
        self.check(&mut fold.step);
        self.expect_type(fold.step.id, &accumulated);
        // The result refers to the accumulator, but not to the loop variables.
        self.scopes.truncate(inner);
        self.check(&mut fold.result);
        self.scopes.truncate(outer);
        let of = self.resolved(fold.result.id);
        self.set_type(id, of);
    }

    /// Reports a checked node whose type is not assignable to the expected one.
    fn expect_type(&mut self, id: Id, expected: &Type) {
        let actual = self.type_of(id);
        if !self.mapping.assignable(expected, &actual) {
            self.mismatch(id, expected, &actual);
        }
    }
}

/// Returns the type of a literal.
fn literal_type(literal: &Literal) -> Type {
    match literal {
        Literal::Null => Type::Null,
        Literal::Bool(_) => Type::Bool,
        Literal::Int(_) => Type::Int,
        Literal::Uint(_) => Type::Uint,
        Literal::Double(_) => Type::Double,
        Literal::String(_) => Type::String,
        Literal::Bytes(_) => Type::Bytes,
    }
}

/// Returns `a.b.c` if the expression consists of plain selections.
fn dotted(expr: &Expr) -> Option<String> {
    match &expr.kind {
        Kind::Ident(name) => Some(name.clone()),
        Kind::Select { operand, field, test: false } => {
            let mut name = dotted(operand)?;
            name.push('.');
            name.push_str(field);
            Some(name)
        }
        _ => None,
    }
}

/// Replaces the type parameters of a signature by fresh type variables.
fn rename(of: &Type, fresh: &HashMap<Arc<str>, Type>) -> Type {
    match of {
        Type::Param(name) => fresh.get(name).cloned().unwrap_or_else(|| of.clone()),
        Type::List(of) => Type::list(rename(of, fresh)),
        Type::Map(key, value) => Type::map(rename(key, fresh), rename(value, fresh)),
        Type::Opaque(name, parameters) => {
            Type::Opaque(name.clone(), parameters.iter().map(|p| rename(p, fresh)).collect())
        }
        Type::Type(Some(of)) => Type::Type(Some(Arc::new(rename(of, fresh)))),
        same => same.clone(),
    }
}

/// Writes the types of a call, such as `string.(int)`, for error messages.
fn signature(types: &[Type], member: bool) -> String {
    let (target, args) = match types {
        [target, args @ ..] if member => (Some(target), args),
        args => (None, args),
    };
    let args: Vec<String> = args.iter().map(Type::to_string).collect();
    let target = target.map(|target| format!("{target}.")).unwrap_or_default();
    format!("{target}({})", args.join(", "))
}

#[cfg(test)]
mod tests;
