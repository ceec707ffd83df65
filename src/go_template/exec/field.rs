//! Fields, variables and methods.

use std::sync::Arc;

use crate::error::Failure;
use crate::exec::{Cell, State};
use crate::go::quote::quote;
use crate::methods;
use crate::parse::{Kind, Node};
use crate::value::{Class, Map, Value};

impl<'t> State<'_, '_, 't> {
    pub(super) fn eval_field_node(
        &mut self,
        dot: &Cell,
        node: &'t Node,
        args: &'t [Node],
        last: Option<Value>,
    ) -> Result<Cell, Failure> {
        self.at(node);
        let Kind::Field(names) = &node.kind else { return Ok(dot.clone()) };
        self.eval_field_chain(dot, dot.clone(), node, names, args, last)
    }

    pub(super) fn eval_chain_node(
        &mut self,
        dot: &Cell,
        node: &'t Node,
        args: &'t [Node],
        last: Option<Value>,
    ) -> Result<Cell, Failure> {
        self.at(node);
        let Kind::Chain(inner, names) = &node.kind else { return Ok(dot.clone()) };
        if let Kind::Nil = inner.kind {
            return Err(self.error(&format!("indirection through explicit nil in {node}")));
        }
        self.at(inner);
        let value = self.eval_operand(dot, inner)?;
        self.eval_field_chain(dot, Cell::concrete(value), node, names, args, last)
    }

    pub(super) fn eval_variable_node(
        &mut self,
        dot: &Cell,
        node: &'t Node,
        args: &'t [Node],
        last: Option<Value>,
    ) -> Result<Cell, Failure> {
        self.at(node);
        let Kind::Variable(names) = &node.kind else { return Ok(dot.clone()) };
        let Some((name, fields)) = names.split_first() else { return Ok(dot.clone()) };
        let known = self.vars.iter().rev().find(|(known, _)| known == name);
        let Some((_, cell)) = known else {
            return Err(self.error(&format!("undefined variable: {name}")));
        };
        let cell = cell.clone();
        if fields.is_empty() {
            if args.len() > 1 || last.is_some() {
                return Err(self.error(&format!("can't give argument to non-function {node}")));
            }
            return Ok(cell);
        }
        self.eval_field_chain(dot, cell, node, fields, args, last)
    }

    fn eval_field_chain(
        &mut self,
        dot: &Cell,
        receiver: Cell,
        node: &'t Node,
        names: &'t [Arc<str>],
        args: &'t [Node],
        mut last: Option<Value>,
    ) -> Result<Cell, Failure> {
        let mut receiver = receiver;
        for (at, name) in names.iter().enumerate() {
            let is_last = at + 1 == names.len();
            let (args, last) = if is_last { (args, last.take()) } else { (&[][..], None) };
            receiver = self.eval_field(dot, name, node, args, last, receiver)?;
        }
        Ok(receiver)
    }

    fn eval_field(
        &mut self,
        dot: &Cell,
        name: &str,
        node: &'t Node,
        args: &'t [Node],
        last: Option<Value>,
        receiver: Cell,
    ) -> Result<Cell, Failure> {
        let Cell { value, is_interface } = receiver;
        let type_name = if is_interface { "interface {}" } else { value.type_name() };
        match &value {
            Value::Invalid if self.core.strict => {
                return Err(self.error(&format!("nil data; no entry for key {}", quote(name))));
            }
            Value::Invalid => return Ok(Cell::concrete(Value::Invalid)),
            Value::Nil => {
                return Err(self.error(&format!("nil pointer evaluating {type_name}.{name}")));
            }
            _ => {}
        }
        if let Some(params) = methods::params(&value, name) {
            let values = self.eval_args(dot, name, params, false, args, last)?;
            let result = methods::call(&value, name, &values, &mut self.core.budget);
            return match result {
                Ok(value) => Ok(Cell::concrete(value)),
                Err(failure) => {
                    self.at(node);
                    Err(self.error_of(&format!("error calling {name}: "), Some(failure)))
                }
            };
        }
        let has_args = args.len() > 1 || last.is_some();
        match &value {
            Value::Object(object) => {
                if let Some(field) = object.field(name) {
                    if has_args {
                        let text = "has arguments but cannot be invoked as function";
                        return Err(self.error(&format!("{name} {text}")));
                    }
                    return Ok(Cell::concrete(field));
                }
            }
            Value::Map(map) => {
                if has_args {
                    return Err(self.error(&format!("{name} is not a method but has arguments")));
                }
                return self.map_entry(map, name);
            }
            _ => {}
        }
        Err(self.error(&format!("can't evaluate field {name} in type {type_name}")))
    }

    fn map_entry(&self, map: &Map, name: &str) -> Result<Cell, Failure> {
        let is_interface = map.class == Class::Any;
        let value = match map.get(name) {
            Some(value) => value,
            None if self.core.strict => {
                return Err(self.error(&format!("map has no entry for key {}", quote(name))));
            }
            None => methods::zero_of(map.class),
        };
        Ok(Cell { value, is_interface })
    }
}
