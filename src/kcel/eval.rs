//! Evaluates programs, with the costs of cel-go's tracker.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::functions;
use crate::node::{Attr, Call, Fold, Node, Qualifier, QualifierKey, Root};
use crate::program::{Activation, Variables};
use crate::runtime_cost::{self, Cost, LIST_COST, MAP_COST, STRUCT_COST};
use crate::value::{Error, Key, List, Map, Object, Value};

type Result<T> = std::result::Result<T, Error>;

/// A loop variable.
struct Local<'f, 'a> {
    name: &'f str,
    slot: Slot<'f, 'a>,
}

enum Slot<'f, 'a> {
    Value(Result<Value<'a>>),
    /// An accumulator that has not been evaluated yet.
    Pending(&'f Node),
}

/// One evaluation.
pub(crate) struct Frame<'f, 'a> {
    activation: &'f dyn Activation<'a>,
    locals: Vec<Local<'f, 'a>>,
    pub(crate) cost: u64,
    limit: u64,
}

impl<'f> Frame<'f, 'static> {
    /// Creates an evaluation of constants.
    pub(crate) fn of_constants() -> Frame<'f, 'static> {
        static NOTHING: Variables<'static> = Variables(Vec::new());
        Frame::new(&NOTHING, u64::MAX)
    }
}

impl<'f, 'a> Frame<'f, 'a> {
    pub(crate) fn new(activation: &'f dyn Activation<'a>, limit: u64) -> Frame<'f, 'a> {
        Frame { activation, locals: Vec::new(), cost: 0, limit }
    }

    fn charge(&mut self, cost: u64) -> Result<()> {
        self.cost = self.cost.saturating_add(cost);
        if self.cost > self.limit { Err(Error::limit()) } else { Ok(()) }
    }

    pub(crate) fn eval(&mut self, node: &'f Node) -> Result<Value<'a>> {
        match node {
            Node::Const(value) => Ok(value.clone()),
            Node::Attr(attr) => self.attr(attr),
            Node::And(args) => self.logic(args, false),
            Node::Or(args) => self.logic(args, true),
            Node::Equal { negated, args } => self.equal(*negated, args),
            Node::Call(call) => self.call(call),
            Node::Member { arg, set } => {
                let value = self.eval(arg)?;
                Ok(Value::Bool(Key::of(&value).is_some_and(|key| set.contains(&key))))
            }
            Node::OptionalOr { args, value } => {
                let [left, right] = &**args;
                match self.eval(left)? {
                    Value::Optional(None) => self.eval(right),
                    Value::Optional(Some(inner)) if *value => Ok(Arc::unwrap_or_clone(inner)),
                    some @ Value::Optional(Some(_)) => Ok(some),
                    _ => Err(Error::no_overload()),
                }
            }
            Node::List { elements } => self.list(elements),
            Node::Map { entries } => self.map(entries),
            Node::Struct { name, fields } => self.construct(name, fields),
            Node::Fold(fold) => self.fold(fold),
        }
    }

    /// Evaluates `&&` and `||`: a side that decides absorbs an error of the other.
    fn logic(&mut self, args: &'f [Node; 2], deciding: bool) -> Result<Value<'a>> {
        let mut failed = None;
        for arg in args {
            match self.eval(arg) {
                Ok(Value::Bool(value)) if value == deciding => return Ok(Value::Bool(deciding)),
                Ok(Value::Bool(_)) => {}
                Ok(_) => failed = failed.or_else(|| Some(Error::no_overload())),
                Err(error) if error.limit => return Err(error),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(Value::Bool(!deciding)), Err)
    }

    fn equal(&mut self, negated: bool, args: &'f [Node; 2]) -> Result<Value<'a>> {
        let [left, right] = args;
        let left = self.eval(left);
        check_limit(&left)?;
        let right = self.eval(right);
        check_limit(&right)?;
        let name = if negated { "_!=_" } else { "_==_" };
        self.charge(runtime_cost::equality(name, &left, &right))?;
        let (left, right) = (left?, right?);
        match crate::ops::equal(&left, &right) {
            Ok(same) => Ok(Value::Bool(same != negated)),
            // Values that are not equal are unequal, even if they cannot be compared.
            Err(_) if negated => Ok(Value::Bool(true)),
            Err(error) => Err(error),
        }
    }

    fn list(&mut self, elements: &'f [(Node, bool)]) -> Result<Value<'a>> {
        let mut items = Vec::with_capacity(elements.len());
        let mut failed = None;
        for (element, optional) in elements {
            match self.eval(element) {
                Err(error) if error.limit => return Err(error),
                Err(error) => {
                    failed = Some(error);
                    break;
                }
                Ok(Value::Optional(inner)) if *optional => {
                    items.extend(inner.map(Arc::unwrap_or_clone));
                }
                Ok(value) if *optional => {
                    failed = Some(Error::new(format!(
                        "cannot initialize optional list element from non-optional value {value}"
                    )));
                    break;
                }
                Ok(value) => items.push(value),
            }
        }
        self.charge(LIST_COST)?;
        failed.map_or(Ok(Value::List(List::owned(items))), Err)
    }

    fn map(&mut self, planned: &'f [(Node, Node, bool)]) -> Result<Value<'a>> {
        let mut entries = BTreeMap::new();
        let result = self.entries(planned, &mut entries);
        if result.as_ref().is_err_and(|error| error.limit) {
            result.clone()?;
        }
        self.charge(MAP_COST)?;
        result.map(|()| Value::Map(Map::owned(entries)))
    }

    fn entries(
        &mut self,
        planned: &'f [(Node, Node, bool)],
        entries: &mut BTreeMap<Key<'a>, Value<'a>>,
    ) -> Result<()> {
        for (key, value, optional) in planned {
            let key_value = self.eval(key)?;
            let key = Key::of(&key_value).ok_or_else(|| {
                Error::new(format!("unsupported key type: {}", key_value.type_name()))
            })?;
            match self.eval(value)? {
                Value::Optional(None) if *optional => {
                    entries.remove(&key);
                }
                Value::Optional(Some(inner)) if *optional => {
                    entries.insert(key, Arc::unwrap_or_clone(inner));
                }
                value if *optional => {
                    return Err(Error::new(format!(
                        "cannot initialize optional entry '{key_value}' from non-optional value {value}"
                    )));
                }
                value => {
                    entries.insert(key, value);
                }
            }
        }
        Ok(())
    }

    fn construct(&mut self, name: &str, fields: &'f [(String, Node, bool)]) -> Result<Value<'a>> {
        let mut object = Object { name: name.into(), fields: BTreeMap::new() };
        for (field, node, optional) in fields {
            match self.eval(node)? {
                Value::Optional(None) if *optional => {
                    object.fields.remove(field);
                }
                Value::Optional(Some(inner)) if *optional => {
                    object.fields.insert(field.clone(), Arc::unwrap_or_clone(inner));
                }
                value if *optional => {
                    return Err(Error::new(format!(
                        "cannot initialize optional entry '{field}' from non-optional value {value}"
                    )));
                }
                value => {
                    object.fields.insert(field.clone(), value);
                }
            }
        }
        self.charge(STRUCT_COST)?;
        if name != "JSONPatch" && name != "Object" && !name.starts_with("Object.") {
            return Err(Error::new(format!("unknown type '{name}'")));
        }
        Ok(Value::Object(Arc::new(object)))
    }

    /// Evaluates a selection of a computed value, which has its own cost.
    fn attr(&mut self, attr: &'f Attr) -> Result<Value<'a>> {
        let test = attr.qualifiers.last().is_some_and(|qualifier| qualifier.test);
        let result = match self.resolve(attr) {
            Err(error) if error.limit => return Err(error),
            other => other,
        };
        if !test && !matches!(attr.root, Root::Conditional { .. }) {
            self.charge(1)?;
        }
        match result? {
            Value::Optional(inner) if test => Ok(Value::Bool(inner.is_some())),
            value => Ok(value),
        }
    }

    fn resolve(&mut self, attr: &'f Attr) -> Result<Value<'a>> {
        let mut qualifiers = attr.qualifiers.as_slice();
        let root = match &attr.root {
            Root::Variable { name, global } => {
                match self.field_of_variable(name, *global, qualifiers) {
                    Some((value, rest)) => {
                        self.charge(1)?;
                        qualifiers = rest;
                        value?
                    }
                    None => self.lookup(name, *global)?,
                }
            }
            Root::Relative(node) => self.eval(node)?,
            Root::Conditional { condition, yes, no } => match self.eval(condition)? {
                Value::Bool(true) => self.resolve(yes)?,
                Value::Bool(false) => self.resolve(no)?,
                _ => return Err(Error::no_overload()),
            },
        };
        let (mut object, mut optional) = match root {
            Value::Optional(None) => return Ok(Value::Optional(None)),
            Value::Optional(Some(inner)) => (Arc::unwrap_or_clone(inner), true),
            value => (value, false),
        };
        for qualifier in qualifiers {
            optional |= qualifier.optional;
            let key = self.key(qualifier)?;
            let found = select(&object, &key, optional || qualifier.test);
            if optional {
                let Some(value) = found? else { return Ok(Value::Optional(None)) };
                self.charge(1)?;
                object = value;
                continue;
            }
            self.charge(1)?;
            object = match found? {
                found if qualifier.test => Value::Bool(found.is_some()),
                Some(value) => value,
                None => return Err(missing(&object, &key)),
            };
        }
        Ok(if optional { object.some() } else { object })
    }

    fn key(&mut self, qualifier: &'f Qualifier) -> Result<Value<'a>> {
        let key = match &qualifier.key {
            QualifierKey::Const(value) => return Ok(value.clone()),
            QualifierKey::Attr(attr) => self.resolve(attr),
            QualifierKey::Node(node) => self.eval(node),
        };
        match key {
            Ok(
                key @ (Value::String(_)
                | Value::Int(_)
                | Value::Uint(_)
                | Value::Bool(_)
                | Value::Double(_)),
            ) => Ok(key),
            Ok(other) => {
                self.charge(1)?;
                Err(Error::new(format!("invalid qualifier type: {}", go_name(&other))))
            }
            Err(error) if error.limit => Err(error),
            Err(error) => {
                self.charge(1)?;
                Err(error)
            }
        }
    }

    /// Evaluates the first selection from a variable whose fields are created on demand, and the
    /// selections after it.
    fn field_of_variable(
        &self,
        name: &str,
        global: bool,
        qualifiers: &'f [Qualifier],
    ) -> Option<(Result<Value<'a>>, &'f [Qualifier])> {
        let (first, rest) = qualifiers.split_first()?;
        let QualifierKey::Const(Value::String(field)) = &first.key else { return None };
        let is_local = !global && self.locals.iter().any(|local| local.name == name);
        if is_local {
            return None;
        }
        let value = self.activation.field(name, field)?;
        let value = value.map(|value| match (first.test, first.optional) {
            (true, _) => Value::Bool(true),
            (_, true) => value.some(),
            _ => value,
        });
        Some((value, rest))
    }

    fn lookup(&mut self, name: &str, global: bool) -> Result<Value<'a>> {
        if !global {
            let place = self.locals.iter().rposition(|local| local.name == name);
            if let Some(at) = place {
                return self.local(at);
            }
        }
        match self.activation.get(name) {
            Some(value) => value,
            None => Err(Error::new(format!("no such attribute(s): {name}"))),
        }
    }

    fn local(&mut self, at: usize) -> Result<Value<'a>> {
        let slot = self.locals.get(at).map(|local| &local.slot);
        match slot {
            Some(Slot::Value(value)) => value.clone(),
            None => Err(Error::new("no such attribute(s)")),
            Some(Slot::Pending(node)) => {
                let node = *node;
                // The first value belongs to the scope outside of the loop.
                let inner = self.locals.split_off(at);
                let value = self.eval(node);
                self.locals.extend(inner);
                if let Err(error) = &value
                    && error.limit
                {
                    return value;
                }
                if let Some(local) = self.locals.get_mut(at) {
                    local.slot = Slot::Value(value.clone());
                }
                value
            }
        }
    }

    fn call(&mut self, call: &'f Call) -> Result<Value<'a>> {
        if call.collects
            && let [Node::Attr(first), rest @ ..] = call.args.as_slice()
            && let Root::Variable { name, .. } = &first.root
            && let Some(at) = self.locals.iter().rposition(|local| local.name == &**name)
        {
            return self.collect_into(call, at, rest);
        }
        let mut args = Vec::with_capacity(call.args.len());
        let mut failed = None;
        // Calls with three or more arguments, and those whose overload the values choose, stop at
        // the first error and cost nothing.
        let stops = call.args.len() > 2 || functions::is_chosen_late(call);
        for arg in &call.args {
            match self.eval(arg) {
                Ok(value) => args.push(value),
                Err(error) if stops || error.limit => return Err(error),
                Err(_) if call.function == "@not_strictly_false" => {
                    self.charge(1)?;
                    return Ok(Value::Bool(true));
                }
                Err(error) => {
                    failed = failed.or(Some(error));
                    args.push(Value::Null);
                }
            }
        }
        self.invoke(call, args, failed)
    }

    fn invoke(
        &mut self,
        call: &'f Call,
        args: Vec<Value<'a>>,
        failed: Option<Error>,
    ) -> Result<Value<'a>> {
        let cost = runtime_cost::call(&call.function, call.overload, &args);
        if let Cost::Known(cost) = cost {
            self.charge(cost)?;
        } else if let Cost::AtLeast(least, _) = &cost {
            // Checks the budget before the result is created.
            if self.cost.saturating_add(*least) > self.limit && failed.is_none() {
                return Err(Error::limit());
            }
        }
        let result = match failed {
            Some(error) => Err(error),
            None => functions::call(call, args),
        };
        if let Cost::AtLeast(_, of_result) = cost {
            let size = result.as_ref().map_or(1, Value::size);
            self.charge(of_result(size))?;
        }
        result
    }

    /// Evaluates `accumulator + x` in a loop: the accumulator is moved instead of copied.
    fn collect_into(&mut self, call: &'f Call, at: usize, rest: &'f [Node]) -> Result<Value<'a>> {
        let mut failed = self.local(at).err();
        self.charge(1)?;
        let stops = rest.len() > 1;
        let mut args = vec![Value::Null];
        for node in rest {
            if stops && let Some(error) = failed {
                return Err(error);
            }
            match self.eval(node) {
                Ok(value) => args.push(value),
                Err(error) if error.limit => return Err(error),
                Err(error) => {
                    failed = failed.or(Some(error));
                    args.push(Value::Null);
                }
            }
        }
        if let Some(error) = failed {
            return if stops { Err(error) } else { self.invoke(call, args, Some(error)) };
        }
        if let Some(local) = self.locals.get_mut(at) {
            let taken = std::mem::replace(&mut local.slot, Slot::Value(Ok(Value::Null)));
            if let (Slot::Value(value), Some(first)) = (taken, args.first_mut()) {
                *first = value?;
            }
        }
        self.invoke(call, args, None)
    }

    fn fold(&mut self, fold: &'f Fold) -> Result<Value<'a>> {
        let range = self.eval(&fold.range)?;
        let base = self.locals.len();
        let accumulator = Local { name: &fold.accumulator, slot: Slot::Pending(&fold.init) };
        self.locals.push(accumulator);
        let result = self.iterate(fold, &range, base);
        let result = result.and_then(|()| {
            self.locals.truncate(base + 1);
            self.eval(&fold.result)
        });
        self.locals.truncate(base);
        result
    }

    fn iterate(&mut self, fold: &'f Fold, range: &Value<'a>, base: usize) -> Result<()> {
        match (range, &fold.second) {
            (Value::List(list), None) => {
                for item in list.iter() {
                    if !self.turn(fold, base, item, None)? {
                        break;
                    }
                }
            }
            (Value::List(list), Some(_)) => {
                for (at, item) in list.iter().enumerate() {
                    let at = Value::Int(i64::try_from(at).unwrap_or(i64::MAX));
                    if !self.turn(fold, base, Ok(at), Some(item))? {
                        break;
                    }
                }
            }
            (Value::Map(map), second) => {
                for key in map.keys() {
                    let value = second.as_ref().map(|_| {
                        map.find(&key).and_then(|value| value.ok_or_else(Error::no_overload))
                    });
                    if !self.turn(fold, base, Ok(key), value)? {
                        break;
                    }
                }
            }
            (other, None) => {
                let name = go_name(other);
                return Err(Error::new(format!("got '{name}', expected iterable type")));
            }
            (other, Some(_)) => {
                let name = go_name(other);
                let message = format!("unsupported comprehension range type: {name}");
                return Err(Error::new(message));
            }
        }
        Ok(())
    }

    /// Executes one iteration of a loop; returns whether there may be another.
    fn turn(
        &mut self,
        fold: &'f Fold,
        base: usize,
        first: Result<Value<'a>>,
        second: Option<Result<Value<'a>>>,
    ) -> Result<bool> {
        self.locals.truncate(base + 1);
        self.locals.push(Local { name: &fold.variable, slot: Slot::Value(first) });
        if let (Some(name), Some(value)) = (&fold.second, second) {
            self.locals.push(Local { name, slot: Slot::Value(value) });
        }
        let condition = self.eval(&fold.condition);
        check_limit(&condition)?;
        if let Ok(Value::Bool(false)) = condition {
            return Ok(false);
        }
        let value = self.eval(&fold.step);
        check_limit(&value)?;
        if let Some(local) = self.locals.get_mut(base) {
            local.slot = Slot::Value(value);
        }
        Ok(true)
    }
}

/// Returns the error of a result if the budget is used up; other errors do not end an evaluation.
fn check_limit(result: &Result<Value<'_>>) -> Result<()> {
    match result {
        Err(error) if error.limit => Err(error.clone()),
        _ => Ok(()),
    }
}

/// Returns what a key selects of a value, if it exists.
fn select<'a>(object: &Value<'a>, key: &Value<'a>, presence: bool) -> Result<Option<Value<'a>>> {
    match object {
        Value::Map(map) => map.find(key),
        Value::List(list) => {
            let index = index(key)?;
            match usize::try_from(index) {
                Ok(at) if at < list.len() => list.get(at).map(Some),
                _ => Ok(None),
            }
        }
        Value::Object(object) => Ok(key.as_str().and_then(|name| object.fields.get(name)).cloned()),
        _ if presence => Ok(None),
        _ => Err(Error::new(format!("no such key: {key}"))),
    }
}

fn missing(object: &Value<'_>, key: &Value<'_>) -> Error {
    match object {
        Value::List(_) => Error::new(format!("index out of bounds: {key}")),
        _ => Error::new(format!("no such key: {key}")),
    }
}

/// Converts an index of a list: a whole number of any type.
pub(crate) fn index(key: &Value<'_>) -> Result<i64> {
    let bad = || Error::new(format!("unsupported index value {key} in list"));
    match key {
        Value::Int(at) => Ok(*at),
        Value::Uint(at) => i64::try_from(*at).map_err(|_| bad()),
        Value::Double(at) => {
            crate::convert::double_to_int(*at).filter(|int| *int as f64 == *at).ok_or_else(bad)
        }
        other => Err(Error::new(format!("unsupported index type '{}' in list", other.type_name()))),
    }
}

/// Returns the name of a value's type in Go's messages.
fn go_name(value: &Value<'_>) -> &'static str {
    match value {
        Value::Null => "types.Null",
        Value::Bool(_) => "types.Bool",
        Value::Int(_) => "types.Int",
        Value::Uint(_) => "types.Uint",
        Value::Double(_) => "types.Double",
        Value::String(_) => "types.String",
        Value::Bytes(_) => "types.Bytes",
        Value::Timestamp(_) => "types.Timestamp",
        Value::Duration(_) => "types.Duration",
        Value::List(_) => "*types.baseList",
        Value::Map(_) => "*types.baseMap",
        Value::Optional(_) => "*types.Optional",
        Value::Type(_) => "*types.Type",
        Value::Host(_) | Value::Preserved(_) | Value::Object(_) => "ref.Val",
    }
}

#[cfg(test)]
mod tests;
