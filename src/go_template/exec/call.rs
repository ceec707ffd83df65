//! Calls of functions.

use crate::budget::Budget;
use crate::error::Failure;
use crate::exec::{Cell, State, execute};
use crate::function::{Call, Function, Run};
use crate::go::quote::quote;
use crate::parse::{self, Node};
use crate::signature::{Param, check_count};
use crate::value::Value;

/// How deep one template may be included in itself, as in Helm.
const MAX_INCLUDES: usize = 1000;

impl<'t> State<'_, '_, 't> {
    /// The arguments of a function or method; the first of `args` is its name.
    pub(super) fn eval_args(
        &mut self,
        dot: &Cell,
        name: &str,
        params: &'static [Param],
        variadic: bool,
        args: &'t [Node],
        last: Option<Value>,
    ) -> Result<Vec<Value>, Failure> {
        let args = args.get(1..).unwrap_or_default();
        let given = args.len() + usize::from(last.is_some());
        check_count(name, params.len(), variadic, given, args.len())
            .map_err(|error| self.error(&error.to_string()))?;
        let param = |at: usize| {
            let repeated = params.last().copied().unwrap_or(Param::Any);
            params.get(at).copied().unwrap_or(repeated)
        };
        let mut values = Vec::with_capacity(given);
        for (at, node) in args.iter().enumerate() {
            values.push(self.eval_arg(dot, param(at), node)?);
        }
        if let Some(last) = last {
            values.push(self.validate(param(args.len()), last)?);
        }
        Ok(values)
    }

    pub(super) fn eval_call(
        &mut self,
        dot: &Cell,
        function: &'static Function,
        node: &'t Node,
        args: &'t [Node],
        last: Option<Value>,
    ) -> Result<Value, Failure> {
        self.step()?;
        let (params, variadic, name) = (function.params, function.variadic, function.name);
        if let Run::And | Run::Or = function.run {
            return self.short_circuit(dot, function, args, last);
        }
        let callee = args.get(1).map(ToString::to_string);
        let values = self.eval_args(dot, name, params, variadic, args, last)?;
        let result = match function.run {
            Run::Plain(run) => {
                let core = &mut *self.core;
                run(&mut Call { budget: &mut core.budget, host: core.host }, &values)
            }
            Run::Include => self.include(&values),
            Run::Tpl => self.tpl(&values),
            Run::Call => Err(call_error(callee.as_deref(), values.first())),
            Run::And | Run::Or => Ok(Value::Nil),
        };
        let result = result.and_then(|value| {
            charge(&value, &mut self.core.budget)?;
            Ok(value)
        });
        result.map_err(|failure| {
            self.at(node);
            self.error_of(&format!("error calling {name}: "), Some(failure))
        })
    }

    fn short_circuit(
        &mut self,
        dot: &Cell,
        function: &'static Function,
        args: &'t [Node],
        last: Option<Value>,
    ) -> Result<Value, Failure> {
        let rest = args.get(1..).unwrap_or_default();
        let given = rest.len() + usize::from(last.is_some());
        check_count(function.name, 2, true, given, rest.len())
            .map_err(|error| self.error(&error.to_string()))?;
        let stop_at = matches!(function.run, Run::Or);
        let mut value = Value::Nil;
        for node in rest {
            value = self.eval_arg(dot, Param::Reflect, node)?;
            if value.truth() == stop_at {
                return Ok(value);
            }
        }
        Ok(last.unwrap_or(value))
    }

    fn include(&mut self, values: &[Value]) -> Result<Value, Failure> {
        let name = text(values, 0);
        let count = self.core.included.entry(name.clone()).or_insert(0);
        if *count > MAX_INCLUDES {
            let cause = Failure::new("unable to execute template");
            let context = format!("rendering template has a nested reference name: {name}: ");
            return Err(Failure::wrap(&context, cause));
        }
        *count += 1;
        let result = match self.templates.get(name.as_str()) {
            Some(template) => {
                let data = values.get(1).cloned().unwrap_or(Value::Nil);
                execute(self.core, self.templates, template, data)
            }
            None => {
                let name = quote(&name);
                let text = format!("no template {name} associated with template \"gotpl\"");
                Err(Failure::new(format!("template: {text}")))
            }
        };
        if let Some(count) = self.core.included.get_mut(&name) {
            *count = count.saturating_sub(1);
        }
        result.map(Value::from_bytes)
    }

    fn tpl(&mut self, values: &[Value]) -> Result<Value, Failure> {
        let source = text(values, 0);
        self.core.budget.bytes(source.len().saturating_mul(16))?;
        let parsed = parse::parse("gotpl", &source, self.core.find).map_err(|failure| {
            Failure::wrap(&format!("cannot parse template {}: ", quote(&source)), failure)
        })?;
        let data = values.get(1).cloned().unwrap_or(Value::Nil);
        let result = if parsed.all.len() == 1 {
            execute(self.core, self.templates, &parsed.main, data)
        } else {
            // What the text defines is known to itself alone.
            let mut templates = self.templates.clone();
            parse::add(&mut templates, parsed.all);
            execute(self.core, &templates, &parsed.main, data)
        };
        let bytes = result.map_err(|failure| {
            let context = format!("error during tpl function execution for {}: ", quote(&source));
            Failure::wrap(&context, failure)
        })?;
        Ok(without_no_value(Value::from_bytes(bytes)))
    }
}

/// Go prints missing values so, whatever the option for missing keys; Helm takes them away.
fn without_no_value(value: Value) -> Value {
    match &value {
        Value::String(text) if text.contains("<no value>") => {
            Value::from(text.replace("<no value>", ""))
        }
        _ => value,
    }
}

fn text(values: &[Value], at: usize) -> String {
    let bytes = values.get(at).and_then(Value::string_bytes).unwrap_or_default();
    String::from_utf8_lossy(bytes).into_owned()
}

/// No value of a template is a function.
fn call_error(callee: Option<&str>, value: Option<&Value>) -> Failure {
    match value {
        None | Some(Value::Nil | Value::Invalid) => Failure::new("call of nil"),
        Some(value) => {
            let (name, kind) = (callee.unwrap_or("value"), value.type_name());
            Failure::new(format!("non-function {name} of type {kind}"))
        }
    }
}

/// Counts the size of a result.
fn charge(value: &Value, budget: &mut Budget) -> Result<(), Failure> {
    match value {
        Value::String(text) => budget.bytes(text.len()),
        Value::Binary(bytes) | Value::Bytes(bytes) => budget.bytes(bytes.len()),
        Value::List(list) => budget.bytes(list.items.len().saturating_mul(16)),
        _ => Ok(()),
    }
}
