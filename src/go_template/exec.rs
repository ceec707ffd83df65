//! Execution of templates: controls, output and errors.

mod call;
mod eval;
mod field;

use std::collections::HashMap;
use std::sync::Arc;

use crate::budget::Budget;
use crate::error::Failure;
use crate::function::{Find, Host};
use crate::go::print::{self, Out};
use crate::go::quote::quote;
use crate::parse::node::Branch;
use crate::parse::{Kind, Node, Template, Templates};
use crate::value::{Elem, List, Value};

/// What all templates of a rendering share.
pub(crate) struct Core<'e> {
    pub budget: Budget,
    pub host: &'e (dyn Host + Sync),
    pub find: Find,
    /// A missing key of a map is an error.
    pub strict: bool,
    /// How often each template is included now.
    pub included: HashMap<String, usize>,
}

/// A value, and whether Go holds it in an `interface {}`: the texts of errors differ.
#[derive(Clone)]
pub(crate) struct Cell {
    value: Value,
    is_interface: bool,
}

impl Cell {
    fn concrete(value: Value) -> Self {
        Self { value, is_interface: false }
    }
}

/// What follows after a node.
#[derive(PartialEq, Eq)]
enum Flow {
    Next,
    Break,
    Continue,
}

pub(crate) struct State<'s, 'e, 't> {
    core: &'s mut Core<'e>,
    templates: &'t Templates,
    template: &'t Template,
    node: Option<&'t Node>,
    vars: Vec<(Arc<str>, Cell)>,
    out: Vec<u8>,
}

/// Executes a template with `data` as its dot.
///
/// # Errors
///
/// Go's text with the template, the line and the expression.
pub(crate) fn execute(
    core: &mut Core<'_>,
    templates: &Templates,
    template: &Template,
    data: Value,
) -> Result<Vec<u8>, Failure> {
    core.budget.enter()?;
    let dot = Cell::concrete(if data.is_nil() { Value::Invalid } else { data });
    let vars = vec![("$".into(), dot.clone())];
    let mut state = State { core, templates, template, node: None, vars, out: Vec::new() };
    state.walk(&dot, &template.root)?;
    let out = std::mem::take(&mut state.out);
    core.budget.leave();
    Ok(out)
}

impl<'t> State<'_, '_, 't> {
    fn at(&mut self, node: &'t Node) {
        self.node = Some(node);
    }

    /// An error at the current node.
    fn error(&self, message: &str) -> Failure {
        self.error_of(message, None)
    }

    fn error_of(&self, message: &str, cause: Option<Failure>) -> Failure {
        let template = self.template;
        let place = match self.node {
            None => format!("template: {}: ", template.name),
            Some(node) => {
                let before = template.text.get(..node.pos).unwrap_or_default();
                let line = 1 + before.matches('\n').count();
                let column = before.len() - before.rfind('\n').map_or(0, |at| at + 1);
                let (file, name) = (&template.parse_name, quote(&template.name));
                format!("template: {file}:{line}:{column}: executing {name} at <{node}>: ")
            }
        };
        match cause {
            Some(cause) => {
                let mut failure = Failure::wrap(message, cause);
                failure.message.insert_str(0, &place);
                failure
            }
            None => Failure::new(format!("{place}{message}")),
        }
    }

    /// Turns an exceeded bound into an error at the current node.
    fn checked<T>(&self, result: Result<T, Failure>) -> Result<T, Failure> {
        result.map_err(|failure| self.error(&failure.message))
    }

    fn step(&mut self) -> Result<(), Failure> {
        let result = self.core.budget.step(1);
        self.checked(result)
    }

    fn enter(&mut self) -> Result<(), Failure> {
        let result = self.core.budget.enter();
        self.checked(result)
    }

    fn write(&mut self, text: &[u8]) -> Result<(), Failure> {
        if self.out.len() + text.len() > self.core.budget.max_bytes() {
            let result = self.core.budget.bytes(usize::MAX);
            return self.checked(result);
        }
        self.out.extend_from_slice(text);
        Ok(())
    }

    fn walk(&mut self, dot: &Cell, node: &'t Node) -> Result<Flow, Failure> {
        self.at(node);
        self.step()?;
        match &node.kind {
            Kind::Action(pipe) => {
                let value = self.eval_pipeline(dot, pipe)?;
                let declares = matches!(&pipe.kind, Kind::Pipe(pipe) if !pipe.decl.is_empty());
                if !declares {
                    self.print(node, &value)?;
                }
                Ok(Flow::Next)
            }
            Kind::Break => Ok(Flow::Break),
            Kind::Continue => Ok(Flow::Continue),
            Kind::If(branch) => self.walk_if_or_with(false, dot, branch),
            Kind::With(branch) => self.walk_if_or_with(true, dot, branch),
            Kind::List(nodes) => {
                for node in nodes {
                    let flow = self.walk(dot, node)?;
                    if flow != Flow::Next {
                        return Ok(flow);
                    }
                }
                Ok(Flow::Next)
            }
            Kind::Range(branch) => self.walk_range(dot, node, branch),
            Kind::Template(name, pipe) => self.walk_template(dot, node, name, pipe.as_deref()),
            Kind::Text(text) => {
                self.write(text.as_bytes())?;
                Ok(Flow::Next)
            }
            _ => Err(self.error(&format!("unknown node: {node}"))),
        }
    }

    fn print(&mut self, node: &'t Node, value: &Value) -> Result<(), Failure> {
        self.at(node);
        match value {
            Value::Invalid => self.write(b"<no value>"),
            Value::String(text) => self.write(text.as_bytes()),
            Value::Binary(bytes) => self.write(bytes),
            value => {
                let mut out = Out::new(&mut self.core.budget);
                let result = print::write(&mut out, value, 0).and_then(|()| out.finish());
                let bytes = self.checked(result)?;
                self.write(&bytes)
            }
        }
    }

    fn walk_if_or_with(
        &mut self,
        with: bool,
        dot: &Cell,
        branch: &'t Branch,
    ) -> Result<Flow, Failure> {
        self.enter()?;
        let mark = self.vars.len();
        let value = self.eval_pipeline(dot, &branch.pipe)?;
        let flow = if value.truth() {
            let inner = Cell::concrete(value);
            self.walk(if with { &inner } else { dot }, &branch.list)?
        } else if let Some(list) = &branch.else_list {
            self.walk(dot, list)?
        } else {
            Flow::Next
        };
        self.vars.truncate(mark);
        self.core.budget.leave();
        Ok(flow)
    }

    fn walk_range(
        &mut self,
        dot: &Cell,
        node: &'t Node,
        branch: &'t Branch,
    ) -> Result<Flow, Failure> {
        self.at(node);
        self.enter()?;
        let mark = self.vars.len();
        let value = self.eval_pipeline(dot, &branch.pipe)?;
        let inner = self.vars.len();
        let pairs = self.range_pairs(&value, branch)?;
        let is_empty = pairs.is_empty();
        let mut flow = Flow::Next;
        for (index, element) in pairs {
            self.step()?;
            self.assign_range_vars(branch, index, &element)?;
            let result = self.walk(&element, &branch.list)?;
            self.vars.truncate(inner);
            if result == Flow::Break {
                break;
            }
        }
        if is_empty {
            if let Some(list) = &branch.else_list {
                flow = self.walk(dot, list)?;
            }
        }
        self.vars.truncate(mark);
        self.core.budget.leave();
        Ok(flow)
    }

    /// Indices or keys, and elements. For numbers there are no indices.
    fn range_pairs(
        &mut self,
        value: &Value,
        branch: &'t Branch,
    ) -> Result<Vec<(Value, Cell)>, Failure> {
        let Kind::Pipe(pipe) = &branch.pipe.kind else { return Ok(Vec::new()) };
        let number = match value {
            Value::Int(number) | Value::Int64(number) | Value::Duration(number) => Some(*number),
            Value::Byte(number) => Some(i64::from(*number)),
            Value::Uint64(number) => i64::try_from(*number).ok(),
            _ => None,
        };
        if let Some(number) = number {
            if pipe.decl.len() > 1 {
                let text = self.display(value)?;
                let rest = "to iterate over more than one variable";
                return Err(self.error(&format!("can't use {text} {rest}")));
            }
            let steps = self.core.budget.step(u64::try_from(number).unwrap_or(0));
            self.checked(steps)?;
            let element = |at: i64| match value {
                Value::Int(_) => Value::Int(at),
                _ => Value::Int64(at),
            };
            let pairs = (0..number).map(|at| (Value::Invalid, Cell::concrete(element(at))));
            return Ok(pairs.collect());
        }
        match value {
            Value::List(List { items, elem, .. }) => {
                let is_interface = *elem == Elem::Any;
                let cells = items.iter().map(|item| Cell { value: item.clone(), is_interface });
                Ok((0..).map(Value::Int).zip(cells).collect())
            }
            Value::Bytes(bytes) => {
                let cells = bytes.iter().map(|byte| Cell::concrete(Value::Byte(*byte)));
                Ok((0..).map(Value::Int).zip(cells).collect())
            }
            Value::Map(map) => {
                let is_interface = map.class == crate::value::Class::Any;
                let pairs = map.pairs().into_iter();
                let pairs =
                    pairs.map(|(key, value)| (Value::String(key), Cell { value, is_interface }));
                Ok(pairs.collect())
            }
            Value::Invalid | Value::Nil => Ok(Vec::new()),
            value => {
                let text = self.display(value)?;
                Err(self.error(&format!("range can't iterate over {text}")))
            }
        }
    }

    fn display(&mut self, value: &Value) -> Result<String, Failure> {
        let result = print::sprint(value, &mut self.core.budget);
        let text = self.checked(result)?;
        Ok(String::from_utf8_lossy(text.string_bytes().unwrap_or_default()).into_owned())
    }

    fn assign_range_vars(
        &mut self,
        branch: &'t Branch,
        index: Value,
        element: &Cell,
    ) -> Result<(), Failure> {
        let Kind::Pipe(pipe) = &branch.pipe.kind else { return Ok(()) };
        let names: Vec<&Arc<str>> = pipe
            .decl
            .iter()
            .filter_map(|node| match &node.kind {
                Kind::Variable(names) => names.first(),
                _ => None,
            })
            .collect();
        let index = Cell::concrete(index);
        if pipe.is_assign {
            match names.as_slice() {
                [only] => self.set_var(only, element.clone())?,
                [first, second] => {
                    self.set_var(first, index)?;
                    self.set_var(second, element.clone())?;
                }
                _ => {}
            }
            return Ok(());
        }
        let top = self.vars.len();
        let slots = self.vars.get_mut(top.saturating_sub(names.len())..).unwrap_or_default();
        match slots {
            [only] => only.1 = element.clone(),
            [first, second] => {
                first.1 = index;
                second.1 = element.clone();
            }
            _ => {}
        }
        Ok(())
    }

    fn set_var(&mut self, name: &str, value: Cell) -> Result<(), Failure> {
        match self.vars.iter_mut().rev().find(|(known, _)| &**known == name) {
            Some(slot) => {
                slot.1 = value;
                Ok(())
            }
            None => Err(self.error(&format!("undefined variable: {name}"))),
        }
    }

    fn walk_template(
        &mut self,
        dot: &Cell,
        node: &'t Node,
        name: &str,
        pipe: Option<&'t Node>,
    ) -> Result<Flow, Failure> {
        self.at(node);
        let Some(template) = self.templates.get(name) else {
            return Err(self.error(&format!("template {} not defined", quote(name))));
        };
        self.enter()?;
        let value = match pipe {
            Some(pipe) => self.eval_pipeline(dot, pipe)?,
            None => Value::Invalid,
        };
        let dot = Cell::concrete(value);
        let mut state = State {
            core: &mut *self.core,
            templates: self.templates,
            template,
            node: None,
            vars: vec![("$".into(), dot.clone())],
            out: std::mem::take(&mut self.out),
        };
        state.walk(&dot, &template.root)?;
        self.out = std::mem::take(&mut state.out);
        self.core.budget.leave();
        Ok(Flow::Next)
    }
}
