//! Evaluation of pipelines, commands and arguments.

use crate::error::Failure;
use crate::exec::{Cell, State};
use crate::parse::number::Number;
use crate::parse::{Kind, Node};
use crate::signature::Param;
use crate::value::Value;

impl<'t> State<'_, '_, 't> {
    pub(super) fn eval_pipeline(&mut self, dot: &Cell, node: &'t Node) -> Result<Value, Failure> {
        let Kind::Pipe(pipe) = &node.kind else {
            return Err(self.error("internal error: not a pipeline"));
        };
        self.at(node);
        let mut value: Option<Value> = None;
        for command in &pipe.cmds {
            let result = self.eval_command(dot, command, value.take())?.value;
            // The value leaves the interface that held it.
            value = Some(if result.is_nil() { Value::Invalid } else { result });
        }
        let value = value.unwrap_or(Value::Invalid);
        for variable in &pipe.decl {
            let Kind::Variable(names) = &variable.kind else { continue };
            let Some(name) = names.first() else { continue };
            let cell = Cell::concrete(value.clone());
            if pipe.is_assign {
                self.set_var(name, cell)?;
            } else {
                self.vars.push((name.clone(), cell));
            }
        }
        Ok(value)
    }

    /// A pipeline in parentheses.
    fn eval_nested(&mut self, dot: &Cell, node: &'t Node) -> Result<Value, Failure> {
        self.enter()?;
        let value = self.eval_pipeline(dot, node)?;
        self.core.budget.leave();
        Ok(value)
    }

    fn not_a_function(&self, args: &[Node], last: Option<&Value>) -> Result<(), Failure> {
        match args.first() {
            Some(first) if args.len() > 1 || last.is_some() => {
                Err(self.error(&format!("can't give argument to non-function {first}")))
            }
            _ => Ok(()),
        }
    }

    fn eval_command(
        &mut self,
        dot: &Cell,
        node: &'t Node,
        last: Option<Value>,
    ) -> Result<Cell, Failure> {
        let Kind::Command(args) = &node.kind else {
            return Err(self.error("internal error: not a command"));
        };
        let Some(first) = args.first() else {
            return Err(self.error("internal error: empty command"));
        };
        self.step()?;
        match &first.kind {
            Kind::Field(_) => return self.eval_field_node(dot, first, args, last),
            Kind::Chain(..) => return self.eval_chain_node(dot, first, args, last),
            Kind::Identifier(_, function) => {
                self.at(first);
                let value = self.eval_call(dot, function, node, args, last)?;
                return Ok(Cell::concrete(value));
            }
            Kind::Pipe(_) => {
                self.not_a_function(args, last.as_ref())?;
                return self.eval_nested(dot, first).map(Cell::concrete);
            }
            Kind::Variable(_) => return self.eval_variable_node(dot, first, args, last),
            _ => {}
        }
        self.at(first);
        self.not_a_function(args, last.as_ref())?;
        match &first.kind {
            Kind::Bool(value) => Ok(Cell::concrete(Value::Bool(*value))),
            Kind::Dot => Ok(dot.clone()),
            Kind::Nil => Err(self.error("nil is not a command")),
            Kind::Number(number) => self.ideal_constant(first, number).map(Cell::concrete),
            Kind::String(_, bytes) => Ok(Cell::concrete(Value::from_bytes(bytes.to_vec()))),
            _ => {
                let text = crate::go::quote::quote(&first.to_string());
                Err(self.error(&format!("can't evaluate command {text}")))
            }
        }
    }

    fn ideal_constant(&mut self, node: &'t Node, number: &Number) -> Result<Value, Failure> {
        self.at(node);
        let is_float = number.text.contains(['.', 'e', 'E', 'p', 'P']);
        if let Some(float) = number.float {
            if is_float && !number.is_hex_int() && !number.is_rune() {
                return Ok(Value::Float(float));
            }
        }
        match number.int {
            Some(int) => Ok(Value::Int(int)),
            None => Err(self.error(&format!("{} overflows int", number.text))),
        }
    }

    /// An argument of the type `param`.
    pub(super) fn eval_arg(
        &mut self,
        dot: &Cell,
        param: Param,
        node: &'t Node,
    ) -> Result<Value, Failure> {
        self.at(node);
        let value = match &node.kind {
            Kind::Dot => dot.value.clone(),
            Kind::Nil if param.can_be_nil() => return Ok(Value::Nil),
            Kind::Nil => {
                return Err(self.error(&format!("cannot assign nil to {}", param.type_name())));
            }
            Kind::Field(_)
            | Kind::Variable(_)
            | Kind::Pipe(_)
            | Kind::Identifier(..)
            | Kind::Chain(..) => self.eval_operand(dot, node)?,
            _ => return self.eval_literal(param, node),
        };
        self.validate(param, value)
    }

    /// A field, variable, pipeline, function or chain without arguments.
    pub(super) fn eval_operand(&mut self, dot: &Cell, node: &'t Node) -> Result<Value, Failure> {
        Ok(match &node.kind {
            Kind::Field(_) => self.eval_field_node(dot, node, &[], None)?.value,
            Kind::Variable(_) => self.eval_variable_node(dot, node, &[], None)?.value,
            Kind::Pipe(_) => self.eval_nested(dot, node)?,
            Kind::Identifier(_, function) => {
                self.at(node);
                self.eval_call(dot, function, node, &[], None)?
            }
            Kind::Chain(..) => self.eval_chain_node(dot, node, &[], None)?.value,
            Kind::Dot => dot.value.clone(),
            _ => self.eval_literal(Param::Any, node)?,
        })
    }

    pub(super) fn validate(&self, param: Param, value: Value) -> Result<Value, Failure> {
        param.validate(value).map_err(|error| self.error(&error.to_string()))
    }

    fn eval_literal(&mut self, param: Param, node: &'t Node) -> Result<Value, Failure> {
        self.at(node);
        let expected = |what: &str| format!("expected {what}; found {node}");
        match (param, &node.kind) {
            (Param::Any | Param::Reflect, kind) => match kind {
                Kind::Bool(value) => Ok(Value::Bool(*value)),
                Kind::Number(number) => self.ideal_constant(node, number),
                Kind::String(_, bytes) => Ok(Value::from_bytes(bytes.to_vec())),
                _ => {
                    let text = "to empty interface argument";
                    Err(self.error(&format!("can't handle assignment of {node} {text}")))
                }
            },
            (Param::Bool, Kind::Bool(value)) => Ok(Value::Bool(*value)),
            (Param::Bool, _) => Err(self.error(&expected("bool"))),
            (Param::Str, Kind::String(_, bytes)) => Ok(Value::from_bytes(bytes.to_vec())),
            (Param::Str, _) => Err(self.error(&expected("string"))),
            (Param::Int, Kind::Number(Number { int: Some(int), .. })) => Ok(Value::Int(*int)),
            (Param::Int, _) => Err(self.error(&expected("integer"))),
            (Param::Float, Kind::Number(Number { float: Some(float), .. })) => {
                Ok(Value::Float(*float))
            }
            (Param::Float, _) => Err(self.error(&expected("float"))),
            (param, _) => {
                let name = param.type_name();
                Err(self.error(&format!("can't handle {node} for arg of type {name}")))
            }
        }
    }
}
